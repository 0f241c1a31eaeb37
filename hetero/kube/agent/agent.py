"""The node agent: offers this node's devices to its kubelet and publishes them to the scheduler."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web
from attrs import define, evolve, field, frozen

from hetero.container.pin import Libraries
from hetero.kube.agent.alignment import Alignment
from hetero.kube.agent.allocator import Allocator
from hetero.kube.agent.device_plugin import DevicePlugins
from hetero.kube.agent.driver_injection import DriverInjection
from hetero.kube.agent.duty import Duty
from hetero.kube.agent.inventory_publisher import InventoryPublisher
from hetero.kube.agent.kubelet import Kubelet
from hetero.kube.agent.limiter_guard import LimiterGuard
from hetero.kube.agent.metrics import Metrics
from hetero.kube.agent.node_cards import NodeCards
from hetero.kube.agent.node_grants import node_grants, without_held
from hetero.kube.agent.node_pods import NodePods
from hetero.kube.agent.selinux_label import label
from hetero.kube.client.api import Access, Api
from hetero.kube.client.events import Events
from hetero.kube.dra.admin_access import AdminAccess
from hetero.kube.dra.driver import DraDriver, Sockets
from hetero.kube.dra.node_claims import CLAIM_UID, NodeClaims
from hetero.kube.dra.publisher import Publisher
from hetero.kube.dra.way import AllocationWay, by_claims, served, slice_probe
from hetero.kube.objects.kinds import NodeObject, Pod
from hetero.kube.server.delegated import Gate, metrics_app
from hetero.kube.server.key_pair import own_context
from hetero.kube.server.sources import opened
from hetero.kube.words import settings
from hetero.kube.words.annotations import INVENTORY, NodeGrants
from hetero.kube.words.node_sizes import node_sizes, surpassed
from hetero.kube.words.pod import ended
from hetero.kube.words.runtime_variables import InjectionWay
from hetero.kube.words.signing import PublicKeys
from hetero.model import Device
from hetero.model.errors import BadInput, HeteroError
from hetero.node.native import limiter
from hetero.node.node import Node
from hetero.node.other_dra_drivers import note_other_dra_drivers
from hetero.node.settings import load_settings
from hetero.node.view.bypass import SAMPLE_PERIOD_S
from hetero.registry.registry import Discovery

log = logging.getLogger(__name__)

#: Seconds. A device's health is known to the kubelet within the first; a kubelet that started anew
#: is met within the second; a change that no event told of is found within the last.
DISCOVERY_PERIOD_S, KUBELET_PERIOD_S, RECONCILE_PERIOD_S = 2.0, 0.5, 30.0
#: Seconds until what a program of the node took is noticed: a pod that is bound before the
#: scheduler knows of it is refused. After that the next is noticed later: a look asks drivers.
PROGRAMS_PERIOD_S, PROGRAMS_PAUSE_S = 0.25, 1.0
#: Seconds for which a thread that looks at cards or makes grants may keep the interpreter from
#: answering the kubelet.
THREAD_SWITCH_S = 0.0005
#: Seconds for which an agent that is told to end serves on: its node gets no more pods from the
#: moment on that its own pod is being ended, and those that are on their way are still admitted.
SHUTDOWN_DELAY_S = 2.0
#: Seconds after which a look is tried again that failed, or found a claim that goes when its
#: container does.
RETRY_S = 1.0


@frozen(kw_only=True)
class Options:
    """Where the agent finds what it needs of its node, and how it gives out devices."""

    name: str
    kubelet: Path
    libraries: Path
    public_keys: str  # the file of them
    webhook: str = "hetero-system/hetero-webhook"  # namespace and name of its Service
    token_file: Path = Path("/var/run/secrets/hetero/token")  # proves where this agent runs
    metrics: int | None = None  # the port, on every address of the pod
    insecure_metrics: bool = False  # serve them in plain HTTP, to everybody
    config: Path | None = None  # the cluster's settings
    driver_injection: InjectionWay = InjectionWay.FILES
    host: Path = Path("/")  # where the node's files are seen
    driver_root: str = ""  # the node's path of the root directory of a driver's container
    selinux_type: str = ""  # of what containers get of this node's files; "": as it is
    allocation: AllocationWay = AllocationWay.CLASSIC
    unserved: bool = False  # whether it is classic because the API server serves no claims
    cdi: Path = Path("/var/run/cdi")  # where claims are described to the container runtime
    autoscaler: bool = False  # whether the node's status is to say what an autoscaler reads

    def __attrs_post_init__(self) -> None:
        if not self.name:
            raise BadInput("the node's name is not said: set NODE_NAME (the pod's spec.nodeName)")
        if not all(self.webhook.partition("/")):
            raise BadInput(f"webhook {self.webhook!r}: write namespace/name")
        if self.allocation is not AllocationWay.DRA:  # else nothing is signed
            PublicKeys.read(self.public_keys)

    @property
    def inventories(self) -> str:
        """Where the API server hands an inventory on to the webhook."""
        namespace, _, name = self.webhook.partition("/")
        return f"/api/v1/namespaces/{namespace}/services/https:{name}:https/proxy/inventory"


@define(eq=False)
class Agent:
    """One node's agent."""

    node: Node
    options: Options
    api: Api
    cards: NodeCards
    allocator: Allocator = field(init=False)
    metrics: Metrics = field(init=False)
    plugins: DevicePlugins = field(init=False)
    guard: LimiterGuard = field(init=False)
    inventory: InventoryPublisher = field(init=False)
    # Where claims are served: they may be on any node of a cluster that has both ways.
    driver: DraDriver | None = field(init=False, default=None)
    publisher: Publisher | None = field(init=False, default=None)
    by_claims: bool | None = field(init=False)  # None: the API has not told

    def __attrs_post_init__(self) -> None:
        cluster_settings = settings.load(self.options.config)
        self.by_claims = by_claims(self.options.allocation, None)
        self.allocator = Allocator(
            node=self.node,
            pods=NodePods(self.options.name, self.options.public_keys, self.api),
            kubelet=Kubelet(self.options.kubelet),
            libraries=Libraries(self.options.libraries),
            cards=self.cards,
            driver=DriverInjection(
                way=self.options.driver_injection,
                root=self.options.host,
                driver_root=self.options.driver_root.rstrip("/"),
            ),
        )
        self.metrics, events = Metrics(self.allocator), Events(self.api)
        alignment = Alignment(self.allocator, events, self.options.autoscaler)
        self.plugins = DevicePlugins(self.node, self.options.config, alignment, self.metrics)
        self.guard = LimiterGuard(self.node, self.allocator, self.metrics, events)
        inventory_path, token_file = self.options.inventories, self.options.token_file
        self.inventory = InventoryPublisher(self.api, self.allocator, inventory_path, token_file)
        self.cards.resting.publish = self._publish
        if self.options.allocation is not AllocationWay.CLASSIC:
            claims = NodeClaims(
                node=self.node,
                name=self.options.name,
                api=self.api,
                libraries=self.allocator.libraries,
                discovery=lambda: self.discovery,
                pod=self.allocator.pods.named,
                injection=self.allocator.inject,
                cdi=self.options.cdi,
            )
            sockets = Sockets(kubelet=self.options.kubelet)
            self.driver = DraDriver(claims, sockets, self.allocator.reconcile_due)
            self.publisher = Publisher(
                api=self.api,
                node=self.options.name,
                names=self.plugins.names,
                host=self.options.host,
                effect="NoExecute" if cluster_settings.evict_unhealthy else "NoSchedule",
            )
        else:
            self._tell_of_claims()

    @property
    def discovery(self) -> Discovery:
        """The node's cards, by the last look."""
        return self.cards.discovery

    def _tell_of_claims(self) -> None:
        """Log which claims have devices here: an agent of the classic way takes none back.

        The directory of their specs is mounted for it where the node's files are seen alone.
        """
        cdi_path = self.options.host / self.options.cdi.absolute().relative_to("/")
        grants = self.node.snapshot().grants
        labels = [str(grant.label) for grant in grants if CLAIM_UID in grant.owner]
        labels += map("/".join, AdminAccess(cdi_path).standing().values())
        if labels:
            log.warning(
                "claims have devices here (%s), and with allocation classic nobody takes them "
                "back: %s until their pods have ended. The inventory does not have their shares: "
                "this node may refuse pods that are sent to those cards",
                ", ".join(labels),
                "have the API server serve claims" if self.options.unserved else "upgrade to both",
            )

    async def run(self) -> None:
        """Serve until cancelled."""
        name = self.options.name
        tasks = [
            self._forever(self._discover, DISCOVERY_PERIOD_S, due=self.cards.due),
            self._forever(self._notice_programs, PROGRAMS_PERIOD_S),
            self._forever(self._offer, DISCOVERY_PERIOD_S, due=self.plugins.alignment.slots_given),
            self._forever(self._attend, KUBELET_PERIOD_S),
            self._forever(lambda: self.guard.look(self.discovery.devices), SAMPLE_PERIOD_S),
            self._reconcile(),
            self.api.follow(
                "/api/v1/pods",
                Pod,
                query={"fieldSelector": f"spec.nodeName={name}"},
                listed=self._pods_listed,
                changed=self._pod_changed,
                lost=_lost("pods"),
            ),
            self.api.follow(
                "/api/v1/nodes",
                NodeObject,
                query={"fieldSelector": f"metadata.name={name}"},
                listed=self._nodes_listed,
                changed=self._node_changed,
                lost=_lost("node"),
            ),
        ]
        if self.options.autoscaler:
            tasks.append(self._forever(self._state_sizes, DISCOVERY_PERIOD_S))
        try:
            if self.driver and self.publisher:
                await self.driver.start()
                tasks.append(self.publisher.follow())
                tasks.append(self._forever(self._end_claims, RETRY_S))
            async with self._metrics():
                await asyncio.gather(*tasks)
        finally:
            await self.plugins.close()
            if self.driver:
                await self.driver.close()

    @asynccontextmanager
    async def _metrics(self) -> AsyncIterator[None]:
        """Answer Prometheus meanwhile."""
        if self.options.metrics is None:
            yield
            return

        is_secure = not self.options.insecure_metrics
        service = metrics_app(self.metrics.registry, gate=Gate(self.api) if is_secure else None)
        service.router.add_get("/readyz", self._ready)
        tls_context = own_context(self.options.name) if is_secure else None
        async with opened(service, host="", port=self.options.metrics, tls_context=tls_context):
            yield

    async def _ready(self, _: web.Request) -> web.Response:
        if self.plugins.all_serve:
            return web.Response(text="ok")
        return web.Response(status=503, text="the kubelet does not know the devices (yet)")

    # --- devices ----------------------------------------------------------------------------------

    async def _discover(self) -> None:
        """Discover; offer and publish what changed."""
        changed_devices = await asyncio.to_thread(self.cards.look)
        if changed_devices and self.driver:
            self.allocator.reconcile_due.set()  # claims say how their devices are
        await self.cards.tell_of_idle_cordons(self.guard.events)
        if self.allocator.pods.listed:
            await self._tell_of_health(self.cards.newly_unhealthy())
        await self.plugins.learn_names(self.discovery.devices)
        if self.by_claims is None:
            return
        await self._offer()
        await self._publish()
        untold = self.cards.resting.untold
        while untold:
            await self.cards.tell(self.guard.events, "CardsRest", untold.pop(0))
        if self.publisher and self.by_claims:
            offered_devices = without_held(self.cards.offered, self.cards.grants, self._gone_claims)
            await self.publisher.publish(offered_devices, self.cards.numbers, self._grants)
        elif self.publisher:
            await self.publisher.withdraw()
        if self.publisher:
            note_other_dra_drivers(self.node, self.publisher.other_dra_drivers)

    @property
    def _gone_claims(self) -> set[str]:
        return self.driver.claims.gone if self.driver else set()

    @property
    def _grants(self) -> NodeGrants:
        """What stands on the node and is in no object of the API as it stands."""
        allocator = self.allocator
        return node_grants(
            self.cards.grants, allocator.pods, allocator.running_on, self._gone_claims
        )

    async def _notice_programs(self) -> None:
        """Have a look be at once that is to publish what programs of the node hold by now."""
        if await asyncio.to_thread(self.cards.have_other_programs):
            self.cards.due.set()
            await asyncio.sleep(PROGRAMS_PAUSE_S)

    async def _publish(self) -> None:
        """Publish the cards to the scheduler, if it chooses them."""
        if self.by_claims is not None and self.options.allocation is not AllocationWay.DRA:
            devices = None if self.by_claims else self.discovery.devices
            await self.inventory.publish(devices, self._grants)

    async def _state_sizes(self) -> None:
        """Have the node's status state what an autoscaler reads of its cards."""
        if self.by_claims is not False or not self.allocator.pods.listed:
            return
        sizes = node_sizes(self.discovery.devices, self.plugins.names)
        pods = [pod for pod in self.allocator.pods.by_uid.values() if not ended(pod)]
        name = surpassed(sizes, pods)
        if name is not None:
            raise HeteroError(
                f"pods of this node request more {name} than its {sizes[name]}: its status states "
                "nothing for autoscalers (a size with a suffix such as Gi? create such pods anew)"
            )
        await self.inventory.state_sizes(sizes)

    async def _offer(self) -> None:
        if self.by_claims is not None:
            await self.plugins.offer(() if self.by_claims else self.cards.offered)

    async def _tell_of_health(self, sick_devices: Iterable[Device]) -> None:
        """Tell the pods on cards that these are unhealthy by now."""
        for device in sick_devices:
            sentence = (
                f"card {device.uuid} is unhealthy ({device.health}): what runs on it goes on, and "
                "nothing new is given of it"
            )
            for grant in self.node.snapshot().grants:
                if any(piece.device == device.uuid for piece in grant.allocation.pieces):
                    await self.guard.tell(grant, "CardUnhealthy", sentence)

    async def _attend(self) -> None:
        await self.plugins.attend()
        if self.driver:
            await self.driver.attend()

    # --- what the API says ------------------------------------------------------------------------

    def _pods_listed(self, pods: list[Pod]) -> None:
        self.allocator.replace_pods(pods)
        self.inventory.pods_listed()
        self._note_users(self.allocator.pods.by_uid.values())

    def _pod_changed(self, event: str, pod: Pod) -> None:
        if event == "DELETED":
            self.allocator.remove_pod(pod.metadata.uid)
            if self.driver:
                self.driver.claims.forget_user(pod.metadata.uid)
        else:
            self.allocator.update_pod(pod)
            self._note_users([pod])

    def _note_users(self, pods: Iterable[Pod]) -> None:
        if self.driver:
            for pod in pods:
                self.driver.claims.note_user(pod)
                self.driver.claims.note_ended(pod, self.allocator.pods.by_uid)

    def _nodes_listed(self, nodes: list[NodeObject]) -> None:
        for node in nodes:
            self._node_changed("ADDED", node)

    def _node_changed(self, event: str, node: NodeObject) -> None:
        if event != "DELETED":
            self.inventory.published = node.metadata.annotations.get(INVENTORY, "")
            self.inventory.capacity = node.status.capacity
            self.by_claims = by_claims(self.options.allocation, node)
            self.cards.note_metadata(node.metadata)
            self.plugins.alignment.note_labels(node.metadata.labels)
            if self.publisher:
                self.publisher.uid = node.metadata.uid
            self.allocator.driver.note_kubelet(node.status.node_info)

    async def _reconcile(self) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.allocator.reconcile_due.wait(), RECONCILE_PERIOD_S)
            self.allocator.reconcile_due.clear()
            try:
                await self.allocator.reconcile()
                for grant, reason in await self.driver.claims.reconcile() if self.driver else ():
                    await self.guard.tell(grant, "NotResized", reason)
            except (HeteroError, OSError) as error:
                log.warning("reconcile: %s", error)
                if not self.allocator.reconciled:
                    asyncio.get_running_loop().call_later(RETRY_S, self.allocator.reconcile_due.set)

    async def _end_claims(self) -> None:
        try:
            if self.driver:
                await self.driver.claims.reconcile_ending()
        except OSError as error:
            raise HeteroError(f"claims that end: {error}") from None

    async def _forever(
        self,
        action: Callable[[], Awaitable[None]],
        period_s: float,
        *,
        due: asyncio.Event | None = None,
    ) -> None:
        """Act again and again, at once when it is due; what fails is said once, and tried again."""
        last_error, due_event = "", due or asyncio.Event()
        while True:
            try:
                await action()
                last_error = ""
            except HeteroError as error:
                if str(error) != last_error:
                    last_error = str(error)
                    log.warning("%s", last_error)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(due_event.wait(), period_s)
            due_event.clear()


def _lost(kind: str) -> Callable[[Exception], None]:
    return lambda error: log.warning("%s: the API does not answer: %s", kind, error)


def node_of(options: Options) -> Node:
    """Return the node this program runs on, as the cluster and then the node itself set it up."""
    cluster_settings = settings.load(options.config).of_node(options.name)
    return evolve(Node.here(), settings=load_settings(os.environ, cluster_settings)).with_threads


def run(options: Options) -> None:
    """Run the agent of this node until it is told to end."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    asyncio.run(_run(options))


async def _run(options: Options) -> None:
    node = node_of(options)
    discovery = await asyncio.to_thread(node.discover)
    for vendor in discovery.vendors:  # else the first pod would find out, and fail
        if vendor.limiter and any(device.vendor == vendor.name for device in discovery.devices):
            limiter(vendor.limiter)
    if options.selinux_type:
        label((node.ledger.path, options.libraries), options.selinux_type)
    async with Api(Access.here()).open() as api:
        way = await served(api, options.allocation, slice_probe(options.name))
        options = evolve(options, allocation=way, unserved=way is not options.allocation)

        async def serve() -> None:
            await Agent(node, options, api, NodeCards(node, options.name, discovery)).run()

        task = asyncio.ensure_future(Duty(node.ledger.path).keep(serve))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        loop.add_signal_handler(
            signal.SIGTERM, lambda: loop.call_later(SHUTDOWN_DELAY_S, task.cancel)
        )
        try:
            await task
        except asyncio.CancelledError:
            log.info("told to end: grants stay, and the next agent takes over")
