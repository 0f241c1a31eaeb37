"""Views of the node for people: what stands on each device, and what each grant uses of it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from attrs import define, evolve, field

from hetero.model import (
    CORE,
    Counters,
    Device,
    DeviceAllocation,
    Enforcement,
    Inventory,
    Policy,
    Priority,
    Usage,
    left_of,
    obtainable_of,
)
from hetero.model.frozen import frozen
from hetero.model.json_keys import json_key
from hetero.node.foreign import ForeignUse, foreign_uses
from hetero.node.inventory import with_lost
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit, read_limits
from hetero.node.ledger.holders import holders, program
from hetero.node.ledger.ledger import (
    ALIVE,
    ENDED_FILE,
    ContainerInfo,
    Grant,
    Snapshot,
    Unreadable,
    gang_rows,
)
from hetero.node.ledger.rows import GangRow
from hetero.node.ledger.usage_region import Counts, Region, read_region, slots_of
from hetero.node.node import Node
from hetero.node.tenants.containers import containers_by_space, space_of
from hetero.node.tenants.owners import Owners
from hetero.node.view.bypass import Bypass, find_bypass
from hetero.node.view.debt import Owing, Wait, owed_seconds, owing, waits
from hetero.node.view.enforcement import enforcement_of
from hetero.node.view.excess import Comparison, Excess, compare
from hetero.node.view.hurt import hurt
from hetero.node.view.templates import TemplateView, template_views
from hetero.registry.vendor_row import VendorRow

if TYPE_CHECKING:
    from hetero.registry.registry import Discovery

#: The busy part of a device's time below which nobody is taken to use it: drivers count their own.
_BUSY_PART = 0.03


@frozen(kw_only=True)
class Share:
    """One device of a grant: its limits, and what the grant uses of it (None: not known).

    `template` is what it is cut by, and `part` its id, None for a share. `core_percent` and
    `core_used_percent` are in percent of the card, `core_percent` None where there is no limit, and
    of a template or a whole card what it has. `core_units` is `core_percent` in the vendor's own
    units and what the card has of them, None where these are percent; `rest`: none was asked for,
    and this is what its limited neighbours leave for the time being. `sm_percent` is the percent of
    the multiprocessors that it has in place of such a limit. Of `core_used_percent`,
    `core_borrowed_percent` was lent by others, and `core_lent_percent` is this grant's part of what
    others borrowed. For `core_stopped_ms_per_s` its processes waited for their share, each
    counted. `spill`:
    what does not fit on the card lies with the host. `denied_count` counts the allocations that
    were refused. `overhead_bytes` is what the driver counts for the grant's processes on top:
    contexts, the code of their kernels. `excess` is what it counts beyond what was charged and
    their contexts. `core_excess_percent` is the device time that they took past their limiter, in
    percent of the card, as heterod noted it last where no tenant writes (None: it noted none).
    `core_owed_s` is device time beyond its share that it used while another grant
    had work, and owes; for `core_waits_s` of others' demand its gate is closed because of
    what earlier grants of its user owed. `enforcement` is how the limits are kept.
    """

    device: str
    card: str | None = None
    device_number: int | None = field(metadata=json_key("number"))
    memory_bytes: int = field(metadata=json_key("memory"))
    core_percent: float | None = field(metadata=json_key("core"))
    core_units: tuple[int, int] | None = None
    template: str | None = None
    part: str | None = None
    rest: bool = False
    sm_percent: int | None = field(default=None, metadata=json_key("sm"))
    spill: bool = False
    memory_used_bytes: int | None = field(default=None, metadata=json_key("memory_used"))
    core_used_percent: float | None = field(default=None, metadata=json_key("core_used"))
    core_borrowed_percent: float | None = field(default=None, metadata=json_key("core_borrowed"))
    core_lent_percent: float | None = field(default=None, metadata=json_key("core_lent"))
    core_stopped_ms_per_s: float | None = field(default=None, metadata=json_key("core_stopped"))
    denied_count: int | None = field(default=None, metadata=json_key("denied"))
    overhead_bytes: int | None = field(default=None, metadata=json_key("overhead"))
    excess: Excess | None = None
    core_excess_percent: float | None = field(default=None, metadata=json_key("core_excess"))
    core_owed_s: float | None = field(default=None, metadata=json_key("core_owed"))
    core_waits_s: float | None = field(default=None, metadata=json_key("core_waits"))
    enforcement: Enforcement | None = None


@frozen(kw_only=True)
class Process:
    """A process of a grant: the container it is in, by its id, and what it holds of each device.

    `memory_bytes` goes with the grant's shares; empty for one that uses no device.
    """

    pid: int
    program: str
    container: str | None = None
    memory_bytes: tuple[int, ...] = field(default=(), metadata=json_key("memory"))


@frozen(kw_only=True)
class RowView:
    """The row of a gang: from `begin_ms` on, `length_ms` of each `period_ms`.

    No `length_ms`: none was free. `runs`: it is in a row now. The rest are totals since the grant
    began, None where no process says: of `row_count`, `overrun_count` ended with work in flight,
    and `mean_end_ms` are the milliseconds from the end of a row until all devices were idle, a
    mean. Grants of high priority ran in a row `intrusion_count` times, for `intruded_ms`
    milliseconds that are not charged to the gang.
    """

    begin_ms: float = field(metadata=json_key("begin"))
    length_ms: float = field(metadata=json_key("length"))
    period_ms: float = field(metadata=json_key("period"))
    runs: bool = False
    row_count: int | None = field(default=None, metadata=json_key("rows"))
    overrun_count: int | None = field(default=None, metadata=json_key("overruns"))
    mean_end_ms: float | None = field(default=None, metadata=json_key("end"))
    intrusion_count: int | None = field(default=None, metadata=json_key("intrusions"))
    intruded_ms: float | None = field(default=None, metadata=json_key("intruded"))


@frozen(kw_only=True)
class GrantView:
    """A grant that stands: whose, since when (UTC), its processes, its share of each device.

    `containers` are those that have it, `share` its name where it is one. `running` says more of
    each of its `processes`. `bypass` says which of its processes have memory or device time past
    the limiter, `owing` where it owes much and goes on while others have work, `waits` what it
    waits for. `unknown_function_count` counts the driver's functions that they asked for and the
    limiter does not know (None: unread). `hurt` is what ended its programs on a device that a
    service shares. `row`: it is a gang. `ended`: its container has ended, and its pod, which may
    start it again, has not.
    """

    id: str
    label: str | None
    user: str
    command: tuple[str, ...]
    since_utc: str = field(metadata=json_key("since"))
    policy: Policy
    priority: Priority
    processes: tuple[int, ...]
    shares: tuple[Share, ...]
    containers: tuple[ContainerInfo, ...] = ()
    share: str | None = None
    running: tuple[Process, ...] = ()
    bypass: tuple[Bypass, ...] = ()
    owing: tuple[Owing, ...] = ()
    waits: tuple[Wait, ...] = ()
    unknown_function_count: int | None = field(default=None, metadata=json_key("unknown"))
    hurt: str | None = None
    row: RowView | None = None
    ended: bool = False


@frozen(kw_only=True)
class DeviceView:
    """A device by its number in the inventory: what is held of it, by whom, and its usage now.

    `foreign` is what programs without a grant use of it, None where that is unknown.
    `open`: one of the grants holds a share of its memory and no limit of its core. `templates` are
    what it is cut into. `left_behind` is what grants and the requests that wait leave to who comes
    now, None where nobody waits.
    """

    device_number: int = field(metadata=json_key("number"))
    device: Device
    held: Counters
    usage: Usage
    grants: tuple[str, ...]
    open: bool = False
    foreign: ForeignUse | None = None
    templates: tuple[TemplateView, ...] = ()
    left_behind: Counters | None = None

    @property
    def idle(self) -> bool:
        """Whether it is well and nobody uses it, as far as that is known."""
        is_used = any(self.held.values()) or bool(self.foreign and self.foreign.memory)
        return self.device.healthy and not is_used and (self.usage.core or 0) < _BUSY_PART

    @property
    def free(self) -> Counters:
        """What who comes now can have of it: nothing of a device of which nothing is given."""
        if not self.device.usable:
            return dict.fromkeys(self.device.capacity, 0)
        foreign_bytes = self.foreign.taken if self.foreign else 0
        left_counters = left_of(self.device, self.held, foreign_bytes=foreign_bytes)
        if self.left_behind is not None:
            left_counters = {
                counter: min(left, self.left_behind[counter])
                for counter, left in left_counters.items()
            }
        return obtainable_of(self.device, left_counters)


@frozen(kw_only=True)
class ForeignView:
    """What programs without a grant use of a device, with its name, number and UUID."""

    card: str
    device_number: int = field(metadata=json_key("number"))
    device: str
    use: ForeignUse


@frozen(kw_only=True)
class QueuedRequest:
    """A request in the queue: its place from 1 on, whose, since when (UTC) and what it asks.

    `memory_bytes` is of each device, `memory_percent` and `core_percent` in percent of
    one; None: not asked. `stopped`: its process does not look, and it holds up nobody.
    """

    id: str
    place: int
    label: str | None
    user: str
    command: tuple[str, ...]
    since_utc: str = field(metadata=json_key("since"))
    device_count: int = field(metadata=json_key("count"))
    memory_bytes: int | None = field(metadata=json_key("memory"))
    memory_percent: int | None
    core_percent: float | None = field(metadata=json_key("core"))
    whole: bool
    device: str | None
    vendors: tuple[str, ...]
    models: tuple[str, ...]
    stopped: bool
    processes: tuple[int, ...]


@frozen(kw_only=True)
class GrantsView:
    """The grants that stand, and those that cannot be read; `rack_file` if nothing is real.

    `queue` are the requests that wait, the first first. `foreign` has the devices that programs
    without a grant use; None: nobody looked.
    """

    grants: tuple[GrantView, ...]
    unreadable: tuple[Unreadable, ...]
    rack_file: str | None
    foreign: tuple[ForeignView, ...] | None = None
    queue: tuple[QueuedRequest, ...] = ()


@frozen(kw_only=True)
class NodeView:
    """All views of the node `host`; `rack_file` names the rack file where nothing is real.

    `notes` are sentences about settings that name cards which are not there. `queue` are the
    requests in the queue, the first first.
    """

    devices: tuple[DeviceView, ...]
    grants: tuple[GrantView, ...]
    unreadable: tuple[Unreadable, ...]
    vendors: tuple[VendorRow, ...]
    rack_file: str | None
    notes: tuple[str, ...] = ()
    host: str = ""
    queue: tuple[QueuedRequest, ...] = ()


@frozen(kw_only=True)
class Timeshare:
    """What a grant's processes count, its row, and what others borrow of its share of each device.

    `lent_percent` is in percent of the card, as in `Share`; `region` is None where it is not to be
    known.
    """

    region: Region | None
    row: RowView | None
    lent_percent: tuple[float | None, ...]


@define(eq=False, repr=False)
class CoreMeter:
    """Measures the device time of grants by what their processes count.

    It is a mean: since a grant began, at the first sample; then over the samples of the last
    `window_s` seconds, at least since the one before.
    """

    node: Node
    window_s: float = field(kw_only=True, default=0.0)
    _samples: deque[tuple[float, dict[str, Region | None]]] = field(init=False, factory=deque)

    def sample(self, grants: Iterable[Grant]) -> dict[str, Region | None]:
        """Return what each grant's processes count until now; later means may begin here."""
        now_s = time.monotonic()
        regions = {grant.id: _region(self.node, grant) for grant in grants}
        while len(self._samples) > 1 and self._samples[1][0] <= now_s - self.window_s:
            self._samples.popleft()
        self._samples.append((now_s, regions))
        return regions

    def wait(self, duration_s: float) -> None:
        """Sample, and let so much time pass: the next sample gives the mean over it."""
        regions = self.sample(self.node.snapshot().grants).values()
        if any(region and region.counts for region in regions):
            time.sleep(duration_s)

    def used(self, grant: Grant, position: int) -> float | None:
        """Return the mean at the last sample, in percent of a device; None where none is known."""
        mean_part = self._mean(grant, position, "device_ns")
        # The counts are the tenant's own word: no device gives more than all of its time.
        return None if mean_part is None else min(100 * mean_part, 100.0)

    def borrowed(self, grant: Grant, position: int) -> float | None:
        """Return the part of `used` that others lent."""
        mean_part = self._mean(grant, position, "borrowed_ns")
        return None if mean_part is None else min(100 * mean_part, 100.0)

    def stopped(self, grant: Grant, position: int) -> float | None:
        """Return for how many milliseconds a second processes waited for the device."""
        mean_part = self._mean(grant, position, "stopped_ns")
        return None if mean_part is None else 1000 * mean_part

    def _mean(self, grant: Grant, position: int, count_name: str) -> float | None:
        """Return how many seconds a count of nanoseconds grew by in a second."""
        now_s, _ = self._samples[-1]
        times_and_totals = [
            (time_s, getattr(region.counts[position], count_name))
            for time_s, regions in self._samples
            if (region := regions.get(grant.id)) and region.counts
        ]
        (first_s, first_ns), (_, spent_ns) = times_and_totals[0], times_and_totals[-1]
        if first_s < now_s:
            spent_ns -= first_ns
        else:
            first_s = now_s - self._age(grant)
        return max(spent_ns / (now_s - first_s) / 1e9, 0.0) if now_s > first_s else None

    def _age(self, grant: Grant) -> float:
        """Return the seconds since a grant began, finer than its entry says; 0: not known."""
        with suppress(OSError):
            began_s = (self.node.directory(grant.id) / ALIVE).stat().st_mtime
            return max(time.time() - began_s, 0.0)
        return 0.0


def observe_node(node: Node, meter: CoreMeter | None = None) -> NodeView:
    """Return every device, how busy it is, and who holds what; `meter` says over which time."""
    discovery = node.discover()
    snapshot = node.snapshot()
    discovery = with_lost(discovery, snapshot.grants)
    inventory = node.inventory(discovery, snapshot)
    discovery = evolve(discovery, devices=inventory.devices)
    owner_finder = Owners(node)
    comparison = compare(node, snapshot, discovery.devices, owner_finder)
    usages = comparison.usages
    use_by_uuid = foreign_uses(node, snapshot, usages, owner_finder)
    rest_by_uuid = _left_behind(node, discovery, snapshot, inventory)
    return NodeView(
        devices=device_views(
            inventory, snapshot, usages, foreign=use_by_uuid, left_behind=rest_by_uuid
        ),
        grants=_views(
            node,
            snapshot,
            comparison,
            meter or CoreMeter(node),
            number_by_uuid={
                device.uuid: device_number for device_number, (device, _) in enumerate(usages)
            },
        ),
        unreadable=snapshot.unreadable,
        vendors=discovery.rows,
        rack_file=_rack(node),
        notes=node.settings.unmatched(discovery.devices, [row.name for row in discovery.rows]),
        host=os.uname().nodename,
        queue=_queued_requests(node),
    )


def device_views(
    inventory: Inventory,
    snapshot: Snapshot,
    usages: Iterable[tuple[Device, Usage]],
    *,
    foreign: Mapping[str, ForeignUse] | None = None,
    left_behind: Mapping[str, Counters] | None = None,
) -> tuple[DeviceView, ...]:
    """Return the devices of a machine, and what grants hold of each. No driver is asked.

    `usages` are what drivers said of each device. `foreign` and `left_behind` are by UUID.
    """
    free_by_uuid = inventory.free()
    pieces_by_uuid: dict[str, list[tuple[str, DeviceAllocation]]] = {}
    for grant in snapshot.grants:
        for piece in grant.allocation.pieces:
            pieces_by_uuid.setdefault(piece.device, []).append((grant.id, piece))
    return tuple(
        device_view(
            device_number,
            device,
            free_by_uuid[device.uuid],
            pieces_by_uuid.get(device.uuid, ()),
            usage=usage,
            foreign=(foreign or {}).get(device.uuid),
            left_behind=(left_behind or {}).get(device.uuid),
        )
        for device_number, (device, usage) in enumerate(usages)
    )


def device_view(
    device_number: int,
    device: Device,
    free: Counters,
    pieces: Collection[tuple[str, DeviceAllocation]],
    *,
    usage: Usage,
    foreign: ForeignUse | None = None,
    left_behind: Counters | None = None,
) -> DeviceView:
    """Return a device of a machine's view or a cluster's: `free` is what is left of its counters.

    `pieces` are who has what of it, in the order in which they are shown.
    """
    view = DeviceView(
        device_number=device_number,
        device=device,
        held={counter: total - free[counter] for counter, total in device.capacity.items()},
        usage=usage,
        grants=tuple(dict.fromkeys(holder for holder, _ in pieces)),
        open=any(piece.core is None and not piece.takes.get(CORE) for _, piece in pieces),
        foreign=foreign,
        left_behind=left_behind,
    )
    return evolve(view, templates=template_views(device, view.free, pieces))


def _left_behind(
    node: Node, discovery: Discovery, snapshot: Snapshot, inventory: Inventory
) -> dict[str, dict[str, int]]:
    """Return what is left of each device behind the requests that wait, nothing if none does."""
    if not node.ledger.queue.numbers():
        return {}
    from hetero.node.outlook import requests_ahead  # here: mostly nobody waits
    from hetero.placement.queued import left_behind

    ahead = requests_ahead(node, discovery, snapshot)
    return left_behind((waiting.request for waiting in ahead), inventory) if ahead else {}


def observe_grants(
    node: Node, *, seconds: float | None = None, foreign: bool = False
) -> GrantsView:
    """Return the grants that stand and what they use; `foreign`: and what others use.

    The core in use is a mean: over the next `seconds`, or since each grant began.
    """
    meter = CoreMeter(node)
    if seconds is not None:
        meter.wait(seconds)
    snapshot = node.snapshot()
    number_by_uuid, vendor_names = ({}, None) if foreign else _known(snapshot)
    # No driver is asked where there is nothing to ask it about.
    devices = (
        with_lost(node.discover(names=vendor_names), snapshot.grants).devices
        if snapshot.grants or foreign
        else ()
    )
    number_by_uuid = number_by_uuid or {
        device.uuid: device_number for device_number, device in enumerate(devices)
    }
    owner_finder = Owners(node)
    comparison = compare(node, snapshot, devices, owner_finder)
    use_by_uuid = foreign_uses(node, snapshot, comparison.usages, owner_finder) if foreign else {}
    return GrantsView(
        grants=_views(node, snapshot, comparison, meter, number_by_uuid=number_by_uuid),
        unreadable=snapshot.unreadable,
        rack_file=_rack(node),
        foreign=tuple(
            ForeignView(
                card=device.name,
                device_number=number_by_uuid[device.uuid],
                device=device.uuid,
                use=use_by_uuid[device.uuid],
            )
            for device in devices
            if device.uuid in use_by_uuid and use_by_uuid[device.uuid].taken
        )
        if foreign
        else None,
        queue=_queued_requests(node),
    )


def _queued_requests(node: Node) -> tuple[QueuedRequest, ...]:
    queue = node.ledger.queue
    requests = queue.waiting()
    if not requests:
        return ()
    pids = holders({waiting.id: queue.files(waiting.queue_number) for waiting in requests})
    return tuple(
        QueuedRequest(
            id=waiting.id,
            place=place,
            label=waiting.label,
            user=waiting.user,
            command=waiting.command,
            since_utc=waiting.since_utc,
            device_count=len(waiting.request.asks),
            memory_bytes=(ask := waiting.request.asks[0]).memory,
            memory_percent=ask.memory_percent,
            core_percent=None if ask.core is None else 100 * ask.core / ask.core_of,
            whole=waiting.request.exclusive,
            device=ask.device,
            vendors=waiting.request.vendor.include,
            models=waiting.request.model.include,
            stopped=waiting.silent,
            processes=pids[waiting.id],
        )
        for place, waiting in enumerate(requests, 1)
    )


def _known(snapshot: Snapshot) -> tuple[dict[str, int], set[str] | None]:
    """Return the numbers of the devices that are held, and their vendors.

    Where grants do not record the numbers, all vendors' devices must be counted: None.
    """
    if not all(grant.device_numbers for grant in snapshot.grants):
        return {}, None
    pieces_and_numbers = [
        (piece, device_number)
        for grant in snapshot.grants
        for piece, device_number in zip(grant.allocation.pieces, grant.device_numbers, strict=True)
    ]
    return (
        {piece.device: device_number for piece, device_number in pieces_and_numbers},
        {piece.vendor for piece, _ in pieces_and_numbers},
    )


def _rack(node: Node) -> str | None:
    return str(node.simulation.rack) if node.simulation else None


def _views(
    node: Node,
    snapshot: Snapshot,
    comparison: Comparison,
    meter: CoreMeter,
    *,
    number_by_uuid: Mapping[str, int],
) -> tuple[GrantView, ...]:
    """Return the grants by the first of their devices, the oldest first."""
    bytes_by_device = {device.uuid: usage.processes or {} for device, usage in comparison.usages}
    region_by_grant = meter.sample(snapshot.grants)
    pids_by_grant = node.processes(grant.id for grant in snapshot.grants)
    containers_by_grant = containers_by_space(
        {grant.id: node.directory(grant.id) / GRANT for grant in snapshot.grants if grant.share}
    )
    bypasses = find_bypass(node, snapshot, comparison)
    limits_by_grant = {grant.id: _in_force(node, grant) for grant in snapshot.grants}
    row_by_grant = gang_rows(snapshot.grants, limits_by_grant, node.ledger.periods())
    owing_grants = owing(
        node,
        snapshot.grants,
        {grant_id: region for grant_id, region in region_by_grant.items() if region},
    )
    waits_by_grant = {grant.id: waits(node, grant) for grant in snapshot.grants}
    views = (
        GrantView(
            id=grant.id,
            label=grant.label,
            user=grant.user,
            command=grant.command,
            since_utc=grant.since_utc,
            policy=grant.allocation.policy,
            priority=grant.allocation.priority,
            processes=pids_by_grant[grant.id],
            containers=(grant.container,)
            if grant.container
            else tuple(containers_by_grant.get(grant.id, {}).values()),
            share=grant.share,
            running=_running(
                node, grant, pids_by_grant[grant.id], containers_by_grant, region_by_grant[grant.id]
            ),
            shares=_shares(
                grant,
                limits_by_grant[grant.id],
                number_by_uuid,
                bytes_by_device={
                    uuid: sum(bytes_by_pid.get(pid, 0) for pid in pids_by_grant[grant.id])
                    for uuid, bytes_by_pid in bytes_by_device.items()
                },
                region=region_by_grant[grant.id],
                meter=meter,
                devices={device.uuid: device for device, _ in comparison.usages},
                excess=comparison.excess,
                seconds_by_device=_past(bypass for bypass in bypasses if bypass.grant == grant.id),
                owed_by_position=owed_seconds(node, grant, region_by_grant[grant.id]),
                wait_by_device={wait.device: wait.waits_s for wait in waits_by_grant[grant.id]},
            ),
            bypass=tuple(bypass for bypass in bypasses if bypass.grant == grant.id),
            owing=tuple(owes for owes in owing_grants if owes.grant == grant.id),
            waits=waits_by_grant[grant.id],
            hurt=hurt(node, grant.id),
            unknown_function_count=region.unknown
            if (region := region_by_grant[grant.id])
            else None,
            row=_row(row_by_grant[grant.id], region_by_grant[grant.id])
            if grant.id in row_by_grant
            else None,
            ended=(node.directory(grant.id) / ENDED_FILE).exists(),
        )
        for grant in snapshot.grants
    )
    sorted_views = sorted(views, key=_place)
    with_lent = lending(share for view in sorted_views for share in view.shares)
    return tuple(evolve(view, shares=tuple(map(with_lent, view.shares))) for view in sorted_views)


def timeshares(node: Node, grants: Sequence[Grant], meter: CoreMeter) -> dict[str, Timeshare]:
    """Return how the time of their devices is shared among these grants, by their ids.

    No driver is asked.
    """
    region_by_grant = meter.sample(grants)
    limits_by_grant = {grant.id: _in_force(node, grant) for grant in grants}
    row_by_grant = gang_rows(grants, limits_by_grant, node.ledger.periods())
    shares_by_grant = {
        grant.id: _shares(
            grant,
            limits_by_grant[grant.id],
            {},
            bytes_by_device={},
            region=region_by_grant[grant.id],
            meter=meter,
            devices={},
            excess={},
            seconds_by_device={},
        )
        for grant in grants
    }
    with_lent = lending(
        share for grant_shares in shares_by_grant.values() for share in grant_shares
    )
    return {
        grant_id: Timeshare(
            region=region_by_grant[grant_id],
            row=_row(row_by_grant[grant_id], region_by_grant[grant_id])
            if grant_id in row_by_grant
            else None,
            lent_percent=tuple(with_lent(share).core_lent_percent for share in grant_shares),
        )
        for grant_id, grant_shares in shares_by_grant.items()
    }


def lending(shares: Iterable[Share]) -> Callable[[Share], Share]:
    """Return a function that adds to each of these shares how much of it is lent.

    `shares` are all there are. Time borrowed on a device comes from unused shares and from what no
    grant has, from each in proportion. Only a device's limited shares count, in percent of the
    card.
    """
    unused_percent: dict[str, float] = {}
    ungranted_percent: dict[str, float] = {}
    borrowed_percent: dict[str, float] = {}
    for share in shares:
        if share.core_percent is not None and share.core_used_percent is not None:
            unused_percent[share.device] = unused_percent.get(share.device, 0) + _unused(share)
            ungranted_percent[share.device] = (
                ungranted_percent.get(share.device, 100) - share.core_percent
            )
            borrowed_percent[share.device] = borrowed_percent.get(share.device, 0) + (
                share.core_borrowed_percent or 0
            )

    def tell(share: Share) -> Share:
        if share.core_percent is None or share.core_used_percent is None:
            return share
        lendable_percent = unused_percent[share.device] + max(ungranted_percent[share.device], 0)
        lent_part = (
            min(borrowed_percent[share.device] / lendable_percent, 1) if lendable_percent else 0.0
        )
        return evolve(share, core_lent_percent=lent_part * _unused(share))

    return tell


def _unused(share: Share) -> float:
    """Return what is left of a limited share, in percent of the card."""
    own_percent = (share.core_used_percent or 0) - (share.core_borrowed_percent or 0)
    return max((share.core_percent or 0) - own_percent, 0)


def _place(view: GrantView) -> tuple[float, str, str]:
    device_numbers = [
        share.device_number for share in view.shares if share.device_number is not None
    ]
    return min(device_numbers, default=float("inf")), view.since_utc, view.id


def _row(row: GangRow, region: Region | None) -> RowView:
    row_view = RowView(
        begin_ms=row.begin_ns / 1e6, length_ms=row.length_ns / 1e6, period_ms=row.period_ns / 1e6
    )
    gang = region.gang if region else None
    if gang is None:
        return row_view
    return evolve(
        row_view,
        runs=gang.runs and gang.asked_ns != 0,
        row_count=gang.row_count,
        overrun_count=gang.overrun_count,
        mean_end_ms=gang.end_ns / gang.row_count / 1e6,
        intrusion_count=gang.intrusion_count,
        intruded_ms=gang.intruded_ns / 1e6,
    )


def _region(node: Node, grant: Grant) -> Region | None:
    """Return what the grant's processes report; None where that is unreadable."""
    if grant.allocation.policy is not Policy.OFF:
        # It ended, is another user's, or its tenant scribbled on it.
        with suppress(OSError, ValueError):
            return read_region(node.directory(grant.id) / USAGE, device_count=len(grant.limits))
    return None


def _running(
    node: Node,
    grant: Grant,
    pids: Sequence[int],
    containers_by_grant: Mapping[str, Mapping[str, ContainerInfo]],
    region: Region | None,
) -> tuple[Process, ...]:
    path = node.directory(grant.id) / USAGE
    slot_by_number = region.slots if region else {}
    process_views = []
    for pid in pids:
        container = grant.container or containers_by_grant.get(grant.id, {}).get(
            space_of(pid) or ""
        )
        # A PID in the region is what the process calls itself; the slot it keeps is its own.
        used_bytes = (
            [
                slot_by_number[slot_number].used
                for slot_number in slots_of(pid, path)
                if slot_number in slot_by_number
            ]
            if slot_by_number
            else []
        )
        process_views.append(
            Process(
                pid=pid,
                program=program(pid),
                container=container.id if container else None,
                memory_bytes=used_bytes[0][: len(grant.limits)] if used_bytes else (),
            )
        )
    return tuple(process_views)


def _past(bypasses: Iterable[Bypass]) -> dict[str, float]:
    """Return the device time that was taken past the limiter, by device."""
    seconds_by_device: dict[str, float] = {}
    for bypass in bypasses:
        if bypass.core_percent:
            seconds_by_device[bypass.device] = (
                seconds_by_device.get(bypass.device, 0) + bypass.core_percent
            )
    return seconds_by_device


def _in_force(node: Node, grant: Grant) -> tuple[DeviceLimit, ...]:
    """Return the limits in force for a grant; those that were asked where they are unreadable."""
    try:
        return read_limits(node.directory(grant.id) / GRANT)
    except (OSError, ValueError):
        return grant.limits


def _shares(
    grant: Grant,
    limits: tuple[DeviceLimit, ...],
    number_by_uuid: Mapping[str, int],
    *,
    bytes_by_device: Mapping[str, int],
    region: Region | None,
    meter: CoreMeter,
    devices: Mapping[str, Device],
    excess: Mapping[tuple[str, str], Excess],
    seconds_by_device: Mapping[str, float],
    owed_by_position: tuple[float, ...] | None = None,
    wait_by_device: Mapping[str, float] | None = None,
) -> tuple[Share, ...]:
    share_views = []
    for position, (piece, asked_limit, limit) in enumerate(
        zip(grant.allocation.pieces, grant.limits, limits, strict=True)
    ):
        device_counts = region.counts[position] if region and region.counts else None
        is_limited = limit.percent is not None
        held_bytes = bytes_by_device.get(piece.device)
        device = devices.get(piece.device)
        core_percent = limit.core_given(piece, device)
        share_views.append(
            Share(
                device=limit.name,
                card=_name_of(device, grant, position),
                device_number=number_by_uuid.get(piece.device),
                memory_bytes=limit.memory,
                core_percent=core_percent,
                core_units=_own_units(core_percent, device),
                template=piece.template,
                part=piece.part,
                rest=is_limited and asked_limit.core == CORE_FULL,
                sm_percent=asked_limit.sm_percent,
                spill=limit.spill,
                memory_used_bytes=_memory_used(grant, device_counts, held_bytes),
                # Device time is only counted where it is limited.
                core_used_percent=meter.used(grant, position)
                if device_counts and is_limited
                else None,
                core_borrowed_percent=meter.borrowed(grant, position)
                if device_counts and is_limited
                else None,
                core_stopped_ms_per_s=meter.stopped(grant, position)
                if device_counts and is_limited
                else None,
                denied_count=device_counts.denied_count if device_counts else None,
                overhead_bytes=max(0, held_bytes - device_counts.memory_bytes)
                if held_bytes and device_counts
                else None,
                excess=excess.get((grant.id, piece.device)),
                core_excess_percent=seconds_by_device.get(piece.device),
                core_owed_s=owed_by_position[position] if owed_by_position else None,
                core_waits_s=(wait_by_device or {}).get(asked_limit.name),
                enforcement=enforcement_of(grant, piece, device),
            )
        )
    return tuple(share_views)


def _name_of(device: Device | None, grant: Grant, position: int) -> str | None:
    """Return the name of a device of a grant, as it is now, or was when the grant was made."""
    if device is None and grant.devices:
        device = grant.devices[position]
    return device.name if device else None


def _memory_used(grant: Grant, device_counts: Counts | None, held_bytes: int | None) -> int | None:
    """Return what the limiter charged; of a grant without one, what the driver counts."""
    if device_counts is not None:
        return device_counts.memory_bytes
    return held_bytes or None if grant.allocation.policy is Policy.OFF else None


def _own_units(core_percent: float | None, device: Device | None) -> tuple[int, int] | None:
    """Return a share of the core in the vendor's units, with those of the card; None: percent."""
    card_units = device.of_card(CORE) if device else 0
    if core_percent is None or card_units in (0, 100):
        return None
    return round(core_percent * card_units / 100), card_units
