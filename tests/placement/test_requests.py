"""What a pod may ask for: several containers, and devices that go together or are of a kind."""

from itertools import product

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import MEMORY, Ask, Device, Link, Refusal, Selector
from hetero.model.units import GiB
from hetero.placement.cluster import PlacedPod, Placement
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


def test_containers_beside_one_another_need_room_for_all_of_them() -> None:
    asked = Asked([node("a", cards("free", 1, node="a"))])
    some = PlacedPod(containers=(container(50), container(40)))

    assert "0 of 1 node: 1 have no room for all containers at once" == refused(asked, some)
    asked = Asked([node("a", cards("free", 2, node="a"))])
    assert ["a/free-0", "a/free-1"] == where(placed(asked, some))


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
    st.lists(st.integers(1, 8), max_size=2),
    st.lists(st.integers(1, 8), max_size=2),
    st.lists(st.integers(0, 8), min_size=1, max_size=3),
)
def test_a_pod_of_several_containers_fits_exactly_when_some_assignment_does(
    main: list[int], init: list[int], sidecars: list[int], used: list[int]
) -> None:
    """Sizes in tens of GiB on cards of eighty of which `used` is taken."""
    asked = Asked([node("a", cards("free", len(used), node="a"))])
    for place, amount in enumerate(used):
        if amount:
            asks = (Ask(memory=amount * 10 * GiB, device=f"a/free-{place}"),)
            placed(asked, pod(asks=asks))
    free = [8 - amount for amount in used]
    some = PlacedPod(
        containers=tuple(container(10 * size) for size in main),
        init=tuple(container(10 * size) for size in init),
        sidecars=tuple(container(10 * size) for size in sidecars),
    )

    def ways(sizes: list[int], left: list[int]) -> list[list[int]]:
        remainders = []
        for way in product(range(len(left)), repeat=len(sizes)):
            rest = list(left)
            for size, place in zip(sizes, way, strict=True):
                rest[place] -= size
            if min(rest) >= 0:
                remainders.append(rest)
        return remainders

    expected = any(
        all(ways([size], left) for size in init) and ways(main, left)
        for left in ways(sidecars, free)
    )
    assert bool(expected) == isinstance(asked.find(some), Placement)


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
