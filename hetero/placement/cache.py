"""The cluster as a scheduler knows it: nodes, who holds what, and what each node says to a pod.

The cluster's extender and `hetero simulate` call the same functions. Nothing here awaits, so a
reservation is atomic: of two pods that want the last share, one gets it and the other a refusal.
`ClusterInventory` has the nodes and `PriceRows` the costs. `victims` chooses pods to evict,
`node_reservations` the nodes that are kept clear.
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
from hetero.placement.cluster import PlacedNode, PlacedPod, Placement
from hetero.placement.demand import MOST_CLASSES, Demand
from hetero.placement.inventory import ClusterInventory, NodeChange
from hetero.placement.match import allocate
from hetero.placement.node_reason import DeviceVerdict
from hetero.placement.node_reservations import MOST_RESERVED_NODES as RESERVED_NODES
from hetero.placement.node_reservations import NodeReservations
from hetero.placement.place_pod import MOST_TRIES, place_pod, standing
from hetero.placement.placement_policy import WEIGHTS, PlacementPolicy, Weights
from hetero.placement.price import DEAREST_COST, NEVER_COST, Prices
from hetero.placement.price_rows import RESERVED_COST, PriceRow, PriceRows, is_exact
from hetero.placement.state import Cluster
from hetero.placement.victims import NO_GANGS, Gang, Victims, choose_victims

#: The verdict of a device whose holders the pod may not share a device with.
_APART = "shared otherwise"


class QuotaRules(Protocol):
    """What namespaces may hold, as far as the cache needs to know."""

    most: dict[str, dict[str, dict[str, int]]]
    used: dict[str, Counter[str]]

    def charge(self, device: Device, takes: Counters) -> Counter[str]:
        """Return what these counters of a device are charged."""

    def move(self, namespace: str, charge: Counter[str], *, direction: int) -> None:
        """Count a charge (`direction` 1) or give it back (-1)."""

    def over(self, namespace: str, charge: Counter[str]) -> str | None:
        """Return which quota so much more would pass, None if none."""

    def least(self, pod: PlacedPod, devices: Iterable[Device]) -> Counter[str]:
        """Return the least that a pod is charged on a node with such cards, one of each kind."""


class SchedulerCache:
    """Nodes with their devices and the pods standing on them. One caller at a time."""

    def __init__(
        self,
        quotas: QuotaRules | None = None,
        *,
        weights: Weights = WEIGHTS["fragmentation"],
        demand: Demand | None = None,
    ) -> None:
        """Start without nodes.

        The caller keeps `quotas` and `demand` up to date. `weights` choose among nodes and devices
        where a call does not give others.
        """
        self.quotas = quotas
        self.weights = weights
        self.demand = demand or Demand()
        self.inventory = ClusterInventory()
        self.reservations = NodeReservations()
        self.standing: dict[str, Placement] = {}  # by the pod's UID
        self._on: dict[str, set[str]] = {}  # the UIDs of those on a node
        self._counted: set[str] = set()  # the UIDs of those that the demand counts
        self._rows: PriceRows | None = None  # None: to be built anew, since a change was too large

    # --- what there is ------------------------------------------------------------------------

    def update_node(self, placed_node: PlacedNode, *, fault: str | None = None) -> str | None:
        """Note what a node has, or why nothing of its devices can be used.

        A device that two nodes publish belongs to the first. Return a sentence about such a
        conflict, None without one. The node's other devices are used all the same.
        """
        change = self.inventory.update(placed_node, fault=fault)
        self._follow(change)
        return change.conflict

    def cordon(self, node_name: str, reason: str | None) -> bool:
        """Close a node to new pods, or open it (`reason` None); return whether that is new.

        Pods that stand on it stay counted.
        """
        is_new = self.inventory.cordon(node_name, reason)
        if is_new and (change := self.inventory.update_cordon(node_name)):
            self._follow(change)
        return is_new

    def remove_node(self, node_name: str) -> None:
        """Note that a node is gone; its pods stay counted until they are gone, too."""
        if self.inventory.remove(node_name):
            self._rows = None

    def free(self, node_name: str) -> dict[str, dict[str, int]]:
        """Return what is left of each counter of a node's devices, by UUID."""
        cluster = self.rows().cluster
        return cluster.free(cluster.number[node_name])

    # --- what arrives ---------------------------------------------------------------------------

    def arrive(self, uid: str, pod: PlacedPod, now_s: float) -> None:
        """Count a pod that wants a place at `now_s`, once, however often it is asked about."""
        if uid in self._counted:
            return
        self._counted.add(uid)
        request_class = self._priced(None).pod_profile(pod).profile.request_class
        due = self.demand.arrive(request_class, pod.host(), now_s)
        if len(self.demand.weights) > MOST_CLASSES:  # it takes long, so it leaves some room
            self.demand.join(self._priced(None).mean_size, most=MOST_CLASSES * 3 // 4)
        if due or self.rows().has_stale_states:
            self._learn()

    def forget(self, uid: str, *, ran: bool = True) -> None:
        """Release what a pod held that will not ask again; count that it ended if it ran."""
        if ran and uid in self.standing:
            self.demand.end()
        self._counted.discard(uid)
        self._end_reservation(uid)
        self.release(uid)

    # --- what a scheduler asks ------------------------------------------------------------------

    def best(
        self,
        pod: PlacedPod,
        offered_names: Container[str],
        *,
        weights: Weights | None = None,
        uid: str = "",
    ) -> str | None:
        """Return the cheapest of the offered nodes that serve the pod, the first among equals.

        A node that is reserved for another pod than `uid` comes after all others.
        """
        rows, over_quota = self.rows(), self._over_quota(pod)
        row, cluster, kinds_by_node = (
            rows.row(pod, weights or self.weights),
            rows.cluster,
            rows.kinds,
        )
        nodes, heap, costs = cluster.nodes, row.heap, row.costs

        def serves(node_number: int) -> bool:
            node_name = nodes[node_number].name
            return (
                costs[node_number] < NEVER_COST
                and node_name in offered_names
                and kinds_by_node[node_name] not in over_quota
            )

        reserved_names = self.reservations.of(uid)
        reserved_numbers = (
            cluster.number[reserved_name]
            for reserved_name in reserved_names
            if reserved_name in cluster.number
        )
        best_cost_and_number = min(
            (
                (costs[reserved] - RESERVED_COST, reserved)
                for reserved in reserved_numbers
                if serves(reserved)
            ),
            default=None,
        )
        skipped = list[tuple[int, int]]()
        while heap and (best_cost_and_number is None or heap[0] < best_cost_and_number):
            cost, node_number = heap[0]
            if costs[node_number] == cost and serves(node_number):
                best_cost_and_number = heap[0]
                break
            heappop(heap)
            if costs[node_number] == cost:
                skipped.append((cost, node_number))
        for skipped_entry in skipped:
            heappush(heap, skipped_entry)
        return nodes[best_cost_and_number[1]].name if best_cost_and_number else None

    def reserve_nodes(self, uid: str, pod: PlacedPod, offered_names: Iterable[str]) -> None:
        """Keep the nodes nearest to empty clear for a pod that wants a whole node and waits.

        Those are the offered nodes with room on which the fewest pods stand. The reservation ends
        when the pod is placed or gone. While pods only arrive, no node empties and none is
        reserved.
        """
        card_count = self._priced(None).pod_profile(pod).profile.request_class.cards
        if card_count < 2 or uid in self.reservations or not self.demand.pods_end:
            return
        rows, over_quota = self.rows(), self._over_quota(pod)
        cluster, kinds_by_node = rows.cluster, rows.kinds
        serves_by_contents: dict[object, bool] = {}  # by what nodes have when they are empty

        def could_serve(node: PlacedNode) -> bool:
            node_contents = kinds_by_node[node.name], len(node.devices), tuple(node.host.items())
            if node_contents not in serves_by_contents:
                uids_on_node = self.on(node.name)
                placement = self._place_pod(pod, node.name, without_uids=[uid, *uids_on_node])
                serves_by_contents[node_contents] = isinstance(placement, Placement)
            return serves_by_contents[node_contents]

        pods_and_numbers = sorted(
            (len(self._on.get(node_name, ())), node_number)
            for node_name in offered_names
            if (node_number := cluster.number.get(node_name)) is not None
            and len(cluster.cards[node_number]) == card_count
            and cluster.free_milli[node_number]
            and not cluster.nodes[node_number].cordoned
            and kinds_by_node[node_name] not in over_quota
            and node_name not in self.reservations.nodes
        )
        able_names = (
            node.name
            for _, node_number in pods_and_numbers
            if could_serve(node := cluster.nodes[node_number])
        )
        self.reservations.add(uid, tuple(islice(able_names, RESERVED_NODES)))
        rows.reservation_changed(self.reservations.of(uid))

    def _end_reservation(self, uid: str) -> None:
        node_names = self.reservations.drop(uid)
        if self._rows is not None:
            self._rows.reservation_changed(node_names)

    def serving(
        self, pod: PlacedPod, node_names: Iterable[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Return those of the nodes that can serve the pod, and what each of the others says."""
        row, over_quota = self.rows().row(pod, self.weights), self._over_quota(pod)
        fitting_names, reasons = list[str](), dict[str, str]()
        for node_name in node_names:
            verdict = self._reason(node_name, row, over_quota)
            if verdict is None:
                fitting_names.append(node_name)
            else:
                reasons[node_name] = verdict[0]
        return fitting_names, reasons

    def refusal(self, pod: PlacedPod, node_names: Iterable[str]) -> Refusal:
        """Return why none of the nodes serves the pod: the count of each reason, with numbers."""
        row, over_quota = self.rows().row(pod, self.weights), self._over_quota(pod)
        count_by_reason, shortages = Counter[str](), dict[str, Shortage]()
        for node_name in node_names:
            reason, shortage = self._reason(node_name, row, over_quota) or (FITS, None)
            count_by_reason[reason] += 1
            if shortage is not None:
                shortages[reason] = shortage.nearer(shortages.get(reason))
        return Refusal(
            wanted=1, verdicts={}, counts=count_by_reason, of="node", shortages=shortages
        )

    def _reason(
        self, node_name: str, row: PriceRow, over_quota: Mapping[frozenset[int], str]
    ) -> DeviceVerdict | None:
        """Return what a node says to the row's shape, None if it serves."""
        rows = self.rows()
        node_number = rows.cluster.number.get(node_name)
        if node_number is None:
            return NO_DEVICE, None
        if row.costs[node_number] < NEVER_COST:
            quota = over_quota.get(rows.kinds[node_name]) if over_quota else None
            return None if quota is None else (quota, None)
        fault = self.inventory.unusable(node_name)
        if fault is not None:
            return fault, None
        return row.reasons.get(node_number) or self._priced(None).reason(
            node_number, row.pod_profile
        )

    def costs(
        self, pod: PlacedPod, node_names: Iterable[str], *, weights: Weights | None = None
    ) -> dict[str, int]:
        """Return what the pod costs on those of the nodes that serve it; the lowest is best.

        Reserved nodes are left out.
        """
        rows = self.rows()
        row, number_of = rows.row(pod, weights or self.weights), rows.cluster.number
        name_and_cost = (
            (node_name, row.costs[number_of[node_name]])
            for node_name in node_names
            if node_name in number_of
        )
        return {node_name: cost for node_name, cost in name_and_cost if cost < DEAREST_COST}

    def reserve(
        self,
        uid: str,
        pod: PlacedPod,
        node_name: str,
        *,
        policy: PlacementPolicy | None = None,
        weights: Weights | None = None,
    ) -> Placement | Refusal:
        """Place the pod on the node, from now on, or return why that cannot be.

        `policy` chooses the node's devices; without one the weights do.
        """
        self.release(uid)  # asked again, it may have other devices
        placement = self._place_pod(pod, node_name, policy=policy, weights=weights)
        if isinstance(placement, Refusal):
            return placement
        if self.quotas is not None and pod.namespace in self.quotas.most:
            quota = self.quotas.over(pod.namespace, self._charge(placement))
            if quota:
                return Refusal(wanted=1, verdicts={}, missing=quota)
        self._stand(uid, placement)
        return placement

    def restore(self, uid: str, placement: Placement) -> None:
        """Count what a pod holds by a decision that was made elsewhere or earlier."""
        if self.standing.get(uid) == placement:
            return
        self.release(uid)
        self._stand(uid, placement)

    def _stand(self, uid: str, placement: Placement) -> None:
        self._end_reservation(uid)
        self.standing[uid] = placement
        self._on.setdefault(placement.node, set()).add(uid)
        self._move(placement, direction=1)

    def release(self, uid: str) -> None:
        """Give back what a pod held, if it held anything."""
        placement = self.standing.pop(uid, None)
        if placement is not None:
            self._on[placement.node].discard(uid)
            self._move(placement, direction=-1)

    def hold(
        self, uid: str, pod: PlacedPod, node_name: str, *, without_uids: Iterable[str] = ()
    ) -> Placement | Refusal:
        """Keep the room that a pod will have once others are gone, or return why it has none.

        Until then a device may be promised beyond its capacity. A reservation for the pod takes its
        place.
        """
        placement = self._place_pod(pod, node_name, without_uids=[uid, *without_uids])
        if isinstance(placement, Placement):
            self.release(uid)
            self._stand(uid, placement)
        return placement

    def has_room(self, uid: str, pod: PlacedPod, node_name: str) -> bool:
        """Return whether a pod fits on a node, where it may already hold its own place."""
        return isinstance(self._place_pod(pod, node_name, without_uids=[uid]), Placement)

    def on(self, node_name: str) -> frozenset[str]:
        """Return the UIDs of the pods that stand on a node."""
        return frozenset(self._on.get(node_name, ()))

    def preemptible(self, pod: PlacedPod, node_names: Iterable[str]) -> list[str]:
        """Return the nodes with a pod of lower priority than the pod, the best candidates first.

        Those are the nodes with the least important pods, and among these the emptiest.
        """
        cluster, placement_by_uid, ranked_nodes = (
            self.rows().cluster,
            self.standing,
            list[tuple[int, int, str]](),
        )
        for node_name in node_names:
            least_priority = min(
                (placement_by_uid[uid].pod.priority for uid in self._on.get(node_name, ())),
                default=None,
            )
            if (
                least_priority is not None
                and least_priority < pod.priority
                and node_name in cluster.number
            ):
                ranked_nodes.append(
                    (least_priority, -cluster.free_milli[cluster.number[node_name]], node_name)
                )
        return [node_name for _, _, node_name in sorted(ranked_nodes)]

    def victims(
        self,
        pod: PlacedPod,
        node_name: str,
        *,
        certain: Collection[str] = (),
        ending: Iterable[str] = (),
        spared: Container[str] = (),
        gangs: Mapping[str, Gang] = NO_GANGS,
        may_evict: Callable[[Collection[str]], bool] = lambda _: True,
    ) -> Victims | None:
        """Return whom to evict so that the pod fits: the fewest, of these the least important.

        The `certain` are evicted in any case, the `spared` never; the `ending` go by themselves.
        `gangs` has, by each of its pods that holds something, those that are evicted together or
        not at all. `may_evict` says whether pods may go together. None if the pod would not fit
        even without every pod of lower priority, or may not for its namespace's quota, which
        nobody's eviction mends.
        """
        if self.rows().kinds.get(node_name) in self._over_quota(pod):
            return None

        def fits(evicted_uids: Collection[str]) -> bool:
            return isinstance(self._place_pod(pod, node_name, without_uids=evicted_uids), Placement)

        return choose_victims(
            pod,
            node_name,
            placement_by_uid=self.standing,
            uids_on_node=self._on.get(node_name, ()),
            certain_uids=certain,
            ending_uids=ending,
            spared_uids=spared,
            gangs=gangs,
            fits=fits,
            may_evict=may_evict,
        )

    # --- from a node to a placement -------------------------------------------------------------

    def _place_pod(
        self,
        pod: PlacedPod,
        node_name: str,
        *,
        policy: PlacementPolicy | None = None,
        weights: Weights | None = None,
        without_uids: Iterable[str] = (),
        most_tries: int = MOST_TRIES,
    ) -> Placement | Refusal:
        fault = self.inventory.unusable(node_name)
        if fault is not None:
            return Refusal(wanted=1, verdicts={}, missing=fault)
        cluster = self.rows().cluster
        node_number = cluster.number.get(node_name)
        if node_number is None:
            return Refusal(wanted=1, verdicts={node_name: NO_DEVICE}, of="node")
        prices = self._priced(weights)
        if policy is None and not without_uids:
            cheapest_choice = self._choose(pod, node_number, prices)
            if cheapest_choice is not None:
                return cheapest_choice
        free = {uuid: dict(counters) for uuid, counters in cluster.free(node_number).items()}
        host_free = dict(zip(cluster.counters, cluster.host[node_number], strict=True))
        for absent_uid in without_uids:
            absent = self.standing.get(absent_uid)
            if absent is not None and absent.node == node_name:
                _add_back(absent, free, host_free)
        excluded = self._apart(pod, node_name, without_uids)
        devices = [
            device for device in cluster.nodes[node_number].devices if device.uuid not in excluded
        ]
        chosen_policy = policy or prices.policy
        placement = place_pod(
            node_name, devices, free, host_free, pod, policy=chosen_policy, most_tries=most_tries
        )
        if isinstance(placement, Refusal) and placement.missing is None:
            return evolve(
                placement, verdicts={**placement.verdicts, **dict.fromkeys(excluded, _APART)}
            )
        return placement

    def _choose(self, pod: PlacedPod, node_number: int, prices: Prices) -> Placement | None:
        """Return the cheapest placement of a plain pod; None where it takes a search, or is none.

        The search would find it, too. This is the common case, and the node's cost assumes it.
        """
        cluster, pod_profile = self.rows().cluster, prices.pod_profile(pod)
        node, profile = cluster.nodes[node_number], pod_profile.profile
        if (
            not is_exact(pod_profile, node_number, cluster)
            or prices.cost(node_number, pod_profile) == NEVER_COST
        ):
            return None
        allocation = None
        if profile.request_class.request is not None:
            states, card_states = cluster.card_states.states, cluster.cards[node_number]
            positions = prices.choose(node_number, pod_profile)
            devices_and_cuts = [
                (node.devices[position], prices.cut(states[card_states[position]], profile))
                for position in positions
            ]
            allocation = allocate(
                profile.request_class.request,
                [(device, cut) for device, cut in devices_and_cuts if cut is not None],
            )
        allocations = (
            None if container.request is None else allocation
            for _, container in pod.kinds_and_containers
        )
        return standing(pod, node.name, tuple(allocations))

    def _apart(self, pod: PlacedPod, node_name: str, without_uids: Iterable[str] = ()) -> set[str]:
        """Return the node's devices whose holders the pod may not share a device with."""
        rules = {rule.key: rule for request in _requests(pod) for rule in request.co_tenancy}
        if not rules:
            return set()
        return {
            piece.device
            for uid in self._on.get(node_name, set()).difference(without_uids)
            for request, allocation in _held(self.standing[uid])
            for piece in allocation.pieces
            for rule in request.co_tenancy
            if rule.key in rules and rule.value not in rules[rule.key].compatible_with
        }

    # --- quotas ---------------------------------------------------------------------------------

    def _charge(self, placement: Placement) -> Counter[str]:
        """Return what a placement is charged, as far as its devices are still on the node."""
        charge = Counter[str]()
        if self.quotas is not None:
            devices = {device.uuid: device for device in self.inventory.devices(placement.node)}
            for usage in placement.holds:
                if usage.device in devices:
                    charge.update(self.quotas.charge(devices[usage.device], usage.takes))
        return charge

    def _over_quota(self, pod: PlacedPod) -> dict[frozenset[int], str]:
        """Return the quota that the pod passes on any node, by the kinds of a node's cards.

        Kinds on which it may pass none are left out: mostly that is all of them.
        """
        over_quota: dict[frozenset[int], str] = {}
        if self.quotas is not None and pod.namespace in self.quotas.most:
            rows = self.rows()
            for kind_numbers in set(rows.kinds.values()):
                devices = [rows.cluster.card_states.kinds[kind].device for kind in kind_numbers]
                quota = self.quotas.over(pod.namespace, self.quotas.least(pod, devices))
                if quota:
                    over_quota[kind_numbers] = quota
        return over_quota

    # --- what follows from it ---------------------------------------------------------------------

    def rows(self) -> PriceRows:
        """Return what pods cost, built anew after a change that could not be followed."""
        rows = self._rows
        if rows is None:
            cluster = Cluster(self.inventory.nodes.values())
            rows = self._rows = PriceRows(cluster, self.reservations, self._place_pod)
            if self.quotas is not None:
                self.quotas.used.clear()
            for placement in self.standing.values():
                self._move(placement, direction=1)
            self._learn()
        return rows

    def _follow(self, change: NodeChange) -> None:
        """Apply a node's change to the price rows, or drop them where that is not possible."""
        rows, node_before, node_after = self._rows, change.before, change.after
        if rows is None or not change:
            return
        cluster = rows.cluster
        if set(node_after.host) - set(cluster.counters):
            self._rows = None
            return
        if node_before is None:
            cluster.add(node_after)
            for uid in self._on.get(node_after.name, ()):
                self._move(self.standing[uid], direction=1)
        elif list(map(_charged_by, node_before.devices)) == list(
            map(_charged_by, node_after.devices)
        ):
            for old_device, new_device in zip(node_before.devices, node_after.devices, strict=True):
                if old_device != new_device:  # its health, mostly
                    cluster.replace(new_device)
            cluster.update(node_after)
        else:
            self._rows = None
            return
        if rows.node_changed(node_after.name, device_count=len(node_after.devices)):
            self._learn()

    def _learn(self) -> None:
        self.rows().learn(self.demand, self.weights)

    def _priced(self, weights: Weights | None) -> Prices:
        return self.rows().prices(weights or self.weights)

    def _move(self, placement: Placement, *, direction: int) -> None:
        rows = self._rows
        if rows is None or placement.node not in self.inventory.nodes:
            return
        rows.changed(rows.cluster.move(placement, direction=direction))
        if self.quotas is not None:
            self.quotas.move(placement.pod.namespace, self._charge(placement), direction=direction)


def _charged_by(device: Device) -> tuple[object, ...]:
    """Return what decides how much of a device is taken, and what quotas count it as.

    Where that changes, all is counted anew: else a pod would give back another charge than it took.
    """
    return (
        *(device.uuid, device.vendor, device.model, device.enforcement),
        *(device.capacity, device.card, device.granularity),
    )


def _add_back(
    placement: Placement, free: dict[str, dict[str, int]], host_free: dict[str, int]
) -> None:
    """Add what a placement holds to what is left of its node."""
    for usage in placement.holds:
        counters = free.get(usage.device, {})
        for counter, amount in usage.takes.items():
            if counter in counters:
                counters[counter] += amount
    for counter, amount in placement.host.items():
        if counter in host_free:
            host_free[counter] += amount


def _held(placement: Placement) -> Iterator[tuple[Request, Allocation]]:
    """Yield what each container of a placement asked, and what it was given."""
    pod = placement.pod
    containers = (*pod.sidecars, *pod.containers, *pod.init)
    for container, allocation in zip(containers, placement.allocations, strict=True):
        if container.request is not None and allocation is not None:
            yield container.request, allocation


def _requests(pod: PlacedPod) -> Iterator[Request]:
    for container in (*pod.sidecars, *pod.containers, *pod.init):
        if container.request is not None:
            yield container.request
