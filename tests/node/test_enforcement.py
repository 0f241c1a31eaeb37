"""What a grant is kept by, where its card is cut."""

from pathlib import Path

import pytest
from attrs import evolve

from hetero.model import Enforcement
from hetero.model.units import GiB
from hetero.node.ledger.ledger import ContainerInfo, Grant, Ledger
from hetero.node.node import Node
from hetero.node.view.enforcement import enforcement_of
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack
from tests.node.conftest import admit, request

CARD = evolve(rack(16 * GiB)[0], enforcement=Enforcement.PARTITION)


@pytest.fixture
def grant(tmp_path: Path) -> Grant:
    """A part of the card for a program without a container."""
    node = Node(registry=Registry.of(MemoryVendor([CARD])), ledger=Ledger(tmp_path / "state"))
    return admit(node, request(memory=4 * GiB, core=25)).grant


def kept_by(grant: Grant) -> Enforcement | None:
    (piece,) = grant.allocation.pieces
    return enforcement_of(grant, piece, CARD)


def test_a_part_of_a_cut_card_is_kept_by_the_partition_in_containers_alone(grant: Grant) -> None:
    """They have the device nodes of their part, and a program beside them has all."""
    container = ContainerInfo(name="main", id="4f")
    contained = (
        evolve(grant, share="box"),
        evolve(grant, owner={"pod": "train"}),
        evolve(grant, container=container),
    )

    assert Enforcement.VARIABLE is kept_by(grant)
    assert [Enforcement.PARTITION] * 3 == [kept_by(one) for one in contained]


def test_of_a_card_that_is_not_known_nobody_says_what_keeps_its_grants(grant: Grant) -> None:
    (piece,) = grant.allocation.pieces
    assert enforcement_of(grant, piece, None) is None
