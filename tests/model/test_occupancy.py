"""What a pod takes of a device is the most it takes at any point of its life."""

from collections import Counter
from itertools import chain, permutations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    ContainerKind,
    Counters,
    Device,
    DeviceAllocation,
    Fractional,
    Granularity,
    Inventory,
    Ladder,
    Step,
    Template,
    Templated,
    Whole,
    obtainable_of,
    occupancies,
)
from hetero.model.units import GiB
from hetero.testing import rack

INIT, SIDECAR, MAIN = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.MAIN
Containers = list[tuple[ContainerKind, Allocation]]

takes = st.fixed_dictionaries(
    {MEMORY: st.integers(0, 64), CORE: st.integers(0, 100), SLOTS: st.integers(0, 3)},
    optional={"extra": st.integers(0, 5)},
)
allocations = st.dictionaries(st.sampled_from(["card-0", "card-1"]), takes, max_size=2).map(
    lambda by_uuid: allocation(**by_uuid)
)
pods = st.lists(st.tuples(st.sampled_from(ContainerKind), allocations), max_size=6)


def allocation(**takes_by_uuid: Counters) -> Allocation:
    return Allocation(
        pieces=tuple(
            DeviceAllocation(device=uuid, vendor="memory", takes=counters)
            for uuid, counters in takes_by_uuid.items()
        )
    )


def points(pod: Containers) -> list[Containers]:
    """Return who runs at each point of a pod's life, as a kubelet starts them.

    The first ones come in the pod's order: a sidecar stays, an init container ends before the next
    begins. Then all main containers start.
    """
    running: Containers = []
    life = [running]
    for kind, given_to in pod:
        if kind is INIT:
            life.append([*running, (kind, given_to)])
        elif kind is SIDECAR:
            running = [*running, (kind, given_to)]
            life.append(running)
    return [*life, [*running, *(container for container in pod if container[0] is MAIN)]]


def taken(running: Containers, uuid: str) -> Counter[str]:
    amounts = Counter[str]()
    for _, given_to in running:
        for piece in given_to.pieces:
            if piece.device == uuid:
                amounts.update(piece.takes)
    return amounts


@given(pods)
def test_a_pod_takes_the_most_of_any_point_of_its_life_in_any_order(pod: Containers) -> None:
    lives = chain.from_iterable(points(list(order)) for order in permutations(pod))
    most: dict[str, Counter[str]] = {}
    for running in lives:
        for uuid in ("card-0", "card-1"):
            most[uuid] = most.get(uuid, Counter()) | taken(running, uuid)  # the larger of each

    got = {occupancy.device: Counter(occupancy.takes) for occupancy in occupancies(pod)}

    assert {uuid: +amounts for uuid, amounts in most.items() if +amounts} == {
        uuid: +amounts for uuid, amounts in got.items() if +amounts
    }


@given(pods)
def test_no_container_more_makes_a_pod_take_less(pod: Containers) -> None:
    for left_out in range(len(pod)):
        fewer = {
            occupancy.device: occupancy.takes
            for occupancy in occupancies(pod[:left_out] + pod[left_out + 1 :])
        }
        for occupancy in occupancies(pod):
            for counter, amount in fewer.get(occupancy.device, {}).items():
                assert occupancy.takes[counter] >= amount


def test_an_init_container_as_large_as_the_main_one_adds_nothing() -> None:
    half = allocation(**{"memory-0": {MEMORY: 8, CORE: 50, SLOTS: 1}})
    devices = rack(16)

    free = Inventory(devices, pods=(((INIT, half), (MAIN, half)),)).free()

    assert Inventory(devices, (half,)).free() == free


def test_a_sidecar_is_counted_beside_init_and_main_containers() -> None:
    (occupancy,) = occupancies(
        [
            (SIDECAR, allocation(card={MEMORY: 1})),
            (INIT, allocation(card={MEMORY: 8})),
            (MAIN, allocation(card={MEMORY: 2})),
            (MAIN, allocation(card={MEMORY: 3})),
        ]
    )
    assert {MEMORY: 9} == occupancy.takes


def card(granularity: Granularity, **capacity: int) -> Device:
    (device,) = rack(48 * GiB, granularity=granularity, core=16, slots=4)
    return evolve(device, capacity={**device.capacity, **capacity})


def free_of(device: Device, memory: int, core: int, slots: int) -> tuple[int, int]:
    """Return the GiB and the core units that can be had where so much is left."""
    left = {**device.capacity, MEMORY: memory * GiB, CORE: core, SLOTS: slots}
    counters = obtainable_of(device, left)
    return counters[MEMORY] // GiB, counters[CORE]


FREE = card(Fractional())
LADDER = card(Fractional(memory=Ladder((2 * GiB, 4 * GiB, 16 * GiB)), core=Step(4), together=True))
MENU = card(Templated((Template("quarter", {MEMORY: 12 * GiB, CORE: 4, "extra": 3}),)), extra=7)


@pytest.mark.parametrize("device", [FREE, LADDER, card(Whole()), MENU])
def test_of_an_empty_card_all_is_free(device: Device) -> None:
    assert dict(device.capacity) == obtainable_of(device, device.capacity)


@pytest.mark.parametrize(
    ("device", "left", "free"),
    [
        (FREE, (20, 5, 2), (20, 5)),
        (FREE, (20, 5, 0), (0, 0)),  # the rest of a card that is taken exclusively
        (FREE, (0, 5, 2), (0, 0)),  # core left without memory
        (FREE, (20, 0, 2), (0, 0)),  # and memory where all of the core is promised
        (LADDER, (23, 7, 2), (22, 4)),  # in its sizes
        (LADDER, (1, 7, 2), (0, 0)),
        (LADDER, (23, 3, 2), (0, 0)),  # no core that a size of its memory comes with
        (card(Whole()), (47, 16, 4), (0, 0)),
        (MENU, (40, 12, 3), (24, 8)),  # by its menu: of the third counter there is enough for two
        (MENU, (11, 12, 3), (0, 0)),
        (evolve(FREE, attributes={"context": str(GiB)}), (1, 5, 2), (0, 0)),
    ],
)
def test_free_is_what_requests_can_have(
    device: Device, left: tuple[int, int, int], free: tuple[int, int]
) -> None:
    assert free == free_of(device, *left)


def test_a_card_without_core_has_its_memory_free() -> None:
    assert (20, 0) == free_of(card(Fractional(), core=0), 20, 0, 2)
