"""A refusal says with numbers what lacks, the true reason first, and one function makes it."""

import pytest
from attrs import evolve

from hetero.model import (
    CORE,
    DEVICES,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Device,
    Inventory,
    Refusal,
    Request,
    Shortage,
    Template,
    Templated,
    codec,
)
from hetero.model.units import GiB, MiB, format_memories
from hetero.placement import explain, fit
from hetero.placement.match import fit_into
from hetero.placement.node_reason import DeviceVerdict, node_reason
from hetero.placement.offer import BY_PARTS
from hetero.testing import rack


def lack(counter: str, asked: int, free: int, of: int) -> DeviceVerdict:
    return f"lack {counter}", Shortage(counter=counter, asked=asked, free=free, of=of)


MEMORY_6, MEMORY_2 = (lack(MEMORY, 24 * GiB, free * GiB, 32 * GiB) for free in (6, 2))


def test_a_node_that_lacks_memory_says_so_although_most_of_its_counters_lack() -> None:
    slots = lack(SLOTS, 1, 0, 10)

    assert ("lack memory on one device", MEMORY_6[1]) == node_reason(
        [MEMORY_2, slots, MEMORY_6], wanted_devices=1
    )


def test_numbers_are_those_of_the_last_device_that_is_needed() -> None:
    verdicts = [("fits", None), MEMORY_2, MEMORY_6]

    assert ("lack memory on 2 devices", MEMORY_6[1]) == node_reason(verdicts, wanted_devices=2)
    assert ("lack memory on 3 devices", MEMORY_2[1]) == node_reason(verdicts, wanted_devices=3)
    assert ("fits", None) == node_reason(verdicts, wanted_devices=1)


@pytest.mark.parametrize(
    ("verdicts", "reason"),
    [
        (["unhealthy (ill)", "lack core", "not chosen"], "lack core on one device"),
        (["not chosen", "not chosen", "too small"], "too small"),
        (["not empty", "too small"], "lack a whole device"),
        (["fits"], "have too few devices"),
        ([], "have no device"),
    ],
)
def test_what_is_short_comes_before_what_will_never_be_there(
    verdicts: list[str], reason: str
) -> None:
    wanted = 2 if verdicts == ["fits"] else 1

    assert reason == node_reason([(one, None) for one in verdicts], wanted_devices=wanted)[0]


def test_whole_devices_that_a_node_does_not_have_are_not_waited_for() -> None:
    few = Shortage(counter=DEVICES, asked=3, free=2, of=2)
    verdicts: list[DeviceVerdict] = [("fits", None), ("not empty", None)]

    assert ("have too few devices", few) == node_reason(verdicts, wanted_devices=3)
    assert ("lack 2 whole devices", None) == node_reason(verdicts, wanted_devices=2)


def test_cards_that_are_given_by_the_names_of_their_parts_are_none_of_those_that_are_wanted() -> (
    None
):
    few = Shortage(counter=DEVICES, asked=5, free=4, of=4)
    fits: DeviceVerdict = ("fits", None)
    by_parts: DeviceVerdict = (BY_PARTS, None)

    assert ("have too few devices", few) == node_reason([*[fits] * 4, by_parts], wanted_devices=5)
    assert ("have too few devices", few) == node_reason(
        [fits, fits, fits, MEMORY_2, by_parts], wanted_devices=5
    )
    assert by_parts == node_reason([by_parts, by_parts], wanted_devices=1)


def test_no_more_devices_lack_something_than_a_node_has_of_those_that_were_chosen() -> None:
    few = Shortage(counter=DEVICES, asked=2, free=1, of=1)
    for verdict in (MEMORY_6, ("not empty", None), ("fits", None)):
        verdicts: list[DeviceVerdict] = [verdict, ("not chosen", None), ("not chosen", None)]
        assert ("have too few devices", few) == node_reason(verdicts[:1], wanted_devices=2)
        assert ("have too few devices", few) == node_reason(verdicts, wanted_devices=2)
    assert ("too small", None) == node_reason([("too small", None)], wanted_devices=2)


def test_the_sentence_over_nodes_has_the_most_common_reason_first() -> None:
    refusal = Refusal(
        wanted=1,
        verdicts={},
        counts={"lack a whole device": 9, "have no device": 40, "lack memory on one device": 31},
        of="node",
        shortages={"lack memory on one device": MEMORY_6[1]} if MEMORY_6[1] else {},
    )

    assert (
        "0 of 80 nodes: 31 lack memory on one device (24 GiB wanted, largest free 6), "
        "9 lack a whole device, 40 have no device"
    ) == refusal.sentence
    assert refusal == codec.loads(codec.dumps(refusal), Refusal, source="test")


def test_devices_of_several_vendors_do_not_add_up_and_the_sentence_says_so() -> None:
    makers = ("ascend", "ascend", "hygon", "hygon", "metax", "metax", "mthreads")
    devices = tuple(
        evolve(device, vendor=vendor)
        for device, vendor in zip(rack(*[GiB] * len(makers)), makers, strict=True)
    )
    answer = fit(Inventory(devices), Request(asks=(Ask(),) * 3))

    assert isinstance(answer, Refusal)
    sentence = "3 devices of one vendor needed; most here: 2 (ascend, hygon, metax)"
    assert sentence == answer.sentence


def test_devices_of_several_numa_nodes_do_not_add_up_either() -> None:
    devices = tuple(evolve(one, numa=place // 2) for place, one in enumerate(rack(*[GiB] * 4)))
    answer = fit(Inventory(devices), Request(asks=(Ask(),) * 3, numa=True))

    assert isinstance(answer, Refusal)
    assert (
        "3 devices of one vendor on one NUMA node needed; most here: 2 "
        "(memory on NUMA node 0, memory on NUMA node 1)"
    ) == answer.sentence


def parted(*parts: int) -> tuple[Device, ...]:
    """Return cards of one vendor with so many parts of 10 GiB each; 0: whole ones."""
    devices = []
    for number, (device, count) in enumerate(
        zip(rack(*[40 * GiB] * len(parts)), parts, strict=True)
    ):
        menu = tuple(
            Template("p", {MEMORY: 10 * GiB, CORE: 25, f"part {number}-{n}": 1}, f"{number}-{n}")
            for n in range(count)
        )
        if menu:
            counters = {f"part {number}-{n}": 1 for n in range(count)}
            device = evolve(
                device,
                granularity=Templated(menu, whole=False),
                capacity={**device.capacity, **counters},
            )
        devices.append(device)
    return tuple(devices)


@pytest.mark.parametrize("memory", [None, 4 * GiB])
@pytest.mark.parametrize(
    ("parts", "chosen"),
    [
        ((0, 2, 0), ["memory-0", "memory-2"]),
        ((2, 0, 2), ["memory-0", "memory-2"]),
        ((2, 0, 0, 2), None),
        ((1, 0), []),
        ((2, 0), []),
    ],
)
def test_several_cards_are_all_partitioned_or_none_of_them_is(
    parts: tuple[int, ...], chosen: list[str] | None, memory: int | None
) -> None:
    answer = fit(Inventory(parted(*parts)), Request(asks=(Ask(memory=memory),) * 2))

    if chosen == []:
        assert isinstance(answer, Refusal)
        assert answer.sentence == (
            "2 devices of one vendor, all partitioned or none, needed; most here: 1 "
            "(memory not partitioned, memory partitioned)"
        )
        return
    assert isinstance(answer, Allocation)
    parted_pieces = {piece.part is not None for piece in answer.pieces}
    assert 1 == len(parted_pieces)
    assert chosen in (None, sorted(piece.device for piece in answer.pieces))


def test_cards_that_are_named_may_be_partitioned_or_not() -> None:
    asks = (Ask(device="0"), Ask(device="1"))
    answer = fit(Inventory(parted(1, 0)), Request(asks=asks))

    assert isinstance(answer, Allocation)
    assert ["0-0", None] == [piece.part for piece in answer.pieces]


def test_each_device_explains_itself_with_numbers() -> None:
    inventory = Inventory(rack(16 * GiB, 140 * GiB))
    taken = fit(inventory, Request(asks=(Ask(memory=120 * GiB, core=80),)))
    assert not isinstance(taken, Refusal)
    held = evolve(inventory, standing=(taken,))

    def explained(ask: Ask) -> list[str]:
        verdicts = explain(held, Request(asks=(ask,))).verdicts
        return [one.sentence.replace(" memory-", " ") for one in verdicts]

    small, large = (device.short_model for device in inventory.devices)
    assert [
        f"memory:0 {small}: fits, would have 8 GiB memory and 50 % of the core left (taken)",
        f"memory:1 {large}: 20 % of the core free, 50 % asked",
    ] == explained(Ask(memory=8 * GiB, core=50))
    assert (
        f"memory:1 {large}: 20 of 140 GiB memory free, 24 GiB asked"
        == explained(Ask(memory=24 * GiB))[1]
    )
    assert (
        f"memory:0 {small}: 16 of 16 GiB memory free, 24 GiB asked"
        == explained(Ask(memory=24 * GiB))[0]
    )


def partitioned(*shapes: tuple[int, int]) -> Device:
    """Return a card that is given by its parts alone: the GiB and the sevenths of the core."""
    parts = tuple(
        Template(f"{core}g", {MEMORY: gib * GiB, CORE: core}, part=f"{number}")
        for number, (gib, core) in enumerate(shapes)
    )
    (card,) = rack(140 * GiB, granularity=Templated(parts, whole=False))
    return evolve(card, capacity={**card.capacity, CORE: 7})


@pytest.mark.parametrize(
    ("ask", "sentence", "explained"),
    [
        (
            Ask(memory=10 * GiB, core=50),
            "50 % wanted, largest part 42",
            "its largest part has 42.9 % of the core, 50 % asked",
        ),
        (
            Ask(memory=80 * GiB),
            "80 GiB wanted, largest part 70",
            "its largest part has 70 GiB memory, 80 GiB asked",
        ),
        (
            Ask(memory=150 * GiB),
            "150 GiB wanted, largest 140",
            "140 of 140 GiB memory free, 150 GiB asked",
        ),
    ],
)
def test_a_card_of_parts_that_are_too_small_says_what_the_largest_has(
    ask: Ask, sentence: str, explained: str
) -> None:
    (verdict,) = explain(
        Inventory((partitioned((18, 1), (18, 1), (70, 3)),)), Request(asks=(ask,))
    ).verdicts
    answer = fit(Inventory((partitioned((18, 1), (70, 3)),)), Request(asks=(ask,)))

    assert isinstance(answer, Refusal)
    assert f"0 of 1 device: 1 too small ({sentence})" == answer.sentence
    assert verdict.sentence.endswith(f": {explained}")


def test_what_was_asked_and_lacks_comes_before_what_only_its_shape_lacks() -> None:
    menu = (Template("half", {CORE: 50, MEMORY: 32 * GiB}),)
    (card,) = rack(64 * GiB, granularity=Templated(menu))
    free = {CORE: 25, MEMORY: 20 * GiB, SLOTS: 1}

    def verdict(ask: Ask) -> str:
        answer = fit_into((card,), {card.uuid: free}, Request(asks=(ask,)))
        assert isinstance(answer, Refusal)
        return answer.sentence

    core, memory = "50 % wanted, largest free 25", "32 GiB wanted, largest free 20"
    assert f"1 lack core ({core})" in verdict(Ask(memory=10 * GiB, core=50))
    assert f"1 lack memory ({memory})" in verdict(Ask(memory=30 * GiB, core=20))
    assert f"1 lack memory ({memory})" in verdict(Ask(memory=30 * GiB, core=50))
    assert f"1 lack memory ({memory})" in verdict(Ask(memory=10 * GiB, core=20))


def test_devices_that_were_not_chosen_have_no_numbers() -> None:
    inventory = Inventory(rack(16 * GiB, 16 * GiB, 80 * GiB))
    request = Request(asks=(Ask(memory=100 * GiB, device="1"),))

    explanation = explain(inventory, request)
    assert isinstance(explanation.answer, Refusal)
    assert (
        "0 of 3 devices: 1 too small (100 GiB wanted, largest 16), 2 not chosen"
    ) == explanation.answer.sentence
    assert [True, False, True] == [
        one.sentence.endswith(": not chosen") for one in explanation.verdicts
    ]


def test_memory_that_is_no_whole_number_of_gibibytes_is_in_one_unit() -> None:
    odd = Inventory(rack(143_771 * MiB))
    (verdict,) = explain(odd, Request(asks=(Ask(memory=200 * GiB),))).verdicts

    assert "140.4 of 140.4 GiB memory free, 200 GiB asked" in verdict.sentence


def test_a_core_without_a_limit_has_no_number_to_lack() -> None:
    inventory = Inventory(rack(16 * GiB))
    taken = fit(inventory, Request(asks=(Ask(memory=GiB, core=99),)))
    assert not isinstance(taken, Refusal)
    rest = fit(evolve(inventory, standing=(taken,)), Request(asks=(Ask(memory=GiB, core=1),)))
    assert not isinstance(rest, Refusal)
    full = evolve(inventory, standing=(taken, rest))
    answer = fit(full, Request(asks=(Ask(memory=GiB),)))

    assert isinstance(answer, Refusal)
    assert "0 of 1 device: 1 lack core" == answer.sentence


@pytest.mark.parametrize(
    ("asked", "free", "shown"),
    [
        (24 * GiB, 6 * GiB, ("24 GiB", "6")),
        (24 * GiB, 24 * GiB - 1, ("24 GiB", "23.9")),
        (3000 * MiB, 500 * MiB, ("3 GiB", "0.4")),
        (GiB + 1, GiB, ("1.1 GiB", "1")),
        (500, 0, ("500 B", "0")),
    ],
)
def test_what_is_asked_is_rounded_up_and_what_is_free_down(
    asked: int, free: int, shown: tuple[str, str]
) -> None:
    assert shown == format_memories(asked, free)


def test_core_is_said_in_percent_of_the_card_whatever_its_units() -> None:
    assert "50 % wanted, largest free 25" == Shortage(counter=CORE, asked=4, free=2, of=8).largest
