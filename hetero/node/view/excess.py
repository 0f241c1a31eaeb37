"""Compares what a driver counts for the processes of a grant with what the grant is charged for.

docs/isolation.md has a table of the terms and of what moves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from attrs import evolve

from hetero.model import Device, Policy, Usage
from hetero.model.frozen import frozen
from hetero.node.foreign import CONTEXT, NOISE_BYTES
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.holders import program
from hetero.node.ledger.ledger import Grant, Snapshot
from hetero.node.ledger.usage_region import Region, read_region
from hetero.node.node import Node
from hetero.node.tenants.owners import Owner, Owners


@frozen(kw_only=True)
class ProcessUse:
    """One process on one device, in bytes.

    `memory` is the driver's figure. `context` is what its contexts took when they were made, None
    where that was not measured, and its code. That is the process' own figure. `limited`: a limiter
    is in it.
    """

    memory: int
    limited: bool
    charged: int = 0
    context: int | None = None


@frozen(kw_only=True)
class Excess:
    """Memory that the driver counts for a grant on a device and its limiters did not, in bytes.

    `over` is how much the grant then holds beyond its limit. `unlimited` are the bytes of processes
    without a limiter, which are named by themselves. `pid` has most of the excess.
    """

    grant: str
    device: str
    memory: int
    over: int
    pid: int
    unlimited: int = 0
    program: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the finding, the same for other figures."""
        return "excess", self.grant, self.device, self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the grant holds more than its limit, by more than drivers keep for themselves."""
        return self.over > NOISE_BYTES

    @property
    def is_told(self) -> bool:
        """Whether it is large enough to be reported."""
        return self.is_over or self.memory - self.unlimited > NOISE_BYTES

    @property
    def subject(self) -> str:
        """The name of the grant in the log and in doctor."""
        return f"grant {self.grant}"

    @property
    def what(self) -> str:
        """What it is, as the end of `grant ab …`."""
        beyond_text = f", {self.over >> 20} MiB beyond its limit" if self.is_over else ""
        return (
            f"holds {self.memory >> 20} MiB of {self.device[:12]} that its limiter did not "
            f"count{beyond_text}, most in process {self.pid} ({self.program})"
        )

    def __str__(self) -> str:
        return f"{self.subject} {self.what}"


@frozen(kw_only=True)
class Comparison:
    """What drivers and limiters counted of devices at one time, and the difference.

    It is of `snapshot`. `regions` has what each grant counted, where that is readable. `owners` has
    the grant of each process that the drivers name, `limited` the processes with a limiter.
    `excess` has the bytes of each grant on each device; where it is missing it is unknown.
    `settled`: nothing was charged or given back while the drivers were asked.
    """

    snapshot: Snapshot
    usages: tuple[tuple[Device, Usage], ...]
    faults: tuple[str, ...]
    regions: Mapping[str, Region]
    owners: Mapping[int, Owner | None]
    limited: frozenset[int]
    excess: Mapping[tuple[str, str], Excess]
    settled: bool

    def grant_of(self, pid: int) -> str | None:
        """Return the grant of a process, None for a stranger."""
        owner = self.owners.get(pid)
        return owner.grant if owner else None

    def is_still(
        self,
        snapshot: Snapshot,
        usages: Iterable[tuple[Device, Usage]],
        regions: Mapping[str, Region],
    ) -> bool:
        """Whether the same memory is held as here, and the same processes are busy."""
        return (
            self.settled
            and snapshot is self.snapshot
            and list(map(_figures, usages)) == list(map(_figures, self.usages))
            and _held(regions) == _held(self.regions)
        )


def _figures(device_and_usage: tuple[Device, Usage]) -> tuple[object, ...]:
    device, usage = device_and_usage
    return device.uuid, usage.memory, usage.processes, set(usage.busy or ())


def _held(regions: Mapping[str, Region]) -> dict[str, object]:
    return {
        grant_id: (
            [(counts.memory_bytes, counts.granted_bytes) for counts in region.counts],
            region.slots,
        )
        for grant_id, region in regions.items()
    }


def compare(
    node: Node,
    snapshot: Snapshot,
    devices: Iterable[Device],
    owner_finder: Owners,
    *,
    last_comparison: Comparison | None = None,
) -> Comparison:
    """Ask the drivers, and compare their figures with what the limiters counted.

    Where nothing changed since `last_comparison`, all of that is kept but its times.
    """
    regions_before = _regions(node, snapshot.grants)
    # Without devices no vendor is asked, and what asks them is not imported.
    devices = tuple(devices)
    usages, faults = node.registry.observe_all(devices) if devices else ((), ())
    if last_comparison and last_comparison.is_still(snapshot, usages, regions_before):
        return evolve(last_comparison, usages=usages, faults=faults, regions=regions_before)
    shared_usages = [(device, usage) for device, usage in usages if is_shared(device, snapshot)]
    named_pids = {
        pid for _, usage in shared_usages for pid in (*(usage.processes or ()), *(usage.busy or ()))
    }
    owner_by_pid = owner_finder.of(sorted(named_pids), snapshot.grants)
    regions_after = _regions(node, snapshot.grants)
    limited_pids = frozenset(
        pid
        for pid, owner in owner_by_pid.items()
        if owner and _slots(regions_after, regions_before, owner)
    )
    excess_by_grant = {
        (grant.id, device.uuid): grant_excess
        for device, usage in shared_usages
        if usage.processes is not None
        for grant in snapshot.grants
        if (
            grant_excess := _excess(
                grant, device, usage.processes, owner_by_pid, regions_before, regions_after
            )
        )
        is not None
    }
    return Comparison(
        snapshot=snapshot,
        usages=usages,
        faults=faults,
        regions=regions_after,
        owners=owner_by_pid,
        limited=limited_pids,
        excess=excess_by_grant,
        settled=_held(regions_before) == _held(regions_after),
    )


def is_shared(device: Device, snapshot: Snapshot) -> bool:
    """Whether limiters hold grants of the device."""
    return device.enforcement.by_limiter and any(
        piece.device == device.uuid
        for grant in snapshot.grants
        for piece in grant.allocation.pieces
    )


def excess_of(
    use_by_pid: Mapping[int, ProcessUse],
    *,
    charged_bytes: int,
    limit_bytes: int,
    with_contexts: bool,
) -> int:
    """Return the bytes that are counted for these processes of a grant and not charged to it.

    `charged_bytes` is the grant's own word, so no more than its limit is believed.
    """
    beyond_bytes = sum(
        max(use.memory - _uncharged(use, with_contexts), 0) for use in use_by_pid.values()
    )
    return max(beyond_bytes - min(charged_bytes, limit_bytes), 0)


def _uncharged(use: ProcessUse, with_contexts: bool) -> int:
    """Return the part of a process's memory that need not be charged, in bytes."""
    if not use.limited or with_contexts:
        return 0
    return CONTEXT if use.context is None else min(use.context, CONTEXT)


def charged_at_most(charged_before: int, granted_before: int, granted_after: int) -> int:
    """Return the most that was charged at once between two looks, from the totals ever granted.

    A driver's figure from between is then never above the charges because of an allocation.
    """
    return charged_before + (granted_after - granted_before) % 2**64


def _regions(node: Node, grants: Iterable[Grant]) -> dict[str, Region]:
    """Return what the grants' processes counted; those that cannot be read are left out."""
    region_by_grant = {}
    for grant in grants:
        with suppress(OSError, ValueError):  # it ended, is another user's, or was scribbled on
            path = f"{node.directory(grant.id)}/{USAGE}"
            region_by_grant[grant.id] = read_region(path, device_count=len(grant.limits))
    return region_by_grant


def _slots(
    regions_after: Mapping[str, Region], regions_before: Mapping[str, Region], owner: Owner
) -> frozenset[int]:
    """Return the live slots of a process: those it keeps, by their locks.

    An unreadable region has none.
    """
    slots_by_region = [
        regions[owner.grant].slots
        for regions in (regions_before, regions_after)
        if owner.grant in regions
    ]
    return frozenset(
        slot for slot in owner.slots if any(slot in slots for slots in slots_by_region)
    )


def _excess(
    grant: Grant,
    device: Device,
    bytes_by_pid: Mapping[int, int],
    owner_by_pid: Mapping[int, Owner | None],
    regions_before: Mapping[str, Region],
    regions_after: Mapping[str, Region],
) -> Excess | None:
    """Return a grant's excess on a device, None where it has no piece of it, or no limit."""
    positions = [
        position
        for position, piece in enumerate(grant.allocation.pieces)
        if piece.device == device.uuid
    ]
    if not positions or grant.allocation.policy is Policy.OFF:
        return None
    empty_region = Region(slots={})
    first_and_last = (
        regions_before.get(grant.id, empty_region),
        regions_after.get(grant.id, empty_region),
    )
    use_by_pid = {
        pid: _use(
            bytes_by_pid[pid],
            _slots(regions_after, regions_before, owner),
            first_and_last,
            positions,
        )
        for pid, owner in owner_by_pid.items()
        if owner and owner.grant == grant.id and pid in bytes_by_pid
    }
    charged_bytes = sum(_charged(first_and_last, position) for position in positions)
    limit_bytes = sum(grant.limits[position].memory for position in positions)
    with_contexts = grant.limits[positions[0]].context
    excess_bytes = excess_of(
        use_by_pid,
        charged_bytes=charged_bytes,
        limit_bytes=limit_bytes,
        with_contexts=with_contexts,
    )
    largest_pid = max(
        use_by_pid,
        key=lambda pid: (
            use_by_pid[pid].memory
            - use_by_pid[pid].charged
            - _uncharged(use_by_pid[pid], with_contexts)
        ),
        default=0,
    )
    return Excess(
        grant=grant.id,
        device=device.uuid,
        memory=excess_bytes,
        over=max(min(charged_bytes, limit_bytes) + excess_bytes - limit_bytes, 0),
        pid=largest_pid,
        unlimited=sum(use.memory for use in use_by_pid.values() if not use.limited),
        program=program(largest_pid) if excess_bytes else "",
    )


def _charged(first_and_last: Sequence[Region], position: int) -> int:
    """Return the most that a grant can have been charged with while the driver was asked."""
    counts_before, counts_after = (
        (region.counts[position] if region.counts else None) for region in first_and_last
    )
    if counts_after is None:
        return counts_before.memory_bytes if counts_before else 0
    if counts_before is None:
        return counts_after.granted_bytes
    return charged_at_most(
        counts_before.memory_bytes, counts_before.granted_bytes, counts_after.granted_bytes
    )


def _use(
    memory_bytes: int,
    slot_numbers: Iterable[int],
    first_and_last: Sequence[Region],
    positions: Sequence[int],
) -> ProcessUse:
    """Return what is known of a process that keeps these slots: the higher of both samples."""
    reported_slots = [
        region.slots[slot_number]
        for slot_number in slot_numbers
        for region in first_and_last
        if slot_number in region.slots
    ]

    def most_bytes(bytes_by_slot: Iterable[Sequence[int]]) -> int:
        return max(
            (
                sum(bytes_by_position[position] for position in positions)
                for bytes_by_position in bytes_by_slot
            ),
            default=0,
        )

    return ProcessUse(
        memory=memory_bytes,
        limited=bool(slot_numbers),
        charged=most_bytes(slot.used for slot in reported_slots),
        context=most_bytes(slot.uncharged for slot in reported_slots) or None,
    )
