"""Reads the usage region the processes of a grant share: what they hold and what they were given.

The layout is limiters/core/region.h's, and a test holds the two against each other. The region is
written by the tenant: what it says is shown to people and never decides what others may have.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from hetero.model.frozen import frozen
from hetero.node.ledger.grant_file import MAX_DEVICES
from hetero.node.ledger.holders import mappings
from hetero.node.ledger.locks import is_held

MAGIC = 0x3145474153555448
VERSION = 3
SLOTS = 1024
#: Bytes between the offsets of the mappings by which processes keep their slots.
SLOT_OFFSET = 1 << 16

HEADER = struct.Struct("<QII4xI56xQ40x")
DEVICE = struct.Struct("<QQQQQqQ8xQQQ40x")
SLOT = struct.Struct(f"<{4 * MAX_DEVICES}QI60x")
#: Instead of a PID: its process ended, and others have open what it shared.
LEFT = 0xFFFFFFFF
GANG = struct.Struct("<QIIQQQQQQQQQIIQQQQ")
MEMBERS = 128
MEMBER = struct.Struct("<IIIIIIIIQQI12x")
_GANG_AT = HEADER.size + MAX_DEVICES * DEVICE.size + SLOTS * SLOT.size
SIZE = _GANG_AT + GANG.size + MEMBERS * MEMBER.size
_FIRST = HEADER.size + MAX_DEVICES * DEVICE.size


@frozen(kw_only=True)
class Counts:
    """What a grant did on one of its devices: bytes held now, and totals since it began.

    `granted` are the bytes of all reservations, those that were given back as well. For
    `stopped_ns` its processes waited, each counted; `borrowed_ns` are of `device_ns`.
    """

    memory: int
    peak: int
    denied: int
    device_ns: int
    granted: int = 0
    stopped_ns: int = 0
    borrowed_ns: int = 0


@frozen(kw_only=True)
class Slot:
    """What a live process says of itself: bytes of each device, and the PID it knows itself by.

    `used` is charged. `uncharged` is not, and the driver counts it for the process: its
    contexts, as measured when they were made, and its code.
    """

    pid: int
    used: tuple[int, ...]
    uncharged: tuple[int, ...]


@frozen(kw_only=True)
class GangState:
    """What the processes of a gang say of its rows: totals since it began, and monotonic times.

    `runs`: its gates are open, or it ends a row. Since `asked_ns` a process wants a device; 0: none
    does. Of `rows`, `overruns` ended with work in flight; `end_ns` passed from their ends until
    all devices were idle. A grant of high priority ran in a row `intrusions` times, for
    `intruded_ns`. At `met_ns` one device was last seen to wait for another; 0: never.
    """

    runs: bool
    asked_ns: int
    rows: int
    overruns: int
    end_ns: int
    intrusions: int
    intruded_ns: int
    met_ns: int


@frozen(kw_only=True)
class Region:
    """One look at a region: the counts of each device, and what is in the live slots.

    `unknown` counts the functions of the driver that a process of the grant asked for and its
    limiter does not know: each once a process, since the grant began. `gang` is None for a grant
    that has had no row.
    """

    unknown: int = 0
    gang: GangState | None = None
    counts: tuple[Counts, ...] = ()
    slots: Mapping[int, Slot]


def read_counts(path: Path, *, devices: int) -> tuple[Counts, ...]:
    """Return the counts of the grant's first `devices` devices; none where no process came yet."""
    return read_region(path, devices=devices).counts


def read_region(path: Path | str, *, devices: int = MAX_DEVICES) -> Region:
    """Return what a region says of the first `devices`; nothing where no process came yet.

    A slot counts while its process lives, which is while the slot's byte is locked, and while
    others have open what its process shared. Raises
    `OSError` or `ValueError` for what is no region.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head = os.pread(descriptor, _FIRST, 0)
        if (size := os.fstat(descriptor).st_size) < SIZE or len(head) < _FIRST:
            raise ValueError(f"{size} bytes, not {SIZE}")
        magic, version, slots, reached, _ = HEADER.unpack_from(head)
        if magic == 0:
            return Region(slots={})
        if (magic, version, slots) != (MAGIC, VERSION, SLOTS):
            raise ValueError("not a usage region of this version")
        # Slots beyond were never taken; a tenant that says so of others hides its own charges.
        contents = os.pread(descriptor, min(reached, SLOTS) * SLOT.size, _FIRST)
        held = tuple(
            number for number in range(len(contents) // SLOT.size) if is_held(descriptor, number)
        )
        gang = os.pread(descriptor, GANG.size, _GANG_AT)
    finally:
        os.close(descriptor)
    return _region(head, contents, held, gang, devices)


@lru_cache(maxsize=256)
def _region(
    head: bytes, contents: bytes, held: tuple[int, ...], gang: bytes, devices: int
) -> Region:
    """Return what these bytes say. Of a grant that does nothing they are always the same."""
    unknown = HEADER.unpack_from(head)[-1]
    live = {
        number: _slot(words)
        for number, words in enumerate(SLOT.iter_unpack(contents[: _whole(contents)]))
        if words[-1] == LEFT or number in held
    }
    counts = []
    for position in range(devices):
        words = DEVICE.unpack_from(head, HEADER.size + position * DEVICE.size)
        _, peak, denied, _, device_ns, _, _, granted, stopped_ns, borrowed_ns = words
        memory = sum(slot.used[position] for slot in live.values())
        counts.append(
            Counts(
                memory=memory,
                peak=peak,
                denied=denied,
                device_ns=device_ns,
                granted=granted,
                stopped_ns=stopped_ns,
                borrowed_ns=borrowed_ns,
            )
        )
    return Region(unknown=unknown, gang=_gang(gang), counts=tuple(counts), slots=live)


def _gang(contents: bytes) -> GangState | None:
    if len(contents) < GANG.size:
        return None
    _, phase, *gang_words, intrusions, _, _, intruded, met = GANG.unpack(contents)
    asked, rows, overruns, end, _, _ = gang_words[-6:]
    if not rows:
        return None
    return GangState(
        runs=phase != 0,
        asked_ns=asked,
        rows=rows,
        overruns=overruns,
        end_ns=end,
        intrusions=intrusions,
        intruded_ns=intruded,
        met_ns=met,
    )


def _whole(contents: bytes) -> int:
    """Return how many bytes are whole slots: a tenant may have cut the file meanwhile."""
    return len(contents) - len(contents) % SLOT.size


def _slot(words: tuple[int, ...]) -> Slot:
    of = MAX_DEVICES
    return Slot(used=words[:of], uncharged=words[of : 2 * of], pid=words[-1])


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
