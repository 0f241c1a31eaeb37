"""One node with agent and kubelet, the scheduler that places pods on it, and their books."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from subprocess import Popen
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from attrs import define, field

from hetero.kube.agent import agent
from hetero.kube.client.api import Access, Api
from hetero.kube.cluster_view import snapshot
from hetero.kube.dra.way import AllocationWay
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.words.annotations import INVENTORY, Held, published
from hetero.kube.words.settings import Settings
from hetero.model import (
    CORE,
    MEMORY,
    POLICY_SLOTS,
    SLOTS,
    ContainerKind,
    Counters,
    Device,
    Usage,
    occupancies,
)
from hetero.node.inventory import inventory_of, with_lost
from hetero.node.tenants import containers
from hetero.node.view.observe import DeviceView, device_views, observe_node
from hetero.registry.registry import Registry
from tests.kube.api_server import Plain
from tests.kube.world import KEY, World, cgroup, until, world

Limits = Mapping[str, str]
Book = dict[str, dict[str, int]]
Books = dict[str, Book]
#: The agent's metrics of what is taken of a device; that of the core is a part of all of it.
_COUNTERS = {
    "hetero_device_memory_allocated_bytes": MEMORY,
    "hetero_device_core_allocated_ratio": CORE,
    "hetero_device_slots_allocated": SLOTS,
}


def pod_of(
    name: str,
    *main: Limits,
    init: Sequence[Limits] = (),
    sidecars: Sequence[Limits] = (),
) -> Plain:
    """Return a pod whose containers have these limits; it waits for a node."""

    def containers(kind: str, limits: Sequence[Limits], **more: str) -> list[Plain]:
        return [
            {"name": f"{kind}-{number}", "resources": {"limits": dict(one)}, **more}
            for number, one in enumerate(limits)
        ]

    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-11-28T00:00:00Z",
        },
        "spec": {
            "containers": containers("main", main),
            "initContainers": [
                *containers("sidecar", sidecars, restartPolicy="Always"),
                *containers("init", init),
            ],
        },
        "status": {"phase": "Pending"},
    }


@define(eq=False)
class Site:
    """Pods are applied, placed, admitted, run and ended here; whoever restarts does so alone."""

    at: World
    registry: Registry
    resources: frozenset[str]
    allocation: AllocationWay = AllocationWay.CLASSIC
    scheduler: Scheduler = field(init=False)
    _client: Any = field(init=False, default=None)
    _api: Api = field(init=False)
    _tasks: list[asyncio.Task[None]] = field(init=False, factory=list)
    # The processes that stand for containers of pods that are over, and whose cgroups they are in.
    _running_on: dict[str, Popen[bytes]] = field(init=False, factory=dict)
    cgroups: dict[int, str] = field(init=False, factory=dict)

    async def start_scheduler(self) -> None:
        """Start a scheduler that knows nothing, or another one."""
        await self.stop_scheduler()
        self.scheduler = Scheduler(
            self._api, Settings().vocabulary(self.registry), KEY, settings=Settings()
        )
        scheduler = self.scheduler
        followed = [part.follow() for part in (scheduler.nodes, scheduler.pods, scheduler.quotas)]
        if self.allocation is AllocationWay.DRA:
            followed.append(scheduler.claims.follow())
        self._tasks = [asyncio.ensure_future(one) for one in followed]
        self._client = TestClient(TestServer(self.scheduler.calls.app()))
        await self._client.start_server()
        await until(
            lambda: (
                self.scheduler.cache.inventory.devices("n1")
                and "pods" in self.scheduler.readiness.listed
            )
        )

    async def stop_scheduler(self) -> None:
        """End the scheduler, if one runs."""
        for task in self._tasks:
            task.cancel()
        if self._client is not None:
            await self._client.close()

    async def restart_agent(self) -> None:
        """End the agent at once and start another one."""
        await self.at.crash()
        self.at.kubelet.devices.clear()  # of a plugin that ended none is healthy
        await self.at.start()
        await self.offered()

    async def offered(self) -> None:
        """Wait until the kubelet knows all that the node offers."""
        if self.allocation is AllocationWay.DRA:
            await until(lambda: self.at.api.slices)
        else:
            await until(lambda: self.resources <= self.at.kubelet.devices.keys())

    async def place(self, pod: Plain) -> str | None:
        """Have the scheduler bind a pod; return why it does not."""
        about = pod["metadata"]
        self.at.api.put("pods", pod, event="ADDED")
        answer = await self._call("filter", Pod=pod, NodeNames=["n1"])
        if answer["NodeNames"] != ["n1"]:
            return str(answer.get("Error") or answer["FailedNodes"])
        # kube-scheduler sends no pod while the kubelet counts no healthy device of an agent anew
        await until(lambda: self.at.kubelet.has_healthy(pod))
        refusal = await self._call(
            "bind", PodName=about["name"], PodNamespace="default", PodUID=about["uid"], Node="n1"
        )
        reason: str | None = refusal.get("Error")
        return reason

    async def run(self, pod: Plain) -> None:
        """Have the kubelet admit a pod and start its containers in their order."""
        given = await self.at.kubelet.admit(pod)
        for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
            if container["name"] in given:
                await self.at.kubelet.start_container(pod, container["name"])
        pod["status"] = {
            "phase": "Running",
            "conditions": [{"type": "Initialized", "status": "True"}],
            "containerStatuses": _statuses(pod["spec"]["containers"], "running"),
        }
        self.at.api.put("pods", pod)

    async def apply(self, pod: Plain) -> str | None:
        """Place a pod and run it; return why it cannot be placed, and forget it then."""
        refusal = await self.place(pod)
        if refusal is None:
            await self.run(pod)
        else:
            self.at.api.put("pods", pod, event="DELETED")
        return refusal

    async def end(self, pod: Plain, *, deleted: bool = True) -> None:
        """End a pod, and wait until the node has taken back what it held."""
        self.at.kubelet.forget(pod)
        pod["status"]["containerStatuses"] = _statuses(pod["spec"]["containers"], "terminated")
        self._over(pod, deleted=deleted)
        await self._given_back(pod)

    async def leave(self, pod: Plain, *, deleted: bool = True) -> None:
        """Have a pod be over while its containers run on, and wait until its node says so."""
        uid = pod["metadata"]["uid"]
        process = self._running_on[uid] = Popen(["sleep", "infinity"])
        self.cgroups[process.pid] = cgroup(uid, engine="crio-")
        self.at.kubelet.forget(pod)
        self._over(pod, deleted=deleted)
        await self._published(lambda running_on: uid in running_on)

    async def stop(self, pod: Plain) -> None:
        """End the containers of a pod that is over, and wait until its node gives it no room."""
        uid = pod["metadata"]["uid"]
        process = self._running_on.pop(uid)
        process.kill()
        process.wait()
        del self.cgroups[process.pid]
        self.at.agent.allocator.reconcile_due.set()  # which it is within a second
        await self._given_back(pod)
        await self._published(lambda running_on: uid not in running_on)

    async def stop_all(self) -> None:
        """End all processes that run on."""
        for process in self._running_on.values():
            process.kill()
            process.wait()

    def _over(self, pod: Plain, *, deleted: bool) -> None:
        if deleted:
            self.at.api.put("pods", pod, event="DELETED")
        else:
            pod["status"]["phase"] = "Succeeded"
            self.at.api.put("pods", pod)

    async def _given_back(self, pod: Plain) -> None:
        label = f"default/{pod['metadata']['name']}/"
        await until(lambda: not any(one.startswith(label) for one in self.at.standing()))

    async def _published(self, right: Callable[[Held], bool]) -> None:
        """Wait until the node's inventory says what is right of what runs on."""

        def told() -> Held:
            notes = self.at.api.nodes["n1"]["metadata"]["annotations"]
            return published(notes[INVENTORY], node="n1")[1].ended_pods

        await until(lambda: right(self.at.agent.allocator.running_on))
        self.at.agent.cards.due.set()  # it looks now, not at its next time
        await until(lambda: right(told()))

    @property
    def capacity(self) -> dict[str, Counters]:
        """What each device has."""
        return {
            device.uuid: device.capacity for device in self.at.agent.allocator.discovery.devices
        }

    async def books(self, *, driver: bool = True) -> Books:
        """Return what each book says is taken of each device.

        `driver`: the node's own commands and the agent's metrics ask the drivers, as they do; else
        they are given the cards that the agent knows.
        """
        async with Api(Access(server=self.at.url)).open() as api:
            (member,) = (await snapshot(api)).nodes
        views = {
            "cluster's view": member.devices,
            "node's view": observe_node(self.at.node).devices if driver else self._seen(),
        }
        books = {
            "scheduler": self._of_scheduler(),
            "agent": self._of_agent(),
            "agent's metrics": self._of_metrics(driver=driver),
            **{
                name: {row.device.uuid: dict(row.held) for row in rows}
                for name, rows in views.items()
            },
        }
        return {name: self._comparable(book) for name, book in books.items()}

    def _comparable(self, book: Book) -> Book:
        """Return a book in the words of slices, which say no policies, where claims are read."""
        if self.allocation is AllocationWay.CLASSIC:
            return book
        return {
            uuid: {
                re.sub("[^a-z0-9]+", "-", name.lower()): taken[name]
                for name in taken.keys() - POLICY_SLOTS
            }
            for uuid, taken in book.items()
        }

    def within_slots(self, books: Books, uuids: Collection[str]) -> Books:
        """Return the books with no more slots taken of these devices than they have.

        Of a device that a limiter shared before, more may hold a part than it is to be cut into.
        """
        capacity_by_uuid = self.capacity
        return {
            name: {
                uuid: {**taken, SLOTS: min(taken[SLOTS], capacity_by_uuid[uuid][SLOTS])}
                if uuid in uuids
                else taken
                for uuid, taken in book.items()
            }
            for name, book in books.items()
        }

    async def settled(self, *, driver: bool = True) -> Books:
        """Return the books once the scheduler has heard what the API says."""
        for _ in range(1000):
            if self._comparable(self._of_scheduler()) == self._comparable(self._of_agent()):
                break
            await asyncio.sleep(0.02)
        return await self.books(driver=driver)

    def _of_scheduler(self) -> Book:
        devices = self.scheduler.cache.inventory.devices("n1")
        return taken_amounts(devices, self.scheduler.cache.free("n1"))

    def _of_agent(self) -> Book:
        discovery = self.at.agent.allocator.discovery
        free = inventory_of(discovery, self.at.node.snapshot()).free()
        return taken_amounts(discovery.devices, free)

    def _seen(self) -> tuple[DeviceView, ...]:
        """Return the rows of the node's view, of the cards that the agent knows."""
        node, discovery = self.at.node, self.at.agent.allocator.discovery
        standing = node.snapshot()
        inventory = node.inventory(with_lost(discovery, standing.grants), standing)
        return device_views(
            inventory, standing, [(device, Usage()) for device in inventory.devices]
        )

    def _of_metrics(self, *, driver: bool) -> Book:
        """Return what the metrics say; of counters that have none, what the agent says."""
        taken_by_uuid, capacity_by_uuid = self._of_agent(), self.capacity
        metrics, devices = self.at.agent.metrics, self.at.agent.allocator.discovery.devices
        usages = [(device, Usage()) for device in devices]
        families = (
            metrics.collect() if driver else metrics.of_devices(self.at.node.snapshot(), usages)
        )
        for family in families:
            counter = _COUNTERS.get(family.name)
            if counter is None:
                continue
            for sample in family.samples:
                uuid = sample.labels["UUID"]
                of = capacity_by_uuid[uuid][CORE] if counter == CORE else 1
                taken_by_uuid[uuid][counter] = round(sample.value * of)
        return taken_by_uuid

    def shared_parts(self) -> list[str]:
        """Return the parts that several containers have which run at the same time."""
        holder_by_part: dict[tuple[str, str], str] = {}
        shared: list[str] = []
        for grant in self.at.node.snapshot().grants:
            kind = grant.owner.get("kind")
            for piece in grant.allocation.pieces:
                # An init container has the one of a container that runs after it.
                if piece.part is None or kind == ContainerKind.INIT.value:
                    continue
                holder = holder_by_part.setdefault((piece.device, piece.part), str(grant.label))
                if holder != str(grant.label):
                    shared.append(f"{piece.part}: {holder} and {grant.label}")
        return shared

    def charges(self) -> dict[str, Counter[str]]:
        """Return what a quota counts, and what it should of all that stands on the node."""
        quotas = self.scheduler.quotas.quotas
        discovery = self.at.agent.allocator.discovery
        device_by_uuid = {device.uuid: device for device in discovery.devices}
        due = Counter[str]()
        for pod in inventory_of(discovery, self.at.node.snapshot()).pods:
            for occupancy in occupancies(pod):
                due += quotas.charge(device_by_uuid[occupancy.device], occupancy.takes)
        return {"quota": +quotas.used.get("default", Counter()), "agent": due}

    async def _call(self, verb: str, **args: Any) -> Any:
        answer = await self._client.post(f"/{verb}", json=args)
        return await answer.json()


def _statuses(containers: Sequence[Plain], state: str) -> list[Plain]:
    return [{"name": container["name"], "state": {state: {}}} for container in containers]


def differences(books: Books) -> list[str]:
    """Return where books differ from the scheduler's."""
    return [
        f"{name}: {uuid}: {book.get(uuid)} and not {taken}"
        for name, book in books.items()
        for uuid, taken in books["scheduler"].items()
        if book.get(uuid) != taken
    ] + [name for name, book in books.items() if book.keys() != books["scheduler"].keys()]


def taken_amounts(devices: Sequence[Device], free: Mapping[str, Counters]) -> Book:
    return {
        device.uuid: {
            counter: amount - free[device.uuid][counter]
            for counter, amount in device.capacity.items()
        }
        for device in devices
    }


@asynccontextmanager
async def site(
    registry: Registry, *resources: str, allocation: AllocationWay = AllocationWay.CLASSIC
) -> AsyncIterator[Site]:
    """Run a node of a registry's cards, which offers these resources, and a scheduler."""
    with pytest.MonkeyPatch.context() as patch:
        # Eight drivers are asked by their processes: as seldom as an agent does by itself.
        async with world(
            registry=registry,
            awaited=resources[0],
            allocation=allocation,
            look_s=agent.DISCOVERY_PERIOD_S,
        ) as at:
            made = Site(at, registry, frozenset(resources), allocation)
            patch.setattr(containers, "container_cgroup", made.cgroups.get)
            async with Api(Access(server=at.url)).open() as made._api:
                await made.offered()
                await made.start_scheduler()
                try:
                    yield made
                finally:
                    await made.stop_scheduler()
                    await made.stop_all()
