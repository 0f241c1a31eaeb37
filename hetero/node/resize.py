"""Changes the limits of a grant that stands, in the ledger and in the running program at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Device,
    DeviceAllocation,
    Fractional,
    Policy,
)
from hetero.model.errors import NotFound, Refused
from hetero.model.request import following
from hetero.model.rounding import cut
from hetero.model.units import format_both
from hetero.node.confinement import enforce, reconcile, slices_held
from hetero.node.grant_names import one_of
from hetero.node.inventory import devices_of, inventory_of
from hetero.node.ledger import grant_file as grant_file
from hetero.node.ledger import usage_region
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.ledger import Grant, Ledger, Snapshot
from hetero.node.node import Node
from hetero.node.quota import User, expect_own
from hetero.node.slices import resizing
from hetero.registry.registry import Discovery

#: What of each counter of each device others leave.
Free = Mapping[str, Mapping[str, int]]
#: What a piece of a grant would be, given the devices and what is free of them.
Recut = Callable[[Grant, DeviceAllocation, Mapping[str, Device], Free], DeviceAllocation]

#: After a limit is lowered: the time an allocation that read the old one may still be on its way.
_SETTLING = 0.005


def resize(
    node: Node,
    name: str,
    ask: Ask,
    *,
    policy: Policy | None = None,
    asker: User | None = None,
) -> Grant:
    """Give a grant the memory and core `ask` names; what it leaves out stays as it is.

    `name` is the start of the grant's id, or its label. `ask.device` names one of the grant's
    devices; none means all of them. `policy` is that of the whole grant from now on. `asker` is the
    user it is for where that is not this process's.
    Raises `Refused` when the change does not fit, when more memory is in use than it would leave,
    and when the grant is another user's.
    """
    discovery = node.discover()
    standing = _entry(node, node.ledger.snapshot(), name, asker)
    chosen = _chosen(standing, ask.device, discovery.devices)
    recut = partial(_recut, node, ask, {piece.device for piece in chosen})
    plan = partial(_plan, node, discovery, standing.id, recut, policy, asker)
    return _resized(node, discovery, standing, plan)


def resize_to(node: Node, name: str, goal: DeviceAllocation) -> Grant:
    """Give a grant of one device the very counters and core of `goal`, whatever cuts are usual.

    Raises `Refused` as `resize` does.
    """
    discovery = node.discover()
    standing = _entry(node, node.ledger.snapshot(), name, None)
    recut = partial(_recut_to, node, goal)
    return _resized(
        node, discovery, standing, partial(_plan, node, discovery, standing.id, recut, None, None)
    )


def _resized(
    node: Node,
    discovery: Discovery,
    standing: Grant,
    plan: Callable[[Snapshot], tuple[Grant, Grant]],
) -> Grant:
    """Change a grant as is planned once the ledger is held, and return it."""
    with slices_held(node, standing.allocation.vendors & discovery.cutting):
        with node.ledger.admission() as own:
            entry, changed = plan(own)
            if not any(_is_slice(node, piece) for piece in entry.allocation.pieces):
                _put(node, entry, changed)
                return changed
        _resize_slices(node, discovery, entry, changed, plan)
    return changed


def _entry(node: Node, own: Snapshot, name: str, asker: User | None) -> Grant:
    """Return the grant of this name, which the asker may change."""
    uid = asker.uid or None if asker else None
    identity = one_of(own, name, uid=uid, system=node.system)
    entry = next(entry for entry in own.grants if entry.id == identity)
    expect_own(entry, asker)
    return entry


def _plan(
    node: Node,
    discovery: Discovery,
    name: str,
    recut: Recut,
    policy: Policy | None,
    asker: User | None,
    own: Snapshot,
) -> tuple[Grant, Grant]:
    """Return the grant as it is and as it would be; within `admission`."""
    entry, devices = _entry(node, own, name, asker), devices_of(discovery)
    snapshot = node.with_system(own)
    node.expect_certain(snapshot)
    others = Snapshot(grants=tuple(other for other in snapshot.grants if other is not entry))
    free = inventory_of(discovery, others).free()
    pieces = tuple(recut(entry, piece, devices, free) for piece in entry.allocation.pieces)
    _expect_policy(entry, policy)
    allocation = evolve(entry.allocation, pieces=pieces, policy=policy or entry.allocation.policy)
    node.expect_within_quota(allocation, others, devices, asker)
    return entry, evolve(entry, allocation=allocation, limits=node.limits_of(allocation, devices))


def _put(node: Node, entry: Grant, changed: Grant) -> None:
    """Put the change in force and write it down, or neither; within `admission`."""
    try:
        _lower(node.ledger, entry, changed)
        node.ledger.change(changed)
    except BaseException:
        node.ledger.change(entry)
        raise


def _resize_slices(
    node: Node,
    discovery: Discovery,
    entry: Grant,
    changed: Grant,
    plan: Callable[[Snapshot], tuple[Grant, Grant]],
) -> None:
    """Lower slices, which are held, before the change is written down, and raise them after it.

    So a slice is never more than the ledger says, which others have while a vendor works. The note
    has whoever looks next finish or undo what is killed half-way.
    """
    devices, allocation = devices_of(discovery), changed.allocation
    inside = bool(entry.container or entry.share or entry.owner)
    pairs = zip(entry.allocation.pieces, allocation.pieces, strict=True)
    least = evolve(allocation, pieces=tuple(_least(old, new) for old, new in pairs))
    note = resizing(node.ledger, entry.id)
    note.touch()
    try:
        if least != entry.allocation:
            enforce(node, least, devices, container=inside)
        with node.ledger.admission() as own:
            if plan(own) != (entry, changed):
                raise Refused(f"grant {entry.id} stays as it is: others changed meanwhile")
            _put(node, entry, changed)
        if least != allocation:
            enforce(node, allocation, devices, container=inside)
    except BaseException:
        with node.ledger.admission() as own:
            _undo(node, discovery, own, entry, least)
        reconcile(node, discovery, entry.allocation.vendors & discovery.cutting)
        raise
    note.unlink()


def _undo(node: Node, discovery: Discovery, own: Snapshot, entry: Grant, least: Allocation) -> None:
    """Have a grant be as it was, or, where others have taken of that, as the least it was."""
    snapshot = node.with_system(own)
    others = Snapshot(grants=tuple(one for one in snapshot.grants if one.id != entry.id))
    if len(others.grants) == len(snapshot.grants):
        return  # it ended meanwhile
    free = inventory_of(discovery, others).free()
    pieces = entry.allocation.pieces
    if any(n > free[piece.device][name] for piece in pieces for name, n in piece.takes.items()):
        limits = node.limits_of(least, devices_of(discovery))
        entry = evolve(entry, allocation=least, limits=limits)
    node.ledger.change(entry)


def _least(old: DeviceAllocation, new: DeviceAllocation) -> DeviceAllocation:
    """Return the grant with the lower of each counter."""
    takes = {name: min(amount, new.takes.get(name, 0)) for name, amount in old.takes.items()}
    return evolve(new, takes=takes, core=takes[CORE] if new.core is not None else None)


def _expect_policy(entry: Grant, policy: Policy | None) -> None:
    """Raise `Refused` where a grant cannot follow another policy while its program runs."""
    now = entry.allocation.policy
    if policy in (None, now):
        return
    if Policy.OFF in (policy, now):
        raise Refused(
            f"grant {entry.id} stays as it is: whether there is a limiter is decided when its "
            "program starts"
        )
    for piece in entry.allocation.pieces:
        if following(now) in piece.takes:
            raise Refused(
                f"grant {entry.id} stays as it is: all shares of {piece.device} follow one policy"
            )


def _chosen(
    entry: Grant, name: str | None, devices: Sequence[Device]
) -> tuple[DeviceAllocation, ...]:
    """Return the grants `name` means: a position in the inventory or the start of a UUID."""
    if name is None:
        return entry.allocation.pieces
    if name.isdecimal() and int(name) < len(devices):
        name = devices[int(name)].uuid
    chosen = tuple(
        piece for piece in entry.allocation.pieces if piece.device.lower().startswith(name.lower())
    )
    if not chosen:
        raise NotFound(f"grant {entry.id} does not hold device {name!r}")
    return chosen


def _recut(
    node: Node,
    ask: Ask,
    chosen: Collection[str],
    entry: Grant,
    piece: DeviceAllocation,
    devices: Mapping[str, Device],
    free: Free,
) -> DeviceAllocation:
    """Return the piece as it would be, if its device is chosen and the neighbours allow it."""
    if piece.device not in chosen:
        return piece
    device = _changeable(node, entry, piece, devices)
    memory, core = _wanted(piece, device, ask)
    left = free[device.uuid]
    made = cut(device, memory=memory, core=core, count=len(entry.limits), free=left)
    if made is None:
        raise _lacks(entry, device, [_lack(MEMORY, memory, left[MEMORY])])
    _expect_free(entry, device, made.takes, left)
    core = None if piece.sm is not None else made.core
    return evolve(piece, takes={**piece.takes, **made.takes}, core=core)


def _recut_to(
    node: Node,
    goal: DeviceAllocation,
    entry: Grant,
    piece: DeviceAllocation,
    devices: Mapping[str, Device],
    free: Free,
) -> DeviceAllocation:
    """Return the piece with the counters and the core of the goal, if the neighbours allow it."""
    device = _changeable(node, entry, piece, devices)
    _expect_free(entry, device, goal.takes, free[device.uuid])
    return evolve(piece, takes=goal.takes, core=goal.core)


def _changeable(
    node: Node, entry: Grant, piece: DeviceAllocation, devices: Mapping[str, Device]
) -> Device:
    """Return the device of a piece whose size can change while its program runs."""
    device = devices.get(piece.device)
    if device is None:
        raise NotFound(f"device {piece.device} of grant {entry.id} is not here any more")
    off = entry.allocation.policy is Policy.OFF
    limited = not off and node.registry.vendor(device.vendor).limiter is not None
    if not limited and not _is_slice(node, piece):
        raise Refused(
            f"grant {entry.id} runs without a limiter on {device.uuid}: "
            "nothing would change in the program"
        )
    if not isinstance(device.granularity, Fractional) or piece.template:
        raise Refused(f"grant {entry.id} holds a fixed shape of {device.uuid}")
    return device


def _expect_free(
    entry: Grant, device: Device, takes: Mapping[str, int], left: Mapping[str, int]
) -> None:
    """Raise `Refused` where a device has less left than a piece would take."""
    lacking = [_lack(n, of, left[n]) for n, of in takes.items() if left[n] < of]
    if lacking:
        raise _lacks(entry, device, lacking)


def _lacks(entry: Grant, device: Device, lacking: Sequence[str]) -> Refused:
    return Refused(f"grant {entry.id} stays as it is: {device.uuid} lacks {', '.join(lacking)}")


def _lack(name: str, asked: int, free: int) -> str:
    """Return what a device has too little of: `core: 80 asked, 50 free`."""
    if name == MEMORY:
        wanted, left = format_both(asked, free)
        return f"{name}: {wanted} asked, {left} free"
    return f"{name}: {asked} asked, {free} free"


def _is_slice(node: Node, piece: DeviceAllocation) -> bool:
    """Whether the vendor cut this grant out of the device, and so can cut it anew."""
    return piece.part is not None and node.registry.cuts(piece.vendor)


def _wanted(piece: DeviceAllocation, device: Device, ask: Ask) -> tuple[int, int | None]:
    """Return the bytes and core units the grant is to have."""
    memory, core = piece.takes[MEMORY], piece.core
    if piece.sm is not None:
        if ask.open or ask.core is not None:
            raise Refused(
                f"the grant has {piece.sm} % of the multiprocessors of {device.uuid}: "
                "what it has of the core is decided when its program starts"
            )
        core = piece.takes[CORE]
    # All of the core and not all of the memory: the core was asked for, and stays so.
    if piece.takes[SLOTS] == device.capacity[SLOTS] and memory < device.capacity[MEMORY]:
        core = device.of_card(CORE)
    if ask.memory is not None:
        memory = ask.memory
    elif ask.memory_percent is not None:
        memory = -(-device.of_card(MEMORY) * ask.memory_percent // 100)
    if ask.open:
        core = None
    elif ask.core is not None:
        core = -(-device.of_card(CORE) * ask.core // 100)
    return memory, core


def _lower(ledger: Ledger, entry: Grant, changed: Grant) -> None:
    """Put lower memory limits in force, or put all back and refuse if more is in use.

    The limit goes first: what is in use then can no longer grow past it.
    """
    pairs = list(zip(entry.limits, changed.limits, strict=True))
    if all(new.memory >= old.memory for old, new in pairs):
        return
    directory = ledger.directory(entry.id)
    policy = entry.allocation.policy
    grant_file.store_limits(directory / GRANT, changed.limits, policy=policy)
    time.sleep(_SETTLING)
    counts = usage_region.read_counts(directory / USAGE, devices=len(pairs))
    for count, (old, new) in zip(counts, pairs, strict=False):
        if new.memory < old.memory and count.memory > new.memory:
            grant_file.store_limits(directory / GRANT, entry.limits, policy=policy)
            used, limit = format_both(count.memory, new.memory)
            raise Refused(
                f"grant {entry.id} uses {used} of {new.name}: it cannot be lowered to {limit}"
            )
