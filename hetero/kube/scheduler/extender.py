"""The extender of the stock kube-scheduler: which nodes serve a pod, how well, and the binding.

Where filter answers one node, it takes the pod's place there, so that what is filtered next sees
it; a pod that is not bound gives it back. Where filter answers all that serve, nothing is taken
before kube-scheduler binds the pod. The binding carries the signed share, which the API writes to
the pod as it binds it. The names of the verbs' fields are those of
k8s.io/kube-scheduler/extender/v1; Go reads them whatever their case, and so do we.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from time import monotonic, time
from typing import Any

from aiohttp import web
from attrs import define, evolve, field
from msgspec import Raw, json

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.client.events import Events, timestamp
from hetero.kube.client.leadership import Leadership
from hetero.kube.objects.kinds import NodeObject, Object, Plain, Pod, ResourceQuota
from hetero.kube.objects.reading import read_all, reader
from hetero.kube.scheduler import hami_migration
from hetero.kube.scheduler.agents import Agents
from hetero.kube.scheduler.expected_mix import ExpectedMix
from hetero.kube.scheduler.kubelet_watches import KubeletWatches
from hetero.kube.scheduler.pod_groups import PodGroups
from hetero.kube.scheduler.pod_table import PLACED, PodState, PodTable
from hetero.kube.scheduler.preemption import Preemption
from hetero.kube.scheduler.refused_pods import RefusedPods
from hetero.kube.scheduler.scheduler_metrics import SchedulerMetrics
from hetero.kube.scheduler.signatures import Signatures
from hetero.kube.scheduler.untried_pods import UntriedPods
from hetero.kube.words.annotations import (
    ALLOCATION,
    INVENTORY,
    SIGNATURE,
    Assignment,
    Held,
    published,
    without_core_limit,
)
from hetero.kube.words.host import node_host, pod_host
from hetero.kube.words.pod import ended, identity_of, read_pod, running
from hetero.kube.words.pod_request import PodRequest, Vocabulary
from hetero.kube.words.quota import Quotas, limits
from hetero.kube.words.runtime_variables import notes_of_variables
from hetero.kube.words.signing import PublicKeys, SigningKey
from hetero.model import Counters, Refusal
from hetero.model.errors import BadInput, HeteroError
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import DeviceUsage, PlacedContainer, PlacedNode, PlacedPod, Placement
from hetero.placement.demand import HALF_LIFE, Demand
from hetero.placement.place_pod import standing
from hetero.placement.placement_policy import PLACEMENT_POLICIES, WEIGHTS, Weights
from hetero.placement.state import UNLIMITED

log = logging.getLogger(__name__)

#: On a pod that is to be tried again soon, and since when.
AGAIN = "hetero.io/tried-again"
#: The largest request taken: names of some 100,000 nodes.
_MOST_BYTES = 16 * 2**20
#: Seconds between two attempts of a scheduler to follow pods, of which a cluster has two: it hears
#: so much later of pods that a kube-scheduler does not try after the API server was away.
_RETRY = 2.0
#: Seconds that a place counts which filter took for a pod.
_UNBOUND = 30.0
#: Seconds within which a node says what runs on of a pod that was deleted by force.
_UNCONFIRMED = 5.0
#: Seconds a caller waits for a scheduler that is starting, and between looks.
_PATIENCE, _PAUSE = 5.0, 0.05
#: The best score a node can get.
_BEST = 10
_RUNS = "Running"
#: A pod that holds no device: nobody is served by its end, so it is more important than any.
_WITHOUT = PlacedPod(containers=(PlacedContainer(),), priority=2**31 - 1)

_ARGS = json.Decoder(dict[str, Raw])
_NAMES = json.Decoder(list[str])
_NULL = Raw(b"null")


@define(eq=False)
class NodeNames:
    """Names of nodes by their text: of thousands, reading them takes most of a decision."""

    text: Raw
    _each: list[str] | None = None
    _bytes: bytes = b""

    @classmethod
    def of(cls, names: list[str]) -> NodeNames:
        """Return the names as kube-scheduler would send them."""
        return cls(Raw(json.encode(names)), names)

    @property
    def each(self) -> list[str]:
        """The names, read when they are first wanted."""
        if self._each is None:
            self._each = _NAMES.decode(self.text)
        return self._each

    def __contains__(self, name: object) -> bool:
        """Return whether a node is among them; a node's name needs no escape in JSON."""
        self._bytes = self._bytes or bytes(self.text)
        return f'"{name}"'.encode() in self._bytes


@define(eq=False)
class Scheduler:
    """Answers kube-scheduler from what the API says about nodes and pods."""

    api: ApiCalls
    vocabulary: Vocabulary
    key: SigningKey
    previous: PublicKeys = field(factory=PublicKeys)  # by which those before this one signed
    lease: Leadership | None = None
    agents: Agents | None = None  # None: every node is taken to have one that serves
    untried: UntriedPods = field(factory=UntriedPods)
    kubelet_watches: KubeletWatches = field(factory=KubeletWatches)
    node_placement: str = "fragmentation"
    device_placement: str = "fragmentation"
    choose: str = "one"  # "score": answer all nodes that serve
    half_life: float = HALF_LIFE  # seconds, of what arrived
    mix_in: str | None = None  # the ConfigMap of the expected mix, as namespace/name
    mix: ExpectedMix | None = field(init=False, default=None)
    quotas: Quotas = field(init=False)
    cache: SchedulerCache = field(init=False)
    pods: PodTable = field(factory=PodTable)
    # What nodes publish that others have, as it was told.
    _others: dict[str, str | None] = field(factory=dict)
    # What stands in the cache on a node for containers whose pods are over.
    _running_on: dict[str, set[str]] = field(factory=dict)
    _named: NodeNames = field(factory=lambda: NodeNames(_NULL, []))  # that came or went last
    _ready: set[str] = field(factory=set)
    _tasks: set[asyncio.Task[None]] = field(factory=set)
    scheduler_metrics: SchedulerMetrics = field(init=False)
    events: Events = field(init=False)
    signatures: Signatures = field(init=False)
    refused_pods: RefusedPods = field(init=False)
    preemption: Preemption = field(init=False)
    groups: PodGroups = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.quotas = Quotas(self.vocabulary)
        self.cache = SchedulerCache(self.quotas, demand=Demand(self.half_life))
        self.scheduler_metrics = SchedulerMetrics(self.cache, self.quotas)
        self.events = Events(self.api)
        self.refused_pods = RefusedPods(self.api, self.events, lambda: self.ready)
        self.signatures = Signatures(
            api=self.api,
            key=self.key,
            previous=self.previous,
            pods=self.pods,
            ready=lambda: self.ready,
        )
        if self.mix_in is not None:
            self.mix = ExpectedMix(
                self.api,
                self.cache,
                self.mix_in,
                leads=lambda: self.ready,
                led=lambda: self.lease is None or self.lease.led,
            )

        def again(pod: Pod) -> None:
            self._later(self._touch(_path(pod), pod.metadata.uid))

        self.groups = PodGroups(
            api=self.api,
            vocabulary=self.vocabulary,
            cache=self.cache,
            choose=self._choose,
            again=again,
        )
        self.preemption = Preemption(
            api=self.api,
            cache=self.cache,
            events=self.events,
            pods=self.pods,
            gang=self.groups.gang,
            again=again,
        )

    # --- what the API says ----------------------------------------------------------------------

    async def follow_nodes(self) -> None:
        """Keep the cache's nodes as the API has them."""
        await self.api.follow(
            "/api/v1/nodes",
            NodeObject,
            listed=self._nodes_listed,
            changed=self._node_changed,
            lost=lambda error: log.warning("nodes: %s", error),
        )

    async def follow_pods(self) -> None:
        """Keep what stands on the nodes as the pods say."""
        await self.api.follow(
            "/api/v1/pods",
            Pod,
            listed=self._pods_listed,
            changed=self._pod_changed,
            lost=self._pods_lost,
            retry=_RETRY,
        )

    async def follow_quotas(self) -> None:
        """Keep what namespaces may hold as their quotas say."""
        await self.api.follow(
            "/api/v1/resourcequotas",
            ResourceQuota,
            listed=self._quotas_listed,
            changed=self._quota_changed,
            lost=lambda error: log.warning("quotas: %s", error),
        )

    def _quotas_listed(self, quotas: list[ResourceQuota]) -> None:
        listed = {quota.full_name for quota in quotas}
        for namespace, by_quota in list(self.quotas.most.items()):
            for name in set(by_quota) - {name for space, name in listed if space == namespace}:
                self._quota_allows(namespace, name, {})
        for quota in quotas:
            self._quota_changed("ADDED", quota)
        self._ready.add("quotas")

    def _quota_changed(self, event: str, quota: ResourceQuota) -> None:
        hard = quota.spec.hard if event != "DELETED" else {}
        self._quota_allows(*quota.full_name, limits(hard, self.vocabulary.resources))

    def _quota_allows(self, namespace: str, name: str, most: dict[str, int]) -> None:
        """Note what a quota allows; pods that wait for it are tried again."""
        if not self.quotas.allow(namespace, name, most):
            return
        self._wake_in(namespace)

    def _wake_in(self, namespace: str) -> None:
        """Have the pods of a namespace tried again that wait."""
        for uid, pod, _ in self.pods.waiting():
            if pod.metadata.namespace == namespace:
                self._later(self._again(_path(pod), uid))

    def _nodes_listed(self, nodes: list[NodeObject]) -> None:
        if self.lease:
            self.lease.busy()
        names = {node.metadata.name for node in nodes}
        for name in set(self.cache.inventory.nodes) - names:
            self._count_running_on(name, {})
            self.cache.remove_node(name)
        for node in nodes:  # in this order they are counted, whichever is older
            name, notes = node.metadata.name, node.metadata.annotations
            if name not in self.cache.inventory.nodes and INVENTORY in notes:
                self.cache.update_node(PlacedNode(name=name))
        for node in sorted(nodes, key=_created):  # of two that publish one card it is the older's
            self._node_changed("ADDED", node)
        self.cache.cluster()  # no pod waits for it
        # Thousands of nodes' devices live as long as this process: walking them at every full
        # collection would hold up one decision in a hundred for tens of milliseconds.
        gc.collect()
        gc.freeze()
        self._ready.add("nodes")

    def _node_changed(self, event: str, node: NodeObject) -> None:
        name, text = node.metadata.name, node.metadata.annotations.get(INVENTORY)
        if event == "DELETED" or text is None:
            self._count_running_on(name, {})
            self.cache.remove_node(name)
            return
        was = self.cache.inventory.devices(name)
        held: Held = {}
        try:
            devices, held = published(text, node=name)
            host = {counter: min(all_, UNLIMITED) for counter, all_ in node_host(node).items()}
            others = self.cache.update_node(PlacedNode(name=name, devices=devices, host=host))
        except Exception as error:  # whatever its agent wrote, it harms this node alone
            log.error("node %s: %s", name, error, exc_info=not isinstance(error, BadInput))
            self.cache.update_node(
                PlacedNode(name=name), fault="publish an inventory that this version cannot read"
            )
            others = None
        self._tell_of_others(node, others)
        if self.cache.inventory.devices(name) != was:
            self._count_hami(name)
        if self._count_running_on(name, held):
            self._wake_for(name)
        self._agent_changed(name)

    def _tell_of_others(self, node: NodeObject, sentence: str | None) -> None:
        """Tell of a node that publishes what another has, when that is new."""
        name = node.metadata.name
        if sentence is not None and self._others.get(name) != sentence:
            log.error("node %s: %s", name, sentence)
            message = f"hetero uses no device of two nodes at both: this node {sentence}"
            self._later(self.events.tell(node.metadata, "PublishedTwice", message, kind="Node"))
        self._others[name] = sentence

    def _count_running_on(self, node: str, held: Held) -> bool:
        """Count what containers of a node hold whose pods are over; return if something is free.

        For the API they are gone, and so for `_forget`. Their namespace's quotas are charged, by
        the node's word: so no more of a device than it has.
        """
        was = self._running_on.pop(node, set())
        names = {f"{node}/{grant}": of for grant, of in held.items()}
        for record in self.pods.within(PodState.UNCONFIRMED):
            if record.grants & names.keys():
                self._forget(record.uid, ran=False)
        for name in was - names.keys():
            namespace = self.cache.standing[name].pod.namespace
            self.cache.forget(name, ran=False)
            self._wake_in(namespace)
        left = {device.uuid: dict(device.capacity) for device in self.cache.inventory.devices(node)}
        for name, grant in names.items():
            holds = tuple(
                DeviceUsage(device=uuid, takes=_taken_of(left.get(uuid, {}), takes))
                for uuid, takes in grant.takes.items()
            )
            over = evolve(_WITHOUT, namespace=grant.namespace)
            self.cache.restore(
                name, Placement(node=node, pod=over, allocations=(None,), holds=holds, host={})
            )
        if names:
            self._running_on[node] = {*names}
        return bool(was - names.keys())

    def _count_unconfirmed(self, uid: str, pod: Pod, held: Placement) -> None:
        """Count what a pod held that was deleted by force until its node says what runs on.

        A kubelet waits no longer for containers to end than their pod said.
        """
        grace = pod.spec.termination_grace_period_seconds
        seconds = _UNCONFIRMED if grace is None else min(_UNCONFIRMED, grace)
        record = self.pods.transition(uid, PodState.UNCONFIRMED)
        record.grants = frozenset(
            f"{held.node}/{identity_of(uid, container.name)}" for container in pod.containers
        )
        over = evolve(_WITHOUT, namespace=held.pod.namespace)
        self.cache.restore(uid, evolve(held, pod=over, allocations=(None,)))

        async def later() -> None:
            await asyncio.sleep(seconds)
            if self.pods.get(uid) is record:
                self._forget(uid, ran=False)
                self._wake_for(held.node)
                self._wake_in(held.pod.namespace)

        self._later(later())

    def _agent_changed(self, node: str) -> None:
        """Have pods bound to a node while its agent serves, and only then."""
        if (
            self.agents is None
            or "pods" not in self._ready
            or node not in self.cache.inventory.nodes
        ):
            return
        why = self.agents.why_shut(node)
        if not self.cache.cordon(node, why) or why is not None:
            return
        self._count_hami(node)
        self._wake_for(node)

    def _wake_for(self, node: str) -> None:
        """Have those tried again that wait and have room on a node by now."""
        for uid, pod, pod_request in self.pods.waiting():
            if pod_request.devices and self.cache.has_room(uid, pod_request.pod, node):
                self._later(self._again(_path(pod), uid))

    def _pods_lost(self, error: Exception) -> None:
        log.warning("pods: %s", error)
        self.kubelet_watches.api_lost()

    def _pods_listed(self, pods: list[Pod]) -> None:
        self.kubelet_watches.api_back()
        if self.lease:
            self.lease.busy()
        kept = {pod.metadata.uid for pod in pods}
        kept.update(record.uid for record in self.pods.within(PodState.UNCONFIRMED))
        kept.update(*self._running_on.values())
        for uid in {*self.cache.standing, *dict(self.pods.holders())} - kept:
            self._forget(uid, ran=self.pods.get(uid).state is not PodState.HELD)
        self.groups.pods_listed(kept)
        self.untried.pods_listed(kept)
        self.kubelet_watches.pods_listed(kept)
        if self.agents:
            self.agents.pods_listed(kept)
        for pod in sorted(pods, key=_created):  # in the order they arrived in
            self._pod_changed("ADDED", pod)
        if "pods" not in self._ready:
            self._later(self._wake())
        self._ready.add("pods")
        for node in self.cache.inventory.nodes:
            self._agent_changed(node)

    def _pod_changed(self, event: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.groups.pod_changed(event, pod)
        self.untried.pod_changed(event, pod)
        self.kubelet_watches.pod_changed(event, pod)
        of_agent = self.agents.pod_changed(event, pod) if self.agents else None
        if of_agent is not None:
            self._agent_changed(of_agent)
        if event == "DELETED" or ended(pod):
            self._pod_over(event, pod)
            return
        record, node = self.pods.get(uid), pod.spec.node_name
        known = record.pod if record.state in PLACED else None
        if known is not None:
            record.pod = pod
        if record.state is PodState.RESERVED or not node:
            return
        if ALLOCATION in pod.metadata.annotations:
            if known is None or _given(known) != _given(pod):
                self._restore(uid, pod)
        elif record.state is not PodState.HAMI:
            if pod.status.phase == _RUNS and hami_migration.given(pod):
                self.pods.learn(pod, PodState.HAMI)
                self._count(uid, pod)
            else:
                self._count_host(uid, pod)

    def _pod_over(self, event: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        held, placed = self.cache.standing.get(uid), self.pods.get(uid).state in PLACED
        self.cache.forget(uid, ran=bool(pod.spec.node_name))
        if event == "DELETED" and placed and held is not None and held.holds and running(pod):
            self._count_unconfirmed(uid, pod, held)
        else:
            self.pods.transition(uid, PodState.UNKNOWN)
        if event == "DELETED":
            self.refused_pods.pod_gone(uid)
        else:
            self.refused_pods.pod_ended(pod)

    def _restore(self, uid: str, pod: Pod) -> None:
        """Count what the pod's allocation gives it, unless it is forged."""
        given = pod_request = None
        try:
            given = self.signatures.read(pod)
            pod_request = self.vocabulary.pod_request(pod)
        except BadInput as error:
            log.warning("%s", error)
        if given is None or pod_request is None:
            self._count_host(uid, pod)
            return
        allocations = dict(given.containers)
        everyone = tuple(allocations.get(name) for name in _names(pod))
        self._arrive(pod, pod_request, _created(pod))
        self.cache.restore(uid, standing(pod_request.pod, given.node, everyone))
        self.groups.restore(pod, given.place_in_time)
        self.pods.learn(pod, PodState.BOUND)

    def _count_hami(self, node: str) -> None:
        """Count the pods of a node that HAMi gave something and that could not be counted yet."""
        for record in self.pods.within(PodState.HAMI):
            pod, held = record.pod, self.cache.standing.get(record.uid)
            if pod and pod.spec.node_name == node and not (held and held.holds):
                self._count(record.uid, pod)

    def _count(self, uid: str, pod: Pod) -> None:
        """Count what HAMi gave a pod that runs: its cards are not empty, until it ends."""
        node = pod.spec.node_name or ""
        if not self.cache.inventory.devices(node) or self.cache.inventory.is_cordoned(node):
            return  # not known yet, or nobody is placed there meanwhile
        try:
            pod_request = self.vocabulary.pod_request(pod, hami_migration.given(pod))
            if pod_request is None:
                return
            # It runs, whatever its node has left of processors.
            answer = self.cache.reserve(uid, _without_host(pod_request.pod), node)
            if isinstance(answer, Placement):
                self.cache.restore(uid, evolve(answer, host=pod_request.pod.host()))
                return
            fault = answer.sentence
        except BadInput as error:
            fault = str(error)
        log.warning("pod %s/%s, which HAMi started: not counted: %s", *pod.full_name, fault)

    def _count_host(self, uid: str, pod: Pod) -> None:
        """Count what a bound pod without devices requests of its node."""
        try:
            host = pod_host(pod)
        except BadInput as error:
            log.warning("pod %s/%s: not counted: %s", *pod.full_name, error)
            return
        node = pod.spec.node_name or ""
        self.cache.restore(
            uid, Placement(node=node, pod=_WITHOUT, allocations=(None,), holds=(), host=host)
        )

    def _forget(self, uid: str, *, ran: bool) -> None:
        self.pods.transition(uid, PodState.UNKNOWN)
        self.cache.forget(uid, ran=ran)

    # --- what kube-scheduler asks ---------------------------------------------------------------

    def app(self) -> web.Application:
        """Return the HTTP service."""
        app = web.Application(client_max_size=_MOST_BYTES)
        for verb in (self.filter, self.prioritize, self.bind, self.preempt):
            app.router.add_post(f"/{verb.__name__}", self._answer(verb))
        return app

    def _answer(
        self, verb: Callable[[Plain], Awaitable[Any]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            started, result = monotonic(), "error"
            self.untried.heard()
            try:
                body = await request.read()
                await self._until_ready()
                made = _response(await verb(self._read(body)))
                result = "ok"
                return made
            except HeteroError as error:
                log.warning("%s: %s", verb.__name__, error)
                return _response({"Error": str(error)})
            except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
                sentence = f"{verb.__name__}: not what kube-scheduler sends: {error!r}"
                log.warning("%s", sentence)
                return _response({"Error": sentence}, status=400)
            finally:
                self.scheduler_metrics.decided(verb.__name__, result, monotonic() - started)

        return answer

    def _read(self, body: bytes) -> Plain:
        """Return the arguments of a call, by their names in lower case."""
        given = {name.lower(): text for name, text in _ARGS.decode(body).items() if text != _NULL}
        names = given.pop("nodenames", None)
        read = {"pod": reader(Pod).object}
        args = {name: read.get(name, json.decode)(text) for name, text in given.items()}
        if names is not None:
            if names != self._named.text:  # they are when scored right after they were filtered
                self._named = NodeNames(names)
            args["nodenames"] = self._named
        return args

    @property
    def knows_all(self) -> bool:
        """Whether this scheduler knows the cluster."""
        return self._ready == {"nodes", "pods", "quotas"}

    @property
    def ready(self) -> bool:
        """Whether this scheduler leads and knows the cluster."""
        return self.knows_all and (self.lease is None or self.lease.held)

    async def _until_ready(self) -> None:
        """Wait a little: kube-scheduler tries a pod that met an error again only after a minute."""
        for _ in range(int(_PATIENCE / _PAUSE)):
            if self.ready:
                return
            await asyncio.sleep(_PAUSE)
        self._check()

    def _check(self) -> None:
        if not self.ready:
            raise HeteroError("hetero: this scheduler is starting or standing by: asked too early")

    async def filter(self, args: Plain) -> Plain:
        """Return the nodes that can serve the pod, and what each of the others said."""
        pod, names = args["pod"], args.get("nodenames")
        if names is None:
            raise HeteroError("hetero: set nodeCacheCapable: true for this extender")
        pod_request = self.vocabulary.pod_request(pod)
        if pod_request is None:
            return {"NodeNames": names.text, "FailedNodes": {}}
        self.pods.ask(pod, pod_request)
        self._release_overdue()
        if not pod_request.devices:
            return self._without_devices(pod, pod_request, names)
        self._arrive(pod, pod_request, time())
        chosen = self._held(pod, pod_request, names)
        if chosen is None and self.choose == "one":
            chosen = self._take(pod.metadata.uid, pod_request, names)
        if isinstance(chosen, str):
            return {"NodeNames": [chosen], "FailedNodes": {}}
        if chosen is not None:
            self._later(self.events.tell(pod.metadata, "Unfit", chosen.sentence))
            return {"NodeNames": [], "FailedNodes": dict.fromkeys(names.each, chosen.sentence)}
        return self._serving(pod, pod_request, names)

    def _serving(self, pod: Pod, pod_request: PodRequest, names: NodeNames) -> Plain:
        """Return all nodes that serve the pod; if none does, tell it why and look for victims."""
        fits, failed = self.cache.serving(pod_request.pod, names.each)
        counts = Counter(failed.values())
        self.scheduler_metrics.refused(counts)
        if not fits:
            refusal = self.cache.refusal(pod_request.pod, names.each)
            self._later(self.events.tell(pod.metadata, "Unfit", refusal.sentence))
            if self.groups.group(pod) is None:
                self.cache.reserve_nodes(pod.metadata.uid, pod_request.pod, names.each)
            if self.preemption.wanted(pod) and self.groups.group(pod) is None:
                self._later(self.preemption.make_room(pod, pod_request.pod, names.each))
        if failed:
            names = self._named = NodeNames.of(fits)
        return {"NodeNames": names.text, "FailedNodes": failed}

    def _without_devices(self, pod: Pod, pod_request: PodRequest, names: NodeNames) -> Plain:
        """Return the offered nodes without devices, else the one whose devices lose least.

        kube-scheduler knows whether a node has the processors: none of them is refused here.
        """
        known = self.cache.inventory.nodes
        others = [name for name in names.each if name not in known]
        if not others:
            self._arrive(pod, pod_request, time())
            uid = pod.metadata.uid
            chosen = self._take(uid, pod_request, names) if self.choose == "one" else None
            others = [chosen] if chosen else names.each
        return {"NodeNames": others, "FailedNodes": {}}

    def _arrive(self, pod: Pod, pod_request: PodRequest, now: float) -> None:
        """Count a pod in the expected mix, unless the mix that was read has it."""
        if self.mix is None or _created(pod) > self.mix.until:
            self.cache.arrive(pod.metadata.uid, pod_request.pod, now)

    def _take(self, uid: str, pod_request: PodRequest, names: NodeNames) -> str | None:
        """Take the cheapest place for a pod and return its node, None if none serves."""
        self._release_held(uid)
        node = self.cache.best(pod_request.pod, names, weights=self._weights(pod_request), uid=uid)
        if node is None:
            return None
        place = self._reserve(uid, pod_request, node)
        if isinstance(place, Refusal):
            return None
        self.pods.hold(uid, place, monotonic() + _UNBOUND)
        return node

    def _release_overdue(self) -> None:
        """Give back what filter took for pods that were not bound in time."""
        now = monotonic()
        for record in self.pods.within(PodState.HELD):
            if record.deadline > now:
                break
            self._release_held(record.uid)

    def _release_held(self, uid: str) -> None:
        """Give back what filter took for a pod, if the pod was not bound since."""
        place = self.pods.get(uid).placement
        if place is None:
            return
        self.pods.release(uid)
        if self.cache.standing.get(uid) is place:
            self.cache.release(uid)

    def _reserve(self, uid: str, pod_request: PodRequest, node: str) -> Placement | Refusal:
        policy = PLACEMENT_POLICIES.get(pod_request.device_placement or self.device_placement)
        return self.cache.reserve(uid, pod_request.pod, node, policy=policy)

    def _held(self, pod: Pod, pod_request: PodRequest, names: NodeNames) -> str | Refusal | None:
        """Return the node where room is held for a pod, or why it waits; None: any may serve it."""
        uid = pod.metadata.uid
        node = self.preemption.node(uid)
        if node is None:
            return self.groups.place(pod, names.each) if self.groups.group(pod) else None
        if node in names and self.cache.has_room(uid, pod_request.pod, node):
            return node
        waits = f"waits for those that it preempts on node {node} to end"
        return Refusal(wanted=1, verdicts={}, missing=waits)

    def _choose(self, pod_request: PodRequest, names: Collection[str] | None) -> str | Refusal:
        """Return the best node for a pod, or why none serves it; of all nodes without names."""
        among = frozenset(self.cache.inventory.nodes) if names is None else names
        best = self.cache.best(pod_request.pod, among, weights=self._weights(pod_request))
        return best or self.cache.refusal(pod_request.pod, among)

    async def prioritize(self, args: Plain) -> list[Plain]:
        """Return the nodes' scores from 0 to 10, but for those of 0."""
        names = args["nodenames"].each
        pod_request = self._pod_request(args["pod"])
        if pod_request is None:
            return []
        weights = self._weights(pod_request)
        costs = self.cache.costs(pod_request.pod, names, weights=weights)
        low, high = min(costs.values(), default=0), max(costs.values(), default=0)
        scores = ((name, _BEST * (high - c) // (high - low or 1)) for name, c in costs.items())
        return [{"Host": name, "Score": score} for name, score in scores if score]

    def _pod_request(self, pod: Pod) -> PodRequest | None:
        """Return what a pod wants, if it was just filtered without reading it anew."""
        record = self.pods.get(pod.metadata.uid)
        if record.request is not None and record.pod == pod:
            return record.request
        return self.vocabulary.pod_request(pod)

    def _weights(self, pod_request: PodRequest) -> Weights:
        """Return what nodes are chosen by; other schedulers' words mean nothing here."""
        return WEIGHTS.get(pod_request.node_placement or "", WEIGHTS[self.node_placement])

    async def bind(self, args: Plain) -> Plain:
        """Reserve the pod's share and bind the pod with it; or undo that."""
        namespace, name = args["podnamespace"], args["podname"]
        uid, node = args["poduid"], args["node"]
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        # Nothing is awaited between the call and the reservation, so that the pod that is filtered
        # next, perhaps at this very moment, sees what this one took.
        record = self.pods.get(uid)
        pod, pod_request = record.pod, record.request
        if pod is None or pod_request is None:
            pod = await read_pod(self.api, namespace, name)
            if pod is None:
                raise HeteroError(f"pod {namespace}/{name} is gone")
            if pod.metadata.uid != uid:
                raise HeteroError(f"pod {namespace}/{name} was replaced by another of its name")
            pod_request = self.vocabulary.pod_request(pod)
        notes: dict[str, str] = {}
        if pod_request is not None:
            self.pods.ask(pod, pod_request)
            await self.groups.gather(pod)
            notes = self._give(pod, pod_request, node, path)
        place = self.cache.standing.get(uid)
        try:
            if notes:
                await self._until_watched(pod, node, path)
            if self.cache.standing.get(uid) is not place:
                # kube-scheduler gave up after its 10 s and asked again, or the pod is gone.
                raise HeteroError(f"pod {namespace}/{name}: its place was given anew meanwhile")
            self._check()
            log.info("pod %s/%s: binding to %s", namespace, name, node)
            await self.api.post(f"{path}/binding", _binding(pod, node, notes))
        except HeteroError:
            if not await self._bound(namespace, name, uid, node):
                self.kubelet_watches.pass_on(node, uid)
                if place is not None and self.cache.standing.get(uid) is place:
                    self.pods.release(uid)  # else it was given anew
                    self.cache.release(uid)
                raise
        return {}

    def _give(self, pod: Pod, pod_request: PodRequest, node: str, path: str) -> dict[str, str]:
        """Return the annotations that give a pod its share, which is taken from now on."""
        uid = pod.metadata.uid
        taken = self.pods.get(uid).placement
        stands = taken is not None and self.cache.standing.get(uid) is taken
        record = self.pods.transition(uid, PodState.RESERVED)
        record.pod = pod if pod_request.devices else None
        answer: Placement | Refusal
        if (
            taken is not None
            and stands
            and taken.node == node
            and not self.cache.inventory.is_cordoned(node)
        ):
            answer = taken
        else:
            answer = self._reserve(uid, pod_request, node)
        if isinstance(answer, Refusal):
            self.pods.transition(uid, PodState.UNKNOWN)
            if pod_request.devices:
                raise self._unfit(pod, f"node {node}: {answer.sentence}", path)
            return {}
        if not pod_request.devices:
            return {}
        row = self.groups.row(pod)
        assignment = Assignment(
            node=node,
            uid=uid,
            row=row.row if row else None,
            rows=row.rows if row else None,
            containers=tuple(
                (name, without_core_limit(given) if name in pod_request.unlimited else given)
                for name, given in zip(_names(pod), answer.allocations, strict=True)
                if given is not None
            ),
        )
        variable_notes = notes_of_variables(
            pod,
            dict(assignment.containers),
            vendors=self.vocabulary.vendors,
            devices=self.cache.inventory.devices(node),
        )
        return {**variable_notes, **self.signatures.sign(assignment)}

    async def _until_watched(self, pod: Pod, node: str, path: str) -> None:
        """Wait until a node's kubelet takes up pods. Raises `HeteroError` if it is shut by then."""
        await self.kubelet_watches.until_watched(node, pod.metadata.uid)
        if self.agents and self.cache.inventory.is_cordoned(node):
            raise self._unfit(pod, f"node {node}: {self.agents.why_shut(node)}", path)

    def _unfit(self, pod: Pod, sentence: str, path: str) -> HeteroError:
        """Tell a pod why it is not bound, and have it tried again soon; return the error."""
        self._later(self.events.tell(pod.metadata, "Unfit", sentence))
        self._later(self._again(path, pod.metadata.uid))
        return HeteroError(sentence)

    async def _again(self, path: str, uid: str) -> None:
        """Have a pod tried again soon that found its node's last share taken.

        kube-scheduler puts it aside for up to a minute, unless the pod itself changes.
        """
        await asyncio.sleep(1)
        await self._touch(path, uid)

    async def _wake(self) -> None:
        """Have all pods tried again that were asked about before there was anybody to answer."""
        while not self.ready:
            await asyncio.sleep(_PAUSE)
        waiting = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
        with suppress(HeteroError):
            for pod in read_all(Pod, (await self.api.get("/api/v1/pods", waiting))["items"]):
                with suppress(BadInput):
                    if self.vocabulary.pod_request(pod) is not None:
                        await self._touch(_path(pod), pod.metadata.uid)

    async def _touch(self, path: str, uid: str) -> None:
        """Change a pod in what means nothing: kube-scheduler tries whatever changed again."""
        with suppress(ApiError):  # it is gone, or waits its minute
            await self.api.patch(
                path, {"metadata": {"uid": uid, "annotations": {AGAIN: timestamp()}}}
            )

    async def _bound(self, namespace: str, name: str, uid: str, node: str) -> bool:
        """Return whether a binding was made although its answer was an error or never came."""
        while True:
            try:
                pod = await read_pod(self.api, namespace, name)
                break
            except ApiError:
                await asyncio.sleep(1)  # until we know, the reservation stands
        return pod is not None and (uid, node) == (
            pod.metadata.uid,
            pod.spec.node_name,
        )

    async def preempt(self, args: Plain) -> Plain:
        """Return, for each node kube-scheduler would clear, whom to evict so that the pod fits."""
        pod = args["pod"]
        pod_request = self.vocabulary.pod_request(pod)
        offered = args.get("nodenametometavictims", {})
        if pod_request is None:
            return {"NodeNameToMetaVictims": offered}
        uid = pod.metadata.uid
        held = self.preemption.node(uid)
        answer = {}
        for node, kind in offered.items():
            if held not in (None, node):
                continue  # its room is being made elsewhere
            fields = {name.lower(): value for name, value in kind.items()}
            given = [next(iter(one.values())) for one in fields.get("pods") or ()]
            victims = self.preemption.victims(uid, pod_request.pod, node, given=given)
            # A node without victims is an error to kube-scheduler, and so is a victim on another
            # node: a gang on several is evicted by us alone.
            if victims and victims.uids and not self.cache.elsewhere(victims.uids, node):
                answer[node] = {
                    "Pods": [{"UID": uid} for uid in victims.uids],
                    "NumPDBViolations": fields.get("numpdbviolations", 0),
                }
        return {"NodeNameToMetaVictims": answer}

    def _later(self, task: Any) -> None:
        made = asyncio.ensure_future(task)
        self._tasks.add(made)
        made.add_done_callback(self._tasks.discard)


def _response(made: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(made), status=status, content_type="application/json")


def _path(pod: Pod) -> str:
    return "/api/v1/namespaces/{}/pods/{}".format(*pod.full_name)


def _created(item: Object) -> float:
    """Return when an object was made, in seconds since 1970, to the second as the API has it."""
    at = item.metadata.creation_timestamp
    return time() if at is None else at.timestamp()


def _taken_of(left: dict[str, int], takes: Counters) -> Counters:
    """Take from what is left of a device, and return what was there to take."""
    taken = {counter: min(amount, left.get(counter, 0)) for counter, amount in takes.items()}
    for counter, amount in taken.items():
        left[counter] = left.get(counter, 0) - amount
    return taken


def _without_host(pod: PlacedPod) -> PlacedPod:
    return evolve(pod, containers=tuple(evolve(one, host={}) for one in pod.containers))


def _given(pod: Pod) -> tuple[str | None, str | None]:
    notes = pod.metadata.annotations
    return notes.get(ALLOCATION), notes.get(SIGNATURE)


def _names(pod: Pod) -> list[str]:
    """Return the containers' names in a placement's order: sidecars, containers, init."""
    first = pod.spec.init_containers
    sidecars = [one for one in first if one.is_sidecar]
    rest = [one for one in first if not one.is_sidecar]
    return [one.name for one in (*sidecars, *pod.spec.containers, *rest)]


def _binding(pod: Pod, node: str, notes: dict[str, str]) -> Plain:
    """Return the Binding of a pod to a node; the API adds its annotations to the pod's."""
    metadata = pod.metadata
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "annotations": notes,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
