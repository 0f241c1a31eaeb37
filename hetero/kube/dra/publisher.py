"""Keeps a node's pool of ResourceSlices as its devices are, and writes only what differs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from hetero.kube.client.api import Api, ApiError
from hetero.kube.dra.offers import DRIVER, slices
from hetero.kube.objects.kinds import Plain, ResourceSlice
from hetero.kube.objects.reading import read
from hetero.model import Device
from hetero.plugin.resource_names import ResourceNames

log = logging.getLogger(__name__)

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@define(eq=False)
class Publisher:
    """The slices of one node; `names` are the resource names of a vendor.

    A device that another driver publishes is that one's to give out, and not published. `effect` is
    that of the taint of a device that is not well. `host` is where /sys is, which a container has
    of its node. Without `publish` having been called there is nothing to keep: what an agent before
    this one published stays.
    """

    api: Api
    node: str
    names: Callable[[str], Iterable[ResourceNames]]
    host: Path = Path("/")
    effect: str = "NoSchedule"
    uid: str | None = field(init=False, default=None)  # the node's, once the API told
    writes: int = field(init=False, default=0)
    _found: dict[str, ResourceSlice] | None = field(
        init=False, default=None
    )  # what the API has, by name
    _others: dict[str, ResourceSlice] = field(init=False, factory=dict)  # slices of other drivers
    # By UUID, the drivers that publish devices of this node in our place.
    elsewhere: dict[str, str] = field(init=False, factory=dict)
    _changed: asyncio.Event = field(init=False, factory=asyncio.Event)
    _devices: tuple[Device, ...] | None = field(init=False, default=None)

    async def follow(self) -> None:
        """Hear for ever of what becomes of this node's slices, ours and others'."""
        await self.api.follow(
            SLICES,
            ResourceSlice,
            query={"fieldSelector": f"spec.nodeName={self.node}"},
            listed=self._listed,
            changed=self._slice_changed,
            lost=lambda error: log.warning("slices: the API does not answer: %s", error),
        )

    async def publish(self, devices: tuple[Device, ...]) -> None:
        """Have the slices say what the node's devices are now. Raises `ApiError`.

        Nothing is written where they say so already, nor until the API has told of them and of the
        node, with which they go.
        """
        same = devices == self._devices and not self._changed.is_set()
        if self.uid is None or self._found is None or same:
            return
        self._changed.clear()
        given = self._ours(devices)
        wanted = slices(
            given,
            node=self.node,
            resources=counted(given, self.names),
            roots={one.uuid: root for one in given if (root := self._root(one)) is not None},
            effect=self.effect,
        )
        try:
            await self._write(wanted)
        except ApiError:
            self._changed.set()
            raise
        self._devices = devices

    async def withdraw(self) -> None:
        """Remove the slices of a node whose devices are given otherwise. Raises `ApiError`."""
        for name in tuple(self._found or ()):
            await self._remove(name)
        self._devices, self.elsewhere = None, {}

    def _ours(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Return the devices that no other driver publishes; which are left out is logged once."""
        published = {
            value["string"].lower(): item.spec["driver"]
            for item in self._others.values()
            for device in item.spec.get("devices") or ()
            for value in (device.get("attributes") or {}).values()
            if "string" in value
        }
        before = self.elsewhere
        self.elsewhere = {
            one.uuid: driver for one in devices if (driver := published.get(one.uuid.lower()))
        }
        for uuid in self.elsewhere.keys() - before.keys():
            log.warning(
                "device %s is published by driver %s: not by claims of ours",
                uuid,
                self.elsewhere[uuid],
            )
        return tuple(one for one in devices if one.uuid not in self.elsewhere)

    async def _write(self, wanted: list[Plain]) -> None:
        """Write a pool; of another generation than the one that is there, if any of it differs."""
        published: dict[str, ResourceSlice] = {} if self._found is None else self._found
        names = [f"{self.node}-{DRIVER}-{number}" for number in range(len(wanted))]
        if [_said(published[name]) if name in published else None for name in names] == wanted and (
            len(published) == len(wanted)
            and len({one.spec["pool"]["generation"] for one in published.values()}) == 1
        ):
            return
        generations = [one.spec["pool"]["generation"] for one in published.values()]
        generation = max(generations, default=0) + 1
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.uid}
        for name, spec in zip(names, wanted, strict=True):
            metadata: Plain = {"name": name, "ownerReferences": [owner]}
            body: Plain = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": metadata,
                "spec": {**spec, "pool": {**spec["pool"], "generation": generation}},
            }
            if name in published:
                metadata["resourceVersion"] = published[name].metadata.resource_version
                made = await self.api.put(f"{SLICES}/{name}", body)
            else:
                made = await self.api.post(SLICES, body)
            self.writes += 1
            published[name] = read(ResourceSlice, made)
        for name in published.keys() - set(names):
            await self._remove(name)
        log.info("published %d slices, generation %d", len(names), generation)

    async def _remove(self, name: str) -> None:
        try:
            await self.api.delete(f"{SLICES}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
        self.writes += 1
        if self._found is not None:
            self._found.pop(name, None)

    def _root(self, device: Device) -> str | None:
        """Return the PCIe root that a device is below, as the kernel calls it: `pci0000:3a`."""
        if device.pci is None:
            return None
        # A container has the machine's PCI devices in its own /sys, too.
        for root in (self.host, Path("/")):
            with suppress(OSError):
                link = os.readlink(root / "sys/bus/pci/devices" / device.pci)
                return next((part for part in Path(link).parts if part.startswith("pci")), None)
        return None

    def _listed(self, items: list[ResourceSlice]) -> None:
        self._found, self._others = {}, {}
        for item in items:
            self._of(item)[item.metadata.name] = item
        self._changed.set()

    def _of(self, item: ResourceSlice) -> dict[str, ResourceSlice]:
        """Return where slices like this one are kept: ours, or others'."""
        if item.spec.get("driver") == DRIVER and self._found is not None:
            return self._found
        return self._others

    def _slice_changed(self, event: str, item: ResourceSlice) -> None:
        known, name = self._of(item), item.metadata.name
        if name in known and _version(item) <= _version(known[name]):
            return  # of our own writing
        if event == "DELETED":
            known.pop(name, None)
        else:
            known[name] = item
        self._changed.set()


def counted(
    devices: Iterable[Device], names: Callable[[str], Iterable[ResourceNames]]
) -> dict[str, tuple[str, ...]]:
    """Return the resources that each device is counted by, and each shape of one."""
    resources: dict[str, tuple[str, ...]] = {}
    for device in devices:
        for resource_names in names(device.vendor):
            if resource_names.devices.mean(device):
                shaped = (
                    f"{device.uuid}/{resource_names.devices.shape}"
                    if resource_names.devices.shape
                    else device.uuid
                )
                resources[shaped] = (*resources.get(shaped, ()), resource_names.count)
    return resources


def _version(item: ResourceSlice) -> int:
    """Return how late an object was written: of one kind, that can be compared (1.35 and later)."""
    return int(item.metadata.resource_version)


def _said(item: ResourceSlice) -> Plain:
    """Return the spec of a slice as `slices` makes it: without what the API adds."""
    spec = item.spec
    made = {**spec, "pool": {k: v for k, v in spec["pool"].items() if k != "generation"}}
    if "devices" in spec:
        made["devices"] = [_without_times(device) for device in spec["devices"]]
    return made


def _without_times(device: Plain) -> Plain:
    if "taints" not in device:
        return device
    taints = [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device["taints"]]
    return {**device, "taints": taints}
