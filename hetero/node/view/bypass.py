"""Compares the driver's own figures with the ledger's: what runs where no limiter holds it.

A preloaded limiter cannot stand in front of a program without a dynamic linker, one that dropped
its environment, or one that talks to the kernel module itself. The driver still counts what such a
process holds. The agent and `hetero doctor --watch` ask every few seconds, `hetero doctor` and
`hetero ps` when they are run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from hetero.model import MEMORY, Device, Enforcement, Policy, Usage
from hetero.model.frozen import frozen
from hetero.model.units import GiB
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.ledger import Grant, Snapshot
from hetero.node.ledger.usage_region import read_processes
from hetero.node.node import Node, program
from hetero.node.view.containers import sees

#: A driver holds more for a process than it asked for: a context, the code of its kernels, their
#: stacks. A difference up to this is nothing to report.
OVERHEAD = GiB
#: Seconds between two looks, so that what began is told of within five.
PERIOD = 3.0


@frozen(kw_only=True)
class Bypass:
    """A process on a shared device with `memory` bytes that no limiter counted.

    `grant` is the one it runs under, None for a process that holds no grant of the device.
    """

    device: str
    pid: int
    program: str
    memory: int
    grant: str | None

    def __str__(self) -> str:
        held = f"{self.program} ({self.pid}) holds {self.memory >> 20} MiB of {self.device[:12]}"
        return f"{held} past the limiter of grant {self.grant}: end it, or the grant"


@define
class BypassMonitor:
    """Tells of each process that is past its grant's limiter once, when it is first seen."""

    node: Node
    _told: frozenset[tuple[str, int]] = field(init=False, default=frozenset())

    def snapshot(self, devices: Iterable[Device]) -> tuple[Bypass, ...]:
        """Return those on `devices` that were not there at the last look."""
        usages = [(device, self.node.registry.observe(device)) for device in devices]
        found = [
            each for each in find_bypass(self.node, self.node.snapshot(), usages) if each.grant
        ]
        before = self._told
        self._told = frozenset((each.device, each.pid) for each in found)
        return tuple(each for each in found if (each.device, each.pid) not in before)


def end(node: Node, found: Bypass) -> bool:
    """Kill a process that is past its limiter, if it is still its grant's; return whether it was.

    A pidfd stands for the process itself, not for whoever has its number by now.
    """
    with suppress(OSError):
        process = os.pidfd_open(found.pid)
        try:
            for entry in node.snapshot().grants:
                holding = node.processes([entry.id])[entry.id] if entry.id == found.grant else ()
                if entry.id == found.grant and _of(node, entry, found.pid, holding):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    return True
        finally:
            os.close(process)
    return False


def find_bypass(
    node: Node, snapshot: Snapshot, usages: Iterable[tuple[Device, Usage]]
) -> tuple[Bypass, ...]:
    """Return what the drivers count beyond the ledger, as far as this user can see.

    Only devices that a limiter keeps (enforcement preload) and that somebody holds a grant of are
    looked at; a grant whose policy is off is not held to anything.
    """
    found = []
    holding = node.processes(entry.id for entry in snapshot.grants)
    for device, usage in usages:
        here = [
            entry
            for entry in snapshot.grants
            if any(grant.device == device.uuid for grant in entry.allocation.pieces)
        ]
        if device.enforcement is not Enforcement.PRELOAD or not here:
            continue
        for pid, memory in (usage.processes or {}).items():
            entry = next((each for each in here if _of(node, each, pid, holding[each.id])), None)
            if entry is None and not _ours(pid):
                continue
            beyond = memory - (_covered(node, entry, device, pid) if entry else 0)
            if beyond > 0:
                grant = entry.id if entry else None
                found.append(
                    Bypass(
                        device=device.uuid,
                        pid=pid,
                        program=program(pid),
                        memory=beyond,
                        grant=grant,
                    )
                )
    return tuple(found)


def _of(node: Node, entry: Grant, pid: int, holding: Collection[int]) -> bool:
    """Whether a process is a grant's: it holds its files, or is in a container that has it.

    The second is all that is known of a program in a container that no limiter was loaded into.
    """
    return pid in holding or sees(pid, node.directory(entry.id) / GRANT)


def _covered(node: Node, entry: Grant, device: Device, pid: int) -> int:
    """Return what the process may hold without being reported.

    That is what its limiter counted, and the driver's overhead; nothing if no limiter is in it.
    """
    if entry.allocation.policy is Policy.OFF:
        return device.of_card(MEMORY)
    counted: Mapping[int, tuple[int, ...]] = {}
    with suppress(OSError, ValueError):
        counted = read_processes(node.directory(entry.id) / USAGE)
    positions = [
        position
        for position, grant in enumerate(entry.allocation.pieces)
        if grant.device == device.uuid
    ]
    for name in _names(pid):
        if name in counted:
            return OVERHEAD + sum(counted[name][position] for position in positions)
    return 0


def _names(pid: int) -> list[int]:
    """Return the PID in each of the namespaces the process is in: it knows itself by the last."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]][::-1]
    return [pid]


def _ours(pid: int) -> bool:
    """Whether this user could have seen a grant in the hands of the process."""
    with suppress(OSError):
        return os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    return False
