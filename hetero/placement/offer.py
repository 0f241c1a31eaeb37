"""Says what one device gives to one ask now, or in a few words why it gives nothing."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    NOT_CHOSEN,
    POLICY_SLOTS,
    SLOTS,
    Ask,
    Device,
    Enforcement,
    Fractional,
    MultiDevice,
    Policy,
    Request,
    Shortage,
    Templated,
    Whole,
    following,
    left_in_parts,
)
from hetero.model.rounding import Portion, asked, portion, whole
from hetero.model.units import MiB, format_memory

#: The verdicts of a device that is too small, and of one in use that is asked for as a whole.
TOO_SMALL, NOT_EMPTY = "too small", "not empty"
#: What the verdict of a device begins with of which less is asked than a context takes alone.
BELOW_CONTEXT = "too little for a context"
#: The verdict of a device shared by a service: a program uses one service, so one device.
ONE_CARD = "shared by a service, which is of one card"
#: The verdict of a device on which no service limits multiprocessors.
NO_SM = "not shared by a service, as sm needs"
#: The verdict of a device whose parts are no devices to this request.
BY_PARTS = "partitioned, and given by the names of its parts"
#: The downgrade level of a whole device that is given for a part of it.
WHOLE_FOR_PART = 2
#: Counters that count holders, and no size.
HEADS = frozenset({SLOTS, *POLICY_SLOTS})


def offer(device: Device, ask: Ask, request: Request, free: Mapping[str, int]) -> Portion | str:
    """Return what the device would give for the ask, or the verdict that it cannot."""
    cut = cut_of(device, ask, request, free)
    if isinstance(cut, str):
        return cut
    return obstacle(device, cut, request, free) or cut


def cut_of(device: Device, ask: Ask, request: Request, free: Mapping[str, int]) -> Portion | str:
    """Return what the ask would take of the device were it free, or why it never can.

    Its downgrade level, where a share was asked for: 0, none; 1, no limit is enforced; 2, the whole
    device is taken for a part of it. Its surplus is what its shape has beyond the amounts asked.
    """
    if verdict := _verdict_of_any_size(device, ask, request):
        return verdict
    has_least = request.least and _by_parts(device)
    sized_ask = _of_any_size(ask) if has_least else ask
    cut = portion(device, sized_ask, count=len(request.asks), free=free)
    if cut is None:
        return TOO_SMALL
    if request.exclusive and not has_least:
        return whole(device)
    if cut.part is None and cut.takes[MEMORY] <= device.counted_context_bytes:
        return _below_context(device, cut)
    followers = following(request.policy)
    if followers in device.capacity:
        cut = evolve(cut, takes={followers: 1, **cut.takes})
    if _asks_for_all(device, sized_ask):
        return cut
    downgrade, surplus = _downgrade(device, cut), _surplus(device, sized_ask, cut)
    return evolve(cut, downgrade=downgrade, surplus=surplus) if downgrade or any(surplus) else cut


def _verdict_of_any_size(device: Device, ask: Ask, request: Request) -> str | None:
    """Return why the device never gives the ask, whatever its size; None if it may."""
    if not request.chooses(device) or (ask.shape is not None and ask.shape not in device.shapes):
        return NOT_CHOSEN
    if request.unpartitioned and _by_parts(device):
        return BY_PARTS
    if not device.usable:
        return not_usable(device)
    if device.enforcement is Enforcement.SERVICE and len(request.asks) > 1:
        return ONE_CARD
    if ask.sm_percent is not None and device.enforcement is not Enforcement.SERVICE:
        return NO_SM
    return None


def not_usable(device: Device) -> str:
    """Return the verdict of a device of which nothing more is given: sick, or cordoned."""
    return (device.condition or "") if device.healthy else f"unhealthy ({device.health})"


def given_whole(device: Device, *, count: int) -> str:
    """Return the sentence about a device that is given whole for a part of it, one of `count`."""
    match device.granularity:
        case Whole():
            reason = "it has no parts"
        case (
            Fractional(multi=MultiDevice.WHOLE) | Templated(multi=MultiDevice.WHOLE, whole=True)
        ) if count > 1:
            reason = f"{device.vendor} gives several devices only whole"
        case _:
            reason = "no part of it has the memory and core asked"
    return f"{device.short_model} is given whole for a part of it: {reason}"


def taken_alone(device: Device, ask: Ask, cut: Portion) -> str | None:
    """Return the sentence about a card that a share takes exclusively; None where none does.

    A card of which all of the memory, or all of the core, is taken has no other tenant. Where its
    sizes and not the request make it so, nobody has asked for that.
    """
    if (
        not isinstance(device.granularity, Fractional)
        or cut.is_whole(device)
        or cut.takes[SLOTS] < device.capacity[SLOTS]
        or device.capacity[SLOTS] == 1
    ):
        return None
    if asked(device, ask)[0] == device.capacity[MEMORY] or ask.core == ask.core_of:
        return None
    noun = "memory" if cut.takes[MEMORY] == device.capacity[MEMORY] else "core"
    return (
        f"{device.short_model} is taken exclusively: the smallest of its sizes with the {noun} "
        "asked is all of it"
    )


def size_note(device: Device, ask: Ask, cut: Portion, *, count: int) -> str | None:
    """Return what to say of one of `count` devices that a share takes alone; None: nothing is."""
    if not cut.is_whole(device):
        return taken_alone(device, ask, cut)
    return None if _asks_for_all(device, ask) else given_whole(device, count=count)


def _below_context(device: Device, cut: Portion) -> str:
    """Return the verdict that no program could make a context within the cut."""
    asked_text = format_memory(cut.takes[MEMORY])
    context_text = format_memory(device.counted_context_bytes)
    return f"{BELOW_CONTEXT} ({asked_text} wanted, the driver's context alone takes {context_text})"


def _of_any_size(ask: Ask) -> Ask:
    """Return the ask as one that any memory covers, unless it has a size."""
    sizes = (ask.shape, ask.memory, ask.memory_percent)
    return ask if any(size is not None for size in sizes) else evolve(ask, memory=1)


def _by_parts(device: Device) -> bool:
    """Return whether the device is given by its parts alone, and these do not count as devices."""
    granularity = device.granularity
    return device.partitioned and not (isinstance(granularity, Templated) and granularity.counted)


def obstacle(device: Device, cut: Portion, request: Request, free: Mapping[str, int]) -> str | None:
    """Return what stands in the way of the cut now, None if nothing does."""
    lacking_counter = _lacking(device, cut, free)
    if lacking_counter is not None:
        wants_whole = cut.is_whole(device) or (lacking_counter == SLOTS and cut.takes[SLOTS] > 1)
        return NOT_EMPTY if wants_whole else f"lack {lacking_counter}"
    if cut.takes.get(CORE) == 0 and device.capacity[CORE] > 0 and free[CORE] <= 0:
        return "lack core"  # no limit was asked, and all of the core is promised to others
    if following(request.policy) in cut.takes and _follows_another(device, request.policy, free):
        return "shared by another policy"
    if request.empty and any(free[counter] < amount for counter, amount in device.capacity.items()):
        return NOT_EMPTY
    return None


def shortage(
    device: Device, ask: Ask, request: Request, free: Mapping[str, int]
) -> Shortage | None:
    """Return the numbers of the verdict that `offer` gives, None where it has none."""
    cut = cut_of(device, ask, request, free)
    if cut == TOO_SMALL:
        return _smallness(device, ask)
    lacking_counter = None if isinstance(cut, str) else _lacking(device, cut, free)
    if lacking_counter is None or isinstance(cut, str):
        return None
    return Shortage(
        counter=lacking_counter,
        asked=cut.takes[lacking_counter],
        free=left_in_parts(free, device.part_takes).get(lacking_counter, 0),
        of=device.of_card(CORE)
        if lacking_counter == CORE
        else device.capacity.get(lacking_counter, 0),
    )


def _smallness(device: Device, ask: Ask) -> Shortage | None:
    """Return what a device has too little of, however empty it is: of its parts, the largest."""
    asked_bytes, asked_units = asked(device, ask)
    total_bytes = device.capacity[MEMORY]
    if asked_bytes > total_bytes:
        return Shortage(counter=MEMORY, asked=asked_bytes, free=total_bytes, of=total_bytes)
    largest_bytes = max((takes[MEMORY] for takes in device.part_takes), default=total_bytes)
    if asked_bytes > largest_bytes:
        return Shortage(
            counter=MEMORY, asked=asked_bytes, free=largest_bytes, of=total_bytes, in_part=True
        )
    part_units = (takes[CORE] for takes in device.part_takes if takes[MEMORY] >= asked_bytes)
    largest_units, card_units = max(part_units, default=None), device.of_card(CORE)
    if largest_units is None or asked_units is None:
        return None
    if ask.core is None:
        return Shortage(
            counter=CORE, asked=asked_units, free=largest_units, of=card_units, in_part=True
        )
    # As it was asked, not rounded up to the units of the card.
    return Shortage(
        counter=CORE,
        asked=ask.core * card_units,
        free=largest_units * ask.core_of,
        of=card_units * ask.core_of,
        in_part=True,
    )


def _lacking(device: Device, cut: Portion, free: Mapping[str, int]) -> str | None:
    """Return the counter that the cut lacks: first a size that was asked, not one of its shape."""
    lacking_counters = [
        counter for counter, amount in cut.takes.items() if free.get(counter, 0) < amount
    ]
    if len(lacking_counters) < 2:
        return lacking_counters[0] if lacking_counters else None
    surplus_mib, surplus_percent = cut.surplus
    asked_amounts = {
        MEMORY: cut.takes[MEMORY] - surplus_mib * MiB,
        CORE: cut.takes[CORE] - surplus_percent * device.of_card(CORE) // 100,
    }
    return min(
        lacking_counters,
        key=lambda counter: (
            counter in HEADS,
            asked_amounts.get(counter, 0) <= free.get(counter, 0),
            counter != MEMORY,
        ),
    )


def _surplus(device: Device, ask: Ask, cut: Portion) -> tuple[int, int]:
    """Return the MiB and the percent of the card's core that a cut has beyond what was asked."""
    if ask.shape is not None:
        return 0, 0
    asked_bytes, asked_units = asked(device, ask)
    beyond_bytes = max(cut.takes[MEMORY] - asked_bytes, 0)
    beyond_units = max(cut.takes[CORE] - (asked_units or 0), 0)
    return beyond_bytes // MiB, 100 * beyond_units // max(device.of_card(CORE), 1)


def _downgrade(device: Device, cut: Portion) -> int:
    return WHOLE_FOR_PART if cut.is_whole(device) else int(device.enforcement is Enforcement.NONE)


def _asks_for_all(device: Device, ask: Ask) -> bool:
    if ask.shape is not None or ask.sm_percent is not None or ask.core not in (None, ask.core_of):
        return False
    if ask.memory is None:
        return ask.memory_percent in (None, 100)
    return ask.memory >= device.capacity[MEMORY]


def _follows_another(device: Device, policy: Policy, free: Mapping[str, int]) -> bool:
    counters = (following(other_policy) for other_policy in Policy if other_policy is not policy)
    return any(free[counter] < device.capacity[counter] for counter in counters)
