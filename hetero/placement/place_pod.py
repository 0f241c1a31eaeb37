"""Places all containers of a pod on one node: if there is a way, one is found.

That is exact for pods of a few containers. Who asks for many, of different sizes, poses a puzzle
that would take for ever: of its ways so many are tried, and that is what the refusal says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import product

from attrs import define, field

from hetero.model import Allocation, Ask, Counters, Device, Refusal, Request
from hetero.model.rounding import Portion
from hetero.placement.cluster import DeviceUsage, PlacedContainer, PlacedPod, Placement, total
from hetero.placement.device_groups import owed
from hetero.placement.match import allocate, fit_into, groups, missing, named
from hetero.placement.offer import offer
from hetero.placement.placement_policy import PlacementPolicy, binpack

#: How often a device is tried for a request until a pod is given up: some 25 ms.
MOST_TRIES = 512

_Free = dict[str, dict[str, int]]
_Found = list[Allocation]


class _Phase(Enum):
    """Whose allocations a search chooses; then the next phase begins."""

    SIDECARS = auto()
    CONTAINERS = auto()


@define(eq=False)
class _Tries:
    """How many are left, and from where on no way was found."""

    left: int = MOST_TRIES
    #: By the phase, the requests that remained and the room that was left.
    failed: set[object] = field(factory=set)


def place_pod(
    name: str,
    devices: Sequence[Device],
    free: Mapping[str, Mapping[str, int]],
    host: Counters,
    pod: PlacedPod,
    *,
    policy: PlacementPolicy = binpack,
    most: int = MOST_TRIES,
) -> Placement | Refusal:
    """Return the pod's placement on node `name`, or the first reason why it cannot be there.

    `free` is what is left of each device, `host` what is left of the node's own counters. A device
    is tried `most` times for a request.
    """
    wants = pod.host()
    for counter, amount in wants.items():
        if host.get(counter, amount) < amount:
            return Refusal(wanted=1, verdicts={name: f"lack host {counter}"}, of="node")
    sidecars, main, first = (_asking(c) for c in (pod.sidecars, pod.containers, pod.init))
    tries = _Tries(left=most)
    placed = _place_pod(devices, free, sidecars, main, first, policy, tries)
    if placed is None:
        requests = [*sidecars, *main, *first]
        return _refusal(devices, free, requests, policy, tried=most if tries.left <= 0 else None)
    left = iter(placed)
    allocations = tuple(
        None if container.request is None else next(left)
        for container in (*pod.sidecars, *pod.containers, *pod.init)
    )
    return standing(pod, name, allocations)


def standing(pod: PlacedPod, node: str, allocations: tuple[Allocation | None, ...]) -> Placement:
    """Return the placement that these allocations make, sidecars first and init containers last."""
    ends = (len(pod.sidecars), len(pod.sidecars) + len(pod.containers))
    return Placement(
        node=node,
        pod=pod,
        allocations=allocations,
        holds=holds(allocations[: ends[0]], allocations[slice(*ends)], allocations[ends[1] :]),
        host=pod.host(),
    )


def _asking(containers: Iterable[PlacedContainer]) -> list[Request]:
    return [container.request for container in containers if container.request is not None]


def _place_pod(
    devices: Sequence[Device],
    free: Mapping[str, Mapping[str, int]],
    sidecars: list[Request],
    main: list[Request],
    first: list[Request],
    policy: PlacementPolicy,
    tries: _Tries,
) -> _Found | None:
    """Return the allocations of sidecars, containers and init containers, in this order."""
    requests = [*sidecars, *main, *first]
    if len(requests) == 1:  # the common case, which also knows about links
        answer = fit_into(devices, free, requests[0], policy=policy)
        return [answer] if isinstance(answer, Allocation) else None

    def after_sidecars(left: _Free) -> _Found | None:
        inits = [fit_into(devices, left, request, policy=policy) for request in first]
        if any(isinstance(one, Refusal) for one in inits):
            return None
        together = _search(
            devices, left, main, policy, lambda _: [], tries, phase=_Phase.CONTAINERS
        )
        if together is None:
            return None
        return together + [one for one in inits if isinstance(one, Allocation)]

    copy = {uuid: dict(counters) for uuid, counters in free.items()}
    return _search(devices, copy, sidecars, policy, after_sidecars, tries, phase=_Phase.SIDECARS)


def _search(
    devices: Sequence[Device],
    free: _Free,
    requests: list[Request],
    policy: PlacementPolicy,
    then: Callable[[_Free], _Found | None],
    tries: _Tries,
    *,
    phase: _Phase,
) -> _Found | None:
    """Return one allocation per request and what `then` makes of the room left after them.

    Tries every way, the policy's favourite first, as far as `tries` allow; devices that are alike
    are tried once, and what failed from the same room on is not tried again.
    """
    if not requests:
        return then(free)
    told_apart = any(
        r.uuid.include or r.uuid.exclude or r.numa or any(a.device for a in r.asks)
        for r in requests
    )
    start = (phase, len(requests), _left_of(devices, free, told_apart=told_apart))
    if missing(devices, requests[0]) or start in tries.failed:
        return None
    placed = _try(devices, free, requests, policy, then, tries, phase=phase, told_apart=told_apart)
    if placed is None:
        tries.failed.add(start)
    return placed


def _try(
    devices: Sequence[Device],
    free: _Free,
    requests: list[Request],
    policy: PlacementPolicy,
    then: Callable[[_Free], _Found | None],
    tries: _Tries,
    *,
    phase: _Phase,
    told_apart: bool,
) -> _Found | None:
    """Do what `_search` does, where it was not done before."""
    request, rest = requests[0], requests[1:]

    def place(
        group: list[Device], chosen: list[tuple[Device, Portion]], most: int
    ) -> _Found | None:
        if owed(devices, chosen) > len(request.asks) - len(chosen):
            return None
        if len(chosen) == len(request.asks):
            after = _search(devices, free, rest, policy, then, tries, phase=phase)
            return None if after is None else [allocate(request, chosen), *after]
        ask = request.asks[len(chosen)]
        taken = {device.uuid for device, _ in chosen}
        allowed = group if ask.device is None else named(devices, ask.device)
        left = [d for d in group if d.uuid not in taken and d in allowed]
        ways = _ways(left, free, ask, request, policy, most=most, told_apart=told_apart)
        for device, cut in ways:
            if tries.left <= 0:
                return None
            tries.left -= 1
            _add(free[device.uuid], cut.takes, times=-1)
            placed = place(group, [*chosen, (device, cut)], most)
            _add(free[device.uuid], cut.takes, times=1)
            if placed is not None:
                return placed
        return None

    for most, group in product(_levels(devices, free, request), groups(devices, request)):
        placed = place(group, [], most)
        if placed is not None:
            return placed
    return None


def _left_of(devices: Iterable[Device], free: _Free, *, told_apart: bool) -> object:
    """Return what is left of devices: as much of others that are alike is the same room."""
    if told_apart:
        return tuple((device.uuid, *free[device.uuid].values()) for device in devices)
    left = ((d.vendor, d.model, d.group or "", *free[d.uuid].values()) for d in devices)
    return tuple(sorted(left))


def _levels(devices: Sequence[Device], free: _Free, request: Request) -> list[int]:
    """Return what devices concede of the request, the least first."""
    cuts = (
        offer(device, ask, request, free[device.uuid])
        for ask in dict.fromkeys(request.asks)
        for device in devices
    )
    return sorted({cut.downgrade for cut in cuts if isinstance(cut, Portion)})


def _ways(
    devices: Iterable[Device],
    free: _Free,
    ask: Ask,
    request: Request,
    policy: PlacementPolicy,
    *,
    most: int,
    told_apart: bool,
) -> list[tuple[Device, Portion]]:
    """Return the devices that can serve the ask and concede at most `most`, the cheapest first.

    One stands for all that are alike, unless they are told apart.
    """
    ranked = []
    tried: set[object] = set()
    for position, device in enumerate(devices):
        left = free[device.uuid]
        cut = offer(device, ask, request, left)
        alike = (device.vendor, device.model, device.group, *left.values())
        alike = (device.uuid,) if told_apart else alike
        if isinstance(cut, Portion) and cut.downgrade <= most and alike not in tried:
            tried.add(alike)
            ranked.append(((cut.downgrade, *policy(device, left, cut)), position, device, cut))
    return [(device, cut) for _, _, device, cut in sorted(ranked, key=lambda option: option[:2])]


def _add(counters: dict[str, int], amounts: Counters, *, times: int) -> None:
    for name, amount in amounts.items():
        counters[name] = counters.get(name, 0) + times * amount


def holds(
    sidecars: Iterable[Allocation | None],
    main: Iterable[Allocation | None],
    first: Iterable[Allocation | None],
) -> tuple[DeviceUsage, ...]:
    """Return per device sidecars + max(containers together, each init container)."""
    base, most = _per_device(sidecars), _per_device(main)
    for allocation in first:
        for uuid, takes in _per_device((allocation,)).items():
            held = most.setdefault(uuid, {})
            for name, amount in takes.items():
                held[name] = max(held.get(name, 0), amount)
    return tuple(
        DeviceUsage(device=uuid, takes=total((base.get(uuid, {}), most.get(uuid, {}))))
        for uuid in dict.fromkeys((*base, *most))
    )


def _per_device(allocations: Iterable[Allocation | None]) -> dict[str, dict[str, int]]:
    held: dict[str, dict[str, int]] = {}
    for allocation in allocations:
        for piece in allocation.pieces if allocation else ():
            held[piece.device] = total((held.get(piece.device, {}), piece.takes))
    return held


def _refusal(
    devices: Sequence[Device],
    free: Mapping[str, Mapping[str, int]],
    requests: list[Request],
    policy: PlacementPolicy,
    *,
    tried: int | None,
) -> Refusal:
    """Return why not: the first request that fails alone, else that they fail only together."""
    for request in requests:
        answer = fit_into(devices, free, request, policy=policy)
        if isinstance(answer, Refusal):
            return answer
    why = "have no room for all containers at once"
    if tried is not None:
        why = f"have no room for all containers at once in {tried} tries"
    verdicts = {device.uuid: why for device in devices}
    return Refusal(wanted=len(requests), verdicts=verdicts)
