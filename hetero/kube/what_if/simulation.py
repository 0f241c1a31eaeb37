"""Simulates the placement of a cluster's pods after changes to its pods, nodes or policy.

The pods are placed by `Scheduler`, through the calls that kube-scheduler makes, on a copy of the
objects of the API. Nothing is written to the API.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import QueueHandler
from queue import SimpleQueue

from attrs import evolve, field, frozen
from msgspec import json
from msgspec.structs import replace

from hetero.kube.dra.node_pools import node_pools
from hetero.kube.dra.standing_claims import SLICES
from hetero.kube.objects.kinds import Pod, PoolSlice
from hetero.kube.objects.reading import read, read_all
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.scheduler.node_names import NodeNames
from hetero.kube.scheduler.pod_groups import group_of
from hetero.kube.what_if.changes import (
    MOVED,
    WAITING,
    Queued,
    WhatIfRequest,
    added,
    place_in_queue,
    waiting,
    without,
)
from hetero.kube.what_if.node_filters import NodeFilters
from hetero.kube.what_if.snapshot import (
    CONFIG_MAPS,
    MIX,
    NODES,
    PODS,
    SETTINGS,
    ClusterSnapshot,
    read_api,
    read_file,
)
from hetero.kube.words import settings
from hetero.kube.words.annotations import (
    ALLOCATION,
    INVENTORY,
    SIGNATURE,
    Assignment,
)
from hetero.kube.words.pod import ended
from hetero.kube.words.pod_request import Vocabulary
from hetero.kube.words.settings import Settings
from hetero.kube.words.signing import PUBLIC_KEYS, PublicKeys, SigningKey
from hetero.model import Allocation, Device, codec
from hetero.model.errors import BadInput, HeteroError
from hetero.placement.cache import SchedulerCache
from hetero.placement.mix import CARD_MILLI

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class Totals:
    """Nodes with devices, their usable devices, and how many of both nobody holds any of.

    `allocated` is percent of all devices, each by its scarcest counter; None without devices.
    """

    nodes: int
    devices: int
    allocated: float | None
    whole_devices: int
    whole_nodes: int


@frozen(kw_only=True)
class PodAnswer:
    """Where a pod would be placed, or its `refusal`: the message that its event would have.

    `origin` is `waiting`, `moved` (away from `from_node`) or `added`. A pod without a node and a
    refusal is placed by kube-scheduler alone. `notes` say what the simulation leaves out.
    """

    namespace: str
    pod: str
    origin: str
    from_node: str | None = None
    node: str | None = None
    containers: tuple[tuple[str, Allocation], ...] = ()
    refusal: str | None = None
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class SimulatedPlacement:
    """The simulated placement of the pods, in placement order; `notes` are about the cluster."""

    node_placement: str
    device_placement: str
    without: tuple[str, ...]
    before: Totals
    after: Totals
    pods: tuple[PodAnswer, ...]
    notes: tuple[str, ...] = ()
    #: The devices of all nodes, by UUID.
    devices: Mapping[str, Device] = field(factory=dict)

    @property
    def refused(self) -> bool:
        """Whether a pod is refused that does not wait already."""
        return any(pod.refusal is not None and pod.origin != WAITING for pod in self.pods)


def simulate(what_if_request: WhatIfRequest) -> SimulatedPlacement:
    """Return the simulated placement in the cluster of this pod, of $KUBECONFIG, or of a file.

    Raises `HeteroError`.
    """
    with _logged() as read_notes:
        placement = asyncio.run(_simulate(what_if_request))
        return evolve(placement, notes=tuple(dict.fromkeys(read_notes())))


async def _simulate(what_if_request: WhatIfRequest) -> SimulatedPlacement:
    snapshot = (
        await read_api() if what_if_request.saved is None else read_file(what_if_request.saved)
    )
    _drop_left_inventories(snapshot)
    cluster_settings = _settings(snapshot)
    if what_if_request.placement is not None:
        cluster_settings = _placed_by(what_if_request.placement, cluster_settings)
    scheduler = await _scheduler(snapshot, cluster_settings)
    cache = scheduler.cache
    devices = {
        device.uuid: device
        for node in cache.inventory.nodes
        for device in cache.inventory.devices(node)
    }
    totals_before = _totals(cache)
    vocabulary = scheduler.verbs.vocabulary
    _warn_of_missing(vocabulary, devices.values())
    queue = [*waiting(snapshot, vocabulary), *added(snapshot, what_if_request, vocabulary, devices)]
    for node_name in what_if_request.without:
        queue += without(snapshot, node_name)
    answers = await _place_all(snapshot, scheduler, sorted(queue, key=place_in_queue))
    return SimulatedPlacement(
        node_placement=cluster_settings.node_placement,
        device_placement=cluster_settings.device_placement,
        without=what_if_request.without,
        before=totals_before,
        after=_totals(cache),
        pods=tuple(answers),
        devices=devices,
    )


# --- the cluster as it is -------------------------------------------------------------------------


async def _scheduler(snapshot: ClusterSnapshot, cluster_settings: Settings) -> Scheduler:
    """Return the scheduler of the cluster after it has read the snapshot."""
    mix_names = (map_name for map_name in snapshot.objects[CONFIG_MAPS] if map_name[1] == MIX)
    signing_key, previous_keys = _keys(snapshot)
    scheduler = Scheduler(
        snapshot,
        cluster_settings.vocabulary(cluster_settings.registry()),
        signing_key,
        previous=previous_keys,
        settings=evolve(cluster_settings, choose="one"),
        mix_in=next(map("/".join, mix_names), None),
        opens_claims=True,
    )
    if scheduler.mix is not None:
        await scheduler.mix.read()
    await scheduler.nodes.follow()
    await scheduler.claims.follow()
    await scheduler.pods.follow()
    await scheduler.quotas.follow()
    await scheduler.groups.follow()
    return scheduler


def _drop_left_inventories(snapshot: ClusterSnapshot) -> None:
    """Have nodes with slices publish no inventory: an agent of another `allocation` left it."""
    slices = read_all(PoolSlice, snapshot.all(SLICES))
    by_claims = {name for name, pool in node_pools(slices).items() if pool.devices}
    for node_key, plain in snapshot.objects[NODES].items():
        metadata = plain["metadata"]
        if metadata["name"] in by_claims:
            annotations = {**(metadata.get("annotations") or {})}
            annotations.pop(INVENTORY, None)
            metadata = {**metadata, "annotations": annotations}
            snapshot.objects[NODES][node_key] = {**plain, "metadata": metadata}


def _settings(snapshot: ClusterSnapshot) -> Settings:
    """Return the settings of the cluster's services, the defaults if they cannot be read."""
    for (namespace, map_name), plain in snapshot.objects[CONFIG_MAPS].items():
        settings_text = (plain.get("data") or {}).get("settings.toml")
        if map_name == SETTINGS and settings_text is not None:
            return settings.read(settings_text, source_name=f"ConfigMap {namespace}/{map_name}")
    return Settings()


def _placed_by(placement: str, cluster_settings: Settings) -> Settings:
    """Return the settings with another placement policy, as `simulate` names it."""
    node_placement, _, device_placement = placement.removeprefix("node-").partition("-device-")
    try:
        return settings.with_placements(
            cluster_settings,
            node_placement=node_placement,
            device_placement=device_placement or node_placement,
        )
    except BadInput:
        raise BadInput(
            f"--placement {placement!r}: a cluster places by fragmentation, binpack or spread, or "
            "by one over nodes and another over devices: node-binpack-device-spread"
        ) from None


def _keys(snapshot: ClusterSnapshot) -> tuple[SigningKey, PublicKeys]:
    """Return a key to sign allocations with, and the cluster's public keys.

    Without the public keys all existing allocations are signed again with the new key, and so
    accepted without a check. That is safe: the result is shown and gives nobody a device.
    """
    signing_key, public_keys_path = SigningKey.new(), os.environ.get(PUBLIC_KEYS)
    if public_keys_path:
        return signing_key, PublicKeys.read(public_keys_path)
    pod_by_name = snapshot.objects[PODS]
    for pod_name, pod in pod_by_name.items():
        metadata = pod["metadata"]
        annotations, node = metadata.get("annotations") or {}, pod["spec"].get("nodeName")
        if node and ALLOCATION in annotations:
            signature = signing_key.sign(annotations[ALLOCATION], uid=metadata["uid"], node=node)
            signed_metadata = {**metadata, "annotations": {**annotations, SIGNATURE: signature}}
            pod_by_name[pod_name] = {**pod, "metadata": signed_metadata}
    return signing_key, PublicKeys()


def _warn_of_missing(vocabulary: Vocabulary, devices: Iterable[Device]) -> None:
    """Log which vendors have cards in the cluster and no package here, which knows their names."""
    installed = {vendor.name for vendor in vocabulary.vendors}
    missing = sorted({device.vendor for device in devices} - installed)
    if missing:
        log.warning(
            "no package here of %s: pods that ask for such cards are not placed, and what they "
            "hold is not counted: install hetero-%s",
            *(", ".join(missing), ", hetero-".join(missing)),
        )


def _totals(cache: SchedulerCache) -> Totals:
    cluster = cache.rows().cluster
    usable_count = sum(device.usable for node in cluster.nodes for device in node.devices)
    return Totals(
        nodes=sum(map(bool, cluster.cards)),
        devices=usable_count,
        allocated=100 - 100 * cluster.left() / (usable_count * CARD_MILLI)
        if usable_count
        else None,
        whole_devices=sum(cluster.empty()),
        whole_nodes=cluster.whole_nodes(),
    )


# --- as kube-scheduler asks -----------------------------------------------------------------------


async def _place_all(
    snapshot: ClusterSnapshot, scheduler: Scheduler, queue: Iterable[Queued]
) -> list[PodAnswer]:
    """Filter and bind the pods one after the other; return the answer for each, in order."""
    vocabulary = scheduler.verbs.vocabulary
    count_names = {
        resource_names.count
        for vendor in vocabulary.vendors
        for resource_names in vendor.resource_names
    }
    node_by_name = {plain["metadata"]["name"]: plain for plain in snapshot.all(NODES)}
    by_claims, inventory = scheduler.nodes.by_claims, scheduler.cache.inventory
    filters = NodeFilters(
        node_by_name,
        vocabulary.resources - count_names,
        count_names,
        by_claims,
        all_by_claims=not any(map(inventory.devices, inventory.nodes.keys() - by_claims)),
    )
    if by_claims:
        log.warning(
            "%d of %d nodes give their cards by claims: where pods go there says hetero's packer, "
            "and kube-scheduler may choose otherwise",
            *(len(by_claims), len(inventory.nodes)),
        )
    for plain in snapshot.all(PODS):
        pod = read(Pod, plain)
        if pod.spec.node_name and not ended(pod):
            filters.count(plain, pod.spec.node_name)
    answers: dict[str, PodAnswer] = {}
    waiting_pods = list(queue)
    while waiting_pods:
        bindings = []
        for queued in waiting_pods:
            answer = await _filter(snapshot, scheduler, filters, queued)
            answers.setdefault(queued.pod.metadata.uid, answer)
            if answer.node is not None:
                filters.count(queued.plain, answer.node)
                bindings.append(asyncio.ensure_future(_bind(snapshot, scheduler, queued, answer)))
                if group_of(queued.pod) is None:  # a group's pods are bound together
                    await bindings[-1]
        answers.update(await asyncio.gather(*bindings))
        # A group that did not fit whole is placed in part, once as many as it needs are bound.
        waiting_pods = [
            queued
            for queued in waiting_pods
            if bindings and group_of(queued.pod) and answers[queued.pod.metadata.uid].refusal
        ]
    return list(answers.values())


async def _filter(
    snapshot: ClusterSnapshot, scheduler: Scheduler, filters: NodeFilters, queued: Queued
) -> PodAnswer:
    """Return the answer for a pod with its node, or with the reason why it gets none."""
    # Evictions are not simulated: what they would end is not known before they are tried.
    pod = replace(queued.pod, spec=replace(queued.pod.spec, preemption_policy="Never"))
    namespace, pod_name = pod.full_name
    answer = PodAnswer(
        namespace=namespace,
        pod=pod_name,
        origin=queued.origin,
        from_node=queued.from_node,
        notes=tuple(_notes(queued)),
    )
    offered_names, refusal = filters.offered(queued.plain)
    if not offered_names:
        return evolve(answer, refusal=refusal.sentence)
    try:
        request = scheduler.verbs.vocabulary.pod_request(pod)
        if request is None:
            return evolve(answer, notes=(*answer.notes, _NOT_OURS))
        response = await scheduler.verbs.filter(
            {"pod": pod, "nodenames": NodeNames.of(offered_names)}
        )
    except HeteroError as error:
        return evolve(answer, refusal=str(error))
    chosen_names = json.decode(json.encode(response["NodeNames"]))
    if not chosen_names:
        await asyncio.sleep(0)  # the pod's event is written by then
        return evolve(answer, refusal=snapshot.events[pod.metadata.uid])
    if len(chosen_names) > 1 and not request.devices:
        return evolve(answer, notes=(*answer.notes, _NOT_OURS))
    return evolve(answer, node=chosen_names[0])


async def _bind(
    snapshot: ClusterSnapshot, scheduler: Scheduler, queued: Queued, answer: PodAnswer
) -> tuple[str, PodAnswer]:
    """Bind a pod to its node; return its UID, and its answer with its allocations."""
    uid, full_name = queued.pod.metadata.uid, queued.pod.full_name
    binding_request = dict(zip(("podnamespace", "podname"), full_name, strict=True))
    try:
        await scheduler.binding.bind({**binding_request, "poduid": uid, "node": answer.node})
    except HeteroError as error:
        return uid, evolve(answer, node=None, refusal=str(error))
    allocation_json = snapshot.objects[PODS][full_name]["metadata"]["annotations"].get(ALLOCATION)
    assignment = (
        codec.loads(allocation_json, Assignment, source=f"pod {answer.pod}")
        if allocation_json
        else None
    )
    return uid, evolve(answer, containers=assignment.containers if assignment else ())


_NOT_OURS = "kube-scheduler places it: it asks for no device"


def _notes(queued: Queued) -> Iterator[str]:
    """Yield the constraints of a pod that kube-scheduler follows and the simulation does not."""
    spec, metadata = queued.plain["spec"], queued.plain["metadata"]
    if queued.origin == MOVED and not metadata.get("ownerReferences"):
        yield "nothing makes it again: it has no controller"
    affinity = spec.get("affinity") or {}
    required_terms_key = "requiredDuringSchedulingIgnoredDuringExecution"
    for affinity_kind in ("podAffinity", "podAntiAffinity"):
        if (affinity.get(affinity_kind) or {}).get(required_terms_key):
            yield f"its {affinity_kind} is not looked at"
    spreads = spec.get("topologySpreadConstraints") or ()
    if any(spread.get("whenUnsatisfiable") != "ScheduleAnyway" for spread in spreads):
        yield "its topologySpreadConstraints are not looked at"
    if any("persistentVolumeClaim" in volume for volume in spec.get("volumes") or ()):
        yield "its volumes are not looked at"
    if any(
        "hostPort" in port
        for container in spec["containers"]
        for port in container.get("ports") or ()
    ):
        yield "its host ports are not looked at"
    for field_name in ("resourceClaims", "schedulingGates"):
        if spec.get(field_name):
            yield f"its {field_name} are not looked at"


@contextmanager
def _logged() -> Iterator[Callable[[], list[str]]]:
    """Keep log messages from being printed; yield a function that returns them."""
    queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
    logger, handler = logging.getLogger("hetero.kube"), QueueHandler(queue)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield lambda: [queue.get().getMessage() for _ in range(queue.qsize())]
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
