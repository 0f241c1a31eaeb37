"""Cards are read one by one, and linked to those that can be given."""

from types import SimpleNamespace

from attrs import evolve

from hetero.model import Device, Link
from hetero.model.units import GiB
from hetero.plugin import DriverError, each_card, pci_of, ways
from hetero.testing import rack

FOUR = rack(*[8 * GiB] * 4)


def read(place: int) -> Device:
    if place == 2:
        raise DriverError("zephyr_card(2): error 5", 5)
    return evolve(FOUR[place], health="on fire" if place == 3 else "ok")


def test_a_card_that_cannot_be_read_is_a_line_and_its_neighbours_are_linked() -> None:
    asked: list[tuple[int, int]] = []

    def between(first: Device, second: Device) -> str:
        asked.append((first.index, second.index))
        return "PIX" if first.index else "Fast"

    first, second, *rest = (
        card for card in each_card(read, range(4), between, {"Fast": 9}) if isinstance(card, Device)
    )

    assert (Link("memory-1", "Fast", 9),) == first.links
    assert (Link("memory-0", "PIX", 5),) == second.links
    assert [(3, ())] == [(card.index, card.links) for card in rest]
    assert [(0, 1), (1, 0)] == asked  # nothing is asked about a card that is not given


def test_what_fails_says_of_which_card() -> None:
    def between(first: Device, second: Device) -> str:
        raise DriverError("zephyr_way: error 7", 7)

    outcomes = list(each_card(read, range(3), between))
    errors = [str(error) for error in outcomes if isinstance(error, DriverError)]

    assert [
        "card 2: zephyr_card(2): error 5",
        "links of card 0: zephyr_way: error 7",
        "links of card 1: zephyr_way: error 7",
    ] == errors
    assert [(), ()] == [card.links for card in outcomes if isinstance(card, Device)]


def test_a_way_of_no_known_name_is_none() -> None:
    first, _ = each_card(read, range(2), lambda first, second: "Carrier Pigeon")

    assert isinstance(first, Device)
    assert () == first.links


def test_codes_are_named_from_the_nearest_way_to_the_farthest() -> None:
    named = {0: "board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
    assert named == ways(range(0, 60, 10))


def test_an_address_is_shown_alike_with_or_without_a_function() -> None:
    at = SimpleNamespace(domain=0, bus=0x18, device=3)

    assert ("0000:18:03.0", "0000:18:03.2") == (
        pci_of(at),
        pci_of(SimpleNamespace(**vars(at), function=2)),
    )
    assert pci_of(None) is None
