"""What a placement costs, by the weights and by what was learned from the pods seen so far."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from attrs import define, evolve, field

from hetero.model import FITS, Device, Request, Selector, Templated
from hetero.model.rounding import Portion
from hetero.placement.cluster import Container, Pod
from hetero.placement.mix import (
    POINTS,
    PRIOR,
    DemandClass,
    HostRate,
    fragmentation,
    host_rate,
    whole_cards,
)
from hetero.placement.offer import NOT_CHOSEN, cut_of, obstacle
from hetero.placement.placement_policy import Weights
from hetero.placement.state import Cluster, Kind, State

#: A cost no placement has: the pod does not fit. Sums of a node's devices stay within 64 bits.
NEVER = 1 << 50
#: What a node says in the least telling cases; a code of `Prices.reason_name` is a place in it.
_PLAIN = (FITS, "have too few devices", NOT_CHOSEN)
_FITS, _TOO_FEW = 0, 1
#: What one step of `Portion.conceded` costs: more than all else of a node by any weights. Those of
#: a node's devices stay below NEVER.
_CONCEDED = 1 << 42
_END = Container()  # parts one group of a pod's containers from the next


@define(eq=False)
class Shape:
    """What alike pods have in common: the devices and the host they want.

    For a pod that wants more than one container's equal devices (`plain` False) `request` and
    `cards` only tell where it may fit, and `place_pod` tells where it does.
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
    #: What one cut of it costs, by a card's state.
    costs: list[int] = field(factory=list)
    #: What cards say to it, by their state: codes of `Prices.reason_name`.
    codes: list[int] = field(factory=list)


class Prices:
    """Shapes of pods and what each costs on every node of a cluster."""

    def __init__(self, cluster: Cluster, weights: Weights) -> None:
        """Price by `weights`; nothing was seen yet."""
        self.cluster = cluster
        self.weights = weights
        self.shapes: list[Shape] = []
        self.whole_cards: tuple[int, ...] = ()
        self.rates: tuple[HostRate | None, ...] = ()
        self._shape_of: dict[object, Shape] = {}
        self._reasons = dict(enumerate(_PLAIN))
        self.learn()

    def shape(self, pod: Pod) -> Shape:
        """Return the shape of a pod, a new one if none was like it."""
        key = tuple(
            [
                (container.request, *container.host.items())
                for group in (pod.containers, pod.init, pod.sidecars)
                for container in (*group, _END)
            ]
        )
        found = self._shape_of.get(key)
        if found is None:
            found = self._shape_of[key] = self._draw(pod)
            self.shapes.append(found)
        return found

    def thin(self, newest: Shape) -> None:
        """Forget the half of the shapes that was seen least, but not the newest."""
        ranked = sorted(self.shapes, key=lambda shape: (shape is not newest, -shape.times))
        self.shapes = ranked[: len(ranked) // 2]
        for number, shape in enumerate(self.shapes):
            shape.number = number
        remaining = set(map(id, self.shapes))
        self._shape_of = {k: shape for k, shape in self._shape_of.items() if id(shape) in remaining}

    def _draw(self, pod: Pod) -> Shape:
        host = pod.host()
        everyone = (*pod.containers, *pod.init, *pod.sidecars)
        requests = [c.request for c in everyone if c.request is not None]
        largest = max(requests, key=lambda r: len(r.asks), default=None)
        plain = len(requests) <= 1
        cards = 0
        if largest is not None:
            alike = len(set(largest.asks)) == 1
            told_apart = largest.uuid != Selector() or largest.asks[0].device is not None
            plain = plain and alike and not (told_apart or largest.numa or largest.links)
            cards = len(largest.asks) if alike else 1
            largest = evolve(largest, uuid=Selector())
        return Shape(
            number=len(self.shapes),
            pod=pod,
            request=largest,
            cards=cards,
            plain=plain,
            host=tuple(host.get(name, 0) for name in self.cluster.counters),
        )

    def _code(self, reason: str) -> int:
        """Return a reason's code, which must not hang on which reason was met first."""
        if reason in _PLAIN:
            return _PLAIN.index(reason)
        code = len(_PLAIN) + crc32(reason.encode())
        self._reasons[code] = reason
        return code

    def cost(self, number: int, shape: Shape) -> int:
        """Return what the shape costs on a node by the weights; NEVER if it does not fit.

        This is the meaning of a row's entry. The numpy rows work out the same, many at a time.
        """
        cluster, weights = self.cluster, self.weights
        host = cluster.host[number]
        if cluster.closed[number] or any(h < w for h, w in zip(host, shape.host, strict=True)):
            return NEVER
        cards, free_milli = cluster.cards[number], cluster.free_milli[number]
        cost = weights.node * free_milli // len(cards) if cards else 0
        taken = 0
        if shape.cards:
            chosen = self.choose(number, shape)
            if chosen is None:
                return NEVER
            cost += chosen[0]
            taken = self.size(shape, cluster.states[cards[0]].kind)
        if weights.host:
            left = [h - w for h, w in zip(host, shape.host, strict=True)]
            cost += weights.host * (
                self._stranded(max(free_milli - taken, 0), left) - self._stranded(free_milli, host)
            )
        return cost

    def card_costs(self, shape: Shape) -> list[int]:
        """Return what one cut of the shape costs on every state of a card there is."""
        costs = shape.costs
        for card in range(len(costs), len(self.cluster.states)):
            costs.append(self._card_cost(card, shape))
        return costs

    def _card_cost(self, card: int, shape: Shape) -> int:
        """Return what one cut of the shape costs on a card in this state, NEVER if it has none."""
        state = self.cluster.states[card]
        cut = self.cut(state, shape)
        if cut is None:
            return NEVER
        kind, weights = state.kind, self.weights
        after = kind.free_milli(
            {name: left - cut.takes.get(name, 0) for name, left in state.free.items()}
        )
        return (
            cut.conceded * _CONCEDED
            + weights.fragmentation
            * (kind.fragmentation[after] - kind.fragmentation[state.free_milli])
            + weights.card * after
        )

    def size(self, shape: Shape, kind: Kind) -> int:
        """Return the thousandths of cards the shape takes in all, where cards are of this kind."""
        cut = self._cut_of_kind(kind, shape)
        if isinstance(cut, str):
            return 0
        capacity = kind.device.capacity
        free = {name: amount - cut.takes.get(name, 0) for name, amount in capacity.items()}
        return shape.cards * (kind.free_milli(capacity) - kind.free_milli(free))

    def choose(self, number: int, shape: Shape) -> tuple[int, list[int]] | None:
        """Return the cost and the positions of the cards to cut, None if too few can be."""
        states, costs = self.cluster.states, self.card_costs(shape)
        ranked = []
        for position, card in enumerate(self.cluster.cards[number]):
            if costs[card] < NEVER:
                ranked.append((costs[card], states[card].empty, position))
        if len(ranked) < shape.cards:
            return None
        chosen = [min(ranked)] if shape.cards == 1 else sorted(ranked)[: shape.cards]
        empty = self.cluster.empty[number]
        rest = empty - sum(opened for _, opened, _ in chosen)
        whole_cards = self.weights.whole_cards * (self.whole_cards[rest] - self.whole_cards[empty])
        return sum(cost for cost, _, _ in chosen) + whole_cards, [place for _, _, place in chosen]

    def _stranded(self, free_milli: int, host: list[int]) -> int:
        """Return the points of card that the node's own counters are not enough for."""
        points = free_milli * POINTS
        for rate, left in zip(self.rates, host, strict=True):
            if rate is not None:
                points = min(points, rate.covers(left))
        return free_milli * POINTS - points

    def cut(self, state: State, shape: Shape) -> Portion | None:
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

    def policy(self, device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, ...]:
        """Return what a cut costs of its device alone, by the weights: a `PlacementPolicy`."""
        kind, weights = self.cluster.kind(device), self.weights
        before = kind.free_milli(dict(free))
        after = kind.free_milli(
            {name: left - cut.takes.get(name, 0) for name, left in free.items()}
        )
        return (
            weights.fragmentation * (kind.fragmentation[after] - kind.fragmentation[before])
            + weights.card * after,
        )

    def demand(self, pod: Pod) -> int:
        """Return the thousandths of cards the pod asks for, averaged over the kinds that serve."""
        shape = self.shape(pod)
        sizes = [size for kind in self.cluster.kinds if (size := self.size(shape, kind))]
        return sum(sizes) // len(sizes) if sizes else 0

    def reason(self, number: int, shape: Shape) -> int:
        """Return the code of what a node says to a shape; `reason_name` spells it.

        Not negative is what its cards say: of several reasons always the same one.
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
        codes: list[int] = shape.codes
        request = shape.request
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

    def learn(self) -> None:
        """Draw the lesson of the pods seen so far: what pieces of cards and nodes are worth."""
        for shape in self.shapes:
            shape.costs.clear()
            shape.codes.clear()
        drawn: dict[tuple[DemandClass, ...], tuple[int, ...]] = {}
        sizes: dict[int, list[int]] = {shape.number: [] for shape in self.shapes}
        for kind in self.cluster.kinds:
            demands = list(PRIOR)
            for shape in self.shapes:
                size = self.size(shape, kind) if shape.times and shape.cards else 0
                if size:
                    each = size // shape.cards
                    sizes[shape.number].append(each)
                    demands.append(DemandClass(times=shape.times, cards=shape.cards, size=each))
            key = tuple(demands)
            kind.fragmentation = (
                drawn[key] if key in drawn else drawn.setdefault(key, fragmentation(demands))
            )
        everywhere = [
            DemandClass(times=shape.times, cards=shape.cards, size=sum(seen) // len(seen))
            for shape in self.shapes
            if (seen := sizes[shape.number])
        ]
        most = max((len(cards) for cards in self.cluster.cards), default=0)
        self.whole_cards = whole_cards((*PRIOR, *everywhere), most=most)
        points = sum(demand.times * demand.cards * demand.size for demand in everywhere) * POINTS
        self.rates = tuple(
            host_rate(points, sum(shape.times * shape.host[place] for shape in self.shapes))
            for place in range(len(self.cluster.counters))
        )
