"""Who asks for a share gets a whole card, or one without a limit, only where no share fits."""

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
    Inventory,
    Link,
    Request,
    Whole,
)
from hetero.model.units import GiB
from hetero.placement import explain, fit
from hetero.placement.cluster import PlacedContainer, PlacedNode, PlacedPod, Placement
from hetero.placement.placement_policy import WEIGHTS
from hetero.testing import rack
from tests.placement.conftest import Asked, placed, pod, where

#: A large card that gives shares with a limit, a smaller one that gives them without, and the
#: smallest that is given whole: binpack alone would take them in the opposite order.
CONFINED = evolve(rack(80 * GiB, vendor="one")[0], enforcement=Enforcement.PRELOAD)
OPEN = evolve(rack(48 * GiB, vendor="two")[0], enforcement=Enforcement.NONE)
WHOLE = evolve(
    rack(24 * GiB, vendor="three", granularity=Whole(), slots=1)[0], enforcement=Enforcement.NONE
)


def share(count: int = 1, **more: object) -> Request:
    return Request(asks=(Ask(memory=3 * GiB, core=30),) * count, **more)  # type: ignore[arg-type]


def given(request: Request, *devices: Device) -> list[str]:
    answer = fit(Inventory(devices), request)
    assert isinstance(answer, Allocation), answer
    return [piece.device for piece in answer.pieces]


def test_row_02_a_share_with_a_limit_comes_before_one_without_and_that_before_a_whole_card() -> (
    None
):
    assert ["one-0"] == given(share(), WHOLE, OPEN, CONFINED)
    assert ["two-0"] == given(share(), WHOLE, OPEN)
    assert ["three-0"] == given(share(), WHOLE)


def test_a_whole_card_is_taken_once_no_share_is_left() -> None:
    full = fit(Inventory((CONFINED,)), Request(asks=(Ask(memory=3 * GiB, core=80),)))
    assert isinstance(full, Allocation)
    answer = fit(Inventory((WHOLE, CONFINED), (full,)), share())

    assert isinstance(answer, Allocation)
    assert ["three-0"] == [piece.device for piece in answer.pieces]


def test_who_asks_for_a_whole_card_or_for_all_of_one_gets_any_that_serves() -> None:
    everything = (WHOLE, OPEN, CONFINED)

    assert ["three-0"] == given(share(exclusive=True), *everything)
    assert ["three-0"] == given(Request(asks=(Ask(),)), *everything)
    assert ["three-0"] == given(Request(asks=(Ask(memory_percent=100),)), *everything)
    assert ["three-0"] == given(Request(asks=(Ask(memory=24 * GiB),)), *everything)
    assert ["one-0"] == given(Request(asks=(Ask(memory=24 * GiB, core=50),)), *everything)


def test_one_of_two_asks_gets_a_share_where_only_one_share_fits() -> None:
    mixed = [evolve(d, vendor="three") for d in (CONFINED, WHOLE, evolve(WHOLE, uuid="three-1"))]

    assert "one-0" in given(share(2), *mixed)


def test_the_best_links_are_no_reason_to_take_whole_cards() -> None:
    whole = [
        evolve(WHOLE, uuid=name, links=(Link(peer=peer, kind="bridge", weight=9),))
        for name, peer in (("a", "b"), ("b", "a"))
    ]
    shares = [evolve(CONFINED, uuid=name, vendor="three") for name in ("c", "d")]

    assert ["c", "d"] == sorted(given(share(2, links=True), *whole, *shares))


def test_the_explanation_puts_what_is_conceded_before_the_policys_cost() -> None:
    explained = explain(Inventory((WHOLE, OPEN, CONFINED)), share())

    assert [2, 1, 0] == [one.cost[0] for one in explained.verdicts if one.cost]
    assert ["one-0"] == [one.device for one in explained.verdicts if one.chosen]


@pytest.mark.parametrize("policy", WEIGHTS)
def test_a_cluster_takes_a_node_that_gives_a_share_before_one_that_gives_a_card(
    policy: str,
) -> None:
    nodes = (
        PlacedNode(name="whole", devices=(WHOLE,)),
        PlacedNode(name="shares", devices=(CONFINED,)),
    )
    cluster = Asked(nodes, weights=WEIGHTS[policy])
    demand = pod(memory=3 * GiB, core=30)

    assert ["one-0"] * 3 + ["three-0"] == [where(placed(cluster, demand))[0] for _ in range(4)]


def test_containers_of_one_pod_get_shares_while_there_are_any() -> None:
    cluster = Asked([PlacedNode(name="a", devices=(WHOLE, CONFINED))])
    placement = cluster.place(PlacedPod(containers=(PlacedContainer(request=share()),) * 3))

    assert isinstance(placement, Placement)
    assert ["one-0"] == where(placement)
    assert {CORE: 90, MEMORY: 9 * GiB, SLOTS: 3} == dict(placement.holds[0].takes)
