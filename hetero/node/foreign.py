"""Finds what programs without a grant hold of the devices.

Such a program began before hetero, is another user's, or was started without `hetero run`. The
ledger knows nothing of it. Its memory is missing all the same.

Drivers differ. Where one counts the memory of each process (`Usage.processes`), a process is known
to have a grant or not. Where it counts only the memory of the card, what exceeds the grants' part
is an estimate. No memory that may be a granted program's is counted here: neither contexts, which
the driver takes beyond a grant's limit, nor processes that this user cannot look into.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from hetero.model import (
    MEMORY,
    Device,
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
    """

    memory: int
    core: float | None = None
    processes: tuple[ForeignProcess, ...] = ()
    estimated: bool = False

    @property
    def sentence(self) -> str:
        """Who holds how much, as the end of `device 4: …`."""
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


def _by_process(
    device: Device,
    usage: Usage,
    grants: Sequence[Grant],
    owner_by_pid: Mapping[int, Owner | None],
) -> ForeignUse:
    bytes_by_pid = {
        pid: memory_bytes
        for pid, memory_bytes in (usage.processes or {}).items()
        if memory_bytes and not _is_ending(pid)
    }
    grant_by_pid = {
        pid: owner.grant for pid, owner in owner_by_pid.items() if owner and pid in bytes_by_pid
    }
    present_ids = {grant.id for grant in grants} & {*grant_by_pid.values()}
    granted_pids = {pid for pid, grant_id in grant_by_pid.items() if grant_id in present_ids}
    unseen_pids = {
        pid
        for pid in bytes_by_pid
        if grants and pid not in grant_by_pid and not _can_look_into(pid)
    }
    most_held_bytes = sum(
        _most_held(device, grant, len(unseen_pids))
        for grant in grants
        if grant.id not in present_ids
    )
    unseen_bytes = sum(bytes_by_pid[pid] for pid in unseen_pids) - most_held_bytes
    counted_pids = bytes_by_pid.keys() - granted_pids - unseen_pids
    total_bytes = sum(bytes_by_pid[pid] for pid in counted_pids)
    if unseen_bytes > NOISE_BYTES:
        total_bytes += unseen_bytes
        # A smaller one may be a grant's.
        counted_pids |= {pid for pid in unseen_pids if bytes_by_pid[pid] > most_held_bytes}
    if total_bytes <= NOISE_BYTES:
        return ForeignUse(memory=0)
    busy_by_pid = usage.busy or {}
    core_parts = [busy_by_pid[pid] for pid in counted_pids if pid in busy_by_pid]
    largest_first = sorted(counted_pids, key=lambda pid: (-bytes_by_pid[pid], pid))
    return ForeignUse(
        memory=total_bytes,
        core=100 * min(sum(core_parts), 1.0) if core_parts else None,
        processes=tuple(
            ForeignProcess(
                pid=pid,
                memory=bytes_by_pid[pid],
                user=_user_of(pid),
                program=_program_of(pid),
                core=100 * busy_by_pid[pid] if pid in busy_by_pid else None,
            )
            for pid in largest_first
        ),
        estimated=unseen_bytes > NOISE_BYTES,
    )


def _by_card(node: Node, device: Device, usage: Usage, grants: Sequence[Grant]) -> ForeignUse:
    held_bytes = sum(_likely_held(node, device, grant) for grant in grants)
    beyond_bytes = (usage.memory or 0) - held_bytes
    if beyond_bytes <= max(CONTEXT, device.of_card(MEMORY) * _IDLE_PART):
        return ForeignUse(memory=0, estimated=True)
    core = None if grants or usage.core is None else 100 * usage.core
    return ForeignUse(memory=beyond_bytes, core=core, estimated=True)


def _most_held(device: Device, grant: Grant, processes: int) -> int:
    """Return the most bytes of a device that processes of a grant can be counted for."""
    if grant.allocation.policy is Policy.OFF:
        return device.of_card(MEMORY)
    return _limit(device, grant) + CONTEXT * processes


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
