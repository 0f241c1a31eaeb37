"""What was granted is confined, observed and reconciled by its own vendor, in one way for all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hetero import plugin
from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Device,
    DeviceAllocation,
    Edits,
    Mount,
    Usage,
)
from hetero.model.errors import Refused
from hetero.model.units import GiB
from hetero.node.inventory import hidden
from hetero.plugin.vendor import Model, Vendor
from hetero.registry.registry import Registry
from hetero.testing import MemoryVendor, rack

NOTES = Path("/nonexistent")  # what no vendor here writes to


def granted(*devices: Device) -> Allocation:
    return Allocation(
        pieces=tuple(
            DeviceAllocation(device=d.uuid, vendor=d.vendor, takes=d.capacity, core=None)
            for d in devices
        )
    )


class Runtime:
    """A vendor whose cards are device nodes and a mount, and which fails on demand."""

    def __init__(self, *, by: str = "index") -> None:
        self.broken = False
        self._vendor = Vendor(
            api=2,
            name="runtime",
            title="Runtime",
            models=(Model(match="*", granularity=plugin.Whole()),),
            visible=("RUNTIME_CARDS", "RUNTIME_LEGACY"),
            visible_by=by,
        )

    @plugin.hookimpl
    def hetero_vendor(self) -> Vendor:
        return self._vendor

    @plugin.hookimpl
    def hetero_enforce(self, allocation: Allocation, devices: Sequence[Device]) -> Edits | None:
        if self.broken:
            raise OSError("no slice left on the card")
        if len(devices) == 1:
            return None
        return Edits(
            env={"RUNTIME_CARDS": "all"},
            mounts=(Mount("/opt/runtime", "/opt/runtime"),),
            device_nodes=tuple(f"/dev/runtime{device.index}" for device in devices),
        )

    @plugin.hookimpl
    def hetero_observe(self, device: Device) -> Usage:
        if self.broken:
            raise OSError("driver went away")
        return Usage(memory=GiB, core=0.5)


def test_each_vendor_confines_its_own_grants_and_the_edits_are_put_together() -> None:
    memories, runtimes = rack(GiB, GiB), rack(GiB, GiB, vendor="runtime")
    registry = Registry.of(MemoryVendor(memories), Runtime())

    edits = registry.enforce(
        granted(memories[1], *runtimes), [*memories, *runtimes], directory=NOTES
    )

    # What a vendor says takes the place of what it declared, and the rest of that stands.
    assert {
        "MEMORY_VISIBLE_DEVICES": "memory-1",
        "RUNTIME_CARDS": "all",
        "RUNTIME_LEGACY": "0,1",
    } == edits.env
    assert (Mount("/opt/runtime", "/opt/runtime"),) == edits.mounts
    assert ("/dev/runtime0", "/dev/runtime1") == edits.device_nodes


def test_a_vendor_that_says_nothing_is_confined_by_what_it_declared() -> None:
    cards = rack(GiB, GiB, vendor="runtime")

    by_index = Registry.of(Runtime()).enforce(granted(cards[1]), cards, directory=NOTES)
    by_uuid = Registry.of(Runtime(by="uuid")).enforce(granted(cards[1]), cards, directory=NOTES)

    assert {"RUNTIME_CARDS": "1", "RUNTIME_LEGACY": "1"} == by_index.env
    assert {"RUNTIME_CARDS": "runtime-1", "RUNTIME_LEGACY": "runtime-1"} == by_uuid.env


def test_a_container_counts_its_own_cards_and_its_runtime_the_machines() -> None:
    cards = rack(GiB, GiB, GiB, vendor="runtime", attributes={"minor": "7"})
    runtime = Runtime()
    runtime._vendor = evolve(
        runtime._vendor,
        runtime=plugin.ContainerRuntime(variables=("HOST_CARDS",)),
        container=plugin.ContainerEdits(
            device_nodes=("/dev/ctl", "/dev/card{index}", "/dev/minor{minor}", "{unknown}"),
            files=("/opt/{minor}",),
        ),
    )
    edits = Registry.of(runtime).enforce(granted(cards[2]), cards, directory=NOTES, container=True)

    assert {"RUNTIME_CARDS": "0", "RUNTIME_LEGACY": "0", "HOST_CARDS": "2"} == edits.env
    assert ("/dev/ctl", "/dev/card2", "/dev/minor7") == edits.device_nodes
    assert ("/opt/7",) == edits.files


def test_cards_of_a_vendor_that_was_not_granted_are_hidden() -> None:
    memories, runtimes = rack(GiB), rack(GiB, vendor="runtime")
    runtime = Runtime()
    registry = Registry.of(MemoryVendor(memories), runtime)

    both = evolve(registry.discover(), devices=(*memories, *runtimes))
    alone = evolve(both, devices=memories)
    assert {"RUNTIME_CARDS": "-1", "RUNTIME_LEGACY": "-1"} == hidden(granted(*memories), both).env
    assert {"MEMORY_VISIBLE_DEVICES": "-1"} == hidden(granted(*runtimes), both).env
    assert {} == hidden(granted(*memories), alone).env
    assert {} == hidden(granted(*memories, *runtimes), both).env


def test_a_part_is_named_instead_of_its_card() -> None:
    cards = rack(GiB)
    grant = DeviceAllocation(
        device="memory-0",
        vendor="memory",
        takes={MEMORY: 1, CORE: 1, SLOTS: 1},
        core=None,
        part="part-7",
    )

    edits = Registry.of(MemoryVendor(cards)).enforce(
        Allocation(pieces=(grant,)), cards, directory=NOTES
    )

    assert {"MEMORY_VISIBLE_DEVICES": "part-7"} == edits.env


def test_what_cannot_be_confined_is_an_error_that_names_the_vendor_and_the_stage() -> None:
    runtime = Runtime()
    runtime.broken = True
    cards = rack(GiB, vendor="runtime")

    with pytest.raises(Refused, match=r"^runtime: enforce: no slice left on the card$"):
        Registry.of(runtime).enforce(granted(*cards), cards, directory=NOTES)


def test_a_usage_is_what_the_vendor_says_and_unknown_when_it_fails_or_says_nothing() -> None:
    runtime = Runtime()
    (card,) = rack(GiB, vendor="runtime")
    (other,) = rack(GiB)
    registry = Registry.of(runtime, MemoryVendor([other]))

    assert Usage(memory=GiB, core=0.5) == registry.observe(card)
    assert Usage(memory=None, core=None) == registry.observe(other)
    runtime.broken = True
    assert Usage(memory=None, core=None) == registry.observe(card)


def test_an_answer_of_another_kind_is_an_error_when_confining_and_unknown_when_observing() -> None:
    class Nonsense(MemoryVendor):
        @plugin.hookimpl
        def hetero_enforce(self) -> Any:
            return "LIMIT=1"

        @plugin.hookimpl
        def hetero_observe(self, device: Device) -> Any:
            return 42

    cards = rack(GiB)
    registry = Registry.of(Nonsense(cards))

    with pytest.raises(Refused, match="memory: enforce: gave 'LIMIT=1', not Edits"):
        registry.enforce(granted(*cards), cards, directory=NOTES)
    assert Usage() == registry.observe(cards[0])


def test_only_vendors_that_cut_are_asked_to_reconcile(tmp_path: Path) -> None:
    asked: list[tuple[str, frozenset[str], Path]] = []

    class Cutting(MemoryVendor):
        @plugin.hookimpl
        def hetero_reconcile(self, device: Device, parts: frozenset[str], directory: Path) -> None:
            asked.append((device.uuid, parts, directory))
            if device.index:
                raise plugin.DriverError("error 9")

    cut, whole = rack(GiB, GiB), rack(GiB, vendor="runtime")
    registry = Registry.of(Cutting(cut), Runtime())
    grant = DeviceAllocation(device="memory-0", vendor="memory", takes={}, core=None, part="p1")
    faults = registry.reconcile([*cut, *whole], [Allocation(pieces=(grant,))], directory=tmp_path)

    assert (True, False) == (registry.cuts("memory"), registry.cuts("runtime"))
    assert ("memory: reconcile: error 9",) == faults
    assert [
        ("memory-0", frozenset({"p1"}), tmp_path / "memory"),
        ("memory-1", frozenset(), tmp_path / "memory"),
    ] == asked
