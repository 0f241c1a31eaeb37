"""Named shares: they stand until they are removed, and their specs follow the cards there are."""

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest
from attrs import evolve

from hetero.cli import _json, share
from hetero.cli._show import put
from hetero.container.cdi import Specs
from hetero.container.share import change, create, remove, settle
from hetero.model import MEMORY, Allocation, Ask, Device, Edits, Mount, Request
from hetero.model.errors import NotFound, Refused
from hetero.model.units import GiB
from hetero.node.grants import LocalGrants
from hetero.node.ledger.ledger import Ledger
from hetero.node.node import Node
from hetero.plugin.driver import DriverError
from hetero.plugin.hookspecs import hookimpl
from hetero.testing import MemoryVendor, rack
from tests.container.conftest import Carded, node_with

ASK = Request(asks=(Ask(memory=GiB, core=30),))


class Sliced(Carded):
    """A vendor that cuts slices, as drivers do: a reboot takes them away."""

    def __init__(self) -> None:
        super().__init__(rack(16 * GiB))
        self.slices: dict[str, int] = {}
        self.cut, self.largest = 0, 16 * GiB

    @hookimpl
    def hetero_enforce(self, allocation: Allocation, devices: Sequence[Device]) -> Edits:
        """Make a slice, or bring the one the grant has to its size."""
        (grant,) = allocation.pieces
        if grant.takes[MEMORY] > self.largest:
            raise DriverError("no room")
        if grant.part is None:
            self.cut += 1
        elif grant.part not in self.slices:
            raise DriverError(f"no slice {grant.part}")
        part = grant.part or f"slice-{self.cut}"
        self.slices[part] = grant.takes[MEMORY]
        return Edits(env={"SLICE": f"{part}:{self.slices[part]}"}, parts={grant.device: part})

    @hookimpl
    def hetero_reconcile(self, device: Device, parts: AbstractSet[str]) -> None:
        """Destroy what nobody holds."""
        self.slices = {name: size for name, size in self.slices.items() if name in parts}


@pytest.fixture
def slicing() -> Sliced:
    return Sliced()


@pytest.fixture
def sliced(tmp_path: Path, slicing: Sliced) -> Node:
    return node_with(slicing, tmp_path)


def reboot(node: Node, specs: Specs, vendor: Sliced | None = None) -> None:
    (node.ledger.path / "boot").write_text("another\n")
    for name in specs.owned(node.ledger.path):
        specs.remove(name)
    if vendor:
        vendor.slices.clear()


def env(specs: Specs, name: str) -> list[str]:
    (device,) = json.loads(specs.path(name).read_text())["devices"]
    variables: list[str] = device["containerEdits"]["env"]
    return variables


def test_a_share_s_slice_is_cut_once_and_again_after_a_reboot(
    sliced: Node, slicing: Sliced, specs: Specs
) -> None:
    create(sliced, "train", ASK, specs=specs)
    settle(sliced, specs=specs)
    assert {"slice-1": GiB} == slicing.slices

    reboot(sliced, specs, slicing)
    settled = settle(sliced, specs=specs)
    settle(sliced, specs=specs)

    assert ({"slice-2": GiB}, ()) == (slicing.slices, settled.words)
    assert "slice-2" == settled.shares[0].entry.allocation.pieces[0].part
    assert settled.shares[0].entry == sliced.snapshot().grants[0]
    assert f"SLICE=slice-2:{GiB}" in env(specs, "train")


def test_a_share_that_is_a_whole_card_is_listed_with_all_of_its_core(
    sliced: Node, specs: Specs, capsys: pytest.CaptureFixture[str]
) -> None:
    create(sliced, "card", Request(asks=(Ask(),)), specs=specs)
    settled = settle(sliced, specs=specs)
    put(share._render(settled))

    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("card"))
    assert "100 %" in row
    (listed,) = _json.shares(settled)["items"]
    assert [100.0] == [limit["core"] for limit in listed["limits"]]


def test_killed_while_it_cuts_again_no_slice_is_left_over(
    sliced: Node, slicing: Sliced, specs: Specs
) -> None:
    create(sliced, "train", ASK, specs=specs)
    reboot(sliced, specs, slicing)
    slicing.slices["slice-9"] = GiB  # of the one who was killed before it was entered

    settle(sliced, specs=specs)

    assert {"slice-2": GiB} == slicing.slices


def test_a_share_s_slice_is_resized_and_its_spec_says_so(
    sliced: Node, slicing: Sliced, specs: Specs
) -> None:
    create(sliced, "train", ASK, specs=specs)

    change(sliced, "train", Ask(memory=2 * GiB), specs=specs)

    assert {"slice-1": 2 * GiB} == slicing.slices
    assert f"SLICE=slice-1:{2 * GiB}" in env(specs, "train")


def test_a_share_that_cannot_be_cut_again_is_said_and_its_neighbours_stand(
    sliced: Node, slicing: Sliced, specs: Specs
) -> None:
    create(sliced, "large", Request(asks=(Ask(memory=8 * GiB),)), specs=specs)
    create(sliced, "train", ASK, specs=specs)
    reboot(sliced, specs, slicing)
    slicing.largest = 4 * GiB

    settled = settle(sliced, specs=specs)

    assert ("share large cannot be used: memory: enforce: no room",) == settled.words
    assert (False, True) == (specs.path("large").exists(), specs.path("train").exists())


def test_a_share_stands_until_it_is_removed_and_after_a_reboot(node: Node, specs: Specs) -> None:
    create(node, "train", ASK, specs=specs)
    with pytest.raises(Refused, match="share train is there already"):
        create(node, "train", ASK, specs=specs)
    (before,) = node.snapshot().grants
    reboot(node, specs)

    (view,) = settle(node, specs=specs).shares

    assert before == view.entry
    assert specs.path("train").exists()
    remove(node, "train", specs=specs)
    assert ((), ()) == (node.snapshot().grants, settle(node, specs=specs).shares)
    assert not specs.path("train").exists()
    with pytest.raises(NotFound, match="no share 'train'"):
        remove(node, "train", specs=specs)


def test_a_share_that_is_refused_takes_nothing(node: Node, specs: Specs) -> None:
    with pytest.raises(Refused, match="0 of 1 device"):
        create(node, "large", Request(asks=(Ask(memory=17 * GiB),)), specs=specs)

    assert ((), False) == (node.snapshot().grants, specs.path("large").exists())


def test_the_spec_of_a_card_that_is_gone_goes_with_a_word(
    node: Node, vendor: MemoryVendor, specs: Specs
) -> None:
    create(node, "train", ASK, specs=specs)
    cards = list(vendor.devices)
    vendor.devices.clear()

    settled = settle(node, specs=specs)

    assert ("memory-0",) == settled.shares[0].gone
    assert settled.words[0].startswith("removed the spec of train: memory-0 is gone")
    assert () == settle(node, specs=specs).words
    vendor.devices += cards
    assert () == settle(node, specs=specs).shares[0].gone
    assert specs.path("train").exists()


def test_a_spec_without_a_share_is_removed_and_another_ledger_s_is_not(
    node: Node, vendor: MemoryVendor, specs: Specs, tmp_path: Path
) -> None:
    other = evolve(node, ledger=Ledger(tmp_path / "other", persistent=tmp_path / "other-kept"))
    limited = (Mount(f"{other.ledger.path}/grants/1/tenant/grant", "/etc/hetero/grant"),)
    specs.put("theirs", Edits(mounts=limited), owner=other.ledger.path)
    mounts = (Mount(f"{node.ledger.path}/grants/1/tenant/grant", "/etc/hetero/grant"),)
    specs.put("ours", Edits(mounts=mounts), owner=node.ledger.path)

    settled = settle(node, specs=specs)

    assert ("removed the spec of ours: no such share stands",) == settled.words
    assert (True, False) == (specs.path("theirs").exists(), specs.path("ours").exists())
    with pytest.raises(Refused, match="choose another name"):
        create(node, "theirs", ASK, specs=specs)
    assert () == node.snapshot().grants


def test_a_share_s_memory_is_counted(node: Node, specs: Specs) -> None:
    create(node, "train", ASK, specs=specs)

    with pytest.raises(Refused, match=r"1 not empty \(16 GiB wanted, largest free 15\)"):
        LocalGrants(node).take(Request(asks=(Ask(memory=16 * GiB),)))
    assert [GiB] == [entry.limits[0].memory for entry in node.snapshot().grants]
    assert GiB == node.snapshot().grants[0].allocation.pieces[0].takes[MEMORY]
