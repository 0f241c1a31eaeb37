"""Compares the drivers' figures with the ledger's: what runs where no limiter holds it.

A preloaded limiter cannot stand in front of a program without a dynamic linker, one that dropped
its environment, or one that talks to the kernel module itself. The driver still counts what such a
process holds. heterod, the agent and `hetero doctor --watch` ask every few seconds, `hetero doctor`
and `hetero ps` when they are run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from attrs import define, field

from hetero.model import MEMORY, Device, Enforcement, Policy, Usage
from hetero.model.errors import HeteroError
from hetero.model.frozen import frozen
from hetero.model.units import GiB
from hetero.node.ledger.grant_dir import GRANT, USAGE, replace
from hetero.node.ledger.ledger import Grant, Snapshot
from hetero.node.ledger.usage_region import read_processes
from hetero.node.node import Node, program
from hetero.node.view.containers import sees
from hetero.node.view.device_time import DeviceTime, Overuse

#: A driver holds more for a process than it asked for: a context, the code of its kernels, their
#: stacks. A difference up to this is nothing to report.
OVERHEAD = GiB
#: Seconds between two looks, so that what began is told of within five.
PERIOD = 3.0
#: In a grant's directory: what device time it took past its limiter, by who watches.
PAST = "past"


@frozen(kw_only=True)
class Bypass:
    """A process on a shared device with memory, or time of it, that no limiter counted.

    `memory` is in bytes, `core` in percent of the device. `grant` is the one it runs under, None
    for a process that holds no grant of the device.
    """

    device: str
    pid: int
    program: str
    grant: str | None
    memory: int = 0
    core: float = 0.0

    @property
    def key(self) -> tuple[str, int, bool]:
        """Tells one from another, whatever its figures are by now."""
        return self.device, self.pid, self.core > 0

    @property
    def what(self) -> str:
        """What it has past its limiter, as the end of `process 7 …`."""
        if self.core:
            return f"takes {self.core:.0f} % of the time of {self.device[:12]}"
        return f"holds {self.memory >> 20} MiB of {self.device[:12]}"

    def __str__(self) -> str:
        who = f"{self.program} ({self.pid}) {self.what}"
        return f"{who} past the limiter of grant {self.grant}: end it, or the grant"


@define
class BypassMonitor:
    """Tells of each process that is past its grant's limiter once, when it is first seen."""

    node: Node
    _time: DeviceTime = field(init=False)
    _told: frozenset[tuple[str, int, bool]] = field(init=False, default=frozenset())

    def __attrs_post_init__(self) -> None:
        self._time = DeviceTime(self.node)

    def snapshot(self, devices: Iterable[Device]) -> tuple[Bypass, ...]:
        """Return those on `devices` that were not there at the last look."""
        usages, _ = self.node.registry.observe_all(devices)
        snapshot = self.node.snapshot()
        holding = self.node.processes(entry.id for entry in snapshot.grants)
        owner = {
            pid: entry.id
            for _, usage in usages
            for pid in usage.busy or ()
            for entry in snapshot.grants
            if _of(self.node, entry, pid, holding[entry.id])
        }
        overuse = self._time.sample(snapshot.grants, usages, owner)
        for entry in snapshot.grants:
            _note(self.node, entry.id, overuse)
        found = [each for each in find_bypass(self.node, snapshot, usages, holding) if each.grant]
        before = self._told
        self._told = frozenset(each.key for each in found)
        return tuple(each for each in found if each.key not in before)


def watch(node: Node, tell: Callable[[Bypass], None]) -> NoReturn:
    """Sample every `PERIOD` at the devices that are shared, and tell of each process once."""
    monitor, devices = BypassMonitor(node), dict[str, Device]()
    while True:
        with suppress(HeteroError):  # said to whoever asks for something
            grants = node.snapshot().grants
            shared = {piece.device for entry in grants for piece in entry.allocation.pieces}
            if not shared <= devices.keys():
                devices = {device.uuid: device for device in node.discover().devices}
            for found in monitor.snapshot(devices[uuid] for uuid in shared & devices.keys()):
                tell(found)
        time.sleep(PERIOD)


def _note(node: Node, grant: str, overuse: Mapping[str, Iterable[Overuse]]) -> None:
    """Write down what time a grant took past its limiter, for those who look once (`hetero ps`)."""
    lines = [
        f"{each.pid} {each.part:.3f} {device}\n"
        for device, found in overuse.items()
        for each in found
        if each.grant == grant
    ]
    path = node.directory(grant) / PAST
    with suppress(OSError):  # it ended, or is another user's
        if lines:
            replace(path, "".join(lines).encode(), mode=0o644)
        else:
            path.unlink(missing_ok=True)


def time_past(node: Node, grant: str) -> Iterator[Bypass]:
    """Yield what device time a grant takes past its limiter, as who watches saw it lately."""
    path = node.directory(grant) / PAST
    with suppress(OSError, ValueError):
        if path.stat().st_mtime > time.time() - 3 * PERIOD:
            for pid, part, device in map(str.split, path.read_text().splitlines()):
                yield Bypass(
                    device=device,
                    pid=int(pid),
                    program=program(int(pid)),
                    grant=grant,
                    core=100 * float(part),
                )


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
    node: Node,
    snapshot: Snapshot,
    usages: Iterable[tuple[Device, Usage]],
    holding: Mapping[str, Collection[int]],
) -> tuple[Bypass, ...]:
    """Return what the drivers count beyond the ledger, as far as this user can see.

    Only devices that a limiter keeps (enforcement preload) and that somebody holds a grant of are
    looked at; a grant whose policy is off is not held to anything. `holding` has the processes of
    each grant.
    """
    found = []
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
    return (*found, *(each for entry in snapshot.grants for each in time_past(node, entry.id)))


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
