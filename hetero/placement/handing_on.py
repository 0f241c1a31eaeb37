"""Slices that are cut when a pod is admitted: its init containers hand theirs to a main one.

Such a slice lasts as long as its pod. One for an init container and another for the main container
after it would both be there, although no two run at a time. So one is cut, as large as the larger
of the two needs it. The scheduler gives both the same piece, and the agent the same slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    Allocation,
    ContainerKind,
    Counters,
    Device,
    DeviceAllocation,
)


def left_for_init(
    devices: Iterable[Device],
    free_after_sidecars: Mapping[str, Counters],
    free_after_main: Mapping[str, Counters],
    main: Iterable[Allocation],
) -> dict[str, Counters]:
    """Return what an init container may take of each device, by UUID.

    `main` are the allocations of the main containers. Of a device that is cut at admission that is
    what they leave, and the piece of the one that receives its slice.
    """
    left: dict[str, Counters] = {}
    received = taken_by_receivers(main)
    for device in devices:
        if not device.cut_at_admission:
            left[device.uuid] = free_after_sidecars[device.uuid]
            continue
        handed = received.get(device.uuid, {})
        left[device.uuid] = {
            counter: amount + handed.get(counter, 0)
            for counter, amount in free_after_main[device.uuid].items()
        }
    return left


def taken_by_receivers(main: Iterable[Allocation]) -> dict[str, Counters]:
    """Return what the piece that would receive a slice takes of each device, by UUID.

    `main` are the allocations of main containers.
    """
    pieces_by_uuid: dict[str, list[DeviceAllocation]] = {}
    for allocation in main:
        for piece in allocation.pieces:
            pieces_by_uuid.setdefault(piece.device, []).append(piece)
    return {
        uuid: receiver.takes
        for uuid, pieces in pieces_by_uuid.items()
        if (receiver := _receiver(pieces))
    }


def with_common_slices(
    containers: Sequence[tuple[ContainerKind, Allocation | None]], devices: Iterable[Device]
) -> tuple[Allocation | None, ...] | None:
    """Return the allocations of a pod's containers where init containers hand slices on.

    On each device that is cut at admission, all init containers and the largest main container
    have equal pieces, which are as large as the largest of them in every counter. None where a
    device's menu has no such piece.
    """
    replaced: dict[tuple[int, str], DeviceAllocation] = {}
    for device in devices:
        if not device.cut_at_admission:
            continue
        pieces = {
            (kind, position): piece
            for position, (kind, allocation) in enumerate(containers)
            for piece in (allocation.pieces if allocation else ())
            if piece.device == device.uuid and kind is not ContainerKind.SIDECAR
        }
        receiver = _receiver(
            piece for (kind, _), piece in pieces.items() if kind is ContainerKind.MAIN
        )
        sharing = {
            position: piece
            for (kind, position), piece in pieces.items()
            if kind is ContainerKind.INIT or piece is receiver
        }
        if len(sharing) < 2:
            continue
        common = _largest([*sharing.values()])
        if common is None:
            return None
        replaced.update({(position, device.uuid): common for position in sharing})
    return tuple(
        allocation
        and evolve(
            allocation,
            pieces=tuple(
                replaced.get((position, piece.device), piece) for piece in allocation.pieces
            ),
        )
        for position, (_, allocation) in enumerate(containers)
    )


def with_slices_of(allocation: Allocation, handed: Mapping[str, DeviceAllocation]) -> Allocation:
    """Return the allocation with the parts that it takes over: those of equal pieces.

    `handed` are pieces that stand, by UUID.
    """

    def taken_over(piece: DeviceAllocation) -> DeviceAllocation:
        giver = handed.get(piece.device)
        if giver is None or piece.part is not None or piece.takes != giver.takes:
            return piece
        return evolve(piece, part=giver.part)

    return evolve(allocation, pieces=tuple(map(taken_over, allocation.pieces)))


def _receiver(main_pieces: Iterable[DeviceAllocation]) -> DeviceAllocation | None:
    """Return the piece of the main container that receives a device's slice: the largest."""
    return max(
        main_pieces, key=lambda piece: (piece.takes[MEMORY], piece.takes[CORE]), default=None
    )


def _largest(pieces: Sequence[DeviceAllocation]) -> DeviceAllocation | None:
    """Return a piece as large as the largest of these, counter by counter.

    None where they are shapes of a menu, and none of them is.
    """
    takes = {
        counter: max(piece.takes.get(counter, 0) for piece in pieces)
        for counter in {counter: None for piece in pieces for counter in piece.takes}
    }
    for piece in pieces:
        if piece.takes == takes:
            return piece
    if any(piece.template is not None for piece in pieces):
        return None
    cores = [piece.core for piece in pieces if piece.core is not None]
    return evolve(pieces[0], takes=takes, core=max(cores) if len(cores) == len(pieces) else None)
