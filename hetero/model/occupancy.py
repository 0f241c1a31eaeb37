"""What a pod takes of devices: the one sum of scheduler, agent, ledger, views and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from hetero.model.allocation import Allocation
from hetero.model.device import Device
from hetero.model.frozen import frozen
from hetero.model.granularity import Counters


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


@frozen
class Inventory:
    """The devices of a node, the allocations that stand on them, and those of pods."""

    devices: tuple[Device, ...]
    standing: tuple[Allocation, ...] = ()
    pods: tuple[PodAllocations, ...] = ()

    def free(self) -> dict[str, dict[str, int]]:
        """Return what is left of each counter of each device, by UUID."""
        free_by_uuid = {device.uuid: dict(device.capacity) for device in self.devices}
        alone = (((ContainerKind.MAIN, allocation),) for allocation in self.standing)
        for containers in (*alone, *self.pods):
            for occupancy in occupancies(containers):
                free_counters = free_by_uuid.get(occupancy.device)
                if free_counters is None:
                    continue  # the card is gone; its grants end with their owners
                for counter, amount in occupancy.takes.items():
                    free_counters[counter] = free_counters.get(counter, 0) - amount
        return free_by_uuid
