"""Keeps the slices vendors cut as the ledger says: none of ours beside it, each of its size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hetero.model import Allocation, Device, Edits
from hetero.model.errors import HeteroError
from hetero.node.ledger.ledger import Ledger, Look
from hetero.plugin.registry import Registry


def enforce(
    registry: Registry,
    ledger: Ledger,
    allocation: Allocation,
    devices: Mapping[str, Device],
    *,
    container: bool,
) -> Edits:
    """Have the vendors confine `allocation`; within `admission`, since it may cut slices."""
    granted = [devices[grant.device] for grant in allocation.grants]
    return registry.enforce(allocation, granted, directory=_notes(ledger), container=container)


def reconcile(
    registry: Registry, ledger: Ledger, devices: Mapping[str, Device], look: Look
) -> tuple[str, ...]:
    """Destroy slices nobody holds, and finish changes that were killed; within `admission`.

    Return a sentence about each failure.
    """
    if look.unreadable:
        return ()  # they may hold slices, and nobody knows which
    faults: list[str] = []
    for entry in look.standing:
        note = resizing(ledger, entry.id)
        held = {grant.device for grant in entry.allocation.grants}
        if not note.exists() or not held <= devices.keys():
            continue
        try:
            inside = bool(entry.container or entry.share or entry.keeper)
            enforce(registry, ledger, entry.allocation, devices, container=inside)
            note.unlink()
        except HeteroError as error:
            faults.append(str(error))
    standing = (entry.allocation for entry in look.standing)
    return (
        *faults,
        *registry.reconcile(devices.values(), standing, directory=_notes(ledger)),
    )


def resizing(ledger: Ledger, identity: str) -> Path:
    """Return the note that is there while a grant's slices may be of another size than it says."""
    return ledger.directory(identity) / "resizing"


def _notes(ledger: Ledger) -> Path:
    """Where vendors keep their notes about the slices this ledger answers for."""
    return ledger.path / "slices"
