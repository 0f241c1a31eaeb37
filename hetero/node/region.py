"""Reads the usage region the processes of a grant share: what they hold and what they were given.

The layout is limiters/core/region.h's, and a test holds the two against each other. The region is
written by the tenant: what it says is shown to people and never decides what others may have.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from attrs import frozen

from hetero.node.grant import MAX_DEVICES
from hetero.node.locks import is_held

MAGIC = 0x3145474153555448
VERSION = 1
SLOTS = 256

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
    """Return the counts of the grant's first `devices` devices; none where no process came yet.

    A slot counts while its process lives, which is while the slot's byte is locked.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        contents = os.pread(descriptor, SIZE, 0)
        if len(contents) != SIZE:
            raise ValueError(f"{len(contents)} bytes, not {SIZE}")
        magic, version, slots, _ = HEADER.unpack_from(contents)
        if magic == 0:
            return ()
        if (magic, version, slots) != (MAGIC, VERSION, SLOTS):
            raise ValueError("not a usage region of this version")
        held = [0] * MAX_DEVICES
        first = HEADER.size + MAX_DEVICES * DEVICE.size
        for slot, (*used, pid) in enumerate(SLOT.iter_unpack(contents[first:])):
            if pid and any(used) and is_held(descriptor, slot):
                held = [total + more for total, more in zip(held, used, strict=True)]
    finally:
        os.close(descriptor)
    counts = []
    for position in range(devices):
        _, peak, denied, _, device_ns, _, _ = DEVICE.unpack_from(
            contents, HEADER.size + position * DEVICE.size
        )
        counts.append(Counts(memory=held[position], peak=peak, denied=denied, device_ns=device_ns))
    return tuple(counts)
