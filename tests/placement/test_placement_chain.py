"""Cards in HAMi's order: keys in a chain, and weights of slots, core and memory."""

import pytest
from attrs import evolve

from hetero.model import Allocation, Ask, Inventory, Request
from hetero.model.units import GiB
from hetero.placement import fit
from hetero.placement.placement_policy import CardKey, PlacementChain
from hetero.testing import rack

BINPACK, SPREAD, NUMA = CardKey.BINPACK, CardKey.SPREAD, CardKey.NUMA
#: 0 and 1 are on NUMA node 0, 2 and 3 on node 1.
CARDS = tuple(
    evolve(device, uuid=f"card-{number}", numa=number // 2, index=number)
    for number, device in enumerate(rack(*(24 * GiB,) * 4))
)


def asking(memory_gib: int, core: int, cards: int = 1) -> Request:
    return Request(asks=(Ask(memory=memory_gib * GiB, core=core),) * cards)


def standing(*requests: tuple[str, Request]) -> Inventory:
    """Return the cards with these requests on the cards that are named."""
    inventory = Inventory(CARDS)
    for uuid, request in requests:
        (ask,) = request.asks
        named = evolve(request, asks=(evolve(ask, device=uuid),))
        got = fit(inventory, named)
        assert isinstance(got, Allocation), got
        inventory = evolve(inventory, standing=(*inventory.standing, got))
    return inventory


def chosen(inventory: Inventory, order: PlacementChain, request: Request) -> list[str]:
    got = fit(inventory, request, policy=order)
    assert isinstance(got, Allocation), got
    return sorted(piece.device for piece in got.pieces)


@pytest.mark.parametrize(
    ("keys", "card"),
    [
        ((BINPACK,), "card-0"),
        ((SPREAD,), "card-3"),
        ((NUMA,), "card-3"),
        ((NUMA, BINPACK), "card-2"),
        ((NUMA, SPREAD), "card-3"),
        ((BINPACK, NUMA), "card-0"),
    ],
)
def test_each_key_settles_the_ties_of_those_before(keys: tuple[CardKey, ...], card: str) -> None:
    inventory = standing(("card-0", asking(8, 40)), ("card-2", asking(4, 20)))

    assert [card] == chosen(inventory, PlacementChain(keys=keys), asking(1, 10))


def test_numa_is_a_key_and_no_condition() -> None:
    inventory = standing(("card-3", asking(20, 95)))
    order = PlacementChain(keys=(NUMA, BINPACK))

    assert ["card-1", "card-2"] == chosen(inventory, order, asking(1, 10, cards=2))


@pytest.mark.parametrize(
    ("weights", "card"),
    [
        ({"memory": 1, "core": 0, "slots": 0}, "card-0"),
        ({"memory": 0, "core": 1, "slots": 0}, "card-1"),
        ({"memory": 0, "core": 0, "slots": 1}, "card-2"),
        ({"memory": 1, "core": 3, "slots": 1}, "card-1"),
    ],
)
def test_weights_say_what_makes_a_card_full(weights: dict[str, int], card: str) -> None:
    tiny = ("card-2", asking(1, 1))
    inventory = standing(("card-0", asking(12, 5)), ("card-1", asking(2, 60)), *(tiny,) * 5)

    assert [card] == chosen(inventory, PlacementChain(keys=(BINPACK,), **weights), asking(1, 10))


def test_equal_cards_go_by_their_drivers_numbers_the_last_first() -> None:
    for keys in ((BINPACK,), (SPREAD,)):
        assert ["card-3"] == chosen(Inventory(CARDS), PlacementChain(keys=keys), asking(1, 10))
