"""The cards of the agent's node: as its drivers see them, with what its annotations cordon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from attrs import define, evolve, field

from hetero.kube.agent.resting_cards import RestingCards
from hetero.kube.client.events import Events
from hetero.kube.objects.kinds import Metadata
from hetero.kube.words.annotations import CORDONED, HAMI_CORDON, cordons, idle_cordons
from hetero.model import Allocation, Device
from hetero.model.errors import BadInput
from hetero.node.core_units import in_units_of
from hetero.node.grants import measured
from hetero.node.inventory import with_lost
from hetero.node.ledger.ledger import Grant
from hetero.node.ledger.watched import WatchedLedger
from hetero.node.node import Node
from hetero.registry.registry import Discovery

log = logging.getLogger(__name__)


@define(eq=False)
class NodeCards:
    """The cards of one node, by the last discovery; `due` is set when a look is to be soon."""

    node: Node
    node_name: str
    discovery: Discovery
    due: asyncio.Event = field(init=False, factory=asyncio.Event)
    grants: tuple[Grant, ...] = field(init=False, default=())  # by the last look
    resting: RestingCards = field(init=False)
    _ledger: WatchedLedger = field(init=False)
    # What the API tells of the node; None: nothing yet.
    _metadata: Metadata | None = field(init=False, default=None)
    _cordons: Mapping[str, str] | None = field(init=False, default=None)  # None: not known yet
    _idle: tuple[str, ...] = field(init=False, default=())  # cordons that mean no card
    _unmatched: tuple[str, ...] = field(init=False, default=())  # settings that name no card here
    # By UUID, the health of each device when `newly_unhealthy` was asked last.
    _health_told: Mapping[str, str | None] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.resting = RestingCards(self.node.ledger.path / "resting.json", _publish_later)
        self._ledger = WatchedLedger(self.node.ledger)

    def have_other_programs(self) -> bool:
        """Return whether grants that are no pod's have come or gone since the last look."""
        grants = in_units_of(self.discovery.devices, self._ledger.snapshot().grants)
        return _of_programs(grants) != _of_programs(self.grants)

    @property
    def numbers(self) -> dict[str, int]:
        """The number of each device in the node's inventory, by UUID."""
        return {device.uuid: number for number, device in enumerate(self.discovery.devices)}

    @property
    def offered(self) -> tuple[Device, ...]:
        """The devices that the kubelet and claims are to know.

        Another plugin may serve those that the settings exclude, so they are among these only while
        grants stand on them.
        """
        devices = self.discovery.devices
        if not any(device.excluded for device in devices):
            return devices
        held_uuids = {
            piece.device
            for grant in self.node.snapshot().grants
            for piece in grant.allocation.pieces
        }
        return tuple(
            device for device in devices if not device.excluded or device.uuid in held_uuids
        )

    def note_metadata(self, metadata: Metadata) -> None:
        """Note what the node's annotations cordon, and have a look obey if that changed."""
        annotations_before = self._metadata.annotations if self._metadata else {}
        self._metadata = metadata
        if self._cordons is None or any(
            annotations_before.get(name) != metadata.annotations.get(name)
            for name in (CORDONED, HAMI_CORDON)
        ):
            with suppress(BadInput):  # which `tell_of_idle_cordons` tells
                self._cordons = cordons(metadata.annotations, node=self.node_name)
            self.due.set()

    async def note_refusal(self, uuids: set[str], reason: str) -> None:
        """Have cards that could give a pod no share be offered to no other for a while."""
        await self.resting.note_refusal(uuids, self._of_same_vendors(uuids), reason)

    def note_share(self, uuids: set[str]) -> None:
        """Record that cards gave a pod its share."""
        self.resting.note_share(uuids, self._of_same_vendors(uuids))

    def _of_same_vendors(self, uuids: set[str]) -> set[str]:
        """Return the node's cards that have the vendors of these."""
        devices = self.discovery.devices
        vendors = {device.vendor for device in devices if device.uuid in uuids}
        return {device.uuid for device in devices if device.vendor in vendors}

    async def tell_of_idle_cordons(self, events: Events) -> None:
        """Put what is cordoned and means no card into the node's events, once while it is so."""
        if self._metadata is None:
            return
        uuids = [device.uuid for device in self.discovery.devices]
        sentences = idle_cordons(self._metadata.annotations, uuids, node=self.node_name)
        for sentence in sentences:
            if sentence not in self._idle:
                await self.tell(events, "NoSuchCard", sentence)
        self._idle = sentences

    async def tell(self, events: Events, reason: str, sentence: str) -> None:
        """Write a sentence to the log, and to the node's events once the API told of the node."""
        log.warning("%s", sentence)
        if self._metadata is not None:
            await events.tell(self._metadata, reason, sentence, kind="Node")

    def newly_unhealthy(self) -> tuple[Device, ...]:
        """Return the devices that are unhealthy for another reason than when this was asked last.

        At first that is each that is unhealthy: it may have become so while no agent ran.
        """
        devices, health_before = self.discovery.devices, self._health_told
        self._health_told = {device.uuid: device.health for device in devices}
        return tuple(
            device
            for device in devices
            if not device.healthy and device.health != health_before.get(device.uuid)
        )

    def look(self) -> tuple[Device, ...]:
        """Discover; return the devices that are new, or whose health changed.

        Raises `HeteroError`.
        """
        known_devices = self.discovery.devices
        health_by_uuid = {device.uuid: device.health for device in known_devices}
        if self.node.cards and self._cordons is not None:
            uuid_by_name = {uuid.lower(): uuid for uuid in health_by_uuid}
            self.node.cards.set_cluster_cordons(
                {uuid_by_name.get(name.lower(), name): why for name, why in self._cordons.items()}
            )
        snapshot = self.node.snapshot()
        self.grants = in_units_of(known_devices, snapshot.grants)
        discovery = with_lost(
            measured(self.node, self.node.discover()), snapshot.grants, known_devices
        )
        inventory = self.node.inventory(discovery, snapshot)
        self.grants = in_units_of(inventory.devices, snapshot.grants)
        self.discovery = evolve(discovery, devices=inventory.devices)
        unmatched = self.node.settings.unmatched(
            self.discovery.devices, [row.name for row in self.discovery.rows]
        )
        for sentence in unmatched if unmatched != self._unmatched else ():
            log.warning("%s", sentence)
        self._unmatched = unmatched
        return tuple(
            device
            for device in self.discovery.devices
            if device.health != health_by_uuid.get(device.uuid)
        )


def _of_programs(grants: Iterable[Grant]) -> dict[str, Allocation]:
    """Return what grants hold that are no pod's and no claim's, by their ids."""
    return {grant.id: grant.reserved for grant in grants if not grant.owner and not grant.promised}


async def _publish_later() -> None:
    """Leave it to the agent's next look, which publishes what changed."""
