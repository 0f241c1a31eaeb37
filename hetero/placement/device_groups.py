"""Keeps devices of one group together: a module of several dies is taken whole, or by slices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hetero.model import Device
from hetero.model.rounding import Portion

#: What each device offers to one ask, by UUID: a portion, or the verdict that it has none.
Offers = Mapping[str, Portion | str]


def agreed(devices: Sequence[Device], offers: Sequence[Offers]) -> list[dict[str, Portion | str]]:
    """Return the offers, without those of a whole device whose group cannot be taken whole.

    A group can be taken whole when all its devices are offered whole and the asks make up entire
    groups.
    """
    group_sizes = {device.group: 0 for device in devices if device.group}
    able_counts = dict.fromkeys(group_sizes, 0)
    for device in devices:
        if device.group:
            group_sizes[device.group] += 1
            able_counts[device.group] += any(_all_of(device, offer) for offer in offers)

    def verdict_on(device: Device, offer: Offers) -> Portion | str:
        if not device.group or not _all_of(device, offer):
            return offer[device.uuid]
        group_size = group_sizes[device.group]
        if len(offers) % group_size:
            return f"only given {group_size} at a time"
        if able_counts[device.group] < group_size:
            return f"in a group of {group_size} that is not all free"
        return offer[device.uuid]

    return [{device.uuid: verdict_on(device, offer) for device in devices} for offer in offers]


def sets(devices: Sequence[Device], offers: Sequence[Offers]) -> Iterator[list[Device]]:
    """Yield the devices to choose among: those given singly, and as many groups as are asked."""
    groups: dict[str, list[Device]] = {}
    single_devices: list[Device] = []
    for device in devices:
        if device.group and any(_all_of(device, offer) for offer in offers):
            groups.setdefault(device.group, []).append(device)
        else:
            single_devices.append(device)
    if single_devices or not groups:
        yield single_devices
    group_members: list[Device] = []
    for group_devices in groups.values():
        group_members += group_devices
        if len(group_members) == len(offers):
            yield group_members
            return


def owed(devices: Sequence[Device], chosen_cuts: Iterable[tuple[Device, Portion]]) -> int:
    """Return how many devices are still to be taken whole to complete their groups."""
    group_by_uuid = {
        device.uuid: device.group
        for device, cut in chosen_cuts
        if device.group and cut.is_whole(device)
    }
    if not group_by_uuid:
        return 0
    groups = set(group_by_uuid.values())
    return sum(device.group in groups and device.uuid not in group_by_uuid for device in devices)


def _all_of(device: Device, offer: Offers) -> bool:
    cut = offer[device.uuid]
    return isinstance(cut, Portion) and cut.is_whole(device)
