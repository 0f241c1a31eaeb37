"""The node agent: offers this node's devices to its kubelet and publishes them to the scheduler."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web
from attrs import define, evolve, field, frozen
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from hetero.container.log import tell
from hetero.container.pin import Libraries
from hetero.kube.agent.allocator import Allocator
from hetero.kube.agent.device_plugin import Plugin
from hetero.kube.agent.driver_injection import DriverInjection, InjectionWay
from hetero.kube.agent.kubelet import Kubelet
from hetero.kube.agent.metrics import Metrics
from hetero.kube.api import settings
from hetero.kube.api.annotations import INVENTORY, Key, inventory_text
from hetero.kube.api.client import Access, Api, Plain
from hetero.kube.api.events import Events
from hetero.model import SLOTS, Device, OnBypass, OnExcess
from hetero.model.errors import BadInput, HeteroError
from hetero.node.ledger.ledger import Grant
from hetero.node.native import limiter
from hetero.node.node import Node
from hetero.node.settings import load_settings
from hetero.node.view.bypass import PERIOD, Bypass
from hetero.node.view.excess import Excess
from hetero.node.view.monitor import Ended, Finding, Monitor, Reaction, reaction
from hetero.plugin.registry import Discovery
from hetero.plugin.resource_names import ResourceNames

log = logging.getLogger(__name__)

#: Seconds. A device's health is known to the kubelet within the first; a kubelet that started anew
#: is met within the second; a change that no event told of is found within the last.
DISCOVER, ATTEND, RECONCILE = 2.0, 0.5, 30.0
#: Seconds for which a thread that looks at cards or makes grants may keep the interpreter from
#: answering the kubelet.
SWITCH = 0.0005
#: A container's variable, of HAMi's: "true" has processes ended that hold memory past a limiter.
KILLER = "ACTIVE_OOM_KILLER"
#: What a pod's event calls a finding.
_REASONS: dict[type[Finding], str] = {
    Bypass: "PastLimiter",
    Excess: "MemoryExcess",
    Ended: "EndedPastLimiter",
}
#: What of a pod is kept, by the part it is in.
_NEEDED = {
    "metadata": ("annotations", "deletionTimestamp", "name", "namespace", "resourceVersion", "uid"),
    "spec": ("containers", "initContainers", "nodeName", "runtimeClassName"),
    "status": ("conditions", "phase"),
}


@frozen(kw_only=True)
class Options:
    """Where the agent finds what it needs of its node."""

    name: str
    kubelet: Path
    libraries: Path
    key_file: str
    metrics: int | None = None  # the port, on every address of the node
    config: Path | None = None  # the cluster's settings
    driver: InjectionWay = InjectionWay.FILES
    host: Path = Path("/")  # where the node's files are seen

    def __attrs_post_init__(self) -> None:
        if not self.name:
            raise BadInput("the node's name is not said: set NODE_NAME (the pod's spec.nodeName)")
        Key.read(self.key_file)


@define(eq=False)
class Agent:
    """One node's agent."""

    node: Node
    options: Options
    api: Api
    discovery: Discovery
    allocator: Allocator = field(init=False)
    metrics: Metrics = field(init=False)
    plugins: dict[str, Plugin] = field(init=False, factory=dict)
    # By vendor, as the cluster says them.
    _resource_names: dict[str, tuple[ResourceNames, ...]] = field(init=False)
    _monitor: Monitor = field(init=False)
    _events: Events = field(init=False)
    _published: str | None = field(init=False, default=None)  # what the API has

    def __attrs_post_init__(self) -> None:
        self._resource_names = self._declared()
        self.allocator = Allocator(
            node=self.node,
            name=self.options.name,
            key_file=self.options.key_file,
            api=self.api,
            kubelet=Kubelet(self.options.kubelet),
            libraries=Libraries(self.options.libraries),
            discovery=self.discovery,
            driver=DriverInjection(way=self.options.driver, root=self.options.host),
        )
        self.metrics = Metrics(self.allocator)
        self._monitor = Monitor(self.node, reactions=self._reaction)
        self._events = Events(self.api)

    async def run(self) -> None:
        """Serve until cancelled."""
        name = self.options.name
        tasks = [
            self._forever(self._discover, DISCOVER),
            self._forever(self._attend, ATTEND),
            self._forever(self._guard, PERIOD),
            self._reconcile(),
            self.api.follow(
                "/api/v1/pods",
                query={"fieldSelector": f"spec.nodeName={name}"},
                listed=self._pods_listed,
                changed=self._pod_changed,
                lost=_lost("pods"),
            ),
            self.api.follow(
                "/api/v1/nodes",
                query={"fieldSelector": f"metadata.name={name}"},
                listed=self._nodes_listed,
                changed=self._node_changed,
                lost=_lost("node"),
            ),
        ]
        try:
            async with self._metrics():
                await asyncio.gather(*tasks)
        finally:
            for plugin in self.plugins.values():
                await plugin.close()

    @asynccontextmanager
    async def _metrics(self) -> AsyncIterator[None]:
        """Answer Prometheus meanwhile."""
        if self.options.metrics is None:
            yield
            return

        async def answer(_: web.Request) -> web.Response:
            text = await asyncio.to_thread(generate_latest, self.metrics.registry)
            return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

        app = web.Application()
        app.router.add_get("/metrics", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, port=self.options.metrics).start()
        try:
            yield
        finally:
            await runner.cleanup()

    # --- devices ----------------------------------------------------------------------------------

    async def _discover(self) -> None:
        """Discover; offer and publish what changed."""
        self.discovery = self.allocator.discovery = await asyncio.to_thread(self.node.discover)
        if not {device.vendor for device in self.discovery.devices} <= self._resource_names.keys():
            self._resource_names = await asyncio.to_thread(self._declared)  # one answers by now
        for name, devices in self._resources().items():
            plugin = self.plugins.get(name)
            if plugin is None:
                plugin = self.plugins[name] = Plugin(
                    name, self.allocator.kubelet, self.allocator, self.metrics.observe
                )
            plugin.offer(devices)
        await self._publish()

    async def _guard(self) -> None:
        """Tell of what is past a limiter: in the agent's log, the node's, and the pod's events."""
        seen = await asyncio.to_thread(self._monitor.sample, self.discovery.devices)
        self.metrics.sighting = seen
        grants = {entry.id: entry for entry in self.node.snapshot().grants} if seen.news else {}
        for found in seen.news:
            log.warning("%s", found)
            tell(self.node, found.subject, str(found))
            entry = grants.get(found.grant or "")
            pod = entry and self.allocator.pod_of(entry)
            if pod:
                await self._events.tell(pod, _REASONS[type(found)], str(found))

    def _reaction(self, entry: Grant) -> Reaction:
        """Return what the pod's annotations say becomes of a grant's excess, or its variable.

        For the variable nobody is ended for device time: the drivers' figures of it are coarse.
        """
        said = reaction(self.node, entry)
        if self.allocator.variable(entry, KILLER) not in ("true", "1"):
            return said
        return Reaction(on_excess=OnExcess.KILL, on_bypass=OnBypass.KILL, spares_time=True)

    def _declared(self) -> dict[str, tuple[ResourceNames, ...]]:
        """Return the resource names of all vendors that answer."""
        said = settings.load(self.options.config).vocabulary(self.node.registry)
        return {vendor.name: vendor.resource_names for vendor in said.vendors}

    def _resources(self) -> dict[str, list[Device]]:
        """Return the devices that each kubelet resource counts; what was offered once stays."""
        found: dict[str, list[Device]] = {name: [] for name in self.plugins}
        for device in self.discovery.devices:
            for resource_names in self._resource_names.get(device.vendor, ()):
                if resource_names.mean(device):
                    found.setdefault(resource_names.count, []).append(
                        _counted(device, resource_names.shape)
                    )
        return found

    async def _publish(self) -> None:
        """Write the inventory, if the API has another."""
        text = inventory_text(self.discovery.devices)
        if self._published is None or self._published == text:
            return
        path = f"/api/v1/nodes/{self.options.name}"
        await self.api.patch(path, {"metadata": {"annotations": {INVENTORY: text}}})
        self._published = text
        log.info("published %d devices", len(self.discovery.devices))

    async def _attend(self) -> None:
        for plugin in self.plugins.values():
            await plugin.attend()

    # --- what the API says ------------------------------------------------------------------------

    def _pods_listed(self, items: list[Plain]) -> None:
        self.allocator.replace_pods(map(_needed, items))

    def _pod_changed(self, event: str, pod: Plain) -> None:
        if event == "DELETED":
            self.allocator.remove_pod(pod["metadata"]["uid"])
        else:
            self.allocator.update_pod(_needed(pod))

    def _nodes_listed(self, items: list[Plain]) -> None:
        for node in items:
            self._node_changed("ADDED", node)

    def _node_changed(self, event: str, node: Plain) -> None:
        if event != "DELETED":
            about = node["metadata"].get("annotations") or {}
            self._published = about.get(INVENTORY, "")
            self.allocator.driver.note_kubelet((node.get("status") or {}).get("nodeInfo") or {})

    async def _reconcile(self) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.allocator.reconcile_due.wait(), RECONCILE)
            self.allocator.reconcile_due.clear()
            try:
                await self.allocator.reconcile()
            except HeteroError as error:
                log.warning("reconcile: %s", error)

    async def _forever(self, act: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Act again and again; what fails is said once, and tried again."""
        said = ""
        while True:
            try:
                await act()
                said = ""
            except HeteroError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("%s", said)
            await asyncio.sleep(seconds)


def _needed(pod: Plain) -> Plain:
    """Return what shares are given by of a pod: of hundreds, all of it would take megabytes."""
    return {
        part: {name: pod[part][name] for name in names if name in (pod.get(part) or ())}
        for part, names in _NEEDED.items()
    }


def _counted(device: Device, shape: str | None) -> Device:
    """Return the device with as many slots as it has parts of a shape."""
    if shape is None:
        return device
    return evolve(device, capacity={**device.capacity, SLOTS: device.capacity.get(shape, 0)})


def _lost(what: str) -> Callable[[Exception], None]:
    return lambda error: log.warning("%s: the API does not answer: %s", what, error)


def node_of(options: Options) -> Node:
    """Return the node this program runs on, as the cluster and then the node itself set it up."""
    cluster = settings.load(options.config).of_node(options.name)
    return evolve(Node.here(), settings=load_settings(os.environ, cluster)).with_threads


def run(options: Options) -> None:
    """Run the agent of this node until it is told to end."""
    sys.setswitchinterval(SWITCH)
    asyncio.run(_run(options))


async def _run(options: Options) -> None:
    node = node_of(options)
    discovery = await asyncio.to_thread(node.discover)
    for vendor in discovery.vendors:  # else the first pod would find out, and fail
        if vendor.limiter and any(device.vendor == vendor.name for device in discovery.devices):
            limiter(vendor.limiter)
    async with Api(Access.here()).open() as api:
        agent = Agent(node, options, api, discovery)
        main = asyncio.ensure_future(agent.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, main.cancel)
        try:
            await main
        except asyncio.CancelledError:
            log.info("told to end: grants stay, and the next agent takes over")
