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
from hetero.model.errors import BadInput, NotFound, Refused
from hetero.model.request import following
from hetero.model.rounding import Portion, cut
from hetero.model.units import format_both, format_memory, format_percent
from hetero.node.confinement import enforce, reconcile, slices_held
from hetero.node.context_sizes import expect_room
from hetero.node.foreign import ForeignUse, foreign_uses
from hetero.node.grant_names import one_of
from hetero.node.inventory import devices_of, inventory_of
from hetero.node.ledger import grant_file as grant_file
from hetero.node.ledger import usage_region
from hetero.node.ledger.grant_dir import GRANT, USAGE
from hetero.node.ledger.grant_file import DeviceLimit
from hetero.node.ledger.ledger import Grant, Ledger, Snapshot
from hetero.node.node import Node
from hetero.node.quota import User, expect_own
from hetero.node.slices import resizing
from hetero.placement.match import named
from hetero.placement.offer import not_usable, size_note
from hetero.registry.registry import Discovery

#: What is left of each counter of each device, by UUID.
Free = Mapping[str, Mapping[str, int]]
#: Returns the resized piece of a grant, from the devices and what is free of them.
Recut = Callable[[Grant, DeviceAllocation, Mapping[str, Device], Free], DeviceAllocation]

#: Seconds for which an allocation that read the old limit may still be in flight.
_SETTLING_S = 0.005


def resize(
    node: Node,
    grant_name: str,
    ask: Ask,
    *,
    policy: Policy | None = None,
    asker: User | None = None,
    anyway: bool = False,
) -> Grant:
    """Give a grant the memory and core `ask` names; what it leaves out stays as it is.

    `grant_name` is the start of the grant's id, or its label. `ask.device` names one of the grant's
    devices; none means all of them. `policy` is that of the whole grant from now on. `asker` is the
    user it is for where that is not this process's. `anyway` takes memory that programs without a
    grant hold. Raises `Refused` when the change does not fit, when more memory is in use than it
    would leave, when it is more of a card that is cordoned or sick, and when the grant is another
    user's.
    """
    discovery = node.discover()
    grant = _entry(node, node.ledger.snapshot(), grant_name, asker)
    chosen_pieces = _chosen(grant, ask.device, discovery.devices)
    chosen_uuids = {piece.device for piece in chosen_pieces}
    recut_piece = partial(_recut_within, node, ask, chosen_uuids)
    plan_change = partial(_plan, node, discovery, grant.id, recut_piece, policy, asker)
    is_of_memory = ask.memory is not None or ask.memory_percent is not None
    foreign_use_by_uuid = (
        _foreign(node, discovery, grant) if is_of_memory or grant.allocation.notes else {}
    )
    plan_beside_foreign = partial(
        _plan_beside_foreign, node, discovery, foreign_use_by_uuid, anyway, plan_change
    )
    plan_with_notes = partial(_plan_with_notes, discovery, ask, chosen_uuids, plan_beside_foreign)
    return _resized(node, discovery, grant, plan_with_notes)


def resize_to(node: Node, grant_name: str, goal: DeviceAllocation) -> Grant:
    """Give a grant of one device exactly the counters and core of `goal`, off any grain.

    Raises `Refused` as `resize` does.
    """
    discovery = node.discover()
    grant = _entry(node, node.ledger.snapshot(), grant_name, None)
    recut_piece = partial(_recut_to, node, goal)
    return _resized(
        node, discovery, grant, partial(_plan, node, discovery, grant.id, recut_piece, None, None)
    )


def _resized(
    node: Node,
    discovery: Discovery,
    grant: Grant,
    plan_change: Callable[[Snapshot], tuple[Grant, Grant]],
) -> Grant:
    """Plan a change of a grant while the ledger is held, make it, and return the grant."""
    with slices_held(node, grant.allocation.vendors & discovery.cutting):
        with node.ledger.admission() as own_snapshot:
            grant_before, grant_after = plan_change(own_snapshot)
            if not any(_is_slice(node, piece) for piece in grant_before.allocation.pieces):
                _put(node, grant_before, grant_after)
                return grant_after
        _resize_slices(node, discovery, grant_before, grant_after, plan_change)
    return grant_after


def _entry(node: Node, own_snapshot: Snapshot, grant_name: str, asker: User | None) -> Grant:
    """Return the grant of this name, which the asker may change."""
    uid = asker.uid or None if asker else None
    grant_id = one_of(own_snapshot, grant_name, uid=uid, system=node.system)
    grant = next(grant for grant in own_snapshot.grants if grant.id == grant_id)
    expect_own(grant, asker)
    return grant


def _plan(
    node: Node,
    discovery: Discovery,
    grant_name: str,
    recut_piece: Recut,
    policy: Policy | None,
    asker: User | None,
    own_snapshot: Snapshot,
) -> tuple[Grant, Grant]:
    """Return the grant as it is and as it would be; within `admission`."""
    grant, devices = _entry(node, own_snapshot, grant_name, asker), devices_of(discovery)
    snapshot = node.with_system(own_snapshot)
    node.expect_certain(snapshot, grant.allocation.vendors)
    other_grants = Snapshot(
        grants=tuple(other_grant for other_grant in snapshot.grants if other_grant is not grant)
    )
    free = inventory_of(discovery, other_grants).free()
    pieces = tuple(recut_piece(grant, piece, devices, free) for piece in grant.allocation.pieces)
    for old_piece, new_piece in zip(grant.allocation.pieces, pieces, strict=True):
        _expect_usable(grant, old_piece, new_piece, devices)
    _expect_policy(grant, policy)
    allocation = evolve(grant.allocation, pieces=pieces, policy=policy or grant.allocation.policy)
    node.expect_within_quota(allocation, other_grants, devices, asker)
    limits = _as_counted(grant, node.limits_of(allocation, devices))
    expect_room(limits)
    return grant, evolve(grant, allocation=allocation, limits=limits)


def _as_counted(grant: Grant, limits: tuple[DeviceLimit, ...]) -> tuple[DeviceLimit, ...]:
    """Return new limits of a grant whose memory still means what it was told when it was made."""
    return tuple(
        evolve(new, context=old.context, context_bytes=old.context_bytes)
        for old, new in zip(grant.limits, limits, strict=True)
    )


def _foreign(node: Node, discovery: Discovery, grant: Grant) -> dict[str, ForeignUse]:
    """Return what programs without a grant hold of a grant's devices, as their drivers say."""
    uuids = {piece.device for piece in grant.allocation.pieces}
    devices = tuple(device for device in discovery.devices if device.uuid in uuids)
    return foreign_uses(node, node.snapshot(), node.registry.observe_all(devices)[0])


def _plan_beside_foreign(
    node: Node,
    discovery: Discovery,
    foreign_use_by_uuid: Mapping[str, ForeignUse],
    anyway: bool,
    plan_change: Callable[[Snapshot], tuple[Grant, Grant]],
    own_snapshot: Snapshot,
) -> tuple[Grant, Grant]:
    """Return what `plan_change` does, with a note of each device that has not that much in fact.

    Raises `Refused` where the grant would grow into what others hold, unless `anyway`.
    """
    grant, changed_grant = plan_change(own_snapshot)
    free, notes = inventory_of(discovery, node.with_system(own_snapshot)).free(), []
    names = {device.uuid: device.name for device in discovery.devices}
    pieces = zip(grant.allocation.pieces, changed_grant.allocation.pieces, strict=True)
    for old_piece, piece in pieces:
        use = foreign_use_by_uuid.get(piece.device)
        more_bytes = piece.takes[MEMORY] - old_piece.takes[MEMORY]
        if use is None or not use.taken or more_bytes <= free[piece.device][MEMORY] - use.taken:
            continue
        note = f"{names[piece.device]}: {use.sentence}"
        if more_bytes > 0 and not anyway:
            raise Refused(
                f"grant {grant.id} stays as it is: {note}; ask for less, end that, or take it with "
                "--anyway"
            )
        notes.append(note)
    allocation = evolve(changed_grant.allocation, notes=tuple(notes))
    return grant, evolve(changed_grant, allocation=allocation)


def _plan_with_notes(
    discovery: Discovery,
    ask: Ask,
    chosen_uuids: Collection[str],
    plan_change: Callable[[Snapshot], tuple[Grant, Grant]],
    own_snapshot: Snapshot,
) -> tuple[Grant, Grant]:
    """Return what `plan_change` does, noting first which devices it takes alone for a part."""
    grant, changed_grant = plan_change(own_snapshot)
    devices, allocation = devices_of(discovery), changed_grant.allocation
    notes = []
    for old_piece, piece in zip(grant.allocation.pieces, allocation.pieces, strict=True):
        device = devices.get(piece.device)
        if device is None or piece.takes[SLOTS] < device.capacity[SLOTS]:
            continue
        named_ask = ask if piece.device in chosen_uuids else Ask()
        if named_ask.memory is None and named_ask.memory_percent is None:
            named_ask = evolve(named_ask, memory=1)  # what is not named asks for no whole device
        note = size_note(
            device, named_ask, Portion(takes=piece.takes), count=len(allocation.pieces)
        )
        # What it took alone before was told then, unless that was asked for.
        is_new = old_piece.takes[SLOTS] < device.capacity[SLOTS]
        if note and (is_new or note in grant.allocation.notes):
            notes.append(note)
    all_notes = tuple(dict.fromkeys((*notes, *allocation.notes)))
    return grant, evolve(changed_grant, allocation=evolve(allocation, notes=all_notes))


def _put(node: Node, grant_before: Grant, grant_after: Grant) -> None:
    """Put the change in force and write it down, or neither; within `admission`."""
    try:
        _lower(node.ledger, grant_before, grant_after)
        node.ledger.change(grant_after)
    except BaseException:
        node.ledger.change(grant_before)
        raise


def _resize_slices(
    node: Node,
    discovery: Discovery,
    grant_before: Grant,
    grant_after: Grant,
    plan_change: Callable[[Snapshot], tuple[Grant, Grant]],
) -> None:
    """Lower slices, which are held, before the change is written down, and raise them after it.

    So a slice is never more than the ledger says, and other admissions go on while a vendor works.
    If this process is killed half-way, the next look at the ledger finishes or undoes the change by
    the note.
    """
    devices, allocation = devices_of(discovery), grant_after.allocation
    is_contained = bool(grant_before.container or grant_before.share or grant_before.owner)
    old_and_new_pieces = zip(grant_before.allocation.pieces, allocation.pieces, strict=True)
    least_allocation = evolve(
        allocation,
        pieces=tuple(_least(old_piece, new_piece) for old_piece, new_piece in old_and_new_pieces),
    )
    resize_note = resizing(node.ledger, grant_before.id)
    resize_note.touch()
    try:
        if least_allocation != grant_before.allocation:
            enforce(node, least_allocation, devices, container=is_contained)
        with node.ledger.admission() as own_snapshot:
            if plan_change(own_snapshot) != (grant_before, grant_after):
                raise Refused(f"grant {grant_before.id} stays as it is: others changed meanwhile")
            _put(node, grant_before, grant_after)
        if least_allocation != allocation:
            enforce(node, allocation, devices, container=is_contained)
    except BaseException:
        with node.ledger.admission() as own_snapshot:
            _undo(node, discovery, own_snapshot, grant_before, least_allocation)
        reconcile(node, discovery, grant_before.allocation.vendors & discovery.cutting)
        raise
    resize_note.unlink()


def _undo(
    node: Node,
    discovery: Discovery,
    own_snapshot: Snapshot,
    grant: Grant,
    least_allocation: Allocation,
) -> None:
    """Restore a grant, or, where others took some of that meanwhile, to the least it had."""
    snapshot = node.with_system(own_snapshot)
    other_grants = Snapshot(
        grants=tuple(other_grant for other_grant in snapshot.grants if other_grant.id != grant.id)
    )
    if len(other_grants.grants) == len(snapshot.grants):
        return  # it ended meanwhile
    free = inventory_of(discovery, other_grants).free()
    pieces = grant.allocation.pieces
    if any(
        amount > free[piece.device][counter]
        for piece in pieces
        for counter, amount in piece.takes.items()
    ):
        limits = _as_counted(grant, node.limits_of(least_allocation, devices_of(discovery)))
        grant = evolve(grant, allocation=least_allocation, limits=limits)
    node.ledger.change(grant)


def _least(old_piece: DeviceAllocation, new_piece: DeviceAllocation) -> DeviceAllocation:
    """Return the grant with the lower of each counter."""
    takes = {
        counter: min(amount, new_piece.takes.get(counter, 0))
        for counter, amount in old_piece.takes.items()
    }
    return evolve(new_piece, takes=takes, core=takes[CORE] if new_piece.core is not None else None)


def _expect_policy(grant: Grant, policy: Policy | None) -> None:
    """Raise `Refused` where a grant cannot follow another policy while its program runs."""
    policy_now = grant.allocation.policy
    if policy in (None, policy_now):
        return
    if Policy.OFF in (policy, policy_now):
        raise Refused(
            f"grant {grant.id} stays as it is: whether there is a limiter is decided when its "
            "program starts"
        )
    for piece in grant.allocation.pieces:
        if following(policy_now) in piece.takes:
            raise Refused(
                f"grant {grant.id} stays as it is: all shares of {piece.device} follow one policy"
            )


def _chosen(
    grant: Grant, device_name: str | None, devices: Sequence[Device]
) -> tuple[DeviceAllocation, ...]:
    """Return the pieces on the devices that `device_name` means, as `named` reads it."""
    if device_name is None:
        return grant.allocation.pieces
    uuids = {device.uuid for device in named(devices, device_name)}
    chosen_pieces = tuple(piece for piece in grant.allocation.pieces if piece.device in uuids)
    if not chosen_pieces:
        raise NotFound(f"grant {grant.id} does not hold device {device_name!r}")
    return chosen_pieces


def _recut_within(
    node: Node,
    ask: Ask,
    chosen_uuids: Collection[str],
    grant: Grant,
    piece: DeviceAllocation,
    devices: Mapping[str, Device],
    free: Free,
) -> DeviceAllocation:
    """Return what `_recut` does. Raises `BadInput` where it is more than was promised."""
    recut_piece = _recut(node, ask, chosen_uuids, grant, piece, devices, free)
    for promised_piece in grant.promised:
        if promised_piece.device == piece.device and recut_piece != piece:
            _expect_promised(grant, recut_piece, promised_piece, devices[piece.device])
    return recut_piece


def _expect_promised(
    grant: Grant, piece: DeviceAllocation, promised: DeviceAllocation, device: Device
) -> None:
    """Raise `BadInput` where a piece is more than the one that a scheduler counts."""
    is_unlimited = piece.core is None and promised.core is not None
    more_core = promised.core is not None and piece.takes[CORE] > promised.takes[CORE]
    if is_unlimited or more_core or piece.takes[MEMORY] > promised.takes[MEMORY]:
        core_percent = promised.core_percent(device)
        core_text = "no core" if core_percent is None else format_percent(core_percent)
        raise BadInput(
            f"grant {grant.id} stays as it is: {grant.label} was given "
            f"{format_memory(promised.takes[MEMORY])} and {core_text} of {device.uuid}, and its "
            "scheduler counts no more: make it anew with more"
        )


def _recut(
    node: Node,
    ask: Ask,
    chosen_uuids: Collection[str],
    grant: Grant,
    piece: DeviceAllocation,
    devices: Mapping[str, Device],
    free: Free,
) -> DeviceAllocation:
    """Return the piece as it would be, if its device is chosen and the neighbours allow it."""
    if piece.device not in chosen_uuids:
        return piece
    device = _changeable(node, grant, piece, devices)
    memory_bytes, core_units = _wanted(piece, device, ask)
    device_free = free[device.uuid]
    portion = cut(
        device,
        memory_bytes=memory_bytes,
        core_units=core_units,
        count=len(grant.limits),
        free=device_free,
    )
    if portion is None:
        raise _lacks(grant, device, [_lack(device, MEMORY, memory_bytes, device_free)])
    _expect_free(grant, device, portion.takes, device_free)
    core_units = None if piece.sm_percent is not None else portion.core_limit_units
    return evolve(piece, takes={**piece.takes, **portion.takes}, core=core_units)


def _recut_to(
    node: Node,
    goal: DeviceAllocation,
    grant: Grant,
    piece: DeviceAllocation,
    devices: Mapping[str, Device],
    free: Free,
) -> DeviceAllocation:
    """Return the piece with the counters and the core of the goal, if the neighbours allow it."""
    device = _changeable(node, grant, piece, devices)
    _expect_free(grant, device, goal.takes, free[device.uuid])
    return evolve(piece, takes=goal.takes, core=goal.core)


def _changeable(
    node: Node, grant: Grant, piece: DeviceAllocation, devices: Mapping[str, Device]
) -> Device:
    """Return the device of a piece whose size can change while its program runs."""
    device = devices.get(piece.device)
    if device is None:
        raise NotFound(f"device {piece.device} of grant {grant.id} is not here any more")
    is_off = grant.allocation.policy is Policy.OFF
    is_limited = not is_off and node.registry.vendor(device.vendor).limiter is not None
    if not is_limited and not _is_slice(node, piece):
        raise Refused(
            f"grant {grant.id} runs without a limiter on {device.uuid}: "
            "nothing would change in the program"
        )
    if not isinstance(device.granularity, Fractional) or piece.template:
        raise Refused(f"grant {grant.id} holds a fixed shape of {device.uuid}")
    return device


def _expect_usable(
    grant: Grant,
    old_piece: DeviceAllocation,
    new_piece: DeviceAllocation,
    devices: Mapping[str, Device],
) -> None:
    """Raise `Refused` where a piece would grow on a device of which nothing more is given."""
    device = devices.get(new_piece.device)
    if device is None or device.usable or not _is_more(old_piece, new_piece, device):
        return
    raise Refused(
        f"grant {grant.id} stays as it is: nothing more is given of {device.name}: "
        f"{not_usable(device)}"
    )


def _is_more(old_piece: DeviceAllocation, new_piece: DeviceAllocation, device: Device) -> bool:
    """Whether a piece has more of anything than it had; a core without a limit is all of it."""
    old_core, new_core = (
        device.capacity[CORE] if piece.core is None else piece.core
        for piece in (old_piece, new_piece)
    )
    return new_core > old_core or any(
        amount > old_piece.takes.get(counter, 0)
        for counter, amount in new_piece.takes.items()
        if counter != CORE  # whose limit counts: one that was open is less with any limit
    )


def _expect_free(
    grant: Grant, device: Device, takes: Mapping[str, int], device_free: Mapping[str, int]
) -> None:
    """Raise `Refused` where a device has less left than a piece would take."""
    shortages = [
        _lack(device, counter, amount, device_free)
        for counter, amount in takes.items()
        if device_free[counter] < amount
    ]
    if shortages:
        raise _lacks(grant, device, shortages)


def _lacks(grant: Grant, device: Device, shortages: Sequence[str]) -> Refused:
    return Refused(f"grant {grant.id} stays as it is: {device.uuid} lacks {', '.join(shortages)}")


def _lack(device: Device, counter: str, asked_amount: int, device_free: Mapping[str, int]) -> str:
    """Return which counter a device has too little of: `core: 80 % asked, 50 % free`."""
    amounts = asked_amount, device_free[counter]
    asked_text, free_text = map(str, amounts)
    if counter == MEMORY:
        asked_text, free_text = format_both(*amounts)
    elif counter == CORE:
        card_units = device.of_card(CORE)
        asked_text, free_text = (format_percent(100 * units / card_units) for units in amounts)
    return f"{counter}: {asked_text} asked, {free_text} free"


def _is_slice(node: Node, piece: DeviceAllocation) -> bool:
    """Whether the vendor cut this piece out of the device, and so can resize it."""
    return piece.part is not None and node.registry.cuts(piece.vendor)


def _wanted(piece: DeviceAllocation, device: Device, ask: Ask) -> tuple[int, int | None]:
    """Return the bytes and core units the grant is to have."""
    memory_bytes, core_units = piece.takes[MEMORY], piece.core
    if piece.sm_percent is not None:
        if ask.open or ask.core is not None:
            raise Refused(
                f"the grant has {piece.sm_percent} % of the multiprocessors of {device.uuid}: "
                "what it has of the core is decided when its program starts"
            )
        core_units = piece.takes[CORE]
    # All of the core and not all of the memory: the core was asked for, and stays so.
    if piece.takes[SLOTS] == device.capacity[SLOTS] and memory_bytes < device.capacity[MEMORY]:
        core_units = device.of_card(CORE)
    if ask.memory is not None:
        memory_bytes = ask.memory
    elif ask.memory_percent is not None:
        memory_bytes = -(-device.of_card(MEMORY) * ask.memory_percent // 100)
    if ask.open:
        core_units = None
    elif ask.core is not None:
        core_units = ask.core_units(device.of_card(CORE))
    return memory_bytes, core_units


def _lower(ledger: Ledger, grant_before: Grant, grant_after: Grant) -> None:
    """Put lower memory limits in force, or put all back and refuse if more is in use.

    The limit goes first: what is in use then can no longer grow past it.
    """
    old_and_new_limits = list(zip(grant_before.limits, grant_after.limits, strict=True))
    if all(new_limit.memory >= old_limit.memory for old_limit, new_limit in old_and_new_limits):
        return
    directory = ledger.directory(grant_before.id)
    policy = grant_before.allocation.policy
    grant_file.store_limits(directory / GRANT, grant_after.limits, policy=policy)
    time.sleep(_SETTLING_S)
    counts_by_device = usage_region.read_counts(
        directory / USAGE, device_count=len(old_and_new_limits)
    )
    for device_counts, (old_limit, new_limit) in zip(
        counts_by_device, old_and_new_limits, strict=False
    ):
        if new_limit.memory < old_limit.memory and device_counts.memory_bytes > new_limit.memory:
            grant_file.store_limits(directory / GRANT, grant_before.limits, policy=policy)
            used_text, limit_text = format_both(device_counts.memory_bytes, new_limit.memory)
            raise Refused(
                f"grant {grant_before.id} uses {used_text} of {new_limit.name}: "
                f"it cannot be lowered to {limit_text}"
            )
