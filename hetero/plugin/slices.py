"""Helps vendors whose hardware is cut into slices: which grants need one, which slices are ours."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from pathlib import Path

from hetero.model import CORE, Allocation, Device, DeviceAllocation
from hetero.plugin.driver import DriverError


def shares(
    allocation: Allocation, devices: Sequence[Device]
) -> Iterator[tuple[DeviceAllocation, Device]]:
    """Yield each grant of a part of a device that is to be cut, and the device.

    A device that a limiter shares is not cut.
    """
    for piece, device in zip(allocation.pieces, devices, strict=True):
        if not piece.is_whole(device) and not device.enforcement.by_limiter:
            yield piece, device


def slice_name(piece: DeviceAllocation, directory: Path) -> str:
    """Return the name of a grant's slice: its present one, or a new one that is marked as ours."""
    return piece.part or _mark(directory) + os.urandom(4).hex()


def orphaned(name: str, parts: Collection[str], directory: Path) -> bool:
    """Return whether the slice of this name is ours and no grant in `parts` holds it."""
    return name.startswith(_mark(directory)) and name not in parts


def note(path: Path, text: str = "") -> None:
    """Write a vendor's note about a slice atomically: a kill leaves all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)


def free_number(numbers: Iterable[int], used_numbers: Iterable[int], noun: str) -> int:
    """Return the first unused number. Raises `DriverError` without any; `noun` names it."""
    number_set = set(used_numbers)
    for number in numbers:
        if number not in number_set:
            return number
    raise DriverError(f"no {noun} is free")


def free_mask(device: Device, units: int, used_masks: Iterable[int]) -> int:
    """Return a mask of `units` compute units of a device that no used mask contains.

    A mask has a bit for each unit of the device's core. Raises `DriverError` where fewer are free.
    """
    used_mask = reduce(or_, used_masks, 0)
    free_units = [unit for unit in range(device.capacity[CORE]) if not used_mask >> unit & 1]
    if len(free_units) < units:
        raise DriverError(
            f"card {device.index}: {len(free_units)} of {units} compute units are free"
        )
    return sum(1 << unit for unit in free_units[:units])


def _mark(directory: Path) -> str:
    """Return the prefix of the names of the slices that `directory`'s ledger owns.

    Two ledgers of one machine, root's and a user's, must not take each other's slices for orphans.
    """
    import hashlib  # loads a library of cryptography; most starts do without

    return f"hetero-{hashlib.sha256(bytes(directory)).hexdigest()[:6]}-"
