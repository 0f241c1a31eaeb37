"""Samples devices periodically: charges excess, reports it and bypass, and ends processes.

heterod does it for all users of a machine, the node agent for the pods of its node, and `hetero
doctor --watch` for the user who started it.
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
from hetero.node.foreign import NOISE_BYTES
from hetero.node.grants import LocalGrants
from hetero.node.guard.notes import note_time, note_unowned
from hetero.node.guard.services_watch import ServicesWatch
from hetero.node.ledger.grant_dir import GRANT
from hetero.node.ledger.grant_file import read_excess, store_excess
from hetero.node.ledger.holders import program
from hetero.node.ledger.ledger import Grant, Snapshot
from hetero.node.ledger.open_boards import OpenBoards
from hetero.node.ledger.watched import WatchedLedger
from hetero.node.node import Node
from hetero.node.quota import User
from hetero.node.settings import OnDebt
from hetero.node.tenants.owners import Owners
from hetero.node.view.bypass import SAMPLE_PERIOD_S, Bypass, Unowned, find_bypass
from hetero.node.view.debt import Owing, Wait, owing, waits
from hetero.node.view.device_time import DeviceTime
from hetero.node.view.excess import Comparison, Excess, compare
from hetero.node.view.hurt import Hurt

#: Seconds for which memory has to be no process's before it is reported: an ending process leaves a
#: driver's list before its memory is free.
UNOWNED_S = 5.0


@frozen(kw_only=True)
class Reaction:
    """What is done about a grant's excess, and about its programs that are past their limiter.

    `spares_time`: no process is ended for device time.
    """

    on_excess: OnExcess
    on_bypass: OnBypass
    spares_time: bool = False

    def ends(self, finding: Bypass | Excess) -> bool:
        """Return whether the process of a finding is to be ended."""
        if isinstance(finding, Excess):
            return finding.is_over and self.on_excess is OnExcess.KILL
        return self.on_bypass is OnBypass.KILL and not (finding.core_percent and self.spares_time)


@frozen(kw_only=True)
class Ended:
    """A process that was ended, with the sentence that reported why."""

    grant: str
    pid: int
    program: str
    why: str

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is unique among findings."""
        return "ended", self.pid

    @property
    def subject(self) -> str:
        """What the log calls it."""
        return f"process {self.pid}"

    def __str__(self) -> str:
        return f"{self.program} ({self.pid}) of grant {self.grant} is killed: {self.why}"


Finding = Bypass | Excess | Unowned | Ended | Hurt | Owing | Wait


@frozen(kw_only=True)
class Sighting:
    """The findings of one sample; `news` are those that the sample before did not have.

    `excess` has all grants whose excess is known, on each of their devices, also where it is 0.
    """

    bypass: tuple[Bypass, ...] = ()
    excess: tuple[Excess, ...] = ()
    unowned: tuple[Unowned, ...] = ()
    owing: tuple[Owing, ...] = ()
    news: tuple[Finding, ...] = ()


def reaction(node: Node, grant: Grant) -> Reaction:
    """Return the reaction that the grant asks for, or else the one of the node's settings."""
    allocation, settings = grant.allocation, node.settings
    return Reaction(
        on_excess=allocation.on_excess or settings.on_excess,
        on_bypass=allocation.on_bypass or settings.on_bypass,
    )


@define
class UnownedMemory:
    """Keeps, by card, the least memory that was in use beyond that of all processes."""

    _least_unowned_bytes: dict[str, int] = field(init=False, factory=dict)
    _unowned_since_s: dict[str, float] = field(init=False, factory=dict)

    def sample(
        self, usages: Iterable[tuple[Device, Usage]], *, now_s: float
    ) -> tuple[Unowned, ...]:
        """Return the memory that was no process's for `UNOWNED_S`; `now_s` is monotonic."""
        unowned = []
        for device, usage in usages:
            if usage.memory is None or usage.processes is None:
                self._unowned_since_s.pop(device.uuid, None)
                continue
            unowned_bytes = max(usage.memory - sum(usage.processes.values()), 0)
            least_bytes = self._least_unowned_bytes[device.uuid] = min(
                self._least_unowned_bytes.get(device.uuid, unowned_bytes), unowned_bytes
            )
            if unowned_bytes - least_bytes <= NOISE_BYTES:
                self._unowned_since_s.pop(device.uuid, None)
            elif now_s - self._unowned_since_s.setdefault(device.uuid, now_s) >= UNOWNED_S:
                unowned.append(Unowned(device=device.uuid, memory=unowned_bytes - least_bytes))
        return tuple(unowned)


@define
class Monitor:
    """Reports each finding once, and does what grants ask to be done about it.

    `reactions` returns that, and `acts` says whether it is done or only reported. What this user
    may not change or end stays.
    """

    node: Node
    reactions: Callable[[Grant], Reaction] | None = None
    acts: bool = True
    _device_time: DeviceTime = field(init=False)
    _owners: Owners = field(init=False)
    _ledger: WatchedLedger = field(init=False)
    _services: ServicesWatch = field(init=False)
    _unowned: UnownedMemory = field(init=False, factory=UnownedMemory)
    _boards: OpenBoards = field(init=False, factory=OpenBoards)
    _reported_keys: frozenset[tuple[object, ...]] = field(init=False, default=frozenset())
    _last: Comparison | None = field(init=False, default=None)
    _sighting: Sighting = field(init=False, factory=Sighting)

    def __attrs_post_init__(self) -> None:
        self._device_time = DeviceTime()
        self._owners = Owners(self.node)
        self._services = ServicesWatch(self.node)
        self._ledger = WatchedLedger(self.node.ledger)

    def snapshot(self) -> Snapshot:
        """Return all that stands, as `Node.snapshot` does."""
        return self.node.with_system(self._ledger.snapshot())

    def sample(self, devices: Iterable[Device], snapshot: Snapshot | None = None) -> Sighting:
        """Sample `devices` once, and act; `snapshot` are the standing grants, if already read."""
        snapshot = snapshot or self.snapshot()
        comparison = compare(self.node, snapshot, devices, self._owners, last_comparison=self._last)
        grant_id_by_pid = {pid: owner.grant for pid, owner in comparison.owners.items() if owner}
        boards_directory = self.node.ledger.boards
        self._boards.look(boards_directory)
        overuse_by_device = self._device_time.sample(
            snapshot.grants,
            comparison.usages,
            grant_id_by_pid,
            comparison.regions,
            boards_directory,
        )
        unowned_findings = self._unowned.sample(comparison.usages, now_s=time.monotonic())
        hurt_services = self._services.sample(snapshot) if self.acts else ()
        owing_grants = owing(self.node, snapshot.grants, comparison.regions)
        waiting_grants = tuple(
            wait for grant in snapshot.grants for wait in waits(self.node, grant)
        )
        is_quiet = not (
            any(overuse_by_device.values())
            or unowned_findings
            or hurt_services
            or owing_grants
            or waiting_grants
        )
        is_unchanged = self._last is not None and comparison.excess is self._last.excess
        self._last = comparison
        if is_unchanged and is_quiet and not self._reported_keys:
            return evolve(self._sighting, news=())
        for grant in snapshot.grants if self.acts else ():
            self._charge(grant, comparison.excess)
        for grant in snapshot.grants:
            note_time(self.node, grant.id, overuse_by_device)
        note_unowned(self.node, unowned_findings)
        bypass = find_bypass(self.node, snapshot, comparison)
        excess = tuple(comparison.excess.values())
        device_by_uuid = {device.uuid: device for device, _ in comparison.usages}
        ended_processes = (
            (
                *self._act(snapshot, device_by_uuid, bypass, excess),
                *self._end_owing(owing_grants),
            )
            if self.acts
            else ()
        )
        reported = (process_excess for process_excess in excess if process_excess.is_told)
        findings: tuple[Finding, ...] = (
            *bypass,
            *reported,
            *unowned_findings,
            *ended_processes,
            *hurt_services,
            *owing_grants,
            *waiting_grants,
        )
        keys_before = self._reported_keys
        self._reported_keys = frozenset(finding.key for finding in findings)
        news = tuple(finding for finding in findings if finding.key not in keys_before)
        self._sighting = Sighting(
            bypass=bypass,
            excess=excess,
            unowned=unowned_findings,
            owing=owing_grants,
            news=news,
        )
        return self._sighting

    def forget(self) -> None:
        """Charge no excess any longer: without this process it would never be taken back."""
        for grant in self.node.snapshot().grants:
            with suppress(OSError, ValueError):
                path = self.node.directory(grant.id) / GRANT
                if any(read_excess(path, device_count=len(grant.limits))):
                    store_excess(path, [0] * len(grant.limits))

    def _reaction(self, grant: Grant) -> Reaction:
        return self.reactions(grant) if self.reactions else reaction(self.node, grant)

    def _charge(self, grant: Grant, excess_by_grant: Mapping[tuple[str, str], Excess]) -> None:
        """Have the grant's programs count its excess; what is not known stays as it was."""
        path = self.node.directory(grant.id) / GRANT
        is_counted = self._reaction(grant).on_excess is not OnExcess.REPORT
        with suppress(OSError, ValueError):  # it ended, or is another user's
            excess_before = read_excess(path, device_count=len(grant.limits))
            excess_now, counted_uuids = list(excess_before), set[str]()
            for position, piece in enumerate(grant.allocation.pieces):
                device_excess = excess_by_grant.get((grant.id, piece.device))
                if device_excess is not None:  # once, where a grant has several pieces of a device
                    is_first = is_counted and piece.device not in counted_uuids
                    excess_now[position] = device_excess.memory if is_first else 0
                    counted_uuids.add(piece.device)
            if tuple(excess_now) != excess_before:
                store_excess(path, excess_now)

    def _act(
        self,
        snapshot: Snapshot,
        devices: Mapping[str, Device],
        bypass: Iterable[Bypass],
        excess: Iterable[Excess],
    ) -> Iterator[Ended]:
        """End the processes that their grants want ended; yield these."""
        reaction_by_id = {grant.id: self._reaction(grant) for grant in snapshot.grants}
        pids = set[int]()
        findings: tuple[Bypass | Excess, ...] = (*bypass, *excess)
        for finding in findings:
            is_wanted = finding.grant is not None and reaction_by_id[finding.grant].ends(finding)
            if (
                is_wanted
                and finding.pid not in pids
                and self._end(finding, devices[finding.device])
            ):
                pids.add(finding.pid)
                yield Ended(
                    grant=finding.grant or "",
                    pid=finding.pid,
                    program=finding.program,
                    why=finding.what,
                )

    def _end_owing(self, owing_grants: Iterable[Owing]) -> Iterator[Ended]:
        """End the processes of grants that owe much, where the settings say so; yield these."""
        if self.node.settings.on_debt is OnDebt.REPORT:
            return
        for finding in owing_grants:
            for pid in self.node.processes([finding.grant])[finding.grant]:
                program_name = program(pid)
                if self._kill_holder(finding.grant, pid):
                    why = finding.what
                    yield Ended(grant=finding.grant, pid=pid, program=program_name, why=why)

    def _kill_holder(self, grant_id: str, pid: int) -> bool:
        """Kill a process if it still holds a grant; return whether it was killed.

        As in `_end`, what is asked after the pidfd was opened is of that process.
        """
        with suppress(OSError):
            pidfd = os.pidfd_open(pid)
            try:
                holds = pid != os.getpid() and pid in self.node.processes([grant_id])[grant_id]
                if holds and not self._is_ignored(pid):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    return True
            finally:
                os.close(pidfd)
        return False

    def _end(self, finding: Bypass | Excess, device: Device) -> bool:
        """Kill a process if it is still what was found; return whether it was killed.

        A pidfd stands for the process itself, not for a later one with the same PID. So what is
        read after it was opened is of that process, or the signal goes to one that is gone.
        """
        with suppress(OSError):
            pidfd = os.pidfd_open(finding.pid)
            try:
                comparison = compare(self.node, self.node.snapshot(), [device], Owners(self.node))
                if _is_still(finding, comparison) and not self._is_ignored(finding.pid):
                    if finding.grant and device.enforcement is Enforcement.SERVICE:
                        LocalGrants(self.node).detach(finding.grant, finding.pid)
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    return True
            finally:
                os.close(pidfd)
        return False

    def _is_ignored(self, pid: int) -> bool:
        """Whether the settings name the executable of a process, or it is unreadable."""
        try:
            path = Path(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            return True
        ignored_names = self.node.settings.ignore
        if ignored_names is None:
            vendors = self.node.registry.declarations()
            ignored_names = tuple(
                program_name for vendor in vendors for program_name in vendor.monitors
            )
        return not {str(path), path.name}.isdisjoint(ignored_names)


def _is_still(finding: Bypass | Excess, comparison: Comparison) -> bool:
    """Whether a later sample has the same finding of the process."""
    if isinstance(finding, Excess):
        excess_now = comparison.excess.get((finding.grant, finding.device))
        return excess_now is not None and excess_now.is_over and excess_now.pid == finding.pid
    ((_, usage),) = comparison.usages
    if finding.core_percent:
        amount_now = (usage.busy or {}).get(finding.pid)
    else:
        amount_now = (
            None if finding.pid in comparison.limited else (usage.processes or {}).get(finding.pid)
        )
    return bool(amount_now) and comparison.grant_of(finding.pid) == finding.grant


def acts_for(node: Node) -> str:
    """Return the sentence that says whose processes this user's monitor charges and ends."""
    if node.daemon:
        return "heterod charges and ends what it finds; this only tells"
    if client_of(node.ledger.path):
        return "heterod is installed: both charge and end what they find"
    owners = "all users'" if os.geteuid() == 0 else f"{User.of(os.getuid()).name}'s"
    return (
        f"heterod is not installed: {owners} processes are watched, and acted upon, while this runs"
    )


def watch(node: Node, report: Callable[[Finding], None]) -> NoReturn:
    """Sample the shared devices every `SAMPLE_PERIOD_S`, and report each finding once."""
    # heterod does its own part itself.
    monitor, devices = Monitor(node, acts=node.daemon is None), dict[str, Device]()
    try:
        while True:
            with suppress(HeteroError):  # said to those who ask for something
                snapshot = monitor.snapshot()
                pieces = (piece for grant in snapshot.grants for piece in grant.allocation.pieces)
                shared_uuids = {piece.device for piece in pieces}
                if not shared_uuids <= devices.keys():
                    devices = {device.uuid: device for device in node.discover().devices}
                watched_devices = [devices[uuid] for uuid in sorted(shared_uuids & devices.keys())]
                for finding in monitor.sample(watched_devices, snapshot).news:
                    report(finding)
            time.sleep(SAMPLE_PERIOD_S)
    finally:
        monitor.forget()
