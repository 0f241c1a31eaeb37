"""The kubelet of this node: its sockets, its registration call, and the devices that pods hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import grpc
from attrs import define, field

from hetero.kube.agent.proto.deviceplugin_pb2 import DevicePluginOptions, RegisterRequest
from hetero.kube.agent.proto.deviceplugin_pb2_grpc import RegistrationStub
from hetero.kube.agent.proto.podresources_pb2 import (
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)
from hetero.kube.agent.proto.podresources_pb2_grpc import PodResourcesListerStub
from hetero.model.errors import HeteroError

VERSION = "v1beta1"
OPTIONS = DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

#: (namespace, pod name) -> container name -> resource name -> device ids
Held = Mapping[tuple[str, str], Mapping[str, Mapping[str, frozenset[str]]]]

_TIMEOUT_S = 5.0
#: Above the answer about any node's pods.
_MOST_ANSWER_BYTES = 64 * 1024 * 1024


@define(eq=False)
class Kubelet:
    """The kubelet whose directory is `path`, /var/lib/kubelet on most nodes."""

    path: Path
    # It waits for us while we ask it, pod after pod: the connection is kept. None: not connected.
    _asked: PodResourcesListerStub | None = field(init=False, default=None)

    @property
    def plugins(self) -> Path:
        """The directory of the sockets of the kubelet and its device plugins."""
        return self.path / "device-plugins"

    def started(self) -> tuple[int, int] | None:
        """Return an identity of the running kubelet, from its socket; None without one."""
        try:
            socket_stat = (self.plugins / "kubelet.sock").stat()
        except FileNotFoundError:
            return None
        return socket_stat.st_ino, socket_stat.st_ctime_ns

    async def register(self, resource: str, endpoint: str) -> None:
        """Register `resource`, served on the socket `endpoint`. Raises `HeteroError`."""
        request = RegisterRequest(
            version=VERSION, endpoint=endpoint, resource_name=resource, options=OPTIONS
        )
        socket_path = self.plugins / "kubelet.sock"
        try:
            async with _channel(socket_path) as channel:
                stub = RegistrationStub(channel)  # type: ignore[no-untyped-call]
                await stub.Register(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            raise HeteroError(f"kubelet {socket_path}: {_why(error)}") from None

    async def held(self) -> Held:
        """Return the devices of all containers that the kubelet knows, or is admitting."""
        response = await self._listed()
        devices_by_pod: dict[tuple[str, str], dict[str, dict[str, frozenset[str]]]] = {}
        for pod in response.pod_resources:
            devices_by_container = devices_by_pod.setdefault((pod.namespace, pod.name), {})
            for container in pod.containers:
                ids_by_resource = devices_by_container.setdefault(container.name, {})
                for container_devices in container.devices:
                    # A resource may be listed several times, once for each NUMA node.
                    ids_before = ids_by_resource.get(container_devices.resource_name, frozenset())
                    ids_by_resource[container_devices.resource_name] = ids_before | frozenset(
                        container_devices.device_ids
                    )
        return devices_by_pod

    async def processors(self, namespace: str, pod: str, container: str) -> frozenset[int]:
        """Return the processors that the kubelet keeps for a container, none if it keeps none.

        Kubelets before 1.23 list those that all pods share, too.
        """
        response = await self._listed()
        return frozenset(
            processor
            for pod_resources in response.pod_resources
            if (pod_resources.namespace, pod_resources.name) == (namespace, pod)
            for container_resources in pod_resources.containers
            if container_resources.name == container
            for processor in container_resources.cpu_ids
        )

    async def _listed(self) -> ListPodResourcesResponse:
        """Return the list of pods' devices, over a new connection if the kubelet restarted."""
        socket_path = self.path / "pod-resources" / "kubelet.sock"
        while True:
            is_new = self._asked is None
            stub = self._asked
            if stub is None:
                new_stub = PodResourcesListerStub(_channel(socket_path))  # type: ignore[no-untyped-call]
                stub = self._asked = new_stub
            try:
                response: ListPodResourcesResponse = await stub.List(
                    ListPodResourcesRequest(), timeout=_TIMEOUT_S
                )
                return response
            except grpc.RpcError as error:
                if self._asked is stub:
                    self._asked = None  # not closed: others may be asking by it at this moment
                if is_new or error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise HeteroError(f"kubelet {socket_path}: {_why(error)}") from None


def _channel(socket_path: Path) -> grpc.aio.Channel:
    options = [
        # The authority that gRPC makes of a socket's path is one that Go's servers refuse.
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", _MOST_ANSWER_BYTES),
        # The kubelet may have started anew since the last connection.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(f"unix://{socket_path}", options=options)


def _why(error: grpc.RpcError) -> str:
    return f"{error.code().name.lower()}: {error.details()}"
