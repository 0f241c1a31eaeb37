"""Finds the grants of processes that a driver names, and whether a limiter is in them.

A process is a grant's if it holds the grant's files, sees the grant where a container has it, is in
the cgroup of a container with such a process, or of a pod that the grant is for, or was started,
since the grant is there, by one that the grant's limiter is in. All five are facts of the kernel's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from hetero.model.frozen import frozen
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.holders import held_files, mappings
from hetero.node.ledger.ledger import ALIVE, Grant
from hetero.node.ledger.usage_region import slots_of
from hetero.node.node import Node
from hetero.node.tenants.containers import (
    container_cgroup,
    is_of_pod,
    processes,
    running_task,
    sees,
    stat_of,
)

#: Of proc_pid_stat(5), counted from the state on: start time in ticks since the boot.
_START = 19
#: The same: start time, start of code, of the stack.
_BORN = (_START, 23, 25)
#: The same: the process that started it, or took it over when that ended.
_PARENT = 1


@frozen(kw_only=True)
class Owner:
    """The grant of a process, and the slots of its usage region that the process keeps.

    Without a slot no limiter is in it: a limiter takes one before its program uses a device.
    """

    grant: str
    slots: frozenset[int] = frozenset()


@define(eq=False, repr=False)
class Owners:
    """Remembers the grant of a process for as long as it runs the same program.

    A process without a limiter is looked at anew each time, and a stranger when there are other
    grants.
    """

    node: Node
    _owner_by_pid: dict[int, tuple[tuple[str, ...], Owner | None]] = field(init=False, factory=dict)
    _grant_ids: frozenset[str] = field(init=False, default=frozenset())

    def of(self, pids: Iterable[int], grants: Collection[Grant]) -> dict[int, Owner | None]:
        """Return the grant of each process, None for a stranger; ending processes are left out.

        Processes of other users are strangers to all but root.
        """
        known_before = self._owner_by_pid
        is_same_grants = self._grant_ids == {grant_id.id for grant_id in grants}
        self._grant_ids, self._owner_by_pid = frozenset(grant_id.id for grant_id in grants), {}
        for pid in pids:
            thread_id = running_task(pid)
            stat_fields = stat_of(thread_id) if thread_id else []
            if not thread_id or not stat_fields:
                continue
            program_before, owner = known_before.get(pid, ((), None))
            birth_fields = tuple(stat_fields[position] for position in _BORN)
            is_known = program_before == birth_fields and (
                is_same_grants if owner is None else owner.grant in self._grant_ids
            )
            if not is_known or (owner is not None and not owner.slots):
                owner = self._find(pid, thread_id, grants)
            self._owner_by_pid[pid] = birth_fields, owner
        return {pid: owner for pid, (_, owner) in self._owner_by_pid.items()}

    def _find(self, pid: int, thread_id: int, grants: Collection[Grant]) -> Owner | None:
        directories = {grant_id.id: self.node.directory(grant_id.id) for grant_id in grants}
        grant_id = _holds(thread_id, directories) or _sees(thread_id, directories)
        if grant_id is None and (cgroup := container_cgroup(thread_id)):
            pids_of_cgroup = (
                other_pid for other_pid in processes() if container_cgroup(other_pid) == cgroup
            )
            grant_id = next(
                filter(None, (_sees(other_pid, directories) for other_pid in pids_of_cgroup)), None
            )
            grant_id = grant_id or _of_owner(cgroup, grants)
        grant_id = grant_id or _limited_above(pid, directories)
        if grant_id is None:
            return None
        return Owner(grant=grant_id, slots=slots_of(thread_id, directories[grant_id] / USAGE))


def _holds(pid: int, directories: Mapping[str, Path]) -> str | None:
    """Return the grant whose files a process has open for writing or mapped."""
    grant_by_file: dict[tuple[int, int], str] = {}
    for grant_id, directory in directories.items():
        for file_name in (ALIVE, USAGE):
            with suppress(OSError):
                file_status = os.stat(directory / file_name)
                grant_by_file[file_status.st_dev, file_status.st_ino] = grant_id
    return next((grant_by_file[file] for file in held_files(pid, grant_by_file)), None)


def _limited_above(pid: int, directories: Mapping[str, Path]) -> str | None:
    """Return the grant whose limiter is in the nearest of a process's ancestors that has any.

    A program without the limiter may have been started without the grant's open file. An ancestor
    that only has such a file open may hand grants out, and start programs that have none. Nor is a
    process the grant's that is older than the grant, or was started by one that is: a script may
    leave programs running and then become a program of a grant.
    """
    grant_by_file: dict[tuple[int, int], tuple[str, int]] = {}
    for grant_id, directory in directories.items():
        with suppress(OSError):
            region_status = os.stat(directory / USAGE)
            began_ns = os.stat(directory / ALIVE).st_ctime_ns
            grant_by_file[region_status.st_dev, region_status.st_ino] = grant_id, began_ns
    while (stat_fields := stat_of(pid)) and (pid := int(stat_fields[_PARENT])) > 1:
        grants_above = {
            grant_by_file[file] for file in _mapped_for_writing(pid) & grant_by_file.keys()
        }
        if grants_above:
            grant_id, began_ns = min(grants_above)
            is_sure = len(grants_above) == 1 and _started_ns(stat_fields) >= began_ns
            return grant_id if is_sure else None
    return None


def _mapped_for_writing(pid: int) -> set[tuple[int, int]]:
    """Return the files that a process has mapped so: of a grant's, the limiter alone does it."""
    with suppress(OSError, ValueError):
        return {file for file, permissions, _ in mappings(pid) if "w" in permissions}
    return set()


def _started_ns(stat_fields: Sequence[str]) -> int:
    """Return when a process started, in ns since 1970, at most a tick early."""
    booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return booted_ns + int(stat_fields[_START]) * 10**9 // os.sysconf("SC_CLK_TCK")


def _sees(pid: int, directories: Mapping[str, Path]) -> str | None:
    """Return the grant that a process sees where a container has its own."""
    return next(
        (grant_id for grant_id, path in directories.items() if sees(pid, path / GRANT)), None
    )


def _of_owner(cgroup: str, grants: Collection[Grant]) -> str | None:
    """Return a grant whose owner's UID is in the name of a cgroup, as a pod's is.

    Another mount may hide the grant from its container.
    """
    return next(
        (grant_id.id for grant_id in grants if is_of_pod(cgroup, grant_id.owner.get("uid", ""))),
        None,
    )
