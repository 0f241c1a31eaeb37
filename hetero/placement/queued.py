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
    requests = [*dict.fromkeys(earlier_requests)]
    rest_by_uuid = left_behind(requests, inventory)
    kept_uuids = {
        device.uuid
        for device in inventory.devices
        if any(
            amount > rest_by_uuid[device.uuid].get(counter, 0)
            for cut in _cuts(request, device, inventory.devices, free_by_uuid[device.uuid])
            for counter, amount in cut.takes.items()
        )
        or any(_by_other_policy(request, earlier, device, inventory) for earlier in requests)
    }
    if not kept_uuids:
        return inventory
    devices = tuple(
        evolve(device, cordon=KEPT) if device.uuid in kept_uuids else device
        for device in inventory.devices
    )
    return evolve(inventory, devices=devices)


def left_behind(
    earlier_requests: Iterable[Request], inventory: Inventory
) -> dict[str, dict[str, int]]:
    """Return what is left of each device for who comes behind these requests, by UUID.

    Of each counter that is what is free without what the one of them needs that needs most.
    Nothing is below 0.
    """
    rest_by_uuid = {
        uuid: {counter: max(amount, 0) for counter, amount in free.items()}
        for uuid, free in inventory.free().items()
    }
    free_by_uuid = inventory.free()
    for earlier in earlier_requests:
        for device in inventory.devices:
            free, rest = free_by_uuid[device.uuid], rest_by_uuid[device.uuid]
            for need in _cuts(earlier, device, inventory.devices, None):
                for counter, amount in need.takes.items():
                    left = max(free.get(counter, 0) - amount, 0)
                    rest[counter] = min(rest.get(counter, 0), left)
    return rest_by_uuid


def _by_other_policy(
    request: Request, earlier: Request, device: Device, inventory: Inventory
) -> bool:
    """Whether a request would have a device share by another policy than an earlier one needs."""
    return (
        following(request.policy) in device.capacity
        and request.policy is not earlier.policy
        and bool(_cuts(request, device, inventory.devices, inventory.free()[device.uuid]))
        and bool(_cuts(earlier, device, inventory.devices, None))
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
