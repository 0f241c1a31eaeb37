"""What holds of every answer of `fit`, whatever the devices and the requests are."""

from itertools import permutations

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import (
    CORE,
    MEMORY,
    Allocation,
    Ask,
    Device,
    Fractional,
    Granularity,
    Inventory,
    Ladder,
    MultiDevice,
    Refusal,
    Request,
    Step,
    Template,
    Templated,
    Whole,
)
from hetero.model.rounding import portion
from hetero.model.units import GiB, MiB
from hetero.placement import fit
from hetero.testing import rack

GRANULARITIES: list[Granularity] = [
    Whole(),
    Fractional(),
    Fractional(Step(256 * MiB), Step(1), MultiDevice.WHOLE),
    Fractional(Ladder(tuple(n * 512 * MiB for n in (2, 4, 8, 16, 32))), Step(4), MultiDevice.WHOLE),
    Templated((Template("half", {MEMORY: 8 * GiB, CORE: 50}),)),
    Templated((Template("small", {MEMORY: 4 * GiB, CORE: 30}),)),
]
asks = st.builds(
    Ask,
    memory=st.none() | st.sampled_from([1, 100 * MiB, GiB, 3 * GiB, 7 * GiB, 12 * GiB, 16 * GiB]),
    core=st.none() | st.sampled_from([1, 10, 33, 50, 99, 100]),
)
requests = st.builds(Request, asks=st.lists(asks, min_size=1, max_size=3).map(tuple))


def numbered(cards: list[tuple[int, Granularity]]) -> tuple[Device, ...]:
    return tuple(
        evolve(rack(size, granularity=granularity, slots=3)[0], uuid=f"card-{index}")
        for index, (size, granularity) in enumerate(cards)
    )


racks = st.lists(
    st.tuples(st.sampled_from([8 * GiB, 16 * GiB]), st.sampled_from(GRANULARITIES)),
    min_size=1,
    max_size=4,
).map(numbered)


@given(racks, st.lists(requests, max_size=12))
def test_no_counter_of_any_device_is_ever_promised_twice(
    devices: tuple[Device, ...], demands: list[Request]
) -> None:
    inventory = Inventory(devices)
    for demand in demands:
        got = fit(inventory, demand)
        if isinstance(got, Refusal):
            continue
        assert len(demand.asks) == len({grant.device for grant in got.pieces})
        inventory = evolve(inventory, standing=(*inventory.standing, got))

        for uuid, left in inventory.free().items():
            assert min(left.values()) >= 0, uuid


@given(racks, st.lists(requests, max_size=6))
def test_the_same_question_has_the_same_answer(
    devices: tuple[Device, ...], demands: list[Request]
) -> None:
    inventory = Inventory(devices)
    for demand in demands:
        got = fit(inventory, demand)
        assert got == fit(inventory, demand)
        if isinstance(got, Allocation):
            inventory = evolve(inventory, standing=(*inventory.standing, got))


@given(racks, requests)
def test_a_refusal_on_an_empty_rack_is_one_that_no_assignment_would_serve(
    devices: tuple[Device, ...], demand: Request
) -> None:
    def serves(chosen: tuple[Device, ...]) -> bool:
        return all(
            portion(device, ask, count=len(demand.asks), free=device.capacity) is not None
            for device, ask in zip(chosen, demand.asks, strict=True)
        )

    possible = any(map(serves, permutations(devices, len(demand.asks))))

    assert possible == isinstance(fit(Inventory(devices), demand), Allocation)
