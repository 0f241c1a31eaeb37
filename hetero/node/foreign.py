"""Finds what programs without a grant hold of the devices.

Such a program began before hetero, is another user's, or was started without `hetero run`. The
ledger knows nothing of it. Its memory is missing all the same.

Drivers differ. Where one counts the memory of each process (`Usage.processes`), a process is known
to have a grant or not. Where it counts only the memory of the card, or lists processes that hold
far less than is used, what exceeds the grants' part is an estimate. No memory that may be a granted
program's is counted as foreign: neither contexts, which the driver takes beyond a grant's limit,
nor processes that this user cannot look into. What programs that no limiter holds to their grant
have beyond it is not foreign either, and no more free.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hetero.model import (
    MEMORY,
    Device,
    Enforcement,
    Policy,
    Usage,
)
from hetero.model.frozen import frozen
from hetero.model.units import GiB, MiB, rounded_memory
from hetero.node.inventory import grants_by_device
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.holders import program
from hetero.node.ledger.ledger import Grant, Snapshot
from hetero.node.ledger.usage_region import read_region
from hetero.node.node import Node
from hetero.node.quota import User

if TYPE_CHECKING:
    from hetero.node.tenants.owners import Owner, Owners

#: The most bytes believed for the contexts of a process, and the assumption where they could not be
#: measured: on an H100 a context takes 0.5 GiB.
CONTEXT = GiB
#: The least bytes that are reported: less comes and goes with a driver's memory for its kernels,
#: and with the services of a vendor.
NOISE_BYTES = 64 * MiB
#: The part of a card's memory that a driver may hold of an idle card, where it does not count by
#: process: cards of 64 GiB were seen to list up to 3.4 GiB in use when nothing runs (what users of
#: such cards show; not measured here).
_IDLE_PART = 1 / 16


@frozen(kw_only=True)
class ForeignProcess:
    """A process that holds memory of a device without a grant of it, in bytes.

    `user` and `program` are None where they cannot be read, as in another PID namespace. `core` is
    the percent of the device's time in the driver's last sample, None where it has none.
    """

    pid: int
    memory: int
    user: str | None = None
    program: str | None = None
    core: float | None = None

    @property
    def sentence(self) -> str:
        """Who it is: `process 7 (python of alice)`."""
        names = [self.program or "", f"of {self.user}" if self.user else ""]
        description = " ".join(filter(None, names))
        return f"process {self.pid}" + (f" ({description})" if description else "")


@frozen(kw_only=True)
class ForeignUse:
    """What is used of a device without a grant: bytes, and percent of its time (None: unknown).

    `processes` hold most of it, the largest first. `estimated`: the driver does not tell of each
    process, or this user does not see all, so that it is what exceeds the part of the grants.
    `overuse` are the bytes that grants which no limiter holds to their size have beyond it.
    """

    memory: int
    core: float | None = None
    processes: tuple[ForeignProcess, ...] = ()
    estimated: bool = False
    overuse: int = 0

    @property
    def taken(self) -> int:
        """The bytes that are neither free nor granted."""
        return self.memory + self.overuse

    @property
    def sentence(self) -> str:
        """Who holds how much, as the end of `device 4: …`."""
        overuse_text = (
            f"grants without a limiter hold {rounded_memory(self.overuse)} beyond their size"
        )
        if not self.memory:
            return overuse_text
        return self._foreign_sentence + (f"; {overuse_text}" if self.overuse else "")

    @property
    def _foreign_sentence(self) -> str:
        memory_text = f"{'about ' * self.estimated}{rounded_memory(self.memory)}"
        time_text = f" and uses {self.core:.0f} % of the time" if self.core else ""
        if not self.processes:
            return f"{memory_text} in use beyond what is granted{time_text}, by whom is not known"
        first, *others = self.processes
        more_text = f" and {len(others)} more" if others else ""
        verb = "hold" if others else "holds"
        return f"{first.sentence}{more_text} {verb} {memory_text} without a grant{time_text}"


def foreign_uses(
    node: Node,
    snapshot: Snapshot,
    usages: Sequence[tuple[Device, Usage]],
    owner_finder: Owners | None = None,
) -> dict[str, ForeignUse]:
    """Return the use without a grant of each device, by UUID, of those where it is known.

    It is of no memory where no such use was found.
    """
    grants_by_uuid = grants_by_device(snapshot.grants)
    pids = {
        pid
        for device, usage in usages
        if device.uuid in grants_by_uuid
        for pid in usage.processes or ()
    }
    owner_by_pid: dict[int, Owner | None] = {}
    if pids:
        if owner_finder is None:
            from hetero.node.tenants.owners import Owners  # here: an idle card has no process

            owner_finder = Owners(node)
        owner_by_pid = owner_finder.of(sorted(pids), snapshot.grants)
    use_by_uuid = {}
    for device, usage in usages:
        grants = grants_by_uuid.get(device.uuid, [])
        if usage.processes is not None:
            use_by_uuid[device.uuid] = _by_process(device, usage, grants, owner_by_pid)
        elif usage.memory is not None:
            use_by_uuid[device.uuid] = _by_card(node, device, usage, grants)
    return use_by_uuid


@frozen(kw_only=True)
class _Processes:
    """The processes that hold memory of a device: `bytes_by_pid`, and whose they are.

    `seen_by_grant` are the bytes of grants of which processes are seen. Nobody can look into those
    of `unseen`, which may be a grant's. `foreign` have no grant.
    """

    bytes_by_pid: Mapping[int, int]
    seen_by_grant: Mapping[str, int]
    unseen: frozenset[int]
    foreign: frozenset[int]

    def bytes_of(self, pids: Iterable[int]) -> int:
        return sum(self.bytes_by_pid[pid] for pid in pids)


def _by_process(
    device: Device,
    usage: Usage,
    grants: Sequence[Grant],
    owner_by_pid: Mapping[int, Owner | None],
) -> ForeignUse:
    processes = _told_apart(usage, grants, owner_by_pid)
    hidden = _hidden(device, usage, grants, processes)
    overuse_bytes = hidden.overuse + _seen_overuse(device, grants, processes)
    if overuse_bytes <= NOISE_BYTES:
        overuse_bytes = 0
    foreign_pids, total_bytes = processes.foreign, processes.bytes_of(processes.foreign)
    if hidden.foreign > NOISE_BYTES:
        total_bytes += hidden.foreign
        # A smaller one may be a grant's.
        foreign_pids |= {
            pid for pid in processes.unseen if processes.bytes_by_pid[pid] > hidden.granted
        }
    if total_bytes <= NOISE_BYTES:
        core = None if usage.processes else _time_without_grants(usage, grants)
        return ForeignUse(memory=0, core=core, overuse=overuse_bytes)
    return ForeignUse(
        memory=total_bytes,
        core=_time_of(foreign_pids, usage, grants),
        processes=_largest_first(foreign_pids, processes.bytes_by_pid, usage.busy or {}),
        estimated=hidden.foreign > NOISE_BYTES,
        overuse=overuse_bytes,
    )


def _told_apart(
    usage: Usage, grants: Sequence[Grant], owner_by_pid: Mapping[int, Owner | None]
) -> _Processes:
    bytes_by_pid = _held_by_processes(usage)
    grant_by_pid = {
        pid: owner.grant for pid, owner in owner_by_pid.items() if owner and pid in bytes_by_pid
    }
    present_ids = {grant.id for grant in grants} & {*grant_by_pid.values()}
    seen_by_grant = Counter(dict.fromkeys(present_ids, 0))
    granted_pids = {pid for pid, grant_id in grant_by_pid.items() if grant_id in present_ids}
    for pid in granted_pids:
        seen_by_grant[grant_by_pid[pid]] += bytes_by_pid[pid]
    unseen_pids = {
        pid
        for pid in bytes_by_pid
        if grants and pid not in grant_by_pid and not _can_look_into(pid)
    }
    return _Processes(
        bytes_by_pid=bytes_by_pid,
        seen_by_grant=seen_by_grant,
        unseen=frozenset(unseen_pids),
        foreign=frozenset(bytes_by_pid.keys() - granted_pids - unseen_pids),
    )


def _held_by_processes(usage: Usage) -> dict[int, int]:
    return {
        pid: memory_bytes
        for pid, memory_bytes in (usage.processes or {}).items()
        if memory_bytes and not _is_ending(pid)
    }


def _seen_overuse(device: Device, grants: Sequence[Grant], processes: _Processes) -> int:
    """Return the bytes that seen processes of grants without a limiter have beyond their size."""
    return sum(
        max(processes.seen_by_grant.get(grant.id, 0) - _limit(device, grant), 0)
        for grant in grants
        if _is_unlimited(device, grant)
    )


def _time_of(pids: Iterable[int], usage: Usage, grants: Sequence[Grant]) -> float | None:
    """Return the percent of a device's time that processes without a grant use."""
    busy_by_pid = usage.busy or {}
    parts = [busy_by_pid[pid] for pid in pids if pid in busy_by_pid]
    return 100 * min(sum(parts), 1.0) if parts else _time_without_grants(usage, grants)


def _largest_first(
    pids: Iterable[int], bytes_by_pid: Mapping[int, int], busy_by_pid: Mapping[int, float]
) -> tuple[ForeignProcess, ...]:
    return tuple(
        ForeignProcess(
            pid=pid,
            memory=bytes_by_pid[pid],
            user=_user_of(pid),
            program=_program_of(pid),
            core=100 * busy_by_pid[pid] if pid in busy_by_pid else None,
        )
        for pid in sorted(pids, key=lambda pid: (-bytes_by_pid[pid], pid))
    )


@frozen(kw_only=True)
class _Hidden:
    """Bytes of a device that no process is known to hold for or without a grant.

    Grants may have `granted` of them by their limits. `foreign` are beyond that, or `overuse` where
    a grant has no limiter.
    """

    granted: int
    foreign: int
    overuse: int


def _hidden(
    device: Device, usage: Usage, grants: Sequence[Grant], processes: _Processes
) -> _Hidden:
    """Return what is held of a device by nobody knows whom."""
    unlisted_bytes = (usage.memory or 0) - sum((usage.processes or {}).values())
    if unlisted_bytes <= _idle_bytes(device):
        unlisted_bytes = 0
    process_count = len(processes.unseen) + bool(unlisted_bytes)  # unlisted: of one at least
    seen_by_grant = processes.seen_by_grant
    hiding_grants = [grant for grant in grants if grant.id not in seen_by_grant or unlisted_bytes]
    granted_bytes = sum(
        max(_limit(device, grant) + CONTEXT * process_count - seen_by_grant.get(grant.id, 0), 0)
        for grant in hiding_grants
    )
    hidden_bytes = processes.bytes_of(processes.unseen) + unlisted_bytes
    beyond_bytes = max(hidden_bytes - granted_bytes, 0)
    may_be_overuse = any(_is_unlimited(device, grant) for grant in hiding_grants)
    return _Hidden(
        granted=granted_bytes,
        foreign=0 if may_be_overuse else beyond_bytes,
        overuse=beyond_bytes if may_be_overuse else 0,
    )


def _is_unlimited(device: Device, grant: Grant) -> bool:
    """Whether nothing holds a grant's programs to its size of a device."""
    return grant.allocation.policy is Policy.OFF or device.enforcement is Enforcement.NONE


def _time_without_grants(usage: Usage, grants: Sequence[Grant]) -> float | None:
    """Return the percent of its time that a device without grants is busy; None: not known."""
    return None if grants or not usage.core else 100 * usage.core


def _idle_bytes(device: Device) -> int:
    """Return the most that may be used of a card while no program runs on it."""
    return max(CONTEXT, int(device.of_card(MEMORY) * _IDLE_PART))


def _by_card(node: Node, device: Device, usage: Usage, grants: Sequence[Grant]) -> ForeignUse:
    held_bytes = sum(_likely_held(node, device, grant) for grant in grants)
    beyond_bytes = (usage.memory or 0) - held_bytes
    core = _time_without_grants(usage, grants)
    if beyond_bytes <= _idle_bytes(device):
        return ForeignUse(memory=0, core=core, estimated=True)
    return ForeignUse(memory=beyond_bytes, core=core, estimated=True)


def _likely_held(node: Node, device: Device, grant: Grant) -> int:
    """Return what the limiter of a grant charged, with a context for each process; or the limit."""
    if device.enforcement.by_limiter and grant.allocation.policy is not Policy.OFF:
        with suppress(OSError, ValueError):  # it ended, is another user's, or was scribbled on
            path = node.directory(grant.id) / USAGE
            region = read_region(path, device_count=len(grant.limits))
            charged_bytes = sum(
                counts.memory_bytes
                for counts, piece in zip(region.counts, grant.allocation.pieces, strict=False)
                if piece.device == device.uuid
            )
            return charged_bytes + CONTEXT * len(region.slots)
    return _limit(device, grant) + CONTEXT


def _limit(device: Device, grant: Grant) -> int:
    return sum(
        limit.memory
        for limit, piece in zip(grant.limits, grant.allocation.pieces, strict=True)
        if piece.device == device.uuid
    )


def _is_ending(pid: int) -> bool:
    """Whether a process gives its memory back just now."""
    from hetero.node.tenants.containers import running_task  # here: an idle card has no process

    return os.path.exists(f"/proc/{pid}") and running_task(pid) is None


def _can_look_into(pid: int) -> bool:
    """Whether this user could see a grant that the process holds."""
    with suppress(OSError):
        return os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    return False


def _user_of(pid: int) -> str | None:
    with suppress(OSError):
        return User.of(os.stat(f"/proc/{pid}").st_uid).name
    return None


def _program_of(pid: int) -> str | None:
    return program(pid) if os.path.exists(f"/proc/{pid}") else None
