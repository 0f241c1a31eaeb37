"""Writes the grant file the limiter maps: what may be used of each device, in binary.

The layout is limiters/core/grant.h's, and a test holds the two against each other.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import field

from hetero.model import CORE, MEMORY, Device, DeviceAllocation, Enforcement, Policy, Priority
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.model.json_keys import json_key

MAGIC = 0x31544E4152475448
VERSION = 1
MAX_DEVICES = 16
#: Core is written in hundredths of a percent of a card; this much is no limit.
CORE_FULL = 10000

HEADER = struct.Struct("<QII48s")
#: Between the flags and the last word are the excess and until when a debt is paid, 0 until stored.
ENTRY = struct.Struct("<64sQIIII16xQ16x")
SIZE = HEADER.size + MAX_DEVICES * ENTRY.size
_MEMORY_AT, _CORE_AT, _FLAGS_AT, _EXCESS_AT, _OWES_UNTIL_AT = 64, 72, 84, 88, 96
_CONTEXT_AT = 104

_POLICIES = {Policy.FIXED: 0, Policy.ELASTIC: 1, Policy.OFF: 2}
_SPILL, _CONTEXT, _STRICT, _SERVICE = 1, 2, 4, 8
PRIORITIES = {Priority.LOW: 0, Priority.HIGH: 1}


@frozen(kw_only=True)
class DeviceLimit:
    """What the limiter holds one device of a grant to: `memory` bytes, `core` of CORE_FULL.

    `name` is the device's UUID, or that of the part of it; `driver_name` what the driver that the
    limiter stands in front of calls it, if that is another. `spill`: what does not fit on the card
    lies with the host. `context`: all that the driver holds for a process counts as its memory, and
    a context of it takes `context_bytes` (0: not known before it is made). `strict`: what the
    limiter does not know is not to be had. `rest`: `core` is what limited neighbours leave, in
    elastic time slices (residual_share.py); no limit was asked for. `sm_percent`: the device itself
    holds programs to that percent of its multiprocessors, so they never wait. `service`: a service
    of the vendor's runs several programs at the same time. `shape` is what its template has of the
    core, in the unit of `core`: the device itself keeps it, and no limiter.
    """

    name: str
    memory: int
    core: int
    spill: bool = False
    context: bool = False
    context_bytes: int = 0
    strict: bool = False
    rest: bool = False
    service: bool = False
    driver_name: str | None = None
    sm_percent: int | None = field(default=None, metadata=json_key("sm"))
    shape: int | None = None

    @property
    def percent(self) -> float | None:
        """The core limit in percent of the card; None where there is none."""
        return None if self.core == CORE_FULL else self.core * 100 / CORE_FULL

    @property
    def granted_percent(self) -> float | None:
        """The core in percent of the card, by a limit or a template; None where neither is."""
        return self.percent if self.shape is None else self.shape * 100 / CORE_FULL

    def core_given(self, piece: DeviceAllocation, device: Device | None) -> float | None:
        """Return the core of `piece` in percent of the card, as every view says it; None: no limit.

        That of a slice or a whole card is known by its `device`.
        """
        if self.percent is not None or device is None:
            return self.percent
        return piece.core_percent(device)


def limit_of(
    piece: DeviceAllocation, device: Device, *, context: bool, strict: bool = False
) -> DeviceLimit:
    """Return the limit that `piece` on `device` means."""
    context = context and device.charges_contexts

    def share_of(core_units: int) -> int:
        return max(1, min(CORE_FULL, core_units * CORE_FULL // device.of_card(CORE)))

    return DeviceLimit(
        name=piece.part or piece.device,
        memory=piece.takes[MEMORY],
        core=CORE_FULL if piece.core is None else share_of(piece.core),
        spill=device.capacity[MEMORY] > device.of_card(MEMORY),
        context=context,
        context_bytes=device.context_bytes if context and piece.part is None else 0,
        strict=strict,
        driver_name=None if piece.part else device.attributes.get("driver_uuid"),
        service=device.enforcement is Enforcement.SERVICE,
        sm_percent=piece.sm_percent,
        shape=None if piece.template is None else share_of(piece.takes[CORE]),
    )


def pack(
    grant_id: str, limits: Sequence[DeviceLimit], *, policy: Policy, priority: Priority
) -> bytes:
    """Return the contents of a grant file. Raises `BadInput` for what the layout cannot hold."""
    if len(limits) > MAX_DEVICES:
        raise BadInput(f"{len(limits)} devices asked: one grant holds at most {MAX_DEVICES}")
    packed_entries = []
    for limit in limits:
        device_name = (limit.driver_name or limit.name).encode()
        if len(device_name) > 63:
            raise BadInput(f"device {limit.name}: a UUID has at most 63 bytes")
        share_words = (limit.core, policy_of(limit, policy), PRIORITIES[priority], _flags(limit))
        packed_entries.append(
            ENTRY.pack(device_name, limit.memory, *share_words, limit.context_bytes)
        )
    header = HEADER.pack(MAGIC, VERSION, len(limits), grant_id.encode())
    return (header + b"".join(packed_entries)).ljust(SIZE, b"\0")


def policy_of(limit: DeviceLimit, policy: Policy) -> int:
    """Return the number by which the grant file has the policy of a grant with this limit."""
    return _POLICIES[Policy.ELASTIC if limit.rest else policy]


def _flags(limit: DeviceLimit) -> int:
    flag_and_state = (_SPILL, limit.spill), (_CONTEXT, limit.context), (_STRICT, limit.strict)
    return sum(flag for flag, is_set in (*flag_and_state, (_SERVICE, limit.service)) if is_set)


def read_limits(path: Path) -> tuple[DeviceLimit, ...]:
    """Return the limits in a grant file. Raises `OSError` or `ValueError` if it holds none.

    The file does not tell whether a core limit is the rest that others leave.
    """
    contents = path.read_bytes()
    if len(contents) != SIZE:
        raise ValueError(f"{len(contents)} bytes, not {SIZE}")
    magic, version, device_count, _ = HEADER.unpack_from(contents)
    if (magic, version) != (MAGIC, VERSION) or device_count > MAX_DEVICES:
        raise ValueError("not a grant file of this version")
    return tuple(
        DeviceLimit(
            name=name_bytes.rstrip(b"\0").decode(),
            memory=memory_bytes,
            core=core_share,
            spill=bool(flags & _SPILL),
            context=bool(flags & _CONTEXT),
            strict=bool(flags & _STRICT),
            service=bool(flags & _SERVICE),
            context_bytes=context_bytes,
        )
        for name_bytes, memory_bytes, core_share, _, _, flags, context_bytes in (
            ENTRY.unpack_from(contents, HEADER.size + position * ENTRY.size)
            for position in range(device_count)
        )
    )


def holds_limits(contents: bytes, expected_contents: bytes) -> bool:
    """Return whether a file contains what was packed, with any excess and debt."""
    if contents == expected_contents:
        return True
    if len(contents) != SIZE:
        return False
    limits_alone = bytearray(contents)
    for position in range(MAX_DEVICES):
        offset = HEADER.size + position * ENTRY.size
        limits_alone[offset + _EXCESS_AT : offset + _OWES_UNTIL_AT + 8] = bytes(16)
    return limits_alone == expected_contents


def read_excess(path: Path, *, device_count: int) -> tuple[int, ...]:
    """Return the excess in bytes of each of a grant's first `device_count` devices.

    Raises `OSError` or `ValueError` if the file holds no limits.
    """
    return _words(path, _EXCESS_AT, device_count)


def read_owes_until(path: Path, *, device_count: int) -> tuple[int, ...]:
    """Return until when (ns, CLOCK_MONOTONIC) a grant pays a debt on each of its first devices.

    0: it has none. Raises `OSError` or `ValueError` if the file holds no limits.
    """
    return _words(path, _OWES_UNTIL_AT, device_count)


def store_owes_until(path: Path, position: int, until_ns: int) -> None:
    """Have a grant's gate on its device at `position` closed until then, while others want it.

    It is stored as limits are. Raises `OSError` where this user may not.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with mmap.mmap(descriptor, SIZE) as mapping:
            offset = HEADER.size + position * ENTRY.size + _OWES_UNTIL_AT
            ctypes.c_uint64.from_buffer(mapping, offset).value = until_ns
    finally:
        os.close(descriptor)


def _words(path: Path, word_at: int, device_count: int) -> tuple[int, ...]:
    contents = path.read_bytes()
    if len(contents) != SIZE:
        raise ValueError(f"{len(contents)} bytes, not {SIZE}")
    return tuple(
        int.from_bytes(contents[offset : offset + 8], "little")
        for offset in (
            HEADER.size + position * ENTRY.size + word_at for position in range(device_count)
        )
    )


def store_excess(path: Path, excess_bytes: Sequence[int]) -> None:
    """Have the grant's programs count these bytes of each device as held, from now on.

    They are stored as limits are. Raises `OSError` where this user may not.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with mmap.mmap(descriptor, SIZE) as mapping:
            for position, device_excess in enumerate(excess_bytes):
                offset = HEADER.size + position * ENTRY.size
                ctypes.c_uint64.from_buffer(mapping, offset + _EXCESS_AT).value = device_excess
    finally:
        os.close(descriptor)


def store_limits(path: Path, limits: Iterable[DeviceLimit], *, policy: Policy) -> None:
    """Change limits in place, each by aligned stores into the pages readers map.

    A running program sees the new limit at its next allocation or launch, and never half of one.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with mmap.mmap(descriptor, SIZE) as mapping:
            for position, limit in enumerate(limits):
                offset = HEADER.size + position * ENTRY.size
                share_word = limit.core | policy_of(limit, policy) << 32  # little-endian neighbours
                ctypes.c_uint64.from_buffer(mapping, offset + _MEMORY_AT).value = limit.memory
                ctypes.c_uint64.from_buffer(mapping, offset + _CORE_AT).value = share_word
                ctypes.c_uint64.from_buffer(
                    mapping, offset + _CONTEXT_AT
                ).value = limit.context_bytes
                ctypes.c_uint32.from_buffer(mapping, offset + _FLAGS_AT).value = _flags(limit)
    finally:
        os.close(descriptor)
