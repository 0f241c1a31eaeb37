"""Of a vendor's cards the one with the smallest shape serves, whatever the policy prefers."""

import pytest
from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Device,
    Enforcement,
    Fractional,
    Inventory,
    Request,
    Step,
    Template,
    Templated,
)
from hetero.model.units import GiB
from hetero.placement import explain, fit
from hetero.placement.cluster import PlacedContainer, PlacedNode, PlacedPod, Placement
from hetero.placement.demand import FIRST_LEARNING_PODS
from hetero.placement.placement_policy import PLACEMENT_POLICIES, WEIGHTS
from hetero.testing import rack
from tests.placement.conftest import Asked, placed, pod


def instances(uuid: str, *shapes: tuple[str, int, int]) -> Device:
    """Return a card of instances, by name, GiB and sevenths of the core."""
    parts = tuple(
        Template(
            name,
            {MEMORY: gib * GiB, CORE: core, f"{uuid}-{number}": 1},
            part=f"{uuid}-{number}",
        )
        for number, (name, gib, core) in enumerate(shapes)
    )
    (card,) = rack(140 * GiB, vendor="one", granularity=Templated(parts, whole=False))
    counters = {part.part or "": 1 for part in parts}
    return evolve(
        card,
        uuid=uuid,
        enforcement=Enforcement.PARTITION,
        capacity={CORE: 7, MEMORY: 140 * GiB, SLOTS: len(parts), **counters},
    )


#: Cards of few large and of many small instances; packing and spreading like one of them better.
LARGE = instances("large", ("3g", 70, 3), ("4g", 70, 4))
SMALL = instances("small", *[("1g", 17, 1)] * 7)
SMALL_ASK = Ask(memory=GiB)


def given(request: Request, inventory: Inventory, policy: str = "binpack") -> list[str]:
    answer = fit(inventory, request, policy=PLACEMENT_POLICIES[policy])
    assert isinstance(answer, Allocation), answer
    return [f"{piece.device} {piece.template}" for piece in answer.pieces]


def take(*devices: Device, ask: Ask, on: str) -> Allocation:
    answer = fit(Inventory(devices), Request(asks=(evolve(ask, device=on),)))
    assert isinstance(answer, Allocation), answer
    return answer


@pytest.mark.parametrize("policy", PLACEMENT_POLICIES)
@pytest.mark.parametrize("fuller", ["large", "small"])
def test_a_small_instance_of_one_card_comes_before_a_large_one_of_another(
    policy: str, fuller: str
) -> None:
    standing = take(LARGE, SMALL, ask=SMALL_ASK, on=fuller)

    assert ["small 1g"] == given(
        Request(asks=(SMALL_ASK,)), Inventory((LARGE, SMALL), (standing,)), policy
    )


def test_who_asks_for_the_least_part_gets_that_of_all_cards() -> None:
    standing = take(LARGE, SMALL, ask=SMALL_ASK, on="large")

    assert ["small 1g"] == given(
        Request(asks=(Ask(),), least=True), Inventory((LARGE, SMALL), (standing,))
    )


def test_of_equal_instances_packing_takes_that_of_the_fuller_card() -> None:
    other = instances("other", *[("1g", 17, 1)] * 7)
    standing = take(SMALL, other, ask=SMALL_ASK, on="other")

    assert ["other 1g"] == given(Request(asks=(SMALL_ASK,)), Inventory((SMALL, other), (standing,)))


def test_of_instances_of_one_memory_that_of_the_least_core_is_given() -> None:
    wide = instances("wide", ("2g", 34, 2))
    narrow = instances("narrow", ("1g", 34, 1), ("1g", 34, 1))

    assert ["narrow 1g"] == given(Request(asks=(Ask(memory=20 * GiB),)), Inventory((wide, narrow)))


def test_a_grain_that_rounds_less_comes_before_packing() -> None:
    coarse, fine = (
        evolve(card, enforcement=Enforcement.PRELOAD)
        for card in (
            *rack(24 * GiB, granularity=Fractional(memory=Step(8 * GiB))),
            evolve(rack(80 * GiB, granularity=Fractional(memory=Step(GiB)))[0], uuid="fine"),
        )
    )

    assert ["fine None"] == given(Request(asks=(SMALL_ASK,)), Inventory((coarse, fine)))


def test_the_vendor_is_the_policys_choice_and_no_shape_decides_on_it() -> None:
    others = evolve(rack(200 * GiB, vendor="two")[0], enforcement=Enforcement.PRELOAD)

    assert ["large 3g"] == given(Request(asks=(SMALL_ASK,)), Inventory((others, LARGE)))


@pytest.mark.parametrize("numa", [True, False])
def test_a_share_of_a_card_comes_before_a_larger_part_of_a_partitioned_one(numa: bool) -> None:
    """Such cards, and those of several NUMA nodes, are never given together."""
    (plain,) = rack(141 * GiB, vendor="one", enforcement=Enforcement.PRELOAD, numa=1)
    partitioned = evolve(SMALL, numa=0)
    request = Request(asks=(SMALL_ASK,), numa=numa)

    assert ["one-0 None"] == given(request, Inventory((partitioned, plain)))
    assert ["small 1g"] == given(request, Inventory((evolve(LARGE, numa=1), partitioned)))


def test_each_of_several_cards_has_the_smallest_shape_that_is_left() -> None:
    two = Request(asks=(SMALL_ASK,) * 2)
    more = instances("more", *[("1g", 17, 1)] * 7)

    assert ["large 3g", "small 1g"] == sorted(given(two, Inventory((LARGE, SMALL))))
    assert ["more 1g", "small 1g"] == sorted(given(two, Inventory((LARGE, SMALL, more))))


def test_the_explanation_has_what_a_shape_gives_beyond_the_ask_before_the_policys_cost() -> None:
    explained = explain(Inventory((LARGE, SMALL)), Request(asks=(SMALL_ASK,)))

    costs = [verdict.cost[:3] for verdict in explained.verdicts if verdict.cost]
    assert [(0, 69 * 1024, 42), (0, 16 * 1024, 14)] == costs


@pytest.mark.parametrize("policy", WEIGHTS)
@pytest.mark.parametrize("together", [True, False])
def test_a_cluster_gives_the_smallest_instance_of_a_node_and_of_its_nodes(
    policy: str, together: bool
) -> None:
    nodes = (
        [PlacedNode(name="a", devices=(LARGE, SMALL))]
        if together
        else [PlacedNode(name=card.uuid, devices=(card,)) for card in (LARGE, SMALL)]
    )
    cluster = Asked(nodes, weights=WEIGHTS[policy])

    placements = [placed(cluster, pod(memory=GiB)) for _ in range(8)]
    assert ["small 1g"] * 7 + ["large 3g"] == [shapes_of(placement)[0] for placement in placements]


@pytest.mark.parametrize("policy", WEIGHTS)
def test_a_cluster_from_which_pods_go_gives_the_smallest_instance_still(policy: str) -> None:
    nodes = [PlacedNode(name=card.uuid, devices=(card,)) for card in (LARGE, SMALL)]
    cluster = Asked(nodes, weights=WEIGHTS[policy])
    for _ in range(3 * FIRST_LEARNING_PODS):
        cluster.remove(placed(cluster, pod(memory=GiB)))
    assert cluster.cache.demand.pods_end

    assert ["small 1g"] == shapes_of(placed(cluster, pod(memory=GiB)))


def test_the_containers_of_a_pod_have_the_smallest_instances_of_the_node() -> None:
    cluster = Asked([PlacedNode(name="a", devices=(LARGE, SMALL))])
    container = PlacedContainer(request=Request(asks=(SMALL_ASK,)))
    placement = cluster.place(PlacedPod(containers=(container,) * 3))

    assert isinstance(placement, Placement)
    assert ["small 1g"] * 3 == shapes_of(placement)


def test_containers_of_a_pod_have_shares_before_larger_parts_of_partitioned_cards() -> None:
    (plain,) = rack(141 * GiB, vendor="one", enforcement=Enforcement.PRELOAD)
    cluster = Asked([PlacedNode(name="a", devices=(SMALL, plain))])
    container = PlacedContainer(request=Request(asks=(SMALL_ASK,)))
    placement = cluster.place(PlacedPod(containers=(container,) * 2))

    assert isinstance(placement, Placement)
    assert ["one-0 None"] * 2 == shapes_of(placement)


def shapes_of(placement: Placement) -> list[str]:
    return [
        f"{piece.device} {piece.template}"
        for allocation in placement.allocations
        if allocation is not None
        for piece in allocation.pieces
    ]
