"""A node's devices for those who ask for them: by number, by mode, with their grants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from attrs import evolve

from hetero.model import (
    MEMORY,
    Allocation,
    ContainerKind,
    Device,
    Edits,
    Enforcement,
    Inventory,
)
from hetero.model.device import LOST
from hetero.model.occupancy import PodAllocations
from hetero.model.units import rounded_memory
from hetero.node.core_units import in_units_of
from hetero.node.ledger.ledger import Grant, Snapshot

if TYPE_CHECKING:
    from hetero.registry.registry import Discovery


def hidden(allocation: Allocation, discovery: Discovery) -> Edits:
    """Return the edits that hide devices of the vendors a process was granted none of."""
    present_vendors = {device.vendor for device in discovery.devices}
    ungranted_vendors = present_vendors - allocation.vendors
    hidings = (vendor.hiding for vendor in discovery.vendors if vendor.name in ungranted_vendors)
    return Edits(
        env={
            variable: variable_value
            for hiding in hidings
            for variable, variable_value in hiding.items()
        }
    )


def served(allocation: Allocation, devices: Mapping[str, Device]) -> tuple[str, ...]:
    """Return those of its devices that programs share by a service."""
    uuids = (piece.device for piece in allocation.pieces)
    return tuple(uuid for uuid in uuids if _by_service(devices[uuid]))


def devices_of(discovery: Discovery) -> dict[str, Device]:
    """Return the devices by their UUIDs."""
    return {device.uuid: device for device in discovery.devices}


def numbers_of(allocation: Allocation, discovery: Discovery) -> tuple[int, ...]:
    """Return the numbers of an allocation's devices in the inventory."""
    numbers = {device.uuid: device_number for device_number, device in enumerate(discovery.devices)}
    return tuple(numbers[piece.device] for piece in allocation.pieces)


def with_lost(
    discovery: Discovery, grants: Iterable[Grant], known_devices: Iterable[Device] = ()
) -> Discovery:
    """Return a discovery, and behind its devices those that are lost while grants stand on them.

    Those are in `known_devices`, as they were discovered before, or as a grant has them. A vendor
    that was not asked has lost none.
    """
    asked_vendors = {row.name for row in discovery.rows}
    listed_uuids = {device.uuid for device in discovery.devices}
    held = {piece.device: piece.vendor for grant in grants for piece in grant.allocation.pieces}
    described = {device.uuid: device for grant in grants for device in grant.devices}
    described |= {device.uuid: device for device in known_devices}
    lost_devices = tuple(
        evolve(described[uuid], health=LOST)
        for uuid, vendor in held.items()
        if uuid not in listed_uuids and vendor in asked_vendors and uuid in described
    )
    return evolve(discovery, devices=(*discovery.devices, *lost_devices))


def inventory_of(discovery: Discovery, snapshot: Snapshot) -> Inventory:
    """Return the devices with the grants on them, those of a pod as what the pod takes."""
    return _inventory(discovery.devices, snapshot)


def _inventory(devices: tuple[Device, ...], snapshot: Snapshot) -> Inventory:
    pods: dict[str, PodAllocations] = {}
    standing = []
    for grant in in_units_of(devices, snapshot.grants):
        uid = grant.owner.get("uid")
        if uid is None:
            standing.append(grant.reserved)
        else:
            kind = ContainerKind(grant.owner.get("kind", ContainerKind.MAIN))
            pods[uid] = (*pods.get(uid, ()), (kind, grant.reserved))
    return Inventory(devices, tuple(standing), tuple(pods.values()))


def grants_by_device(grants: Iterable[Grant]) -> dict[str, list[Grant]]:
    """Return the grants that have a part of each device, by its UUID."""
    grants_by_uuid: dict[str, list[Grant]] = {}
    for grant in grants:
        for uuid in dict.fromkeys(piece.device for piece in grant.allocation.pieces):
            grants_by_uuid.setdefault(uuid, []).append(grant)
    return grants_by_uuid


def sharing_changed(device: Device, grants: Iterable[Grant]) -> str | None:
    """Return why a device waits for grants on it that share it otherwise than the settings say."""
    is_by_service = _by_service(device)
    for grant in grants if device.enforcement.by_limiter else ():
        if (device.uuid in grant.served) != is_by_service:
            return f"cards.sharing was changed for it, which counts when grant {grant.id} has ended"
    return None


def over_promised(
    devices: Iterable[Device], snapshot: Snapshot, *, counts_context: bool
) -> dict[str, str]:
    """Return why nothing new is given of devices of which more was promised than there is, by UUID.

    After an upgrade a driver may keep more for itself, and contexts are beside what grants from
    before they counted were promised.
    """
    shared_devices = tuple(device for device in devices if device.enforcement.by_limiter)
    free_by_uuid = _inventory(shared_devices, snapshot).free() if shared_devices else {}
    grants_by_uuid = grants_by_device(snapshot.grants)
    reason_by_uuid = {}
    for device in shared_devices:
        uncounted_contexts = sum(
            piece.device == device.uuid and not limit.context
            for grant in grants_by_uuid.get(device.uuid, ())
            for limit, piece in zip(grant.limits, grant.allocation.pieces, strict=True)
        )
        excess_bytes = -free_by_uuid[device.uuid][MEMORY]
        if counts_context:
            excess_bytes += uncounted_contexts * device.context_bytes
        if excess_bytes > 0:
            reason_by_uuid[device.uuid] = (
                f"{rounded_memory(excess_bytes)} more than it has are promised, with contexts of "
                "older grants: until grants end"
            )
    return reason_by_uuid


def _by_service(device: Device) -> bool:
    """Whether a device's programs share it by a service."""
    return device.enforcement is Enforcement.SERVICE
