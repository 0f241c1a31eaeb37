"""The arithmetic of the benchmarks, on completion times made by hand."""

import pytest
from hetero_benchmarks.rates import Batch, Window, pace, percentile, share, swing


def _ended(*ends: tuple[float, int]) -> list[Batch]:
    """Batches that end then, each begun when the one before it ended."""
    begun = (0.0, *(at for at, _ in ends))
    return [Batch(0, 0, 0)] + [
        Batch(at, steps, at - since) for (at, steps), since in zip(ends, begun, strict=False)
    ]


def _steady(*, step: float, until: float) -> list[Batch]:
    return _ended(*((n * step, 1) for n in range(1, round(until / step) + 1)))


def test_a_steady_job_has_one_rate_in_every_second() -> None:
    paced = pace(_steady(step=0.1, until=6), Window(1.0, 5.0))

    assert pytest.approx(10) == paced.rate
    assert pytest.approx((10,) * 31) == paced.seconds
    assert pytest.approx((0.1, 0.1, 0.1)) == (paced.p50, paced.p99, paced.longest)


def test_steps_longer_than_a_second_are_counted_in_parts() -> None:
    paced = pace(_steady(step=1.6, until=8), Window(1.0, 7.0))

    assert pytest.approx(1 / 1.6) == paced.rate
    assert pytest.approx((1 / 1.6,) * 51) == paced.seconds


def test_what_happens_before_and_after_the_window_does_not_count() -> None:
    stalled = _ended((0.5, 900), (1, 0), (2, 10), (3, 10), (9, 1))

    paced = pace(stalled, Window(1.0, 3.0))

    assert pytest.approx(10) == paced.rate


def test_swing_is_the_slowest_and_fastest_of_any_second_in_percent_of_native() -> None:
    # Full speed from 1.5 to 2.5 only, which no second of the clock shows.
    uneven = _ended((1, 50), (1.5, 10), (2, 20), (2.5, 20), (4, 30), (5, 50))

    paced = pace(uneven, Window(1.0, 4.0))

    assert pytest.approx(80 / 3) == paced.rate
    assert pytest.approx((50, 100)) == swing(paced, 40)


def test_a_batch_of_several_steps_weighs_as_many_in_the_percentiles() -> None:
    paced = pace(_ended((1, 98), (2, 1), (3, 1)), Window(0.0, 3.0))

    assert pytest.approx(1 / 98) == paced.p50
    assert pytest.approx(1.0) == paced.p99


def test_a_job_that_rests_is_busy_for_the_time_its_steps_took() -> None:
    resting = [Batch(0, 0, 0)] + [Batch(second + 0.25, 1, 0.25) for second in range(1, 6)]

    paced = pace(resting, Window(1.0, 5.0))

    assert pytest.approx(0.25) == paced.busy
    assert pytest.approx(0.25) == paced.p99


def test_a_window_shorter_than_a_second_has_one_rate() -> None:
    paced = pace(_steady(step=0.1, until=2), Window(1.0, 1.5))

    assert () == paced.seconds
    assert pytest.approx((50, 50)) == swing(paced, 20)


def test_batches_that_do_not_cover_the_window_are_refused() -> None:
    with pytest.raises(ValueError, match="do not cover"):
        pace(_steady(step=0.1, until=4), Window(1.0, 5.0))
    with pytest.raises(ValueError, match="do not cover"):
        pace([], Window(1.0, 5.0))


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 1), (50, 2), (75, 3), (76, 4), (99, 4), (100, 4)]
)
def test_a_percentile_is_a_value_that_was_seen(percent: int, expected: float) -> None:
    assert expected == percentile([4, 2, 3, 1], percent)


def test_a_share_is_a_percentage_of_native() -> None:
    assert pytest.approx(30) == share(6.3, 21)
