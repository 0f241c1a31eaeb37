"""Finds the best place for a pod in a whole cluster, looking again only at what changed.

Three ideas keep it exact and fast. Cards that are alike share one *state*, so what a request costs
on a state is worked out once. Pods that are alike share one *shape*, and each shape keeps a row:
its cost on every node. A change of a node refreshes that node's entry in the rows
(`hetero.fit.rank`), and placing a pod is finding its row's minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import define, evolve, field

from hetero.errors import NotFound
from hetero.fit.cluster import DEVICES, Container, Hold, Node, Placement, Pod, Quota, total
from hetero.fit.match import NOT_CHOSEN, allocate, cut_of, obstacle
from hetero.fit.mix import POINTS, PRIOR, HostRate, Wish, host_rate, waste, whole
from hetero.fit.rank import NEVER, rows
from hetero.fit.seat import seat
from hetero.fit.state import Cluster, Kind, State
from hetero.granularity import Portion
from hetero.model import FITS, Choice, Device, Refusal, Request, Templated
from hetero.policy import WEIGHTS, Weights

#: Codes of what a node says, beside those of `Index.reason_codes`.
_FITS, _TOO_FEW = 0, 1
#: The first lesson is drawn after this many pods, the next ones at every doubling.
_FIRST_LESSON = 16


@define(eq=False)
class Shape:
    """What alike pods have in common: the devices and the host they want.

    For a pod that wants more than one container's equal devices (`plain` False) `request` and
    `cards` only tell where it may fit, and `seat` tells where it does.
    """

    number: int
    pod: Pod
    request: Request | None
    cards: int
    plain: bool
    host: tuple[int, ...]
    times: int = 0  # seen
    #: The cut each kind of card would give, by the kind's number; a verdict where it gives none.
    cuts: dict[int, Portion | str] = field(factory=dict)
    #: What cards say to it, by their state: codes of `Index.reason_name`.
    codes: list[int] = field(factory=list)


class Index:
    """The cluster as the scheduler sees it. One caller at a time."""

    def __init__(
        self,
        nodes: Iterable[Node],
        *,
        weights: Weights = WEIGHTS["frag"],
        quota: Quota | None = None,
        dense: bool | None = None,
    ) -> None:
        """Hold `nodes` ready, all free.

        `dense` chooses between the two forms of the rows, numpy's and plain Python's, which give
        the same answers; None takes numpy where it is installed.
        """
        self.cluster = Cluster(nodes)
        self.weights = weights
        self.quota = dict(quota or {})
        self.shapes: list[Shape] = []
        self.whole: tuple[int, ...] = ()
        self.rates: tuple[HostRate | None, ...] = ()
        self._shape_of: dict[object, Shape] = {}
        self._held: dict[str, dict[str, int]] = {}  # by namespace, for the quota
        self._seen = 0
        self._lesson = _FIRST_LESSON
        self._most = max((len(cards) for cards in self.cluster.cards), default=0)
        self._learn()
        self._reasons = [FITS, "have too few devices", NOT_CHOSEN]
        self._rows = rows(self, dense=dense)

    # --- what a scheduler asks ---------------------------------------------------------------

    def place(self, pod: Pod) -> Placement | Refusal:
        """Return the pod's place, taken from now on, or why there is none."""
        shape = self.shape(pod)
        shape.times += 1
        self._seen += 1
        if self._seen >= self._lesson:
            self._lesson *= 2
            self._learn()
            self._rows.forget()
        answer = self.find(pod)
        if isinstance(answer, Placement):
            self.take(answer)
        return answer

    def find(self, pod: Pod) -> Placement | Refusal:
        """Return the place the pod would get; nothing is taken and nothing learned."""
        shape = self.shape(pod)
        if not shape.plain:
            answer = self._seat_somewhere(shape, pod)
        else:
            number = self._rows.best(shape)
            answer = None if number is None else self._sit(number, shape, pod)
        if answer is None:
            return Refusal(wanted=1, verdicts={}, counts=self._rows.reasons(shape), of="node")
        return self._over_quota(answer) or answer

    def take(self, placement: Placement) -> None:
        """Count a placement as standing, wherever it was decided."""
        self._count(placement, times=1)
        self._rows.touch(self.cluster.move(placement, times=1))

    def remove(self, placement: Placement) -> None:
        """Give back what a placement held."""
        self._count(placement, times=-1)
        self._rows.touch(self.cluster.move(placement, times=-1))

    def cordon(self, node: str, *, closed: bool = True) -> None:
        """Place nothing more on a node, or open it again. Raises `NotFound`."""
        if node not in self.cluster.number:
            raise NotFound(f"no node {node!r} in this cluster")
        number = self.cluster.number[node]
        self.cluster.closed[number] = closed
        self._rows.touch(number)

    def replace(self, device: Device) -> None:
        """Note that a device changed, its health or its size. Raises `NotFound`."""
        self._rows.touch(self.cluster.replace(device))

    def verdicts(self, pod: Pod) -> Mapping[str, str]:
        """Return what every node says to the pod, by name."""
        shape = self.shape(pod)
        return {
            node.name: self.reason_name(self.reason(number, shape))
            for number, node in enumerate(self.cluster.nodes)
        }

    def costs(self, pod: Pod) -> Mapping[str, int]:
        """Return what the pod would cost on each node that may serve it; the least is taken."""
        shape = self.shape(pod)
        every = {n.name: self.cost(i, shape) for i, n in enumerate(self.cluster.nodes)}
        return {name: cost for name, cost in every.items() if cost < NEVER}

    # --- what a placement costs --------------------------------------------------------------

    def cost(self, number: int, shape: Shape) -> int:
        """Return what the shape costs on a node by the weights; NEVER if it does not fit.

        This is the meaning of a row's entry. The numpy rows work out the same, many at a time.
        """
        cluster, weights = self.cluster, self.weights
        host = cluster.host[number]
        if cluster.closed[number] or any(h < w for h, w in zip(host, shape.host, strict=True)):
            return NEVER
        cards, room = cluster.cards[number], cluster.room[number]
        cost = weights.node * room // len(cards) if cards else 0
        taken = 0
        if shape.cards:
            chosen = self._choose(number, shape)
            if chosen is None:
                return NEVER
            cost += chosen[0]
            taken = self.size(shape, cluster.states[cards[0]].kind)
        if weights.host:
            left = [h - w for h, w in zip(host, shape.host, strict=True)]
            cost += weights.host * (
                self._stranded(max(room - taken, 0), left) - self._stranded(room, host)
            )
        return cost

    def card_cost(self, card: int, shape: Shape) -> int:
        """Return what one cut of the shape costs on a card in this state, NEVER if it has none."""
        state = self.cluster.states[card]
        cut = self._cut(state, shape)
        if cut is None:
            return NEVER
        kind, weights = state.kind, self.weights
        after = kind.room({name: left - cut.takes.get(name, 0) for name, left in state.free.items()})
        return weights.waste * (kind.waste[after] - kind.waste[state.room]) + weights.card * after

    def size(self, shape: Shape, kind: Kind) -> int:
        """Return the thousandths of cards the shape takes in all, where cards are of this kind."""
        cut = self._cut_of_kind(kind, shape)
        if isinstance(cut, str):
            return 0
        capacity = kind.device.capacity
        free = {name: amount - cut.takes.get(name, 0) for name, amount in capacity.items()}
        return shape.cards * (kind.room(capacity) - kind.room(free))

    def _choose(self, number: int, shape: Shape) -> tuple[int, list[int]] | None:
        """Return the cost and the positions of the cards to cut, None if too few can be."""
        states, costs = self.cluster.states, self._rows.card_costs(shape)
        ranked = []
        for position, card in enumerate(self.cluster.cards[number]):
            if costs[card] < NEVER:
                ranked.append((costs[card], states[card].empty, position))
        if len(ranked) < shape.cards:
            return None
        chosen = [min(ranked)] if shape.cards == 1 else sorted(ranked)[: shape.cards]
        empty = self.cluster.empty[number]
        rest = empty - sum(opened for _, opened, _ in chosen)
        whole = self.weights.whole * (self.whole[rest] - self.whole[empty])
        return sum(cost for cost, _, _ in chosen) + whole, [place for _, _, place in chosen]

    def _stranded(self, room: int, host: list[int]) -> int:
        """Return the points of card that the node's own counters are not enough for."""
        points = room * POINTS
        for rate, left in zip(self.rates, host, strict=True):
            if rate is not None:
                points = min(points, rate.covers(left))
        return room * POINTS - points

    def _cut(self, state: State, shape: Shape) -> Portion | None:
        """Return what a card in this state gives the shape, None if nothing."""
        kind, request = state.kind, shape.request
        if request is None:
            return None
        if isinstance(kind.device.granularity, Templated):  # which template depends on what is free
            cut = cut_of(kind.device, request.asks[0], request, state.free)
        else:
            cut = self._cut_of_kind(kind, shape)
        if isinstance(cut, str) or obstacle(kind.device, cut, request, state.free):
            return None
        return cut

    def _cut_of_kind(self, kind: Kind, shape: Shape) -> Portion | str:
        """Return what an empty card of the kind gives the shape, or why it does not."""
        cut = shape.cuts.get(kind.number)
        if cut is None:
            request = shape.request
            cut = (
                NOT_CHOSEN
                if request is None
                else cut_of(kind.device, request.asks[0], request, kind.device.capacity)
            )
            shape.cuts[kind.number] = cut
        return cut

    # --- why not -------------------------------------------------------------------------------

    def reason(self, number: int, shape: Shape) -> int:
        """Return the code of what a node says to a shape; `reason_name` spells it.

        Not negative is what its cards say, the reason the most telling of them gives.
        """
        cluster = self.cluster
        if cluster.closed[number]:
            return -2
        for place, want in enumerate(shape.host):
            if cluster.host[number][place] < want:
                return -3 - place
        codes = self.reason_codes(shape)
        said = [codes[card] for card in cluster.cards[number]]
        if said.count(_FITS) >= shape.cards:
            return _FITS
        return max(said, default=-1) or _TOO_FEW

    def reason_codes(self, shape: Shape) -> list[int]:
        """Return what a card says to a shape, by its state; the larger, the more telling."""
        codes, request = shape.codes, shape.request
        for state in self.cluster.states[len(codes) :]:
            said = FITS
            if request is not None:
                cut = cut_of(state.kind.device, request.asks[0], request, state.free)
                blocked = cut if isinstance(cut, str) else None
                if not isinstance(cut, str):
                    blocked = obstacle(state.kind.device, cut, request, state.free)
                said = blocked or FITS
            codes.append(self._code(said))
        return codes

    def reason_name(self, code: int) -> str:
        """Return the words for a reason's code."""
        if code == -2:
            return "cordoned"
        if code < -2:
            return f"lack host {self.cluster.counters[-3 - code]}"
        return "have no device" if code == -1 else self._reasons[code]

    # --- shapes and what is learned from them ------------------------------------------------

    def shape(self, pod: Pod) -> Shape:
        """Return the shape of a pod, a new one if none was like it."""
        key = tuple(
            (c.request, tuple(c.host.items()))
            for group in (pod.containers, pod.init, pod.sidecars)
            for c in (*group, Container())
        )
        found = self._shape_of.get(key)
        if found is None:
            found = self._shape_of[key] = self._draw(pod)
            self.shapes.append(found)
        return found

    def _draw(self, pod: Pod) -> Shape:
        host = pod.host()
        everyone = (*pod.containers, *pod.init, *pod.sidecars)
        requests = [c.request for c in everyone if c.request is not None]
        largest = max(requests, key=lambda r: len(r.asks), default=None)
        plain = len(requests) <= 1
        cards = 0
        if largest is not None:
            alike = len(set(largest.asks)) == 1
            told_apart = largest.uuid != Choice() or largest.asks[0].device is not None
            plain = plain and alike and not (told_apart or largest.numa or largest.links)
            cards = len(largest.asks) if alike else 1
            largest = evolve(largest, uuid=Choice())
        return Shape(
            number=len(self.shapes),
            pod=pod,
            request=largest,
            cards=cards,
            plain=plain,
            host=tuple(host.get(name, 0) for name in self.cluster.counters),
        )

    def _code(self, reason: str) -> int:
        if reason not in self._reasons:
            self._reasons.append(reason)
        return self._reasons.index(reason)

    def _learn(self) -> None:
        """Draw the lesson of the pods seen so far: what pieces of cards and nodes are worth."""
        drawn: dict[tuple[Wish, ...], tuple[int, ...]] = {}
        sizes: dict[int, list[int]] = {shape.number: [] for shape in self.shapes}
        for kind in self.cluster.kinds:
            wishes = list(PRIOR)
            for shape in self.shapes:
                size = self.size(shape, kind) if shape.times and shape.cards else 0
                if size:
                    each = size // shape.cards
                    sizes[shape.number].append(each)
                    wishes.append(Wish(times=shape.times, cards=shape.cards, size=each))
            key = tuple(wishes)
            kind.waste = drawn[key] if key in drawn else drawn.setdefault(key, waste(wishes))
        everywhere = [
            Wish(times=shape.times, cards=shape.cards, size=sum(each) // len(each))
            for shape in self.shapes
            if (each := sizes[shape.number])
        ]
        self.whole = whole((*PRIOR, *everywhere), most=self._most)
        points = sum(wish.times * wish.cards * wish.size for wish in everywhere) * POINTS
        self.rates = tuple(
            host_rate(points, sum(shape.times * shape.host[place] for shape in self.shapes))
            for place in range(len(self.cluster.counters))
        )

    # --- from a node to a placement ----------------------------------------------------------

    def _sit(self, number: int, shape: Shape, pod: Pod) -> Placement | None:
        """Return the placement of a plain pod on a node its row says it fits on."""
        cluster = self.cluster
        node = cluster.nodes[number]
        allocation = None
        if shape.request is not None:
            chosen = self._choose(number, shape)
            assert chosen is not None  # noqa: S101 - the row says so
            devices = [node.devices[position] for position in chosen[1]]
            if len({device.vendor for device in devices}) > 1:
                return self._seat(number, pod) or self._seat_somewhere(shape, pod)
            cuts = [
                self._cut(cluster.states[cluster.cards[number][position]], shape)
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
                Hold(device=grant.device, takes=grant.takes)
                for grant in (allocation.grants if allocation else ())
            ),
            host=pod.host(),
        )

    def _seat(self, number: int, pod: Pod) -> Placement | None:
        cluster = self.cluster
        if cluster.closed[number]:
            return None
        node = cluster.nodes[number]
        host = dict(zip(cluster.counters, cluster.host[number], strict=True))
        order = self._order
        answer = seat(node.name, node.devices, cluster.free(number), host, pod, order=order)
        return answer if isinstance(answer, Placement) else None

    def _seat_somewhere(self, shape: Shape, pod: Pod) -> Placement | None:
        for number in self._rows.ranked(shape):
            answer = self._seat(number, pod)
            if answer is not None:
                return answer
        return None

    def _order(self, device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, ...]:
        kind, weights = self.cluster.kind(device), self.weights
        before = kind.room(dict(free))
        after = kind.room({name: left - cut.takes.get(name, 0) for name, left in free.items()})
        return (weights.waste * (kind.waste[after] - kind.waste[before]) + weights.card * after,)

    # --- quotas --------------------------------------------------------------------------------

    def _over_quota(self, placement: Placement) -> Refusal | None:
        """Return the refusal of a placement its namespace has no room for."""
        space = placement.pod.namespace
        held = self._held.get(space, {})
        for name, more in _charge(placement).items():
            most = self.quota.get(space, {}).get(name)
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
    return {DEVICES: len(placement.holds), **total(hold.takes for hold in placement.holds)}
