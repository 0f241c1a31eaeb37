"""Device time past a limiter is seen within a minute, and nobody is suspected who keeps to it."""

import random
from collections.abc import Mapping

import pytest
from attrs import evolve

from hetero.node.view.device_time import SHORTEST_WINDOW_S, WINDOW_S, Sample, overuse

#: Seconds between samples, as `bypass.PERIOD`.
PERIOD = 3.0


def samples(
    worked: Mapping[str, float],
    charged: Mapping[str, float],
    *,
    busy: float = 1.0,
    seconds: float = WINDOW_S,
    noise: float = 0.0,
    silent: float = 0.0,
    seed: int = 0,
) -> list[Sample]:
    """Return samples at a device, of which each grant's one process works and is charged a part.

    `noise` is how far a sample is off at most, `silent` how often there is none.
    """
    chance = random.Random(seed)
    return [
        Sample(
            sampled_at_s=PERIOD * number,
            busy_part=busy,
            worked_parts={
                (grant, 100): min(max(part + chance.uniform(-noise, noise), 0.0), 1.0)
                for grant, part in worked.items()
                if chance.random() >= silent
            },
            charged_s={grant: part * PERIOD * number for grant, part in charged.items()},
        )
        for number in range(int(seconds / PERIOD) + 1)
    ]


def names(samples: list[Sample], shares: Mapping[str, float]) -> list[str]:
    return [one.grant for one in overuse(samples, shares)]


def test_a_program_without_a_limiter_is_seen_beside_one_that_keeps_to_its_share() -> None:
    # The driver gives both contexts turns while the neighbour's time slice is.
    overusers = overuse(
        samples({"liar": 0.5, "kept": 0.3}, {"liar": 0.0, "kept": 0.6}), {"liar": 0.1, "kept": 0.6}
    )

    (overuser,) = overusers
    assert ("liar", 100) == (overuser.grant, overuser.pid)
    assert overuser.part == pytest.approx(0.5)


def test_it_is_seen_within_a_minute_of_its_start() -> None:
    shares = {"liar": 0.1, "kept": 0.6}
    before = samples({"kept": 0.6}, {"liar": 0.0, "kept": 0.6}, busy=0.6)
    for number in range(1, 20):
        at = before[-1].sampled_at_s + PERIOD
        charged = {"liar": 0.0, "kept": before[-1].charged_s["kept"] + 0.6 * PERIOD}
        worked = {("kept", 100): 0.3, ("liar", 100): 0.5}
        before = [
            *before[1:],
            Sample(sampled_at_s=at, busy_part=1.0, worked_parts=worked, charged_s=charged),
        ]
        if overuse(before, shares):
            print(f"seen after {number * PERIOD:.0f} s of 60")
            assert number * PERIOD < 60
            return
    raise AssertionError("it was not seen")


def test_a_tenant_that_writes_itself_the_charges_is_seen_by_what_its_neighbour_lacks() -> None:
    shares = {"liar": 0.1, "kept": 0.6}

    assert ["liar"] == names(
        samples({"liar": 0.5, "kept": 0.3}, {"liar": 0.5, "kept": 0.6}), shares
    )


def test_charges_that_fall_are_none() -> None:
    seen = samples({"liar": 0.6, "kept": 0.3}, {"liar": -0.2, "kept": 0.6})

    assert ["liar"] == names(seen, {"liar": 0.1, "kept": 0.6})


def test_what_runs_alone_past_its_limiter_is_seen_by_what_the_device_did() -> None:
    assert ["liar"] == names(samples({"liar": 0.96}, {"liar": 0.0}), {"liar": 0.3})


LOOPS = {"one": 0.13, "other": 0.13}


def test_light_programs_are_not_suspected_for_what_the_driver_says_of_two_of_them() -> None:
    """Two loops of 5 us each 50 us on an H100 (docs/decisions/busy-time.md)."""
    sampled = samples({"one": 0.56, "other": 0.42}, LOOPS, busy=0.99)
    light = [evolve(each, light_s=each.charged_s) for each in sampled]

    assert [] == names(light, dict.fromkeys(LOOPS, 0.25))
    assert ["one", "other"] == names(sampled, dict.fromkeys(LOOPS, 0.25))


def test_one_that_says_it_is_light_is_seen_by_what_its_neighbour_lacks() -> None:
    sampled = samples({"liar": 0.5, "kept": 0.3}, {"liar": 0.05, "kept": 0.6})
    light = [evolve(each, light_s={"liar": each.charged_s["liar"]}) for each in sampled]

    assert ["liar"] == names(light, {"liar": 0.1, "kept": 0.6})


@pytest.mark.parametrize(
    ("worked", "charged", "shares"),
    [
        # about what docs/decisions/device-time.md's table has of honest programs side by side
        ((0.608, 0.444), (0.456, 0.44), (0.5, 0.5)),
        ((0.276, 0.628), (0.31, 0.56), (0.5, 0.5)),
        ((0.11, 0.808), (0.2, 0.80), (0.2, 0.8)),
        ((0.04, 0.831), (0.25, 0.74), (0.25, 0.75)),
        ((0.06, 0.07), (0.25, 0.25), (0.25, 0.25)),
        # an elastic grant that others leave the device to
        ((0.95, 0.0), (0.95, 0.0), (1.0, 0.3)),
        # credit of an earlier time, above the share
        ((0.78, 0.2), (0.8, 0.2), (0.6, 0.3)),
    ],
)
def test_no_honest_program_is_suspected(
    worked: tuple[float, float], charged: tuple[float, float], shares: tuple[float, float]
) -> None:
    pair = ("one", "other")
    for seed in range(200):
        seen = samples(
            dict(zip(pair, worked, strict=True)),
            dict(zip(pair, charged, strict=True)),
            busy=min(sum(worked), 1.0),
            noise=0.2,
            silent=0.2,
            seed=seed,
        )
        assert [] == names(seen, dict(zip(pair, shares, strict=True))), seed


def test_nothing_is_said_before_the_mean_is_worth_something() -> None:
    seen = samples({"liar": 1.0}, {"liar": 0.0}, seconds=SHORTEST_WINDOW_S - PERIOD)

    assert () == overuse(seen, {"liar": 0.1})
    assert () == overuse([], {})
