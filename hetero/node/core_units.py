"""What grants take, in the units of core that cards have now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve

from hetero.model import CORE, Device, DeviceAllocation
from hetero.node.ledger.ledger import Grant


def in_units_of(devices: Iterable[Device], grants: Iterable[Grant]) -> tuple[Grant, ...]:
    """Return grants, what they take being in the units of core that the devices have now.

    Which units a card has is a matter of the settings (`soft`). Rounded down, so that what a card
    held it still has room for.
    """
    core_by_uuid = {device.uuid: device.capacity.get(CORE) for device in devices}
    return tuple(_converted(grant, core_by_uuid) for grant in grants)


def _converted(grant: Grant, core_by_uuid: Mapping[str, int | None]) -> Grant:
    ratio_by_uuid = {
        device.uuid: (core, core_then)
        for device in grant.devices
        if (core := core_by_uuid.get(device.uuid))
        and (core_then := device.capacity.get(CORE))
        and core != core_then
    }
    if not ratio_by_uuid:
        return grant

    def converted(piece: DeviceAllocation) -> DeviceAllocation:
        core, core_then = ratio_by_uuid.get(piece.device, (1, 1))
        return evolve(
            piece,
            core=None if piece.core is None else piece.core * core // core_then,
            takes={**piece.takes, CORE: piece.takes.get(CORE, 0) * core // core_then},
        )

    allocation = evolve(grant.allocation, pieces=tuple(map(converted, grant.allocation.pieces)))
    return evolve(grant, allocation=allocation, promised=tuple(map(converted, grant.promised)))
