"""The cluster as a scheduler knows it: nodes, who holds what, and what each node says to a pod.

The cluster's extender and `hetero simulate` call the same functions of it. Nothing here waits, so
a reservation is atomic: of two pods that want the last share one gets it and the other hears why
not.

Over 400 lines because everything a reservation depends on (free capacity, co-tenants, quota) is
checked in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
)
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Protocol

from attrs import define, evolve

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
from hetero.placement.claims import NODES as CLAIMED
from hetero.placement.claims import Claims
from hetero.placement.cluster import DeviceUsage, Node, Placement, Pod
from hetero.placement.demand import MOST_CLASSES, Demand, RequestClass
from hetero.placement.match import allocate
from hetero.placement.node_reason import Said, node_reason
from hetero.placement.place_pod import MOST_TRIES, place_pod
from hetero.placement.placement_policy import WEIGHTS, PlacementPolicy, Weights
from hetero.placement.price import DEAREST, NEVER, Lessons, Prices, Shape, Want
from hetero.placement.state import Cluster
from hetero.placement.victims import NO_GANGS, Gang, Victims, fewest

#: What a device says that only those hold whom the pod may not share it with.
_APART = "shared otherwise"
#: Shapes whose costs are kept up to date, and changes that are remembered for them.
_MOST_ROWS, _MOST_CHANGES = 1024, 100_000
#: What a node that a pod claims costs more, to all but that pod: more than any other.
_CLAIM = 2 * DEAREST
#: So many new states of cards, and it is time to forget those no card is in any more.
_MOST_STATES = 20_000
#: A pod of which more containers than a few ask is tried so often on all nodes together: 0.5 s.
_FEW, _ROW_TRIES = 4, 4 * MOST_TRIES


class Quotas(Protocol):
    """What namespaces may hold, as far as the cache needs to know."""

    most: dict[str, dict[str, dict[str, int]]]
    used: dict[str, Counter[str]]

    def charge(self, device: Device, takes: Counters) -> Counter[str]:
        """Return what these counters of a device are charged."""

    def move(self, namespace: str, charge: Counter[str], *, times: int) -> None:
        """Count a charge (`times` 1) or give it back (-1)."""

    def over(self, namespace: str, charge: Counter[str]) -> str | None:
        """Return which quota so much more would pass, None if none."""

    def least(self, pod: Pod, kinds: Iterable[Device]) -> Counter[str]:
        """Return the least a pod is charged on a node whose cards are of these kinds."""


@define(eq=False)
class _Row:
    """What a shape costs on every node, as of a point in the list of changes."""

    shape: Shape
    #: By the node's number: NEVER where it does not fit, and `_CLAIM` more where a pod claims it.
    costs: list[int]
    #: (cost, number) of every node it fits on, the cheapest first, among what is out of date.
    heap: list[tuple[int, int]]
    said: dict[int, Said]  # by nodes that it seemed to fit on and that cannot place it
    upto: int


class SchedulerCache:
    """Nodes with their devices and the pods standing on them. One caller at a time."""

    def __init__(
        self,
        quotas: Quotas | None = None,
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
        self._nodes: dict[str, Node] = {}
        self._home: dict[str, str] = {}  # of a device, by UUID
        self._faults: dict[str, str] = {}  # nodes whose inventory cannot be used, and why
        self._shut: dict[str, str] = {}  # nodes that take nobody for now, and why
        self.standing: dict[str, Placement] = {}  # by the pod's UID
        self._on: dict[str, set[str]] = {}  # the UIDs of those on a node
        self._counted: set[str] = set()  # the UIDs of those that the demand counts
        self._claims = Claims()
        self._cluster: Cluster | None = None
        self._kinds: dict[str, frozenset[int]] = {}  # of each node's cards

    # --- what there is ------------------------------------------------------------------------

    def update_node(self, node: Node, *, fault: str | None = None) -> str | None:
        """Note what a node has, or why nothing of its devices can be used.

        A device that another node has is that one's: return a sentence of it, None if there is
        none. The node's other devices are used all the same.
        """
        name, others = node.name, None
        had = {device.uuid: self._home.get(device.uuid, name) for device in node.devices}
        theirs = {uuid: other for uuid, other in had.items() if other != name}
        if theirs:
            uuid, other = next(iter(theirs.items()))
            others = f"publish device {uuid}, which node {other} has"
            node = evolve(node, devices=tuple(d for d in node.devices if d.uuid not in theirs))
            fault = fault or (None if node.devices else others)
        if fault:
            self._faults[name], node = fault, evolve(node, devices=())
        else:
            self._faults.pop(name, None)
        if name in self._shut:
            node = evolve(node, cordoned=True)
        was = self._nodes.get(name)
        if was != node:
            self._unhouse(name)
            self._nodes[name] = node
            self._home.update((device.uuid, name) for device in node.devices)
            self._follow(was, node)
        return others

    def shut(self, name: str, why: str | None) -> bool:
        """Have a node take nobody from now on, None: take pods again; return if that is new.

        What stands on it stays counted.
        """
        if self._shut.get(name) == why:
            return False
        if why is None:
            del self._shut[name]
        else:
            self._shut[name] = why
        node = self._nodes.get(name)
        if node is not None:
            self.update_node(evolve(node, cordoned=why is not None), fault=self._faults.get(name))
        return True

    def is_shut(self, name: str) -> bool:
        """Return whether a node takes nobody for now."""
        return name in self._shut

    def remove_node(self, name: str) -> None:
        """Note that a node is gone; what stands on it stays counted until its pods are gone."""
        self._unhouse(name)
        if self._nodes.pop(name, None) is not None:
            self._cluster = None
        self._faults.pop(name, None)
        self._shut.pop(name, None)

    def _unhouse(self, name: str) -> None:
        for device in self.devices(name):
            del self._home[device.uuid]

    def devices(self, name: str) -> tuple[Device, ...]:
        """Return a node's devices."""
        node = self._nodes.get(name)
        return node.devices if node else ()

    def free(self, name: str) -> dict[str, dict[str, int]]:
        """Return what is left of each counter of a node's devices, by UUID."""
        cluster = self.cluster()
        return cluster.free(cluster.number[name])

    def nodes(self) -> KeysView[str]:
        """Return the nodes that are known."""
        return self._nodes.keys()

    # --- what arrives ---------------------------------------------------------------------------

    def arrive(self, uid: str, pod: Pod, now: float) -> None:
        """Count a pod that wants a place, once, whenever it is asked about; `now` is in seconds."""
        if uid in self._counted:
            return
        self._counted.add(uid)
        states = self.cluster().states
        want = self._priced(None).shape(pod).want.wanted
        due = self.demand.arrive(want, pod.host(), now)
        if len(self.demand.weights) > MOST_CLASSES:  # it takes long: the next need no join at once
            self.demand.join(self.size, most=MOST_CLASSES * 3 // 4)
        if due or len(states) > self._most_states:
            self._learn()

    def size(self, want: RequestClass) -> int:
        """Return the thousandths of cards a class takes, averaged over the kinds that serve it."""
        prices, one = self._priced(None), Want(want)
        sizes = [size for kind in self.cluster().kinds if (size := prices.size(one, kind))]
        return sum(sizes) // len(sizes) if sizes else 0

    def forget(self, uid: str, *, ran: bool = True) -> None:
        """Give back what a pod held that will not ask again, and count that it ended if it ran."""
        if ran and uid in self.standing:
            self.demand.end()
        self._counted.discard(uid)
        self._drop_claim(uid)
        self.release(uid)

    # --- what a scheduler asks ------------------------------------------------------------------

    def best(
        self, pod: Pod, offered: Container[str], *, weights: Weights | None = None, uid: str = ""
    ) -> str | None:
        """Return the cheapest of the offered nodes that serve the pod, the first among equals.

        One that another pod than `uid` claims comes after all others.
        """
        row, cluster, over = self._row(pod, weights), self.cluster(), self._over_quota(pod)
        nodes, heap, costs = cluster.nodes, row.heap, row.costs

        def serves(number: int) -> bool:
            name = nodes[number].name
            return costs[number] < NEVER and name in offered and self._kinds[name] not in over

        own = (cluster.number[name] for name in self._claims.of(uid) if name in cluster.number)
        best = min(((costs[one] - _CLAIM, one) for one in own if serves(one)), default=None)
        passed = list[tuple[int, int]]()
        while heap and (best is None or heap[0] < best):
            cost, number = heap[0]
            if costs[number] == cost and serves(number):
                best = heap[0]
                break
            heappop(heap)
            if costs[number] == cost:
                passed.append((cost, number))
        for one in passed:
            heappush(heap, one)
        return nodes[best[1]].name if best else None

    def claim(self, uid: str, pod: Pod, offered: Iterable[str]) -> None:
        """Have the nodes nearest to empty kept clear for a pod that wants a whole one and waits.

        Those are the offered nodes with room on which the fewest pods stand. The claim ends when
        the pod is placed or gone. While pods only arrive no node empties, and nothing is claimed.
        """
        cards = self._priced(None).shape(pod).want.wanted.cards
        if cards < 2 or uid in self._claims or not self.demand.pods_end:
            return
        cluster, over = self.cluster(), self._over_quota(pod)
        able: dict[object, bool] = {}  # by what nodes have when they are empty

        def could_serve(node: Node) -> bool:
            kind = self._kinds[node.name], len(node.devices), tuple(node.host.items())
            if kind not in able:
                everybody = self.on(node.name)
                answer = self._place_pod(pod, node.name, without=[uid, *everybody])
                able[kind] = isinstance(answer, Placement)
            return able[kind]

        near = sorted(
            (len(self._on.get(name, ())), number)
            for name in offered
            if (number := cluster.number.get(name)) is not None
            and len(cluster.cards[number]) == cards
            and cluster.free_milli[number]
            and not cluster.closed[number]
            and self._kinds[name] not in over
            and name not in self._claims.nodes
        )
        able_nodes = (node.name for _, number in near if could_serve(node := cluster.nodes[number]))
        self._claims.add(uid, tuple(islice(able_nodes, CLAIMED)))
        self._changes += [cluster.number[name] for name in self._claims.of(uid)]

    def _drop_claim(self, uid: str) -> None:
        claimed = self._claims.drop(uid)
        if self._cluster is not None:
            number = self._cluster.number
            self._changes += [number[name] for name in claimed if name in number]

    def serving(self, pod: Pod, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
        """Return those of the nodes that can serve the pod, and what each of the others says."""
        row, over = self._row(pod), self._over_quota(pod)
        fits, said = list[str](), dict[str, str]()
        for name in names:
            answer = self._said(name, row, over)
            if answer is None:
                fits.append(name)
            else:
                said[name] = answer[0]
        return fits, said

    def refusal(self, pod: Pod, names: Iterable[str]) -> Refusal:
        """Return why none of the nodes serves the pod: how many say what, with numbers."""
        row, over = self._row(pod), self._over_quota(pod)
        counts, shortages = Counter[str](), dict[str, Shortage]()
        for name in names:
            reason, lacking = self._said(name, row, over) or (FITS, None)
            counts[reason] += 1
            if lacking is not None:
                shortages[reason] = lacking.nearer(shortages.get(reason))
        return Refusal(wanted=1, verdicts={}, counts=counts, of="node", shortages=shortages)

    def _said(self, name: str, row: _Row, over: Mapping[frozenset[int], str]) -> Said | None:
        """Return what a node says to the row's shape, None if it serves."""
        number = self.cluster().number.get(name)
        if number is None:
            return NO_DEVICE, None
        if row.costs[number] < NEVER:
            quota = over.get(self._kinds[name]) if over else None
            return None if quota is None else (quota, None)
        why = self._unusable(name)
        if why is not None:
            return why, None
        return row.said.get(number) or self._priced(None).reason(number, row.shape)

    def costs(
        self, pod: Pod, names: Iterable[str], *, weights: Weights | None = None
    ) -> dict[str, int]:
        """Return what the pod costs on those of the nodes that serve it; least is best.

        Of nodes that a pod claims there is nothing.
        """
        row, number_of = self._row(pod, weights), self.cluster().number
        at = ((name, row.costs[number_of[name]]) for name in names if name in number_of)
        return {name: cost for name, cost in at if cost < DEAREST}

    def reserve(
        self,
        uid: str,
        pod: Pod,
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
        self._drop_claim(uid)
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
        self, uid: str, pod: Pod, node: str, *, without: Iterable[str] = ()
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

    def has_room(self, uid: str, pod: Pod, node: str) -> bool:
        """Return whether a pod fits on a node, where it may hold its place already."""
        return isinstance(self._place_pod(pod, node, without=[uid]), Placement)

    def on(self, node: str) -> frozenset[str]:
        """Return the UIDs of those that stand on a node."""
        return frozenset(self._on.get(node, ()))

    def elsewhere(self, uids: Iterable[str], node: str) -> list[str]:
        """Return those of the UIDs that stand on another node."""
        standing = ((uid, self.standing.get(uid)) for uid in uids)
        return [uid for uid, placement in standing if placement and placement.node != node]

    def preemptible(self, pod: Pod, names: Iterable[str]) -> list[str]:
        """Return the nodes with anybody less important than the pod, the best to look at first.

        Those are the nodes with the least important, and of these the emptiest.
        """
        cluster, standing, found = self.cluster(), self.standing, list[tuple[int, int, str]]()
        for name in names:
            least = min(
                (standing[uid].pod.priority for uid in self._on.get(name, ())), default=None
            )
            if least is not None and least < pod.priority and name in cluster.number:
                found.append((least, -cluster.free_milli[cluster.number[name]], name))
        return [name for _, _, name in sorted(found)]

    def victims(
        self,
        pod: Pod,
        node: str,
        *,
        given: Collection[str] = (),
        ending: Iterable[str] = (),
        spared: Container[str] = (),
        gangs: Mapping[str, Gang] = NO_GANGS,
        may: Callable[[Collection[str]], bool] = lambda _: True,
    ) -> Victims | None:
        """Return whom to evict so that the pod fits: the fewest, of these the least important.

        The `given` are evicted in any case, the `spared` never; the `ending` go by themselves.
        `gangs` has, by each of its pods that holds something, those that are evicted together or
        not at all. Those may go who `may`. None if the pod would not fit even without every pod of
        lower priority, or may not for its namespace's quota, which nobody's eviction mends.
        """
        if self._kinds.get(node) in self._over_quota(pod):
            return None

        def together(uid: str) -> Gang:
            return gangs.get(uid) or frozenset({uid})

        def spares(gang: Iterable[str]) -> bool:
            standing = self.standing
            return any(uid in spared or standing[uid].pod.priority >= pod.priority for uid in gang)

        certain = dict.fromkeys(chain(given, *map(together, given)))
        if spares(certain.keys() - given):
            return None
        going = {*certain, *ending}
        # The same one for each of a gang's pods.
        others = {together(uid) for uid in self._on.get(node, ()) if uid not in going}
        others = {gang for gang in others if not spares(gang)}
        priorities = {uid: self.standing[uid].pod.priority for gang in others for uid in gang}

        def fits(some: Collection[str]) -> bool:
            return isinstance(self._place_pod(pod, node, without=[*going, *some]), Placement)

        chosen = fewest(others, priorities, fits=fits, may=may)
        if chosen is None:
            return None
        return Victims(
            node=node,
            uids=(*certain, *chosen),
            ending=tuple(ending),
            priorities=tuple(sorted((priorities[uid] for uid in chosen), reverse=True)),
        )

    def _unusable(self, node: str) -> str | None:
        """Return why nobody is to be placed on a node, None if pods may be."""
        return self._faults.get(node) or self._shut.get(node)

    # --- from a node to a placement -------------------------------------------------------------

    def _place_pod(
        self,
        pod: Pod,
        node: str,
        *,
        policy: PlacementPolicy | None = None,
        weights: Weights | None = None,
        without: Iterable[str] = (),
        most: int = MOST_TRIES,
    ) -> Placement | Refusal:
        why = self._unusable(node)
        if why is not None:
            return Refusal(wanted=1, verdicts={}, missing=why)
        cluster = self.cluster()
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

    def _choose(self, pod: Pod, number: int, prices: Prices) -> Placement | None:
        """Return the cheapest placement of a plain pod; None where it takes a search, or is none.

        The search would find it too. This is the common case, and the node's cost counts on it.
        """
        cluster, shape = self.cluster(), prices.shape(pod)
        node, want = cluster.nodes[number], shape.want
        if not _is_exact(shape, number, cluster) or prices.cost(number, shape) == NEVER:
            return None
        allocation = None
        if want.wanted.request is not None:
            cards = cluster.cards[number]
            places = prices.choose(number, shape)
            cuts = [(node.devices[p], prices.cut(cluster.states[cards[p]], want)) for p in places]
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

    def _apart(self, pod: Pod, node: str, without: Iterable[str] = ()) -> set[str]:
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
            here = {device.uuid: device for device in self.devices(placement.node)}
            for usage in placement.holds:
                if usage.device in here:
                    charged.update(self.quotas.charge(here[usage.device], usage.takes))
        return charged

    def _over_quota(self, pod: Pod) -> dict[frozenset[int], str]:
        """Return which quota the pod passes wherever it is placed, by the kinds of a node's cards.

        Of kinds on which it may pass none there is nothing: mostly, of all.
        """
        over: dict[frozenset[int], str] = {}
        if self.quotas is not None and pod.namespace in self.quotas.most:
            cluster = self.cluster()
            for kinds in set(self._kinds.values()):
                devices = [cluster.kinds[kind].device for kind in kinds]
                verdict = self.quotas.over(pod.namespace, self.quotas.least(pod, devices))
                if verdict:
                    over[kinds] = verdict
        return over

    # --- what follows from it ---------------------------------------------------------------------

    def cluster(self) -> Cluster:
        """Return what is left of every node, worked out anew after it could not follow a change."""
        if self._cluster is None:
            self._cluster = Cluster(self._nodes.values())
            self._kinds = {name: _kinds(self._cluster, name) for name in self._nodes}
            self._lessons = Lessons()
            self._prices: dict[Weights, Prices] = {}
            self._rows: dict[tuple[Weights, int], _Row] = {}
            self._changes: list[int] = []
            if self.quotas is not None:
                self.quotas.used.clear()
            for placement in self.standing.values():
                self._move(placement, times=1)
            self._learn()
        return self._cluster

    def _follow(self, was: Node | None, node: Node) -> None:
        """Let the packing core know of a node's change, or have it start anew with it."""
        cluster = self._cluster
        if cluster is None:
            return
        name, kinds = node.name, len(cluster.kinds)
        if set(node.host) - set(cluster.counters):
            self._cluster = None
            return
        if was is None:
            cluster.add(node)
            for uid in self._on.get(name, ()):
                self._move(self.standing[uid], times=1)
        elif [(d.uuid, d.capacity) for d in was.devices] == [
            (d.uuid, d.capacity) for d in node.devices
        ]:
            for old, new in zip(was.devices, node.devices, strict=True):
                if old != new:  # its health, mostly
                    cluster.replace(new)
            cluster.update(node)
        else:
            self._cluster = None
            return
        self._changes.append(cluster.number[name])
        self._kinds[name] = _kinds(cluster, name)
        more = len(node.devices) >= len(self._lessons.whole_cards)
        if len(cluster.kinds) > kinds or more:
            self._learn()

    def _learn(self) -> None:
        """Draw the lesson of the demand, and forget what was worked out by the last one."""
        cluster = self.cluster()
        cluster.compact()
        self._priced(None).learn(self.demand)
        for prices in self._prices.values():
            prices.forget()
        self._rows.clear()
        self._changes.clear()
        self._most_states = 2 * len(cluster.states) + _MOST_STATES

    def _priced(self, weights: Weights | None) -> Prices:
        cluster, chosen = self.cluster(), weights or self.weights
        found = self._prices.get(chosen)
        if found is None:
            found = self._prices[chosen] = Prices(cluster, chosen, self._lessons)
        return found

    def _move(self, placement: Placement, *, times: int) -> None:
        cluster = self._cluster
        if cluster is None or placement.node not in self._nodes:
            return
        self._changes.append(cluster.move(placement, times=times))
        if self.quotas is not None:
            self.quotas.move(placement.pod.namespace, self._charge(placement), times=times)

    def _row(self, pod: Pod, weights: Weights | None = None) -> _Row:
        """Return what the pod costs everywhere, with the changes since it was last asked."""
        prices = self._priced(weights)
        if len(self._changes) > _MOST_CHANGES:
            self._rows.clear()
            self._changes.clear()
        shape = prices.shape(pod)
        key = (prices.weights, shape.number)
        row = self._rows.pop(key, None)
        if row is None:
            row = self._new_row(shape, prices)
            if len(self._rows) >= _MOST_ROWS:
                del self._rows[next(iter(self._rows))]
        elif row.upto < len(self._changes):
            costs, heap = row.costs, row.heap
            costs += [NEVER] * (len(self.cluster().nodes) - len(costs))
            for number in set(self._changes[row.upto :]):
                cost = self._cost(number, row, prices)
                if cost != costs[number]:
                    costs[number] = cost
                    if cost < NEVER:
                        heappush(heap, (cost, number))
            if len(heap) > 4 * len(costs):
                row.heap = _heap(costs)
        row.upto = len(self._changes)
        self._rows[key] = row  # last used last
        return row

    def _new_row(self, shape: Shape, prices: Prices) -> _Row:
        row, cluster = _Row(shape, [], [], {}, 0), self.cluster()
        searched: Iterable[int] = range(len(cluster.nodes))
        if shape.exact:
            searched = cluster.mixed if shape.want.wanted.request is not None else ()
        claimed = (cluster.number[name] for name in self._claims.nodes if name in cluster.number)
        # Of thousands of nodes most are alike: each kind is asked once, by any of its nodes.
        one_of = dict(zip(cluster.alike, range(len(cluster.nodes)), strict=True))
        known = {alike: prices.cost(number, shape) for alike, number in one_of.items()}
        row.costs = [known[alike] for alike in cluster.alike]
        each = {*searched, *claimed}
        # Nobody else is answered meanwhile: many nodes take no longer than few.
        most = MOST_TRIES if _asking(shape.pod) <= _FEW else _ROW_TRIES // max(1, len(each))
        for number in each:
            row.costs[number] = self._cost(number, row, prices, most=min(MOST_TRIES, max(1, most)))
        row.heap = _heap(row.costs)
        return row

    def _cost(self, number: int, row: _Row, prices: Prices, *, most: int = MOST_TRIES) -> int:
        """Return what the row's shape costs on a node; NEVER, and why, where it has no place."""
        cost, cluster = prices.cost(number, row.shape), self.cluster()
        row.said.pop(number, None)
        if cost == NEVER:
            return NEVER
        name = cluster.nodes[number].name
        if not _is_exact(row.shape, number, cluster):  # so far it may fit
            answer = self._place_pod(row.shape.pod, name, most=most)
            if isinstance(answer, Refusal):
                row.said[number] = _verdict(answer)
                return NEVER
        return cost + _CLAIM if name in self._claims.nodes else cost


def _asking(pod: Pod) -> int:
    every = (*pod.sidecars, *pod.containers, *pod.init)
    return sum(one.request is not None for one in every)


def _heap(costs: list[int]) -> list[tuple[int, int]]:
    made = [(cost, number) for number, cost in enumerate(costs) if cost < NEVER]
    heapify(made)
    return made


def _is_exact(shape: Shape, number: int, cluster: Cluster) -> bool:
    """Return whether a node that its cards' states say serves the shape surely does."""
    return shape.exact and (number not in cluster.mixed or shape.want.wanted.request is None)


def _kinds(cluster: Cluster, node: str) -> frozenset[int]:
    """Return the kinds of a node's cards."""
    cards = cluster.cards[cluster.number[node]]
    return frozenset(cluster.states[card].kind.number for card in cards)


def _verdict(refusal: Refusal) -> Said:
    """Return in a few words why a node does not serve, with numbers."""
    if refusal.missing is None and refusal.group is None:
        said = ((one, refusal.shortages.get(one)) for one in refusal.verdicts.values())
        return node_reason(said, wanted=refusal.wanted)
    return f"cannot place it ({refusal.sentence})", None


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


def _requests(pod: Pod) -> Iterator[Request]:
    for container in (*pod.sidecars, *pod.containers, *pod.init):
        if container.request is not None:
            yield container.request
