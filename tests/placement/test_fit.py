"""What is admitted, what is refused and in which words: the rules that need no machine."""

from collections.abc import Sequence
from itertools import permutations

import pytest
from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Device,
    Fractional,
    Inventory,
    MultiDevice,
    Refusal,
    Request,
    Selector,
    Template,
    Templated,
)
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB
from hetero.placement import fit
from hetero.placement.placement_policy import binpack, spread
from hetero.testing import rack


def asking(**ask: object) -> Request:
    return Request(asks=(Ask(**ask),))  # type: ignore[arg-type]


def admit(devices: Sequence[Device], *requests: Request) -> Inventory:
    """Return the inventory with every request standing on it; each must fit."""
    inventory = Inventory(tuple(devices))
    for request in requests:
        got = fit(inventory, request)
        assert isinstance(got, Allocation), got
        inventory = evolve(inventory, standing=(*inventory.standing, got))
    return inventory


def refused(inventory: Inventory | Sequence[Device], request: Request) -> str:
    if not isinstance(inventory, Inventory):
        inventory = Inventory(tuple(inventory))
    got = fit(inventory, request)
    assert isinstance(got, Refusal), got
    return got.sentence


def granted(inventory: Inventory | Sequence[Device], request: Request) -> list[str]:
    if not isinstance(inventory, Inventory):
        inventory = Inventory(tuple(inventory))
    got = fit(inventory, request)
    assert isinstance(got, Allocation), got
    return [grant.device for grant in got.pieces]


# --- one device ----------------------------------------------------------------------------------


def test_memory_above_the_card_is_refused() -> None:
    assert "0 of 1 device: 1 too small (33 GiB wanted, largest 32)" == refused(
        rack(32 * GiB), asking(memory=33 * GiB)
    )


def test_less_than_a_context_takes_is_refused_where_contexts_count() -> None:
    """The second card's limiter charges none."""
    cards = [
        evolve(device, attributes=attributes)
        for device, attributes in zip(
            rack(GiB, GiB),
            ({"context": str(518 * MiB)}, {"context": "uncharged"}),
            strict=True,
        )
    ]
    sentence = "too little for a context (518 MiB wanted, the driver's context alone takes 518 MiB)"

    assert f"0 of 1 device: 1 {sentence}" == refused(cards[:1], asking(memory=518 * MiB))
    assert [cards[0].uuid] == granted(cards[:1], asking(memory=519 * MiB))
    assert [cards[1].uuid] == granted(cards, asking(memory=518 * MiB))


@pytest.mark.parametrize("core", [0, 101, 110, -1])
def test_core_out_of_range_is_refused_before_anything_is_looked_at(core: int) -> None:
    with pytest.raises(BadInput, match=f"core {core} is out of range: it is 1 to 100 percent"):
        asking(memory=GiB, core=core)


def test_memory_in_both_spellings_at_once_is_refused() -> None:
    with pytest.raises(BadInput, match="in bytes and in percent: give one of them"):
        asking(memory=GiB, memory_percent=50)


def test_a_request_for_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one device"):
        Request(asks=())


def test_the_sum_of_memory_never_passes_the_card() -> None:
    full = admit(rack(32 * GiB), asking(memory=20 * GiB), asking(memory=12 * GiB - MiB))

    assert ["memory-0"] == granted(full, asking(memory=MiB))
    assert "0 of 1 device: 1 lack memory (2 MiB wanted, largest free 1)" == refused(
        full, asking(memory=MiB + 1)
    )


def test_the_sum_of_core_never_passes_the_card() -> None:
    full = admit(rack(32 * GiB), asking(memory=GiB, core=60), asking(memory=GiB, core=30))

    assert ["memory-0"] == granted(full, asking(memory=GiB, core=10))
    assert "0 of 1 device: 1 lack core (11 % wanted, largest free 10)" == refused(
        full, asking(memory=GiB, core=11)
    )


def test_core_unset_is_refused_once_all_core_is_promised() -> None:
    full = admit(rack(32 * GiB), asking(memory=GiB, core=60), asking(memory=GiB, core=40))

    assert "0 of 1 device: 1 lack core" == refused(full, asking(memory=GiB))


def test_core_100_wants_the_card_for_itself_and_keeps_it() -> None:
    shared = admit(rack(32 * GiB), asking(memory=GiB, core=1))
    alone = admit(rack(32 * GiB), asking(memory=GiB, core=100))

    assert "0 of 1 device: 1 lack core (100 % wanted, largest free 99)" == refused(
        shared, asking(memory=GiB, core=100)
    )
    assert "0 of 1 device: 1 lack slots (1 wanted, largest free 0)" == refused(
        alone, asking(memory=GiB)
    )
    assert "0 of 1 device: 1 lack core (1 % wanted, largest free 0)" == refused(
        alone, asking(memory=GiB, core=1)
    )


def test_all_of_the_memory_wants_the_card_for_itself_and_keeps_it() -> None:
    for whole in (asking(), asking(memory=32 * GiB), asking(memory_percent=100)):
        shared = admit(rack(32 * GiB), asking(memory=GiB))
        alone = admit(rack(32 * GiB), whole)

        assert "0 of 1 device: 1 not empty (32 GiB wanted, largest free 31)" == refused(
            shared, whole
        )
        assert "0 of 1 device: 1 lack memory (1 MiB wanted, largest free 0)" == refused(
            alone, asking(memory=MiB, core=1)
        )


def test_slots_are_counted() -> None:
    full = admit(rack(32 * GiB, slots=3), *[asking(memory=GiB, core=1)] * 3)

    assert "0 of 1 device: 1 lack slots (1 wanted, largest free 0)" == refused(
        full, asking(memory=GiB, core=1)
    )


def test_an_unhealthy_card_is_given_to_nobody_and_says_why() -> None:
    devices = rack(32 * GiB, health="row remap pending")

    assert "0 of 1 device: 1 unhealthy (row remap pending)" == refused(devices, asking(memory=GiB))


def test_a_card_whose_health_nobody_tells_is_given_out() -> None:
    assert ["memory-0"] == granted(rack(32 * GiB, health=None), asking(memory=GiB))


def test_a_standing_grant_on_a_card_that_is_gone_hinders_nobody() -> None:
    before = admit(rack(32 * GiB, 16 * GiB), asking(memory=20 * GiB))
    after = evolve(before, devices=before.devices[1:])

    assert ["memory-1"] == granted(after, asking(memory=16 * GiB))


# --- several devices -----------------------------------------------------------------------------


def test_two_devices_are_two_cards_and_never_two_shares_of_one() -> None:
    two = Request(asks=(Ask(memory=GiB, core=10),) * 2)

    assert "1 of 1 device fits (2 needed)" == refused(rack(32 * GiB), two)
    assert ["memory-0", "memory-1"] == sorted(granted(rack(32 * GiB, 32 * GiB), two))


def test_a_failure_on_the_third_gives_nothing_at_all() -> None:
    devices = rack(32 * GiB, 32 * GiB, 16 * GiB)
    three = Request(asks=(Ask(memory=20 * GiB),) * 3)

    assert "2 of 3 devices fit (3 needed): 1 too small (20 GiB wanted, largest 16)" == refused(
        devices, three
    )


def test_uneven_shares_land_on_the_cards_they_name() -> None:
    uneven = Request(
        asks=(
            Ask(device="1", memory=8192 * MiB, core=50),
            Ask(device="memory-0", memory=3276 * MiB, core=10),
        )
    )
    got = fit(Inventory(rack(32 * GiB, 32 * GiB)), uneven)

    assert isinstance(got, Allocation)
    assert [("memory-1", 8192 * MiB, 50), ("memory-0", 3276 * MiB, 10)] == [
        (grant.device, grant.takes[MEMORY], grant.core) for grant in got.pieces
    ]


def test_a_small_ask_moves_off_the_large_card_when_a_large_ask_needs_it() -> None:
    devices = rack(80 * GiB, 24 * GiB, 16 * GiB)
    asks = (Ask(memory=10 * GiB), Ask(memory=20 * GiB), Ask(memory=70 * GiB))

    for policy in permutations(asks):
        got = granted(devices, Request(asks=policy))
        assert {10 * GiB: "memory-2", 20 * GiB: "memory-1", 70 * GiB: "memory-0"} == {
            ask.memory: uuid for ask, uuid in zip(policy, got, strict=True)
        }


def test_the_devices_of_one_request_are_of_one_vendor() -> None:
    mixed = [*rack(32 * GiB, vendor="one"), *rack(32 * GiB, 32 * GiB, vendor="two")]
    two = Request(asks=(Ask(memory=GiB),) * 2)

    assert ["two-0", "two-1"] == sorted(granted(mixed, two))


# --- choosing ------------------------------------------------------------------------------------

MIXED = (
    *rack(80 * GiB, vendor="one", model="Alpha 80"),
    *rack(48 * GiB, vendor="two", model="Beta 48"),
    *rack(24 * GiB, 24 * GiB, vendor="three", model="Gamma 24"),
)


@pytest.mark.parametrize(
    ("choice", "uuids"),
    [
        ({"vendor": Selector(("two",))}, {"two-0"}),
        ({"vendor": Selector(("TWO", "one"))}, {"two-0", "one-0"}),
        ({"vendor": Selector((), ("three",))}, {"one-0", "two-0"}),
        ({"model": Selector(("gamma",))}, {"three-0", "three-1"}),
        ({"model": Selector(("80", "48"), ("beta",))}, {"one-0"}),
        ({"uuid": Selector(("three-1",))}, {"three-1"}),
        ({"vendor": Selector(("three",)), "uuid": Selector((), ("three-0",))}, {"three-1"}),
    ],
)
def test_only_what_was_chosen_and_nothing_avoided_is_given(
    choice: dict[str, Selector], uuids: set[str]
) -> None:
    got = set()
    for policy in permutations(MIXED):
        got |= set(granted(policy, Request(asks=(Ask(memory=GiB),), **choice)))  # type: ignore[arg-type]

    assert got <= uuids
    assert len(got) >= 1


def test_a_part_of_a_vendors_name_is_not_its_name() -> None:
    request = Request(asks=(Ask(memory=GiB),), vendor=Selector(("thre",)))

    assert "0 of 4 devices: 4 not chosen" == refused(MIXED, request)


def test_any_card_with_room_serves_and_the_refusal_counts_what_the_others_lack() -> None:
    assert ["two-0"] == granted(MIXED, asking(memory=30 * GiB))

    full = admit(MIXED, asking(memory=80 * GiB), asking(memory=40 * GiB, core=100))
    lack = (
        "2 three too small (30 GiB wanted, largest 24), "
        "1 one lack memory (30 GiB wanted, largest free 0), "
        "1 two lack memory (30 GiB wanted, largest free 8)"
    )
    assert f"0 of 4 devices: {lack}" == refused(full, asking(memory=30 * GiB))


@pytest.mark.parametrize(
    ("asks", "sentence"),
    [
        (["7"], "no device '7' here: `hetero inventory` lists those there are"),
        (["nine"], "no device 'nine' here: `hetero inventory` lists those there are"),
        (["three"], "device 'three' names 2 devices: give more of its UUID"),
        (["0", "one-0"], "device 'one-0' is named twice: each ask needs a device of its own"),
    ],
)
def test_a_device_that_was_named_and_cannot_be_meant_is_said_so(
    asks: list[str], sentence: str
) -> None:
    request = Request(asks=tuple(Ask(device=name, memory=GiB) for name in asks))

    assert sentence == refused(MIXED, request)


def test_a_uuid_is_understood_by_its_start_whatever_its_case() -> None:
    assert ["three-1"] == granted(MIXED, asking(device="THREE-1", memory=GiB))


def test_a_whole_uuid_means_that_card_though_anothers_begins_so() -> None:
    (card,) = rack(GiB)
    longer, whole = evolve(card, uuid="GPU-10"), evolve(card, uuid="GPU-1")

    assert ["GPU-1"] == granted([longer, whole], asking(device="gpu-1", memory=MiB))
    assert "device 'gpu-' names 2 devices: give more of its UUID" == refused(
        [longer, whole], asking(device="gpu-", memory=MiB)
    )


def test_a_card_is_named_by_its_vendor_and_its_drivers_index() -> None:
    assert ["three-1"] == granted(MIXED, asking(device="three:1", memory=GiB))
    assert "no device 'three:2' here: `hetero inventory` lists those there are" == refused(
        MIXED, asking(device="three:2", memory=GiB)
    )


# --- placement policies --------------------------------------------------------------------------


def test_binpack_fills_the_fuller_card_and_spread_takes_the_emptier() -> None:
    used = admit(rack(32 * GiB, 32 * GiB), asking(device="1", memory=8 * GiB, core=20))
    request = asking(memory=GiB, core=10)
    packed, apart = fit(used, request, policy=binpack), fit(used, request, policy=spread)

    assert isinstance(packed, Allocation)
    assert isinstance(apart, Allocation)
    assert ("memory-1", "memory-0") == (packed.pieces[0].device, apart.pieces[0].device)


def test_a_small_request_leaves_the_large_card_whole() -> None:
    assert ["memory-1"] == granted(rack(80 * GiB, 24 * GiB), asking(memory=8 * GiB))


# --- cards that come in shapes -------------------------------------------------------------------


def test_instances_are_given_smallest_first_each_once_and_the_fifth_request_is_refused() -> None:
    sizes = [("1g.18gb", 18, 1)] * 3 + [("2g.35gb", 35, 2)]
    menu = tuple(
        Template(name, {MEMORY: gib * GiB, CORE: core, name: 1, f"part-{i}": 1}, f"part-{i}")
        for i, (name, gib, core) in enumerate(sizes)
    )
    (device,) = rack(141 * GiB, granularity=Templated(menu, whole=False), core=7, slots=4)
    parts = {f"part-{i}": 1 for i in range(4)}
    device = evolve(device, capacity={**device.capacity, "1g.18gb": 3, "2g.35gb": 1, **parts})

    full = admit([device], *[asking(memory=10 * GiB)] * 4)

    assert ["part-0", "part-1", "part-2", "part-3"] == [
        allocation.pieces[0].part for allocation in full.standing
    ]
    assert "0 of 1 device: 1 lack 1g.18gb (1 wanted, largest free 0)" == refused(
        full, asking(memory=10 * GiB)
    )
    assert "0 of 1 device: 1 lack 2g.35gb (1 wanted, largest free 0)" == refused(
        full, asking(memory=20 * GiB)
    )
    assert "0 of 1 device: 1 too small (36 GiB wanted, largest part 35)" == refused(
        full, asking(memory=36 * GiB)
    )
    begun = admit([device], asking(memory=10 * GiB))
    # Of 141 GiB no instance has what is in none.
    left = "not empty (141 GiB wanted, largest free 71)"
    assert f"0 of 1 device: 1 {left}" == refused(begun, evolve(asking(), exclusive=True))


def test_the_fifth_10_gib_on_a_card_of_four_templates_is_refused_for_memory() -> None:
    menu = (
        Template("vir05_1c_16g", {MEMORY: 16384 * MiB, CORE: 5, "aicpu": 1}),
        Template("vir10_3c_32g", {MEMORY: 32768 * MiB, CORE: 10, "aicpu": 3}),
    )
    (device,) = rack(65536 * MiB, granularity=Templated(menu), core=20, slots=4)
    device = evolve(device, capacity={**device.capacity, "aicpu": 7})

    full = admit([device], *[asking(memory=10 * GiB)] * 4)

    assert "0 of 1 device: 1 lack memory (16 GiB wanted, largest free 0)" == refused(
        full, asking(memory=10 * GiB)
    )


def test_the_eighth_small_template_is_refused_for_what_runs_out_first() -> None:
    # Ascend 310P3: 21527 MiB to give, 8 AI cores, 7 AI CPUs; vir01 takes 3072 MiB, 1 and 1.
    menu = (Template("vir01", {MEMORY: 3072 * MiB, CORE: 1, "aicpu": 1}),)
    (device,) = rack(21527 * MiB, granularity=Templated(menu), core=8, slots=8)
    device = evolve(device, capacity={**device.capacity, "aicpu": 7})

    full = admit([device], *[asking(memory=GiB)] * 7)

    assert "0 of 1 device: 1 lack memory (3 GiB wanted, largest free 0)" == refused(
        full, asking(memory=GiB)
    )


def test_several_of_a_whole_card_vendor_are_whole_cards() -> None:
    devices = rack(64 * GiB, 64 * GiB, granularity=Fractional(multi=MultiDevice.WHOLE))
    full = admit(devices, Request(asks=(Ask(memory=GiB),) * 2))

    assert [device.capacity for device in devices] == [
        grant.takes for grant in full.standing[0].pieces
    ]
    assert "0 of 2 devices: 2 lack memory (1 GiB wanted, largest free 0)" == refused(
        full, asking(memory=GiB)
    )


def test_what_an_exclusive_grant_takes_leaves_no_slot() -> None:
    full = admit(rack(32 * GiB), asking(memory=GiB, core=100))

    assert 0 == full.free()["memory-0"][SLOTS]
