"""Which devices are kept for requests that wait: who comes later delays none of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve

from hetero.model import Device, Inventory, Request, following
from hetero.model.rounding import Portion
from hetero.placement.match import named
from hetero.placement.offer import cut_of, offer

#: The mark of a device that is kept.
KEPT = "kept for requests that wait"


def kept_for(
    earlier_requests: Iterable[Request], inventory: Inventory, request: Request
) -> Inventory:
    """Return the inventory with the devices cordoned that `request` is not to take from.

    An earlier request may come to have any device that is large enough and that it chooses. It is
    not delayed where of each counter that `request` takes there is left at least what it needs.
    What stands will only become less, so what is left then stays.
    """
    free_by_uuid = inventory.free()
    kept_uuids: set[str] = set()
    for earlier in dict.fromkeys(earlier_requests):
        for device in inventory.devices:
            if device.uuid not in kept_uuids and _delays(
                request, earlier, device, inventory.devices, free_by_uuid[device.uuid]
            ):
                kept_uuids.add(device.uuid)
    if not kept_uuids:
        return inventory
    devices = tuple(
        evolve(device, cordon=KEPT) if device.uuid in kept_uuids else device
        for device in inventory.devices
    )
    return evolve(inventory, devices=devices)


def _delays(
    request: Request,
    earlier: Request,
    device: Device,
    devices: tuple[Device, ...],
    free: Mapping[str, int],
) -> bool:
    cuts = _cuts(request, device, devices, free)
    if not cuts:
        return False
    needs = _cuts(earlier, device, devices, None)
    by_other_policy = following(request.policy) in device.capacity and (
        request.policy is not earlier.policy
    )
    return bool(needs) and (
        by_other_policy
        or any(
            amount > 0 and free[counter] - amount < need.takes.get(counter, 0)
            for cut in cuts
            for need in needs
            for counter, amount in cut.takes.items()
        )
    )


def _cuts(
    request: Request,
    device: Device,
    devices: tuple[Device, ...],
    free: Mapping[str, int] | None,
) -> list[Portion]:
    """Return what the asks would take of a device now; `free` None: were it empty."""
    cuts = []
    for ask in dict.fromkeys(request.asks):
        if ask.device is not None and device not in named(devices, ask.device):
            continue
        cut = (
            cut_of(device, ask, request, device.capacity)
            if free is None
            else offer(device, ask, request, free)
        )
        if not isinstance(cut, str):
            cuts.append(cut)
    return cuts
