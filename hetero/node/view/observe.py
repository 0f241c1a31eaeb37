"""Looks at the node for people: what stands on each device, and what each grant uses of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from attrs import frozen

from hetero.model import Counters, Device, Enforcement, Policy, Priority, Usage
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit, read_limits
from hetero.node.ledger.holders import locked
from hetero.node.ledger.ledger import Container, Grant, Snapshot, Unreadable
from hetero.node.ledger.usage_region import Counts, read_counts, read_slots
from hetero.node.node import Node, inventory_of, program
from hetero.node.view.bypass import find_bypass
from hetero.node.view.containers import containers_by_space, space_of
from hetero.plugin.registry import VendorRow


@frozen(kw_only=True)
class Share:
    """One device of a grant: its limits, and what the grant uses of it (None: not known).

    `core` and `core_used` are in percent of the card, `core` None where there is no limit; `rest`:
    none was asked for, and this is what its limited neighbours leave for the time being. `memory`
    and `memory_used` are bytes. `spill`: what does not fit on the card lies with the host. `denied`
    counts the allocations that were refused. `overhead` is what the driver counts for the grant's
    processes on top: contexts, the code of their kernels. `enforcement` is how the
    limits are kept.
    """

    device: str
    number: int | None
    memory: int
    core: float | None
    rest: bool = False
    spill: bool = False
    memory_used: int | None = None
    core_used: float | None = None
    denied: int | None = None
    overhead: int | None = None
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
class GrantView:
    """A grant that stands: whose, since when (UTC), its processes, its share of each device.

    `containers` are those that have it, `share` its name where it is one. `running` says more of
    each of its `processes`.
    `bypass` are those of its processes that hold memory past the limiter.
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
    containers: tuple[Container, ...] = ()
    share: str | None = None
    running: tuple[Process, ...] = ()
    bypass: tuple[int, ...] = ()


@frozen(kw_only=True)
class DeviceView:
    """A device by its number in the inventory: what is held of it, by whom, and its usage now."""

    number: int
    device: Device
    held: Counters
    usage: Usage
    grants: tuple[str, ...]


@frozen(kw_only=True)
class NodeView:
    """All there is to see on a node; `simulated` names the rack file where nothing is real."""

    devices: tuple[DeviceView, ...]
    grants: tuple[GrantView, ...]
    unreadable: tuple[Unreadable, ...]
    vendors: tuple[VendorRow, ...]
    simulated: str | None


def observe_node(node: Node, *, seconds: float = 0) -> NodeView:
    """Return every device, how busy it is, and who holds what; core in use over `seconds`, if any.

    What the drivers say and what stands is from the start of that time.
    """
    discovery = node.discover()
    snapshot = node.snapshot()
    free = inventory_of(discovery, snapshot).free()
    usages = [(device, node.registry.observe(device)) for device in discovery.devices]
    devices = tuple(
        DeviceView(
            number=number,
            device=device,
            held={name: all_ - free[device.uuid][name] for name, all_ in device.capacity.items()},
            usage=usage,
            grants=tuple(
                entry.id
                for entry in snapshot.grants
                if any(piece.device == device.uuid for piece in entry.allocation.pieces)
            ),
        )
        for number, (device, usage) in enumerate(usages)
    )
    return NodeView(
        devices=devices,
        grants=_views(node, snapshot, usages, seconds=seconds),
        unreadable=snapshot.unreadable,
        vendors=discovery.rows,
        simulated=str(node.simulation.rack) if node.simulation else None,
    )


def observe_grants(node: Node, *, seconds: float) -> tuple[GrantView, ...]:
    """Return the grants that stand and what they use; their core over the next `seconds`."""
    devices = node.discover().devices
    usages = [(device, node.registry.observe(device)) for device in devices]
    return _views(node, node.snapshot(), usages, seconds=seconds)


def _views(
    node: Node, snapshot: Snapshot, usages: Sequence[tuple[Device, Usage]], *, seconds: float
) -> tuple[GrantView, ...]:
    numbers = {device.uuid: number for number, (device, _) in enumerate(usages)}
    driver = {device.uuid: usage.processes or {} for device, usage in usages}
    began = time.monotonic()
    before = {entry.id: _counts(node, entry) for entry in snapshot.grants}
    if seconds and any(before.values()):
        time.sleep(seconds)
    elapsed = time.monotonic() - began
    after = {entry.id: _counts(node, entry) for entry in snapshot.grants} if seconds else before
    processes = node.processes(entry.id for entry in snapshot.grants)
    inside = containers_by_space(
        {entry.id: node.directory(entry.id) / GRANT for entry in snapshot.grants if entry.share}
    )
    past = find_bypass(node, snapshot, usages)
    return tuple(
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
            running=_running(node, entry, processes[entry.id], inside.get(entry.id, {})),
            shares=_shares(
                entry,
                _in_force(node, entry),
                numbers,
                driver={
                    uuid: sum(counts.get(pid, 0) for pid in processes[entry.id])
                    for uuid, counts in driver.items()
                },
                before=before[entry.id],
                after=after[entry.id],
                nanoseconds=elapsed * 1e9 if seconds else 0,
                enforcements={device.uuid: device.enforcement for device, _ in usages},
            ),
            bypass=tuple(found.pid for found in past if found.grant == entry.id),
        )
        for entry in snapshot.grants
    )


def _running(
    node: Node, entry: Grant, pids: Sequence[int], inside: Mapping[str, Container]
) -> tuple[Process, ...]:
    path = node.directory(entry.id) / USAGE
    slots: Mapping[int, tuple[int, ...]] = {}
    if entry.allocation.policy is not Policy.OFF:
        with suppress(OSError, ValueError):
            slots = read_slots(path)
    found = []
    for pid in pids:
        container = entry.container or inside.get(space_of(pid) or "")
        # A PID in the region is what the process calls itself; the slot it locks is its own.
        mine = [slots[slot] for slot in locked(pid, path) if slot in slots] if slots else []
        found.append(
            Process(
                pid=pid,
                program=program(pid),
                container=container.id if container else None,
                memory=mine[0][: len(entry.limits)] if mine else (),
            )
        )
    return tuple(found)


def _counts(node: Node, entry: Grant) -> tuple[Counts, ...]:
    """Return what the grant's processes counted, nothing where that is not to be known."""
    if entry.allocation.policy is Policy.OFF:
        return ()
    try:
        return read_counts(node.directory(entry.id) / USAGE, devices=len(entry.limits))
    except (OSError, ValueError):
        return ()  # it ended, is another user's, or its tenant scribbled on it


def _in_force(node: Node, entry: Grant) -> tuple[DeviceLimit, ...]:
    """Return what the grant's programs are held to; what was asked where that is not to be read."""
    try:
        return read_limits(node.directory(entry.id) / GRANT)
    except (OSError, ValueError):
        return entry.limits


def _shares(
    entry: Grant,
    limits: tuple[DeviceLimit, ...],
    numbers: dict[str, int],
    *,
    driver: dict[str, int],
    before: tuple[Counts, ...],
    after: tuple[Counts, ...],
    nanoseconds: float,
    enforcements: Mapping[str, Enforcement],
) -> tuple[Share, ...]:
    shares = []
    for position, (piece, asked, limit) in enumerate(
        zip(entry.allocation.pieces, entry.limits, limits, strict=True)
    ):
        counted = position < min(len(before), len(after))
        now = after[position] if counted else None
        # Device time is only counted where it is limited.
        limited = limit.core < CORE_FULL
        core_used = None
        if now and limited and nanoseconds:
            core_used = 100 * (now.device_ns - before[position].device_ns) / nanoseconds
        held = driver.get(piece.device)
        shares.append(
            Share(
                device=limit.name,
                number=numbers.get(piece.device),
                memory=limit.memory,
                core=limit.core * 100 / CORE_FULL if limited else None,
                rest=limited and asked.core == CORE_FULL,
                spill=limit.spill,
                memory_used=now.memory if now else None,
                core_used=core_used,
                denied=now.denied if now else None,
                overhead=max(0, held - now.memory) if held and now else None,
                enforcement=enforcements.get(piece.device),
            )
        )
    return tuple(shares)
