"""Fits the row of limiters/timeshare/power_models.c to what power.py measured.

It imports nothing of hetero, so that it runs wherever there is NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy
from attrs import evolve, frozen
from numpy.typing import NDArray

Floats = NDArray[numpy.float64]

#: When a program kept the card busy, in milliseconds of the monotonic clock, and its launches.
TimeSlice = tuple[float, float, int]
#: When the driver sampled the card's power, in milliseconds, and the watts.
Samples = tuple[Floats, Floats]

#: A clock nearer to its maximum than this was not lowered by the power limit.
FULL_CLOCK = 0.99
#: The filter forgets within so many of its time constants.
CONSTANTS = 8
#: How many lateness steps the limiter tries, from none on (POWER_DELAYS in power.h).
DELAYS = 12


@frozen(kw_only=True)
class Meter:
    """How the driver samples power: every `period_ms`, so late, through a low-pass filter."""

    period_ms: int
    constant_ms: float
    late_ms: int

    @property
    def forgotten(self) -> float:
        """What the filter forgets of its state in a millisecond."""
        return 1 - math.exp(-1 / self.constant_ms)


@frozen(kw_only=True)
class Drawn:
    """Watts of a card while it rests, what a program adds, and what that leaves unexplained."""

    idle_w: float
    drawn_w: float
    error_w: float


@frozen(kw_only=True)
class Point:
    """What one program had of the card for one part of the time."""

    program: str
    duty: float
    drawn_w: float
    mean_w: float
    clock: float  # of its maximum
    speed: float  # steps a second of its slices


@frozen(kw_only=True)
class Beside:
    """What lowered clocks do to a program that itself wants less power than there is."""

    program: str
    speed: float  # of its speed at full clocks
    clock: float

    @property
    def exponent(self) -> float | None:
        """The power of the clock that its speed is; None: the clock was not lowered."""
        return math.log(self.speed) / math.log(self.clock) if self.clock < FULL_CLOCK else None


@frozen(kw_only=True)
class Slowdown:
    """1 + linear * x + square * x^2, x being what is wanted beyond what there is."""

    linear: float
    square: float
    error: float

    def at(self, ratio: float) -> float:
        """Return the slowdown of a program that wants so much of what there is."""
        return 1 + self.linear * (ratio - 1) + self.square * (ratio - 1) ** 2


def explain(
    slices: Sequence[TimeSlice], samples: Samples, meter: Meter, *, idle_w: float | None = None
) -> Drawn:
    """Fit what a card draws in slices, and at rest unless that is known, to samples of its power.

    By least squares, as limiters/timeshare/power.c does.
    """
    stamps, watts = samples
    busy = _filtered(_activity(slices), meter.forgotten)
    late = meter.late_ms + math.floor(slices[0][0])
    at = (_on_beat(stamps, meter.period_ms) - late).astype(int)
    kept = (at > CONSTANTS * meter.constant_ms) & (at < len(busy))
    active, above = busy[at[kept]], watts[kept]
    if idle_w is None:
        columns = numpy.stack([numpy.ones(len(active)), active], axis=1)
        idle_w = float(numpy.linalg.lstsq(columns, above, rcond=None)[0][0])
    above = above - idle_w
    drawn = float(active @ above / (active @ active))
    error = float(numpy.sqrt(numpy.mean((above - drawn * active) ** 2)))
    return Drawn(idle_w=idle_w, drawn_w=drawn, error_w=error)


def find_meter(slices: Sequence[TimeSlice], samples: Samples) -> tuple[Meter, Drawn]:
    """Return the meter that explains the samples best: of slices of random lengths."""
    period = round(float(numpy.median(numpy.diff(samples[0]))))
    meter = Meter(period_ms=period, constant_ms=10, late_ms=0)
    for _ in range(5):  # one after the other, until both agree
        lates = [evolve(meter, late_ms=late) for late in range(48)]
        meter = min(lates, key=lambda each: explain(slices, samples, each).error_w)
        constants = [evolve(meter, constant_ms=1.15**step) for step in range(40)]
        meter = min(constants, key=lambda each: explain(slices, samples, each).error_w)
    fine = [evolve(meter, constant_ms=meter.constant_ms * (1 + s / 100)) for s in range(-14, 15, 2)]
    meter = min(fine, key=lambda each: explain(slices, samples, each).error_w)
    return meter, explain(slices, samples, meter)


def fit_slowdown(points: Sequence[Point], available_w: float) -> Slowdown:
    """Fit how much faster than alone programs ran in slices to what they drew in those."""
    limited = list(slowed(points, available_w))
    x = numpy.array([ratio - 1 for ratio, _ in limited])
    columns = numpy.stack([x, x**2], axis=1)
    faster = numpy.array([speed for _, speed in limited])
    linear, square = numpy.linalg.lstsq(columns, faster - 1, rcond=None)[0]
    left = faster - 1 - columns @ [linear, square]
    error = float(numpy.sqrt(numpy.mean(left**2)))
    return Slowdown(linear=float(linear), square=float(square), error=error)


def slowed(points: Sequence[Point], available_w: float) -> list[tuple[float, float]]:
    """Return what was wanted of what there is, and the speed in slices of the speed alone."""
    alone = {point.program: point for point in points if point.duty == 1}
    return [
        (point.drawn_w / available_w, point.speed / alone[point.program].speed)
        for point in points
        if point.duty < 1
        and point.drawn_w > available_w
        and alone[point.program].clock < FULL_CLOCK
    ]


def held_at_limit(points: Sequence[Point], limit_w: float) -> float:
    """Return the part of its limit that a card draws on average when the limit holds it."""
    held = [p.mean_w / limit_w for p in points if p.duty == 1 and p.clock < FULL_CLOCK]
    return sum(held) / len(held) if held else 1.0


def row(
    device: str,
    comment: str,
    *,
    meter: Meter,
    idle: float,
    held: float,
    slowdown: Slowdown,
    light_programs: Sequence[Beside],
    switching: float | None,
) -> str:
    """Return the row of power_models.c.

    `idle` and `held` are parts of the power limit; `switching` is the part of the card that
    processes at once lose to the driver's going over from one to another, None if not measured.
    """
    exponents = [each.exponent for each in light_programs if each.exponent is not None]
    unknown = _eighths(sum(exponents) / len(exponents)) if exponents else 0
    fields: Mapping[str, object] = {
        "device": f'"{device}"',
        # As far as two H200s drew less and more than the fit of both.
        "idle_least": math.floor(1000 * idle - 10),
        "idle_most": math.ceil(1000 * idle + 5),
        "held": f"{held:.2f}",
        "period_ms": meter.period_ms,
        "forgotten": f"{meter.forgotten:.4f}",
        "memory_ms": 10 * math.ceil(CONSTANTS * meter.constant_ms / 10),
        "late_step_ms": max(2, math.ceil(meter.late_ms * 1.5 / DELAYS)),
        "slowdown": f"{{{slowdown.linear:.3f}, {slowdown.square:.3f}}}",
        # The slope of the slowdown a little beyond what there is.
        "at_limit": _eighths(slowdown.linear + 0.2 * slowdown.square),
        "unknown": unknown,
        "least": max(unknown, *map(_eighths, exponents)) if exponents else 0,
        "switching": round((1 - switching) / switching) if switching and switching > 0 else 0,
    }
    lines = "".join(f"        .{name} = {value},\n" for name, value in fields.items())
    return f"    /* {comment} */\n    {{\n{lines}    }},\n"


def _eighths(value: float) -> int:
    return max(0, round(value * 8))


def _activity(slices: Sequence[TimeSlice]) -> Floats:
    """Return how much of each millisecond since the one of the first slice's begin was a slice."""
    first = math.floor(slices[0][0])
    busy = numpy.zeros(int(slices[-1][1] - first) + 2)
    for start, end, _ in slices:
        at, until = start - first, end - first
        while at < until:
            after = min(math.floor(at) + 1.0, until)
            busy[int(at)] += after - at
            at = after
    return numpy.minimum(busy, 1)


def _filtered(busy: Floats, forgotten: float) -> Floats:
    state, out = 0.0, []
    for value in busy.tolist():
        state += forgotten * (value - state)
        out.append(state)
    return numpy.array(out)


def _on_beat(stamps: Floats, period_ms: int) -> Floats:
    """Move stamps to the beat that most of them are on, as limiters/timeshare/power.c does."""
    beat = int(numpy.bincount(stamps.astype(int) % period_ms, minlength=period_ms).argmax())
    return (stamps + 2 - beat) // period_ms * period_ms + beat
