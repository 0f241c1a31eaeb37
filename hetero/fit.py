"""Packs a request into an inventory: pure, deterministic and exact, knowing no vendor."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.granularity import Portion, portion
from hetero.grouped import agreed, sets
from hetero.model import (
    CORE,
    FITS,
    MEMORY,
    SLOTS,
    Allocation,
    Ask,
    Choice,
    Device,
    Grant,
    Inventory,
    Refusal,
    Request,
)
from hetero.policy import Order, binpack

_NOT_CHOSEN = "not chosen"
#: What a verdict says whoever made the device.
_PLAIN = (FITS, _NOT_CHOSEN)
_NAMES = {CORE: "core", MEMORY: "memory", SLOTS: "slots"}


def fit(inventory: Inventory, request: Request, *, order: Order = binpack) -> Allocation | Refusal:
    """Return the allocation that serves every ask on a device of its own, or why there is none.

    The devices of one allocation are of one vendor, the first (in the order's eyes) that can
    serve all of it, unless the asks name their devices themselves.
    """
    free = inventory.free()
    missing = _missing(inventory, request)
    if missing:
        return Refusal(wanted=len(request.asks), verdicts={}, missing=missing)
    candidates = [
        {
            device.uuid: _NOT_CHOSEN
            if ask.device is not None and device not in _named(inventory, ask.device)
            else _offer(device, ask, request, free[device.uuid])
            for device in inventory.devices
        }
        for ask in request.asks
    ]
    candidates = agreed(inventory.devices, candidates)
    devices = {device.uuid: device for device in inventory.devices}
    pinned = any(ask.device is not None for ask in request.asks)
    groups: list[list[Device]] = [list(inventory.devices)]
    if not pinned:
        names = dict.fromkeys(device.vendor for device in inventory.devices)
        groups = [[d for d in inventory.devices if d.vendor == name] for name in names]
    best: tuple[tuple[int, ...], Allocation] | None = None
    for group in (part for whole in groups for part in sets(whole, candidates)):
        chosen = _match(group, candidates, free, order)
        if chosen is None:
            continue
        cost = tuple(
            map(sum, zip(*(order(devices[u], free[u], p) for u, p in chosen), strict=True))
        )
        if best is None or cost < best[0]:
            best = (cost, _allocation(request, devices, chosen))
    if best is not None:
        return best[1]
    verdicts = {uuid: _verdict([offers[uuid] for offers in candidates]) for uuid in devices}
    return Refusal(wanted=len(request.asks), verdicts=_by_vendor(verdicts, devices))


def _missing(inventory: Inventory, request: Request) -> str | None:
    """Return the sentence about a device that was named and does not exist, if there is one."""
    taken: set[str] = set()
    for ask in request.asks:
        if ask.device is None:
            continue
        named = _named(inventory, ask.device)
        if not named:
            return f"no device {ask.device!r} here: `hetero inventory` lists those there are"
        if len(named) > 1:
            return f"device {ask.device!r} names {len(named)} devices: give more of its UUID"
        if named[0].uuid in taken:
            return f"device {ask.device!r} is named twice: each ask needs a device of its own"
        taken.add(named[0].uuid)
    return None


def _named(inventory: Inventory, name: str) -> list[Device]:
    """Return the devices `name` means: a position in the inventory, or the start of a UUID."""
    if name.isdecimal() and int(name) < len(inventory.devices):
        return [inventory.devices[int(name)]]
    return [d for d in inventory.devices if d.uuid.lower().startswith(name.lower())]


def _offer(device: Device, ask: Ask, request: Request, free: Mapping[str, int]) -> Portion | str:
    """Return what the device would give for the ask, or the verdict that it cannot."""
    for choice, name, whole in (
        (request.vendor, device.vendor, True),
        (request.model, device.model, False),
        (request.uuid, device.uuid, False),
    ):
        if not _chosen(choice, name, whole=whole):
            return _NOT_CHOSEN
    if not device.usable:
        return f"unhealthy ({device.health})"
    cut = portion(device, ask, count=len(request.asks), free=free)
    if cut is None:
        return "too small"
    for name in cut.takes:
        if free.get(name, 0) < cut.takes[name]:
            whole = name == SLOTS and cut.takes[SLOTS] > 1
            return "not empty" if whole else f"lack {_NAMES.get(name, name)}"
    if cut.takes.get(CORE) == 0 and device.capacity[CORE] > 0 and free[CORE] <= 0:
        return "lack core"  # no limit was asked, and all of the core is promised to others
    return cut


def _chosen(choice: Choice, name: str, *, whole: bool) -> bool:
    def hit(part: str) -> bool:
        return part.lower() == name.lower() if whole else part.lower() in name.lower()

    if any(hit(part) for part in choice.never):
        return False
    return not choice.only or any(hit(part) for part in choice.only)


def _match(
    devices: list[Device],
    candidates: list[dict[str, Portion | str]],
    free: Mapping[str, Mapping[str, int]],
    order: Order,
) -> list[tuple[str, Portion]] | None:
    """Give every ask a device of its own, preferring the order; None if that is impossible.

    Augmenting paths make the answer exact: a small ask moves off a large card when a large ask
    needs it.
    """
    holder: dict[str, int] = {}
    ranked: list[list[str]] = []
    for offers in candidates:
        serving = [
            (order(d, free[d.uuid], cut), place, d.uuid)
            for place, d in enumerate(devices)
            if isinstance(cut := offers[d.uuid], Portion)
        ]
        ranked.append([uuid for _, _, uuid in sorted(serving)])

    def place(ask: int, seen: set[str]) -> bool:
        for uuid in ranked[ask]:
            if uuid in seen:
                continue
            seen.add(uuid)
            if uuid not in holder or place(holder[uuid], seen):
                holder[uuid] = ask
                return True
        return False

    if not all(place(ask, set()) for ask in range(len(candidates))):
        return None
    of_ask = {ask: uuid for uuid, ask in holder.items()}
    chosen: list[tuple[str, Portion]] = []
    for ask, offers in enumerate(candidates):
        cut = offers[of_ask[ask]]
        assert isinstance(cut, Portion)  # noqa: S101 - only serving devices were ranked
        chosen.append((of_ask[ask], cut))
    return chosen


def _allocation(
    request: Request, devices: Mapping[str, Device], chosen: list[tuple[str, Portion]]
) -> Allocation:
    return Allocation(
        grants=tuple(
            Grant(
                device=uuid,
                vendor=devices[uuid].vendor,
                takes=dict(cut.takes),
                core=cut.core,
                template=cut.template,
                part=cut.part,
            )
            for uuid, cut in chosen
        ),
        policy=request.policy,
        priority=request.priority,
    )


def _by_vendor(verdicts: Mapping[str, str], devices: Mapping[str, Device]) -> dict[str, str]:
    """Return the verdicts, saying whose device lacks what where there are several vendors'."""
    several = len({device.vendor for device in devices.values()}) > 1
    return {
        uuid: f"{devices[uuid].vendor} {said}" if several and said not in _PLAIN else said
        for uuid, said in verdicts.items()
    }


def _verdict(offers: list[Portion | str]) -> str:
    """Return the device's verdict over all asks: that it fits one, or the first reason it gave."""
    reasons = [offer for offer in offers if isinstance(offer, str)]
    if len(reasons) < len(offers):
        return FITS
    return next((reason for reason in reasons if reason != _NOT_CHOSEN), _NOT_CHOSEN)
