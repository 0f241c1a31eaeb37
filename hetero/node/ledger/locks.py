"""Locks that belong to an open file, so that the kernel drops them with its last descriptor.

Open-file-description locks (fcntl(2), Linux 3.15) survive fork and exec, end with `kill -9`, and
name no process: whether one is held is the only question about life that hetero ever asks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable

#: struct flock on 64-bit Linux: type, whence, start, length, pid (zero for these locks).
_FLOCK = struct.Struct("@hhqqi4x")
_WHOLE_FILE = (0, 0)  # start, length: a length of zero reaches to the end, wherever that is
#: Waiting is by polling, since the blocking call has no deadline. A pause is a tenth of the wait so
#: far: a thousand who wait leave the processor to the one who works, and few wait much longer.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.2


def try_lock(descriptor: int) -> bool:
    """Lock the whole file exclusively, or return False when another open file has it."""
    wanted_lock = _lock(fcntl.F_WRLCK, *_WHOLE_FILE)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted_lock)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def lock(
    descriptor: int, *, within_s: float, progress: Callable[[], object] = lambda: None
) -> bool:
    """Lock the whole file exclusively, or return False when that took over `within_s` seconds.

    Time counts from when `progress` last gave something else than before: where hundreds come at
    once, those who hold the lock one after the other are at work.
    """
    if try_lock(descriptor):
        return True
    from random import random  # here: most locks are free

    began_s = changed_s = time.monotonic()
    seen_progress = progress()
    while not try_lock(descriptor):
        now_s = time.monotonic()
        waited_s = now_s - began_s
        if now_s - changed_s >= within_s:
            if (progress_now := progress()) == seen_progress:
                return False
            seen_progress, changed_s = progress_now, now_s
        pause_s = min(max(waited_s / 10, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
        time.sleep(pause_s * (0.5 + random()))
    return True


def wait_until_free(descriptor: int) -> None:
    """Wait until no other open file holds an exclusive lock on the file; not a poll."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _lock(fcntl.F_RDLCK, *_WHOLE_FILE))


def is_held(descriptor: int, byte: int | None = None) -> bool:
    """Return whether another open file holds an exclusive lock on the byte, or on any (None).

    The probe is for a shared lock, so that a reader's lock does not count: a process that may
    only read a grant cannot keep it standing.
    """
    wanted_lock = _lock(fcntl.F_RDLCK, *(_WHOLE_FILE if byte is None else (byte, 1)))
    found_lock: bytes = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted_lock)
    lock_kind: int = _FLOCK.unpack(found_lock)[0]
    return lock_kind != fcntl.F_UNLCK


def is_locked(descriptor: int, byte_range: range) -> bool:
    """Return whether another open file holds any lock on one of these bytes, a reader's, too."""
    wanted_lock = _lock(fcntl.F_WRLCK, byte_range.start, len(byte_range))
    found_lock: bytes = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted_lock)
    lock_kind: int = _FLOCK.unpack(found_lock)[0]
    return lock_kind != fcntl.F_UNLCK


def _lock(lock_kind: int, start_byte: int, byte_count: int) -> bytes:
    return _FLOCK.pack(lock_kind, os.SEEK_SET, start_byte, byte_count, 0)
