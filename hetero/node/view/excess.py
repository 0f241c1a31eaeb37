"""Compares what a driver counts for the processes of a grant with what the grant is charged for.

docs/isolation.md has a table of the terms and of what moves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from attrs import evolve

from hetero.model import Device, Policy, Usage
from hetero.model.frozen import frozen
from hetero.model.units import GiB, MiB
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.holders import program
from hetero.node.ledger.ledger import Grant, Snapshot
from hetero.node.ledger.usage_region import Region, read_region
from hetero.node.node import Node
from hetero.node.view.owners import Owner, Owners

#: The most that is believed of what a process says its contexts take, and what is assumed where it
#: could not be measured: on an H100 a context takes 0.5 GiB.
CONTEXT = GiB
#: A difference that is told of: less comes and goes with what a driver keeps for its kernels.
NOISE = 64 * MiB


@frozen(kw_only=True)
class ProcessUse:
    """What is known of one process on one device, in bytes.

    `memory` is the driver's figure. `context` is what its contexts took when they were made, None
    where that was not measured, and its code. That is what the process says. `limited`: a limiter
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
        """Tells one from another, whatever its figures are by now."""
        return "excess", self.grant, self.device, self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the grant holds more than its limit, by more than drivers keep for themselves."""
        return self.over > NOISE

    @property
    def is_told(self) -> bool:
        """Whether it is more than a figure."""
        return self.is_over or self.memory - self.unlimited > NOISE

    @property
    def subject(self) -> str:
        """What the log and the doctor call it."""
        return f"grant {self.grant}"

    @property
    def what(self) -> str:
        """What it is, as the end of `grant ab …`."""
        beyond = f", {self.over >> 20} MiB beyond its limit" if self.is_over else ""
        return (
            f"holds {self.memory >> 20} MiB of {self.device[:12]} that its limiter did not "
            f"count{beyond}, most in process {self.pid} ({self.program})"
        )

    def __str__(self) -> str:
        return f"{self.subject} {self.what}"


@frozen(kw_only=True)
class Comparison:
    """What was seen of devices at one time.

    It is of `snapshot`. `regions` has what each grant counted, where that can be read. `owners` has
    whose each process is that the drivers name, `limited` those in which a limiter is. `excess` has
    the bytes of each grant on each device; missing is not known. `settled`: nothing was charged or
    given back while the drivers were asked.
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
        """Whether everybody holds what was seen here, and the same processes are busy."""
        return (
            self.settled
            and snapshot is self.snapshot
            and list(map(_figures, usages)) == list(map(_figures, self.usages))
            and _held(regions) == _held(self.regions)
        )


def _figures(of: tuple[Device, Usage]) -> tuple[object, ...]:
    device, usage = of
    return device.uuid, usage.memory, usage.processes, set(usage.busy or ())


def _held(regions: Mapping[str, Region]) -> dict[str, object]:
    return {
        name: ([(counts.memory, counts.granted) for counts in region.counts], region.slots)
        for name, region in regions.items()
    }


def compare(
    node: Node,
    snapshot: Snapshot,
    devices: Iterable[Device],
    owners: Owners,
    *,
    last: Comparison | None = None,
) -> Comparison:
    """Ask the drivers, and hold what they say against what the limiters counted.

    Of `last`, the look before, all is kept but times where nobody holds anything else since.
    """
    before = _regions(node, snapshot.grants)
    usages, faults = node.registry.observe_all(devices)
    if last and last.is_still(snapshot, usages, before):
        return evolve(last, usages=usages, faults=faults, regions=before)
    shared = [(device, usage) for device, usage in usages if is_shared(device, snapshot)]
    named = {pid for _, usage in shared for pid in (*(usage.processes or ()), *(usage.busy or ()))}
    owned = owners.of(sorted(named), snapshot.grants)
    after = _regions(node, snapshot.grants)
    limited = frozenset(
        pid for pid, owner in owned.items() if owner and _slots(after, before, owner)
    )
    excess = {
        (entry.id, device.uuid): made
        for device, usage in shared
        if usage.processes is not None
        for entry in snapshot.grants
        if (made := _excess(entry, device, usage.processes, owned, before, after)) is not None
    }
    return Comparison(
        snapshot=snapshot,
        usages=usages,
        faults=faults,
        regions=after,
        owners=owned,
        limited=limited,
        excess=excess,
        settled=_held(before) == _held(after),
    )


def is_shared(device: Device, snapshot: Snapshot) -> bool:
    """Whether limiters hold grants of the device."""
    return device.enforcement.by_limiter and any(
        piece.device == device.uuid
        for entry in snapshot.grants
        for piece in entry.allocation.pieces
    )


def excess_of(
    processes: Mapping[int, ProcessUse], *, charged: int, limit: int, contexts_are_charged: bool
) -> int:
    """Return the bytes that are counted for these processes of a grant and not charged to it.

    `charged` is the grant's own word, so no more than its limit is believed.
    """
    beyond = sum(
        max(one.memory - _uncharged(one, contexts_are_charged), 0) for one in processes.values()
    )
    return max(beyond - min(charged, limit), 0)


def _uncharged(use: ProcessUse, contexts_are_charged: bool) -> int:
    """Return how much of a process's memory it need not be charged for."""
    if not use.limited:
        return 0
    context = CONTEXT if use.context is None else min(use.context, CONTEXT)
    if contexts_are_charged and use.context is not None:
        context = 0
    return context


def charged_at_most(before: int, granted_before: int, granted_after: int) -> int:
    """Return the most that was charged at once between two looks, from the totals ever granted.

    A driver's figure from between is then never above the charges because of an allocation.
    """
    return before + (granted_after - granted_before) % 2**64


def _regions(node: Node, grants: Iterable[Grant]) -> dict[str, Region]:
    """Return what the grants' processes counted; those that cannot be read are left out."""
    regions = {}
    for entry in grants:
        with suppress(OSError, ValueError):  # it ended, is another user's, or was scribbled on
            path = f"{node.directory(entry.id)}/{USAGE}"
            regions[entry.id] = read_region(path, devices=len(entry.limits))
    return regions


def _slots(
    after: Mapping[str, Region], before: Mapping[str, Region], owner: Owner
) -> frozenset[int]:
    """Return the slots of a process that are live: kept by it, as their locks say.

    In a region that cannot be read nobody counts anything.
    """
    live = [regions[owner.grant].slots for regions in (before, after) if owner.grant in regions]
    return frozenset(slot for slot in owner.slots if any(slot in one for one in live))


def _excess(
    entry: Grant,
    device: Device,
    memory: Mapping[int, int],
    owners: Mapping[int, Owner | None],
    before: Mapping[str, Region],
    after: Mapping[str, Region],
) -> Excess | None:
    """Return a grant's excess on a device, None where it has none of it, or is held to nothing."""
    positions = [
        position
        for position, piece in enumerate(entry.allocation.pieces)
        if piece.device == device.uuid
    ]
    if not positions or entry.allocation.policy is Policy.OFF:
        return None
    empty = Region(slots={})
    regions = before.get(entry.id, empty), after.get(entry.id, empty)
    processes = {
        pid: _use(memory[pid], _slots(after, before, owner), regions, positions)
        for pid, owner in owners.items()
        if owner and owner.grant == entry.id and pid in memory
    }
    charged = sum(_charged(regions, position) for position in positions)
    limit = sum(entry.limits[position].memory for position in positions)
    counted = entry.limits[positions[0]].context
    excess = excess_of(processes, charged=charged, limit=limit, contexts_are_charged=counted)
    most = max(
        processes,
        key=lambda pid: (
            processes[pid].memory - processes[pid].charged - _uncharged(processes[pid], counted)
        ),
        default=0,
    )
    return Excess(
        grant=entry.id,
        device=device.uuid,
        memory=excess,
        over=max(min(charged, limit) + excess - limit, 0),
        pid=most,
        unlimited=sum(one.memory for one in processes.values() if not one.limited),
        program=program(most) if excess else "",
    )


def _charged(regions: Sequence[Region], position: int) -> int:
    """Return the most that a grant can have been charged with while the driver was asked."""
    first, last = ((region.counts[position] if region.counts else None) for region in regions)
    if last is None:
        return first.memory if first else 0
    if first is None:
        return last.granted
    return charged_at_most(first.memory, first.granted, last.granted)


def _use(
    memory: int, slots: Iterable[int], regions: Sequence[Region], positions: Sequence[int]
) -> ProcessUse:
    """Return what is known of a process that keeps these slots: the most that either look says."""
    reported = [region.slots[slot] for slot in slots for region in regions if slot in region.slots]

    def most(of: Iterable[Sequence[int]]) -> int:
        return max((sum(one[position] for position in positions) for one in of), default=0)

    return ProcessUse(
        memory=memory,
        limited=bool(slots),
        charged=most(slot.used for slot in reported),
        context=most(slot.uncharged for slot in reported) or None,
    )
