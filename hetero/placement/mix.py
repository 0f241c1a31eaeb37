"""What the demand says of how much a piece of a card or of a node is worth.

The fragmentation-aware policy prices a placement by what it makes useless. Three tables say how
much that is. All are learned from the pods seen up to now (never from those to come), in exact
integers (`POINTS` to a thousandth of a card):

- `fragmentation[free_milli]`: how much of a card with `free_milli` thousandths free stays unused in
the end. The next pods that fit are drawn from the mix and fill it; with few that fit it may never
be filled.

- `whole_cards[cards]`: the same for the empty cards of one node and pods of several whole cards.

- `host`: how much of the node's own counters a thousandth of a card comes with, on average. Cards
that are left with less than that are stranded.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from attrs import frozen

CARD_MILLI = 1000  # thousandths of a card
POINTS = 16  # to a thousandth of a card
GRAIN = 16  # parts of a pod that a class's `times` counts
#: How many pods are offered to a card before its remainder counts as never used. Measured on five
#: traces: 10 to 40 pack alike, 5 costs up to half a point, 1000 (all is filled one day) up to two.
PATIENCE = 20


@frozen(kw_only=True)
class DemandClass:
    """How a class of pods counts in the mix: `times` seen, `cards` of `size` thousandths each."""

    times: int
    cards: int
    size: int


#: Before anything was seen: one pod for each of these shares of a card.
PRIOR = tuple(DemandClass(times=GRAIN, cards=1, size=size) for size in (125, 250, 500, 1000))


@frozen(kw_only=True)
class HostRate:
    """`points` of card are asked for with every `amount` of a host counter."""

    points: int
    amount: int


def fragmentation(demands: Iterable[DemandClass]) -> tuple[int, ...]:
    """Return the points of a card that stay unused, by its free thousandths from 0 to 1000."""
    weight_by_size: dict[int, int] = {}
    for demand in demands:
        if demand.cards:
            weight_by_size[demand.size] = (
                weight_by_size.get(demand.size, 0) + demand.times * demand.cards
            )
    return _fragmentation(tuple(sorted(weight_by_size.items())))


@lru_cache(maxsize=64)  # a cluster that is built anew learned the same
def _fragmentation(sizes_and_weights: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    weight_by_size = dict(sizes_and_weights)
    sizes_milli = list(weight_by_size)
    total_weight = max(sum(weight_by_size.values()), 1)
    certainty = total_weight**PATIENCE
    used_points = [0] * (CARD_MILLI + 1)
    fitting_weight = fitting_sizes = 0  # of the sizes up to `free_milli`
    for free_milli in range(1, CARD_MILLI + 1):
        if fitting_sizes < len(sizes_milli) and sizes_milli[fitting_sizes] == free_milli:
            fitting_weight += weight_by_size[free_milli]
            fitting_sizes += 1
        if not fitting_weight:
            continue
        filled_points = sum(
            weight_by_size[size_milli]
            * (size_milli * POINTS + used_points[free_milli - size_milli])
            for size_milli in sizes_milli[:fitting_sizes]
        )
        fit_chance = certainty - (total_weight - fitting_weight) ** PATIENCE
        used_points[free_milli] = filled_points * fit_chance // (fitting_weight * certainty)
    return tuple(
        free_milli * POINTS - used_points[free_milli] for free_milli in range(CARD_MILLI + 1)
    )


def whole_cards(demands: Iterable[DemandClass], *, most_cards: int) -> tuple[int, ...]:
    """Return the points that stay unused of 0, 1, … `most_cards` empty cards of one node.

    A demand counts by the cards it would fill: a pod of eight is rare but large.
    """
    weight_by_cards: dict[int, int] = {}
    for demand in demands:
        if demand.cards:
            weight = demand.times * demand.cards * demand.size
            weight_by_cards[demand.cards] = weight_by_cards.get(demand.cards, 0) + weight
    total_weight = max(sum(weight_by_cards.values()), 1)
    used_points = [0] * (most_cards + 1)
    for empty_cards in range(1, most_cards + 1):
        filled_points = sum(
            weight * (cards * CARD_MILLI * POINTS + used_points[empty_cards - cards])
            for cards, weight in weight_by_cards.items()
            if cards <= empty_cards
        )
        used_points[empty_cards] = filled_points // total_weight
    return tuple(
        empty_cards * CARD_MILLI * POINTS - used_points[empty_cards]
        for empty_cards in range(most_cards + 1)
    )


def host_rate(card_points: int, host_amount: int) -> HostRate | None:
    """Return the rate of a host counter, None while either side of it was never asked for.

    The points are shortened to 18 bits, so that products with any counter stay within 64.
    """
    shift_bits = max(card_points.bit_length() - 18, 0)
    if not card_points or not host_amount >> shift_bits:
        return None
    return HostRate(points=card_points >> shift_bits, amount=host_amount >> shift_bits)
