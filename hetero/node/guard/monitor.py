"""Looks at devices again and again: charges excess, tells of it and of bypass, and ends processes.

heterod does it for all users of a machine, the node agent for the pods of its node, and
`hetero doctor --watch` for the user who started it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from attrs import define, evolve, field

from hetero.model import Device, Enforcement, OnBypass, OnExcess, Usage
from hetero.model.errors import HeteroError
from hetero.model.frozen import frozen
from hetero.node.daemon_client import client_of
from hetero.node.grants import LocalGrants
from hetero.node.guard.notes import note_time, note_unowned
from hetero.node.guard.services_watch import ServicesWatch
from hetero.node.ledger.grant_dir import GRANT
from hetero.node.ledger.grant_file import read_excess, store_excess
from hetero.node.ledger.ledger import Grant, Snapshot
from hetero.node.ledger.watched import WatchedLedger
from hetero.node.node import Node
from hetero.node.quota import User
from hetero.node.view.bypass import PERIOD, Bypass, Unowned, find_bypass
from hetero.node.view.device_time import DeviceTime
from hetero.node.view.excess import NOISE, Comparison, Excess, compare
from hetero.node.view.hurt import Hurt
from hetero.node.view.owners import Owners

#: Seconds for which memory has to be no process's before it is told of: a process that ends is not
#: in a driver's list any more while its memory still is in use.
LASTING = 5.0


@frozen(kw_only=True)
class Reaction:
    """What becomes of a grant's excess, and of its programs that are past their limiter.

    `spares_time`: nobody is ended for device time.
    """

    on_excess: OnExcess
    on_bypass: OnBypass
    spares_time: bool = False

    def ends(self, finding: Bypass | Excess) -> bool:
        """Return whether the process of a finding is to be ended."""
        if isinstance(finding, Excess):
            return finding.is_over and self.on_excess is OnExcess.KILL
        return self.on_bypass is OnBypass.KILL and not (finding.core and self.spares_time)


@frozen(kw_only=True)
class Ended:
    """A process that was ended, and why: the sentence that was told of it."""

    grant: str
    pid: int
    program: str
    why: str

    @property
    def key(self) -> tuple[object, ...]:
        """Tells one from another."""
        return "ended", self.pid

    @property
    def subject(self) -> str:
        """What the log calls it."""
        return f"process {self.pid}"

    def __str__(self) -> str:
        return f"{self.program} ({self.pid}) of grant {self.grant} is killed: {self.why}"


Finding = Bypass | Excess | Unowned | Ended | Hurt


@frozen(kw_only=True)
class Sighting:
    """What one look found; `news` is what the look before did not have.

    `excess` has all grants of which it is known, on each of their devices, those without any, too.
    """

    bypass: tuple[Bypass, ...] = ()
    excess: tuple[Excess, ...] = ()
    unowned: tuple[Unowned, ...] = ()
    news: tuple[Finding, ...] = ()


def reaction(node: Node, entry: Grant) -> Reaction:
    """Return what the grant says becomes of it, or else the node's settings."""
    terms, settings = entry.allocation, node.settings
    return Reaction(
        on_excess=terms.on_excess or settings.on_excess,
        on_bypass=terms.on_bypass or settings.on_bypass,
    )


@define
class UnownedMemory:
    """Knows what a card uses with no process on it: the least that was beyond all processes."""

    _idle: dict[str, int] = field(init=False, factory=dict)
    _since: dict[str, float] = field(init=False, factory=dict)

    def sample(self, usages: Iterable[tuple[Device, Usage]], *, now: float) -> tuple[Unowned, ...]:
        """Return the memory that has been no process's for `LASTING` seconds; now is monotonic."""
        unowned = []
        for device, usage in usages:
            if usage.memory is None or usage.processes is None:
                self._since.pop(device.uuid, None)
                continue
            rest = max(usage.memory - sum(usage.processes.values()), 0)
            idle = self._idle[device.uuid] = min(self._idle.get(device.uuid, rest), rest)
            if rest - idle <= NOISE:
                self._since.pop(device.uuid, None)
            elif now - self._since.setdefault(device.uuid, now) >= LASTING:
                unowned.append(Unowned(device=device.uuid, memory=rest - idle))
        return tuple(unowned)


@define
class Monitor:
    """Tells of everything once, when it is first seen, and does what grants want done about it.

    `reactions` says what that is, `acts` whether it is done or only told of. What this user may not
    change or end stays.
    """

    node: Node
    reactions: Callable[[Grant], Reaction] | None = None
    acts: bool = True
    _time: DeviceTime = field(init=False)
    _owners: Owners = field(init=False)
    _ledger: WatchedLedger = field(init=False)
    _services: ServicesWatch = field(init=False)
    _unowned: UnownedMemory = field(init=False, factory=UnownedMemory)
    _told: frozenset[tuple[object, ...]] = field(init=False, default=frozenset())
    _last: Comparison | None = field(init=False, default=None)
    _sighting: Sighting = field(init=False, factory=Sighting)

    def __attrs_post_init__(self) -> None:
        self._time = DeviceTime()
        self._owners = Owners(self.node)
        self._services = ServicesWatch(self.node)
        self._ledger = WatchedLedger(self.node.ledger)

    def snapshot(self) -> Snapshot:
        """Return all that stands, as `Node.snapshot` does."""
        return self.node.with_system(self._ledger.snapshot())

    def sample(self, devices: Iterable[Device], snapshot: Snapshot | None = None) -> Sighting:
        """Look at `devices` once, and act; `snapshot` is what stands, if that is known."""
        snapshot = snapshot or self.snapshot()
        seen = compare(self.node, snapshot, devices, self._owners, last=self._last)
        owner = {pid: one.grant for pid, one in seen.owners.items() if one}
        boards = self.node.ledger.boards
        overuse = self._time.sample(snapshot.grants, seen.usages, owner, seen.regions, boards)
        unowned = self._unowned.sample(seen.usages, now=time.monotonic())
        hurt = self._services.sample(snapshot) if self.acts else ()
        quiet = not any(overuse.values()) and not unowned and not hurt
        still = self._last is not None and seen.excess is self._last.excess
        self._last = seen
        if still and quiet and not self._told:
            return evolve(self._sighting, news=())
        for entry in snapshot.grants if self.acts else ():
            self._charge(entry, seen.excess)
        for entry in snapshot.grants:
            note_time(self.node, entry.id, overuse)
        note_unowned(self.node, unowned)
        bypass = tuple(each for each in find_bypass(self.node, snapshot, seen) if each.grant)
        excess = tuple(seen.excess.values())
        given = {device.uuid: device for device, _ in seen.usages}
        ended = tuple(self._act(snapshot, given, bypass, excess)) if self.acts else ()
        reported = (each for each in excess if each.is_told)
        findings: tuple[Finding, ...] = (*bypass, *reported, *unowned, *ended, *hurt)
        before = self._told
        self._told = frozenset(each.key for each in findings)
        news = tuple(each for each in findings if each.key not in before)
        self._sighting = Sighting(bypass=bypass, excess=excess, unowned=unowned, news=news)
        return self._sighting

    def forget(self) -> None:
        """Charge nobody any longer: nobody would take it back when it is gone."""
        for entry in self.node.snapshot().grants:
            with suppress(OSError, ValueError):
                path = self.node.directory(entry.id) / GRANT
                if any(read_excess(path, devices=len(entry.limits))):
                    store_excess(path, [0] * len(entry.limits))

    def _reaction(self, entry: Grant) -> Reaction:
        return self.reactions(entry) if self.reactions else reaction(self.node, entry)

    def _charge(self, entry: Grant, excess: Mapping[tuple[str, str], Excess]) -> None:
        """Have the grant's programs count its excess; what is not known stays as it was."""
        path = self.node.directory(entry.id) / GRANT
        counts = self._reaction(entry).on_excess is not OnExcess.REPORT
        with suppress(OSError, ValueError):  # it ended, or is another user's
            before = read_excess(path, devices=len(entry.limits))
            now, counted = list(before), set[str]()
            for position, piece in enumerate(entry.allocation.pieces):
                charged = excess.get((entry.id, piece.device))
                if charged is not None:  # once, where a grant has several pieces of a device
                    first = counts and piece.device not in counted
                    now[position] = charged.memory if first else 0
                    counted.add(piece.device)
            if tuple(now) != before:
                store_excess(path, now)

    def _act(
        self,
        snapshot: Snapshot,
        devices: Mapping[str, Device],
        bypass: Iterable[Bypass],
        excess: Iterable[Excess],
    ) -> Iterator[Ended]:
        """End the processes that their grants want ended; yield those that were."""
        wanted = {entry.id: self._reaction(entry) for entry in snapshot.grants}
        pids = set[int]()
        findings: tuple[Bypass | Excess, ...] = (*bypass, *excess)
        for finding in findings:
            wants = finding.grant is not None and wanted[finding.grant].ends(finding)
            if wants and finding.pid not in pids and self._end(finding, devices[finding.device]):
                pids.add(finding.pid)
                yield Ended(
                    grant=finding.grant or "",
                    pid=finding.pid,
                    program=finding.program,
                    why=finding.what,
                )

    def _end(self, finding: Bypass | Excess, device: Device) -> bool:
        """Kill a process if it is still what was found; return whether it was killed.

        A pidfd stands for the process itself, not for whoever has its number by now. So what is
        read after it was opened is of that process, or the signal goes to one that is gone.
        """
        with suppress(OSError):
            process = os.pidfd_open(finding.pid)
            try:
                seen = compare(self.node, self.node.snapshot(), [device], Owners(self.node))
                if _is_still(finding, seen) and not self._is_ignored(finding.pid):
                    if finding.grant and device.enforcement is Enforcement.SERVICE:
                        LocalGrants(self.node).detach(finding.grant, finding.pid)
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    return True
            finally:
                os.close(process)
        return False

    def _is_ignored(self, pid: int) -> bool:
        """Whether the settings name the executable of a process, or it is not to be known."""
        try:
            path = Path(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            return True
        ignored = self.node.settings.ignore
        if ignored is None:
            vendors = self.node.registry.declarations()
            ignored = tuple(name for vendor in vendors for name in vendor.monitors)
        return not {str(path), path.name}.isdisjoint(ignored)


def _is_still(finding: Bypass | Excess, seen: Comparison) -> bool:
    """Whether a later look at the device finds the same of the process."""
    if isinstance(finding, Excess):
        now = seen.excess.get((finding.grant, finding.device))
        return now is not None and now.is_over and now.pid == finding.pid
    ((_, usage),) = seen.usages
    if finding.core:
        has = (usage.busy or {}).get(finding.pid)
    else:
        has = None if finding.pid in seen.limited else (usage.processes or {}).get(finding.pid)
    return bool(has) and seen.grant_of(finding.pid) == finding.grant


def acts_for(node: Node) -> str:
    """Return the sentence that says whose processes this user's monitor charges and ends."""
    if node.daemon:
        return "heterod charges and ends what it finds; this only tells"
    if client_of(node.ledger.path):
        return "heterod is installed: both charge and end what they find"
    whose = "all users'" if os.geteuid() == 0 else f"{User.of(os.getuid()).name}'s"
    return (
        f"heterod is not installed: {whose} processes are watched, and acted upon, while this runs"
    )


def watch(node: Node, tell: Callable[[Finding], None]) -> NoReturn:
    """Look every `PERIOD` seconds at the devices that are shared, and report each finding once."""
    # What is heterod's to do it does itself.
    monitor, devices = Monitor(node, acts=node.daemon is None), dict[str, Device]()
    try:
        while True:
            with suppress(HeteroError):  # said to whoever asks for something
                snapshot = monitor.snapshot()
                pieces = (each for one in snapshot.grants for each in one.allocation.pieces)
                shared = {piece.device for piece in pieces}
                if not shared <= devices.keys():
                    devices = {device.uuid: device for device in node.discover().devices}
                chosen = [devices[uuid] for uuid in sorted(shared & devices.keys())]
                for finding in monitor.sample(chosen, snapshot).news:
                    tell(finding)
            time.sleep(PERIOD)
    finally:
        monitor.forget()
