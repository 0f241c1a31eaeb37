"""How a node's devices look to kube-scheduler: what of each may be allocated, and in which steps.

A fractional device is one DRA device that many claims share, each consuming memory, cores and
slots of it. A device that divides by a menu is as many DRA devices as its templates fit, and the
whole one; they consume shared counters, so that kube-scheduler never gives out two that overlap.
Capacities and counters are those of the ledger: what kube-scheduler gives fits on the node.

The limits are those of resource.k8s.io/v1 (k8s.io/api/resource/v1/types.go). Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import frozen

from hetero.kube.objects.kinds import Plain
from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Device,
    Fractional,
    Grain,
    Ladder,
    Step,
    Template,
    Templated,
)
from hetero.plugin.discovery import PCIE

DRIVER = "hetero.io"
#: What a claim may say of a shared device, and the counter of ours that it is.
CAPACITIES = {"memory": MEMORY, "cores": CORE, "slots": SLOTS}
#: Devices of a slice, where any consumes counters or is tainted; counter sets of a slice; counter
#: sets of a device; entries of a ladder; characters of an attribute.
_DEVICES, _SETS, _SETS_EACH, _LADDER, _TEXT = 64, 8, 2, 10, 64
#: Characters of a taint's value.
_VALUE = 63
#: Of the 63 characters of a name, what the device has, and the kind of a part of it.
_OWN_NAME, _KIND = 40, 13
#: The taint of a device that is not well; its value is what is wrong.
UNHEALTHY = f"{DRIVER}/unhealthy"


@frozen(kw_only=True)
class Offer:
    """One DRA device: `name` in its pool, and what of which devices it is.

    `template` is the entry of a menu that it is; None: all of `devices`, or what a claim consumes
    where many share it. Several devices are the parts of one module.
    """

    name: str
    devices: tuple[Device, ...]
    template: Template | None = None

    @property
    def shared(self) -> bool:
        """Whether many claims consume parts of it."""
        return self.template is None and isinstance(self.devices[0].granularity, Fractional)


def offers(devices: Iterable[Device]) -> dict[str, Offer]:
    """Return what the devices of a node offer, by name, in the order of the devices."""
    offered: list[Offer] = []
    modules: dict[str, list[Device]] = {}
    for device in devices:
        if isinstance(device.granularity, Templated):
            offered += _templates(device, device.granularity)
            if device.granularity.whole:
                modules.setdefault(device.group or device.uuid, []).append(device)
        else:
            offered.append(Offer(name=device_name(device.uuid), devices=(device,)))
    for parts in modules.values():
        if len(parts) <= _SETS_EACH:
            offered.append(Offer(name=device_name(parts[0].uuid), devices=tuple(parts)))
    return {offer.name: offer for offer in offered}


def _templates(device: Device, granularity: Templated) -> Iterator[Offer]:
    """Yield as many of each entry of a device's menu as fit; one that is there already is one."""
    numbers: Counter[str] = Counter()
    for template in granularity.menu:
        kind = f"{device_name(device.uuid)}-{_label(template.name)[:_KIND]}"
        for _ in range(_fits(device, template)):
            number = str(numbers[kind]) if template.part is None else _digest(template.part)[:8]
            numbers[kind] += 1
            yield Offer(name=f"{kind}-{number}", devices=(device,), template=template)


def slices(
    devices: Iterable[Device],
    *,
    node: str,
    resources: Mapping[str, Sequence[str]],
    roots: Mapping[str, str],
    effect: str = "NoSchedule",
) -> list[Plain]:
    """Return the specs of a node's pool of slices; each lacks its generation.

    `resources` are the extended resources that devices and templates are counted by, by UUID or
    `UUID/template`, `roots` the PCIe roots of devices, by UUID, `effect` that of the taint of what
    is not well. At least one slice: a pool is known to be empty.
    """
    given = tuple(devices)
    offered = offers(given)
    linked = _linked(given)
    sets = [_counter_set(one) for one in given if isinstance(one.granularity, Templated)]
    entries = [
        _entry(offer, resources=resources, roots=roots, linked=linked, effect=effect)
        for offer in offered.values()
    ]
    contents: list[Plain] = [
        *({"sharedCounters": part} for part in _parts(sets, _SETS)),
        *({"devices": part} for part in _parts(entries, _DEVICES)),
    ]
    contents = contents or [{}]
    pool = {"name": node, "resourceSliceCount": len(contents)}
    return [{"driver": DRIVER, "nodeName": node, "pool": pool, **one} for one in contents]


def device_name(uuid: str) -> str:
    """Return the name of a device in its pool: its UUID as far as that is a DNS label."""
    text = re.sub("[^a-z0-9]+", "-", uuid.lower()).strip("-")
    if text == uuid.lower() and len(text) <= _OWN_NAME:
        return text
    return f"{text[: _OWN_NAME - 13].rstrip('-')}-{_digest(uuid)}".lstrip("-")


def published(device: Device) -> dict[str, int]:
    """Return how much of each capacity a shared device is published with.

    That is what its grains can give: a rest below one step is nobody's, nor is what its driver
    keeps for itself.
    """
    assert isinstance(device.granularity, Fractional)  # noqa: S101 - what `shared` says
    return {
        "memory": _whole_steps(_obtainable(device, MEMORY), device.granularity.memory),
        "cores": _whole_steps(device.capacity[CORE], device.granularity.core),
        "slots": device.capacity[SLOTS],
    }


def _entry(
    offer: Offer,
    *,
    resources: Mapping[str, Sequence[str]],
    roots: Mapping[str, str],
    linked: Mapping[str, str],
    effect: str,
) -> Plain:
    """Return one device of a slice."""
    first = offer.devices[0]
    template = offer.template
    counted = resources.get(f"{first.uuid}/{template.name}" if template else first.uuid, ())
    values: dict[str, str | int | bool | None] = {
        "vendor": first.vendor,
        "model": first.model,
        "uuid": first.uuid,
        "index": first.index,
        "enforcement": first.enforcement.value,
        "driverVersion": first.attributes.get("driver"),
        "numaNode": first.numa,
        "linkGroup": linked.get(first.uuid),
        "template": template.name if template else None,
        **dict(zip(("resource", "alias"), counted, strict=False)),
        "reservedMemory": sum(map(_reserved, offer.devices)) or None,
        "countsContext": first.enforcement.by_limiter,
        "resource.kubernetes.io/pciBusID": first.pci,
        "resource.kubernetes.io/pcieRoot": roots.get(first.uuid),
    }
    made: Plain = {"name": offer.name, "attributes": _attributes(values)}
    if offer.shared:
        made |= {"allowMultipleAllocations": True, "capacity": _consumable(first)}
    else:
        made["capacity"] = {
            name: {"value": amount_of(of, sum(_has(offer, one, of) for one in offer.devices))}
            for name, of in CAPACITIES.items()
        }
    if isinstance(first.granularity, Templated):
        made["consumesCounters"] = [
            {"counterSet": device_name(one.uuid), "counters": _counters(_takes(offer, one))}
            for one in offer.devices
        ]
    sick = next((one for one in offer.devices if not one.usable), None)
    if sick is not None:
        made["attributes"] |= _attributes({"health": sick.health})
        taint = {"key": UNHEALTHY, "value": _value(sick.health or ""), "effect": effect}
        made["taints"] = [{name: text for name, text in taint.items() if text}]
    return made


def _consumable(device: Device) -> Plain:
    """Return the capacity of a shared device, with the policies that claims consume it by.

    A claim that names no memory gets all of it, and one that names no cores has no limit of them,
    where the device can be cut so.
    """
    assert isinstance(device.granularity, Fractional)  # noqa: S101 - what `shared` says
    total = published(device)
    grains = device.granularity
    unlimited = 0 if not grains.together else None
    most = _whole_steps(device.of_card(CORE), grains.core)
    return {
        "memory": _capacity(MEMORY, total["memory"], grains.memory),
        "cores": _capacity(CORE, total["cores"], grains.core, default=unlimited, most=most),
        "slots": _capacity(SLOTS, total["slots"], Step(1), default=1),
    }


def _capacity(
    counter: str, total: int, grain: Grain, *, default: int | None = None, most: int | None = None
) -> Plain:
    """Return a capacity of which claims consume by a grain; `default` None: all of a device."""

    def amount_text(amount: int) -> str:
        return amount_of(counter, amount)

    most = total if most is None else most
    usual = most if default is None else default
    policy: Plain = {"default": amount_text(usual)}
    match grain:
        case Step(of) if total >= 2 * of:
            least = min(of, usual)
            policy["validRange"] = {
                "min": amount_text(least),
                "max": amount_text(most),
                "step": amount_text(of),
            }
        case Ladder(sizes):
            steps = sorted({usual, most, *(size for size in sizes if size < most)})
            policy["validValues"] = [amount_text(size) for size in steps[-_LADDER:]]
        case _:
            policy["validValues"] = [amount_text(size) for size in sorted({usual, most})]
    return {"value": amount_text(total), "requestPolicy": policy}


def amount_of(counter: str, amount: int) -> str:
    """Return an amount as the API itself writes it, so that what it has can be compared."""
    size, suffixes = (1024, ("Ki", "Mi", "Gi", "Ti", "Pi"))
    if counter != MEMORY:
        size, suffixes = (1000, ("k", "M", "G", "T", "P"))
    text = ""
    for suffix in suffixes:
        if amount == 0 or amount % size:
            break
        amount, text = amount // size, suffix
    return f"{amount}{text}"


def _whole_steps(total: int, grain: Grain) -> int:
    return total // grain.of * grain.of if isinstance(grain, Step) and total >= grain.of else total


def _takes(offer: Offer, device: Device) -> Mapping[str, int]:
    return {**offer.template.takes, SLOTS: 1} if offer.template else device.capacity


def _has(offer: Offer, device: Device, counter: str) -> int:
    """Return how much of a counter who gets all that is offered of a device can use."""
    return _takes(offer, device)[counter] if offer.template else _obtainable(device, counter)


def _obtainable(device: Device, counter: str) -> int:
    return device.capacity[counter] - (_reserved(device) if counter == MEMORY else 0)


def _reserved(device: Device) -> int:
    """Return the bytes of a device that its driver keeps for itself, as far as it says so."""
    reserved = device.attributes.get("reserved", "")
    return min(int(reserved), device.capacity[MEMORY]) if reserved.isdecimal() else 0


def _counter_set(device: Device) -> Plain:
    return {"name": device_name(device.uuid), "counters": _counters(device.capacity)}


def _counters(amounts: Mapping[str, int]) -> Plain:
    taken = {name: amount for name, amount in amounts.items() if amount}
    return {_label(name): {"value": amount_of(name, amount)} for name, amount in taken.items()}


def _fits(device: Device, template: Template) -> int:
    """Return how many such templates a device has room for; one that is there already is one."""
    if template.part is not None:
        return 1
    takes = {**template.takes, SLOTS: 1}
    return min(device.capacity.get(name, 0) // amount for name, amount in takes.items() if amount)


def _linked(devices: Sequence[Device]) -> dict[str, str]:
    """Return for each linked device the name of the first of those it can reach by links.

    Drivers name a way over PCIe between any two cards of a node. One that has faster ways is
    reached by these alone, and the others reach each other.
    """
    slow = max(PCIE.values())
    faster = {
        device.uuid: {link.peer for link in device.links if link.weight > slow}
        for device in devices
    }
    links = {
        device.uuid: faster[device.uuid]
        or {link.peer for link in device.links if not faster.get(link.peer)}
        for device in devices
    }
    groups: dict[str, str] = {}
    for uuid in links:
        waiting = [uuid] if links[uuid] and uuid not in groups else []
        while waiting:
            reached = waiting.pop()
            if reached not in groups and reached in links:
                groups[reached] = device_name(uuid)
                waiting += links[reached]
    return groups


def _attributes(values: Mapping[str, str | int | bool | None]) -> Plain:
    kinds = {bool: "bool", int: "int", str: "string"}
    return {
        name: {kinds[type(value)]: value[:_TEXT] if isinstance(value, str) else value}
        for name, value in values.items()
        if value is not None
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _label(text: str) -> str:
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def _value(text: str) -> str:
    """Return a text as far as the value of a taint can say it: XID-48 for "XID 48"."""
    return re.sub("[^A-Za-z0-9_.]+", "-", text)[:_VALUE].strip("-_.")


def _parts(items: list[Plain], size: int) -> list[list[Plain]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
