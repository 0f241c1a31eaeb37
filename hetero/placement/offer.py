"""Says what one device gives to one ask now, or in a few words why it gives nothing."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Ask,
    Device,
    Enforcement,
    Policy,
    Request,
    following,
)
from hetero.model.rounding import Portion, portion, whole

_NAMES = {CORE: "core", MEMORY: "memory", SLOTS: "slots"}
NOT_CHOSEN = "not chosen"


def offer(device: Device, ask: Ask, request: Request, free: Mapping[str, int]) -> Portion | str:
    """Return what the device would give for the ask, or the verdict that it cannot."""
    cut = cut_of(device, ask, request, free)
    if isinstance(cut, str):
        return cut
    return obstacle(device, cut, request, free) or cut


def cut_of(device: Device, ask: Ask, request: Request, free: Mapping[str, int]) -> Portion | str:
    """Return what the ask would take of the device were it free, or why it never can.

    What is `conceded` of a share that was asked for: 0, nothing; 1, no limit is enforced; 2, the
    whole device is taken for a part of it.
    """
    for choice, name, all_of_it in (
        (request.vendor, device.vendor, True),
        (request.model, device.model, False),
        (request.uuid, device.uuid, False),
        (request.enforcement, device.enforcement.value, True),
    ):
        if not choice.allows(name, all_of_it=all_of_it):
            return NOT_CHOSEN
    if ask.shape is not None and ask.shape not in device.shapes:
        return NOT_CHOSEN
    if not device.usable:
        return f"unhealthy ({device.health})"
    cut = portion(device, ask, count=len(request.asks), free=free)
    if cut is None:
        return "too small"
    if request.exclusive:
        return whole(device)
    followers = following(request.policy)
    if followers in device.capacity:
        cut = evolve(cut, takes={followers: 1, **cut.takes})
    conceded = 0 if _asks_for_all(device, ask) else _conceded(device, cut)
    return evolve(cut, conceded=conceded) if conceded else cut


def obstacle(device: Device, cut: Portion, request: Request, free: Mapping[str, int]) -> str | None:
    """Return what stands in the way of the cut now, None if nothing does."""
    for name, amount in cut.takes.items():
        if free.get(name, 0) < amount:
            return "not empty" if name == SLOTS and amount > 1 else f"lack {_NAMES.get(name, name)}"
    if cut.takes.get(CORE) == 0 and device.capacity[CORE] > 0 and free[CORE] <= 0:
        return "lack core"  # no limit was asked, and all of the core is promised to others
    if following(request.policy) in cut.takes and _follows_another(device, request.policy, free):
        return "shared by another policy"
    if request.empty and any(free[name] < amount for name, amount in device.capacity.items()):
        return "not empty"
    return None


def _conceded(device: Device, cut: Portion) -> int:
    return 2 if cut.is_whole(device) else int(device.enforcement is Enforcement.NONE)


def _asks_for_all(device: Device, ask: Ask) -> bool:
    if ask.shape is not None or ask.core not in (None, 100):
        return False
    if ask.memory is None:
        return ask.memory_percent in (None, 100)
    return ask.memory >= device.capacity[MEMORY]


def _follows_another(device: Device, policy: Policy, free: Mapping[str, int]) -> bool:
    others = (following(other) for other in Policy if other is not policy)
    return any(free[name] < device.capacity[name] for name in others)
