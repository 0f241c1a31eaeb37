"""Compares the NUMA nodes of a container's own processors with those of its cards.

A kubelet whose Topology Manager aligns chooses a NUMA node from the slots of cards that it counts
as free, before it asks for any card; the scheduler has chosen the card by then. The two agree as
long as the kubelet counts no slot of a card that has nothing left, and where they differ all the
same the pod is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from attrs import define, evolve, field, frozen

from hetero.kube.agent.allocator import Allocator
from hetero.kube.client.events import Events
from hetero.kube.objects.kinds import Pod
from hetero.kube.words.pod import named
from hetero.kube.words.quantity import decimal
from hetero.model import CORE, MEMORY, SLOTS, Inventory
from hetero.model.errors import BadInput, Refused
from hetero.node.inventory import inventory_of

log = logging.getLogger(__name__)

#: On a node, written by its administrator, where the kubelet's Topology Manager aligns.
#: `preferred`: pods with processors and cards of different NUMA nodes get an event. `required`:
#: such containers are not started.
NUMA_ALIGNMENT = "hetero.io/numa-alignment"
_PREFERRED, _REQUIRED = "preferred", "required"
#: Where Linux has a directory `node<N>` for each NUMA node, with its processors in `cpulist`.
NUMA_NODES = Path("/sys/devices/system/node")


@frozen(kw_only=True)
class TakenSlots:
    """The devices that have nothing left, by UUID, and the slots that containers have.

    A kubelet that aligns is to count no other slot of these devices. `ids` are by resource.
    """

    full_devices: frozenset[str] = frozenset()
    ids: Mapping[str, frozenset[str]] = field(factory=dict)


@define(eq=False)
class Alignment:
    """Whether the cards of one node's containers have to be on the NUMA nodes of processors."""

    allocator: Allocator
    events: Events
    autoscaled: bool = False  # whether an autoscaler reads what the kubelet counts
    # Set when a container was given its slots.
    slots_given: asyncio.Event = field(init=False, factory=asyncio.Event)
    _label: str | None = field(init=False, default=None)

    def note_labels(self, labels: Mapping[str, str]) -> None:
        """Note the label of the node; one that is not known means none."""
        label = labels.get(NUMA_ALIGNMENT)
        if label not in (None, _PREFERRED, _REQUIRED):
            log.warning("label %s: %r is neither preferred nor required", NUMA_ALIGNMENT, label)
            label = None
        self._label = label

    @property
    def is_on(self) -> bool:
        """Whether this node's kubelet aligns, by the node's label."""
        return self._label is not None

    async def expect(self, pod: Pod, container_name: str) -> None:
        """Tell a container with processors of its own that its cards are on other NUMA nodes.

        Raises `Refused` where the node requires alignment. A card without a NUMA node is on all.
        """
        if not self.is_on or not _has_own_processors(pod, container_name):
            return
        numa_by_uuid = {device.uuid: device.numa for device in self.allocator.discovery.devices}
        card_nodes = {
            numa_by_uuid.get(piece.device)
            for container in self.allocator.pods.signed(pod)
            if container.container == container_name
            for piece in container.allocation.pieces
        }
        processors = await self.allocator.kubelet.processors(*pod.full_name, container_name)
        processor_nodes = numa_nodes(processors)
        if None in card_nodes or processor_nodes <= card_nodes:
            return
        sentence = (
            f"{named(pod)}, container {container_name}: the kubelet gave it processors of "
            f"NUMA node {_list(processor_nodes)}, and its cards are on "
            f"NUMA node {_list(card_nodes)}"
        )
        if self._label == _REQUIRED:
            sentence += (
                f": it is not started, since this node requires it ({NUMA_ALIGNMENT}): delete the "
                "pod and create it anew, or ask for no whole processors"
            )
        log.warning("%s", sentence)
        await self.events.tell(pod.metadata, "NotAligned", sentence)
        if self._label == _REQUIRED:
            raise Refused(sentence)

    def taken_slots(self) -> TakenSlots:
        """Return what a kubelet that aligns is to know of the devices that have nothing left.

        A pod counts once all its containers were given their devices: until then its kubelet still
        asks for slots of them. Without the label and without an autoscaler nothing is to be known.
        """
        if not (self.is_on or self.autoscaled):
            return TakenSlots()
        ledger = self.allocator.node.ledger
        snapshot = ledger.snapshot()
        notes_by_grant = {grant.id: ledger.notes(grant.id) for grant in snapshot.grants}
        waiting_uids = {
            grant.owner.get("uid") for grant in snapshot.grants if not notes_by_grant[grant.id]
        }
        given = [grant for grant in snapshot.grants if grant.owner.get("uid") not in waiting_uids]
        ids: defaultdict[str, set[str]] = defaultdict(set)
        for notes in notes_by_grant.values():
            for resource, _, id_list in (note.partition(" ") for note in notes):
                ids[resource].update(id_list.split(","))
        inventory = inventory_of(self.allocator.discovery, evolve(snapshot, grants=tuple(given)))
        return TakenSlots(
            full_devices=full_devices(inventory),
            ids={resource: frozenset(slot_ids) for resource, slot_ids in ids.items()},
        )


def full_devices(inventory: Inventory) -> frozenset[str]:
    """Return the devices of which no grant can be made, by UUID."""
    free = inventory.free()
    return frozenset(
        device.uuid
        for device in inventory.devices
        if any(
            device.capacity.get(counter, 0) > 0 >= free[device.uuid].get(counter, 0)
            for counter in (CORE, MEMORY, SLOTS)
        )
    )


def numa_nodes(processors: Collection[int]) -> frozenset[int]:
    """Return the NUMA nodes of processors, by what Linux says of this machine."""
    return frozenset(
        int(path.parent.name.removeprefix("node"))
        for path in NUMA_NODES.glob("node[0-9]*/cpulist")
        if any(map(_ranges(path.read_text()).__contains__, processors))
    )


def _ranges(cpulist: str) -> frozenset[int]:
    """Return the processors of a list such as `0-3,8`."""
    ends = [part.partition("-") for part in cpulist.strip().split(",") if part]
    return frozenset(
        processor
        for first, _, last in ends
        for processor in range(int(first), int(last or first) + 1)
    )


def _has_own_processors(pod: Pod, container_name: str) -> bool:
    """Return whether a kubelet with static processors keeps whole ones for a container."""
    if pod.status.qos_class != "Guaranteed":
        return False
    for container in pod.containers:
        if container.name == container_name:
            try:
                processor_count = decimal(container.resources.limits.get("cpu", 0))
            except BadInput:
                return False
            return processor_count >= 1 and processor_count == int(processor_count)
    return False


def _list(numbers: Iterable[int | None]) -> str:
    return " and ".join(map(str, sorted(number for number in numbers if number is not None)))
