"""Places all containers of a pod on one node, if there is any way.

That is exact for pods of a few containers. With many containers of different sizes the search would
not end: it stops after a number of tries, and the refusal says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import product

from attrs import define, field

from hetero.model import Allocation, Ask, Counters, Device, Refusal, Request, occupancies
from hetero.model.rounding import Portion
from hetero.placement.cluster import PlacedContainer, PlacedPod, Placement
from hetero.placement.device_groups import owed
from hetero.placement.handing_on import left_for_init, taken_by_receivers, with_common_slices
from hetero.placement.match import allocate, fit_into, groups, missing, named
from hetero.placement.offer import offer
from hetero.placement.placement_policy import PlacementPolicy, binpack, cost_of

#: How often a device is tried for a request until a pod is given up: some 25 ms.
MOST_TRIES = 512

_Free = dict[str, dict[str, int]]
_Found = list[Allocation]


class _Phase(Enum):
    """The containers whose allocations a search chooses; then the next phase begins."""

    SIDECARS = auto()
    CONTAINERS = auto()


@define(eq=False)
class _Search:
    """What the search of one pod on one node has left and knows."""

    #: How many tries of a device for a request are left, of all requests together.
    tries_left: int = MOST_TRIES
    #: States from which no way was found: the phase, the number of requests that remained, and
    #: what was left.
    failed: set[object] = field(factory=set)
    #: Whether init containers are to be on cards of main containers, which then hold no others.
    joins_init: bool = False
    #: The allocations chosen so far for main containers, and whether those of init containers
    #: depend on more of them than they leave: they may have the slices of these, or join them.
    chosen_main: list[Allocation] = field(factory=list)
    init_depends_on_main: bool = False


def place_pod(
    node_name: str,
    devices: Sequence[Device],
    free: Mapping[str, Mapping[str, int]],
    host_free: Counters,
    pod: PlacedPod,
    *,
    policy: PlacementPolicy = binpack,
    most_tries: int = MOST_TRIES,
) -> Placement | Refusal:
    """Return the pod's placement on node `node_name`, or the first reason why it cannot be there.

    `free` is what is left of each device, `host_free` what is left of the node's own
    counters. A device is tried at most `most_tries` times for a request.
    """
    host_needs = pod.host()
    for counter, amount in host_needs.items():
        if host_free.get(counter, amount) < amount:
            return Refusal(wanted=1, verdicts={node_name: f"lack host {counter}"}, of="node")
    sidecars, main, init = (
        _asking(containers) for containers in (pod.sidecars, pod.containers, pod.init)
    )
    found_allocations, allocations = None, None
    # A pod keeps the card of an init container until it ends: so one that the others have, if any.
    for joins_init in (True, False) if _may_join(devices, free, init, main) else (False,):
        search = _Search(tries_left=most_tries, joins_init=joins_init)
        found_allocations = _place_pod(devices, free, sidecars, main, init, policy, search)
        if found_allocations is not None:
            break
    if found_allocations is not None:
        remaining = iter(found_allocations)
        containers = [
            (kind, None if container.request is None else next(remaining))
            for kind, container in pod.kinds_and_containers
        ]
        allocations = with_common_slices(containers, devices)
    if allocations is None:
        return _refusal(
            devices,
            free,
            [*sidecars, *main, *init],
            policy,
            tried_count=most_tries if search.tries_left <= 0 else None,
        )
    return standing(pod, node_name, allocations)


def standing(
    pod: PlacedPod, node_name: str, allocations: tuple[Allocation | None, ...]
) -> Placement:
    """Return the placement of these allocations: one for each of `pod.kinds_and_containers`."""
    kinds_and_allocations = (
        (kind, allocation)
        for (kind, _), allocation in zip(pod.kinds_and_containers, allocations, strict=True)
        if allocation is not None
    )
    return Placement(
        node=node_name,
        pod=pod,
        allocations=allocations,
        holds=occupancies(kinds_and_allocations),
        host=pod.host(),
    )


def _may_join(
    devices: Sequence[Device],
    free: Mapping[str, Mapping[str, int]],
    init: Iterable[Request],
    main: Sequence[Request],
) -> bool:
    """Return whether init containers may have room on cards of main ones; what is soon seen."""

    def serves(device: Device, request: Request) -> bool:
        return any(
            isinstance(offer(device, ask, request, free[device.uuid]), Portion)
            for ask in dict.fromkeys(request.asks)
        )

    main_devices = [
        device for device in devices if any(serves(device, request) for request in main)
    ]
    most_cards = sum(len(request.asks) for request in main)
    joining = [
        len(request.asks) <= most_cards and any(serves(device, request) for device in main_devices)
        for request in init
    ]
    return bool(joining) and all(joining)


def _asking(containers: Iterable[PlacedContainer]) -> list[Request]:
    return [container.request for container in containers if container.request is not None]


def _place_pod(
    devices: Sequence[Device],
    free: Mapping[str, Mapping[str, int]],
    sidecar_requests: list[Request],
    main_requests: list[Request],
    init_requests: list[Request],
    policy: PlacementPolicy,
    search: _Search,
) -> _Found | None:
    """Return the allocations of sidecars, containers and init containers, in this order."""
    requests = [*sidecar_requests, *main_requests, *init_requests]
    if len(requests) == 1:  # the common case, which also knows about links
        allocation = fit_into(devices, free, requests[0], policy=policy)
        return [allocation] if isinstance(allocation, Allocation) else None

    hands_on_slices = bool(init_requests) and any(device.cut_at_admission for device in devices)
    search.init_depends_on_main = hands_on_slices or search.joins_init

    def after_sidecars(free_after_sidecars: _Free) -> _Found | None:
        free_before_main = _copy(free_after_sidecars)
        init_allocations = _fit_each(devices, free_before_main, init_requests, policy)
        if init_allocations is None:
            return None

        def after_main(free_after_main: _Free) -> _Found | None:
            if not search.init_depends_on_main:
                return init_allocations
            main = search.chosen_main
            left: Mapping[str, Mapping[str, int]] = free_before_main
            if hands_on_slices:
                left = left_for_init(devices, free_before_main, free_after_main, main)
            joined_uuids = {piece.device for allocation in main for piece in allocation.pieces}
            init_devices = [
                device for device in devices if device.uuid in joined_uuids or not search.joins_init
            ]
            return _fit_each(init_devices, left, init_requests, policy)

        return _search(
            devices,
            free_after_sidecars,
            main_requests,
            policy,
            after_main,
            search,
            phase=_Phase.CONTAINERS,
        )

    return _search(
        devices,
        _copy(free),
        sidecar_requests,
        policy,
        after_sidecars,
        search,
        phase=_Phase.SIDECARS,
    )


def _copy(free: Mapping[str, Mapping[str, int]]) -> _Free:
    return {uuid: dict(counters) for uuid, counters in free.items()}


def _fit_each(
    devices: Sequence[Device],
    free: Mapping[str, Mapping[str, int]],
    requests: Iterable[Request],
    policy: PlacementPolicy,
) -> _Found | None:
    """Return an allocation for each request as if it were the only one; None if one has none."""
    allocations = []
    for request in requests:
        allocation = fit_into(devices, free, request, policy=policy)
        if isinstance(allocation, Refusal):
            return None
        allocations.append(allocation)
    return allocations


def _search(
    devices: Sequence[Device],
    free: _Free,
    requests: list[Request],
    policy: PlacementPolicy,
    place_later_phases: Callable[[_Free], _Found | None],
    search: _Search,
    *,
    phase: _Phase,
) -> _Found | None:
    """Return one allocation per request, followed by what `place_later_phases` returns.

    Tries every way, the policy's favourite first, while tries are left. Equal devices are
    tried once, and a state that failed is not tried again.
    """
    if not requests:
        return place_later_phases(free)
    names_devices = any(
        request.uuid.include
        or request.uuid.exclude
        or request.numa
        or any(ask.device for ask in request.asks)
        for request in requests
    )
    search_state = (phase, len(requests), _left_of(devices, free, names_devices=names_devices))
    if missing(devices, requests[0]) or search_state in search.failed:
        return None
    allocations = _try(
        devices,
        free,
        requests,
        policy,
        place_later_phases,
        search,
        phase=phase,
        devices_differ=names_devices,
    )
    if allocations is None and not search.init_depends_on_main:
        search.failed.add(search_state)
    return allocations


def _try(
    devices: Sequence[Device],
    free: _Free,
    requests: list[Request],
    policy: PlacementPolicy,
    place_later_phases: Callable[[_Free], _Found | None],
    search: _Search,
    *,
    phase: _Phase,
    devices_differ: bool,
) -> _Found | None:
    """Do what `_search` does, where it was not done before."""
    request, other_requests = requests[0], requests[1:]

    def place_asks(
        group: list[Device], chosen_cuts: list[tuple[Device, Portion]], downgrade_level: int
    ) -> _Found | None:
        if owed(devices, chosen_cuts) > len(request.asks) - len(chosen_cuts):
            return None
        if len(chosen_cuts) == len(request.asks):
            allocation = allocate(request, chosen_cuts)
            is_main = phase is _Phase.CONTAINERS
            search.chosen_main += [allocation] * is_main
            following = _search(
                devices, free, other_requests, policy, place_later_phases, search, phase=phase
            )
            if is_main:
                search.chosen_main.pop()
            return None if following is None else [allocation, *following]
        ask = request.asks[len(chosen_cuts)]
        taken_uuids = {device.uuid for device, _ in chosen_cuts}
        allowed_devices = group if ask.device is None else named(devices, ask.device)
        candidates = [
            device
            for device in group
            if device.uuid not in taken_uuids and device in allowed_devices
        ]
        ways = _ways(
            candidates,
            free,
            ask,
            request,
            policy,
            downgrade_level=downgrade_level,
            names_devices=devices_differ,
            received=taken_by_receivers(search.chosen_main) if search.init_depends_on_main else {},
        )
        for device, cut in ways:
            if search.tries_left <= 0:
                return None
            search.tries_left -= 1
            _add(free[device.uuid], cut.takes, direction=-1)
            allocations = place_asks(group, [*chosen_cuts, (device, cut)], downgrade_level)
            _add(free[device.uuid], cut.takes, direction=1)
            if allocations is not None:
                return allocations
        return None

    for downgrade_level, group in product(
        _levels(devices, free, request), _smallest_first(devices, free, request)
    ):
        allocations = place_asks(group, [], downgrade_level)
        if allocations is not None:
            return allocations
    return None


def _left_of(devices: Iterable[Device], free: _Free, *, names_devices: bool) -> object:
    """Return what is left of devices, the same value for an exchange of equal devices."""
    if names_devices:
        return tuple((device.uuid, *free[device.uuid].values()) for device in devices)
    free_counters = (
        (device.vendor, device.model, device.group or "", *free[device.uuid].values())
        for device in devices
    )
    return tuple(sorted(free_counters))


def _levels(devices: Sequence[Device], free: _Free, request: Request) -> list[int]:
    """Return the downgrade levels at which devices serve the request, the least first."""
    cuts = (
        offer(device, ask, request, free[device.uuid])
        for ask in dict.fromkeys(request.asks)
        for device in devices
    )
    return sorted({cut.downgrade for cut in cuts if isinstance(cut, Portion)})


def _smallest_first(devices: Sequence[Device], free: _Free, request: Request) -> list[list[Device]]:
    """Return the groups of devices, those of one vendor by the smallest shape that they have."""
    device_groups = groups(devices, request)
    if len(device_groups) < 2:
        return device_groups
    vendors = [group[0].vendor for group in device_groups]

    def key(group: list[Device]) -> tuple[int, tuple[int, ...]]:
        cuts = (offer(device, request.asks[0], request, free[device.uuid]) for device in group)
        shapes = ((cut.downgrade, *cut.surplus) for cut in cuts if isinstance(cut, Portion))
        return vendors.index(group[0].vendor), min(shapes, default=())

    return sorted(device_groups, key=key)


def _ways(
    devices: Iterable[Device],
    free: _Free,
    ask: Ask,
    request: Request,
    policy: PlacementPolicy,
    *,
    downgrade_level: int,
    names_devices: bool,
    received: Mapping[str, Counters],
) -> list[tuple[Device, Portion]]:
    """Return the devices that can serve the ask up to a downgrade level, the cheapest first.

    One stands for all equal devices, unless requests tell devices apart. Devices of which as much
    is left differ in what init containers could receive of them: `received`, by UUID.
    """
    ranked_cuts = []
    tried_kinds: set[object] = set()
    for position, device in enumerate(devices):
        device_free = free[device.uuid]
        cut = offer(device, ask, request, device_free)
        kind_key: tuple[object, ...] = (device.uuid,)
        if not names_devices:
            receives = tuple(received[device.uuid].items()) if device.uuid in received else ()
            kind_key = (device.vendor, device.model, device.group, receives, *device_free.values())
        if (
            isinstance(cut, Portion)
            and cut.downgrade <= downgrade_level
            and kind_key not in tried_kinds
        ):
            tried_kinds.add(kind_key)
            ranked_cuts.append((cost_of(device, cut, device_free, policy), position, device, cut))
    return [
        (device, cut)
        for _, _, device, cut in sorted(ranked_cuts, key=lambda ranked_cut: ranked_cut[:2])
    ]


def _add(counters: dict[str, int], amounts: Counters, *, direction: int) -> None:
    for counter, amount in amounts.items():
        counters[counter] = counters.get(counter, 0) + direction * amount


def _refusal(
    devices: Sequence[Device],
    free: Mapping[str, Mapping[str, int]],
    requests: list[Request],
    policy: PlacementPolicy,
    *,
    tried_count: int | None,
) -> Refusal:
    """Return why not: the first request that fails alone, else that they fail only together."""
    for request in requests:
        allocation = fit_into(devices, free, request, policy=policy)
        if isinstance(allocation, Refusal):
            return allocation
    reason = "have no room for all containers at once"
    if tried_count is not None:
        reason = f"have no room for all containers at once in {tried_count} tries"
    verdicts = {device.uuid: reason for device in devices}
    return Refusal(wanted=len(requests), verdicts=verdicts)
