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
    obtainable_of,
)
from hetero.model.frozen import frozen
from hetero.model.rounding import Portion
from hetero.model.units import format_percent, rounded_memory
from hetero.placement.device_groups import agreed, sets
from hetero.placement.offer import (
    WHOLE_FOR_PART,
    given_whole,
    offer,
    shortage,
    taken_alone,
)
from hetero.placement.placement_policy import PlacementPolicy, binpack, cost_of

Free = Mapping[str, Mapping[str, int]]  # what is left of each counter, by UUID
Offers = dict[str, Portion | str]  # the portion or verdict of each device for one ask, by UUID
#: Verdicts that do not depend on the device's vendor.
_PLAIN = (FITS, NOT_CHOSEN)
#: The most sets of linked devices that are compared: 8 of 16 are 12,870.
_MOST_LINK_SETS = 20_000


@frozen(kw_only=True)
class Verdict:
    """The verdict of one device on a request, and its cost if it serves.

    The cost's first numbers are the downgrade level and the surplus (`offer.cut_of`), the others
    are the policy's. `position` is the device's place in the inventory. `left` are the bytes and
    the percent of the card's core that would be left of a device that serves, `shortage` the
    numbers of one that does not.
    """

    device: str
    verdict: str
    cost: tuple[int, ...] | None = None
    chosen: bool = False
    card: str = ""
    position: int = 0
    model: str = ""
    left: tuple[int, float] | None = None
    shortage: Shortage | None = None

    @property
    def sentence(self) -> str:
        """What the device says, in one line: `0 H200: 20 % of the core free, 50 % asked`."""
        sentence = self.verdict if self.shortage is None else self.shortage.on_device
        if self.left is not None:
            memory_bytes, core_percent = self.left
            left_text = (
                f"{rounded_memory(memory_bytes)} memory and {format_percent(core_percent)} of the "
                "core"
            )
            sentence += f", would have {left_text if memory_bytes else 'nothing'} left"
        return f"{self.card} {self.model}: {sentence}" + (" (taken)" if self.chosen else "")


@frozen(kw_only=True)
class _Choice:
    """Devices and cuts for all asks, and what choices of one group and of several go by."""

    cuts: list[tuple[str, Portion]]
    cost: tuple[int, ...]
    size_then_cost: tuple[int, ...]


@frozen(kw_only=True)
class Explanation:
    """What `fit` answers, with the verdict of every device."""

    answer: Allocation | Refusal
    verdicts: tuple[Verdict, ...]


def fit(
    inventory: Inventory, request: Request, *, policy: PlacementPolicy = binpack
) -> Allocation | Refusal:
    """Return the allocation that serves every ask on a device of its own, or why there is none.

    The devices of one allocation are of one vendor, the first (by the policy) that can serve all of
    it, unless the asks name their devices; and either all or none of them are partitioned. A
    request for a share gets a whole device, or a share without a limit, only where nothing else
    serves (`shares_first`).
    """
    return fit_into(inventory.devices, inventory.free(), request, policy=policy)


def fit_into(
    devices: Sequence[Device], free: Free, request: Request, *, policy: PlacementPolicy = binpack
) -> Allocation | Refusal:
    """Do as `fit` does, with `free` as what is left of the devices."""
    missing_device = missing(devices, request)
    if missing_device:
        return Refusal(wanted=len(request.asks), verdicts={}, missing=missing_device)
    offers_by_ask = _offers(devices, free, request)
    device_by_uuid = {device.uuid: device for device in devices}
    for least_downgraded_offers in shares_first(offers_by_ask):
        cuts = _cheapest(devices, free, request, least_downgraded_offers, policy)
        if cuts is not None:
            return allocate(request, [(device_by_uuid[uuid], cut) for uuid, cut in cuts])
    return _refusal(devices, free, request, offers_by_ask)


def shares_first(offers_by_ask: list[Offers]) -> Iterator[list[Offers]]:
    """Yield the offers of the least downgrade level, then also those of the next, at last all."""
    cuts = [cut for offers in offers_by_ask for cut in offers.values() if isinstance(cut, Portion)]
    for level in sorted({cut.downgrade for cut in cuts}):
        yield [
            {
                uuid: NOT_CHOSEN
                if isinstance(portion, Portion) and portion.downgrade > level
                else portion
                for uuid, portion in offers.items()
            }
            for offers in offers_by_ask
        ]


def _cheapest(
    devices: Sequence[Device],
    free: Free,
    request: Request,
    offers_by_ask: list[Offers],
    policy: PlacementPolicy,
) -> list[tuple[str, Portion]] | None:
    """Return the best-linked, then cheapest choice of devices for all asks; None without one.

    Of a vendor the smallest shapes are taken; which vendor's is for the policy.
    """
    best_by_vendor: dict[str, _Choice] = {}
    for group in groups(devices, request):
        choice = _cheapest_of(group, free, request, offers_by_ask, policy)
        if choice is None:
            continue
        best_choice = best_by_vendor.setdefault(group[0].vendor, choice)
        if choice.size_then_cost < best_choice.size_then_cost:
            best_by_vendor[group[0].vendor] = choice
    choice = min(best_by_vendor.values(), key=lambda choice: choice.cost, default=None)
    return None if choice is None else choice.cuts


def _cheapest_of(
    group: list[Device],
    free: Free,
    request: Request,
    offers_by_ask: list[Offers],
    policy: PlacementPolicy,
) -> _Choice | None:
    """Return the best-linked, then smallest, then cheapest choice among devices of one group."""
    device_by_uuid = {device.uuid: device for device in group}
    best_choice: _Choice | None = None
    for candidates in sets(group, offers_by_ask):
        for weight, linked in _sets(candidates, offers_by_ask, request):
            cuts = _match(linked, offers_by_ask, free, policy)
            if cuts is None:
                continue
            costs = (cost_of(device_by_uuid[uuid], cut, free[uuid], policy) for uuid, cut in cuts)
            downgrade, mib, percent, *policy_costs = map(sum, zip(*costs, strict=True))
            choice = _Choice(
                cuts=cuts,
                cost=(downgrade, -weight, *policy_costs),
                size_then_cost=(downgrade, -weight, mib, percent, *policy_costs),
            )
            if best_choice is None or choice.size_then_cost < best_choice.size_then_cost:
                best_choice = choice
            break
    return best_choice


def _refusal(
    devices: Sequence[Device],
    free: Free,
    request: Request,
    offers_by_ask: Sequence[Mapping[str, Portion | str]],
) -> Refusal:
    """Return why these offers do not serve; with several vendors, each vendor's devices apart."""
    findings = [(device, *_heard(device, free, request, offers_by_ask)) for device in devices]
    has_several_vendors = (
        len({device.vendor for device, verdict, _ in findings if verdict != NOT_CHOSEN}) > 1
    )
    verdicts: dict[str, str] = {}
    shortages: dict[str, Shortage] = {}
    for device, verdict, device_shortage in findings:
        if has_several_vendors and verdict not in _PLAIN:
            verdict = f"{device.vendor} {verdict}"
        verdicts[device.uuid] = verdict
        if device_shortage is not None:
            shortages[verdict] = device_shortage.nearer(shortages.get(verdict))
    device_count = len(request.asks)
    refusal = Refusal(wanted=device_count, verdicts=verdicts, shortages=shortages)
    fitting_devices = [device for device in devices if verdicts[device.uuid] == FITS]
    tells_partitioned = 1 < len({device.partitioned for device in fitting_devices})

    def group_of(device: Device) -> str:
        group_text = device.vendor
        if tells_partitioned:
            group_text += " partitioned" if device.partitioned else " not partitioned"
        return f"{group_text} on NUMA node {device.numa}" if request.numa else group_text

    fitting_by_group = Counter(map(group_of, fitting_devices))
    if len(fitting_devices) < device_count or max(fitting_by_group.values()) >= device_count:
        return refusal
    group_noun = "vendor, all partitioned or none," if tells_partitioned else "vendor"
    if request.numa:
        group_noun = f"{group_noun} on one NUMA node"
    return evolve(refusal, group=group_noun, fitting=dict(sorted(fitting_by_group.items())))


def _heard(
    device: Device,
    free: Free,
    request: Request,
    offers_by_ask: Sequence[Mapping[str, Portion | str]],
) -> tuple[str, Shortage | None]:
    """Return a device's verdict over all asks, with the numbers of the ask that it refuses."""
    verdict = _verdict([offers[device.uuid] for offers in offers_by_ask])
    if verdict == NOT_CHOSEN:  # the numbers are of what was asked of other devices
        return verdict, None
    for ask, offers in zip(request.asks, offers_by_ask, strict=True):
        if offers[device.uuid] == verdict:
            return verdict, shortage(device, ask, request, free[device.uuid])
    return verdict, None


def explain(
    inventory: Inventory,
    request: Request,
    *,
    policy: PlacementPolicy = binpack,
    answer: Allocation | Refusal | None = None,
) -> Explanation:
    """Return what `fit` answers, with every device's verdict and what it costs by the policy.

    `answer` is that answer where it was chosen by more than this inventory.
    """
    free = inventory.free()
    outcome = fit(inventory, request, policy=policy) if answer is None else answer
    taken_uuids = (
        {piece.device for piece in outcome.pieces} if isinstance(outcome, Allocation) else set()
    )
    offers_by_ask = _offers(inventory.devices, free, request)
    verdicts = []
    for position, device in enumerate(inventory.devices):
        verdict, device_shortage = _heard(device, free, request, offers_by_ask)
        device_offers = (offers[device.uuid] for offers in offers_by_ask)
        cut = next(
            (device_offer for device_offer in device_offers if isinstance(device_offer, Portion)),
            None,
        )
        verdicts.append(
            Verdict(
                device=device.uuid,
                verdict=verdict,
                cost=None if cut is None else cost_of(device, cut, free[device.uuid], policy),
                chosen=device.uuid in taken_uuids,
                card=device.name,
                position=position,
                model=device.short_model,
                left=None if cut is None else _left_by(device, free[device.uuid], cut),
                shortage=device_shortage,
            )
        )
    return Explanation(answer=outcome, verdicts=tuple(verdicts))


def _left_by(device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, float]:
    """Return the bytes and the percent of the card's core that can be had after a cut."""
    left_counters = {
        counter: amount - cut.takes.get(counter, 0) for counter, amount in free.items()
    }
    counters = obtainable_of(device, left_counters)
    return counters[MEMORY], 100 * counters[CORE] / device.of_card(CORE)


def missing(devices: Sequence[Device], request: Request) -> str | None:
    """Return the sentence about a device that was named and does not exist, if there is one."""
    for ask in request.asks:
        if ask.device is None:
            continue
        matching_devices = named(devices, ask.device)
        if not matching_devices:
            return f"no device {ask.device!r} here: `hetero inventory` lists those there are"
        if len(matching_devices) > 1:
            count = len(matching_devices)
            return f"device {ask.device!r} names {count} devices: give more of its UUID"
    return named_twice(devices, request)


def named_twice(devices: Sequence[Device], request: Request) -> str | None:
    """Return the sentence about a device that two asks name, if there is one."""
    named_uuids: set[str] = set()
    for ask in request.asks:
        matching_devices = [] if ask.device is None else named(devices, ask.device)
        for device in matching_devices[:1]:
            if device.uuid in named_uuids:
                return f"device {ask.device!r} is named twice: each ask needs a device of its own"
            named_uuids.add(device.uuid)
    return None


def groups(devices: Sequence[Device], request: Request) -> list[list[Device]]:
    """Return the devices an allocation may be made of together, group by group, in their order."""
    pinned = any(ask.device is not None for ask in request.asks)
    devices_by_key: dict[tuple[object, object], list[Device]] = {}
    for device in devices:
        group_key = (
            None if pinned else (device.vendor, device.partitioned),
            device.numa if request.numa else None,
        )
        devices_by_key.setdefault(group_key, []).append(device)
    return list(devices_by_key.values())


def allocate(request: Request, cuts: Iterable[tuple[Device, Portion]]) -> Allocation:
    """Return the allocation made of these cuts, one for each ask of the request in its order."""
    cuts = tuple(cuts)
    notes = (
        given_whole(device, count=len(cuts))
        if cut.downgrade == WHOLE_FOR_PART
        else taken_alone(device, ask, cut)
        for ask, (device, cut) in zip(request.asks, cuts, strict=True)
    )
    return Allocation(
        pieces=tuple(
            DeviceAllocation(
                device=device.uuid,
                vendor=device.vendor,
                takes=dict(cut.takes),
                core=cut.core_limit_units,
                template=cut.template,
                part=cut.part,
                sm_percent=cut.sm_percent,
            )
            for device, cut in cuts
        ),
        policy=request.policy,
        priority=request.priority,
        on_excess=request.on_excess,
        on_bypass=request.on_bypass,
        strict=request.strict,
        gang=request.gang,
        notes=tuple(dict.fromkeys(note for note in notes if note is not None)),
    )


def _offers(devices: Sequence[Device], free: Free, request: Request) -> list[Offers]:
    """Return each ask's offers by UUID."""
    offers_by_ask: list[Offers] = [
        {
            device.uuid: NOT_CHOSEN
            if ask.device is not None and device not in named(devices, ask.device)
            else offer(device, ask, request, free[device.uuid])
            for device in devices
        }
        for ask in request.asks
    ]
    return agreed(devices, offers_by_ask)


def named(
    devices: Sequence[Device], device_name: str, numbers: Sequence[int] | None = None
) -> list[Device]:
    """Return the devices that a name means.

    It is a number of the inventory, which is the position unless `numbers` has another,
    `vendor:index` by the index that its driver has, a UUID, or the start of one. An empty name, as
    of a variable that is not set, means none.
    """
    if not device_name:
        return []
    device_numbers = range(len(devices)) if numbers is None else numbers
    is_number = device_name.isascii() and device_name.isdecimal()
    if is_number and int(device_name) in device_numbers:
        return [devices[device_numbers.index(int(device_name))]]
    vendor_name, _, index_text = device_name.lower().rpartition(":")
    if index_text.isdecimal() and any(device.vendor == vendor_name for device in devices):
        return [
            device
            for device in devices
            if device.vendor == vendor_name and device.index == int(index_text)
        ]
    matching_devices = [
        device for device in devices if device.uuid.lower().startswith(device_name.lower())
    ]
    exact_devices = [device for device in matching_devices if len(device.uuid) == len(device_name)]
    return exact_devices or matching_devices


def _sets(
    candidates: list[Device], offers_by_ask: list[Offers], request: Request
) -> Iterator[tuple[int, list[Device]]]:
    """Yield the sets of devices to match within, each with its links' weight, best first.

    A request that does not care about links has one set: all candidates.
    """
    if not request.links:
        yield 0, candidates
        return
    serving_devices = [
        device
        for device in candidates
        if any(isinstance(offers[device.uuid], Portion) for offers in offers_by_ask)
    ]
    ask_count = len(request.asks)
    link_weights = {
        (device.uuid, link.peer): link.weight for device in candidates for link in device.links
    }
    if ask_count == 1:
        weighted_sets = [
            (-sum(link.weight for link in device.links), [device]) for device in serving_devices
        ]
    elif comb(len(serving_devices), ask_count) <= _MOST_LINK_SETS:
        weighted_sets = [
            (
                sum(
                    link_weights.get((first_device.uuid, second_device.uuid), 0)
                    for first_device, second_device in combinations(devices, 2)
                ),
                list(devices),
            )
            for devices in combinations(serving_devices, ask_count)
        ]
    else:
        weighted_sets = [(0, serving_devices)]
    yield from sorted(weighted_sets, key=lambda weight_and_set: -weight_and_set[0])


def _match(
    devices: list[Device],
    offers_by_ask: list[Offers],
    free: Free,
    policy: PlacementPolicy,
) -> list[tuple[str, Portion]] | None:
    """Give every ask a device of its own, preferred by the policy; None if that is impossible.

    Augmenting paths make the answer exact: a small ask moves off a large card when a large ask
    needs it.
    """
    ask_by_uuid: dict[str, int] = {}
    uuids_by_ask: list[list[str]] = []
    for offers in offers_by_ask:
        costs_and_uuids = [
            (cost_of(device, cut, free[device.uuid], policy), position, device.uuid)
            for position, device in enumerate(devices)
            if isinstance(cut := offers[device.uuid], Portion)
        ]
        uuids_by_ask.append([uuid for _, _, uuid in sorted(costs_and_uuids)])

    def assign(ask_index: int, tried_uuids: set[str]) -> bool:
        for uuid in uuids_by_ask[ask_index]:
            if uuid in tried_uuids:
                continue
            tried_uuids.add(uuid)
            if uuid not in ask_by_uuid or assign(ask_by_uuid[uuid], tried_uuids):
                ask_by_uuid[uuid] = ask_index
                return True
        return False

    if not all(assign(ask_index, set()) for ask_index in range(len(offers_by_ask))):
        return None
    uuid_by_ask = {ask_index: uuid for uuid, ask_index in ask_by_uuid.items()}
    cuts: list[tuple[str, Portion]] = []
    for ask_index, offers in enumerate(offers_by_ask):
        cut = offers[uuid_by_ask[ask_index]]
        assert isinstance(cut, Portion)  # noqa: S101 - only serving devices were ranked
        cuts.append((uuid_by_ask[ask_index], cut))
    return cuts


def _verdict(device_offers: list[Portion | str]) -> str:
    """Return the device's verdict over all asks: that it fits one, or the first reason it gave."""
    reasons = [device_offer for device_offer in device_offers if isinstance(device_offer, str)]
    if len(reasons) < len(device_offers):
        return FITS
    return next((reason for reason in reasons if reason != NOT_CHOSEN), NOT_CHOSEN)
