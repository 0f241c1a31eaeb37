"""Reads the usage region that the processes of a grant share: what they hold and were given.

The layout is limiters/core/region.h's, and a test compares the two. The tenant writes the region,
so its figures are shown to people and never decide what others may have.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from hetero.model.frozen import frozen
from hetero.node.ledger.grant_file import CORE_FULL, MAX_DEVICES
from hetero.node.ledger.holders import mappings
from hetero.node.ledger.locks import is_held

MAGIC = 0x3145474153555448
VERSION = 3
SLOTS = 1024
#: Bytes between the offsets of the mappings by which processes keep their slots.
SLOT_OFFSET = 1 << 16

HEADER = struct.Struct("<QII4xI56xQ40x")
DEVICE = struct.Struct("<QQQQQqQ8xQQQq32x")
SLOT = struct.Struct(f"<{4 * MAX_DEVICES}QI60x")
#: In place of a PID: the process ended, and others have its shared memory open.
LEFT = 0xFFFFFFFF
GANG = struct.Struct("<QIIQQQQQQQQQIIQQQQ")
MEMBERS = 128
MEMBER = struct.Struct("<IIIIIIIIQQI12x")
_GANG_AT = HEADER.size + MAX_DEVICES * DEVICE.size + SLOTS * SLOT.size
SIZE = _GANG_AT + GANG.size + MEMBERS * MEMBER.size
_FIRST = HEADER.size + MAX_DEVICES * DEVICE.size
#: The bytes that a grant's processes lock for each device (limiters/timeshare/time_slice.c).
_TIME_SLICE_AT, _TIME_SLICE_BYTES = SLOTS + 1, 32
#: Of these, those of processes with work in flight, and of those that owe much besides.
_WORKS_AT, _OWES_AT = 19, 24


@frozen(kw_only=True)
class Counts:
    """What a grant did on one of its devices: bytes held now, and totals since it began.

    `granted_bytes` are the bytes of all reservations, those that were given back as well. For
    `stopped_ns` its processes waited, each counted; `borrowed_ns` are of `device_ns`. At
    `charged_at_ns` (CLOCK_MONOTONIC; 0: never) it had `balance_ns` left, and of a debt owed
    `owed_ns` to others.
    """

    memory_bytes: int
    peak_bytes: int
    denied_count: int
    device_ns: int
    granted_bytes: int = 0
    stopped_ns: int = 0
    borrowed_ns: int = 0
    charged_at_ns: int = 0
    balance_ns: int = 0
    owed_ns: int = 0

    def owed_at(self, now_ns: int, *, core: int) -> int:
        """Return what it owes others at `now_ns` with a share of `core` hundredths of a percent."""
        paid_ns = max(now_ns - self.charged_at_ns, 0) * core // CORE_FULL
        return max(min(self.owed_ns, -self.balance_ns) - paid_ns, 0)


@frozen(kw_only=True)
class Slot:
    """What a live process reports: bytes of each device, and its PID in its own namespace.

    `used` is charged. `uncharged` is not charged, and the driver counts it for the process: its
    contexts, as measured when they were made, and its code.
    """

    pid: int
    used: tuple[int, ...]
    uncharged: tuple[int, ...]


@frozen(kw_only=True)
class GangState:
    """What the processes of a gang say of its rows: totals since it began, and monotonic times.

    `runs`: its gates are open, or it ends a row. Since `asked_ns` a process wants a device; 0: none
    does. Of `row_count`, `overrun_count` ended with work in flight; `end_ns` passed from their ends
    until all devices were idle. A grant of high priority ran in a row `intrusion_count` times, for
    `intruded_ns`. At `met_ns` one device was last seen to wait for another; 0: never.
    """

    runs: bool
    asked_ns: int
    row_count: int
    overrun_count: int
    end_ns: int
    intrusion_count: int
    intruded_ns: int
    met_ns: int


@frozen(kw_only=True)
class Region:
    """The content of a region: the counts of each device, and the live slots.

    `unknown` counts the functions of the driver that a process of the grant asked for and its
    limiter does not know: each once a process, since the grant began. `gang` is None for a grant
    that has had no row.
    """

    unknown: int = 0
    gang: GangState | None = None
    counts: tuple[Counts, ...] = ()
    slots: Mapping[int, Slot]


def read_counts(path: Path, *, device_count: int) -> tuple[Counts, ...]:
    """Return the counts of a grant's first devices; none before its first process."""
    return read_region(path, device_count=device_count).counts


def read_region(path: Path | str, *, device_count: int = MAX_DEVICES) -> Region:
    """Return what a region says of the first `device_count`; nothing where no process came yet.

    A slot counts while its process lives, which is while the slot's byte is locked, and while
    others have open what its process shared. Raises
    `OSError` or `ValueError` for what is no region.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        head_bytes = os.pread(descriptor, _FIRST, 0)
        if (size_bytes := os.fstat(descriptor).st_size) < SIZE or len(head_bytes) < _FIRST:
            raise ValueError(f"{size_bytes} bytes, not {SIZE}")
        magic, version, slot_count, reached_slot_count, _ = HEADER.unpack_from(head_bytes)
        if magic == 0:
            return Region(slots={})
        if (magic, version, slot_count) != (MAGIC, VERSION, SLOTS):
            raise ValueError("not a usage region of this version")
        # Slots beyond were never taken. A tenant that lowers the number hides its own charges.
        slot_bytes = os.pread(descriptor, min(reached_slot_count, SLOTS) * SLOT.size, _FIRST)
        held_slots = tuple(
            slot_number
            for slot_number in range(len(slot_bytes) // SLOT.size)
            if is_held(descriptor, slot_number)
        )
        gang_bytes = os.pread(descriptor, GANG.size, _GANG_AT)
    finally:
        os.close(descriptor)
    return _region(head_bytes, slot_bytes, held_slots, gang_bytes, device_count)


@lru_cache(maxsize=256)
def _region(
    head_bytes: bytes,
    slot_bytes: bytes,
    held_slots: tuple[int, ...],
    gang_bytes: bytes,
    device_count: int,
) -> Region:
    """Return the content of these bytes. A grant that does nothing always has the same."""
    unknown_bytes = HEADER.unpack_from(head_bytes)[-1]
    live_slots = {
        slot_number: _slot(slot_words)
        for slot_number, slot_words in enumerate(SLOT.iter_unpack(slot_bytes[: _whole(slot_bytes)]))
        if slot_words[-1] == LEFT or slot_number in held_slots
    }
    device_counts = []
    for position in range(device_count):
        device_words = DEVICE.unpack_from(head_bytes, HEADER.size + position * DEVICE.size)
        _, peak_bytes, denials, _, device_ns, balance_ns, charged_at_ns, *late_words = device_words
        granted_bytes, stopped_ns, borrowed_ns, owed_ns = late_words
        memory_bytes = sum(slot.used[position] for slot in live_slots.values())
        device_counts.append(
            Counts(
                memory_bytes=memory_bytes,
                peak_bytes=peak_bytes,
                denied_count=denials,
                device_ns=device_ns,
                granted_bytes=granted_bytes,
                stopped_ns=stopped_ns,
                borrowed_ns=borrowed_ns,
                charged_at_ns=charged_at_ns,
                balance_ns=balance_ns,
                owed_ns=owed_ns,
            )
        )
    return Region(
        unknown=unknown_bytes, gang=_gang(gang_bytes), counts=tuple(device_counts), slots=live_slots
    )


def _gang(contents: bytes) -> GangState | None:
    if len(contents) < GANG.size:
        return None
    _, phase, *gang_words, intrusion_count, _, _, intruded_ns, met_ns = GANG.unpack(contents)
    asked_ns, row_count, overrun_count, end_ns, _, _ = gang_words[-6:]
    if not row_count:
        return None
    return GangState(
        runs=phase != 0,
        asked_ns=asked_ns,
        row_count=row_count,
        overrun_count=overrun_count,
        end_ns=end_ns,
        intrusion_count=intrusion_count,
        intruded_ns=intruded_ns,
        met_ns=met_ns,
    )


def _whole(contents: bytes) -> int:
    """Return how many bytes are whole slots: a tenant may have cut the file meanwhile."""
    return len(contents) - len(contents) % SLOT.size


def _slot(slot_words: tuple[int, ...]) -> Slot:
    device_count = MAX_DEVICES
    return Slot(
        used=slot_words[:device_count],
        uncharged=slot_words[device_count : 2 * device_count],
        pid=slot_words[-1],
    )


def time_slice_bytes(position: int) -> range:
    """Return the bytes of a region that a process locks which wants or uses the grant's device."""
    first_byte = _TIME_SLICE_AT + _TIME_SLICE_BYTES * position
    return range(first_byte, first_byte + _TIME_SLICE_BYTES)


def working_bytes(position: int) -> range:
    """Return those of processes that have work in flight on the grant's device."""
    return time_slice_bytes(position)[_WORKS_AT:_OWES_AT]


def owing_bytes(position: int) -> range:
    """Return those of processes that have, where the grant owes more than a second."""
    return time_slice_bytes(position)[_OWES_AT:]


def slots_of(pid: int, region_path: Path) -> frozenset[int]:
    """Return the slots of a usage region that the process keeps, none where that is unreadable.

    The mapping that keeps a slot's lock cannot be accessed, and its offset gives the slot.
    """
    try:
        status = region_path.stat()
        wanted_file = (status.st_dev, status.st_ino)
        return frozenset(
            offset // SLOT_OFFSET
            for file, permissions, offset in mappings(pid)
            if file == wanted_file and permissions == "---s"
        )
    except (OSError, ValueError):
        return frozenset()
