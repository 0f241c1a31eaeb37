"""What a pod may ask for: several containers, and devices that go together or are of a kind."""

from itertools import product

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Ask,
    ContainerKind,
    Device,
    Link,
    Refusal,
    Request,
    Selector,
    Templated,
)
from hetero.model.units import GiB
from hetero.placement.cluster import PlacedContainer, PlacedPod, Placement
from hetero.placement.placement_policy import WEIGHTS
from tests.placement.conftest import Asked, cards, container, node, placed, pod, refused, where

# --- pods of several containers ------------------------------------------------------------------


def test_a_pod_holds_the_larger_of_its_init_and_its_rest_and_its_sidecars() -> None:
    some = PlacedPod(
        containers=(container(10, 1000), container(20, 2000)),
        init=(container(60, 500), container(5, 9000)),
        sidecars=(container(4, 100),),
    )
    asked = Asked([node("a", cards("free", 1, node="a"))])
    placement = placed(asked, some)

    assert {"cpu": 9100} == placement.host
    assert [64 * GiB] == [usage.takes[MEMORY] for usage in placement.holds]
    assert 5 == len([one for one in placement.allocations if one is not None])


def holding(asked: Asked, some: PlacedPod) -> dict[str, int]:
    """Return the GiB that a pod holds of each card."""
    return {usage.device: usage.takes[MEMORY] // GiB for usage in placed(asked, some).holds}


@pytest.mark.parametrize("kind", ["free", "slices"])
def test_an_init_container_is_on_the_card_of_the_main_one_where_both_have_room(kind: str) -> None:
    """By themselves the main one would take what is left of the first card."""
    asked = Asked([node("a", cards(kind, 2, node="a"))], weights=WEIGHTS["binpack"])
    placed(asked, PlacedPod(name="other", containers=(container(40),)))
    some = PlacedPod(containers=(container(30),), init=(container(60),))

    assert {f"a/{kind}-1": 60} == holding(asked, some)


def test_an_init_container_is_on_one_of_the_cards_of_several_main_containers() -> None:
    asked = Asked([node("a", cards("free", 3, node="a"))])
    for size in (60, 30):  # 20, 50 and 80 GiB are left
        placed(asked, PlacedPod(name=f"other{size}", containers=(container(size),)))
    some = PlacedPod(containers=(container(45), container(18)), init=(container(70),))

    held = holding(asked, some)
    assert 70 == max(held.values())
    assert 2 == len(held)


def test_an_init_container_has_a_card_of_its_own_where_no_card_has_room_for_both() -> None:
    """Its card is held, too, until the pod ends."""
    asked = Asked([node("a", (*cards("coarse", 1, node="a"), *cards("free", 1, node="a")))])
    placed(asked, PlacedPod(name="other", containers=(container(30),)))
    some = PlacedPod(
        containers=(
            PlacedContainer(
                request=Request(asks=(Ask(memory=20 * GiB),), vendor=Selector(include=("coarse",)))
            ),
        ),
        init=(container(45),),
    )

    assert {"a/coarse-0": 20, "a/free-0": 45} == holding(asked, some)


def test_containers_beside_one_another_need_room_for_all_of_them() -> None:
    asked = Asked([node("a", cards("free", 1, node="a"))])
    some = PlacedPod(containers=(container(50), container(40)))

    assert "0 of 1 node: 1 have no room for all containers at once" == refused(asked, some)
    asked = Asked([node("a", cards("free", 2, node="a"))])
    assert ["a/free-0", "a/free-1"] == where(placed(asked, some))


def assignments(sizes: list[int], left: list[int]) -> list[tuple[list[int], list[list[int]]]]:
    """Return each way to put sizes on cards: what is left, and the sizes on each card."""
    ways = []
    for way in product(range(len(left)), repeat=len(sizes)):
        on_cards = [
            [size for size, place in zip(sizes, way, strict=True) if place == card]
            for card in range(len(left))
        ]
        remainder = [amount - sum(on) for amount, on in zip(left, on_cards, strict=True)]
        if min(remainder) >= 0:
            ways.append((remainder, on_cards))
    return ways


sizes_of_pods = {
    "main": st.lists(st.integers(1, 8), min_size=1, max_size=4),
    "init": st.lists(st.integers(1, 8), max_size=2),
    "sidecars": st.lists(st.integers(1, 8), max_size=2),
    "used": st.lists(st.integers(0, 8), min_size=1, max_size=3),
}


def of_sizes(main: list[int], init: list[int], sidecars: list[int]) -> PlacedPod:
    """Return a pod of containers that ask for so many tens of GiB."""
    return PlacedPod(
        containers=tuple(container(10 * size) for size in main),
        init=tuple(container(10 * size) for size in init),
        sidecars=tuple(container(10 * size) for size in sidecars),
    )


def partly_used(kind: str, used: list[int]) -> tuple[Asked, list[int]]:
    """Return a node whose cards of eighty GiB are used in part, and what is free of each."""
    asked = Asked([node("a", cards(kind, len(used), node="a"))])
    for place, amount in enumerate(used):
        if amount:
            asks = (Ask(memory=amount * 10 * GiB, device=f"a/{kind}-{place}"),)
            placed(asked, pod(asks=asks))
    return asked, [8 - amount for amount in used]


@given(**sizes_of_pods)
def test_a_pod_of_several_containers_fits_exactly_when_some_assignment_does(
    main: list[int], init: list[int], sidecars: list[int], used: list[int]
) -> None:
    asked, free = partly_used("free", used)

    expected = any(
        all(assignments([size], left) for size in init) and assignments(main, left)
        for left, _ in assignments(sidecars, free)
    )
    assert bool(expected) == isinstance(asked.find(of_sizes(main, init, sidecars)), Placement)


# A card has room for the init container alone and not beside the others. And main containers have
# room in several ways: the first leaves no large slice, be the cards equal by then or later.
@example(main=[2, 2], init=[4], sidecars=[], used=[4])
@example(main=[4, 3, 2], init=[6], sidecars=[], used=[2, 3])
@example(main=[1, 2, 3, 1], init=[5], sidecars=[], used=[3, 4])
@given(**sizes_of_pods)
def test_where_slices_are_cut_at_admission_a_pod_fits_exactly_when_all_of_them_do(
    main: list[int], init: list[int], sidecars: list[int], used: list[int]
) -> None:
    """An init container has the slice of the largest main container, or one of its own."""
    asked, free = partly_used("slices", used)

    expected = any(
        all(
            any(
                size <= amount + max(on, default=0)
                for amount, on in zip(left, on_cards, strict=True)
            )
            for size in init
        )
        for after_sidecars, _ in assignments(sidecars, free)
        for left, on_cards in assignments(main, after_sidecars)
    )
    answer = asked.find(of_sizes(main, init, sidecars))
    assert bool(expected) == isinstance(answer, Placement)
    if isinstance(answer, Placement):
        slices = slices_of(answer)
        cut = {
            f"a/slices-{card}": sum(size for uuid, size in slices if uuid == f"a/slices-{card}")
            for card in range(len(used))
        }
        assert all(cut[f"a/slices-{card}"] <= 10 * GiB * free[card] for card in range(len(used)))
        assert {uuid: size for uuid, size in cut.items() if size} == {
            usage.device: usage.takes[MEMORY] for usage in answer.holds
        }


def slices_of(placement: Placement) -> list[tuple[str, int]]:
    """Return card and bytes of each slice that an agent cuts for a pod.

    Of equal pieces of init containers and one main container it cuts one.
    """
    slices = []
    handed: dict[str, int] = {}
    ordered = sorted(
        zip(placement.pod.kinds_and_containers, placement.allocations, strict=True),
        key=lambda each: each[0][0] is not ContainerKind.INIT,
    )
    for (kind, _), allocation in ordered:
        assert allocation is not None
        for piece in allocation.pieces:
            size = piece.takes[MEMORY]
            if kind is not ContainerKind.SIDECAR and handed.get(piece.device) == size:
                if kind is ContainerKind.MAIN:
                    del handed[piece.device]
                continue
            slices.append((piece.device, size))
            if kind is ContainerKind.INIT:
                handed[piece.device] = size
    return slices


def test_an_init_container_and_the_largest_main_one_have_a_slice_as_large_as_both_need() -> None:
    asked = Asked([node("a", cards("slices", 1, node="a"))])
    some = PlacedPod(containers=(container(10), container(20)), init=(container(40), container(5)))
    placement = placed(asked, some)

    assert [10, 40, 40, 40] == [
        allocation.pieces[0].takes[MEMORY] // GiB
        for allocation in placement.allocations
        if allocation
    ]
    assert [50 * GiB] == [usage.takes[MEMORY] for usage in placement.holds]


def test_a_slice_is_the_larger_one_in_every_counter() -> None:
    asked = Asked([node("a", cards("slices", 1, node="a"))])
    some = PlacedPod(
        containers=(PlacedContainer(request=Request(asks=(Ask(memory=40 * GiB, core=20),))),),
        init=(PlacedContainer(request=Request(asks=(Ask(memory=GiB, core=60),))),),
    )
    main, first = placed(asked, some).allocations

    assert main is not None
    assert main == first
    assert ({CORE: 60, MEMORY: 40 * GiB, SLOTS: 1}, 60) == (
        dict(main.pieces[0].takes),
        main.pieces[0].core,
    )


@pytest.mark.parametrize(("init", "main"), [("s8", "s2"), ("s2", "s8"), ("s4", "s4")])
def test_of_two_shapes_the_larger_one_is_handed_on(init: str, main: str) -> None:
    (device,) = cards("menu", 1, node="a")
    assert isinstance(device.granularity, Templated)
    device = evolve(device, granularity=evolve(device.granularity, cut_at_admission=True))
    asked = Asked([node("a", (device,))])
    some = PlacedPod(
        containers=(PlacedContainer(request=Request(asks=(Ask(shape=main),))),),
        init=(PlacedContainer(request=Request(asks=(Ask(shape=init),))),),
    )
    given = placed(asked, some).allocations

    assert [max(init, main)] * 2 == [one.pieces[0].template for one in given if one]


# --- what a request may ask of its devices -------------------------------------------------------


def linked(count: int, pairs: dict[tuple[int, int], int]) -> tuple[Device, ...]:
    made = cards("free", count, node="a")
    return tuple(
        evolve(
            device,
            links=tuple(
                Link(peer=made[j if i == place else i].uuid, kind="bridge", weight=weight)
                for (i, j), weight in pairs.items()
                if place in (i, j)
            ),
            numa=place // 2,
        )
        for place, device in enumerate(made)
    )


def test_several_cards_get_the_best_links_and_a_single_one_the_worst() -> None:
    devices = linked(4, {(0, 1): 1, (0, 2): 1, (1, 2): 9, (2, 3): 2})

    def home(count: int) -> list[str]:
        demand = pod(count, memory=10 * GiB, request={"links": True})
        return where(placed(Asked([node("a", devices)]), demand))

    assert ["a/free-1", "a/free-2"] == home(2)
    assert ["a/free-0"] == home(1)


def test_numa_keeps_the_devices_on_one_node_of_memory() -> None:
    asked = Asked([node("a", linked(4, {}))])
    placed(asked, pod(asks=(Ask(device="a/free-0"),)))
    demand = pod(2, memory=GiB, request={"numa": True})

    assert ["a/free-2", "a/free-3"] == where(placed(asked, demand))
    assert "3 devices of one vendor on one NUMA node needed; most here: 2" in refused(
        asked, pod(3, memory=GiB, request={"numa": True})
    )


def test_exclusive_takes_all_of_a_card_and_empty_only_wants_it_untouched() -> None:
    asked = Asked([node("a", cards("free", 2, node="a"))])
    placed(asked, pod(memory=GiB, request={"empty": True}))
    small = pod(memory=GiB, request={"empty": True, "uuid": Selector(include=("a/free-0",))})

    assert ["a/free-1"] == where(placed(asked, pod(memory=GiB, request={"exclusive": True})))
    assert isinstance(asked.find(small), Refusal)
    assert ["a/free-0"] == where(placed(asked, pod(memory=GiB)))


def test_models_vendors_and_uuids_can_be_chosen_and_avoided() -> None:
    nodes = [node("a", cards("free", 1, node="a")), node("b", cards("coarse", 2, node="b"))]

    def home(**choice: Selector) -> list[str]:
        return where(placed(Asked(nodes), pod(memory=GiB, request=choice)))

    assert ["b/coarse-0"] == home(model=Selector(include=("coarse",)))
    assert ["b/coarse-0"] == home(vendor=Selector(exclude=("free",)))
    assert ["b/coarse-1"] == home(uuid=Selector(include=("b/coarse-1",)))
