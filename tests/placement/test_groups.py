"""What devices ask of their tenants together: groups are taken whole, shares follow one policy."""

from itertools import permutations, product
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hetero.model import (
    POLICY_SLOTS,
    SLOTS,
    Ask,
    Device,
    MultiDevice,
    Policy,
    Refusal,
    Request,
    Templated,
)
from hetero.model.units import GiB
from hetero.placement.cluster import PlacedContainer, PlacedPod, Placement

from .conftest import KINDS, Asked, cards, node, placed, pod, refused, where


def modules(count: int, *, on: str = "n", size: int = 2) -> tuple[Device, ...]:
    """Return the dies of as many modules, each cut by a menu and given whole by the module."""
    menu = KINDS["menu"][0]
    assert isinstance(menu, Templated)
    made = cards("menu", count * size, node=on)
    return tuple(
        evolve(
            die, group=f"module {place // size}", granularity=evolve(menu, multi=MultiDevice.WHOLE)
        )
        for place, die in enumerate(made)
    )


def slice_of(uuid: str) -> PlacedPod:
    return pod(asks=(Ask(memory=GiB, device=uuid),))


def of(placement: Placement) -> set[str]:
    """The modules a placement holds dies of."""
    return {str(int(uuid.rpartition("-")[2]) // 2) for uuid in where(placement)}


@pytest.mark.parametrize("count", [1, 3])
def test_an_odd_number_of_dies_is_refused_and_says_why(count: int) -> None:
    asked = Asked([node("a", modules(2, on="a"))])

    assert "0 of 1 node: 1 only given 2 at a time" == refused(asked, pod(count))


def test_a_pair_is_one_module_though_single_dies_of_two_are_free() -> None:
    asked = Asked([node("a", modules(3, on="a"))])
    for die in ("a/menu-0", "a/menu-3"):
        placed(asked, slice_of(die))

    assert {"2"} == of(placed(asked, pod(2)))
    assert "lack 2 whole devices" in refused(asked, pod(2))


def test_a_node_that_has_no_free_module_leaves_the_pod_to_the_next() -> None:
    asked = Asked([node("a", modules(2, on="a")), node("b", modules(2, on="b"))])
    for die in ("a/menu-0", "a/menu-2"):
        placed(asked, slice_of(die))

    assert ["b/menu-0", "b/menu-1"] == where(placed(asked, pod(2)))


def test_slices_are_cut_from_single_dies() -> None:
    asked = Asked([node("a", modules(1, on="a"))])
    some = [placed(asked, pod(memory=8 * GiB)) for _ in range(2)]

    assert 1 == len({uuid for placement in some for uuid in where(placement)})


def test_containers_of_one_pod_share_no_module_that_one_takes_whole() -> None:
    asked = Asked([node("a", modules(2, on="a"))])
    pair = PlacedContainer(request=Request(asks=(Ask(), Ask())))
    slice_ = PlacedContainer(request=Request(asks=(Ask(memory=GiB),)))
    both = placed(asked, PlacedPod(containers=(slice_, pair)))

    assert [1, 2] == [len(allocation.pieces) for allocation in both.allocations if allocation]
    assert (3, {"0", "1"}) == (len(where(both)), of(both))
    assert "have no room for all containers at once" in refused(
        Asked([node("a", modules(1, on="a"))]), PlacedPod(containers=(slice_, pair))
    )


def test_containers_that_want_one_die_each_do_not_make_a_pair() -> None:
    asked = Asked([node("a", modules(1, on="a"))])
    wants_one = PlacedContainer(request=Request(asks=(Ask(),)))

    assert "1 only given 2 at a time" in refused(
        asked, PlacedPod(containers=(wants_one, wants_one))
    )


@given(
    st.lists(st.booleans(), min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=3),
    st.sampled_from([1, 2, 3]),
)
def test_a_pod_fits_exactly_when_some_choice_of_dies_does(
    used: list[bool], demands: list[tuple[int, bool]], size: int
) -> None:
    """Dies in modules of `size` of which some hold a slice; containers of whole dies or a slice.

    Three slices of 16 GiB fit on a die, for want of its extra counter.
    """
    count = -(-len(used) // size)
    dies = modules(count, on="a", size=size)
    used = used + [False] * (len(dies) - len(used))
    asked = Asked([node("a", dies)])
    for place, is_used in enumerate(used):
        if is_used:
            placed(asked, pod(asks=(Ask(memory=16 * GiB, device=f"a/menu-{place}"),)))
    demands = [(1, True) if sliced else (dies_, False) for dies_, sliced in demands]
    some = PlacedPod(
        containers=tuple(
            PlacedContainer(
                request=Request(asks=(Ask(memory=16 * GiB),) if sliced else (Ask(),) * wanted)
            )
            for wanted, sliced in demands
        )
    )

    def serves(left_of: tuple[int, ...], left: list[tuple[int, bool]]) -> bool:
        if not left:
            return True
        (wanted, sliced), rest = left[0], left[1:]
        if sliced:
            return any(
                serves((*left_of[:die], left_of[die] - 1, *left_of[die + 1 :]), rest)
                for die in range(len(left_of))
                if left_of[die]
            )
        if wanted % size:
            return False
        for chosen in permutations(range(count), wanted // size):
            dies = {module * size + die for module, die in product(chosen, range(size))}
            if all(left_of[die] == 3 for die in dies):
                after = tuple(0 if die in dies else h for die, h in enumerate(left_of))
                if serves(after, rest):
                    return True
        return False

    expected = serves(tuple(2 if one else 3 for one in used), demands)
    assert expected == isinstance(asked.find(some), Placement)


def test_a_whole_die_takes_all_its_slots() -> None:
    asked = Asked([node("a", modules(1, on="a"))])

    assert [8, 8] == [usage.takes[SLOTS] for usage in placed(asked, pod(2)).holds]


# --- one policy for all shares of a device -------------------------------------------------------


def agreeing(count: int, *, on: str = "a") -> tuple[Device, ...]:
    """Return freely divisible cards whose shares must all follow one policy."""
    return tuple(
        evolve(card, capacity={**card.capacity, **POLICY_SLOTS})
        for card in cards("free", count, node=on)
    )


def by(policy: Policy, *, memory: int = 8, **request: Any) -> PlacedContainer:
    asks = (Ask(memory=memory * GiB),)
    return PlacedContainer(request=Request(asks=asks, policy=policy, **request))


def test_shares_by_another_policy_go_to_another_card() -> None:
    asked = Asked([node("a", agreeing(2))])
    first_pod, other, third = (PlacedPod(containers=(by(policy),)) for policy in Policy)
    first = placed(asked, first_pod)

    assert where(first) == where(placed(asked, first_pod)) != where(placed(asked, other))
    assert "0 of 1 node: 1 shared by another policy" == refused(asked, third)


def test_a_card_that_is_empty_again_takes_any_policy() -> None:
    asked = Asked([node("a", agreeing(1))])
    fixed, elastic = (PlacedPod(containers=(by(p),)) for p in (Policy.FIXED, Policy.ELASTIC))
    standing = placed(asked, fixed)

    assert isinstance(asked.find(elastic), Refusal)
    asked.remove(standing)
    assert isinstance(asked.find(elastic), Placement)


def test_containers_by_two_policies_share_no_card() -> None:
    both = PlacedPod(containers=(by(Policy.FIXED), by(Policy.ELASTIC)))

    assert 2 == len(where(placed(Asked([node("a", agreeing(2))]), both)))
    assert "have no room for all containers at once" in refused(
        Asked([node("a", agreeing(1))]), both
    )


def test_a_whole_card_has_no_policy_to_agree_on() -> None:
    asked = Asked([node("a", agreeing(1))])
    alone = PlacedPod(containers=(by(Policy.ELASTIC, exclusive=True),))

    held = placed(asked, alone)
    assert dict(agreeing(1)[0].capacity) == held.holds[0].takes
