"""Values a node by what pods like those that came could use of it, where pods come and go.

Where pods end, a rest that nothing fits into is made whole again. What matters is whether a node
can still serve the classes that few nodes can serve. So a node is worth, for every class of pods
that it could serve now, the cards that the class could use there (the measure of Weng et al.,
USENIX ATC 2023). A class counts by how often it came times the square root of two factors: the
cards it asks for, and how scarce the cards are that could serve it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isqrt

from attrs import define, field, frozen

from hetero.placement.mix import CARD_MILLI, POINTS, PRIOR
from hetero.placement.state import UNLIMITED_AMOUNT, Cluster, State

#: Steps of `coarse` for what costs little, and the thousandths of a card at which half are used up.
#: Measured on five traces (docs/decisions/packing.md).
_STEPS, _HALF = 100, 4000


@frozen
class PodClass:
    """Pods of equal size: `cards` cards of `sizes` thousandths each, by the kind that serves."""

    times: int
    cards: int
    sizes: Mapping[int, int]
    needs: tuple[int, ...]  # by the cluster's counters


@define(eq=False)
class NodeValue:
    """The value of nodes with cards of one kind that have equally much left of their host."""

    key: tuple[int, ...]  # unique among all values
    #: The least sizes from which on a card is worth more, and the weights of those it can serve.
    sizes: Sequence[int]
    weights: Sequence[int]
    empty: Sequence[int]  # points by empty cards, for those that want several
    total: int  # the weight of all classes
    nodes: dict[tuple[int, ...], int] = field(factory=dict)

    def card(self, free_milli: int) -> int:
        """Return the points of a card with so many thousandths left."""
        weight = self.weights[bisect_right(self.sizes, free_milli)]
        return free_milli * weight * POINTS // self.total

    def node(self, card_states: tuple[int, ...], states: Sequence[State]) -> int:
        """Return the points of a node by the numbers of its cards' states."""
        points = self.nodes.get(card_states)
        if points is None:
            states_of_cards = [states[card] for card in card_states]
            points = sum(self.card(state.free_milli) for state in states_of_cards)
            points += self.empty[sum(state.empty for state in states_of_cards)]
            self.nodes[card_states] = points
        return points


@define(eq=False)
class _Kind:
    """The classes that a kind of card serves."""

    #: (size, cards, needs, weight) of each.
    classes: list[tuple[int, int, tuple[int, ...], int]] = field(factory=list)
    sizes: list[int] = field(factory=list)  # of those that want one card, the least first
    #: By counter: the different amounts asked for, the least first.
    amounts: list[list[int]] = field(factory=list)
    values: dict[tuple[int, ...], NodeValue] = field(factory=dict)


class NodeValues:
    """The values of nodes for the classes of pods that came."""

    def __init__(self, classes: Iterable[PodClass], cluster: Cluster) -> None:
        """Weigh the classes by the cards that could serve them if all were free."""
        self.most = max((len(card_states) for card_states in cluster.cards), default=0)
        self.total = 0  # the weight of all classes
        self._kinds = {kind.kind_number: _Kind() for kind in cluster.card_states.kinds}
        kind_numbers = list(self._kinds)
        no_needs = (0,) * len(cluster.counters)
        prior = (
            PodClass(
                pod_class.times,
                pod_class.cards,
                dict.fromkeys(kind_numbers, pod_class.size),
                no_needs,
            )
            for pod_class in PRIOR
        )
        node_counts = _alike(cluster)
        for pod_class in (*prior, *classes):
            self._count(pod_class, node_counts)
        for kind in self._kinds.values():
            needs_by_counter = zip(*(needs for _, _, needs, _ in kind.classes), strict=True)
            kind.sizes = sorted(
                {size for size, card_states, _, _ in kind.classes if card_states == 1}
            )
            kind.amounts = [
                sorted({amount for amount in amounts if amount}) for amounts in needs_by_counter
            ]

    def _count(
        self, pod_class: PodClass, node_counts: Mapping[tuple[int, int, tuple[int, ...]], int]
    ) -> None:
        card_count = able_cards = 0
        for (kind_number, cards, host_amounts), node_count in node_counts.items():
            card_count += node_count * cards
            if (
                kind_number in pod_class.sizes
                and cards >= pod_class.cards
                and _covers(host_amounts, pod_class.needs)
            ):
                able_cards += node_count * cards
        if not able_cards:
            return
        for kind_number, size in pod_class.sizes.items():
            weight = pod_class.times * isqrt(pod_class.cards * size * card_count // able_cards)
            self._kinds[kind_number].classes.append(
                (size, pod_class.cards, pod_class.needs, weight)
            )
        sizes = pod_class.sizes
        self.total += pod_class.times * isqrt(
            pod_class.cards * sum(sizes.values()) // len(sizes) * card_count // able_cards
        )

    def value(self, kind_number: int, host_free: Sequence[int]) -> NodeValue:
        """Return the value of nodes with cards of a kind and with so much left of their host."""
        kind = self._kinds[kind_number]
        value_key = (kind_number, *map(bisect_right, kind.amounts, host_free))
        node_value = kind.values.get(value_key)
        if node_value is None:
            node_value = kind.values[value_key] = self._value(value_key, kind, host_free)
        return node_value

    def _value(
        self, value_key: tuple[int, ...], kind: _Kind, host_free: Sequence[int]
    ) -> NodeValue:
        weight_by_size = dict.fromkeys((0, *kind.sizes), 0)
        weight_by_cards = [0] * (self.most + 1)
        for size_milli, card_count, host_needs, weight in kind.classes:
            if not _covers(host_free, host_needs):
                continue
            if card_count == 1:
                weight_by_size[size_milli] += weight
            elif card_count <= self.most:
                weight_by_cards[card_count] += weight
        return NodeValue(
            key=value_key,
            sizes=kind.sizes,
            weights=list(accumulate(weight_by_size.values())),
            empty=[
                card_count * CARD_MILLI * weight * POINTS // self.total
                for card_count, weight in enumerate(accumulate(weight_by_cards))
            ],
            total=self.total,
        )


def coarse(points: int) -> int:
    """Return a cost in steps, finer where it is small.

    So nodes of nearly equal cost are taken in their order: the last nodes empty, and large pods
    find them whole.
    """
    return -(-_STEPS * points // (_HALF * POINTS + abs(points)))


def _covers(host_free: Sequence[int], host_needs: Sequence[int]) -> bool:
    return all(amount >= need for amount, need in zip(host_free, host_needs, strict=True) if need)


def _alike(cluster: Cluster) -> dict[tuple[int, int, tuple[int, ...]], int]:
    """Count the nodes by kind of card, number of such cards and host, all of it free."""
    node_counts: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for node, card_states in zip(cluster.nodes, cluster.cards, strict=True):
        host_amounts = tuple(
            node.host.get(counter, UNLIMITED_AMOUNT) for counter in cluster.counters
        )
        kind_numbers = [
            cluster.card_states.states[state_number].kind.kind_number
            for state_number in card_states
        ]
        for kind_number in set(kind_numbers):
            node_key = kind_number, kind_numbers.count(kind_number), host_amounts
            node_counts[node_key] = node_counts.get(node_key, 0) + 1
    return node_counts
