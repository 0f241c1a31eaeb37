"""Reads the usage region the processes of a grant share: what they hold and what they were given.

The layout is limiters/core/region.h's, and a test holds the two against each other. The region is
written by the tenant: what it says is shown to people and never decides what others may have.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from hetero.model.frozen import frozen
from hetero.node.ledger.grant_file import MAX_DEVICES
from hetero.node.ledger.holders import mappings
from hetero.node.ledger.locks import is_held

MAGIC = 0x3145474153555448
VERSION = 1
SLOTS = 1024
#: Bytes between the offsets of the mappings by which processes keep their slots.
SLOT_OFFSET = 1 << 16

HEADER = struct.Struct("<QII64s48x")
DEVICE = struct.Struct("<QQQQQqQ8x")
SLOT = struct.Struct(f"<{MAX_DEVICES}QI60x")
SIZE = HEADER.size + MAX_DEVICES * DEVICE.size + SLOTS * SLOT.size


@frozen(kw_only=True)
class Counts:
    """What a grant did on one of its devices: bytes held now, and totals since it began."""

    memory: int
    peak: int
    denied: int
    device_ns: int


def read_counts(path: Path, *, devices: int) -> tuple[Counts, ...]:
    """Return the counts of the grant's first `devices` devices; none where no process came yet."""
    contents, held = _read(path)
    counts = []
    for position in range(devices if contents else 0):
        _, peak, denied, _, device_ns, _, _ = DEVICE.unpack_from(
            contents, HEADER.size + position * DEVICE.size
        )
        memory = sum(used[position] for used in held.values())
        counts.append(Counts(memory=memory, peak=peak, denied=denied, device_ns=device_ns))
    return tuple(counts)


def read_slots(path: Path) -> dict[int, tuple[int, ...]]:
    """Return the bytes the process in each live slot holds of each device."""
    return {slot: used for (slot, _), used in _read(path)[1].items()}


def read_processes(path: Path) -> dict[int, tuple[int, ...]]:
    """Return the bytes each live process holds of each device, by the PID it knows itself by."""
    return {pid: used for (_, pid), used in _read(path)[1].items()}


def slots_of(pid: int, region: Path) -> frozenset[int]:
    """Return the slots of a usage region that the process keeps, none where that is not to be read.

    The mapping that keeps a slot's lock cannot be accessed, and its offset says the slot.
    """
    try:
        status = region.stat()
        wanted = (status.st_dev, status.st_ino)
        return frozenset(
            offset // SLOT_OFFSET
            for file, permissions, offset in mappings(pid)
            if file == wanted and permissions == "---s"
        )
    except (OSError, ValueError):
        return frozenset()


def _read(path: Path) -> tuple[bytes, dict[tuple[int, int], tuple[int, ...]]]:
    """Return a region's bytes, and what its live slots (number, PID) hold; neither if unformed.

    A slot counts while its process lives, which is while the slot's byte is locked. Raises
    `OSError` or `ValueError` for what is no region.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        contents = os.pread(descriptor, SIZE, 0)
        if len(contents) != SIZE:
            raise ValueError(f"{len(contents)} bytes, not {SIZE}")
        magic, version, slots, _ = HEADER.unpack_from(contents)
        if magic == 0:
            return b"", {}
        if (magic, version, slots) != (MAGIC, VERSION, SLOTS):
            raise ValueError("not a usage region of this version")
        first = HEADER.size + MAX_DEVICES * DEVICE.size
        return contents, {
            (slot, pid): tuple(used)
            for slot, (*used, pid) in enumerate(SLOT.iter_unpack(contents[first:]))
            if pid and is_held(descriptor, slot)
        }
    finally:
        os.close(descriptor)
