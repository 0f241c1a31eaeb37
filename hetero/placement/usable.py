"""What of a node pods like those that came could use, where pods come and go.

Where pods end, a rest that nothing fits into is made whole again, and what matters is whether a
node can still serve those that few nodes can serve. So a node is worth, for every class of pods
that it could serve now, the cards that the class could use there (the measure of Weng et al.,
USENIX ATC 2023), and a class counts by how often it came times the square root of the cards it asks
for and of how scarce the cards are that could ever serve it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isqrt

from attrs import define, field, frozen

from hetero.placement.mix import CARD_MILLI, POINTS, PRIOR
from hetero.placement.state import UNLIMITED, Cluster, State

#: Steps of `coarse` for what costs little, and the thousandths of a card at which half are used up.
#: Measured on five traces (docs/decisions/packing.md).
_STEPS, _HALF = 100, 4000


@frozen
class PodClass:
    """Pods that ask for as much: of `cards` cards `sizes` thousandths, by the kind that serves."""

    times: int
    cards: int
    sizes: Mapping[int, int]
    needs: tuple[int, ...]  # by the cluster's counters


@define(eq=False)
class Worth:
    """What nodes with cards of a kind are worth that have as much left of their host."""

    key: tuple[int, ...]  # what tells it from others
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

    def node(self, cards: tuple[int, ...], states: Sequence[State]) -> int:
        """Return the points of a node by the numbers of its cards' states."""
        points = self.nodes.get(cards)
        if points is None:
            each = [states[card] for card in cards]
            points = sum(self.card(state.free_milli) for state in each)
            points += self.empty[sum(state.empty for state in each)]
            self.nodes[cards] = points
        return points


@define(eq=False)
class _Kind:
    """The classes that a kind of card serves."""

    #: (size, cards, needs, weight) of each.
    classes: list[tuple[int, int, tuple[int, ...], int]] = field(factory=list)
    sizes: list[int] = field(factory=list)  # of those that want one card, the least first
    #: By counter: the different amounts asked for, the least first.
    amounts: list[list[int]] = field(factory=list)
    worths: dict[tuple[int, ...], Worth] = field(factory=dict)


class Usable:
    """What nodes of a cluster are worth to the classes of pods that came."""

    def __init__(self, classes: Iterable[PodClass], cluster: Cluster) -> None:
        """Weigh the classes by the cards that could serve them if all were free."""
        self.most = max((len(cards) for cards in cluster.cards), default=0)
        self.total = 0  # the weight of all classes
        self._kinds = {kind.number: _Kind() for kind in cluster.card_states.kinds}
        kinds = list(self._kinds)
        nothing = (0,) * len(cluster.counters)
        prior = (
            PodClass(
                pod_class.times, pod_class.cards, dict.fromkeys(kinds, pod_class.size), nothing
            )
            for pod_class in PRIOR
        )
        alike = _alike(cluster)
        for pod_class in (*prior, *classes):
            self._count(pod_class, alike)
        for kind in self._kinds.values():
            columns = zip(*(needs for _, _, needs, _ in kind.classes), strict=True)
            kind.sizes = sorted({size for size, cards, _, _ in kind.classes if cards == 1})
            kind.amounts = [sorted({amount for amount in some if amount}) for some in columns]

    def _count(
        self, pod_class: PodClass, alike: Mapping[tuple[int, int, tuple[int, ...]], int]
    ) -> None:
        cards = able = 0
        for (kind, many, host), nodes in alike.items():
            cards += nodes * many
            if (
                kind in pod_class.sizes
                and many >= pod_class.cards
                and _covers(host, pod_class.needs)
            ):
                able += nodes * many
        if not able:
            return
        for kind, size in pod_class.sizes.items():
            weight = pod_class.times * isqrt(pod_class.cards * size * cards // able)
            self._kinds[kind].classes.append((size, pod_class.cards, pod_class.needs, weight))
        self.total += pod_class.times * isqrt(
            pod_class.cards * sum(pod_class.sizes.values()) // len(pod_class.sizes) * cards // able
        )

    def worth(self, kind: int, host: Sequence[int]) -> Worth:
        """Return what a node with cards of a kind is worth that has this left of its host."""
        known = self._kinds[kind]
        key = (kind, *map(bisect_right, known.amounts, host))
        worth = known.worths.get(key)
        if worth is None:
            worth = known.worths[key] = self._worth(key, known, host)
        return worth

    def _worth(self, key: tuple[int, ...], kind: _Kind, host: Sequence[int]) -> Worth:
        single, several = dict.fromkeys((0, *kind.sizes), 0), [0] * (self.most + 1)
        for size, cards, needs, weight in kind.classes:
            if not _covers(host, needs):
                continue
            if cards == 1:
                single[size] += weight
            elif cards <= self.most:
                several[cards] += weight
        return Worth(
            key=key,
            sizes=kind.sizes,
            weights=list(accumulate(single.values())),
            empty=[
                many * CARD_MILLI * weight * POINTS // self.total
                for many, weight in enumerate(accumulate(several))
            ],
            total=self.total,
        )


def coarse(points: int) -> int:
    """Return a cost in steps, finer where it is small: nodes that cost alike go by their order.

    So the last nodes empty, and large pods find them whole.
    """
    return -(-_STEPS * points // (_HALF * POINTS + abs(points)))


def _covers(host: Sequence[int], needs: Sequence[int]) -> bool:
    return all(have >= need for have, need in zip(host, needs, strict=True) if need)


def _alike(cluster: Cluster) -> dict[tuple[int, int, tuple[int, ...]], int]:
    """Count the nodes by kind of card, number of such cards and host, all of it free."""
    alike: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for node, cards in zip(cluster.nodes, cluster.cards, strict=True):
        host = tuple(node.host.get(name, UNLIMITED) for name in cluster.counters)
        kinds = [cluster.card_states.states[card].kind.number for card in cards]
        for kind in set(kinds):
            key = kind, kinds.count(kind), host
            alike[key] = alike.get(key, 0) + 1
    return alike
