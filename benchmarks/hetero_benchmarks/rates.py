"""What a job's completion times say of its speed: rates, swing and percentiles, as pure functions.

Times are seconds on one monotonic clock. Between two completions the job is taken to have advanced
evenly, so that a second holding 6.3 slow steps counts 6.3 of them and not 6 or 7.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from attrs import frozen


@frozen
class Batch:
    """`steps` steps, the last of which was complete `at` this time; they `took` so long."""

    at: float
    steps: int
    took: float


@frozen
class Window:
    """The span of time that is measured."""

    start: float
    end: float


@frozen(kw_only=True)
class Pace:
    """How a job ran in a window: steps per second, overall and in any second, and step times.

    `seconds` are the rates in the seconds that begin at every tenth of one. `busy` is the part of
    the time that its steps took; the rest it rested.
    """

    rate: float
    seconds: tuple[float, ...]
    p50: float
    p99: float
    longest: float
    busy: float


def pace(batches: Sequence[Batch], window: Window) -> Pace:
    """Return how the job ran in `window`. Raises `ValueError` where the batches do not cover it."""
    if not batches or batches[0].at > window.start or batches[-1].at < window.end:
        raise ValueError("the job's batches do not cover the measured time")
    times = [batch.at for batch in batches]
    totals = list(accumulate(batch.steps for batch in batches))

    def done(at: float) -> float:
        after = bisect_right(times, at)
        if after == len(times):
            return float(totals[-1])
        before = after - 1
        part = (at - times[before]) / (times[after] - times[before])
        return totals[before] + part * batches[after].steps

    def rate(start: float, end: float) -> float:
        return (done(end) - done(start)) / (end - start)

    length = window.end - window.start
    starts = [window.start + tenth / 10 for tenth in range(round(10 * (length - 1)) + 1)]
    inside = [batch for batch in batches if batch.at > window.start]
    inside = [batch for batch in inside if batch.at - batch.took < window.end]
    durations = [batch.took / batch.steps for batch in inside for _ in range(batch.steps)]
    return Pace(
        rate=rate(window.start, window.end),
        seconds=tuple(rate(start, start + 1) for start in starts),
        p50=percentile(durations, 50),
        p99=percentile(durations, 99),
        longest=max(durations),
        busy=sum(_overlap(batch, window) for batch in inside) / length,
    )


def _overlap(batch: Batch, window: Window) -> float:
    return min(batch.at, window.end) - max(batch.at - batch.took, window.start)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest of `values` that at least `percent` % of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def share(rate: float, native: float) -> float:
    """Return `rate` as a percentage of `native`."""
    return 100 * rate / native


def swing(pace: Pace, native: float) -> tuple[float, float]:
    """Return the slowest and the fastest second as percentages of `native`."""
    seconds = pace.seconds or (pace.rate,)
    return share(min(seconds), native), share(max(seconds), native)
