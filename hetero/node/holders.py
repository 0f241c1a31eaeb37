"""Finds the processes of a grant: exactly those that have its files open for writing or mapped."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

#: (device, inode): what a file is, whatever path or mount it is seen through.
_File = tuple[int, int]


def holders(files: Mapping[str, Iterable[Path]]) -> dict[str, tuple[int, ...]]:
    """Return the processes that hold any of the files of each name, in one walk over /proc.

    Whoever merely looks (this program, for one) opens them for reading and does not count.
    Processes of other users are seen by root alone.
    """
    names: dict[_File, str] = {}
    for name, paths in files.items():
        for path in paths:
            try:
                found = path.stat()
            except OSError:
                continue
            names[found.st_dev, found.st_ino] = name
    holding: dict[str, list[int]] = {name: [] for name in files}
    if names:
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
            for name in {names[file] for file in _held(pid, names)}:
                holding[name].append(pid)
    return {name: tuple(sorted(pids)) for name, pids in holding.items()}


def _held(pid: int, wanted: Collection[_File]) -> set[_File]:
    """Return which of the wanted files the process has open for writing or mapped writable."""
    held: set[_File] = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                # The link's own permission bits say how the file was opened.
                if entry.stat(follow_symlinks=False).st_mode & 0o200:
                    target = entry.stat()
                    held.add((target.st_dev, target.st_ino))
            except OSError:
                continue  # closed since
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            _, permissions, _, device, inode, *_ = line.split(maxsplit=5)
            if inode != "0" and "w" in permissions:
                major, minor = device.split(":")
                held.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    except (OSError, ValueError):
        pass  # gone since, or another user's
    return held.intersection(wanted)


def end(pids: Iterable[int], *, grace: float) -> None:
    """Ask the processes to end, then make them: SIGTERM, and SIGKILL after `grace` seconds.

    Each is addressed by a pidfd, so that a number that was reused in between is left alone.
    """
    waiting: list[int] = []
    for pid in pids:
        try:
            waiting.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    try:
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
            for process in waiting:
                try:
                    signal.pidfd_send_signal(process, number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + seconds
            for process in waiting:
                left = max(0.0, deadline - time.monotonic())
                select.select([process], [], [], left)
    finally:
        for process in waiting:
            os.close(process)
