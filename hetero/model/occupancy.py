"""What a pod takes of devices: the one sum of scheduler, agent, ledger, views and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from attrs import field

from hetero.model.allocation import Allocation
from hetero.model.device import Device
from hetero.model.frozen import frozen
from hetero.model.granularity import (
    CORE,
    MEMORY,
    SLOTS,
    Counters,
    Fractional,
    Grain,
    Ladder,
    Step,
    Template,
    Templated,
    Whole,
)


class ContainerKind(str, Enum):
    """When a container of a pod runs."""

    INIT = "init"  # before the main containers, and beside no other init container
    SIDECAR = "sidecar"  # from its start to the pod's end, beside whoever runs
    MAIN = "main"  # beside all other main containers


#: The allocations of a pod's containers.
PodAllocations = tuple[tuple[ContainerKind, Allocation], ...]


@frozen
class Occupancy:
    """What a pod keeps of one device: of each counter the most it takes at any time."""

    device: str
    takes: Counters


def peak(amounts: Iterable[tuple[ContainerKind, Counters]]) -> dict[str, int]:
    """Return the most that containers take together at any time of their pod's life.

    That is all sidecars, and the larger of all main containers and the largest init container,
    counter by counter. A pod keeps it until it ends: its init containers may run again.
    """
    sidecars: dict[str, int] = {}
    main: dict[str, int] = {}
    largest: dict[str, int] = {}  # of main containers together and each init container
    for kind, counters in amounts:
        sums = sidecars if kind is ContainerKind.SIDECAR else main
        for counter, amount in counters.items():
            if kind is not ContainerKind.INIT:
                sums[counter] = amount = sums.get(counter, 0) + amount
            if kind is not ContainerKind.SIDECAR:
                largest[counter] = max(largest.get(counter, 0), amount)
    return {
        counter: sidecars.get(counter, 0) + largest.get(counter, 0)
        for counter in sidecars | largest
    }


def occupancies(
    containers: Iterable[tuple[ContainerKind, Allocation]],
) -> tuple[Occupancy, ...]:
    """Return what a pod of these containers keeps of each of its devices."""
    amounts_by_uuid: dict[str, list[tuple[ContainerKind, Counters]]] = {}
    for kind, allocation in containers:
        for piece in allocation.pieces:
            amounts_by_uuid.setdefault(piece.device, []).append((kind, piece.takes))
    return tuple(
        Occupancy(uuid, amounts[0][1] if len(amounts) == 1 else peak(amounts))
        for uuid, amounts in amounts_by_uuid.items()
    )


def left_of(device: Device, taken: Counters, *, foreign_bytes: int = 0) -> dict[str, int]:
    """Return what is free of each counter of a device in fact.

    That is what it gives (its driver's reserve is no part of that), less what was granted, used or
    not, and less the memory that programs without a grant hold. So it may be below 0.
    """
    left_counters = dict(device.capacity)
    for counter, amount in taken.items():
        left_counters[counter] = left_counters.get(counter, 0) - amount
    if foreign_bytes:
        left_counters[MEMORY] -= foreign_bytes
    return left_counters


def left_in_parts(left_counters: Counters, part_takes: Sequence[Counters]) -> dict[str, int]:
    """Return what is left of a device, nothing below 0.

    `part_takes` are what the parts take of a device that is given by its parts alone: of it that is
    the core and memory of the parts that are free. They are empty for any other device.
    """
    counters = {counter: max(left, 0) for counter, left in left_counters.items()}
    if part_takes:
        free_parts = [
            takes
            for takes in part_takes
            if all(counters.get(counter, 0) >= amount for counter, amount in takes.items())
        ]
        for counter in (CORE, MEMORY):
            free_amount = sum(takes[counter] for takes in free_parts)
            counters[counter] = min(counters[counter], free_amount)
    return counters


def obtainable(
    left_counters: Counters, *, capacity: Counters, part_takes: Sequence[Counters] = ()
) -> dict[str, int]:
    """Return what requests can still have together of a device of which so much is left.

    Of `left_in_parts` memory is of use to nobody without a slot and, on a device that counts core,
    some core; nor is core without memory.
    """
    counters = left_in_parts(left_counters, part_takes)
    if any(capacity[counter] and not counters[counter] for counter in (SLOTS, CORE, MEMORY)):
        counters[CORE] = counters[MEMORY] = 0
    return counters


def obtainable_of(device: Device, left_counters: Counters) -> dict[str, int]:
    """Return what is `obtainable` of a device, in the sizes that it can be cut into."""
    counters = obtainable(left_counters, capacity=device.capacity, part_takes=device.part_takes)
    if any(counters[counter] < amount for counter, amount in device.capacity.items()):
        for counter, amount in _in_sizes(device, counters).items():
            counters[counter] = min(counters[counter], amount)
    return counters


def _in_sizes(device: Device, left_counters: Counters) -> dict[str, int]:
    """Return the memory and the core that can be cut of a device of which some is held."""
    match device.granularity:
        case Whole():
            return {MEMORY: 0, CORE: 0}
        case Fractional(memory, core, together=together):
            memory_bytes = _down(left_counters[MEMORY], memory, device.capacity[MEMORY])
            core_units = _down(left_counters[CORE], core, device.of_card(CORE))
            if memory_bytes <= device.counted_context_bytes or (together and not core_units):
                return {MEMORY: 0, CORE: 0}
            return {MEMORY: memory_bytes, CORE: core_units}
        case Templated(menu, whole=True):
            return _of_menu(menu, left_counters)
    return {}


def _down(amount: int, grain: Grain, card_amount: int) -> int:
    """Return the most of an amount that sizes of a grain can make up, all of it at the card's."""
    if amount == card_amount:
        return amount
    match grain:
        case Step(step):
            return amount // step * step
        case Ladder(sizes):
            left_amount = amount
            for size in reversed(sizes):
                left_amount %= size
            return amount - left_amount


def _of_menu(menu: Sequence[Template], left_counters: Counters) -> dict[str, int]:
    """Return the memory and the core of the templates that can be cut, the largest first."""
    left, sums = dict(left_counters), {MEMORY: 0, CORE: 0}
    for template in reversed(menu):
        takes = {SLOTS: 1, **template.takes}
        times = min(left.get(counter, 0) // amount for counter, amount in takes.items() if amount)
        for counter, amount in takes.items() if times > 0 else ():
            left[counter] -= times * amount
        for counter in sums:
            sums[counter] += max(times, 0) * takes[counter]
    return sums


@frozen
class Inventory:
    """The devices of a node, the allocations that stand on them, and those of pods.

    `foreign` are the bytes of each device, by UUID, that programs without a grant hold.
    """

    devices: tuple[Device, ...]
    standing: tuple[Allocation, ...] = ()
    pods: tuple[PodAllocations, ...] = ()
    foreign: Mapping[str, int] = field(factory=dict)

    def free(self) -> dict[str, dict[str, int]]:
        """Return what is left of each counter of each device, by UUID: see `left_of`."""
        taken_by_uuid: dict[str, dict[str, int]] = {device.uuid: {} for device in self.devices}
        alone = (((ContainerKind.MAIN, allocation),) for allocation in self.standing)
        for containers in (*alone, *self.pods):
            for occupancy in occupancies(containers):
                taken_counters = taken_by_uuid.get(occupancy.device)
                if taken_counters is None:
                    continue  # the card is gone; its grants end with their owners
                for counter, amount in occupancy.takes.items():
                    taken_counters[counter] = taken_counters.get(counter, 0) + amount
        return {
            device.uuid: left_of(
                device, taken_by_uuid[device.uuid], foreign_bytes=self.foreign.get(device.uuid, 0)
            )
            for device in self.devices
        }
