"""The one place where a request is rounded to an amount that a device can give."""

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
    """An ask rounded for one device: the counters it takes, and the core limit that it implies.

    `downgrade` is the level by which it is less than the share asked, `surplus` what it has beyond
    it: MiB, then percent of the card's core (`placement.offer.cut_of`). `sm_percent` is as asked:
    it takes as much core as a share of time would, and there is no core limit.
    """

    takes: Counters
    core_limit_units: int | None = None
    template: str | None = None
    part: str | None = None
    downgrade: int = 0
    surplus: tuple[int, int] = (0, 0)
    sm_percent: int | None = None

    def is_whole(self, device: Device) -> bool:
        """Return whether it takes all of the device."""
        return all(
            self.takes.get(counter, 0) >= total for counter, total in device.capacity.items()
        )


def round_up(amount: int, grain: Grain) -> int | None:
    """Return the smallest size of `grain` that covers `amount`, None above a ladder's top."""
    match grain:
        case Step(step):
            return -(-amount // step) * step
        case Ladder(sizes):
            return next((ladder_size for ladder_size in sizes if ladder_size >= amount), None)


def portion(device: Device, ask: Ask, *, count: int, free: Mapping[str, int]) -> Portion | None:
    """Return what `ask` takes of `device`, None if the device can never give it.

    The request has `count` devices. A portion is never less than asked. `free` decides only between
    templates of equal right; the caller checks whether the portion fits into it.
    """
    if ask.shape is not None:
        return _shape(
            device, _named(device.granularity, ask.shape), memory_bytes=0, core_units=0, free=free
        )
    memory_bytes, core_units = asked(device, ask)
    portion_cut = cut(
        device, memory_bytes=memory_bytes, core_units=core_units, count=count, free=free
    )
    return (
        portion_cut
        if portion_cut is None or ask.sm_percent is None
        else evolve(portion_cut, core_limit_units=None, sm_percent=ask.sm_percent)
    )


def _named(granularity: Granularity, shape: str) -> Templated:
    """Return a menu with the shape of this name alone, an empty one without it."""
    menu = granularity.menu if isinstance(granularity, Templated) else ()
    return Templated(tuple(template for template in menu if template.name == shape), whole=False)


def cut(
    device: Device,
    *,
    memory_bytes: int,
    core_units: int | None,
    count: int,
    free: Mapping[str, int],
) -> Portion | None:
    """Return the portion for these amounts of memory and core, by the rules of `portion`."""
    if memory_bytes > device.capacity[MEMORY]:
        return None
    match device.granularity:
        case Whole():
            return whole(device)
        case (
            Fractional(multi=MultiDevice.WHOLE) | Templated(multi=MultiDevice.WHOLE, whole=True)
        ) if count > 1:
            return whole(device)
        case Fractional(memory_grain, core_grain, together=together):
            if core_units is None and together:
                core_units = max(device.capacity[CORE] * memory_bytes // device.capacity[MEMORY], 1)
            return _fraction(
                device,
                memory_bytes=_up_to(memory_bytes, memory_grain, device.capacity[MEMORY]),
                core_units=None
                if core_units is None
                else _up_to(core_units, core_grain, device.of_card(CORE)),
            )
        case Templated() as templated:
            return _shape(
                device, templated, memory_bytes=memory_bytes, core_units=core_units or 0, free=free
            )


def asked(device: Device, ask: Ask) -> tuple[int, int | None]:
    """Return the bytes and core units that are asked of this device, before rounding."""
    limiting_ask = (
        ask
        if ask.sm_percent is None
        else evolve(ask, core=ask.sm_percent, core_of=100, sm_percent=None)
    )
    core_units = limiting_ask.core_units(device.of_card(CORE))
    if ask.memory_percent is not None:
        return -(-device.of_card(MEMORY) * ask.memory_percent // 100), core_units
    if ask.memory is None:
        return _all_memory(device, core_units or 0), core_units
    total_bytes = device.capacity[MEMORY]
    if total_bytes < ask.memory <= total_bytes + device.reserved_bytes:
        return total_bytes, core_units  # the size that people know the card by
    return ask.memory, core_units


def _all_memory(device: Device, core_units: int) -> int:
    """Return the bytes of a request without a memory size: the card's, or its largest part's."""
    total_bytes = device.capacity[MEMORY]
    match device.granularity:
        case Templated(menu, whole=False):
            part_bytes = (
                template.takes[MEMORY] for template in menu if template.takes[CORE] >= core_units
            )
            return max(part_bytes, default=total_bytes)
    return total_bytes


def whole(device: Device) -> Portion:
    """Return the portion of the whole device."""
    return Portion(takes=device.capacity)


def _up_to(amount: int, grain: Grain, card_amount: int) -> int:
    """Return `amount` rounded up, at most `card_amount`.

    A card's size need not be a multiple of its grain: the last cut is simply the rest of it.
    """
    rounded_amount = round_up(amount, grain)
    return card_amount if rounded_amount is None else min(rounded_amount, card_amount)


def _fraction(device: Device, *, memory_bytes: int, core_units: int | None) -> Portion:
    """Return the portion of a fractional device.

    A request for all of its memory, or for all of the core of the physical card, gets the device
    exclusively.
    """
    capacity_bytes, physical_core_units = device.capacity[MEMORY], device.of_card(CORE)
    exclusive = memory_bytes == capacity_bytes or core_units == physical_core_units
    takes = {
        MEMORY: memory_bytes,
        CORE: core_units if core_units is not None else device.capacity[CORE] if exclusive else 0,
        SLOTS: device.capacity[SLOTS] if exclusive else 1,
    }
    return Portion(
        takes=takes,
        core_limit_units=None if core_units == physical_core_units else core_units,
    )


def _shape(
    device: Device,
    templated: Templated,
    *,
    memory_bytes: int,
    core_units: int,
    free: Mapping[str, int],
) -> Portion | None:
    """Return the smallest template that covers the ask, preferably one whose counters are free."""
    covering_templates = [
        template
        for template in templated.menu
        if template.takes[MEMORY] >= memory_bytes and template.takes[CORE] >= core_units
    ]
    if not covering_templates:
        return whole(device) if templated.whole else None
    template = next(
        (
            candidate
            for candidate in covering_templates
            if all(free.get(counter, 0) >= amount for counter, amount in candidate.takes.items())
        ),
        covering_templates[0],
    )
    return Portion(takes={**template.takes, SLOTS: 1}, template=template.name, part=template.part)
