"""Keeps the slices vendors cut as the ledger says: none of ours beside it, each of its size."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from hetero.model import Allocation, Device, Edits
from hetero.model.errors import HeteroError
from hetero.node.ledger.ledger import Ledger, Snapshot
from hetero.plugin.registry import Discovery, Registry


def enforce(
    registry: Registry,
    ledger: Ledger,
    allocation: Allocation,
    devices: Mapping[str, Device],
    *,
    container: bool,
) -> Edits:
    """Have the vendors confine `allocation`; within `admission`, since it may cut slices."""
    granted = [devices[piece.device] for piece in allocation.pieces]
    return registry.enforce(allocation, granted, directory=_notes(ledger), container=container)


def reconcile(
    registry: Registry,
    ledger: Ledger,
    discovery: Discovery,
    snapshot: Snapshot,
    *,
    vendors: Collection[str] | None = None,
) -> tuple[str, ...]:
    """Destroy slices nobody holds, and finish changes that were killed; within `admission`.

    `vendors` asks these alone: who waits for one has not to wait for another. Return a sentence
    about each failure.
    """
    if snapshot.unreadable:
        return ()  # they may hold slices, and nobody knows which
    devices = {
        device.uuid: device
        for device in discovery.devices
        if vendors is None or device.vendor in vendors
    }
    faults: list[str] = []
    for entry in snapshot.grants:
        note = resizing(ledger, entry.id)
        held = {piece.device for piece in entry.allocation.pieces}
        if not note.exists() or not held <= devices.keys():
            continue
        try:
            inside = bool(entry.container or entry.share or entry.owner)
            enforce(registry, ledger, entry.allocation, devices, container=inside)
            note.unlink()
        except HeteroError as error:
            faults.append(str(error))
    cut = [device for device in devices.values() if device.vendor in discovery.cutting]
    if cut:
        standing = [entry.allocation for entry in snapshot.grants]
        faults += registry.reconcile(cut, standing, directory=_notes(ledger))
    return tuple(faults)


def resizing(ledger: Ledger, identity: str) -> Path:
    """Return the note that is there while a grant's slices may be of another size than it says."""
    return ledger.directory(identity) / "resizing"


def _notes(ledger: Ledger) -> Path:
    """Where vendors keep their notes about the slices this ledger answers for."""
    return ledger.path / "slices"
