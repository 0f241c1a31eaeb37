"""The one place where a request is rounded to what a device can really give."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Ask,
    Counters,
    Device,
    Fractional,
    Grain,
    Granularity,
    Ladder,
    MultiDevice,
    Step,
    Templated,
    Whole,
)
from hetero.model.frozen import frozen


@frozen(kw_only=True)
class Portion:
    """What one ask becomes on one device: the counters it takes and the core limit it implies.

    `conceded` is how far that is from the share that was asked for (`placement.offer.cut_of`).
    `sm` is as asked: it takes as much core as a share of the time would, and there is no limit.
    """

    takes: Counters
    core: int | None = None
    template: str | None = None
    part: str | None = None
    conceded: int = 0
    sm: int | None = None

    def is_whole(self, device: Device) -> bool:
        """Whether it takes all of the device."""
        return all(self.takes.get(name, 0) >= of for name, of in device.capacity.items())


def round_up(size: int, grain: Grain) -> int | None:
    """Return the smallest size of `grain` that covers `size`, None above a ladder's top."""
    match grain:
        case Step(of):
            return -(-size // of) * of
        case Ladder(sizes):
            return next((listed for listed in sizes if listed >= size), None)


def portion(device: Device, ask: Ask, *, count: int, free: Mapping[str, int]) -> Portion | None:
    """Return what `ask`, one of `count` in its request, takes of `device`; None if it never can.

    A portion is never less than asked. `free` only chooses between template entries of equal
    right; whether the portion fits into it is the caller's question.
    """
    if ask.shape is not None:
        return _shape(device, _named(device.granularity, ask.shape), memory=0, core=0, free=free)
    memory, core = asked(device, ask)
    made = cut(device, memory=memory, core=core, count=count, free=free)
    return made if made is None or ask.sm is None else evolve(made, core=None, sm=ask.sm)


def _named(granularity: Granularity, shape: str) -> Templated:
    """Return a menu of the one shape, an empty one where there is none of that name."""
    menu = granularity.menu if isinstance(granularity, Templated) else ()
    return Templated(tuple(one for one in menu if one.name == shape), whole=False)


def cut(
    device: Device, *, memory: int, core: int | None, count: int, free: Mapping[str, int]
) -> Portion | None:
    """Return the portion that covers `memory` bytes and `core` units, as `portion` does."""
    if memory > device.capacity[MEMORY]:
        return None
    match device.granularity:
        case Whole():
            return whole(device)
        case (
            Fractional(multi=MultiDevice.WHOLE) | Templated(multi=MultiDevice.WHOLE, whole=True)
        ) if count > 1:
            return whole(device)
        case Fractional(memory_grain, core_grain, together=together):
            if core is None and together:
                core = max(device.capacity[CORE] * memory // device.capacity[MEMORY], 1)
            return _fraction(
                device,
                memory=round_up(memory, memory_grain),
                core=None if core is None else round_up(core, core_grain),
            )
        case Templated() as templated:
            return _shape(device, templated, memory=memory, core=core or 0, free=free)


def asked(device: Device, ask: Ask) -> tuple[int, int | None]:
    """Return the bytes and core units asked of this device, before any grain."""
    percent = ask.core if ask.sm is None else ask.sm
    core = None if percent is None else -(-device.of_card(CORE) * percent // 100)
    if ask.memory_percent is not None:
        return -(-device.of_card(MEMORY) * ask.memory_percent // 100), core
    return _all_memory(device, core or 0) if ask.memory is None else ask.memory, core


def _all_memory(device: Device, core: int) -> int:
    """Return the bytes a request means that names no size: the card's, or its largest part's."""
    total = device.capacity[MEMORY]
    match device.granularity:
        case Templated(menu, whole=False):
            parts = (t.takes[MEMORY] for t in menu if t.takes[CORE] >= core)
            return max(parts, default=total)
    return total


def whole(device: Device) -> Portion:
    """Return all of the device."""
    return Portion(takes=device.capacity)


def _fraction(device: Device, *, memory: int | None, core: int | None) -> Portion:
    """Return a cut of a fractional device; all its memory or a card's core makes it exclusive."""
    total_memory, total_core = device.capacity[MEMORY], device.of_card(CORE)
    # A card's size need not be a multiple of its grain: the last cut is simply the rest of it.
    memory = total_memory if memory is None else min(memory, total_memory)
    core = None if core is None else min(core, total_core)
    exclusive = memory == total_memory or core == total_core
    takes = {
        MEMORY: memory,
        CORE: core if core is not None else device.capacity[CORE] if exclusive else 0,
        SLOTS: device.capacity[SLOTS] if exclusive else 1,
    }
    return Portion(takes=takes, core=None if core == total_core else core)


def _shape(
    device: Device, templated: Templated, *, memory: int, core: int, free: Mapping[str, int]
) -> Portion | None:
    """Return the first menu entry that covers the ask, one whose counters are free if any is."""
    # All of the core is the whole card, whatever the menu is ordered by.
    measured = core if CORE in templated.measured_by or core == device.of_card(CORE) else 0
    covering = [
        template
        for template in templated.menu
        if template.takes[MEMORY] >= memory and template.takes[CORE] >= measured
    ]
    if not covering:
        return whole(device) if templated.whole else None
    template = next(
        (t for t in covering if all(free.get(k, 0) >= v for k, v in t.takes.items())), covering[0]
    )
    return Portion(takes={**template.takes, SLOTS: 1}, template=template.name, part=template.part)
