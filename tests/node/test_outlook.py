"""Of which cards a driver is asked what programs without a grant hold, before one is given."""

from pathlib import Path

import pytest

from hetero.model import Allocation, Device, Refusal, Usage
from hetero.model.units import GiB, MiB
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.node.outlook import Outlook
from hetero.placement import fit
from hetero.plugin.hookspecs import hookimpl
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

from .conftest import admit, drop, request


class _Asked(MemoryVendor):
    """Remembers of which cards it was asked, in that order."""

    def __init__(self, devices: tuple[Device, ...]) -> None:
        super().__init__(devices)
        self.asked: list[str] = []
        #: A file, and whether it was there at each question.
        self.lock_path, self.was_locked = Path(), list[bool]()

    @hookimpl
    def hetero_observe(self, device: Device) -> Usage | None:
        self.asked.append(device.uuid)
        self.was_locked.append(self.lock_path.exists())
        return self.usage.get(device.uuid)


@pytest.fixture
def vendor() -> _Asked:
    return _Asked(rack(*(16 * GiB,) * 4, slots=1))


@pytest.fixture
def node(vendor: _Asked, tmp_path: Path) -> Node:
    return Node(registry=Registry.of(vendor), ledger=Ledger(tmp_path / "state"))


def card_of(answer: Allocation | Refusal | None) -> str:
    assert isinstance(answer, Allocation)
    (piece,) = answer.pieces
    return piece.device


def test_a_driver_is_asked_before_the_ledger_was_ever_locked(node: Node, vendor: _Asked) -> None:
    vendor.lock_path = node.ledger.path / "lock"
    handle = admit(node, request(memory=GiB))

    assert [False] == vendor.was_locked
    assert vendor.lock_path.exists()
    drop(handle)


def test_where_others_take_cards_meanwhile_some_more_are_asked_about_at_once(
    tmp_path: Path,
) -> None:
    vendor = _Asked(rack(*(16 * GiB,) * 12, slots=1))
    node = Node(registry=Registry.of(vendor), ledger=Ledger(tmp_path / "state"))
    outlook = Outlook(node, node.discover(), request(memory=GiB))
    before = node.snapshot()
    assert outlook.choose(before) is None
    outlook.look(before)
    (first,) = vendor.asked

    handles = [admit(node, request(memory=GiB))]  # takes that card whole: it has one slot
    vendor.asked.clear()
    after = node.snapshot()
    assert outlook.choose(after) is None
    outlook.look(after)

    chosen = card_of(outlook.choose(after))
    assert (5, True, True) == (len(vendor.asked), chosen in vendor.asked, first != chosen)
    handles += [admit(node, request(memory=GiB)) for _ in range(4)]
    assert card_of(outlook.choose(node.snapshot())) in vendor.asked
    for handle in handles:
        drop(handle)


def test_a_card_that_a_program_without_a_grant_holds_has_all_others_asked_about(
    node: Node, vendor: _Asked
) -> None:
    asked, discovery, snapshot = request(memory=GiB), node.discover(), node.snapshot()
    outlook = Outlook(node, discovery, asked)
    assert outlook.choose(snapshot) is None
    chosen = card_of(fit(node.inventory(discovery, snapshot), asked))
    vendor.usage[chosen] = Usage(memory=8 * GiB, processes={2**22 + 1: 8 * GiB + 64 * MiB})
    outlook.look(snapshot)

    assert outlook.choose(snapshot) is None
    outlook.look(snapshot)

    assert sorted(vendor.asked) == sorted(device.uuid for device in vendor.devices)
    assert card_of(outlook.choose(snapshot)) != chosen
