"""What a device could give, from its declaration alone: what rounding is checked against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hetero.model import CORE, MEMORY, Ask, Device, Fractional, Grain, Ladder, Step, Templated
from hetero.model.rounding import Portion


def fault_of(device: Device, ask: Ask, portion: Portion | None) -> str | None:
    """Return what is wrong with the portion of an empty device for one ask, None if nothing is.

    It has all memory and core that were asked, fits the device, and no smaller size of the device
    has them. None is right where no size of the device has them.
    """
    if portion is None:
        size = next((size for size in _all_sizes(device) if covers(device, ask, size)), None)
        return None if size is None else f"nothing is given, and {size} would do"
    if not covers(device, ask, portion.takes):
        return f"{dict(portion.takes)} is less than asked"
    if any(amount > device.capacity[counter] for counter, amount in portion.takes.items()):
        return f"{dict(portion.takes)} is more than the device has"
    for size in _smaller_sizes(device, ask, portion):
        if covers(device, ask, size):
            return f"{dict(portion.takes)} is given, and {dict(size)} would do"
    return None


def covers(device: Device, ask: Ask, amounts: Mapping[str, int]) -> bool:
    """Return whether amounts of a device have all that was asked; nothing asked is all memory.

    A size between what a card can give and what it has in all is the card's name, and means what
    it can give.
    """
    card_bytes = device.capacity[MEMORY]
    memory_bytes = ask.memory or 0
    if card_bytes < memory_bytes <= card_bytes + device.reserved_bytes:
        memory_bytes = card_bytes
    has_memory = (
        amounts[MEMORY] >= memory_bytes
        and amounts[MEMORY] * 100 >= device.of_card(MEMORY) * (ask.memory_percent or 0)
        and (ask.memory or ask.memory_percent or _most_bytes(device, ask) <= amounts[MEMORY])
    )
    return bool(has_memory) and _has_core(device, ask, amounts)


def _has_core(device: Device, ask: Ask, amounts: Mapping[str, int]) -> bool:
    return amounts[CORE] * 100 >= device.of_card(CORE) * (ask.core or 0)


def _most_bytes(device: Device, ask: Ask) -> int:
    """Return the memory of the largest size of a device with the core that was asked."""
    return max(
        (size[MEMORY] for size in _all_sizes(device) if _has_core(device, ask, size)), default=0
    )


def _all_sizes(device: Device) -> Iterator[Mapping[str, int]]:
    """Yield each entry of a device's menu, and all of the device where it is given whole."""
    granularity = device.granularity
    if isinstance(granularity, Templated):
        yield from (template.takes for template in granularity.menu)
    if not isinstance(granularity, Templated) or granularity.whole:
        yield device.capacity


def _smaller_sizes(device: Device, ask: Ask, portion: Portion) -> Iterator[Mapping[str, int]]:
    """Yield the sizes of a device that take less of memory or core than a portion, no more of any.

    Core that was not asked is the declaration's to say.
    """
    takes = portion.takes
    match device.granularity:
        case Fractional(memory, core):
            smaller_bytes = _below(takes[MEMORY], memory)
            yield from ({**takes, MEMORY: size} for size in smaller_bytes)
            smaller_units = _below(takes[CORE], core) if ask.core is not None else ()
            yield from ({**takes, CORE: size} for size in smaller_units)
        case Templated(menu):
            for template in menu:
                pairs = [(template.takes[counter], takes[counter]) for counter in (MEMORY, CORE)]
                if all(size <= given for size, given in pairs) and any(
                    size < given for size, given in pairs
                ):
                    yield template.takes


def _below(amount: int, grain: Grain) -> Iterator[int]:
    """Yield the next size of a grain below an amount, if there is one."""
    match grain:
        case Step(step):
            smaller_sizes = [(amount - 1) // step * step]
        case Ladder(sizes):
            smaller_sizes = [size for size in sizes if size < amount][-1:]
    yield from (size for size in smaller_sizes if size > 0)
