"""Finds the grants of processes that a driver names, and whether a limiter is in them.

A process is a grant's if it holds the grant's files, sees the grant where a container has it, or is
in the cgroup of a container with such a process, or of a pod that the grant is for. All four are
facts of the kernel's.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import define, field, frozen

from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.holders import held_files
from hetero.node.ledger.ledger import ALIVE, Grant
from hetero.node.ledger.usage_region import slots_of
from hetero.node.node import Node
from hetero.node.view.containers import (
    container_cgroup,
    is_of_pod,
    processes,
    running_task,
    sees,
    stat_of,
)

#: Of proc_pid_stat(5), counted from the state on: start time, start of code, of the stack.
_BORN = (19, 23, 25)


@frozen(kw_only=True)
class Owner:
    """The grant of a process, and the slots of its usage region that the process keeps.

    Without a slot no limiter is in it: a limiter takes one before its program uses a device.
    """

    grant: str
    slots: frozenset[int] = frozenset()


@define
class Owners:
    """Remembers whose a process is for as long as it runs the same program.

    Who has no limiter is looked at anew each time, and strangers when there are other grants.
    """

    node: Node
    _known: dict[int, tuple[tuple[str, ...], Owner | None]] = field(init=False, factory=dict)
    _grants: frozenset[str] = field(init=False, default=frozenset())

    def of(self, pids: Iterable[int], grants: Collection[Grant]) -> dict[int, Owner | None]:
        """Return whose each process is, None for a stranger; one that is gone or ends is left out.

        Processes of other users are strangers to all but root.
        """
        before = self._known
        same = self._grants == {entry.id for entry in grants}
        self._grants, self._known = frozenset(entry.id for entry in grants), {}
        for pid in pids:
            task = running_task(pid)
            fields = stat_of(task) if task else []
            if not task or not fields:
                continue
            program, owner = before.get(pid, ((), None))
            born = tuple(fields[each] for each in _BORN)
            known = program == born and (same if owner is None else owner.grant in self._grants)
            if not known or (owner is not None and not owner.slots):
                owner = self._find(task, grants)
            self._known[pid] = born, owner
        return {pid: owner for pid, (_, owner) in self._known.items()}

    def _find(self, task: int, grants: Collection[Grant]) -> Owner | None:
        directories = {entry.id: self.node.directory(entry.id) for entry in grants}
        grant = _holds(task, directories) or _sees(task, directories)
        if grant is None and (cgroup := container_cgroup(task)):
            in_cgroup = (other for other in processes() if container_cgroup(other) == cgroup)
            grant = next(filter(None, (_sees(other, directories) for other in in_cgroup)), None)
            grant = grant or _of_owner(cgroup, grants)
        if grant is None:
            return None
        return Owner(grant=grant, slots=slots_of(task, directories[grant] / USAGE))


def _holds(pid: int, directories: Mapping[str, Path]) -> str | None:
    """Return the grant whose files a process has open for writing or mapped."""
    files: dict[tuple[int, int], str] = {}
    for identity, directory in directories.items():
        for name in (ALIVE, USAGE):
            with suppress(OSError):
                status = os.stat(directory / name)
                files[status.st_dev, status.st_ino] = identity
    return next((files[file] for file in held_files(pid, files)), None)


def _sees(pid: int, directories: Mapping[str, Path]) -> str | None:
    """Return the grant that a process sees where a container has its own."""
    return next((name for name, path in directories.items() if sees(pid, path / GRANT)), None)


def _of_owner(cgroup: str, grants: Collection[Grant]) -> str | None:
    """Return a grant whose owner's UID is in the name of a cgroup, as a pod's is.

    Its container may have had something mounted over the grant that it would see.
    """
    return next((one.id for one in grants if is_of_pod(cgroup, one.owner.get("uid", ""))), None)
