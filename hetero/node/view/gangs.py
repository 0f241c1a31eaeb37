"""Finds what makes rows of gangs useless: processes that wait for no other, or a wrong clock."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import suppress

from hetero.model.frozen import frozen
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.ledger import Grant
from hetero.node.ledger.usage_region import Region, read_region
from hetero.node.node import Node

#: Seconds for which no process of a gang waited for another, until that is told.
APART_S = 10.0

#: adjtimex(2): the clock is not synchronised.
_UNSYNCHRONISED_STATE = 5


@frozen
class Clock:
    """The state of CLOCK_REALTIME, with its possible error in milliseconds."""

    synchronised: bool
    error: float
    most: float

    def __str__(self) -> str:
        if not self.synchronised:
            return (
                "the clock is not synchronised: rows by hand (--gang NAME --row N/M) begin at "
                "another time on each node: run chrony or ntpd"
            )
        return (
            f"the clock is {self.error:.3g} ms from true time by the kernel's estimate, "
            f"{self.most:.3g} ms at most: rows by hand are so far apart on two nodes, added"
        )


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def clock() -> Clock:
    """Return the kernel's state of its clock; raises `OSError` where it has none."""
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    clock_state = libc.adjtimex(ctypes.byref(timex))
    if clock_state < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return Clock(clock_state != _UNSYNCHRONISED_STATE, timex.esterror / 1000, timex.maxerror / 1000)


def by_hand(grant: Grant) -> bool:
    """Return whether the grant's row was chosen by its user: another node may have the rest."""
    gang = grant.allocation.gang
    return gang is not None and gang.row is not None


def apart(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the gangs whose processes each use one device and do not wait for each other, by id."""
    for grant in node.snapshot().grants:
        with suppress(OSError, ValueError):  # it ended, or is another user's
            region = read_region(node.directory(grant.id) / USAGE, device_count=len(grant.limits))
            apart_s = _apart_for(region, time.monotonic_ns())
            if apart_s >= APART_S:
                yield (
                    grant.id,
                    "its processes each use one device, and none was seen to wait for another for "
                    f"{apart_s:.0f} s: `--gang off`, or a grant each, leaves no device idle",
                )


def _apart_for(region: Region, now_ns: int) -> float:
    """Return the seconds since a process waited for another; 0 where one may, or it is unknown."""
    used_positions = [
        {position for position, held_bytes in enumerate(slot.used) if held_bytes}
        for slot in region.slots.values()
    ]
    used_positions = [positions for positions in used_positions if positions]
    if (
        region.gang is None
        or not region.gang.asked_ns
        or any(len(positions) > 1 for positions in used_positions)
    ):
        return 0.0
    if len(set().union(*used_positions)) < 2:
        return 0.0
    return max(0.0, (now_ns - max(region.gang.asked_ns, region.gang.met_ns)) / 1e9)
