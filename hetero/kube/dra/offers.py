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
#: The capacities of a shared device, and our counter for each.
CAPACITIES = {"memory": MEMORY, "cores": CORE, "slots": SLOTS}
#: Devices of a slice, where any consumes counters or is tainted; counter sets of a slice; counter
#: sets of a device; entries of a ladder; characters of an attribute.
_MOST_DEVICES, _MOST_SETS, _MOST_DEVICE_SETS, _LADDER_SIZES, _ATTRIBUTE_LENGTH = (
    64,
    8,
    2,
    10,
    64,
)
#: Characters of a taint's value.
_LONGEST_TAINT = 63
#: Of the 63 characters of a name, what the device has, and the kind of a part of it.
_LONGEST_DEVICE_NAME, _LONGEST_KIND = 40, 13
#: The taints of a device that is unhealthy, and of one that is cordoned; their values say why.
UNHEALTHY, CORDONED = f"{DRIVER}/unhealthy", f"{DRIVER}/cordoned"


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
    offer_list: list[Offer] = []
    devices_by_module: dict[str, list[Device]] = {}
    for device in devices:
        if isinstance(device.granularity, Templated):
            offer_list += _templates(device, device.granularity)
            if device.granularity.whole:
                devices_by_module.setdefault(device.group or device.uuid, []).append(device)
        else:
            offer_list.append(Offer(name=device_name(device.uuid), devices=(device,)))
    for module_devices in devices_by_module.values():
        if len(module_devices) <= _MOST_DEVICE_SETS:
            offer_list.append(
                Offer(name=device_name(module_devices[0].uuid), devices=tuple(module_devices))
            )
    return {offer.name: offer for offer in offer_list}


def _templates(device: Device, granularity: Templated) -> Iterator[Offer]:
    """Yield as many of each entry of a device's menu as fit; an existing part is one."""
    count_by_name: Counter[str] = Counter()
    for template in granularity.menu:
        name_prefix = f"{device_name(device.uuid)}-{_label(template.name)[:_LONGEST_KIND]}"
        for _ in range(_fits(device, template)):
            suffix = (
                str(count_by_name[name_prefix])
                if template.part is None
                else _digest(template.part)[:8]
            )
            count_by_name[name_prefix] += 1
            yield Offer(name=f"{name_prefix}-{suffix}", devices=(device,), template=template)


def slices(
    devices: Iterable[Device],
    *,
    node_name: str,
    resources: Mapping[str, Sequence[str]],
    roots: Mapping[str, str],
    number_by_uuid: Mapping[str, int] | None = None,
    effect: str = "NoSchedule",
) -> list[Plain]:
    """Return the specs of a node's pool of slices; each lacks its generation.

    `resources` are the extended resources that devices and templates are counted by, by UUID or
    `UUID/template`. `roots` are the PCIe roots of devices, and `number_by_uuid` those in the node's
    inventory, by UUID. `effect` is that of the taint
    of an unhealthy device; that of a cordoned one is NoSchedule. There is at least one slice: so
    an empty pool is known to be empty.
    """
    device_list = tuple(devices)
    offer_by_name = offers(device_list)
    link_group_by_uuid = _linked(device_list)
    counter_sets = [
        _counter_set(device) for device in device_list if isinstance(device.granularity, Templated)
    ]
    slice_devices = [
        _entry(
            offer,
            resources=resources,
            roots=roots,
            number_by_uuid=number_by_uuid or {},
            link_group_by_uuid=link_group_by_uuid,
            effect=effect,
        )
        for offer in offer_by_name.values()
    ]
    contents: list[Plain] = [
        *({"sharedCounters": chunk} for chunk in _parts(counter_sets, _MOST_SETS)),
        *({"devices": chunk} for chunk in _parts(slice_devices, _MOST_DEVICES)),
    ]
    contents = contents or [{}]
    pool = {"name": node_name, "resourceSliceCount": len(contents)}
    return [
        {"driver": DRIVER, "nodeName": node_name, "pool": pool, **content} for content in contents
    ]


def device_name(uuid: str) -> str:
    """Return the name of a device in its pool: its UUID as far as that is a DNS label."""
    label_text = re.sub("[^a-z0-9]+", "-", uuid.lower()).strip("-")
    if label_text == uuid.lower() and len(label_text) <= _LONGEST_DEVICE_NAME:
        return label_text
    return f"{label_text[: _LONGEST_DEVICE_NAME - 13].rstrip('-')}-{_digest(uuid)}".lstrip("-")


def published(device: Device) -> dict[str, int]:
    """Return how much of each capacity a shared device is published with.

    That is what its grains can give: a rest below one step is left out.
    """
    assert isinstance(device.granularity, Fractional)  # noqa: S101 - what `shared` says
    return {
        "memory": _whole_steps(device.capacity[MEMORY], device.granularity.memory),
        "cores": _whole_steps(device.capacity[CORE], device.granularity.core),
        "slots": device.capacity[SLOTS],
    }


def _entry(
    offer: Offer,
    *,
    resources: Mapping[str, Sequence[str]],
    roots: Mapping[str, str],
    number_by_uuid: Mapping[str, int],
    link_group_by_uuid: Mapping[str, str],
    effect: str,
) -> Plain:
    """Return one device of a slice."""
    first_device = offer.devices[0]
    template = offer.template
    resource_list = resources.get(
        f"{first_device.uuid}/{template.name}" if template else first_device.uuid, ()
    )
    value_by_attribute: dict[str, str | int | bool | None] = {
        "vendor": first_device.vendor,
        "model": first_device.model,
        "uuid": first_device.uuid,
        "index": first_device.index,
        "number": number_by_uuid.get(first_device.uuid),
        "enforcement": first_device.enforcement.value,
        "driverVersion": first_device.attributes.get("driver"),
        "numaNode": first_device.numa,
        "linkGroup": link_group_by_uuid.get(first_device.uuid),
        "template": template.name if template else None,
        "part": template.part if template else None,
        "corePercent": _core_percent(first_device, template),
        **dict(zip(("resource", "alias"), resource_list, strict=False)),
        "reservedMemory": sum(device.reserved_bytes for device in offer.devices) or None,
        "contextMemory": first_device.context_bytes or None,
        "countsContext": first_device.enforcement.by_limiter and first_device.charges_contexts,
        "resource.kubernetes.io/pciBusID": first_device.pci,
        "resource.kubernetes.io/pcieRoot": roots.get(first_device.uuid),
    }
    slice_device: Plain = {"name": offer.name, "attributes": _attributes(value_by_attribute)}
    if offer.shared:
        slice_device |= {"allowMultipleAllocations": True, "capacity": _consumable(first_device)}
    else:
        slice_device["capacity"] = {
            capacity: {
                "value": amount_of(
                    counter, sum(_takes(offer, device)[counter] for device in offer.devices)
                )
            }
            for capacity, counter in CAPACITIES.items()
        }
    if isinstance(first_device.granularity, Templated):
        slice_device["consumesCounters"] = [
            {"counterSet": device_name(device.uuid), "counters": _counters(_takes(offer, device))}
            for device in offer.devices
        ]
    sick_device = next((device for device in offer.devices if not device.healthy), None)
    taints = []
    if sick_device is not None:
        slice_device["attributes"] |= _attributes({"health": sick_device.health})
        taints.append(_taint(UNHEALTHY, sick_device.health or "", effect))
    cordons = [device.cordon for device in offer.devices if device.cordon is not None]
    if cordons:  # who holds it keeps it, whatever becomes of users of unhealthy devices
        slice_device["attributes"] |= _attributes({"cordon": cordons[0] or None})
        taints.append(_taint(CORDONED, cordons[0], "NoSchedule"))
    return {**slice_device, "taints": taints} if taints else slice_device


def _core_percent(device: Device, template: Template | None) -> int | None:
    """Return how much of its card's core a part has that is there already, None for all else."""
    if template is None or template.part is None or not device.capacity[CORE]:
        return None
    return template.takes[CORE] * 100 // device.capacity[CORE]


def _taint(taint_key: str, reason: str, effect: str) -> Plain:
    taint = {"key": taint_key, "value": _value(reason), "effect": effect}
    return {taint_field: taint_text for taint_field, taint_text in taint.items() if taint_text}


def _consumable(device: Device) -> Plain:
    """Return the capacity of a shared device, with the policies that claims consume it by.

    A claim that names no memory gets all of it, and one that names no cores has no limit of them,
    where the device can be cut so.
    """
    assert isinstance(device.granularity, Fractional)  # noqa: S101 - what `shared` says
    published_amounts = published(device)
    granularity = device.granularity
    default_core = 0 if not granularity.together else None
    most_core = _whole_steps(device.of_card(CORE), granularity.core)
    return {
        "memory": _capacity(MEMORY, published_amounts["memory"], granularity.memory),
        "cores": _capacity(
            CORE,
            published_amounts["cores"],
            granularity.core,
            default=default_core,
            largest_amount=most_core,
        ),
        "slots": _capacity(SLOTS, published_amounts["slots"], Step(1), default=1),
    }


def _capacity(
    counter: str,
    total_amount: int,
    grain: Grain,
    *,
    default: int | None = None,
    largest_amount: int | None = None,
) -> Plain:
    """Return a capacity of which claims consume by a grain; `default` None: all of a device."""

    def amount_text(amount: int) -> str:
        return amount_of(counter, amount)

    largest_amount = total_amount if largest_amount is None else largest_amount
    default_amount = largest_amount if default is None else default
    policy: Plain = {"default": amount_text(default_amount)}
    match grain:
        case Step(step) if total_amount >= 2 * step:
            least_amount = min(step, default_amount)
            policy["validRange"] = {
                "min": amount_text(least_amount),
                "max": amount_text(largest_amount),
                "step": amount_text(step),
            }
        case Ladder(sizes):
            valid_sizes = sorted(
                {default_amount, largest_amount, *(size for size in sizes if size < largest_amount)}
            )
            policy["validValues"] = [amount_text(size) for size in valid_sizes[-_LADDER_SIZES:]]
        case _:
            policy["validValues"] = [
                amount_text(size) for size in sorted({default_amount, largest_amount})
            ]
    return {"value": amount_text(total_amount), "requestPolicy": policy}


def amount_of(counter: str, amount: int) -> str:
    """Return an amount in the API's own notation, so that the two can be compared."""
    unit_size, suffixes = (1024, ("Ki", "Mi", "Gi", "Ti", "Pi"))
    if counter != MEMORY:
        unit_size, suffixes = (1000, ("k", "M", "G", "T", "P"))
    suffix_text = ""
    for suffix in suffixes:
        if amount == 0 or amount % unit_size:
            break
        amount, suffix_text = amount // unit_size, suffix
    return f"{amount}{suffix_text}"


def _whole_steps(total_amount: int, grain: Grain) -> int:
    return (
        total_amount // grain.of * grain.of
        if isinstance(grain, Step) and total_amount >= grain.of
        else total_amount
    )


def _takes(offer: Offer, device: Device) -> Mapping[str, int]:
    return {**offer.template.takes, SLOTS: 1} if offer.template else device.capacity


def _counter_set(device: Device) -> Plain:
    return {"name": device_name(device.uuid), "counters": _counters(device.capacity)}


def _counters(amounts: Mapping[str, int]) -> Plain:
    taken_amounts = {counter: amount for counter, amount in amounts.items() if amount}
    return {
        _label(counter): {"value": amount_of(counter, amount)}
        for counter, amount in taken_amounts.items()
    }


def _fits(device: Device, template: Template) -> int:
    """Return how many such templates a device has room for; an existing part is one."""
    if template.part is not None:
        return 1
    takes = {**template.takes, SLOTS: 1}
    return min(
        device.capacity.get(counter, 0) // amount for counter, amount in takes.items() if amount
    )


def _linked(devices: Sequence[Device]) -> dict[str, str]:
    """Return for each linked device the name of the first device that it reaches by links.

    Drivers name a path over PCIe between any two cards of a node. A card with faster links is
    reached by these alone, and the others reach each other.
    """
    pcie_weight = max(PCIE.values())
    fast_peers = {
        device.uuid: {link.peer for link in device.links if link.weight > pcie_weight}
        for device in devices
    }
    peers_by_uuid = {
        device.uuid: fast_peers[device.uuid]
        or {link.peer for link in device.links if not fast_peers.get(link.peer)}
        for device in devices
    }
    group_by_uuid: dict[str, str] = {}
    for uuid in peers_by_uuid:
        uuids_to_visit = [uuid] if peers_by_uuid[uuid] and uuid not in group_by_uuid else []
        while uuids_to_visit:
            reached_uuid = uuids_to_visit.pop()
            if reached_uuid not in group_by_uuid and reached_uuid in peers_by_uuid:
                group_by_uuid[reached_uuid] = device_name(uuid)
                uuids_to_visit += peers_by_uuid[reached_uuid]
    return group_by_uuid


def _attributes(value_by_attribute: Mapping[str, str | int | bool | None]) -> Plain:
    json_types = {bool: "bool", int: "int", str: "string"}
    return {
        attribute_name: {
            json_types[type(value)]: value[:_ATTRIBUTE_LENGTH] if isinstance(value, str) else value
        }
        for attribute_name, value in value_by_attribute.items()
        if value is not None
    }


def _digest(digested_text: str) -> str:
    return hashlib.sha256(digested_text.encode()).hexdigest()[:12]


def _label(label_text: str) -> str:
    return re.sub("[^a-z0-9]+", "-", label_text.lower()).strip("-")


def _value(value_text: str) -> str:
    """Return a text in the characters that a taint allows: XID-48 for "XID 48"."""
    return re.sub("[^A-Za-z0-9_.]+", "-", value_text)[:_LONGEST_TAINT].strip("-_.")


def _parts(slice_devices: list[Plain], chunk_size: int) -> list[list[Plain]]:
    return [
        slice_devices[start : start + chunk_size]
        for start in range(0, len(slice_devices), chunk_size)
    ]
