"""Publishes a node's devices to the scheduler: the webhook writes them into the Node object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from attrs import define, field

from hetero.kube.agent.allocator import Allocator
from hetero.kube.client.api import Api
from hetero.kube.objects.kinds import Amounts
from hetero.kube.words.annotations import NodeGrants, inventory_text
from hetero.kube.words.quantity import decimal
from hetero.model import Device
from hetero.model.errors import HeteroError

log = logging.getLogger(__name__)

#: Seconds from when the API told of the pods, within which nothing is published before it is known
#: what runs on of pods that are over: others sent to those cards would fail.
FIRST_WAIT_S = 20.0


@define(eq=False)
class InventoryPublisher:
    """One node's inventory, posted to `path`, which the API server proxies to the webhook.

    `token_file` has the token that proves where this agent runs.
    """

    api: Api
    allocator: Allocator
    path: str
    token_file: Path
    published: str | None = field(init=False, default=None)  # what the API has; None: not known
    capacity: Amounts = field(init=False, factory=dict)  # what the node's status states
    _listed_at_s: float | None = field(init=False, default=None)  # when the API first told of pods
    # Held while an inventory is posted: none is overtaken by a later one.
    _posting: asyncio.Lock = field(init=False, factory=asyncio.Lock)

    def pods_listed(self) -> None:
        """Record that the API listed the pods."""
        self._listed_at_s = self._listed_at_s or monotonic()

    async def publish(self, devices: tuple[Device, ...] | None, grants: NodeGrants) -> None:
        """Publish the devices and grants if the API has others. None: withdraw the devices."""
        if not self.allocator.reconciled and (
            self._listed_at_s is None or monotonic() - self._listed_at_s < FIRST_WAIT_S
        ):
            return
        async with self._posting:
            published_devices = self.allocator.cards.resting.published(devices or ())
            inventory = inventory_text(published_devices, grants)
            has_nothing = devices is None and not grants and not self.published
            if self.published in (None, inventory) or has_nothing:
                return
            await self._post(inventory=inventory)
            self.published = inventory
        log.info("published %d devices", len(devices or ()))

    async def state_sizes(self, sizes: Mapping[str, int]) -> None:
        """Have the node's status state these amounts, unless it does; with devices alone."""
        lacking = {
            name: amount
            for name, amount in sizes.items()
            if decimal(self.capacity.get(name, 0)) != amount
        }
        if lacking and self.published:
            await self._post(inventory=self.published, sizes=lacking)
            self.capacity = {**self.capacity, **lacking}
            log.info("the node's status states %s", ", ".join(sorted(lacking)))

    async def _post(self, **body: Any) -> None:
        try:
            token = self.token_file.read_text().strip()  # the kubelet renews it
        except OSError as error:
            raise HeteroError(f"inventory: {self.token_file}: {error.strerror}") from None
        await self.api.post(self.path, {"token": token, **body})
