"""Every rounding rule, with numbers from the vendors' published tables (source beside each)."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Ask,
    Device,
    Fractional,
    Granularity,
    Ladder,
    MultiDevice,
    Step,
    Template,
    Templated,
    Whole,
)
from hetero.model.rounding import Portion, portion, round_up
from hetero.model.units import GiB, MiB
from hetero.testing import rack


def card(memory: int, granularity: Granularity, *, core: int = 100, slots: int = 10) -> Device:
    (device,) = rack(memory, granularity=granularity, core=core, slots=slots)
    return device


def cut(device: Device, ask: Ask, *, count: int = 1) -> Portion:
    amounts = portion(device, ask, count=count, free=device.capacity)
    assert amounts is not None
    return amounts


def menu(*shapes: tuple[str, int, int]) -> tuple[Template, ...]:
    return tuple(Template(name, {MEMORY: mib * MiB, CORE: core}) for name, mib, core in shapes)


# What is asked throughout is 30 % of a card's core and 3000 MiB of its memory.
ASK = Ask(memory=3000 * MiB, core=30)

PERCENT_AND_MIB = Fractional(Step(MiB), Step(1))  # NVIDIA and Hygon: any MiB, any percent
STEPS_OF_256 = Fractional(
    Step(256 * MiB), Step(1), MultiDevice.WHOLE
)  # Cambricon and Iluvatar units
# Moore Threads S4000: 16 core groups, memory in {2,4,8,16,32,64,96} units of 512 MiB.
S4000 = Fractional(
    Ladder(tuple(units * 512 * MiB for units in (2, 4, 8, 16, 32, 64, 96))),
    Step(1),
    MultiDevice.WHOLE,
)
# Ascend templates as MindCluster and HAMi list them (memory in MiB, AI cores).
A910B3 = Templated(menu(("vir05_1c_16g", 16384, 5), ("vir10_3c_32g", 32768, 10)))
A910B2 = Templated(
    menu(("vir03_1c_8g", 8192, 3), ("vir06_1c_16g", 16384, 6), ("vir12_3c_32g", 32768, 12))
)
A310P3 = Templated(menu(("vir01", 3072, 1), ("vir02", 6144, 2), ("vir04", 12288, 4)))


def test_3000_mib_stay_3000_mib_where_any_mib_will_do() -> None:
    got = cut(card(80 * GiB, PERCENT_AND_MIB), ASK)

    assert {MEMORY: 3000 * MiB, CORE: 30, SLOTS: 1} == got.takes
    assert 30 == got.core_limit_units


def test_3000_mib_become_3072_in_steps_of_256() -> None:
    got = cut(card(48 * GiB, STEPS_OF_256), ASK)

    assert {MEMORY: 3072 * MiB, CORE: 30, SLOTS: 1} == got.takes


def test_30_percent_of_16_core_groups_are_5_and_3000_mib_climb_the_ladder_to_4096() -> None:
    got = cut(card(48 * GiB, S4000, core=16, slots=16), ASK)

    assert {MEMORY: 4096 * MiB, CORE: 5, SLOTS: 1} == got.takes
    assert 5 == got.core_limit_units


@pytest.mark.parametrize(
    ("memory", "core", "granularity", "template", "takes"),
    [
        (65536, 20, A910B3, "vir10_3c_32g", {MEMORY: 32768 * MiB, CORE: 10, SLOTS: 1}),
        (65536, 24, A910B2, "vir12_3c_32g", {MEMORY: 32768 * MiB, CORE: 12, SLOTS: 1}),
        (21527, 8, A310P3, "vir04", {MEMORY: 12288 * MiB, CORE: 4, SLOTS: 1}),
    ],
    ids=["910B3", "910B2", "310P3"],
)
def test_30_percent_and_3000_mib_take_the_smallest_template_that_has_both(
    memory: int, core: int, granularity: Granularity, template: str, takes: dict[str, int]
) -> None:
    got = cut(card(memory * MiB, granularity, core=core, slots=7), ASK)

    assert template == got.template
    assert takes == got.takes
    assert got.core_limit_units is None  # the shape itself is the limit


def test_a_whole_card_vendor_gives_the_whole_card() -> None:
    device = card(64 * GiB, Whole(), slots=1)

    assert device.capacity == cut(device, ASK).takes


def test_a_size_just_above_a_template_takes_the_next() -> None:
    device = card(65536 * MiB, A910B3, core=20, slots=4)

    assert "vir05_1c_16g" == cut(device, Ask(memory=16384 * MiB)).template
    assert "vir10_3c_32g" == cut(device, Ask(memory=16384 * MiB + 1)).template


def test_above_the_largest_template_is_the_whole_card() -> None:
    device = card(65536 * MiB, A910B3, core=20, slots=4)
    got = cut(device, Ask(memory=32769 * MiB))

    assert (None, device.capacity) == (got.template, got.takes)


def test_more_core_than_the_largest_template_has_is_the_whole_card() -> None:
    device = card(65536 * MiB, A910B3, core=20, slots=4)

    assert "vir10_3c_32g" == cut(device, Ask(memory=GiB, core=50)).template
    for percent in (51, 80, 100):
        assert device.capacity == cut(device, Ask(memory=GiB, core=percent)).takes


def test_core_that_is_not_asked_comes_with_the_smallest_template_for_the_memory() -> None:
    device = card(65536 * MiB, A910B3, core=20, slots=4)

    assert "vir05_1c_16g" == cut(device, Ask(memory=3000 * MiB)).template


def test_a_menu_in_any_order_gives_the_smallest_shape_that_covers_both() -> None:
    both = Templated(menu(("large", 32768, 4), ("small", 16384, 2)))
    device = card(64 * GiB, both, core=8, slots=4)

    assert "small" == cut(device, Ask(memory=GiB, core=25)).template
    assert "large" == cut(device, Ask(memory=GiB, core=26)).template


def test_memory_above_the_card_has_no_portion() -> None:
    for granularity in (Whole(), PERCENT_AND_MIB, S4000, A910B3):
        device = card(48 * GiB, granularity, core=16)
        ask = Ask(memory=48 * GiB + 1)

        assert portion(device, ask, count=1, free=device.capacity) is None


def test_core_above_a_ladders_top_is_all_of_the_core_and_never_none() -> None:
    device = card(80 * GiB, Fractional(core=Ladder((10, 25, 50))))
    got = cut(device, Ask(memory=GiB, core=80))

    assert {MEMORY: GiB, CORE: 100, SLOTS: 10} == got.takes


def test_above_a_ladders_top_is_all_of_the_card() -> None:
    device = card(80 * GiB, S4000, core=16, slots=16)  # a larger card than the ladder was made for
    got = cut(device, Ask(memory=49 * GiB))

    assert device.capacity == got.takes


def test_a_percentage_of_memory_rounds_up_to_the_grain() -> None:
    device = card(48 * GiB + MiB, STEPS_OF_256)

    # 10 % is 4915.3 MiB, which takes 20 steps of 256.
    assert 5120 * MiB == cut(device, Ask(memory_percent=10)).takes[MEMORY]


def test_the_last_step_of_a_card_is_what_is_left_of_it() -> None:
    device = card(21527 * MiB, STEPS_OF_256)
    got = cut(device, Ask(memory=21510 * MiB))

    assert device.capacity == got.takes


def test_one_percent_of_core_is_never_rounded_to_none() -> None:
    device = card(48 * GiB, S4000, core=16)

    assert 1 == cut(device, Ask(memory=GiB, core=1)).takes[CORE]


def test_memory_unset_takes_the_card_for_itself() -> None:
    device = card(80 * GiB, PERCENT_AND_MIB)
    got = cut(device, Ask(core=30))

    assert {MEMORY: 80 * GiB, CORE: 30, SLOTS: 10} == got.takes
    assert 30 == got.core_limit_units


def test_core_100_takes_the_card_for_itself_and_is_no_limit() -> None:
    got = cut(card(80 * GiB, PERCENT_AND_MIB), Ask(memory=GiB, core=100))

    assert {MEMORY: GiB, CORE: 100, SLOTS: 10} == got.takes
    assert got.core_limit_units is None


def test_core_unset_is_no_limit_and_takes_no_core() -> None:
    got = cut(card(80 * GiB, PERCENT_AND_MIB), Ask(memory=GiB))

    assert {MEMORY: GiB, CORE: 0, SLOTS: 1} == got.takes
    assert got.core_limit_units is None


def test_several_cards_stay_shares_or_become_whole_as_declared() -> None:
    shares, whole = card(48 * GiB, PERCENT_AND_MIB), card(48 * GiB, STEPS_OF_256)
    templated = card(64 * GiB, A910B3, core=20, slots=4)

    assert 3000 * MiB == cut(shares, ASK, count=2).takes[MEMORY]
    assert whole.capacity == cut(whole, ASK, count=2).takes
    assert templated.capacity == cut(templated, ASK, count=2).takes


def test_percentages_are_of_the_card_itself_where_the_node_promises_more_than_it_has() -> None:
    once = card(80 * GiB, PERCENT_AND_MIB)
    twice = evolve(once, capacity={CORE: 200, MEMORY: 160 * GiB, SLOTS: 10}, card=once.capacity)

    half, full = cut(twice, Ask(memory_percent=50, core=50)), cut(twice, Ask(memory=GiB, core=100))

    assert {MEMORY: 40 * GiB, CORE: 50, SLOTS: 1} == half.takes
    assert {MEMORY: GiB, CORE: 100, SLOTS: 10} == full.takes


# --- a card that is partitioned already and only comes in parts --------------------------------


def parts(*sizes: tuple[str, int, int]) -> Device:
    shapes = tuple(
        Template(name, {MEMORY: gib * GiB, CORE: core, f"part-{i}": 1}, part=f"part-{i}")
        for i, (name, gib, core) in enumerate(sizes)
    )
    device = card(141 * GiB, Templated(shapes, whole=False), core=7, slots=len(shapes))
    return evolve(device, capacity={**device.capacity, **{str(s.part): 1 for s in shapes}})


def test_memory_unset_is_the_largest_part_that_covers_the_core() -> None:
    device = parts(("1g", 18, 1), ("2g", 35, 2))

    assert "2g" == cut(device, Ask()).template
    assert "2g" == cut(device, Ask(core=10)).template
    assert portion(device, Ask(core=30), count=1, free=device.capacity) is None


def test_more_than_the_largest_part_has_no_portion_even_when_the_card_is_larger() -> None:
    device = parts(("1g", 18, 1), ("2g", 35, 2))

    assert portion(device, Ask(memory=36 * GiB), count=1, free=device.capacity) is None
    assert portion(device, Ask(memory_percent=100), count=1, free=device.capacity) is None


def test_a_card_with_no_parts_gives_nothing() -> None:
    device = parts()

    assert portion(device, Ask(), count=1, free=device.capacity) is None


def test_of_equal_parts_the_one_still_free_is_taken() -> None:
    device = parts(("1g", 18, 1), ("1g", 18, 1))
    got = portion(device, Ask(memory=GiB), count=1, free={**device.capacity, "part-0": 0})

    assert got is not None
    assert "part-1" == got.part


# --- properties --------------------------------------------------------------------------------

grains = st.one_of(
    st.integers(1, 4 * GiB).map(Step),
    st.lists(st.integers(1, 96 * GiB), min_size=1).map(lambda sizes: Ladder(tuple(sizes))),
)


@given(st.integers(1, 100 * GiB), grains)
def test_a_rounded_size_covers_the_asked_and_is_the_smallest_that_does(
    size: int, grain: Step | Ladder
) -> None:
    got = round_up(size, grain)

    match grain:
        case Step(of):
            assert got is not None
            assert (True, 0) == (size <= got < size + of, got % of)
        case Ladder(sizes):
            assert min((s for s in sizes if s >= size), default=None) == got


@given(
    granularity=st.sampled_from([Whole(), PERCENT_AND_MIB, STEPS_OF_256, S4000]),
    memory=st.integers(1, 96 * GiB),
    core=st.none() | st.integers(1, 100),
    total=st.integers(1, 96 * GiB),
    units=st.sampled_from([8, 16, 100]),
    count=st.integers(1, 3),
)
def test_a_portion_is_never_less_than_asked_nor_more_than_the_card(
    granularity: Granularity, memory: int, core: int | None, total: int, units: int, count: int
) -> None:
    device = card(total, granularity, core=units)
    ask = Ask(memory=memory, core=core)
    got = portion(device, ask, count=count, free=device.capacity)

    if got is None:
        assert memory > total
        return
    assert memory <= got.takes[MEMORY]
    assert units * (core or 0) <= got.takes[CORE] * 100
    assert all(amount <= device.capacity[name] for name, amount in got.takes.items())


@given(st.integers(2, 64), st.integers(1, 96 * GiB), st.sampled_from([8, 16, 60, 100, 120]))
def test_equal_parts_of_a_card_that_cuts_core_with_memory_all_fit(
    parts: int, total: int, units: int
) -> None:
    device = card(total, Fractional(Step(1), together=True), core=units, slots=parts)
    got = cut(device, Ask(memory=max(total // parts, 1)))

    assert 1 <= got.takes[CORE]
    assert got.takes[CORE] * parts <= units or got.takes[CORE] == 1 or total < parts


def test_core_that_is_named_is_given_whatever_comes_with_the_memory() -> None:
    device = card(64 * GiB, Fractional(together=True))

    assert 90 == cut(device, Ask(memory=GiB, core=90)).takes[CORE]
    assert 25 == cut(device, Ask(memory=16 * GiB)).takes[CORE]
    assert 25 == cut(device, Ask(memory=16 * GiB)).core_limit_units


def test_a_step_below_one_and_an_empty_ladder_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="a step is at least 1"):
        Step(0)
    with pytest.raises(ValueError, match="at least one positive size"):
        Ladder(())


def test_a_template_that_does_not_say_its_core_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="'half' takes core and memory"):
        Template("half", {MEMORY: GiB})


# --- the same rule as Kubernetes' -----------------------------------------------------------------


def kubernetes(asked: int, *, least: int, step: int, most: int) -> int | None:
    """What a DRA request policy's validRange (resource.k8s.io, min, step, max) makes of a request.

    Below min it is min; else it is rounded up to the next min + n * step; above max it is refused.
    """
    if asked <= least:
        return least
    rounded = least + (asked - least + step - 1) // step * step
    return rounded if rounded <= most else None


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4096))
def test_a_step_rounds_as_a_request_policy_with_equal_min_and_step(
    step: int, steps: int, asked: int
) -> None:
    most = step * steps
    expected = kubernetes(asked, least=step, step=step, most=most)
    (device,) = rack(most, granularity=Fractional(memory=Step(step)))
    got = portion(device, Ask(memory=asked), count=1, free=device.capacity)

    assert expected == (None if got is None else got.takes[MEMORY])


@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 30), st.integers(1, 4096))
def test_a_ladder_rounds_as_a_request_policy_with_any_min_and_step(
    least: int, step: int, steps: int, asked: int
) -> None:
    most = least + step * steps
    ladder = Ladder(tuple(range(least, most + 1, step)))

    assert kubernetes(asked, least=least, step=step, most=most) == round_up(asked, ladder)
