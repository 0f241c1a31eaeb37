"""Orders over devices: which of those that fit is taken, as small pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hetero.granularity import Portion
from hetero.model import CORE, MEMORY, Device

#: Returns what taking the portion costs; the lowest is taken. All orders give tuples of one length.
Order = Callable[[Device, Mapping[str, int], Portion], tuple[int, ...]]


def binpack(device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, ...]:
    """Fill the fullest device first, and among empty ones the smallest: keeps cards whole."""
    total = max(device.capacity[CORE], 1)
    return (
        (free[MEMORY] - cut.takes.get(MEMORY, 0)) // (1024 * 1024),
        (free[CORE] - cut.takes.get(CORE, 0)) * 100 // total,
    )


def spread(device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, ...]:
    """Take the emptiest device first: fewest neighbours."""
    return tuple(-cost for cost in binpack(device, free, cut))
