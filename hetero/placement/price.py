"""What a placement costs on every node, by the weights and by what was learned of the demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import define, field

from hetero.model import FITS, NOT_CHOSEN, Device, Templated
from hetero.model.rounding import Portion
from hetero.placement.cluster import PlacedContainer, PlacedPod
from hetero.placement.demand import Demand, RequestClass, wanted
from hetero.placement.mix import (
    POINTS,
    PRIOR,
    DemandClass,
    fragmentation,
    host_rate,
    whole_cards,
)
from hetero.placement.node_reason import DeviceVerdict, node_reason
from hetero.placement.offer import cut_of, obstacle, offer, shortage
from hetero.placement.placement_policy import Weights
from hetero.placement.state import Cluster, Kind, State
from hetero.placement.usable import PodClass, Usable, Worth, coarse

#: What every placement costs less than: sums of a node's devices stay below it.
DEAREST = 1 << 50
#: A cost no placement has: the pod does not fit. Above what a node reservation adds (`price_rows`).
NEVER = 4 * DEAREST
#: Shapes kept in mind; beyond it they are met anew.
_MOST_SHAPES = 4096
#: What one step of `Portion.conceded` costs: more than all else of a node by any weights. Those of
#: a node's devices stay below DEAREST.
_CONCEDED = 1 << 42
_END = PlacedContainer()  # parts one group of a pod's containers from the next


@define(eq=False)
class Want:
    """What pods want of a node's devices, with what was worked out for it."""

    wanted: RequestClass
    #: The cut each kind of card would give, by the kind's number; a verdict where it gives none.
    cuts: dict[int, Portion | str] = field(factory=dict)
    #: The thousandths of cards it takes in all, by the kind's number.
    sizes: dict[int, int] = field(factory=dict)
    #: What one cut of it costs, by a card's state.
    costs: list[int] = field(factory=list)
    #: What cards say to it, by their state.
    verdicts: list[DeviceVerdict] = field(factory=list)
    #: What it costs of a node's cards, and what they say, by the states they are in.
    nodes: dict[tuple[int, ...], int] = field(factory=dict)
    #: Where pods come and go: what a cut leaves of a card, by its state (and what it concedes); and
    #: what it costs of a node, by its cards' states and its worth before and after.
    left: list[tuple[int, int] | None] = field(factory=list)
    losses: dict[tuple[tuple[int, ...], ...], int] = field(factory=dict)
    reasons: dict[tuple[int, ...], DeviceVerdict] = field(factory=dict)


@define(eq=False)
class PodProfile:
    """What alike pods have in common: what they want of the devices and of the host.

    `exact` says that a node whose cards' states have room has a place; else it takes a search.
    """

    number: int
    pod: PlacedPod
    exact: bool
    want: Want
    host: tuple[int, ...]


@define(eq=False)
class Lessons:
    """What was learned of the demand: what pieces of cards and of nodes are worth."""

    whole_cards: tuple[int, ...] = ()  # by the empty cards of a node
    #: The place of a host's counter, and the points of card asked for with every amount of it.
    rates: tuple[tuple[int, int, int], ...] = ()
    usable: Usable | None = None  # where pods come and go


class Prices:
    """Shapes of pods and what each costs on every node of a cluster."""

    def __init__(self, cluster: Cluster, weights: Weights, lessons: Lessons) -> None:
        """Price by `weights` and by lessons that others may share."""
        self.cluster = cluster
        self.weights = weights
        self.lessons = lessons
        self._shapes: dict[object, PodProfile] = {}
        self._wants: dict[RequestClass, Want] = {}
        self._made = 0
        # One decision asks several times.
        self._last: tuple[PlacedPod | None, PodProfile | None] = None, None

    def shape(self, pod: PlacedPod) -> PodProfile:
        """Return the shape of a pod, a new one if none was like it."""
        last, known = self._last
        if known is not None and last is pod:
            return known
        key = tuple(
            [
                (container.request, *container.host.items())
                for group in (pod.containers, pod.init, pod.sidecars)
                for container in (*group, _END)
            ]
        )
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
                self._wants.clear()
            host, request_class = pod.host(), wanted(pod)
            shape = self._shapes[key] = PodProfile(
                number=self._made,
                pod=pod,
                exact=request_class.plain
                and not (request_class.request and request_class.request.co_tenancy),
                want=self.want(request_class),
                host=tuple(host.get(name, 0) for name in self.cluster.counters),
            )
            self._made += 1
        self._last = pod, shape
        return shape

    def want(self, request_class: RequestClass) -> Want:
        """Return what is known of something wanted."""
        return self._wants.setdefault(request_class, Want(request_class))

    def forget(self) -> None:
        """Note that the lessons or the numbers of states changed."""
        for want in self._wants.values():
            want.costs.clear()
            want.verdicts.clear()
            want.nodes.clear()
            want.left.clear()
            want.losses.clear()
            want.reasons.clear()

    # --- what it costs --------------------------------------------------------------------------

    def cost(self, number: int, shape: PodProfile) -> int:
        """Return what the shape costs on a node by the weights; NEVER if it does not fit."""
        cluster, want = self.cluster, shape.want
        if cluster.nodes[number].cordoned:
            return NEVER
        for have, need in zip(cluster.host[number], shape.host, strict=True):
            if need and have < need:
                return NEVER
        usable = self.usable
        if usable is not None:
            return self._loss(number, shape, usable)
        cost = 0
        states, weights = cluster.states_of[number], self.weights
        if want.wanted.cards:
            known = want.nodes.get(states)
            if known is None:
                chosen = self._choose(states, want)
                known = want.nodes[states] = NEVER if chosen is None else chosen[0]
            if known == NEVER:
                return NEVER
            cost = known
        if weights.node and states:
            cost += weights.node * cluster.free_milli[number] // len(states)
        if weights.host:
            cost += weights.host * self._stranded_by(number, shape)
        return cost

    @property
    def usable(self) -> Usable | None:
        """What nodes are worth to pods that come and go, if they do and it is weighed."""
        return self.lessons.usable if self.weights.usable else None

    def _loss(self, number: int, shape: PodProfile, usable: Usable) -> int:
        """Return by how much less a node serves with the shape on it, in steps."""
        cluster, want = self.cluster, shape.want
        states = cluster.states_of[number]
        if want.nodes.get(states) == NEVER:  # quick: most nodes of a full cluster
            return NEVER
        if not states:
            return NEVER if want.wanted.cards else 0
        kind, host = cluster.card_states.states[states[0]].kind, cluster.host[number]
        before = usable.worth(kind.number, host)
        after = usable.worth(kind.number, _without(host, shape.host))
        key = (states, before.key, after.key)
        known = want.losses.get(key)
        if known is None:
            known = want.losses[key] = self._loss_of(states, want, before, after)
            if known == NEVER:
                want.nodes[states] = NEVER
        return known

    def _loss_of(self, states: tuple[int, ...], want: Want, before: Worth, after: Worth) -> int:
        all_states, conceded, cost, size = self.cluster.card_states.states, 0, 0, 0
        if want.wanted.cards:
            chosen = self._choose(states, want, after)
            if chosen is None:
                return NEVER
            conceded, cost = divmod(chosen[0], _CONCEDED)
            size = self.size(want, all_states[states[0]].kind)
        cost += before.node(states, all_states) - after.node(states, all_states)
        return conceded * _CONCEDED + coarse(cost - size * POINTS)

    def _stranded_by(self, number: int, shape: PodProfile) -> int:
        """Return the points of card for which the node's own counters fall short by the shape.

        Most of the time of a decision is spent here: no calls, one loop for before and after.
        """
        cluster = self.cluster
        before = after = cluster.free_milli[number] * POINTS
        if shape.want.wanted.cards:
            kind = cluster.card_states.states[cluster.states_of[number][0]].kind
            after = max(after - self.size(shape.want, kind) * POINTS, 0)
        served, still = before, after
        host, needs = cluster.host[number], shape.host
        for place, points, amount in self.lessons.rates:
            covered = host[place] * points // amount
            served = min(served, max(covered, 0))
            covered = (host[place] - needs[place]) * points // amount
            still = min(still, max(covered, 0))
        return (after - still) - (before - served)

    def choose(self, number: int, shape: PodProfile) -> list[int]:
        """Return the positions of the cards to cut on a node; none if too few can be."""
        cluster, usable, worth = self.cluster, self.usable, None
        cards = cluster.cards[number]
        if usable is not None and cards:
            kind = cluster.card_states.states[cluster.states_of[number][0]].kind
            worth = usable.worth(kind.number, _without(cluster.host[number], shape.host))
        chosen = self._choose(cards, shape.want, worth)
        return chosen[1] if chosen else []

    def _choose(
        self, cards: Sequence[int], want: Want, worth: Worth | None = None
    ) -> tuple[int, list[int]] | None:
        """Return the cost and the positions of the cards to cut, None if too few can be.

        `cards` are the states of a node's cards; `worth` is what the node is worth afterwards.
        """
        states, many = self.cluster.card_states.states, want.wanted.cards
        empty = sum(states[card].empty for card in cards)
        costs: Mapping[int, int] | list[int]
        if worth is None:
            costs, opening = self._card_costs(want), 0
        else:
            costs = self._card_losses(cards, want, worth)
            opening = worth.empty[empty] - worth.empty[max(empty - 1, 0)]
        ranked = [
            (costs[card] + states[card].empty * opening, states[card].empty, position)
            for position, card in enumerate(cards)
            if costs[card] < NEVER
        ]
        if len(ranked) < many:
            return None
        chosen = [min(ranked)] if many == 1 else sorted(ranked)[:many]
        opened = sum(is_empty for _, is_empty, _ in chosen)
        cost = sum(cost for cost, _, _ in chosen) - opened * opening
        if worth is None:
            table = self.lessons.whole_cards
            cost += self.weights.whole_cards * (table[empty - opened] - table[empty])
        else:
            cost += worth.empty[empty] - worth.empty[empty - opened]
        return cost, [place for _, _, place in chosen]

    def _card_losses(self, cards: Sequence[int], want: Want, worth: Worth) -> dict[int, int]:
        """Return what one cut of it takes of the worth of each of the cards, by their state."""
        states, left = self.cluster.card_states.states, want.left
        for state in states[len(left) :]:
            cut = self.cut(state, want)
            if cut is None:
                left.append(None)
                continue
            free = {name: have - cut.takes.get(name, 0) for name, have in state.free.items()}
            left.append((cut.downgrade * _CONCEDED, state.kind.free_milli(free)))
        losses = {}
        for card in set(cards):
            after = left[card]
            losses[card] = (
                NEVER
                if after is None
                else after[0] + worth.card(states[card].free_milli) - worth.card(after[1])
            )
        return losses

    def _card_costs(self, want: Want) -> list[int]:
        """Return what one cut of it costs on every state of a card there is."""
        costs = want.costs
        for state in self.cluster.card_states.states[len(costs) :]:
            cut = self.cut(state, want)
            free = state.free
            if cut is None:
                costs.append(NEVER)
            else:
                cost, *_ = self.policy(state.kind.device, free, cut)
                costs.append(cut.downgrade * _CONCEDED + cost)
        return costs

    def policy(self, device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, ...]:
        """Return what a cut costs of its device alone, by the weights: a `PlacementPolicy`."""
        kind, weights = self.cluster.card_states.kind(device), self.weights
        before = kind.free_milli(free)
        after = kind.free_milli(
            {name: left - cut.takes.get(name, 0) for name, left in free.items()}
        )
        return (
            weights.fragmentation * (kind.fragmentation[after] - kind.fragmentation[before])
            + weights.card * after,
        )

    # --- what is cut ----------------------------------------------------------------------------

    def size(self, want: Want, kind: Kind) -> int:
        """Return the thousandths of cards it takes in all, where cards are of this kind."""
        size = want.sizes.get(kind.number)
        if size is None:
            cut, capacity = self._cut_of_kind(kind, want), kind.device.capacity
            takes = {} if isinstance(cut, str) else cut.takes
            free = {name: amount - takes.get(name, 0) for name, amount in capacity.items()}
            each = kind.free_milli(capacity) - kind.free_milli(free)
            size = want.sizes[kind.number] = want.wanted.cards * each
        return size

    def demand(self, pod: PlacedPod) -> int:
        """Return the thousandths of cards the pod asks for, averaged over the kinds that serve."""
        return self._mean_size(self.shape(pod).want)

    def mean_size(self, wanted: RequestClass) -> int:
        """Return the thousandths of cards a class takes, averaged over the kinds that serve it."""
        return self._mean_size(Want(wanted))

    def _mean_size(self, want: Want) -> int:
        sizes = [size for kind in self.cluster.card_states.kinds if (size := self.size(want, kind))]
        return sum(sizes) // len(sizes) if sizes else 0

    def cut(self, state: State, want: Want) -> Portion | None:
        """Return what a card in this state gives, None if nothing."""
        kind, request = state.kind, want.wanted.request
        if request is None:
            return None
        if isinstance(kind.device.granularity, Templated):  # which template depends on what is free
            cut = cut_of(kind.device, request.asks[0], request, state.free)
        else:
            cut = self._cut_of_kind(kind, want)
        if isinstance(cut, str) or obstacle(kind.device, cut, request, state.free):
            return None
        return cut

    def _cut_of_kind(self, kind: Kind, want: Want) -> Portion | str:
        """Return what an empty card of the kind gives, or why it does not."""
        cut = want.cuts.get(kind.number)
        if cut is None:
            request = want.wanted.request
            cut = (
                NOT_CHOSEN
                if request is None
                else cut_of(kind.device, request.asks[0], request, kind.device.capacity)
            )
            want.cuts[kind.number] = cut
        return cut

    # --- why not --------------------------------------------------------------------------------

    def reason(self, number: int, shape: PodProfile) -> DeviceVerdict:
        """Return what a node says to a shape that does not fit on it, with the numbers of it."""
        cluster, want = self.cluster, shape.want
        if cluster.nodes[number].cordoned:
            return "cordoned", None
        for place, need in enumerate(shape.host):
            if need and cluster.host[number][place] < need:
                return f"lack host {cluster.counters[place]}", None
        states = cluster.states_of[number]
        if states not in want.reasons:
            verdicts = self._verdicts(want)
            want.reasons[states] = node_reason(
                (verdicts[card] for card in states), wanted=want.wanted.cards
            )
        return want.reasons[states]

    def _verdicts(self, want: Want) -> list[DeviceVerdict]:
        """Return what a card says, by its state."""
        verdicts, request = want.verdicts, want.wanted.request
        for state in self.cluster.card_states.states[len(verdicts) :]:
            if request is None:
                verdicts.append((FITS, None))
                continue
            device, ask = state.kind.device, request.asks[0]
            offered = offer(device, ask, request, state.free)
            verdicts.append(
                (offered, shortage(device, ask, request, state.free))
                if isinstance(offered, str)
                else (FITS, None)
            )
        return verdicts

    # --- what is learned ------------------------------------------------------------------------

    def learn(self, demand: Demand) -> None:
        """Draw the lesson of the pods seen so far: what pieces of cards and nodes are worth."""
        seen = [(self.want(one), times) for one, times in demand.times()]
        drawn: dict[tuple[DemandClass, ...], tuple[int, ...]] = {}
        sizes: list[list[int]] = [[] for _ in seen]
        for kind in self.cluster.card_states.kinds:
            demands = list(PRIOR)
            for place, (want, times) in enumerate(seen):
                each = self.size(want, kind) // want.wanted.cards
                if each:
                    sizes[place].append(each)
                    demands.append(DemandClass(times=times, cards=want.wanted.cards, size=each))
            key = tuple(demands)
            kind.fragmentation = (
                drawn[key] if key in drawn else drawn.setdefault(key, fragmentation(demands))
            )
        everywhere = [
            DemandClass(times=times, cards=want.wanted.cards, size=sum(some) // len(some))
            for (want, times), some in zip(seen, sizes, strict=True)
            if some
        ]
        most = max((len(cards) for cards in self.cluster.cards), default=0)
        self.lessons.whole_cards = whole_cards((*PRIOR, *everywhere), most=most)
        points = sum(one.times * one.cards * one.size for one in everywhere) * POINTS
        rates = (host_rate(points, demand.asked(name)) for name in self.cluster.counters)
        self.lessons.rates = tuple(
            (place, rate.points, rate.amount) for place, rate in enumerate(rates) if rate
        )
        self.lessons.usable = (
            Usable(self._pod_classes(demand), self.cluster) if demand.pods_end else None
        )

    def _pod_classes(self, demand: Demand) -> Iterator[PodClass]:
        for request_class, needs, times in demand.pods():
            want, host = self.want(request_class), dict(needs)
            sizes = {
                kind.number: size // request_class.cards
                for kind in self.cluster.card_states.kinds
                if (size := self.size(want, kind))
            }
            if sizes:
                needed = tuple(host.get(name, 0) for name in self.cluster.counters)
                yield PodClass(times, request_class.cards, sizes, needed)


def _without(host: Sequence[int], needs: Sequence[int]) -> list[int]:
    return [have - need for have, need in zip(host, needs, strict=True)]
