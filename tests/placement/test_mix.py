"""The tables behind the fragmentation-aware policy, against what can be worked out by hand."""

from hypothesis import given
from hypothesis import strategies as st

from hetero.placement.mix import (
    CARD_MILLI,
    PATIENCE,
    POINTS,
    DemandClass,
    fragmentation,
    host_rate,
    whole_cards,
)
from hetero.placement.state import UNLIMITED_AMOUNT


def demand(size: int, times: int = 1, cards: int = 1) -> DemandClass:
    return DemandClass(times=times, cards=cards, size=size)


def test_a_rest_that_nothing_fits_into_is_wasted_and_halves_are_not() -> None:
    table = fragmentation([demand(500)])

    assert 499 * POINTS == table[499]
    assert 0 == table[500]
    assert 250 * POINTS == table[750]
    assert 0 == table[1000]


def test_a_rest_that_seldom_finds_a_taker_is_mostly_wasted() -> None:
    """One pod in a hundred fits 100: with twenty offers, 18 in a hundred such rests are filled."""
    table = fragmentation([demand(1000, times=99), demand(100)])
    ever = 1 - 0.99**PATIENCE

    assert abs(100 * (1 - ever) * POINTS - table[100]) <= 1


def test_empty_cards_are_worth_most_in_the_numbers_they_are_asked_for() -> None:
    table = whole_cards([demand(1000, times=10, cards=8)], most_cards=8)

    assert [k * CARD_MILLI * POINTS for k in range(8)] == list(table[:8])
    assert 0 == table[8]


def test_a_host_rate_says_how_much_card_a_processor_comes_with() -> None:
    rate = host_rate(2000 * POINTS, 24_000)

    assert rate is not None
    assert 1000 * POINTS == 12_000 * rate.points // rate.amount
    assert host_rate(0, 5) is None
    assert host_rate(5, 0) is None


@given(st.lists(st.builds(demand, st.integers(1, 1000), st.integers(1, 50)), max_size=6))
def test_no_rest_is_worth_less_than_nothing_or_more_than_all_of_it(
    demands: list[DemandClass],
) -> None:
    table = fragmentation(demands)

    assert all(
        0 <= table[free_milli] <= free_milli * POINTS for free_milli in range(CARD_MILLI + 1)
    )


@given(st.integers(1, 1 << 60), st.integers(1, 1 << 60))
def test_a_rate_never_passes_64_bits(points: int, amount: int) -> None:
    rate = host_rate(points, amount)

    assert rate is None or rate.points * UNLIMITED_AMOUNT < 1 << 63
