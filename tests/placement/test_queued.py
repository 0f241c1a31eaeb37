"""Who comes later takes nothing that who waits may come to need."""

from attrs import evolve

from hetero.model import Allocation, Ask, Inventory, Refusal, Request, Selector
from hetero.model.units import GiB
from hetero.placement import fit
from hetero.placement.queued import kept_for
from hetero.testing import rack

CARDS = rack(16 * GiB, 16 * GiB)
LARGE, SMALL = Request(asks=(Ask(memory=12 * GiB),)), Request(asks=(Ask(memory=2 * GiB),))


def held(inventory: Inventory, *requests: Request) -> Inventory:
    """Return the inventory with these requests given."""
    for request in requests:
        answer = fit(inventory, request)
        assert isinstance(answer, Allocation)
        inventory = evolve(inventory, standing=(*inventory.standing, answer))
    return inventory


def answer_behind(earlier: Request, request: Request, inventory: Inventory) -> Allocation | Refusal:
    """Return what a request gets while an earlier one waits."""
    return fit(kept_for([earlier], inventory, request), request)


def test_a_small_request_does_not_take_what_a_large_one_waits_for() -> None:
    full = held(Inventory(CARDS), LARGE, LARGE)

    assert isinstance(fit(full, SMALL), Allocation)
    assert isinstance(answer_behind(LARGE, SMALL, full), Refusal)


def test_a_small_request_takes_what_is_left_beside_a_large_one_that_fits() -> None:
    assert isinstance(answer_behind(LARGE, SMALL, Inventory(CARDS)), Allocation)


def test_a_small_request_passes_on_a_card_that_the_large_one_cannot_use() -> None:
    cards = rack(16 * GiB, 8 * GiB)
    full = held(Inventory(cards), LARGE)

    answer = answer_behind(LARGE, SMALL, full)

    assert isinstance(answer, Allocation)
    assert [cards[1].uuid] == [piece.device for piece in answer.pieces]


def test_a_request_for_another_model_passes() -> None:
    full = held(Inventory(CARDS), LARGE, LARGE)
    elsewhere = evolve(LARGE, model=Selector(include=("none of these",)))

    assert isinstance(answer_behind(elsewhere, SMALL, full), Allocation)


def test_a_request_that_names_a_card_keeps_that_one_alone() -> None:
    full = held(Inventory(CARDS), LARGE, LARGE)
    named = Request(asks=(Ask(memory=12 * GiB, device="1"),))

    answer = answer_behind(named, SMALL, full)

    assert isinstance(answer, Allocation)
    assert [CARDS[0].uuid] == [piece.device for piece in answer.pieces]


def test_a_request_without_a_core_limit_passes_one_that_waits_for_core() -> None:
    everything = Request(asks=(Ask(memory=GiB, core=90),))
    half = Request(asks=(Ask(memory=GiB, core=50),))
    full = held(Inventory(CARDS), everything, everything)

    assert isinstance(answer_behind(half, SMALL, full), Allocation)
    assert isinstance(answer_behind(half, Request(asks=(Ask(memory=GiB, core=10),)), full), Refusal)
