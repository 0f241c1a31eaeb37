"""Keeps the slices vendors cut as the ledger says: no other slice of ours, each of its size."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hetero.model import Allocation, Device, Edits
from hetero.model.errors import HeteroError
from hetero.node.ledger.grant_dir import create
from hetero.node.ledger.ledger import Ledger, Snapshot
from hetero.node.ledger.locks import lock
from hetero.node.ledger.state import make, prepare
from hetero.registry.registry import Discovery, Registry


@contextmanager
def held(ledger: Ledger, vendors: Iterable[str], *, within_s: float) -> Iterator[None]:
    """Keep the slices of these vendors from all others; not within `admission`.

    Hardware takes seconds: who waits for it holds this, and others have the ledger meanwhile.
    Raises `HeteroError` when somebody else does for longer than `within_s` seconds.
    """
    with ExitStack() as open_locks:
        for vendor in sorted(vendors):  # who holds several takes them in this order
            descriptor = _open_lock(ledger, vendor)
            open_locks.callback(os.close, descriptor)
            if not lock(descriptor, within_s=within_s):
                raise HeteroError(
                    f"{vendor}: another hetero is at its slices for more than {within_s:g} s:"
                    " try again"
                )
        yield


def _open_lock(ledger: Ledger, vendor_name: str) -> int:
    prepare(ledger.path)
    try:
        make(_notes(ledger), mode=0o755)
        return create(_notes(ledger) / f"{vendor_name}.lock", mode=0o600)
    except OSError as error:
        raise HeteroError(f"the ledger {ledger.path}: {error.strerror}") from None


def enforce(
    registry: Registry,
    ledger: Ledger,
    allocation: Allocation,
    devices: Mapping[str, Device],
    *,
    container: bool,
) -> Edits:
    """Have the vendors confine `allocation`, with the slices of those that cut them `held`."""
    granted = [devices[piece.device] for piece in allocation.pieces]
    return registry.enforce(allocation, granted, directory=_notes(ledger), container=container)


def reconcile(
    registry: Registry,
    ledger: Ledger,
    discovery: Discovery,
    snapshot: Snapshot,
    *,
    vendors: Collection[str],
) -> tuple[str, ...]:
    """Destroy slices of `vendors` that nobody holds, and finish changes that were killed.

    The slices are `held`, and `snapshot` was taken since, within `admission`: another one may lack
    grants that were being restored. Return a sentence about each failure.
    """
    if snapshot.unreadable:
        return ()  # they may hold slices, and nobody knows which
    by_uuid = {device.uuid: device for device in discovery.devices if device.vendor in vendors}
    faults: list[str] = []
    for grant in snapshot.grants:
        resize_note = resizing(ledger, grant.id)
        held_uuids = {piece.device for piece in grant.allocation.pieces}
        if not resize_note.exists() or not held_uuids <= by_uuid.keys():
            continue
        try:
            is_contained = bool(grant.container or grant.share or grant.owner)
            enforce(registry, ledger, grant.allocation, by_uuid, container=is_contained)
            resize_note.unlink()
        except HeteroError as error:
            faults.append(str(error))
    cut_devices = [device for device in by_uuid.values() if device.vendor in discovery.cutting]
    if cut_devices:
        allocations = [grant.allocation for grant in snapshot.grants]
        faults += registry.reconcile(cut_devices, allocations, directory=_notes(ledger))
    return tuple(faults)


def resizing(ledger: Ledger, grant_id: str) -> Path:
    """Return the note that is there while a grant's slices may be of another size than it says."""
    return ledger.directory(grant_id) / "resizing"


def _notes(ledger: Ledger) -> Path:
    """Where vendors keep their notes about the slices this ledger answers for."""
    return ledger.path / "slices"
