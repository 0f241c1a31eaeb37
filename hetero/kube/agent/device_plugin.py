"""One kubelet resource: the device plugin that offers a vendor's devices and allocates shares."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NoReturn

import grpc
from attrs import define, evolve, field

from hetero.kube.agent.alignment import Alignment, TakenSlots
from hetero.kube.agent.allocator import Allocator
from hetero.kube.agent.kubelet import OPTIONS, Kubelet
from hetero.kube.agent.metrics import Metrics
from hetero.kube.agent.node_pods import NeverGiven
from hetero.kube.agent.proto import deviceplugin_pb2 as wire
from hetero.kube.agent.proto.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    add_DevicePluginServicer_to_server,
)
from hetero.kube.server.serving import started
from hetero.kube.words import settings
from hetero.kube.words.annotations import device_id
from hetero.model import SLOTS, Device, Edits
from hetero.model.errors import HeteroError
from hetero.node.node import Node
from hetero.plugin.resource_names import ResourceNames

log = logging.getLogger(__name__)

#: The kubelet's ids have at most this many characters.
_LONGEST_ID = 63

#: A mount that no container runtime can make, since it is below what is no directory.
_IMPOSSIBLE_MOUNT = wire.Mount(
    host_path="/dev/null/hetero-gave-no-share",
    container_path="/hetero-gave-no-share",
    read_only=True,
)

#: Called with the call's name, "ok" or "refused", and the seconds it took.
Observe = Callable[[str, str, float], None]


def listed(
    devices: Iterable[Device], *, full_devices: Container[str] = (), taken_ids: Container[str] = ()
) -> wire.ListAndWatchResponse:
    """Return the kubelet's list: each slot of each device, with its health and NUMA node.

    Of full devices the slots that no container has are unhealthy: the kubelet counts them not.
    """
    response = wire.ListAndWatchResponse()
    for device in devices:
        for slot in range(device.capacity[SLOTS]):
            slot_id = device_id(device.uuid, slot)
            is_spare = device.uuid in full_devices and slot_id not in taken_ids
            health = "Healthy" if device.usable and not is_spare else "Unhealthy"
            slot_entry = response.devices.add(ID=slot_id, health=health)
            if device.numa is not None:
                slot_entry.topology.nodes.add(ID=device.numa)
    return response


def answered(
    edits: Edits, annotations: Mapping[str, str] | None = None
) -> wire.ContainerAllocateResponse:
    """Return edits as an Allocate response, with annotations for the container runtime."""
    response = wire.ContainerAllocateResponse(envs=dict(edits.env), annotations=annotations)
    for mount in edits.mounts:
        response.mounts.add(
            host_path=mount.source, container_path=mount.target, read_only=not mount.writable
        )
    for source, target in edits.device_node_paths:
        response.devices.add(host_path=source, container_path=target, permissions="rw")
    for cdi_name in () if annotations else edits.cdi:
        response.cdi_devices.add(name=cdi_name)
    return response


@define(eq=False)
class DevicePlugin(DevicePluginServicer):
    """Serves one resource on its own socket until the kubelet that it registered with ends."""

    resource: str
    kubelet: Kubelet
    allocator: Allocator
    alignment: Alignment
    observe: Observe
    _devices: wire.ListAndWatchResponse = field(init=False, factory=wire.ListAndWatchResponse)
    _changed: asyncio.Event = field(init=False, factory=asyncio.Event)
    _server: grpc.aio.Server | None = field(init=False, default=None)
    _served_sockets: tuple[object, object] | None = field(init=False, default=None)
    _watching: int = field(init=False, default=0)  # kubelets that hear of changes

    @property
    def endpoint(self) -> str:
        """The name of the plugin's socket."""
        return f"hetero-{self.resource.replace('/', '_')}.sock"

    @property
    def serves(self) -> bool:
        """Whether the running kubelet has the list of devices and can call Allocate."""
        return self._watching > 0 and self._is_known(self.kubelet.started())

    def _is_known(self, kubelet_start: tuple[int, int] | None) -> bool:
        path = self.kubelet.plugins / self.endpoint
        return kubelet_start is not None and self._served_sockets == (
            kubelet_start,
            _identity(path),
        )

    def offer(self, devices: Iterable[Device], taken_slots: TakenSlots) -> None:
        """Send the kubelet these devices, unless its list is the same."""
        devices_now = listed(
            devices,
            full_devices=taken_slots.full_devices,
            taken_ids=taken_slots.ids.get(self.resource, frozenset()),
        )
        for slot_entry in devices_now.devices:
            if len(slot_entry.ID) > _LONGEST_ID:
                log.error(
                    "%s: device id %s is longer than the kubelet takes",
                    self.resource,
                    slot_entry.ID,
                )
        if devices_now != self._devices:
            self._devices = devices_now
            self._changed.set()
            self._changed = asyncio.Event()

    async def attend(self) -> None:
        """Serve, and register again after a restart of the kubelet; cheap without a change.

        Raises `HeteroError` where the kubelet does not accept the registration (yet).
        """
        kubelet_start = self.kubelet.started()
        socket_path = self.kubelet.plugins / self.endpoint
        if kubelet_start is None or self._is_known(kubelet_start):
            return
        await self.close()
        socket_path.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix://{socket_path}")
        await started(self._server)
        await self.kubelet.register(self.resource, self.endpoint)
        self._served_sockets = (kubelet_start, _identity(socket_path))
        log.info("%s: registered with the kubelet", self.resource)

    async def close(self) -> None:
        """Stop serving."""
        self._served_sockets = None
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    # --- the service; its names are the protocol's ------------------------------------------------

    async def GetDevicePluginOptions(  # noqa: N802
        self,
        request: wire.Empty,  # noqa: ARG002
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> wire.DevicePluginOptions:
        """Return that PreStartContainer and GetPreferredAllocation are to be called."""
        return OPTIONS

    async def ListAndWatch(  # noqa: N802
        self,
        request: wire.Empty,  # noqa: ARG002
        context: grpc.aio.ServicerContext,  # noqa: ARG002
    ) -> AsyncIterator[wire.ListAndWatchResponse]:
        """Send the devices now, and at each change."""
        self._watching += 1
        try:
            while True:
                changed_event = self._changed
                yield self._devices
                await changed_event.wait()
        finally:
            self._watching -= 1

    async def GetPreferredAllocation(  # noqa: N802
        self,
        request: wire.PreferredAllocationRequest,
        context: grpc.aio.ServicerContext,
    ) -> wire.PreferredAllocationResponse:
        """Choose slots of the cards that the scheduler chose; any where it chose none."""
        response, began_s = wire.PreferredAllocationResponse(), monotonic()
        for container_request in request.container_requests:
            try:
                ids = await self.allocator.prefer(
                    self.resource,
                    list(container_request.available_deviceIDs),
                    list(container_request.must_include_deviceIDs),
                    container_request.allocation_size,
                )
            except NeverGiven:  # Allocate answers it
                required_ids = container_request.must_include_deviceIDs
                all_ids = dict.fromkeys([*required_ids, *container_request.available_deviceIDs])
                ids = [*all_ids][: container_request.allocation_size]
            except HeteroError as error:
                self.observe("prefer", "refused", monotonic() - began_s)
                await self._refuse(context, error)
            response.container_responses.add(deviceIDs=ids)
        self.observe("prefer", "ok", monotonic() - began_s)
        return response

    async def Allocate(  # noqa: N802
        self, request: wire.AllocateRequest, context: grpc.aio.ServicerContext
    ) -> wire.AllocateResponse:
        """Return the edits of the share of the container that is being admitted.

        A kubelet fails a refused pod for good, and a controller makes another at once. So a pod
        that gets no share as it is is answered with what cannot start: it stays, and the kubelet
        tries it ever more rarely.
        """
        response, began_s, outcome = wire.AllocateResponse(), monotonic(), "ok"
        for container_request in request.container_requests:
            try:
                grant = await self.allocator.allocate(self.resource, container_request.devices_ids)
            except NeverGiven as error:
                log.warning("%s: will not start: %s", self.resource, error)
                response.container_responses.add(mounts=[_IMPOSSIBLE_MOUNT])
                outcome = "refused"
                continue
            except HeteroError as error:
                self.observe("allocate", "refused", monotonic() - began_s)
                await self._refuse(context, error)
            self.alignment.slots_given.set()
            annotations = self.allocator.driver.annotations(grant.edits, grant_id=grant.id)
            response.container_responses.append(answered(grant.edits, annotations))
        self.observe("allocate", outcome, monotonic() - began_s)
        return response

    async def PreStartContainer(  # noqa: N802
        self, request: wire.PreStartContainerRequest, context: grpc.aio.ServicerContext
    ) -> wire.PreStartContainerResponse:
        """Refuse a start whose devices are another container's, or of another NUMA node."""
        began_s = monotonic()
        try:
            owner = await self.allocator.confirm(self.resource, request.devices_ids)
            await self.alignment.expect(*owner)
        except HeteroError as error:
            self.observe("start", "refused", monotonic() - began_s)
            await self._refuse(context, error)
        self.observe("start", "ok", monotonic() - began_s)
        return wire.PreStartContainerResponse()

    async def _refuse(self, context: grpc.aio.ServicerContext, error: HeteroError) -> NoReturn:
        log.warning("%s: %s", self.resource, error)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        raise AssertionError  # abort raises


def _identity(socket_path: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        socket_stat = os.stat(socket_path)
        return socket_stat.st_ino, socket_stat.st_ctime_ns
    return None


@define(eq=False)
class DevicePlugins:
    """The plugins of one node; vendors declare their resources, which `config` may rename."""

    node: Node
    config: Path | None
    alignment: Alignment
    metrics: Metrics
    by_resource: dict[str, DevicePlugin] = field(init=False, factory=dict)
    _names: dict[str, tuple[ResourceNames, ...]] = field(init=False)  # by vendor
    _has_offered: bool = field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._names = self._declared()

    def names(self, vendor: str) -> tuple[ResourceNames, ...]:
        """Return the resource names of a vendor, renamed as the cluster's settings say."""
        return self._names.get(vendor, ())

    async def learn_names(self, devices: Iterable[Device]) -> None:
        """Read the vendors' resource names again if a device has a vendor without any."""
        if not {device.vendor for device in devices} <= self._names.keys():
            self._names = await asyncio.to_thread(self._declared)

    def _declared(self) -> dict[str, tuple[ResourceNames, ...]]:
        """Return the resource names of all vendors that answer."""
        vocabulary = settings.load(self.config).vocabulary(self.node.registry)
        return {vendor.name: vendor.resource_names for vendor in vocabulary.vendors}

    async def offer(self, devices: Iterable[Device]) -> None:
        """Offer each device as all resources that count it. A resource once offered stays."""
        taken_slots = await asyncio.to_thread(self.alignment.taken_slots)
        by_name: dict[str, list[Device]] = {name: [] for name in self.by_resource}
        for device in devices:
            for resource_names in self.names(device.vendor):
                if resource_names.devices.mean(device):
                    counted_device = _counted(device, resource_names.devices.shape)
                    by_name.setdefault(resource_names.count, []).append(counted_device)
        for name, resource_devices in by_name.items():
            if name not in self.by_resource:
                allocator, observe = self.alignment.allocator, self.metrics.observe
                plugin = DevicePlugin(name, allocator.kubelet, allocator, self.alignment, observe)
                self.by_resource[name] = plugin
            self.by_resource[name].offer(resource_devices, taken_slots)
        self._has_offered = True

    @property
    def all_serve(self) -> bool:
        """Whether the kubelet has all lists of devices and can admit pods."""
        return self._has_offered and all(plugin.serves for plugin in self.by_resource.values())

    async def attend(self) -> None:
        """Have each plugin serve, and register again after a restart of the kubelet."""
        for plugin in [*self.by_resource.values()]:  # a look may add some meanwhile
            await plugin.attend()

    async def close(self) -> None:
        """Stop all plugins."""
        for plugin in [*self.by_resource.values()]:
            await plugin.close()


def _counted(device: Device, shape: str | None) -> Device:
    """Return the device with a slot for each of its parts of a shape."""
    if shape is None:
        return device
    return evolve(device, capacity={**device.capacity, SLOTS: device.capacity.get(shape, 0)})
