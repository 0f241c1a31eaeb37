"""Grants from before contexts counted keep their meaning; their card takes nothing new."""

from pathlib import Path

import pytest
from attrs import evolve

from hetero.model import Enforcement
from hetero.model.errors import NoRoom
from hetero.model.units import GiB
from hetero.node.ledger.grant_file import read_limits
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.node.settings import NodeSettings
from hetero.node.view.doctor import Diagnosis, examine
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

from .conftest import admit, drop, request


@pytest.fixture
def before(tmp_path: Path) -> Node:
    """A node whose contexts, of 1 GiB each, are no grant's, with a card of 16 GiB."""
    vendor = MemoryVendor(rack(16 * GiB, enforcement=Enforcement.PRELOAD), limiter="cuda")
    vendor._vendor = evolve(vendor._vendor, context_bytes=GiB)
    return Node(
        registry=Registry.of(vendor),
        ledger=Ledger(tmp_path / "state"),
        settings=NodeSettings(context=False),
    )


def told(node: Node) -> list[str]:
    return [
        finding.says
        for finding in examine(node)
        if finding.verdict is Diagnosis.BAD and ":" in finding.subject
    ]


def test_contexts_of_older_grants_are_no_room_for_new_ones(before: Node) -> None:
    handles = [admit(before, request(memory=size * GiB)) for size in (8, 7)]
    after = evolve(before, settings=NodeSettings())

    with pytest.raises(NoRoom, match="1 GiB more than it has are promised"):
        admit(after, request(memory=2 * GiB))
    (sentence,) = told(after)
    assert "nothing new is given of it: 1 GiB more than it has are promised" in sentence
    assert [] == told(before)
    for handle in handles:
        assert [False] == [limit.context for limit in read_limits(handle.path / "tenant/grant")]

    drop(handles.pop())

    admit(after, request(memory=2 * GiB))
    assert [] == told(after)
    drop(handles.pop())


def test_what_contexts_of_older_grants_leave_is_given(before: Node) -> None:
    """Contexts of a new grant are within its memory."""
    admit(before, request(memory=8 * GiB))
    after = evolve(before, settings=NodeSettings())

    admit(after, request(memory=7 * GiB))

    assert [] == told(after)
