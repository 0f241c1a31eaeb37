"""Finds programs that no limiter holds: their memory and device time.

A preloaded limiter cannot stand in front of a program without a dynamic linker, one that dropped
its environment, or one that talks to the kernel module itself. The driver still counts what such a
process holds. monitor.py samples every few seconds, `hetero doctor` and `hetero ps` when they are
run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from attrs import field

from hetero.model import Policy
from hetero.model.frozen import frozen
from hetero.model.json_keys import json_key
from hetero.node.ledger.holders import program
from hetero.node.ledger.ledger import Snapshot
from hetero.node.node import Node
from hetero.node.view.excess import Comparison, is_shared

#: Seconds between two samples, so that a bypass is reported within five.
SAMPLE_PERIOD_S = 3.0
#: In a grant's directory: the monitor's note of device time past the limiter.
PAST_FILE = "past"
#: In the ledger's directory: the monitor's note of memory that is no process's.
UNOWNED_FILE = "unowned"


@frozen(kw_only=True)
class Bypass:
    """A process on a shared device with memory, or time of it, that no limiter counted.

    `core_percent` is in percent of the device. `grant` is the one it runs
    under.
    """

    device: str
    pid: int
    program: str
    grant: str
    memory_bytes: int = field(default=0, metadata=json_key("memory"))
    core_percent: float = field(default=0.0, metadata=json_key("core"))

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the finding, the same for other figures."""
        return self.device, self.pid, self.core_percent > 0

    @property
    def subject(self) -> str:
        """The name of the process in the log and in doctor."""
        return f"process {self.pid}"

    @property
    def what(self) -> str:
        """What the process has past its limiter, as the end of `process 7 …`."""
        if self.core_percent:
            return f"takes {self.core_percent:.0f} % of the time of {self.device[:12]}"
        return f"holds {self.memory_bytes >> 20} MiB of {self.device[:12]}"

    def __str__(self) -> str:
        description = f"{self.program} ({self.pid}) {self.what}"
        return f"{description} past the limiter of grant {self.grant}: end it, or the grant"


@frozen(kw_only=True)
class Unowned:
    """Memory of a device, in bytes, that is in use and no process's, beyond what it uses when idle.

    Examples are a block that was exported and is on its way between processes, and memory that a
    driver lost.
    """

    device: str
    memory: int

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the finding, the same for other figures."""
        return "unowned", self.device

    @property
    def subject(self) -> str:
        """The name of the device in the log and in doctor."""
        return f"device {self.device[:12]}"

    @property
    def grant(self) -> None:
        """None: it is no grant's."""
        return None

    def __str__(self) -> str:
        return f"{self.memory >> 20} MiB of {self.device[:12]} are in use and are no process's"


def find_bypass(node: Node, snapshot: Snapshot, comparison: Comparison) -> tuple[Bypass, ...]:
    """Return the processes of grants that no limiter holds, as far as this user can see.

    Only devices with grants that a limiter keeps (enforcement preload) are looked at. A grant whose
    policy is off is not limited.
    """
    off_ids = {grant.id for grant in snapshot.grants if grant.allocation.policy is Policy.OFF}
    bypasses = [
        Bypass(
            device=device.uuid,
            pid=pid,
            program=program(pid),
            memory_bytes=memory_bytes,
            grant=grant_id,
        )
        for device, usage in comparison.usages
        if is_shared(device, snapshot)
        for pid, memory_bytes in (usage.processes or {}).items()
        if pid in comparison.owners and pid not in comparison.limited
        for grant_id in (comparison.grant_of(pid),)
        if memory_bytes and grant_id and grant_id not in off_ids
    ]
    return (
        *bypasses,
        *(
            device_bypass
            for grant in snapshot.grants
            for device_bypass in time_past(node, grant.id)
        ),
    )


def time_past(node: Node, grant_id: str) -> Iterator[Bypass]:
    """Yield what device time a grant takes past its limiter, by the watcher's last note."""
    path = node.directory(grant_id) / PAST_FILE
    with suppress(OSError, ValueError):
        if path.stat().st_mtime > time.time() - 3 * SAMPLE_PERIOD_S:
            for pid, device_part, device in map(str.split, path.read_text().splitlines()):
                yield Bypass(
                    device=device,
                    pid=int(pid),
                    program=program(int(pid)),
                    grant=grant_id,
                    core_percent=100 * float(device_part),
                )


def unowned_memory(node: Node) -> Iterator[Unowned]:
    """Yield what memory of cards is no process's, by the watcher's last note."""
    for ledger in filter(None, (node.ledger, node.system)):
        path = ledger.path / UNOWNED_FILE
        with suppress(OSError, ValueError):
            if path.stat().st_mtime > time.time() - 3 * SAMPLE_PERIOD_S:
                for memory_bytes, device in map(str.split, path.read_text().splitlines()):
                    yield Unowned(device=device, memory=int(memory_bytes))
