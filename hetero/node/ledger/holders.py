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

    A process that opened them for reading alone, as this program does, does not count. Processes of
    other users are seen by root alone.
    """
    name_by_file: dict[_File, str] = {}
    for set_name, paths in files.items():
        for path in paths:
            try:
                status = path.stat()
            except OSError:
                continue
            name_by_file[status.st_dev, status.st_ino] = set_name
    pids_by_name: dict[str, list[int]] = {set_name: [] for set_name in files}
    if name_by_file:
        for pid in (int(pid_text) for pid_text in os.listdir("/proc") if pid_text.isdecimal()):
            for set_name in {name_by_file[file] for file in held_files(pid, name_by_file)}:
                pids_by_name[set_name].append(pid)
    return {set_name: tuple(sorted(pids)) for set_name, pids in pids_by_name.items()}


def held_files(pid: int, wanted_files: Collection[_File]) -> set[_File]:
    """Return which of the wanted files the process has open for writing or mapped writable."""
    files_held: set[_File] = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as descriptor_entries:
            for descriptor_entry in descriptor_entries:
                try:
                    # The link's own permission bits say how the file was opened.
                    if descriptor_entry.stat(follow_symlinks=False).st_mode & 0o200:
                        file_status = descriptor_entry.stat()
                        files_held.add((file_status.st_dev, file_status.st_ino))
                except OSError:
                    continue  # closed since
        files_held.update(file for file, permissions, _ in mappings(pid) if "w" in permissions)
    except (OSError, ValueError):
        pass  # gone since, or another user's
    return files_held.intersection(wanted_files)


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


def end(files: Iterable[Path], *, grace_s: float, owner_uid: int | None = None) -> None:
    """Ask the files' holders to end, then make them: SIGTERM, and SIGKILL after `grace_s` seconds.

    Of an `owner_uid` only the processes are: the others got an open file from it, as a service does
    whose client sends it one.

    A pidfd stands for the process itself: one that let go meanwhile, or took over the number of
    one that did, is left alone. So is this process, which ends by itself.
    """
    no_name, paths = "", tuple(files)
    pids_and_pidfds, spared_pids = [], set[int]()
    try:
        for pid in holders({no_name: paths})[no_name]:
            if pid == os.getpid():
                continue
            with suppress(ProcessLookupError, FileNotFoundError):
                pidfd = os.pidfd_open(pid)
                pids_and_pidfds.append((pid, pidfd))
                if owner_uid is not None and _user_of(pid) != owner_uid:
                    spared_pids.add(pid)
        holding_pids = set(holders({no_name: paths})[no_name]) - spared_pids
        waiting_pidfds = [pidfd for pid, pidfd in pids_and_pidfds if pid in holding_pids]
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            for pidfd in waiting_pidfds:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal_number)
            deadline_s = time.monotonic() + grace_s
            for pidfd in waiting_pidfds:
                # Readable means ended; poll has no limit on the descriptor's number.
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
    finally:
        for _, pidfd in pids_and_pidfds:
            os.close(pidfd)


def program(pid: int) -> str:
    """Return the name of the program a process runs, for people to read."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "ended"
