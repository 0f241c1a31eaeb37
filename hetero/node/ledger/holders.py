"""Finds the processes of a grant: exactly those that have its files open for writing or mapped."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
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
                status = path.stat()
            except OSError:
                continue
            names[status.st_dev, status.st_ino] = name
    holding: dict[str, list[int]] = {name: [] for name in files}
    if names:
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
            for name in {names[file] for file in held_files(pid, names)}:
                holding[name].append(pid)
    return {name: tuple(sorted(pids)) for name, pids in holding.items()}


def held_files(pid: int, wanted: Collection[_File]) -> set[_File]:
    """Return which of the wanted files the process has open for writing or mapped writable."""
    held: set[_File] = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptors:
            for descriptor in descriptors:
                try:
                    # The link's own permission bits say how the file was opened.
                    if descriptor.stat(follow_symlinks=False).st_mode & 0o200:
                        target = descriptor.stat()
                        held.add((target.st_dev, target.st_ino))
                except OSError:
                    continue  # closed since
        held.update(file for file, permissions, _ in mappings(pid) if "w" in permissions)
    except (OSError, ValueError):
        pass  # gone since, or another user's
    return held.intersection(wanted)


def mappings(pid: int) -> Iterator[tuple[_File, str, int]]:
    """Yield the file, the permissions and the offset in bytes of what a process has mapped."""
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        _, permissions, offset, device, inode, *_ = line.split(maxsplit=5)
        if inode != "0":
            major, minor = device.split(":")
            file = (os.makedev(int(major, 16), int(minor, 16)), int(inode))
            yield file, permissions, int(offset, 16)


def _user_of(pid: int) -> int:
    """Return the real user of a process, which decides who may signal it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Uid:"):
            return int(line.split()[1])
    raise ProcessLookupError


def end(files: Iterable[Path], *, grace: float, owner: int | None = None) -> None:
    """Ask the files' holders to end, then make them: SIGTERM, and SIGKILL after `grace` seconds.

    Of an `owner` only the processes are: the others got an open file from it, as a service does
    whose client sends it one.

    A pidfd stands for the process itself: one that let go meanwhile, or took over the number of
    one that did, is left alone. So is this process, which ends by itself.
    """
    name, paths = "", tuple(files)
    processes, spared = [], set[int]()
    try:
        for pid in holders({name: paths})[name]:
            if pid == os.getpid():
                continue
            with suppress(ProcessLookupError, FileNotFoundError):
                process = os.pidfd_open(pid)
                processes.append((pid, process))
                if owner is not None and _user_of(pid) != owner:
                    spared.add(pid)
        still = set(holders({name: paths})[name]) - spared
        waiting = [process for pid, process in processes if pid in still]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in waiting:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, number)
            deadline = time.monotonic() + grace
            for process in waiting:
                # Readable means ended; poll has no limit on the descriptor's number.
                poll = select.poll()
                poll.register(process, select.POLLIN)
                poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        for _, process in processes:
            os.close(process)


def program(pid: int) -> str:
    """Return the name of the program a process runs, for people to read."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "ended"
