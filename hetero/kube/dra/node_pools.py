"""Reads the devices of nodes from their ResourceSlices: what `offers` publishes, read back.

Of a pool the latest generation counts. What no slice says is not known: how several devices are
given together, links, and counters that are for the shares of one policy. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from attrs import evolve, field, frozen

from hetero.kube.dra.offers import CAPACITIES, CORDONED, DRIVER, UNHEALTHY, Offer
from hetero.kube.objects.kinds import (
    DeviceCapacity,
    PoolSlice,
    SliceDevice,
    SliceSpec,
)
from hetero.kube.words.annotations import GRANTS, NodeGrants, published
from hetero.kube.words.quantity import quantity
from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Counters,
    Device,
    Enforcement,
    Fractional,
    Grain,
    Granularity,
    Ladder,
    Step,
    Template,
    Templated,
    Whole,
)
from hetero.model.errors import BadInput

_NOTHING: Mapping[str, int] = {CORE: 0, MEMORY: 0, SLOTS: 0}
#: What of a device is in the attributes of its DRA devices, all of them texts.
_NAMES = ("uuid", "vendor", "model", "enforcement")


@frozen(kw_only=True)
class NodePool:
    """The devices of one node, in its order, and what they offer, by name.

    `device_numbers` are those of the devices in the node's inventory, which may have more of them.
    `complete`: all slices of its latest generation are there. `grants` stand there and are no
    claim's. `faults` say what of its slices cannot be read or is not there yet.
    """

    devices: tuple[Device, ...] = ()
    device_numbers: tuple[int, ...] = ()
    offers: Mapping[str, Offer] = field(factory=dict)
    grants: NodeGrants = field(factory=NodeGrants)
    complete: bool = True
    faults: tuple[str, ...] = ()


def node_pools(slices: Iterable[PoolSlice]) -> dict[str, NodePool]:
    """Return the pools of hetero's driver, by node."""
    specs_by_node: dict[str, list[SliceSpec]] = {}
    text_by_node: dict[str, str] = {}
    for resource_slice in sorted(slices, key=_position):
        spec = resource_slice.spec
        if spec.driver == DRIVER and spec.node_name and spec.pool.name == spec.node_name:
            specs_by_node.setdefault(spec.node_name, []).append(spec)
            if grants_json := resource_slice.metadata.annotations.get(GRANTS):
                text_by_node[spec.node_name] = grants_json
    return {
        node_name: _with_grants(_pool(specs), node_name, text_by_node.get(node_name))
        for node_name, specs in specs_by_node.items()
    }


def _with_grants(pool: NodePool, node_name: str, grants_json: str | None) -> NodePool:
    try:
        grants = published(grants_json, node=node_name)[1] if grants_json else NodeGrants()
    except BadInput as error:
        return evolve(pool, faults=(*pool.faults, str(error)))
    return evolve(pool, grants=grants)


def other_dra_drivers(slices: Iterable[PoolSlice]) -> dict[str, dict[str, int]]:
    """Return how many devices other drivers publish on each node, by driver and node."""
    count_by_driver: dict[str, dict[str, int]] = {}
    for resource_slice in slices:
        spec = resource_slice.spec
        if spec.driver not in ("", DRIVER) and spec.node_name and spec.devices:
            count_by_node = count_by_driver.setdefault(spec.driver, {})
            count_by_node[spec.node_name] = count_by_node.get(spec.node_name, 0) + len(spec.devices)
    return count_by_driver


def notes_of_other_drivers(slices: Iterable[PoolSlice]) -> Iterator[str]:
    """Yield a sentence about the devices of each other driver."""
    for driver, count_by_node in sorted(other_dra_drivers(slices).items()):
        counts_text = ", ".join(f"{node} {count}" for node, count in count_by_node.items())
        yield f"devices of driver {driver} are not hetero's to count: {counts_text}"


def _position(resource_slice: PoolSlice) -> tuple[int, str]:
    """Return the sort key of a slice: the names of a pool's end with their numbers."""
    slice_name = resource_slice.metadata.name
    return len(slice_name), slice_name


def _pool(specs: list[SliceSpec]) -> NodePool:
    generation = max(spec.pool.generation for spec in specs)
    latest_specs = [spec for spec in specs if spec.pool.generation == generation]
    slice_count = max(spec.pool.resource_slice_count for spec in latest_specs)
    faults = []
    if len(latest_specs) < slice_count:
        faults.append(f"{len(latest_specs)} of its {slice_count} slices are there")
    capacity_by_set: dict[str, Counters] = {}
    entries: list[SliceDevice] = []
    for spec in latest_specs:
        entries += spec.devices
        for counter_set in spec.shared_counters:
            try:
                capacity_by_set[counter_set.name] = _amounts(counter_set.counters)
            except BadInput as error:
                faults.append(f"counters {counter_set.name}: {error}")
    pool = _Pool(capacity_by_set)
    for entry in entries:
        try:
            pool.add(entry)
        except (BadInput, ValueError) as error:
            faults.append(f"device {entry.name or 'without a name'}: {error}")
    return evolve(pool.read(tuple(faults)), complete=len(latest_specs) >= slice_count)


@frozen
class _Pool:
    """The pool that is read: what its entries say of each device, by UUID."""

    capacity_by_set: Mapping[str, Counters]
    devices: dict[str, Device] = field(factory=dict)
    _numbers: dict[str, int] = field(factory=dict)  # as far as its agent publishes them
    _uuid_by_set: dict[str, str] = field(factory=dict)
    _menus: dict[str, list[Template]] = field(factory=dict)
    _wholes: dict[str, tuple[str, ...]] = field(factory=dict)  # UUIDs of each whole entry, by name
    _templates: dict[str, tuple[str, Template]] = field(factory=dict)  # by name, with its UUID

    def add(self, entry: SliceDevice) -> None:
        """Note an entry. Raises `BadInput` or `ValueError`."""
        if not entry.consumes_counters:
            device = card_of(entry)
            self._note(device, entry)
            self._wholes[entry.name] = (device.uuid,)
            return
        set_names = [consumption.counter_set for consumption in entry.consumes_counters]
        unknown_sets = {*set_names} - self.capacity_by_set.keys()
        if unknown_sets:
            raise BadInput(f"counters {', '.join(sorted(unknown_sets))} are in no slice")
        named_device = _device(entry, _Sizes(self.capacity_by_set[set_names[0]], Whole()))
        template_name = text_of(entry, "template")
        if template_name:
            template = _template(entry, template_name)
            self._uuid_by_set[set_names[0]] = named_device.uuid
            self._menus.setdefault(named_device.uuid, []).append(template)
            self._templates[entry.name] = (named_device.uuid, template)
            self._note(named_device, entry)
            return
        self._uuid_by_set.setdefault(set_names[0], named_device.uuid)
        uuids = []
        # Several: the parts of one module, the first of which it names.
        for set_name in set_names:
            uuid = self._uuid_by_set.setdefault(set_name, set_name)
            capacity = self.capacity_by_set[set_name]
            self._note(evolve(named_device, uuid=uuid, capacity=capacity), entry)
            uuids.append(uuid)
        self._wholes[entry.name] = tuple(uuids)

    def _note(self, device: Device, entry: SliceDevice) -> None:
        """Note a device of an entry; of a module's parts each has what its own entries say."""
        self.devices.setdefault(device.uuid, device)
        number = number_of(entry, "number")
        if number is not None and device.uuid == text_of(entry, "uuid"):
            self._numbers[device.uuid] = number

    def read(self, faults: tuple[str, ...]) -> NodePool:
        """Return the pool."""
        group_by_uuid = {
            uuid: uuids[0] if len(uuids) > 1 else None
            for uuids in self._wholes.values()
            for uuid in uuids
        }
        devices = {
            uuid: self._divided(device, group_by_uuid) for uuid, device in self.devices.items()
        }
        wholes = (
            Offer(name=entry_name, devices=tuple(devices[uuid] for uuid in uuids))
            for entry_name, uuids in self._wholes.items()
        )
        parts = (
            Offer(name=entry_name, devices=(devices[uuid],), template=template)
            for entry_name, (uuid, template) in self._templates.items()
        )
        return NodePool(
            devices=tuple(devices.values()),
            device_numbers=self._numbers_of(tuple(devices)),
            offers={offer.name: offer for offer in (*wholes, *parts)},
            faults=faults,
        )

    def _numbers_of(self, uuids: tuple[str, ...]) -> tuple[int, ...]:
        """Return the numbers of devices: their positions where an agent publishes none."""
        numbers = tuple(self._numbers[uuid] for uuid in uuids if uuid in self._numbers)
        return numbers if len({*numbers}) == len(uuids) else tuple(range(len(uuids)))

    def _divided(self, device: Device, group_by_uuid: Mapping[str, str | None]) -> Device:
        menu = self._menus.get(device.uuid)
        if menu is None:
            return device
        granularity = Templated(
            tuple({(template.name, template.part): template for template in menu}.values()),
            whole=device.uuid in group_by_uuid,
        )
        return evolve(device, granularity=granularity, group=group_by_uuid.get(device.uuid))


@frozen
class _Sizes:
    """What cards of one model have in common: how much of what, and in which steps it is given."""

    capacity: Counters
    granularity: Granularity
    card: Mapping[str, int] = field(factory=dict)


@lru_cache(maxsize=256)  # thousands of cards are of a few models
def _sizes(capacities: tuple[tuple[str, DeviceCapacity], ...], is_shared: bool) -> _Sizes:
    """Return the sizes of a device that consumes no counters. Raises `BadInput`."""
    capacity_by_name = dict(capacities)
    amounts = _amounts(
        {
            counter: capacity_by_name[capacity_name]
            for capacity_name, counter in CAPACITIES.items()
            if capacity_name in capacity_by_name
        }
    )
    if not is_shared:
        return _Sizes(amounts, Whole())
    memory, core = (capacity_by_name.get(name, DeviceCapacity()) for name in ("memory", "cores"))
    granularity = Fractional(
        memory=_grain(memory),
        core=_grain(core),
        together=core.request_policy.default not in ("", "0"),
    )
    most_core = _most(core)
    card = {CORE: most_core} if most_core and most_core != amounts[CORE] else {}
    return _Sizes(amounts, granularity, card)


def card_of(entry: SliceDevice) -> Device:
    """Return the device of an entry that consumes no counters. Raises `BadInput`, `ValueError`."""
    return _device(entry, _sizes(tuple(entry.capacity.items()), entry.allow_multiple_allocations))


def condition_of(entry: SliceDevice) -> tuple[str, str | None]:
    """Return the health of an entry's device, and why it is cordoned."""
    value_by_taint = {taint.key: taint.value for taint in entry.taints}
    health = text_of(entry, "health") or ("unhealthy" if UNHEALTHY in value_by_taint else "ok")
    cordon = value_by_taint.get(CORDONED)
    # A taint's value has no blanks. It is all that older agents write.
    return health, cordon if cordon is None else text_of(entry, "cordon") or cordon


def _device(entry: SliceDevice, sizes: _Sizes) -> Device:
    """Return the device that an entry names. Raises `BadInput` or `ValueError`."""
    uuid, vendor, model, enforcement = (text_of(entry, attribute_name) for attribute_name in _NAMES)
    if not uuid or not vendor:
        raise BadInput("it has no uuid or no vendor")
    health, cordon = condition_of(entry)
    index, numa, reserved, context = (
        number_of(entry, attribute_name)
        for attribute_name in ("index", "numaNode", "reservedMemory", "contextMemory")
    )
    bytes_by_attribute = {"reserved": reserved, "context": context}
    return Device(
        uuid=uuid,
        vendor=vendor,
        model=model,
        index=index or 0,
        capacity=sizes.capacity,
        card=sizes.card,
        granularity=sizes.granularity,
        enforcement=Enforcement(enforcement),
        health=health,
        cordon=cordon,
        numa=numa,
        pci=text_of(entry, "resource.kubernetes.io/pciBusID") or None,
        attributes={
            attribute_name: str(size_bytes)
            for attribute_name, size_bytes in bytes_by_attribute.items()
            if size_bytes
        },
    )


def text_of(entry: SliceDevice, attribute_name: str) -> str:
    """Return an attribute that is a text, empty where there is none."""
    value = entry.attributes.get(attribute_name)
    return (value and value.string) or ""


def number_of(entry: SliceDevice, attribute_name: str) -> int | None:
    """Return an attribute that is a number, None where there is none."""
    value = entry.attributes.get(attribute_name)
    return value.number if value else None


def _amounts(capacities: Mapping[str, DeviceCapacity]) -> dict[str, int]:
    amounts = {
        name: quantity({name: capacity.value}, name) for name, capacity in capacities.items()
    }
    return {**_NOTHING, **{name: amount or 0 for name, amount in amounts.items()}}


def _grain(capacity: DeviceCapacity) -> Grain:
    policy = capacity.request_policy
    step = quantity({"step": policy.valid_range.step}, "step") if policy.valid_range.step else None
    if step:
        return Step(step)
    sizes = [quantity({"size": size}, "size") for size in policy.valid_values]
    return Ladder(tuple(size for size in sizes if size)) if any(sizes) else Step(1)


def _most(capacity: DeviceCapacity) -> int | None:
    policy = capacity.request_policy
    most_text = policy.valid_range.max
    if most_text:
        return quantity({"most": most_text}, "most")
    return max(
        (quantity({"size": size}, "size") or 0 for size in policy.valid_values), default=None
    )


def _template(entry: SliceDevice, template_name: str) -> Template:
    if len(entry.consumes_counters) != 1:
        raise BadInput("a template consumes the counters of one device")
    takes = _amounts(entry.consumes_counters[0].counters)
    del takes[SLOTS]
    return Template(template_name, takes, part=text_of(entry, "part") or None)
