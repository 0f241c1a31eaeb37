"""Counts in the cache what pods hold, as the API says, and what runs on of pods that are over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from attrs import define, evolve, field

from hetero.kube.objects.kinds import Pod
from hetero.kube.scheduler import hami_migration
from hetero.kube.scheduler.expected_mix import ExpectedMix, arrive
from hetero.kube.scheduler.pod_groups import PodGroups
from hetero.kube.scheduler.pod_table import PLACED, PodState, PodTable
from hetero.kube.scheduler.signatures import Signatures
from hetero.kube.scheduler.waker import Waker, in_background
from hetero.kube.words.annotations import ALLOCATION, SIGNATURE, Held, NodeGrants
from hetero.kube.words.host import pod_host
from hetero.kube.words.pod import ended, kinds, running
from hetero.kube.words.pod_request import Vocabulary
from hetero.model import ContainerKind, Counters, Occupancy, occupancies
from hetero.model.errors import BadInput
from hetero.placement.cluster import PlacedContainer, PlacedPod, Placement
from hetero.placement.place_pod import standing

log = logging.getLogger(__name__)

#: Seconds within which a node says what runs on of a pod that was deleted by force.
UNCONFIRMED_S = 5.0
#: A pod that holds no device: nobody is served by its end, so it is more important than any.
WITHOUT_DEVICES = PlacedPod(containers=(PlacedContainer(),), priority=2**31 - 1)
_RUNS = "Running"
#: How the names of claims in the cache begin; a UID follows.
CLAIM = "claim/"


@define(eq=False)
class Orphans:
    """What stands on the nodes of one cluster and is of no pod of the API.

    That are containers that run on after their pods, and grants of the nodes' own programs.
    """

    pods: PodTable
    waker: Waker
    _by_node: dict[str, set[str]] = field(factory=dict)  # their names in the cache

    def standing(self) -> set[str]:
        """Return what stands in the cache for them: names by node, and UIDs of pods."""
        uids = (record.uid for record in self.pods.within(PodState.UNCONFIRMED))
        return set().union(uids, *self._by_node.values())

    def count(self, node: str, grants: NodeGrants) -> bool:
        """Count what a node says that stands on it and is no pod's; return whether some is free.

        Quotas of their namespaces are charged: so no more of a device than the node has.
        """
        cache, names_before = self.pods.cache, self._by_node.pop(node, set())
        holders = {
            f"{node}/{uid}": (ended_pod.namespace, ended_pod.takes)
            for uid, ended_pod in grants.ended_pods.items()
        }
        for grant_id, grant in grants.others.items():
            takes = occupancies([(ContainerKind.MAIN, grant.allocation)])
            holders[f"{node}/grant/{grant_id}"] = grant.namespace, takes
        for record in self.pods.within(PodState.UNCONFIRMED):
            if record.uid in grants.ended_pods:
                self.pods.forget(record.uid, ran=False)
        for name in names_before - holders.keys():
            namespace = cache.standing[name].pod.namespace
            cache.forget(name, ran=False)
            self.waker.wake_in(namespace)
        free = {device.uuid: dict(device.capacity) for device in cache.inventory.devices(node)}
        for name, (namespace, takes) in holders.items():
            usages = tuple(
                Occupancy(usage.device, _taken_of(free.get(usage.device, {}), usage.takes))
                for usage in takes
            )
            pod = evolve(WITHOUT_DEVICES, namespace=namespace)
            cache.restore(
                name, Placement(node=node, pod=pod, allocations=(None,), holds=usages, host={})
            )
        if holders:
            self._by_node[node] = {*holders}
        return bool(names_before - holders.keys())

    def count_unconfirmed(self, pod: Pod, placement: Placement) -> None:
        """Count what a pod held that was deleted by force until its node says what runs on.

        A kubelet waits no longer for containers to end than their pod said.
        """
        uid, grace_s = pod.metadata.uid, pod.spec.termination_grace_period_seconds
        self.pods.transition(uid, PodState.UNCONFIRMED).pod = pod
        ended_pod = evolve(WITHOUT_DEVICES, namespace=placement.pod.namespace)
        self.pods.cache.restore(uid, evolve(placement, pod=ended_pod, allocations=(None,)))
        wait_s = UNCONFIRMED_S if grace_s is None else min(UNCONFIRMED_S, grace_s)
        in_background(self._expire(uid, placement, wait_s))

    async def _expire(self, uid: str, placement: Placement, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        if self.pods.get(uid).state is PodState.UNCONFIRMED:
            self.pods.forget(uid, ran=False)
            self.waker.wake_for(placement.node)
            self.waker.wake_in(placement.pod.namespace)


@define(eq=False)
class StandingPods:
    """The pods that stand on the nodes."""

    vocabulary: Vocabulary
    pods: PodTable
    signatures: Signatures
    groups: PodGroups
    orphans: Orphans
    mix: ExpectedMix | None
    # By node and UID, the pods that hold something else there than their allocations say.
    _corrected: dict[str, Held] = field(init=False, factory=dict)

    def count_node(self, node: str, grants: NodeGrants) -> bool:
        """Count what a node says of its grants; return whether something may be free by now."""
        is_freed = self.orphans.count(node, grants)
        corrected_before, corrected_now = self._corrected.pop(node, {}), grants.corrected_pods
        if corrected_now:
            self._corrected[node] = corrected_now
        for uid in corrected_before.keys() | corrected_now.keys():
            placement = self.pods.cache.standing.get(uid)
            if placement and corrected_before.get(uid) != corrected_now.get(uid):
                allocated = standing(placement.pod, placement.node, placement.allocations)
                restored = self._as_corrected(uid, evolve(placement, holds=allocated.holds))
                self.pods.cache.restore(uid, restored)
                is_freed = True
        return is_freed

    def pods_listed(self, uids: Collection[str]) -> None:
        """Forget all pods but these, and those whose containers run on."""
        gone_uids = {*self.pods.cache.standing, *dict(self.pods.holders())}.difference(uids)
        for uid in gone_uids - self.orphans.standing():
            if uid.startswith(CLAIM):
                continue
            self.pods.forget(uid, ran=self.pods.get(uid).state is not PodState.HELD)

    def pod_changed(self, event: str, pod: Pod) -> None:
        """Count what a pod holds by now."""
        if event == "DELETED" or ended(pod):
            self._end(event, pod)
            return
        record, node = self.pods.get(pod.metadata.uid), pod.spec.node_name
        pod_before = record.pod if record.state in PLACED else None
        if pod_before is not None:
            record.pod = pod
        if record.state is PodState.RESERVED or not node:
            return
        if ALLOCATION in pod.metadata.annotations:
            if pod_before is None or _given(pod_before) != _given(pod):
                self._restore(pod)
        elif record.state is not PodState.HAMI:
            if pod.status.phase == _RUNS and hami_migration.given(pod):
                self.pods.learn(pod, PodState.HAMI)
                self._count_hami(pod)
            else:
                self._count_host(pod)

    def count_hami(self, node: str) -> None:
        """Count the pods of a node that HAMi gave something and that could not be counted yet."""
        for record in self.pods.within(PodState.HAMI):
            pod, placement = record.pod, self.pods.cache.standing.get(record.uid)
            if pod and pod.spec.node_name == node and not (placement and placement.holds):
                self._count_hami(pod)

    def _end(self, event: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        placement = self.pods.cache.standing.get(uid)
        holds_devices = self.pods.get(uid).state in PLACED and placement and placement.holds
        if placement and holds_devices and event == "DELETED" and running(pod):
            self.pods.cache.forget(uid, ran=True)
            self.orphans.count_unconfirmed(pod, placement)
        else:
            self.pods.forget(uid, ran=bool(pod.spec.node_name))

    def _restore(self, pod: Pod) -> None:
        """Count what the pod's allocation gives it, unless it is forged."""
        assignment = pod_request = None
        try:
            assignment = self.signatures.read(pod)
            pod_request = self.vocabulary.pod_request(pod)
        except BadInput as error:
            log.warning("%s", error)
        if assignment is None or pod_request is None:
            self._count_host(pod)
            return
        allocations = dict(assignment.containers)
        container_allocations = tuple(allocations.get(name) for name in kinds(pod))
        arrive(self.pods.cache, self.mix, pod, pod_request.pod, pod.created)
        placement = standing(pod_request.pod, assignment.node, container_allocations)
        uid = pod.metadata.uid
        self.pods.cache.restore(uid, self._as_corrected(uid, placement))
        self.groups.restore(pod, assignment.place_in_time)
        self.pods.learn(pod, PodState.BOUND)

    def _as_corrected(self, uid: str, placement: Placement) -> Placement:
        """Return what a pod holds by its node's word, no more of a device than that has."""
        corrected = self._corrected.get(placement.node, {}).get(uid)
        if corrected is None:
            return placement
        devices = self.pods.cache.inventory.devices(placement.node)
        capacity_by_uuid = {device.uuid: dict(device.capacity) for device in devices}
        holds = (
            evolve(usage, takes=_taken_of(capacity_by_uuid.get(usage.device, {}), usage.takes))
            for usage in corrected.takes
        )
        pod = evolve(placement.pod, namespace=corrected.namespace)
        return evolve(placement, pod=pod, holds=tuple(holds))

    def _count_hami(self, pod: Pod) -> None:
        """Count what HAMi gave a pod that runs: its cards are not empty, until it ends."""
        uid, node = pod.metadata.uid, pod.spec.node_name or ""
        if not self.pods.cache.inventory.devices(node) or self.pods.cache.inventory.is_cordoned(
            node
        ):
            return  # not known yet, or nobody is placed there meanwhile
        try:
            pod_request = self.vocabulary.pod_request(pod, hami_migration.given(pod))
            if pod_request is None:
                return
            # It runs, whatever its node has left of processors.
            answer = self.pods.cache.reserve(uid, _without_host(pod_request.pod), node)
            if isinstance(answer, Placement):
                self.pods.cache.restore(uid, evolve(answer, host=pod_request.pod.host()))
                return
            reason = answer.sentence
        except BadInput as error:
            reason = str(error)
        log.warning("pod %s/%s, which HAMi started: not counted: %s", *pod.full_name, reason)

    def _count_host(self, pod: Pod) -> None:
        """Count what a bound pod without devices requests of its node."""
        try:
            host = pod_host(pod)
        except BadInput as error:
            log.warning("pod %s/%s: not counted: %s", *pod.full_name, error)
            return
        uid, node = pod.metadata.uid, pod.spec.node_name or ""
        placement = Placement(
            node=node, pod=WITHOUT_DEVICES, allocations=(None,), holds=(), host=host
        )
        self.pods.cache.restore(uid, self._as_corrected(uid, placement))


def _taken_of(free: dict[str, int], takes: Counters) -> Counters:
    """Take from what is left of a device, and return what was there to take."""
    taken = {counter: min(amount, free.get(counter, 0)) for counter, amount in takes.items()}
    for counter, amount in taken.items():
        free[counter] = free.get(counter, 0) - amount
    return taken


def _without_host(pod: PlacedPod) -> PlacedPod:
    containers = (evolve(container, host={}) for container in pod.containers)
    return evolve(pod, containers=tuple(containers))


def _given(pod: Pod) -> tuple[str | None, str | None]:
    annotations = pod.metadata.annotations
    return annotations.get(ALLOCATION), annotations.get(SIGNATURE)
