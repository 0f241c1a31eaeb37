"""The fit of a card model's power row finds the figures that a simulated card was made of."""

import random
from collections.abc import Iterator

import numpy
import pytest
from hetero_benchmarks import power_fit
from hetero_benchmarks.power_fit import Beside, Meter, Point, Samples, Slowdown, TimeSlice


def slices_of(seed: int) -> Iterator[TimeSlice]:
    draw = random.Random(seed)
    at = 1000.25
    for _ in range(300):
        end = at + draw.uniform(3, 30)
        yield at, end, 10
        at = end + draw.uniform(3, 60)


def sampled(slices: list[TimeSlice], *, idle_w: float, drawn_w: float, meter: Meter) -> Samples:
    """Return what a card that is metered so tells of these slices."""
    state, stamps, watts, which = 0.0, [], [], 0
    for ms in range(1000, int(slices[-1][1])):
        while slices[which][1] < ms:
            which += 1
        busy = max(0.0, min(slices[which][1], ms + 1) - max(slices[which][0], ms))
        state += meter.forgotten * (busy - state)
        if ms % meter.period_ms == 7:
            stamps.append(ms + meter.late_ms)
            watts.append(idle_w + drawn_w * state)
    return numpy.array(stamps, float), numpy.array(watts)


@pytest.mark.parametrize(("constant_ms", "late_ms"), [(12.5, 4), (40.0, 10), (5.0, 0)])
def test_the_meter_that_took_the_samples_is_found(constant_ms: float, late_ms: int) -> None:
    slices = list(slices_of(1))
    true = Meter(period_ms=20, constant_ms=constant_ms, late_ms=late_ms)
    meter, drawn = power_fit.find_meter(
        slices, sampled(slices, idle_w=121, drawn_w=438, meter=true)
    )
    assert meter.period_ms == 20
    assert meter.late_ms == late_ms
    assert meter.constant_ms == pytest.approx(constant_ms, rel=0.05)
    assert drawn.idle_w == pytest.approx(121, abs=3)
    assert drawn.drawn_w == pytest.approx(438, rel=0.02)
    assert drawn.error_w < 10


def test_the_slowdown_is_told_by_the_programs_that_the_limit_slows() -> None:
    points = [
        Point(program="free", duty=1, drawn_w=0, mean_w=400, clock=1, speed=50),
        Point(program="free", duty=0.3, drawn_w=600, mean_w=300, clock=1, speed=50),
        Point(program="held", duty=1, drawn_w=0, mean_w=686, clock=0.75, speed=100),
    ]
    for duty, ratio in ((0.3, 1.47), (0.6, 1.3), (0.9, 1.1), (0.95, 0.99)):
        x = max(ratio - 1, 0)
        speed = 100 * (1 + 0.317 * x + 0.148 * x * x)
        drawn = ratio * 560
        points.append(
            Point(program="held", duty=duty, drawn_w=drawn, mean_w=600, clock=1, speed=speed)
        )
    slowdown = power_fit.fit_slowdown(points, 560)
    assert slowdown.linear == pytest.approx(0.317, abs=1e-6)
    assert slowdown.square == pytest.approx(0.148, abs=1e-6)
    assert power_fit.held_at_limit(points, 700) == pytest.approx(0.98)


def test_a_row_is_ready_to_paste() -> None:
    row = power_fit.row(
        "NVIDIA H200",
        "benchmarks/power.py, 2026-11-21, driver 580.159.04.",
        meter=Meter(period_ms=20, constant_ms=12.5, late_ms=4),
        idle=0.18,
        held=0.98,
        slowdown=Slowdown(linear=0.317, square=0.148, error=0.002),
        light_programs=[
            Beside(program="copies", speed=1.0, clock=0.8),
            Beside(program="cycles", speed=0.715, clock=0.8),
            Beside(program="at full clocks", speed=0.9, clock=1.0),
        ],
        switching=1 - 1872 / 2004,
    )
    assert '.device = "NVIDIA H200"' in row
    for field in (
        "idle_least = 170",
        "idle_most = 185",
        "held = 0.98",
        "period_ms = 20",
        "forgotten = 0.0769",
        "memory_ms = 100",
        "late_step_ms = 2",
        "slowdown = {0.317, 0.148}",
        "at_limit = 3",
        "unknown = 6",
        "least = 12",
        "switching = 14",
    ):
        assert f".{field},\n" in row
