"""Looks at the node for people: what stands on each device, and what each grant uses of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from attrs import define, evolve, field

from hetero.model import CORE, Counters, Device, Enforcement, Policy, Priority, Usage
from hetero.model.frozen import frozen
from hetero.node.inventory import inventory_of
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit, read_limits
from hetero.node.ledger.holders import program
from hetero.node.ledger.ledger import (
    ALIVE,
    ContainerInfo,
    Grant,
    Snapshot,
    Unreadable,
    gang_rows,
)
from hetero.node.ledger.rows import GangRow
from hetero.node.ledger.usage_region import Region, read_region, slots_of
from hetero.node.node import Node
from hetero.node.view.bypass import Bypass, find_bypass
from hetero.node.view.containers import containers_by_space, space_of
from hetero.node.view.excess import Comparison, Excess, compare
from hetero.node.view.hurt import hurt
from hetero.node.view.owners import Owners
from hetero.registry.vendor_row import VendorRow


@frozen(kw_only=True)
class Share:
    """One device of a grant: its limits, and what the grant uses of it (None: not known).

    `core` and `core_used` are in percent of the card, `core` None where there is no limit; `rest`:
    none was asked for, and this is what its limited neighbours leave for the time being. `sm` is
    the percent of the multiprocessors that it has in place of such a limit. Of `core_used`,
    `core_borrowed` was lent by others, and `core_lent` is this grant's part of what others
    borrowed. `core_stopped` are the milliseconds a second for which its processes waited for
    their share, each counted. `memory`
    and `memory_used` are bytes. `spill`: what does not fit on the card lies with the host. `denied`
    counts the allocations that were refused. `overhead` is what the driver counts for the grant's
    processes on top: contexts, the code of their kernels. `excess` is what it counts beyond what
    was charged and their contexts. `core_excess` is the device time that they took past their
    limiter, in percent of the card, as heterod noted it lately where no tenant writes (None: it
    noted none). `enforcement` is how the limits are kept.
    """

    device: str
    number: int | None
    memory: int
    core: float | None
    rest: bool = False
    sm: int | None = None
    spill: bool = False
    memory_used: int | None = None
    core_used: float | None = None
    core_borrowed: float | None = None
    core_lent: float | None = None
    core_stopped: float | None = None
    denied: int | None = None
    overhead: int | None = None
    excess: Excess | None = None
    core_excess: float | None = None
    enforcement: Enforcement | None = None


@frozen(kw_only=True)
class Process:
    """A process of a grant: the container it is in, by its id, and what it holds of each device.

    `memory` goes with the grant's shares, in bytes; empty for one that uses no device.
    """

    pid: int
    program: str
    container: str | None = None
    memory: tuple[int, ...] = ()


@frozen(kw_only=True)
class RowView:
    """The row of a gang: from `begin` on, `length` of each `period`, all in milliseconds.

    No `length`: none was free. `runs`: it is in a row now. The rest are totals since the grant
    began, None where no process says: of `rows`, `overruns` ended with work in flight, and
    `end` are the milliseconds from the end of a row until all devices were idle, a mean. Grants of
    high priority ran in a row `intrusions` times, for `intruded` milliseconds that are not charged
    to the gang.
    """

    begin: float
    length: float
    period: float
    runs: bool = False
    rows: int | None = None
    overruns: int | None = None
    end: float | None = None
    intrusions: int | None = None
    intruded: float | None = None


@frozen(kw_only=True)
class GrantView:
    """A grant that stands: whose, since when (UTC), its processes, its share of each device.

    `containers` are those that have it, `share` its name where it is one. `running` says more of
    each of its `processes`.
    `bypass` says which of its processes have memory or device time past the limiter. `unknown`
    counts the driver's functions that they asked for and the limiter does not know (None: unread).
    `hurt` is what ended its programs on a device that a service shares. `row`: it is a gang.
    """

    id: str
    label: str | None
    user: str
    command: tuple[str, ...]
    since: str
    policy: Policy
    priority: Priority
    processes: tuple[int, ...]
    shares: tuple[Share, ...]
    containers: tuple[ContainerInfo, ...] = ()
    share: str | None = None
    running: tuple[Process, ...] = ()
    bypass: tuple[Bypass, ...] = ()
    unknown: int | None = None
    hurt: str | None = None
    row: RowView | None = None


@frozen(kw_only=True)
class DeviceView:
    """A device by its number in the inventory: what is held of it, by whom, and its usage now.

    `open`: one of the grants holds a share of its memory and no limit of its core.
    """

    number: int
    device: Device
    held: Counters
    usage: Usage
    grants: tuple[str, ...]
    open: bool = False


@frozen(kw_only=True)
class GrantsView:
    """The grants that stand, those that cannot be read, and whether all is simulated (a rack)."""

    grants: tuple[GrantView, ...]
    unreadable: tuple[Unreadable, ...]
    simulated: str | None


@frozen(kw_only=True)
class NodeView:
    """All there is to see on a node; `simulated` names the rack file where nothing is real."""

    devices: tuple[DeviceView, ...]
    grants: tuple[GrantView, ...]
    unreadable: tuple[Unreadable, ...]
    vendors: tuple[VendorRow, ...]
    simulated: str | None


@frozen(kw_only=True)
class Timeshare:
    """What a grant's processes count, its row, and what others borrow of its share of each device.

    `lent` is in percent of the card, as in `Share`; `region` is None where it is not to be known.
    """

    region: Region | None
    row: RowView | None
    lent: tuple[float | None, ...]


@define
class CoreMeter:
    """Tells what grants had of their devices' time, from what their processes count.

    It is a mean: since a grant began, at the first sample; then over the samples of the last
    `window` seconds, at least since the one before.
    """

    node: Node
    window: float = field(kw_only=True, default=0.0)
    _samples: deque[tuple[float, dict[str, Region | None]]] = field(init=False, factory=deque)

    def sample(self, grants: Iterable[Grant]) -> dict[str, Region | None]:
        """Return what each grant's processes say until now; later means may begin here."""
        now = time.monotonic()
        regions = {entry.id: _region(self.node, entry) for entry in grants}
        while len(self._samples) > 1 and self._samples[1][0] <= now - self.window:
            self._samples.popleft()
        self._samples.append((now, regions))
        return regions

    def wait(self, seconds: float) -> None:
        """Sample, and let so much time pass: the next sample gives the mean over it."""
        regions = self.sample(self.node.snapshot().grants).values()
        if any(region and region.counts for region in regions):
            time.sleep(seconds)

    def used(self, entry: Grant, position: int) -> float | None:
        """Return the mean at the last sample, in percent of a device; None where none is known."""
        mean = self._mean(entry, position, "device_ns")
        # The counts are the tenant's own word: no device gives more than all of its time.
        return None if mean is None else min(100 * mean, 100.0)

    def borrowed(self, entry: Grant, position: int) -> float | None:
        """Return the part of `used` that others lent."""
        mean = self._mean(entry, position, "borrowed_ns")
        return None if mean is None else min(100 * mean, 100.0)

    def stopped(self, entry: Grant, position: int) -> float | None:
        """Return for how many milliseconds a second processes waited for the device."""
        mean = self._mean(entry, position, "stopped_ns")
        return None if mean is None else 1000 * mean

    def _mean(self, entry: Grant, position: int, name: str) -> float | None:
        """Return what a count of nanoseconds grew by in a second, in seconds."""
        now, _ = self._samples[-1]
        means = [
            (then, getattr(region.counts[position], name))
            for then, regions in self._samples
            if (region := regions.get(entry.id)) and region.counts
        ]
        (then, before), (_, spent) = means[0], means[-1]
        if then < now:
            spent -= before
        else:
            then = now - self._age(entry)
        return max(spent / (now - then) / 1e9, 0.0) if now > then else None

    def _age(self, entry: Grant) -> float:
        """Return the seconds since a grant began, finer than its entry says; 0: not known."""
        with suppress(OSError):
            began = (self.node.directory(entry.id) / ALIVE).stat().st_mtime
            return max(time.time() - began, 0.0)
        return 0.0


def observe_node(node: Node, meter: CoreMeter | None = None) -> NodeView:
    """Return every device, how busy it is, and who holds what; `meter` says over which time."""
    discovery = node.discover()
    snapshot = node.snapshot()
    free = inventory_of(discovery, snapshot).free()
    seen = compare(node, snapshot, discovery.devices, Owners(node))
    usages = seen.usages
    devices = []
    for number, (device, usage) in enumerate(usages):
        views = [
            (entry.id, piece)
            for entry in snapshot.grants
            for piece in entry.allocation.pieces
            if piece.device == device.uuid
        ]
        left = free[device.uuid]
        devices.append(
            DeviceView(
                number=number,
                device=device,
                held={name: all_ - left[name] for name, all_ in device.capacity.items()},
                usage=usage,
                grants=tuple(dict.fromkeys(identity for identity, _ in views)),
                open=any(piece.core is None and not piece.takes.get(CORE) for _, piece in views),
            )
        )
    return NodeView(
        devices=tuple(devices),
        grants=_views(
            node,
            snapshot,
            seen,
            meter or CoreMeter(node),
            numbers={device.uuid: number for number, (device, _) in enumerate(usages)},
        ),
        unreadable=snapshot.unreadable,
        vendors=discovery.rows,
        simulated=_rack(node),
    )


def observe_grants(node: Node, *, seconds: float | None = None) -> GrantsView:
    """Return the grants that stand and what they use.

    The core in use is a mean: over the next `seconds`, or since each grant began.
    """
    meter = CoreMeter(node)
    if seconds is not None:
        meter.wait(seconds)
    snapshot = node.snapshot()
    numbers, vendors = _known(snapshot)
    # No driver is asked where there is nothing to ask it about.
    devices = node.discover(names=vendors).devices if snapshot.grants else ()
    numbers = numbers or {device.uuid: number for number, device in enumerate(devices)}
    seen = compare(node, snapshot, devices, Owners(node))
    return GrantsView(
        grants=_views(node, snapshot, seen, meter, numbers=numbers),
        unreadable=snapshot.unreadable,
        simulated=_rack(node),
    )


def _known(snapshot: Snapshot) -> tuple[dict[str, int], set[str] | None]:
    """Return the numbers of the devices that are held, and whose they are.

    Where grants do not say the numbers, all vendors' devices must be counted: None.
    """
    if not all(entry.numbers for entry in snapshot.grants):
        return {}, None
    pieces = [
        (piece, number)
        for entry in snapshot.grants
        for piece, number in zip(entry.allocation.pieces, entry.numbers, strict=True)
    ]
    return (
        {piece.device: number for piece, number in pieces},
        {piece.vendor for piece, _ in pieces},
    )


def _rack(node: Node) -> str | None:
    return str(node.simulation.rack) if node.simulation else None


def _views(
    node: Node,
    snapshot: Snapshot,
    seen: Comparison,
    meter: CoreMeter,
    *,
    numbers: Mapping[str, int],
) -> tuple[GrantView, ...]:
    """Return the grants by the first of their devices, the oldest first."""
    driver = {device.uuid: usage.processes or {} for device, usage in seen.usages}
    regions = meter.sample(snapshot.grants)
    processes = node.processes(entry.id for entry in snapshot.grants)
    inside = containers_by_space(
        {entry.id: node.directory(entry.id) / GRANT for entry in snapshot.grants if entry.share}
    )
    past = find_bypass(node, snapshot, seen)
    held = {entry.id: _in_force(node, entry) for entry in snapshot.grants}
    rows = gang_rows(snapshot.grants, held, node.ledger.periods())
    views = (
        GrantView(
            id=entry.id,
            label=entry.label,
            user=entry.user,
            command=entry.command,
            since=entry.since,
            policy=entry.allocation.policy,
            priority=entry.allocation.priority,
            processes=processes[entry.id],
            containers=(entry.container,)
            if entry.container
            else tuple(inside.get(entry.id, {}).values()),
            share=entry.share,
            running=_running(node, entry, processes[entry.id], inside, regions[entry.id]),
            shares=_shares(
                entry,
                held[entry.id],
                numbers,
                driver={
                    uuid: sum(counted.get(pid, 0) for pid in processes[entry.id])
                    for uuid, counted in driver.items()
                },
                region=regions[entry.id],
                meter=meter,
                enforcements={device.uuid: device.enforcement for device, _ in seen.usages},
                excess=seen.excess,
                past=_past(each for each in past if each.grant == entry.id),
            ),
            bypass=tuple(each for each in past if each.grant == entry.id),
            hurt=hurt(node, entry.id),
            unknown=region.unknown if (region := regions[entry.id]) else None,
            row=_row(rows[entry.id], regions[entry.id]) if entry.id in rows else None,
        )
        for entry in snapshot.grants
    )
    ordered = sorted(views, key=_place)
    with_lent = lending(share for view in ordered for share in view.shares)
    return tuple(evolve(view, shares=tuple(map(with_lent, view.shares))) for view in ordered)


def timeshares(node: Node, grants: Sequence[Grant], meter: CoreMeter) -> dict[str, Timeshare]:
    """Return how the time of their devices is shared among these grants, by their ids.

    Nothing is asked of a driver.
    """
    regions = meter.sample(grants)
    held = {entry.id: _in_force(node, entry) for entry in grants}
    rows = gang_rows(grants, held, node.ledger.periods())
    shares = {
        entry.id: _shares(
            entry,
            held[entry.id],
            {},
            driver={},
            region=regions[entry.id],
            meter=meter,
            enforcements={},
            excess={},
            past={},
        )
        for entry in grants
    }
    with_lent = lending(share for each in shares.values() for share in each)
    return {
        identity: Timeshare(
            region=regions[identity],
            row=_row(rows[identity], regions[identity]) if identity in rows else None,
            lent=tuple(with_lent(share).core_lent for share in each),
        )
        for identity, each in shares.items()
    }


def lending(shares: Iterable[Share]) -> Callable[[Share], Share]:
    """Return what tells of each of these shares, which are all there are, how much of it is lent.

    What some borrowed of a device is taken to come from what others left of their shares and from
    what nobody was given, from each as much in proportion. A device's limited shares are looked at
    alone, in percent of the card.
    """
    unused: dict[str, float] = {}
    nobodys: dict[str, float] = {}
    borrowed: dict[str, float] = {}
    for share in shares:
        if share.core is not None and share.core_used is not None:
            unused[share.device] = unused.get(share.device, 0) + _unused(share)
            nobodys[share.device] = nobodys.get(share.device, 100) - share.core
            borrowed[share.device] = borrowed.get(share.device, 0) + (share.core_borrowed or 0)

    def tell(share: Share) -> Share:
        if share.core is None or share.core_used is None:
            return share
        lendable = unused[share.device] + max(nobodys[share.device], 0)
        part = min(borrowed[share.device] / lendable, 1) if lendable else 0.0
        return evolve(share, core_lent=part * _unused(share))

    return tell


def _unused(share: Share) -> float:
    """Return what is left of a limited share, in percent of the card."""
    own = (share.core_used or 0) - (share.core_borrowed or 0)
    return max((share.core or 0) - own, 0)


def _place(view: GrantView) -> tuple[float, str, str]:
    numbers = [share.number for share in view.shares if share.number is not None]
    return min(numbers, default=float("inf")), view.since, view.id


def _row(row: GangRow, region: Region | None) -> RowView:
    view = RowView(begin=row.begin / 1e6, length=row.length / 1e6, period=row.period / 1e6)
    gang = region.gang if region else None
    if gang is None:
        return view
    return evolve(
        view,
        runs=gang.runs and gang.asked_ns != 0,
        rows=gang.rows,
        overruns=gang.overruns,
        end=gang.end_ns / gang.rows / 1e6,
        intrusions=gang.intrusions,
        intruded=gang.intruded_ns / 1e6,
    )


def _region(node: Node, entry: Grant) -> Region | None:
    """Return what the grant's processes say of themselves; None where that is not to be known."""
    if entry.allocation.policy is not Policy.OFF:
        # It ended, is another user's, or its tenant scribbled on it.
        with suppress(OSError, ValueError):
            return read_region(node.directory(entry.id) / USAGE, devices=len(entry.limits))
    return None


def _running(
    node: Node,
    entry: Grant,
    pids: Sequence[int],
    inside: Mapping[str, Mapping[str, ContainerInfo]],
    region: Region | None,
) -> tuple[Process, ...]:
    path = node.directory(entry.id) / USAGE
    slots = region.slots if region else {}
    shown_processes = []
    for pid in pids:
        container = entry.container or inside.get(entry.id, {}).get(space_of(pid) or "")
        # A PID in the region is what the process calls itself; the slot it keeps is its own.
        used = [slots[slot].used for slot in slots_of(pid, path) if slot in slots] if slots else []
        shown_processes.append(
            Process(
                pid=pid,
                program=program(pid),
                container=container.id if container else None,
                memory=used[0][: len(entry.limits)] if used else (),
            )
        )
    return tuple(shown_processes)


def _past(bypasses: Iterable[Bypass]) -> dict[str, float]:
    """Return the device time that was taken past the limiter, by device."""
    past: dict[str, float] = {}
    for each in bypasses:
        if each.core:
            past[each.device] = past.get(each.device, 0) + each.core
    return past


def _in_force(node: Node, entry: Grant) -> tuple[DeviceLimit, ...]:
    """Return what the grant's programs are held to; what was asked where that is not to be read."""
    try:
        return read_limits(node.directory(entry.id) / GRANT)
    except (OSError, ValueError):
        return entry.limits


def _shares(
    entry: Grant,
    limits: tuple[DeviceLimit, ...],
    numbers: Mapping[str, int],
    *,
    driver: Mapping[str, int],
    region: Region | None,
    meter: CoreMeter,
    enforcements: Mapping[str, Enforcement],
    excess: Mapping[tuple[str, str], Excess],
    past: Mapping[str, float],
) -> tuple[Share, ...]:
    shares = []
    for position, (piece, asked, limit) in enumerate(
        zip(entry.allocation.pieces, entry.limits, limits, strict=True)
    ):
        now = region.counts[position] if region and region.counts else None
        limited = limit.percent is not None
        held = driver.get(piece.device)
        enforcement = enforcements.get(piece.device)
        if entry.allocation.policy is Policy.OFF and enforcement and enforcement.by_limiter:
            enforcement = Enforcement.NONE  # no limiter was loaded
        shares.append(
            Share(
                device=limit.name,
                number=numbers.get(piece.device),
                memory=limit.memory,
                core=limit.percent,
                rest=limited and asked.core == CORE_FULL,
                sm=asked.sm,
                spill=limit.spill,
                memory_used=now.memory if now else None,
                # Device time is only counted where it is limited.
                core_used=meter.used(entry, position) if now and limited else None,
                core_borrowed=meter.borrowed(entry, position) if now and limited else None,
                core_stopped=meter.stopped(entry, position) if now and limited else None,
                denied=now.denied if now else None,
                overhead=max(0, held - now.memory) if held and now else None,
                excess=excess.get((entry.id, piece.device)),
                core_excess=past.get(piece.device),
                enforcement=enforcement,
            )
        )
    return tuple(shares)
