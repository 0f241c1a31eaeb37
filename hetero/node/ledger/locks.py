"""Locks that belong to an open file, so that the kernel drops them with its last descriptor.

Open-file-description locks (fcntl(2), Linux 3.15) survive fork and exec, end with `kill -9`, and
name no process: whether one is held is the only question about life that hetero ever asks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import struct
import time

#: struct flock on 64-bit Linux: type, whence, start, length, pid (zero for these locks).
_FLOCK = struct.Struct("@hhqqi4x")
_WHOLE_FILE = (0, 0)  # start, length: a length of zero reaches to the end, wherever that is
#: Waiting is by polling, since the blocking call has no deadline. A pause is a tenth of the wait so
#: far: a thousand who wait leave the processor to the one who works, and few wait much longer.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.2


def try_lock(descriptor: int) -> bool:
    """Lock the whole file exclusively, or return False when another open file has it."""
    asked = _lock(fcntl.F_WRLCK, *_WHOLE_FILE)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, asked)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def lock(descriptor: int, *, within: float) -> bool:
    """Lock the whole file exclusively, or return False when that took over `within` seconds."""
    began = time.monotonic()
    while not try_lock(descriptor):
        waited = time.monotonic() - began
        if waited >= within:
            return False
        pause = min(max(waited / 10, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        time.sleep(pause * (0.5 + random.random()))
    return True


def wait_until_free(descriptor: int) -> None:
    """Wait until no other open file holds an exclusive lock on the file; not a poll."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _lock(fcntl.F_RDLCK, *_WHOLE_FILE))


def is_held(descriptor: int, byte: int | None = None) -> bool:
    """Return whether another open file holds an exclusive lock on the byte, or on any (None).

    The probe is for a shared lock, so that a mere reader's lock does not count: whoever may only
    read a grant cannot keep it standing.
    """
    asked = _lock(fcntl.F_RDLCK, *(_WHOLE_FILE if byte is None else (byte, 1)))
    answer: bytes = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked)
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK


def _lock(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
