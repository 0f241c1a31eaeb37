"""Finds the grants of processes that a driver names, and whether a limiter is in them.

A process is a grant's if it holds the grant's files, sees the grant where a container has it, is in
the cgroup of a container with such a process, or of a pod that the grant is for, or was started by
one that holds the files. All five are facts of the kernel's.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from hetero.model.frozen import frozen
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.holders import held_files
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

#: Of proc_pid_stat(5), counted from the state on: start time, start of code, of the stack.
_BORN = (19, 23, 25)
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
                owner = self._find(thread_id, grants)
            self._owner_by_pid[pid] = birth_fields, owner
        return {pid: owner for pid, (_, owner) in self._owner_by_pid.items()}

    def _find(self, thread_id: int, grants: Collection[Grant]) -> Owner | None:
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
        grant_id = grant_id or _holds_above(thread_id, directories)
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


def _holds_above(pid: int, directories: Mapping[str, Path]) -> str | None:
    """Return the grant that the nearest of a process's ancestors holds.

    A program without the limiter may have been started without the grant's open file.
    """
    while (stat_fields := stat_of(pid)) and (pid := int(stat_fields[_PARENT])) > 1:
        if grant_id := _holds(pid, directories):
            return grant_id
    return None


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
