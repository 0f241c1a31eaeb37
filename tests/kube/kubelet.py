"""A kubelet in this process: the real protocol on real sockets, admitting as a kubelet does."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import grpc
from attrs import define, field

from hetero.kube.agent.proto import deviceplugin_pb2 as wire
from hetero.kube.agent.proto import podresources_pb2
from hetero.kube.agent.proto.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from hetero.kube.agent.proto.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)


class UnexpectedAdmissionError(Exception):
    """A pod that names a resource without a healthy device: a kubelet fails it for good."""


class TopologyAffinityError(Exception):
    """A pod that the Topology Manager did not admit: a kubelet fails it for good."""


@define(eq=False)
class FakeKubelet(RegistrationServicer, PodResourcesListerServicer):
    """What a plugin sees of a kubelet. `held` is (namespace/pod, container) -> device ids.

    `policy` is that of its Topology Manager: none, best-effort or single-numa-node. `processors`
    are those by NUMA node that it may keep for one container, `kept` those that it does.
    """

    path: Path
    registered: dict[str, wire.RegisterRequest] = field(factory=dict)
    registrations: int = 0
    devices: dict[str, dict[str, str]] = field(factory=dict)  # resource -> id -> health
    known: list[dict[str, Any]] = field(factory=list)
    held: dict[tuple[str, str], tuple[str, list[str]]] = field(factory=dict)
    policy: str = "none"
    processors: dict[int, list[int]] = field(factory=dict)
    kept: dict[tuple[str, str], list[int]] = field(factory=dict)
    numa: dict[str, set[int]] = field(factory=dict)  # id -> NUMA nodes
    _server: grpc.aio.Server | None = None
    _watching: set[asyncio.Task[None]] = field(factory=set)

    async def start(self) -> None:
        """Serve on new sockets, as a kubelet that starts does: it removes those it finds."""
        plugins, resources = self.path / "device-plugins", self.path / "pod-resources"
        for directory in (plugins, resources):
            directory.mkdir(parents=True, exist_ok=True)
            for socket in directory.glob("*.sock"):
                socket.unlink()
        self.registered.clear()
        self.devices.clear()
        self._server = grpc.aio.server()
        add_RegistrationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        add_PodResourcesListerServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        for directory in (plugins, resources):
            self._server.add_insecure_port(f"unix://{directory}/kubelet.sock")
        await self._server.start()

    async def stop(self) -> None:
        """End, as by kill -9: sockets stay behind and answer no more."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace=None)

    def watches(self) -> bool:
        """Whether a plugin is there that tells of its devices."""
        return any(not task.done() for task in self._watching)

    # --- what it serves ---------------------------------------------------------------------

    async def Register(self, request: wire.RegisterRequest, context: Any) -> wire.Empty:  # noqa: N802
        self.registered[request.resource_name] = request
        self.registrations += 1
        self._watching.add(asyncio.ensure_future(self._watch(request.resource_name)))
        return wire.Empty()

    async def List(self, request: Any, context: Any) -> podresources_pb2.ListPodResourcesResponse:  # noqa: N802
        answer = podresources_pb2.ListPodResourcesResponse()
        for pod in self.known:
            about = pod["metadata"]
            entry = answer.pod_resources.add(name=about["name"], namespace=about["namespace"])
            for container in pod["spec"]["containers"]:  # not the init containers, as 1.20
                of = entry.containers.add(name=container["name"])
                key = (f"{about['namespace']}/{about['name']}", container["name"])
                if key in self.held:
                    resource, ids = self.held[key]
                    of.devices.add(resource_name=resource, device_ids=ids)
                of.cpu_ids.extend(self.kept.get(key, ()))
        return answer

    # --- what it does -------------------------------------------------------------------------

    def has_healthy(self, pod: dict[str, Any]) -> bool:
        """Return whether each resource that a pod asks for has a healthy device."""
        containers = (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
        asked = {name for one in containers for name in one.get("resources", {}).get("limits", {})}
        return all(
            "Healthy" in self.devices.get(name, {}).values() for name in asked & {*self.registered}
        )

    async def admit(self, pod: dict[str, Any]) -> dict[str, wire.ContainerAllocateResponse]:
        """Admit a pod as the kubelet does: known first, then devices for each container."""
        if pod not in self.known:
            self.known.append(pod)
        answers = {}
        starting = pod["spec"].get("initContainers", [])
        reusable_ids: dict[str, list[str]] = {}
        for container in (*starting, *pod["spec"]["containers"]):
            for resource, amount in container.get("resources", {}).get("limits", {}).items():
                if resource not in self.registered:
                    continue
                # As of 1.36, whatever the number is.
                if "Healthy" not in self.devices[resource].values():
                    raise UnexpectedAdmissionError(f"no healthy devices present: {resource}")
                if not int(amount):
                    continue
                reusable = reusable_ids.setdefault(resource, [])
                nodes = self._aligned(resource, int(amount), _own_processors(pod, container))
                ids = await self._choose(resource, int(amount), reusable, nodes)
                answers[container["name"]] = await self.allocate(resource, ids)
                if container in starting and container.get("restartPolicy") != "Always":
                    reusable += [one for one in ids if one not in reusable]
                else:  # it runs on beside those that come
                    reusable[:] = [one for one in reusable if one not in ids]
                about = pod["metadata"]
                key = (f"{about['namespace']}/{about['name']}", container["name"])
                self.held[key] = (resource, ids)
                self._keep(key, _own_processors(pod, container), nodes)
        return answers

    async def allocate(self, resource: str, ids: list[str]) -> wire.ContainerAllocateResponse:
        """Ask for devices that were chosen for a container."""
        async with self._plugin(resource) as plugin:
            request = wire.AllocateRequest()
            request.container_requests.add(devices_ids=ids)
            answer = await plugin.Allocate(request)
            given: wire.ContainerAllocateResponse = answer.container_responses[0]
            return given

    async def start_container(self, pod: dict[str, Any], container: str) -> None:
        """Ask before a container starts, each time it does."""
        about = pod["metadata"]
        resource, ids = self.held[f"{about['namespace']}/{about['name']}", container]
        async with self._plugin(resource) as plugin:
            await plugin.PreStartContainer(wire.PreStartContainerRequest(devices_ids=ids))

    def forget(self, pod: dict[str, Any]) -> None:
        """Let a pod that ended go, with its devices."""
        about = pod["metadata"]
        self.known.remove(pod)
        for key in [key for key in self.held if key[0] == f"{about['namespace']}/{about['name']}"]:
            del self.held[key]
            self.kept.pop(key, None)

    def _free(self, resource: str) -> list[str]:
        taken = {one for name, ids in self.held.values() if name == resource for one in ids}
        healthy = [one for one, health in self.devices[resource].items() if health == "Healthy"]
        return [one for one in healthy if one not in taken]

    def _unkept(self, node: int) -> list[int]:
        kept = {one for processors in self.kept.values() for one in processors}
        return [one for one in self.processors[node] if one not in kept]

    def _aligned(self, resource: str, amount: int, processors: int) -> set[int]:
        """Return the NUMA nodes that have enough: the fewest, of those the lowest."""
        every = sorted(self.processors)
        counts = {"none": (), "best-effort": range(1, len(every)), "single-numa-node": (1,)}
        for count in counts[self.policy]:
            for nodes in combinations(every, count):
                slots = [one for one in self._free(resource) if self.numa[one] & {*nodes}]
                unkept = [one for node in nodes for one in self._unkept(node)]
                if len(slots) >= amount and len(unkept) >= processors:
                    return {*nodes}
        if self.policy == "single-numa-node":
            raise TopologyAffinityError
        return {*every}

    def _keep(self, key: tuple[str, str], processors: int, nodes: set[int]) -> None:
        """Keep processors of NUMA nodes for a container, the lowest first."""
        if processors:
            unkept = [one for node in sorted(nodes) for one in self._unkept(node)]
            self.kept[key] = unkept[:processors]

    async def _choose(
        self, resource: str, amount: int, must: list[str], nodes: Collection[int] = ()
    ) -> list[str]:
        free = self._free(resource)
        aligned = [one for one in free if self.numa[one].intersection(nodes)]
        if self.policy != "none" and len(aligned) + len(must) > amount:
            free = aligned
        elif self.policy != "none" and aligned:  # the plugin is not asked
            return [*must, *aligned, *(one for one in free if one not in aligned)][:amount]
        request = wire.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=[*must, *free],
            must_include_deviceIDs=must[:amount],
            allocation_size=amount,
        )
        async with self._plugin(resource) as plugin:
            answer = await plugin.GetPreferredAllocation(request)
        return list(answer.container_responses[0].deviceIDs)

    async def _watch(self, resource: str) -> None:
        async with self._plugin(resource) as plugin:
            with suppress(grpc.aio.AioRpcError):  # the plugin ended
                async for answer in plugin.ListAndWatch(wire.Empty()):
                    self.numa |= {
                        one.ID: {node.ID for node in one.topology.nodes} for one in answer.devices
                    }
                    self.devices[resource] = {one.ID: one.health for one in answer.devices}

    @asynccontextmanager
    async def _plugin(self, resource: str) -> AsyncIterator[Any]:
        socket = self.path / "device-plugins" / self.registered[resource].endpoint
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix://{socket}", options=options) as channel:
            yield DevicePluginStub(channel)  # type: ignore[no-untyped-call]


def _own_processors(pod: dict[str, Any], container: dict[str, Any]) -> int:
    """Return how many processors a kubelet keeps for a container alone."""
    guaranteed = pod.get("status", {}).get("qosClass") == "Guaranteed"
    return int(container["resources"]["limits"].get("cpu", 0)) if guaranteed else 0
