"""The cluster as a scheduler knows it: nodes, who holds what, and what each node says to a pod.

The cluster's extender and `hetero simulate` call the same functions of it. Nothing here waits, so
a reservation is atomic: of two pods that want the last share one gets it and the other hears why
not. What there is is `ClusterInventory`, what it costs `PriceRows`; whom to evict and which nodes
are kept clear are decided in `victims` and `node_reservations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
)
from heapq import heappop, heappush
from itertools import islice
from typing import Protocol

from attrs import evolve

from hetero.model import (
    FITS,
    NO_DEVICE,
    Allocation,
    Counters,
    Device,
    Refusal,
    Request,
    Shortage,
)
from hetero.placement.cluster import DeviceUsage, PlacedNode, PlacedPod, Placement
from hetero.placement.demand import MOST_CLASSES, Demand
from hetero.placement.inventory import ClusterInventory, NodeChange
from hetero.placement.match import allocate
from hetero.placement.node_reason import DeviceVerdict
from hetero.placement.node_reservations import NODES as RESERVED_NODES
from hetero.placement.node_reservations import NodeReservations
from hetero.placement.place_pod import MOST_TRIES, place_pod
from hetero.placement.placement_policy import WEIGHTS, PlacementPolicy, Weights
from hetero.placement.price import DEAREST, NEVER, Prices
from hetero.placement.price_rows import RESERVED, PriceRow, PriceRows, is_exact
from hetero.placement.state import Cluster
from hetero.placement.victims import NO_GANGS, Gang, Victims, choose_victims

#: What a device says that only those hold whom the pod may not share it with.
_APART = "shared otherwise"


class QuotaRules(Protocol):
    """What namespaces may hold, as far as the cache needs to know."""

    most: dict[str, dict[str, dict[str, int]]]
    used: dict[str, Counter[str]]

    def charge(self, device: Device, takes: Counters) -> Counter[str]:
        """Return what these counters of a device are charged."""

    def move(self, namespace: str, charge: Counter[str], *, times: int) -> None:
        """Count a charge (`times` 1) or give it back (-1)."""

    def over(self, namespace: str, charge: Counter[str]) -> str | None:
        """Return which quota so much more would pass, None if none."""

    def least(self, pod: PlacedPod, kinds: Iterable[Device]) -> Counter[str]:
        """Return the least a pod is charged on a node whose cards are of these kinds."""


class SchedulerCache:
    """Nodes with their devices and the pods standing on them. One caller at a time."""

    def __init__(
        self,
        quotas: QuotaRules | None = None,
        *,
        weights: Weights = WEIGHTS["fragmentation"],
        demand: Demand | None = None,
    ) -> None:
        """Start without nodes. `quotas` and `demand` are kept by those who follow them.

        `weights` choose among nodes, and among devices, where a call does not say otherwise.
        """
        self.quotas = quotas
        self.weights = weights
        self.demand = demand or Demand()
        self.inventory = ClusterInventory()
        self.reservations = NodeReservations()
        self.standing: dict[str, Placement] = {}  # by the pod's UID
        self._on: dict[str, set[str]] = {}  # the UIDs of those on a node
        self._counted: set[str] = set()  # the UIDs of those that the demand counts
        self._rows: PriceRows | None = None  # None: to be made anew, a change was too large

    # --- what there is ------------------------------------------------------------------------

    def update_node(self, node: PlacedNode, *, fault: str | None = None) -> str | None:
        """Note what a node has, or why nothing of its devices can be used.

        A device that another node has belongs to that one: return a sentence of it, None if there
        is none. The node's other devices are used all the same.
        """
        change = self.inventory.update(node, fault=fault)
        self._follow(change)
        return change.conflict

    def cordon(self, name: str, why: str | None) -> bool:
        """Have a node take no pod from now on, None: take pods again; return if that is new.

        What stands on it stays counted.
        """
        is_new = self.inventory.cordon(name, why)
        if is_new and (change := self.inventory.update_cordon(name)):
            self._follow(change)
        return is_new

    def remove_node(self, name: str) -> None:
        """Note that a node is gone; what stands on it stays counted until its pods are gone."""
        if self.inventory.remove(name):
            self._rows = None

    def free(self, name: str) -> dict[str, dict[str, int]]:
        """Return what is left of each counter of a node's devices, by UUID."""
        cluster = self.rows().cluster
        return cluster.free(cluster.number[name])

    # --- what arrives ---------------------------------------------------------------------------

    def arrive(self, uid: str, pod: PlacedPod, now: float) -> None:
        """Count a pod that wants a place, once, whenever it is asked about; `now` is in seconds."""
        if uid in self._counted:
            return
        self._counted.add(uid)
        want = self._priced(None).shape(pod).want.wanted
        due = self.demand.arrive(want, pod.host(), now)
        if len(self.demand.weights) > MOST_CLASSES:  # it takes long: the next need no join at once
            self.demand.join(self._priced(None).mean_size, most=MOST_CLASSES * 3 // 4)
        if due or self.rows().has_stale_states:
            self._learn()

    def forget(self, uid: str, *, ran: bool = True) -> None:
        """Give back what a pod held that will not ask again, and count that it ended if it ran."""
        if ran and uid in self.standing:
            self.demand.end()
        self._counted.discard(uid)
        self._end_reservation(uid)
        self.release(uid)

    # --- what a scheduler asks ------------------------------------------------------------------

    def best(
        self,
        pod: PlacedPod,
        offered: Container[str],
        *,
        weights: Weights | None = None,
        uid: str = "",
    ) -> str | None:
        """Return the cheapest of the offered nodes that serve the pod, the first among equals.

        One that is reserved for another pod than `uid` comes after all others.
        """
        rows, over = self.rows(), self._over_quota(pod)
        row, cluster, kinds = rows.row(pod, weights or self.weights), rows.cluster, rows.kinds
        nodes, heap, costs = cluster.nodes, row.heap, row.costs

        def serves(number: int) -> bool:
            name = nodes[number].name
            return costs[number] < NEVER and name in offered and kinds[name] not in over

        names = self.reservations.of(uid)
        own = (cluster.number[name] for name in names if name in cluster.number)
        best = min(
            ((costs[number] - RESERVED, number) for number in own if serves(number)), default=None
        )
        passed = list[tuple[int, int]]()
        while heap and (best is None or heap[0] < best):
            cost, number = heap[0]
            if costs[number] == cost and serves(number):
                best = heap[0]
                break
            heappop(heap)
            if costs[number] == cost:
                passed.append((cost, number))
        for entry in passed:
            heappush(heap, entry)
        return nodes[best[1]].name if best else None

    def reserve_nodes(self, uid: str, pod: PlacedPod, offered: Iterable[str]) -> None:
        """Have the nodes nearest to empty kept clear for a pod that wants a whole one and waits.

        Those are the offered nodes with room on which the fewest pods stand. The reservation ends
        when the pod is placed or gone. While pods only arrive no node empties, and none is
        reserved.
        """
        cards = self._priced(None).shape(pod).want.wanted.cards
        if cards < 2 or uid in self.reservations or not self.demand.pods_end:
            return
        rows, over = self.rows(), self._over_quota(pod)
        cluster, kinds = rows.cluster, rows.kinds
        able: dict[object, bool] = {}  # by what nodes have when they are empty

        def could_serve(node: PlacedNode) -> bool:
            key = kinds[node.name], len(node.devices), tuple(node.host.items())
            if key not in able:
                everybody = self.on(node.name)
                answer = self._place_pod(pod, node.name, without=[uid, *everybody])
                able[key] = isinstance(answer, Placement)
            return able[key]

        near = sorted(
            (len(self._on.get(name, ())), number)
            for name in offered
            if (number := cluster.number.get(name)) is not None
            and len(cluster.cards[number]) == cards
            and cluster.free_milli[number]
            and not cluster.nodes[number].cordoned
            and kinds[name] not in over
            and name not in self.reservations.nodes
        )
        able_nodes = (node.name for _, number in near if could_serve(node := cluster.nodes[number]))
        self.reservations.add(uid, tuple(islice(able_nodes, RESERVED_NODES)))
        rows.reservation_changed(self.reservations.of(uid))

    def _end_reservation(self, uid: str) -> None:
        nodes = self.reservations.drop(uid)
        if self._rows is not None:
            self._rows.reservation_changed(nodes)

    def serving(self, pod: PlacedPod, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
        """Return those of the nodes that can serve the pod, and what each of the others says."""
        row, over = self.rows().row(pod, self.weights), self._over_quota(pod)
        fits, reasons = list[str](), dict[str, str]()
        for name in names:
            answer = self._reason(name, row, over)
            if answer is None:
                fits.append(name)
            else:
                reasons[name] = answer[0]
        return fits, reasons

    def refusal(self, pod: PlacedPod, names: Iterable[str]) -> Refusal:
        """Return why none of the nodes serves the pod: how many say what, with numbers."""
        row, over = self.rows().row(pod, self.weights), self._over_quota(pod)
        counts, shortages = Counter[str](), dict[str, Shortage]()
        for name in names:
            reason, lacking = self._reason(name, row, over) or (FITS, None)
            counts[reason] += 1
            if lacking is not None:
                shortages[reason] = lacking.nearer(shortages.get(reason))
        return Refusal(wanted=1, verdicts={}, counts=counts, of="node", shortages=shortages)

    def _reason(
        self, name: str, row: PriceRow, over: Mapping[frozenset[int], str]
    ) -> DeviceVerdict | None:
        """Return what a node says to the row's shape, None if it serves."""
        rows = self.rows()
        number = rows.cluster.number.get(name)
        if number is None:
            return NO_DEVICE, None
        if row.costs[number] < NEVER:
            quota = over.get(rows.kinds[name]) if over else None
            return None if quota is None else (quota, None)
        why = self.inventory.unusable(name)
        if why is not None:
            return why, None
        return row.reasons.get(number) or self._priced(None).reason(number, row.shape)

    def costs(
        self, pod: PlacedPod, names: Iterable[str], *, weights: Weights | None = None
    ) -> dict[str, int]:
        """Return what the pod costs on those of the nodes that serve it; least is best.

        Of nodes that are reserved there is nothing.
        """
        rows = self.rows()
        row, number_of = rows.row(pod, weights or self.weights), rows.cluster.number
        at = ((name, row.costs[number_of[name]]) for name in names if name in number_of)
        return {name: cost for name, cost in at if cost < DEAREST}

    def reserve(
        self,
        uid: str,
        pod: PlacedPod,
        node: str,
        *,
        policy: PlacementPolicy | None = None,
        weights: Weights | None = None,
    ) -> Placement | Refusal:
        """Place the pod on the node, from now on, or return why that cannot be.

        `policy` chooses the node's devices; without one the weights do.
        """
        self.release(uid)  # asked again, it may have other devices
        answer = self._place_pod(pod, node, policy=policy, weights=weights)
        if isinstance(answer, Refusal):
            return answer
        if self.quotas is not None and pod.namespace in self.quotas.most:
            over = self.quotas.over(pod.namespace, self._charge(answer))
            if over:
                return Refusal(wanted=1, verdicts={}, missing=over)
        self._stand(uid, answer)
        return answer

    def restore(self, uid: str, placement: Placement) -> None:
        """Count what a pod is known to hold, wherever that was decided."""
        if self.standing.get(uid) == placement:
            return
        self.release(uid)
        self._stand(uid, placement)

    def _stand(self, uid: str, placement: Placement) -> None:
        self._end_reservation(uid)
        self.standing[uid] = placement
        self._on.setdefault(placement.node, set()).add(uid)
        self._move(placement, times=1)

    def release(self, uid: str) -> None:
        """Give back what a pod held, if it held anything."""
        placement = self.standing.pop(uid, None)
        if placement is not None:
            self._on[placement.node].discard(uid)
            self._move(placement, times=-1)

    def hold(
        self, uid: str, pod: PlacedPod, node: str, *, without: Iterable[str] = ()
    ) -> Placement | Refusal:
        """Keep the room for a pod that it will have once others are gone, or say why it has none.

        Until then more may be taken of a device than it has. A reservation for the pod takes its
        place.
        """
        answer = self._place_pod(pod, node, without=[uid, *without])
        if isinstance(answer, Placement):
            self.release(uid)
            self._stand(uid, answer)
        return answer

    def has_room(self, uid: str, pod: PlacedPod, node: str) -> bool:
        """Return whether a pod fits on a node, where it may hold its place already."""
        return isinstance(self._place_pod(pod, node, without=[uid]), Placement)

    def on(self, node: str) -> frozenset[str]:
        """Return the UIDs of those that stand on a node."""
        return frozenset(self._on.get(node, ()))

    def preemptible(self, pod: PlacedPod, names: Iterable[str]) -> list[str]:
        """Return the nodes with anybody less important than the pod, the best to look at first.

        Those are the nodes with the least important, and of these the emptiest.
        """
        cluster, standing, ranked = self.rows().cluster, self.standing, list[tuple[int, int, str]]()
        for name in names:
            least = min(
                (standing[uid].pod.priority for uid in self._on.get(name, ())), default=None
            )
            if least is not None and least < pod.priority and name in cluster.number:
                ranked.append((least, -cluster.free_milli[cluster.number[name]], name))
        return [name for _, _, name in sorted(ranked)]

    def victims(
        self,
        pod: PlacedPod,
        node: str,
        *,
        given: Collection[str] = (),
        ending: Iterable[str] = (),
        spared: Container[str] = (),
        gangs: Mapping[str, Gang] = NO_GANGS,
        may_evict: Callable[[Collection[str]], bool] = lambda _: True,
    ) -> Victims | None:
        """Return whom to evict so that the pod fits: the fewest, of these the least important.

        The `given` are evicted in any case, the `spared` never; the `ending` go by themselves.
        `gangs` has, by each of its pods that holds something, those that are evicted together or
        not at all. `may_evict` says whether pods may go together. None if the pod would not fit
        even without every pod of lower priority, or may not for its namespace's quota, which
        nobody's eviction mends.
        """
        if self.rows().kinds.get(node) in self._over_quota(pod):
            return None

        def fits(going: Collection[str]) -> bool:
            return isinstance(self._place_pod(pod, node, without=going), Placement)

        return choose_victims(
            pod,
            node,
            standing=self.standing,
            on_node=self._on.get(node, ()),
            given=given,
            ending=ending,
            spared=spared,
            gangs=gangs,
            fits=fits,
            may_evict=may_evict,
        )

    # --- from a node to a placement -------------------------------------------------------------

    def _place_pod(
        self,
        pod: PlacedPod,
        node: str,
        *,
        policy: PlacementPolicy | None = None,
        weights: Weights | None = None,
        without: Iterable[str] = (),
        most: int = MOST_TRIES,
    ) -> Placement | Refusal:
        why = self.inventory.unusable(node)
        if why is not None:
            return Refusal(wanted=1, verdicts={}, missing=why)
        cluster = self.rows().cluster
        number = cluster.number.get(node)
        if number is None:
            return Refusal(wanted=1, verdicts={node: NO_DEVICE}, of="node")
        prices = self._priced(weights)
        if policy is None and not without:
            quick = self._choose(pod, number, prices)
            if quick is not None:
                return quick
        free = {uuid: dict(left) for uuid, left in cluster.free(number).items()}
        host = dict(zip(cluster.counters, cluster.host[number], strict=True))
        for uid in without:
            placement = self.standing.get(uid)
            if placement is not None and placement.node == node:
                _add_back(placement, free, host)
        apart = self._apart(pod, node, without)
        devices = [device for device in cluster.nodes[number].devices if device.uuid not in apart]
        chosen = policy or prices.policy
        answer = place_pod(node, devices, free, host, pod, policy=chosen, most=most)
        if isinstance(answer, Refusal) and answer.missing is None:
            return evolve(answer, verdicts={**answer.verdicts, **dict.fromkeys(apart, _APART)})
        return answer

    def _choose(self, pod: PlacedPod, number: int, prices: Prices) -> Placement | None:
        """Return the cheapest placement of a plain pod; None where it takes a search, or is none.

        The search would find it too. This is the common case, and the node's cost counts on it.
        """
        cluster, shape = self.rows().cluster, prices.shape(pod)
        node, want = cluster.nodes[number], shape.want
        if not is_exact(shape, number, cluster) or prices.cost(number, shape) == NEVER:
            return None
        allocation = None
        if want.wanted.request is not None:
            states, cards = cluster.card_states.states, cluster.cards[number]
            places = prices.choose(number, shape)
            cuts = [(node.devices[p], prices.cut(states[cards[p]], want)) for p in places]
            allocation = allocate(
                want.wanted.request, [(device, cut) for device, cut in cuts if cut is not None]
            )
        return Placement(
            node=node.name,
            pod=pod,
            allocations=tuple(
                None if one.request is None else allocation
                for one in (*pod.sidecars, *pod.containers, *pod.init)
            ),
            holds=tuple(
                DeviceUsage(device=piece.device, takes=piece.takes)
                for piece in (allocation.pieces if allocation else ())
            ),
            host=pod.host(),
        )

    def _apart(self, pod: PlacedPod, node: str, without: Iterable[str] = ()) -> set[str]:
        """Return the node's devices that are held by others than the pod may share one with."""
        rules = {one.key: one for request in _requests(pod) for one in request.co_tenancy}
        if not rules:
            return set()
        return {
            piece.device
            for uid in self._on.get(node, set()).difference(without)
            for request, allocation in _held(self.standing[uid])
            for piece in allocation.pieces
            for one in request.co_tenancy
            if one.key in rules and one.value not in rules[one.key].compatible_with
        }

    # --- quotas ---------------------------------------------------------------------------------

    def _charge(self, placement: Placement) -> Counter[str]:
        """Return what a placement is charged, as far as its devices are still there."""
        charged = Counter[str]()
        if self.quotas is not None:
            devices = {device.uuid: device for device in self.inventory.devices(placement.node)}
            for usage in placement.holds:
                if usage.device in devices:
                    charged.update(self.quotas.charge(devices[usage.device], usage.takes))
        return charged

    def _over_quota(self, pod: PlacedPod) -> dict[frozenset[int], str]:
        """Return which quota the pod passes wherever it is placed, by the kinds of a node's cards.

        Of kinds on which it may pass none there is nothing: mostly, of all.
        """
        over: dict[frozenset[int], str] = {}
        if self.quotas is not None and pod.namespace in self.quotas.most:
            rows = self.rows()
            for kinds in set(rows.kinds.values()):
                devices = [rows.cluster.card_states.kinds[kind].device for kind in kinds]
                verdict = self.quotas.over(pod.namespace, self.quotas.least(pod, devices))
                if verdict:
                    over[kinds] = verdict
        return over

    # --- what follows from it ---------------------------------------------------------------------

    def rows(self) -> PriceRows:
        """Return what pods cost and what is left of every node.

        It is worked out anew after it could not follow a change.
        """
        rows = self._rows
        if rows is None:
            cluster = Cluster(self.inventory.nodes.values())
            rows = self._rows = PriceRows(cluster, self.reservations, self._place_pod)
            if self.quotas is not None:
                self.quotas.used.clear()
            for placement in self.standing.values():
                self._move(placement, times=1)
            self._learn()
        return rows

    def _follow(self, change: NodeChange) -> None:
        """Let the packing core know of a node's change, or have it start anew with it."""
        rows, before, node = self._rows, change.before, change.after
        if rows is None or not change:
            return
        cluster = rows.cluster
        if set(node.host) - set(cluster.counters):
            self._rows = None
            return
        if before is None:
            cluster.add(node)
            for uid in self._on.get(node.name, ()):
                self._move(self.standing[uid], times=1)
        elif [(d.uuid, d.capacity) for d in before.devices] == [
            (d.uuid, d.capacity) for d in node.devices
        ]:
            for old, new in zip(before.devices, node.devices, strict=True):
                if old != new:  # its health, mostly
                    cluster.replace(new)
            cluster.update(node)
        else:
            self._rows = None
            return
        if rows.node_changed(node.name, devices=len(node.devices)):
            self._learn()

    def _learn(self) -> None:
        self.rows().learn(self.demand, self.weights)

    def _priced(self, weights: Weights | None) -> Prices:
        return self.rows().prices(weights or self.weights)

    def _move(self, placement: Placement, *, times: int) -> None:
        rows = self._rows
        if rows is None or placement.node not in self.inventory.nodes:
            return
        rows.changed(rows.cluster.move(placement, times=times))
        if self.quotas is not None:
            self.quotas.move(placement.pod.namespace, self._charge(placement), times=times)


def _add_back(placement: Placement, free: dict[str, dict[str, int]], host: dict[str, int]) -> None:
    """Add what a placement holds to what is left of its node."""
    for usage in placement.holds:
        left = free.get(usage.device, {})
        for name, amount in usage.takes.items():
            if name in left:
                left[name] += amount
    for name, amount in placement.host.items():
        if name in host:
            host[name] += amount


def _held(placement: Placement) -> Iterator[tuple[Request, Allocation]]:
    """Yield what each container of a placement asked, and what it was given."""
    pod = placement.pod
    everyone = (*pod.sidecars, *pod.containers, *pod.init)
    for container, allocation in zip(everyone, placement.allocations, strict=True):
        if container.request is not None and allocation is not None:
            yield container.request, allocation


def _requests(pod: PlacedPod) -> Iterator[Request]:
    for container in (*pod.sidecars, *pod.containers, *pod.init):
        if container.request is not None:
            yield container.request
