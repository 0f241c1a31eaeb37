"""What shapes of pods cost on every node, kept up to date by the nodes that changed."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappush
from typing import Protocol

from attrs import define, field

from hetero.model import Refusal
from hetero.placement.cluster import PlacedPod, Placement
from hetero.placement.demand import Demand
from hetero.placement.node_reason import DeviceVerdict, node_reason
from hetero.placement.node_reservations import NodeReservations
from hetero.placement.place_pod import MOST_TRIES
from hetero.placement.placement_policy import Weights
from hetero.placement.price import DEAREST, NEVER, Lessons, PodProfile, Prices
from hetero.placement.state import Cluster

#: What a node that is reserved for a pod costs more, to all but that pod: more than any other.
RESERVED = 2 * DEAREST
#: Shapes whose costs are kept up to date, and changes that are remembered for them.
_MOST_ROWS, _MOST_CHANGES = 1024, 100_000
#: So many new states of cards, and it is time to forget those no card is in any more.
_MOST_STATES = 20_000
#: A pod of which more containers than a few ask is tried so often on all nodes together: 0.5 s.
_FEW, _ROW_TRIES = 4, 4 * MOST_TRIES


class PlaceOnNode(Protocol):
    """Places a pod on a node by a search."""

    def __call__(self, pod: PlacedPod, node: str, *, most: int) -> Placement | Refusal:
        """Try each device `most` times for a request."""


@define(eq=False)
class PriceRow:
    """What a shape costs on every node, as of a point in the list of changes."""

    shape: PodProfile
    #: By the node's number: NEVER where it does not fit, `RESERVED` more where it is reserved.
    costs: list[int] = field(factory=list)
    #: (cost, number) of every node it fits on, the cheapest first, among what is out of date.
    heap: list[tuple[int, int]] = field(factory=list)
    #: What nodes say that it seemed to fit on and that cannot place it, by their number.
    reasons: dict[int, DeviceVerdict] = field(factory=dict)
    upto: int = 0


class PriceRows:
    """A cluster's prices by weights, and a row for each shape of pod that was asked about lately.

    Costs follow a change of a node when the row is next asked for.
    """

    def __init__(
        self, cluster: Cluster, reservations: NodeReservations, place: PlaceOnNode
    ) -> None:
        """Start without rows; `place` is asked where a node's prices alone do not tell."""
        self.cluster = cluster
        self.kinds = {node.name: _kinds(cluster, node.name) for node in cluster.nodes}
        self._reservations = reservations
        self._place = place
        self._lessons = Lessons()
        self._prices: dict[Weights, Prices] = {}
        self._rows: dict[tuple[Weights, int], PriceRow] = {}
        self._changes: list[int] = []
        self._learned_kinds = 0
        self._most_states = _MOST_STATES

    def __len__(self) -> int:
        """Return how many rows are kept."""
        return len(self._rows)

    def prices(self, weights: Weights) -> Prices:
        """Return the prices by these weights."""
        prices = self._prices.get(weights)
        if prices is None:
            prices = self._prices[weights] = Prices(self.cluster, weights, self._lessons)
        return prices

    def changed(self, number: int) -> None:
        """Note that what a node has or has left changed."""
        self._changes.append(number)

    def reservation_changed(self, names: Iterable[str]) -> None:
        """Note that nodes were reserved or are free of it."""
        numbers = self.cluster.number
        self._changes += [numbers[name] for name in names if name in numbers]

    def node_changed(self, name: str, *, devices: int) -> bool:
        """Note what a node has now; return whether the demand has to be learned anew for it."""
        self.kinds[name] = _kinds(self.cluster, name)
        self.changed(self.cluster.number[name])
        more_devices = devices >= len(self._lessons.whole_cards)
        return more_devices or len(self.cluster.card_states.kinds) > self._learned_kinds

    @property
    def has_stale_states(self) -> bool:
        """Whether so many states of cards came that most may be forgotten."""
        return len(self.cluster.card_states.states) > self._most_states

    def learn(self, demand: Demand, weights: Weights) -> None:
        """Draw the lesson of the demand, and forget what was worked out by the last one."""
        self.cluster.compact()
        self.prices(weights).learn(demand)
        for prices in self._prices.values():
            prices.forget()
        self.clear()
        self._learned_kinds = len(self.cluster.card_states.kinds)
        self._most_states = 2 * len(self.cluster.card_states.states) + _MOST_STATES

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        self._changes.clear()

    def row(self, pod: PlacedPod, weights: Weights) -> PriceRow:
        """Return what the pod costs everywhere, with the changes since it was last asked."""
        prices = self.prices(weights)
        if len(self._changes) > _MOST_CHANGES:
            self.clear()
        shape = prices.shape(pod)
        key = (prices.weights, shape.number)
        row = self._rows.pop(key, None)
        if row is None:
            row = self._new_row(shape, prices)
            if len(self._rows) >= _MOST_ROWS:
                del self._rows[next(iter(self._rows))]
        elif row.upto < len(self._changes):
            costs, heap = row.costs, row.heap
            costs += [NEVER] * (len(self.cluster.nodes) - len(costs))
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

    def _new_row(self, shape: PodProfile, prices: Prices) -> PriceRow:
        row, cluster = PriceRow(shape), self.cluster
        searched: Iterable[int] = range(len(cluster.nodes))
        if shape.exact:
            searched = cluster.mixed if shape.want.wanted.request is not None else ()
        names = self._reservations.nodes
        reserved = (cluster.number[name] for name in names if name in cluster.number)
        # Of thousands of nodes most are alike: each kind is asked once, by any of its nodes.
        example_of = dict(zip(cluster.alike, range(len(cluster.nodes)), strict=True))
        known = {alike: prices.cost(number, shape) for alike, number in example_of.items()}
        row.costs = [known[alike] for alike in cluster.alike]
        each = {*searched, *reserved}
        # Nobody else is answered meanwhile: many nodes take no longer than few.
        most = MOST_TRIES if _asking(shape.pod) <= _FEW else _ROW_TRIES // max(1, len(each))
        for number in each:
            row.costs[number] = self._cost(number, row, prices, most=min(MOST_TRIES, max(1, most)))
        row.heap = _heap(row.costs)
        return row

    def _cost(self, number: int, row: PriceRow, prices: Prices, *, most: int = MOST_TRIES) -> int:
        """Return what the row's shape costs on a node; NEVER, and why, where it has no place."""
        cost, cluster = prices.cost(number, row.shape), self.cluster
        row.reasons.pop(number, None)
        if cost == NEVER:
            return NEVER
        name = cluster.nodes[number].name
        if not is_exact(row.shape, number, cluster):  # so far it may fit
            answer = self._place(row.shape.pod, name, most=most)
            if isinstance(answer, Refusal):
                row.reasons[number] = _reason(answer)
                return NEVER
        return cost + RESERVED if name in self._reservations.nodes else cost


def is_exact(shape: PodProfile, number: int, cluster: Cluster) -> bool:
    """Return whether a node that its cards' states say serves the shape surely does."""
    return shape.exact and (number not in cluster.mixed or shape.want.wanted.request is None)


def _asking(pod: PlacedPod) -> int:
    every = (*pod.sidecars, *pod.containers, *pod.init)
    return sum(container.request is not None for container in every)


def _heap(costs: list[int]) -> list[tuple[int, int]]:
    heap = [(cost, number) for number, cost in enumerate(costs) if cost < NEVER]
    heapify(heap)
    return heap


def _kinds(cluster: Cluster, node: str) -> frozenset[int]:
    """Return the kinds of a node's cards."""
    cards = cluster.cards[cluster.number[node]]
    return frozenset(cluster.card_states.states[card].kind.number for card in cards)


def _reason(refusal: Refusal) -> DeviceVerdict:
    """Return in a few words why a node does not serve, with numbers."""
    if refusal.missing is None and refusal.group is None:
        shortages = refusal.shortages
        reasons = ((verdict, shortages.get(verdict)) for verdict in refusal.verdicts.values())
        return node_reason(reasons, wanted=refusal.wanted)
    return f"cannot place it ({refusal.sentence})", None
