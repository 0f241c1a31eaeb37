"""Finds the best place for a pod in a whole cluster, looking again only at what changed.

Three ideas keep it exact and fast. Cards that are alike share one *state*, so what a request costs
on a state is worked out once. Pods that are alike share one *shape*, and each shape keeps a row:
its cost on every node. A change of a node refreshes that node's entry in the rows
(`hetero.placement.rank`), and placing a pod is finding its row's minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hetero.model import FITS, Device, Refusal
from hetero.model.errors import NotFound
from hetero.placement.cluster import DEVICES, DeviceUsage, Node, Placement, Pod, Quota, total
from hetero.placement.match import allocate
from hetero.placement.place_pod import place_pod
from hetero.placement.placement_policy import WEIGHTS, Weights
from hetero.placement.price import NEVER, Prices, Shape
from hetero.placement.rank import rows
from hetero.placement.state import Cluster

#: Shapes kept in mind. Beyond it the half that was seen least is forgotten.
_MOST_SHAPES = 1024
#: So many new states of cards, and it is time to forget those no card is in any more.
_MOST_STATES = 20_000
#: The first lesson is drawn after this many pods, the next ones at every doubling.
_FIRST_LESSON = 16


class Index:
    """The cluster as the scheduler sees it. One caller at a time."""

    def __init__(
        self,
        nodes: Iterable[Node],
        *,
        weights: Weights = WEIGHTS["fragmentation"],
        quota: Quota | None = None,
        dense: bool | None = None,
    ) -> None:
        """Hold `nodes` ready, all free.

        `dense` chooses between the two forms of the rows, numpy's and plain Python's, which give
        the same answers; None takes numpy where it is installed.
        """
        self.cluster = Cluster(nodes)
        self.prices = Prices(self.cluster, weights)
        self.quota = dict(quota or {})
        self._held: dict[str, dict[str, int]] = {}  # by namespace, for the quota
        self._seen = 0
        self._lesson = _FIRST_LESSON
        self._most_states = _MOST_STATES
        self._dense = dense
        self._rows = rows(self.prices, dense=dense)

    # --- what a scheduler asks ---------------------------------------------------------------

    def place(self, pod: Pod) -> Placement | Refusal:
        """Return the pod's place, taken from now on, or why there is none."""
        shape = self._shape(pod)
        shape.times += 1
        self._seen += 1
        if self._seen >= self._lesson:
            self._lesson *= 2
            self._learn()
        elif len(self.cluster.states) > self._most_states:
            self._learn()
        answer = self._find(pod, shape)
        if isinstance(answer, Placement):
            self.take(answer)
        return answer

    def find(self, pod: Pod) -> Placement | Refusal:
        """Return the place the pod would get; nothing is taken and nothing learned."""
        return self._find(pod, self._shape(pod))

    def _find(self, pod: Pod, shape: Shape) -> Placement | Refusal:
        answer: Placement | None
        if not shape.plain:
            answer = self._place_anywhere(shape, pod)
        else:
            number = self._rows.best(shape)
            answer = None if number is None else self._place_by_row(number, shape, pod)
        if answer is None:
            counts = self._rows.reasons(shape)
            if FITS in counts:  # a part of the pod does, or single devices of groups
                why = "give devices only in groups" if shape.plain else "have no room for all of it"
                counts[why] = counts.pop(FITS)
            return Refusal(wanted=1, verdicts={}, counts=counts, of="node")
        return self._over_quota(answer) or answer

    def take(self, placement: Placement) -> None:
        """Count a placement as standing, wherever it was decided."""
        self._count(placement, times=1)
        self._rows.touch(self.cluster.move(placement, times=1))

    def remove(self, placement: Placement) -> None:
        """Give back what a placement held."""
        self._count(placement, times=-1)
        self._rows.touch(self.cluster.move(placement, times=-1))

    def add(self, node: Node) -> None:
        """Take in a node that joined, all free. Raises `BadInput`."""
        self.cluster.add(node)
        self.prices.learn()
        self._rows = rows(self.prices, dense=self._dense)

    def cordon(self, node: str, *, closed: bool = True) -> None:
        """Place nothing more on a node, or open it again. Raises `NotFound`."""
        if node not in self.cluster.number:
            raise NotFound(f"no node {node!r} in this cluster")
        number = self.cluster.number[node]
        self.cluster.closed[number] = closed
        self._rows.touch(number)

    def replace(self, device: Device) -> None:
        """Note that a device changed, its health or its size. Raises `NotFound`."""
        known = len(self.cluster.kinds)
        number = self.cluster.replace(device)
        if len(self.cluster.kinds) > known:
            self._learn()
        self._rows.touch(number)

    def verdicts(self, pod: Pod) -> Mapping[str, str]:
        """Return what every node says to the pod, by name."""
        shape = self._shape(pod)
        return {
            node.name: self.prices.reason_name(self.prices.reason(number, shape))
            for number, node in enumerate(self.cluster.nodes)
        }

    def costs(self, pod: Pod) -> Mapping[str, int]:
        """Return what the pod would cost on each node that may serve it; the least is taken."""
        shape = self._shape(pod)
        every = {n.name: self.prices.cost(i, shape) for i, n in enumerate(self.cluster.nodes)}
        return {name: cost for name, cost in every.items() if cost < NEVER}

    def _shape(self, pod: Pod) -> Shape:
        shape = self.prices.shape(pod)
        if len(self.prices.shapes) > _MOST_SHAPES:
            self.prices.thin(shape)
            self._learn()
        return shape

    def _learn(self) -> None:
        renumbered = self.cluster.compact()
        self.prices.learn()
        if renumbered:
            self._rows = rows(self.prices, dense=self._dense)
        else:
            self._rows.forget()
        self._most_states = 2 * len(self.cluster.states) + _MOST_STATES

    # --- from a node to a placement ----------------------------------------------------------

    def _place_by_row(self, number: int, shape: Shape, pod: Pod) -> Placement | None:
        """Return the placement of a plain pod on a node its row says it fits on."""
        cluster = self.cluster
        node = cluster.nodes[number]
        allocation = None
        if shape.request is not None:
            if any(device.group for device in node.devices):  # the row knows single devices
                return self._place_pod(number, pod) or self._place_anywhere(shape, pod)
            chosen = self.prices.choose(number, shape)
            assert chosen is not None  # noqa: S101 - the row says so
            devices = [node.devices[position] for position in chosen[1]]
            if len({device.vendor for device in devices}) > 1:
                return self._place_pod(number, pod) or self._place_anywhere(shape, pod)
            cuts = [
                self.prices.cut(cluster.states[cluster.cards[number][position]], shape)
                for position in chosen[1]
            ]
            allocation = allocate(
                shape.request,
                [(d, cut) for d, cut in zip(devices, cuts, strict=True) if cut is not None],
            )
        return Placement(
            node=node.name,
            pod=pod,
            allocations=tuple(
                None if c.request is None else allocation
                for c in (*pod.sidecars, *pod.containers, *pod.init)
            ),
            holds=tuple(
                DeviceUsage(device=piece.device, takes=piece.takes)
                for piece in (allocation.pieces if allocation else ())
            ),
            host=pod.host(),
        )

    def _place_pod(self, number: int, pod: Pod) -> Placement | None:
        cluster = self.cluster
        if cluster.closed[number]:
            return None
        node = cluster.nodes[number]
        host = dict(zip(cluster.counters, cluster.host[number], strict=True))
        policy = self.prices.policy
        answer = place_pod(node.name, node.devices, cluster.free(number), host, pod, policy=policy)
        return answer if isinstance(answer, Placement) else None

    def _place_anywhere(self, shape: Shape, pod: Pod) -> Placement | None:
        for number in self._rows.ranked(shape):
            answer = self._place_pod(number, pod)
            if answer is not None:
                return answer
        return None

    # --- quotas --------------------------------------------------------------------------------

    def _over_quota(self, placement: Placement) -> Refusal | None:
        """Return the refusal of a placement its namespace has no room for."""
        space = placement.pod.namespace
        if space not in self.quota:
            return None
        held = self._held.get(space, {})
        for name, more in _charge(placement).items():
            most = self.quota[space].get(name)
            if most is not None and held.get(name, 0) + more > most:
                sentence = (
                    f"namespace {space} may hold {most} {name}: "
                    f"{held.get(name, 0)} held, {more} more asked for"
                )
                return Refusal(wanted=1, verdicts={}, missing=sentence)
        return None

    def _count(self, placement: Placement, *, times: int) -> None:
        space = placement.pod.namespace
        if space in self.quota:
            held = self._held.setdefault(space, {})
            for name, amount in _charge(placement).items():
                held[name] = held.get(name, 0) + times * amount


def _charge(placement: Placement) -> dict[str, int]:
    """Return what a placement counts for in a quota."""
    return {DEVICES: len(placement.holds), **total(usage.takes for usage in placement.holds)}
