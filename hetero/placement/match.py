"""Packs one container's request into the devices of one node, exactly: every ask its own device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import comb

from attrs import evolve

from hetero.model import (
    CORE,
    FITS,
    MEMORY,
    NOT_CHOSEN,
    Allocation,
    Device,
    DeviceAllocation,
    Inventory,
    Refusal,
    Request,
    Shortage,
)
from hetero.model.frozen import frozen
from hetero.model.rounding import Portion
from hetero.model.units import format_memory
from hetero.placement.device_groups import agreed, sets
from hetero.placement.offer import offer, shortage
from hetero.placement.placement_policy import PlacementPolicy, binpack

Free = Mapping[str, Mapping[str, int]]  # what is left of each counter, by UUID
Offers = dict[str, Portion | str]  # what each device says to one ask, by UUID
#: What a verdict says whoever made the device.
_PLAIN = (FITS, NOT_CHOSEN)
#: Sets of linked devices looked at before the best of those seen is taken: 8 of 16 are 12,870.
_LINK_SETS = 20_000


@frozen(kw_only=True)
class Verdict:
    """What one device says to a request, and if it serves the cost by which it is chosen.

    The cost's first number is what is conceded (`offer.cut_of`), the others are the policy's.
    `position` is its place in the inventory. `left` are the bytes and the units of core that would
    be left of a device that serves, `shortage` the numbers of one that does not.
    """

    device: str
    verdict: str
    cost: tuple[int, ...] | None = None
    chosen: bool = False
    position: int = 0
    model: str = ""
    left: tuple[int, int] | None = None
    shortage: Shortage | None = None

    @property
    def sentence(self) -> str:
        """What the device says, in one line: `0 H200: 20 of 100 core free, 50 asked`."""
        sentence = self.verdict if self.shortage is None else self.shortage.on_device
        if self.left is not None:
            memory, core = self.left
            sentence += f", would have {format_memory(memory)} memory and {core} core left"
        return f"{self.position} {self.model}: {sentence}" + (" (taken)" if self.chosen else "")


@frozen(kw_only=True)
class Explanation:
    """What `fit` answers, and what every device said on the way there."""

    answer: Allocation | Refusal
    verdicts: tuple[Verdict, ...]


def fit(
    inventory: Inventory, request: Request, *, policy: PlacementPolicy = binpack
) -> Allocation | Refusal:
    """Return the allocation that serves every ask on a device of its own, or why there is none.

    The devices of one allocation are of one vendor, the first (by the policy) that can
    serve all of it, unless the asks name their devices themselves. Who asks for a share gets a
    whole device, or a share without a limit, only where nothing else serves (`shares_first`).
    """
    return fit_into(inventory.devices, inventory.free(), request, policy=policy)


def fit_into(
    devices: Sequence[Device], free: Free, request: Request, *, policy: PlacementPolicy = binpack
) -> Allocation | Refusal:
    """Do as `fit` does, with `free` as what is left of the devices."""
    lost = missing(devices, request)
    if lost:
        return Refusal(wanted=len(request.asks), verdicts={}, missing=lost)
    offers = _offers(devices, free, request)
    by_uuid = {device.uuid: device for device in devices}
    for offered in shares_first(offers):
        chosen = _cheapest(devices, free, request, offered, policy)
        if chosen is not None:
            return allocate(request, [(by_uuid[uuid], cut) for uuid, cut in chosen])
    return _refusal(devices, free, request, offers)


def shares_first(offers: list[Offers]) -> Iterator[list[Offers]]:
    """Yield the offers that concede least, then also those that concede more, at last all."""
    every = [cut for offered in offers for cut in offered.values() if isinstance(cut, Portion)]
    for most in sorted({cut.downgrade for cut in every}):
        yield [
            {
                uuid: NOT_CHOSEN if isinstance(cut, Portion) and cut.downgrade > most else cut
                for uuid, cut in offered.items()
            }
            for offered in offers
        ]


def _cheapest(
    devices: Sequence[Device],
    free: Free,
    request: Request,
    offers: list[Offers],
    policy: PlacementPolicy,
) -> list[tuple[str, Portion]] | None:
    """Return the best-linked, then cheapest choice of devices for all asks; None without one."""
    by_uuid = {device.uuid: device for device in devices}
    best: tuple[tuple[int, ...], list[tuple[str, Portion]]] | None = None
    for group in (part for some in groups(devices, request) for part in sets(some, offers)):
        for linked, candidates in _sets(group, offers, request):
            chosen = _match(candidates, offers, free, policy)
            if chosen is None:
                continue
            costs = (_cost(by_uuid[uuid], free, cut, policy) for uuid, cut in chosen)
            conceded, *rest = map(sum, zip(*costs, strict=True))
            cost = (conceded, -linked, *rest)
            if best is None or cost < best[0]:
                best = (cost, chosen)
            break
    return None if best is None else best[1]


def _cost(device: Device, free: Free, cut: Portion, policy: PlacementPolicy) -> tuple[int, ...]:
    """Return what taking the cut costs: first what it concedes, then the policy's cost."""
    return (cut.downgrade, *policy(device, free[device.uuid], cut))


def _refusal(
    devices: Sequence[Device],
    free: Free,
    request: Request,
    offers: Sequence[Mapping[str, Portion | str]],
) -> Refusal:
    """Return why these offers do not serve; of several vendors' devices, whose lacks what."""
    heard = [(device, *_heard(device, free, request, offers)) for device in devices]
    several = len({device.vendor for device, verdict, _ in heard if verdict != NOT_CHOSEN}) > 1
    verdicts: dict[str, str] = {}
    shortages: dict[str, Shortage] = {}
    for device, verdict, lacking in heard:
        if several and verdict not in _PLAIN:
            verdict = f"{device.vendor} {verdict}"
        verdicts[device.uuid] = verdict
        if lacking is not None:
            shortages[verdict] = lacking.nearer(shortages.get(verdict))
    wanted = len(request.asks)
    refusal = Refusal(wanted=wanted, verdicts=verdicts, shortages=shortages)
    fitting = Counter(
        device.vendor if not request.numa else f"{device.vendor} on NUMA node {device.numa}"
        for device in devices
        if verdicts[device.uuid] == FITS
    )
    if fitting.total() < wanted or max(fitting.values()) >= wanted:
        return refusal
    group = "vendor on one NUMA node" if request.numa else "vendor"
    return evolve(refusal, group=group, fitting=dict(sorted(fitting.items())))


def _heard(
    device: Device, free: Free, request: Request, offers: Sequence[Mapping[str, Portion | str]]
) -> tuple[str, Shortage | None]:
    """Return a device's verdict over all asks, with the numbers of the ask that it refuses."""
    verdict = _verdict([offered[device.uuid] for offered in offers])
    if verdict == NOT_CHOSEN:  # the numbers are of what was asked of other devices
        return verdict, None
    for ask, offered in zip(request.asks, offers, strict=True):
        if offered[device.uuid] == verdict:
            return verdict, shortage(device, ask, request, free[device.uuid])
    return verdict, None


def explain(
    inventory: Inventory, request: Request, *, policy: PlacementPolicy = binpack
) -> Explanation:
    """Return what `fit` answers, with every device's verdict and what it costs by the policy."""
    free = inventory.free()
    answer = fit(inventory, request, policy=policy)
    taken = {g.device for g in answer.pieces} if isinstance(answer, Allocation) else set()
    offers = _offers(inventory.devices, free, request)
    verdicts = []
    for position, device in enumerate(inventory.devices):
        verdict, lacking = _heard(device, free, request, offers)
        heard = (offered[device.uuid] for offered in offers)
        cut = next((one for one in heard if isinstance(one, Portion)), None)
        left = free[device.uuid]
        verdicts.append(
            Verdict(
                device=device.uuid,
                verdict=verdict,
                cost=None if cut is None else _cost(device, free, cut, policy),
                chosen=device.uuid in taken,
                position=position,
                model=device.short_model,
                left=None
                if cut is None
                else (left[MEMORY] - cut.takes[MEMORY], left[CORE] - cut.takes[CORE]),
                shortage=lacking,
            )
        )
    return Explanation(answer=answer, verdicts=tuple(verdicts))


def missing(devices: Sequence[Device], request: Request) -> str | None:
    """Return the sentence about a device that was named and does not exist, if there is one."""
    for ask in request.asks:
        if ask.device is None:
            continue
        meant = named(devices, ask.device)
        if not meant:
            return f"no device {ask.device!r} here: `hetero inventory` lists those there are"
        if len(meant) > 1:
            return f"device {ask.device!r} names {len(meant)} devices: give more of its UUID"
    return named_twice(devices, request)


def named_twice(devices: Sequence[Device], request: Request) -> str | None:
    """Return the sentence about a device that two asks name, if there is one."""
    taken: set[str] = set()
    for ask in request.asks:
        meant = [] if ask.device is None else named(devices, ask.device)
        for device in meant[:1]:
            if device.uuid in taken:
                return f"device {ask.device!r} is named twice: each ask needs a device of its own"
            taken.add(device.uuid)
    return None


def groups(devices: Sequence[Device], request: Request) -> list[list[Device]]:
    """Return the devices an allocation may be made of together, group by group, in their order."""
    pinned = any(ask.device is not None for ask in request.asks)
    split: dict[tuple[object, object], list[Device]] = {}
    for device in devices:
        key = (None if pinned else device.vendor, device.numa if request.numa else None)
        split.setdefault(key, []).append(device)
    return list(split.values())


def allocate(request: Request, chosen: Iterable[tuple[Device, Portion]]) -> Allocation:
    """Return the allocation made of these cuts."""
    return Allocation(
        pieces=tuple(
            DeviceAllocation(
                device=device.uuid,
                vendor=device.vendor,
                takes=dict(cut.takes),
                core=cut.core,
                template=cut.template,
                part=cut.part,
                sm=cut.sm,
            )
            for device, cut in chosen
        ),
        policy=request.policy,
        priority=request.priority,
        on_excess=request.on_excess,
        on_bypass=request.on_bypass,
        strict=request.strict,
        gang=request.gang,
    )


def _offers(devices: Sequence[Device], free: Free, request: Request) -> list[Offers]:
    """Return each ask's offers by UUID."""
    offers: list[Offers] = [
        {
            device.uuid: NOT_CHOSEN
            if ask.device is not None and device not in named(devices, ask.device)
            else offer(device, ask, request, free[device.uuid])
            for device in devices
        }
        for ask in request.asks
    ]
    return agreed(devices, offers)


def named(devices: Sequence[Device], name: str) -> list[Device]:
    """Return the devices `name` means: a position in the inventory, or the start of a UUID."""
    if name.isdecimal() and int(name) < len(devices):
        return [devices[int(name)]]
    return [d for d in devices if d.uuid.lower().startswith(name.lower())]


def _sets(
    group: list[Device], offers: list[Offers], request: Request
) -> Iterator[tuple[int, list[Device]]]:
    """Yield the sets of devices to match within, each with its links' weight, best first.

    A request that does not care about links has one set: the whole group.
    """
    if not request.links:
        yield 0, group
        return
    serving = [d for d in group if any(isinstance(o[d.uuid], Portion) for o in offers)]
    size = len(request.asks)
    weight = {(d.uuid, link.peer): link.weight for d in group for link in d.links}
    if size == 1:
        ranked = [(-sum(link.weight for link in d.links), [d]) for d in serving]
    elif comb(len(serving), size) <= _LINK_SETS:
        ranked = [
            (sum(weight.get((a.uuid, b.uuid), 0) for a, b in combinations(some, 2)), list(some))
            for some in combinations(serving, size)
        ]
    else:
        ranked = [(0, serving)]
    yield from sorted(ranked, key=lambda scored: -scored[0])


def _match(
    devices: list[Device],
    offers: list[Offers],
    free: Free,
    policy: PlacementPolicy,
) -> list[tuple[str, Portion]] | None:
    """Give every ask a device of its own, preferred by the policy; None if that is impossible.

    Augmenting paths make the answer exact: a small ask moves off a large card when a large ask
    needs it.
    """
    holder: dict[str, int] = {}
    ranked: list[list[str]] = []
    for offered in offers:
        serving = [
            (_cost(d, free, cut, policy), place, d.uuid)
            for place, d in enumerate(devices)
            if isinstance(cut := offered[d.uuid], Portion)
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

    if not all(place(ask, set()) for ask in range(len(offers))):
        return None
    of_ask = {ask: uuid for uuid, ask in holder.items()}
    chosen: list[tuple[str, Portion]] = []
    for ask, offered in enumerate(offers):
        cut = offered[of_ask[ask]]
        assert isinstance(cut, Portion)  # noqa: S101 - only serving devices were ranked
        chosen.append((of_ask[ask], cut))
    return chosen


def _verdict(offers: list[Portion | str]) -> str:
    """Return the device's verdict over all asks: that it fits one, or the first reason it gave."""
    reasons = [one for one in offers if isinstance(one, str)]
    if len(reasons) < len(offers):
        return FITS
    return next((reason for reason in reasons if reason != NOT_CHOSEN), NOT_CHOSEN)
