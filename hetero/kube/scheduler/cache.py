"""The cluster as the scheduler knows it: nodes, who holds what, and what each node says to a pod.

Everything here happens between two awaits of one event loop, so a reservation is atomic: of two
pods that want the last share one gets it and the other hears why not.

Over 400 lines because everything a reservation depends on (free capacity, co-tenants, quota) is
checked in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations

from attrs import define, evolve, field

from hetero.kube.api.annotations import Assignment
from hetero.kube.api.quota import Quotas
from hetero.model import FITS, Allocation, Device, Refusal, Request
from hetero.placement.cluster import Node, Placement, Pod
from hetero.placement.mix import CARD_MILLI
from hetero.placement.place_pod import holds, place_pod
from hetero.placement.placement_policy import PLACEMENT_POLICIES, WEIGHTS
from hetero.placement.price import Prices, Shape
from hetero.placement.state import Cluster

#: What a node is told that published no devices.
_NO_DEVICES = "have no device"
#: What a device says that only those hold whom the pod may not share it with.
_APART = "shared otherwise"
_MOST_SHAPES = 512
#: The best score a node can get.
BEST = 10


@define(eq=False)
class _Row:
    """What every node says to one shape, as of a point in the list of changes."""

    shape: Shape
    refusals: dict[str, str] = field(factory=dict)  # of the nodes that it does not fit on
    costs: dict[str, int] = field(factory=dict)  # of the others
    upto: int = 0


class SchedulerCache:
    """Nodes with their devices and the pods standing on them. One caller at a time."""

    def __init__(self, quotas: Quotas) -> None:
        """Start without nodes; `quotas` are kept by the one who follows them."""
        self.quotas = quotas
        self._nodes: dict[str, tuple[Device, ...]] = {}
        self._home: dict[str, str] = {}  # of a device, by UUID
        self._faults: dict[str, str] = {}  # nodes whose inventory cannot be used, and why
        self.standing: dict[str, Placement] = {}  # by the pod's UID
        self._on: dict[str, set[str]] = {}  # the UIDs of those on a node
        self._cluster: Cluster | None = None
        self._kinds: dict[str, frozenset[int]] = {}  # of each node's cards

    # --- what there is ------------------------------------------------------------------------

    def update_node(
        self, name: str, devices: tuple[Device, ...], *, fault: str | None = None
    ) -> None:
        """Note what a node has, or why nothing of it can be used."""
        for device in devices:
            other = self._home.get(device.uuid, name)
            if other != name:
                fault = f"publish device {device.uuid}, which node {other} has"
        if fault:
            self._faults[name], devices = fault, ()
        else:
            self._faults.pop(name, None)
        if self._nodes.get(name) == devices:
            return
        self._unhouse(name)
        was = self._nodes.get(name)
        self._nodes[name] = devices
        self._home.update((device.uuid, name) for device in devices)
        self._follow(name, was, devices)

    def remove_node(self, name: str) -> None:
        """Note that a node is gone; what stands on it stays counted until its pods are gone."""
        self._unhouse(name)
        if self._nodes.pop(name, None) is not None:
            self._cluster = None
        self._faults.pop(name, None)

    def _unhouse(self, name: str) -> None:
        for device in self._nodes.get(name, ()):
            del self._home[device.uuid]

    def devices(self, name: str) -> tuple[Device, ...]:
        """Return a node's devices."""
        return self._nodes.get(name, ())

    def free(self, name: str) -> dict[str, dict[str, int]]:
        """Return what is left of each counter of a node's devices, by UUID."""
        cluster = self._known()
        return cluster.free(cluster.number[name])

    def settle(self) -> None:
        """Work out now what follows from the inventories, and let no pod wait for it."""
        self._known()

    def nodes(self) -> Iterable[str]:
        """Return the nodes that published devices."""
        return self._nodes.keys()

    # --- what a scheduler asks ------------------------------------------------------------------

    def serving(self, pod: Pod, names: Iterable[str]) -> tuple[list[str], dict[str, str]]:
        """Return those of the nodes that can serve the pod, and what each of the others says."""
        row = self._row(pod)
        costs, fits, said = row.costs, list[str](), dict[str, str]()
        for name in names:  # new strings, to be hashed: of thousands, each further pass is felt
            if name in costs:
                fits.append(name)
            else:
                said[name] = self._faults.get(name) or row.refusals.get(name, _NO_DEVICES)
        over = self._over_quota(pod)
        if over:
            kinds = self._kinds
            said.update((name, over[kinds[name]]) for name in fits if kinds[name] in over)
            fits = [name for name in fits if name not in said]
        return fits, said

    def costs(self, pod: Pod, names: Iterable[str]) -> dict[str, int]:
        """Return what the pod would make useless on each node; least is best."""
        row = self._row(pod)
        worst = max(row.costs.values(), default=0) + 1
        return {name: row.costs.get(name, worst) for name in names}

    def fullness(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many thousandths of a node's usable cards are given out; without the idle."""
        self._known()
        full = self._full
        return {name: full[name] for name in names if name in full}

    def reserve(
        self, uid: str, pod: Pod, node: str, *, policy: str | None = None
    ) -> Placement | Refusal:
        """Place the pod on the node, from now on, or return why that cannot be."""
        self.release(uid)  # asked again, it may have other devices
        answer = self._place_pod(pod, node, policy=policy)
        if isinstance(answer, Refusal):
            return answer
        over = self.quotas.over(pod.namespace, self._charge(answer))
        if over:
            return Refusal(wanted=1, verdicts={}, missing=over)
        self._stand(uid, answer)
        return answer

    def restore_pod(
        self, uid: str, pod: Pod, assignment: Assignment, containers: list[str]
    ) -> None:
        """Count what the API says a pod holds; `containers` are named in the placement's order."""
        given = dict(assignment.containers)
        allocations = tuple(given.get(name) for name in containers)
        placement = _placement(pod, assignment.node, allocations)
        if self.standing.get(uid) == placement:
            return
        self.release(uid)
        self._stand(uid, placement)

    def _stand(self, uid: str, placement: Placement) -> None:
        self.standing[uid] = placement
        self._on.setdefault(placement.node, set()).add(uid)
        self._move(placement, times=1)

    def release(self, uid: str) -> None:
        """Give back what a pod held, if it held anything."""
        placement = self.standing.pop(uid, None)
        if placement is not None:
            self._on[placement.node].discard(uid)
            self._move(placement, times=-1)

    def evict(self, pod: Pod, node: str, given: Iterable[str]) -> tuple[str, ...] | None:
        """Return the UIDs to evict so that the pod fits: the given ones and the fewest others.

        None if it would not fit even without every pod of lower priority, or may not for its
        namespace's quota, which nobody's eviction mends.
        """
        over = self._over_quota(pod)
        if self._kinds.get(node) in over:
            return None
        victims = list(given)
        others = sorted(
            (
                uid
                for uid in self._on.get(node, ())
                if self.standing[uid].pod.priority < pod.priority and uid not in victims
            ),
            key=lambda uid: (self.standing[uid].pod.priority, uid),
        )
        if isinstance(self._place_pod(pod, node, without=[*victims, *others]), Refusal):
            return None
        for size in range(2):  # none or one more is the common case, and then the least is exact
            for some in combinations(others, size):
                if isinstance(self._place_pod(pod, node, without=[*victims, *some]), Placement):
                    return (*victims, *some)
        remaining = list(others)
        for uid in reversed(others):  # spare whom the pod can do without, the most important first
            rest = [one for one in remaining if one != uid]
            if isinstance(self._place_pod(pod, node, without=[*victims, *rest]), Placement):
                remaining = rest
        return (*victims, *remaining)

    def _place_pod(
        self, pod: Pod, node: str, *, policy: str | None = None, without: Iterable[str] = ()
    ) -> Placement | Refusal:
        if node in self._faults:
            return Refusal(wanted=1, verdicts={}, missing=self._faults[node])
        cluster = self._known()
        number = cluster.number.get(node)
        if number is None:
            return Refusal(wanted=1, verdicts={node: _NO_DEVICES}, of="node")
        free = {uuid: dict(left) for uuid, left in cluster.free(number).items()}
        for uid in without:
            placement = self.standing.get(uid)
            for usage in placement.holds if placement and placement.node == node else ():
                for name, amount in usage.takes.items():
                    if name in free.get(usage.device, {}):
                        free[usage.device][name] += amount
        ranked = PLACEMENT_POLICIES[policy] if policy else self._prices.policy
        apart = self._apart(pod, node, without)
        devices = [device for device in self._nodes[node] if device.uuid not in apart]
        answer = place_pod(node, devices, free, {}, pod, policy=ranked)
        if isinstance(answer, Refusal) and answer.missing is None:
            return evolve(answer, verdicts={**answer.verdicts, **dict.fromkeys(apart, _APART)})
        return answer

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
        here = {device.uuid: device for device in self._nodes.get(placement.node, ())}
        charges = (
            self.quotas.charge(here[usage.device], usage.takes)
            for usage in placement.holds
            if usage.device in here
        )
        return sum(charges, Counter())

    def _over_quota(self, pod: Pod) -> dict[frozenset[int], str]:
        """Return which quota the pod passes wherever it is placed, by the kinds of a node's cards.

        Of kinds on which it may pass none there is nothing: mostly, of all.
        """
        over: dict[frozenset[int], str] = {}
        if pod.namespace in self.quotas.most:
            cluster = self._known()
            for kinds in set(self._kinds.values()):
                devices = [cluster.kinds[kind].device for kind in kinds]
                verdict = self.quotas.over(pod.namespace, self.quotas.least(pod, devices))
                if verdict:
                    over[kinds] = verdict
        return over

    # --- what follows from it ---------------------------------------------------------------------

    def _follow(
        self, name: str, was: tuple[Device, ...] | None, devices: tuple[Device, ...]
    ) -> None:
        """Let the packing core know of a node's new devices, or have it start anew with them."""
        cluster = self._cluster
        if cluster is None:
            return
        kinds = len(cluster.kinds)
        if was is None:
            cluster.add(Node(name=name, devices=devices))
            for uid in self._on.get(name, ()):
                self._move(self.standing[uid], times=1)
        elif [(d.uuid, d.capacity) for d in was] == [(d.uuid, d.capacity) for d in devices]:
            for old, new in zip(was, devices, strict=True):
                if old != new:  # its health, mostly
                    cluster.replace(new)
            self._fill(cluster, name)
        else:
            self._cluster = None
            return
        self._changes.append(cluster.number[name])
        self._kinds[name] = _kinds(cluster, name)
        if len(cluster.kinds) > kinds or len(devices) >= len(self._prices.whole_cards):
            self._prices.learn()

    def _known(self) -> Cluster:
        """Return the cluster of the packing core, made anew after it could not follow a change."""
        if self._cluster is None:
            self._cluster = Cluster(
                Node(name=name, devices=devices) for name, devices in self._nodes.items()
            )
            self._kinds = {name: _kinds(self._cluster, name) for name in self._nodes}
            self._prices = Prices(self._cluster, WEIGHTS["fragmentation"])
            self._rows: dict[int, _Row] = {}
            self._changes: list[int] = []
            self._full: dict[str, int] = {}  # thousandths, of nodes of which anything is given out
            self.quotas.used.clear()
            for placement in self.standing.values():
                self._move(placement, times=1)
        return self._cluster

    def _move(self, placement: Placement, *, times: int) -> None:
        cluster = self._cluster
        if cluster is None or not self._nodes.get(placement.node):
            return
        here = {device.uuid: device for device in self._nodes[placement.node]}
        known = tuple(
            evolve(
                usage,
                takes={n: a for n, a in usage.takes.items() if n in here[usage.device].capacity},
            )
            for usage in placement.holds
            if usage.device in here
        )
        number = cluster.move(evolve(placement, holds=known), times=times)
        self.quotas.move(placement.pod.namespace, self._charge(placement), times=times)
        self._changes.append(number)
        self._fill(cluster, placement.node)

    def _fill(self, cluster: Cluster, node: str) -> None:
        """Work out anew how full a node is."""
        number = cluster.number[node]
        usable = sum(cluster.states[card].kind.device.usable for card in cluster.cards[number])
        full = CARD_MILLI - cluster.free_milli[number] // usable if usable else 0
        if full:
            self._full[node] = full
        else:
            self._full.pop(node, None)

    def _row(self, pod: Pod) -> _Row:
        cluster = self._known()
        if len(self._prices.shapes) > _MOST_SHAPES or len(self._changes) > 100_000:
            self._cluster = None
            cluster = self._known()
        shape = self._prices.shape(pod)
        row = self._rows.get(shape.number)
        if row is None:
            row = self._rows[shape.number] = _Row(shape)
            stale: Iterable[int] = range(len(cluster.nodes))
        else:
            stale = set(self._changes[row.upto :])
        known: dict[tuple[int, ...], tuple[str, int]] = {}
        for number in stale:
            self._ask(number, row, known)
        row.upto = len(self._changes)
        return row

    def _ask(self, number: int, row: _Row, known: dict[tuple[int, ...], tuple[str, int]]) -> None:
        """Write down what a node says to the row's shape.

        `known` keeps verdicts and costs by the states of a node's cards: most nodes are alike.
        """
        cluster, prices, shape = self._known(), self._prices, row.shape
        node, cards = cluster.nodes[number], tuple(cluster.cards[number])
        if cards not in known:
            verdict = prices.reason_name(prices.reason(number, shape))
            known[cards] = verdict, prices.cost(number, shape) if verdict == FITS else 0
        verdict, cost = known[cards]
        exact = shape.plain and not (shape.request and shape.request.co_tenancy)
        if verdict == FITS and not (exact and all(d.group is None for d in node.devices)):
            # So far we only know where it may fit.
            answer = self._place_pod(shape.pod, node.name)
            verdict = _verdict(answer) if isinstance(answer, Refusal) else FITS
        if verdict == FITS:
            row.refusals.pop(node.name, None)
            row.costs[node.name] = cost
        else:
            row.costs.pop(node.name, None)
            row.refusals[node.name] = verdict


def _kinds(cluster: Cluster, node: str) -> frozenset[int]:
    """Return the kinds of a node's cards."""
    cards = cluster.cards[cluster.number[node]]
    return frozenset(cluster.states[card].kind.number for card in cards)


def _verdict(refusal: Refusal) -> str:
    """Return in a few words why a node does not serve."""
    reasons = set(refusal.verdicts.values())
    if refusal.missing is None and len(reasons) == 1:
        return reasons.pop()
    return f"cannot place it ({refusal.sentence})"


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


def _placement(pod: Pod, node: str, allocations: tuple[Allocation | None, ...]) -> Placement:
    """Return the placement that these allocations make, sidecars first and init containers last."""
    ends = (len(pod.sidecars), len(pod.sidecars) + len(pod.containers))
    return Placement(
        node=node,
        pod=pod,
        allocations=allocations,
        holds=holds(allocations[: ends[0]], allocations[slice(*ends)], allocations[ends[1] :]),
        host={},
    )
