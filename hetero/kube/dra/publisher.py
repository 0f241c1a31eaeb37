"""Keeps a node's pool of ResourceSlices equal to its devices, and writes only what differs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from hetero.kube.client.api import Api, ApiError
from hetero.kube.dra.offers import DRIVER, slices
from hetero.kube.objects.kinds import Plain, ResourceSlice
from hetero.kube.objects.reading import read
from hetero.kube.words.annotations import GRANTS, NodeGrants, grants_text
from hetero.model import Device
from hetero.plugin.resource_names import ResourceNames

log = logging.getLogger(__name__)

SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@define(eq=False)
class Publisher:
    """The slices of one node; `names` returns the resource names of a vendor.

    A device that another driver publishes is given out by that driver, and not published here.
    `effect` is that of the taint of an unhealthy device. `host` is where /sys is, which a container
    has of its node. Until `publish` was called, slices of an earlier agent stay.
    """

    api: Api
    node: str
    names: Callable[[str], Iterable[ResourceNames]]
    host: Path = Path("/")
    effect: str = "NoSchedule"
    uid: str | None = field(init=False, default=None)  # the node's, once the API told
    writes: int = field(init=False, default=0)
    # The slices that the API has, by name.
    _found: dict[str, ResourceSlice] | None = field(init=False, default=None)
    _others: dict[str, ResourceSlice] = field(init=False, factory=dict)  # slices of other drivers
    # By UUID, the drivers that publish devices of this node in our place.
    other_dra_drivers: dict[str, str] = field(init=False, factory=dict)
    _changed: asyncio.Event = field(init=False, factory=asyncio.Event)
    # The devices that the slices describe, their numbers, and what else stands on the node.
    _described: tuple[tuple[Device, ...], Mapping[str, int], NodeGrants] | None = field(
        init=False, default=None
    )

    async def follow(self) -> None:
        """Follow this node's slices, ours and others', for ever."""
        await self.api.follow(
            SLICES,
            ResourceSlice,
            query={"fieldSelector": f"spec.nodeName={self.node}"},
            listed=self._listed,
            changed=self._slice_changed,
            lost=lambda error: log.warning("slices: the API does not answer: %s", error),
        )

    async def publish(
        self, devices: tuple[Device, ...], number_by_uuid: Mapping[str, int], grants: NodeGrants
    ) -> None:
        """Have the slices describe the node's devices as they are now. Raises `ApiError`.

        `number_by_uuid` are those of the devices in the node's inventory, by UUID: it may have
        more. `grants` are those that no claim says. Nothing is written where they do so already,
        nor before the API has listed them and the node that owns them.
        """
        is_same = (
            devices,
            number_by_uuid,
            grants,
        ) == self._described and not self._changed.is_set()
        if self.uid is None or self._found is None or is_same:
            return
        self._changed.clear()
        own_devices = self._ours(devices)
        slice_specs = slices(
            own_devices,
            node_name=self.node,
            number_by_uuid=number_by_uuid,
            resources=counted(own_devices, self.names),
            roots={
                device.uuid: pcie_root
                for device in own_devices
                if (pcie_root := self._root(device)) is not None
            },
            effect=self.effect,
        )
        try:
            await self._write(slice_specs, grants_text(grants) if grants else None)
        except ApiError:
            self._changed.set()
            raise
        self._described = devices, number_by_uuid, grants

    async def withdraw(self) -> None:
        """Remove the slices of a node whose devices are given out otherwise. Raises `ApiError`."""
        for slice_name in tuple(self._found or ()):
            await self._remove(slice_name)
        self._described, self.other_dra_drivers = None, {}

    def _ours(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Return the devices that no other driver publishes; the others are logged once."""
        published = {
            typed_value["string"].lower(): resource_slice.spec["driver"]
            for resource_slice in self._others.values()
            for device in resource_slice.spec.get("devices") or ()
            for typed_value in (device.get("attributes") or {}).values()
            if "string" in typed_value
        }
        drivers_before = self.other_dra_drivers
        self.other_dra_drivers = {
            device.uuid: driver
            for device in devices
            if (driver := published.get(device.uuid.lower()))
        }
        for uuid in self.other_dra_drivers.keys() - drivers_before.keys():
            log.warning(
                "device %s is published by driver %s: not by claims of ours",
                uuid,
                self.other_dra_drivers[uuid],
            )
        return tuple(device for device in devices if device.uuid not in self.other_dra_drivers)

    async def _write(self, slice_specs: list[Plain], grants_json: str | None) -> None:
        """Write a pool, with a new generation, if any of it differs.

        The first slice has the grants in an annotation.
        """
        slice_by_name: dict[str, ResourceSlice] = {} if self._found is None else self._found
        slice_names = [f"{self.node}-{DRIVER}-{position}" for position in range(len(slice_specs))]
        specs_on_file = [
            _said(slice_by_name[slice_name]) if slice_name in slice_by_name else None
            for slice_name in slice_names
        ]
        generations_on_file = {
            resource_slice.spec["pool"]["generation"] for resource_slice in slice_by_name.values()
        }
        first_slice = slice_by_name.get(slice_names[0])
        grants_on_file = first_slice.metadata.annotations.get(GRANTS) if first_slice else None
        if (
            specs_on_file == slice_specs
            and len(slice_by_name) == len(slice_specs)
            and len(generations_on_file) == 1
            and grants_on_file == grants_json
        ):
            return
        generation = max(generations_on_file, default=0) + 1
        owner_reference = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.uid}
        for slice_name, spec in zip(slice_names, slice_specs, strict=True):
            metadata: Plain = {"name": slice_name, "ownerReferences": [owner_reference]}
            body: Plain = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": metadata,
                "spec": {**spec, "pool": {**spec["pool"], "generation": generation}},
            }
            if grants_json and slice_name == slice_names[0]:
                metadata["annotations"] = {GRANTS: grants_json}
            if slice_name in slice_by_name:
                metadata["resourceVersion"] = slice_by_name[slice_name].metadata.resource_version
                written = await self.api.put(f"{SLICES}/{slice_name}", body)
            else:
                written = await self.api.post(SLICES, body)
            self.writes += 1
            slice_by_name[slice_name] = read(ResourceSlice, written)
        for slice_name in slice_by_name.keys() - set(slice_names):
            await self._remove(slice_name)
        log.info("published %d slices, generation %d", len(slice_names), generation)

    async def _remove(self, slice_name: str) -> None:
        try:
            await self.api.delete(f"{SLICES}/{slice_name}")
        except ApiError as error:
            if error.status != 404:
                raise
        self.writes += 1
        if self._found is not None:
            self._found.pop(slice_name, None)

    def _root(self, device: Device) -> str | None:
        """Return the PCIe root that a device is below, as the kernel calls it: `pci0000:3a`."""
        if device.pci is None:
            return None
        # A container has the machine's PCI devices in its own /sys, too.
        for root_path in (self.host, Path("/")):
            with suppress(OSError):
                link_target = os.readlink(root_path / "sys/bus/pci/devices" / device.pci)
                return next(
                    (
                        path_part
                        for path_part in Path(link_target).parts
                        if path_part.startswith("pci")
                    ),
                    None,
                )
        return None

    def _listed(self, resource_slices: list[ResourceSlice]) -> None:
        self._found, self._others = {}, {}
        for resource_slice in resource_slices:
            self._of(resource_slice)[resource_slice.metadata.name] = resource_slice
        self._changed.set()

    def _of(self, resource_slice: ResourceSlice) -> dict[str, ResourceSlice]:
        """Return the dictionary that has slices like this one: ours, or others'."""
        if resource_slice.spec.get("driver") == DRIVER and self._found is not None:
            return self._found
        return self._others

    def _slice_changed(self, event_type: str, resource_slice: ResourceSlice) -> None:
        kept_slices, slice_name = self._of(resource_slice), resource_slice.metadata.name
        if slice_name in kept_slices and _version(resource_slice) <= _version(
            kept_slices[slice_name]
        ):
            return  # of our own writing
        if event_type == "DELETED":
            kept_slices.pop(slice_name, None)
        else:
            kept_slices[slice_name] = resource_slice
        self._changed.set()


def counted(
    devices: Iterable[Device], names_of_vendor: Callable[[str], Iterable[ResourceNames]]
) -> dict[str, tuple[str, ...]]:
    """Return the resources that each device is counted by, and each shape of one."""
    resources: dict[str, tuple[str, ...]] = {}
    for device in devices:
        for resource_names in names_of_vendor(device.vendor):
            if resource_names.devices.mean(device):
                device_key = (
                    f"{device.uuid}/{resource_names.devices.shape}"
                    if resource_names.devices.shape
                    else device.uuid
                )
                resources[device_key] = (
                    *resources.get(device_key, ()),
                    resource_names.count,
                )
    return resources


def _version(resource_slice: ResourceSlice) -> int:
    """Return the version of an object: of one kind, versions are ordered (1.35 and later)."""
    return int(resource_slice.metadata.resource_version)


def _said(resource_slice: ResourceSlice) -> Plain:
    """Return the spec of a slice as `slices` makes it: without what the API adds."""
    spec = resource_slice.spec
    slice_spec = {
        **spec,
        "pool": {
            pool_field: field_value
            for pool_field, field_value in spec["pool"].items()
            if pool_field != "generation"
        },
    }
    if "devices" in spec:
        slice_spec["devices"] = [_without_times(device) for device in spec["devices"]]
    return slice_spec


def _without_times(device: Plain) -> Plain:
    if "taints" not in device:
        return device
    taints = [
        {
            taint_field: field_value
            for taint_field, field_value in taint.items()
            if taint_field != "timeAdded"
        }
        for taint in device["taints"]
    ]
    return {**device, "taints": taints}
