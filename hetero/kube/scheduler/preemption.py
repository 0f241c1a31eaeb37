"""Frees room for a pod that no node serves: evicts the fewest, least important pods by the API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from attrs import define, field, frozen

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.client.events import Events
from hetero.kube.objects.kinds import Plain, Pod
from hetero.kube.scheduler.disruption_budgets import DisruptionBudgets
from hetero.kube.scheduler.pod_table import PodTable
from hetero.placement.cluster import PlacedPod, Placement
from hetero.placement.victims import Victims

log = logging.getLogger(__name__)

#: Nodes that are looked at for victims. Of many nodes kube-scheduler, too, looks at a hundred.
_MOST_NODES = 100
#: Sets of victims the API is asked about before a pod is told that budgets protect them.
_MOST_TRIED_SETS = 20
#: Seconds that freed room is held for the pod it was freed for, and that an eviction which fails
#: after others were made is tried again.
RESERVATION_S = 30.0
#: Seconds between two tries of an eviction.
EVICTION_RETRY_S = 1.0
#: Seconds that a victim may end later than its grace period says, and between looks.
_LATENESS_S, _POLL_PERIOD_S = 30.0, 0.1
#: Seconds that a pod has to end in if it does not say (Kubernetes' default).
_DEFAULT_GRACE_S = 30


@frozen(eq=False)
class _Room:
    """The room that is being freed for a pod: its victims, and the placement that is held."""

    victims: Victims
    placement: Placement


@define(eq=False)
class Preemption:
    """One scheduler's evictions: at most one set of victims at a time for each pod, on one node.

    `gang` returns the UIDs of the pods that are evicted together with a pod, its own included.
    `again` wakes a pod.
    """

    api: ApiCalls
    events: Events
    pods: PodTable
    gang: Callable[[Pod], frozenset[str]]
    again: Callable[[Pod], Any]
    _rooms: dict[str, _Room | None] = field(factory=dict)  # by UID; None: still being chosen
    _api_version: str = ""

    def node(self, uid: str) -> str | None:
        """Return the node where room is freed or held for a pod, None without any."""
        room = self._rooms.get(uid)
        return room.placement.node if room else None

    def _ends(self, uid: str) -> bool:
        """Return whether a pod is being deleted: what it holds becomes free without an eviction."""
        pod = self.pods.holder(uid)
        return pod is not None and pod.metadata.deletion_timestamp is not None

    def victims(
        self,
        uid: str,
        placed_pod: PlacedPod,
        node: str,
        *,
        certain: Sequence[str] = (),
        spared: Collection[str] = (),
        may_evict: Callable[[Collection[str]], bool] = lambda _: True,
    ) -> Victims | None:
        """Return the pods to evict so that a pod fits on a node, None if no set of them is enough.

        `certain` are evicted in any case, `spared` never, and others only if `may_evict` allows the
        set. Of a gang all pods are evicted or none. Pods that are being deleted are not victims.
        Room that is held for the pod itself is free for it, and taken for others.
        """
        node_uids = self.pods.cache.on(node)
        ending_uids = [other for other in sorted(node_uids) if other == uid or self._ends(other)]
        candidate_uids = node_uids.difference(ending_uids)
        holders = filter(None, map(self.pods.holder, candidate_uids))
        gangs = {pod.metadata.uid: self.gang(pod) for pod in holders}
        member_uids = node_uids.union(*gangs.values())
        unbound_uids = {other for other in member_uids if self.pods.holder(other) is None}
        return self.pods.cache.victims(
            placed_pod,
            node,
            certain=certain,
            ending=ending_uids,
            spared=unbound_uids.union(spared),
            gangs=gangs,
            may_evict=may_evict,
        )

    def wanted(self, pod: Pod) -> bool:
        """Return whether a pod may preempt others and does not do so already."""
        never_preempts = pod.spec.preemption_policy == "Never"
        return not never_preempts and pod.metadata.uid not in self._rooms

    async def make_room(self, pod: Pod, placed_pod: PlacedPod, nodes: Iterable[str]) -> None:
        """Evict the fewest and least important pods that free room for a pod, and hold the room.

        Returns when the pod is bound or gone, or was not bound in time.
        """
        uid = pod.metadata.uid
        self._rooms[uid] = None
        try:
            room = await self._choose(pod, placed_pod, nodes)
            if room is None:
                return
            self._rooms[uid] = room
            try:
                await self._nominate(pod, room.placement.node)
                await self._evict(pod, room)
                await self._wait(pod, room)
            finally:
                if self._is_held(uid, room):  # nobody came for it
                    self.pods.cache.release(uid)
                    with suppress(ApiError):  # the pod is gone
                        await self._nominate(pod, None)
        except ApiError as error:
            await self.events.tell(pod.metadata, "PreemptionRefused", f"preemption: {error}")
        finally:
            del self._rooms[uid]

    async def _choose(self, pod: Pod, placed_pod: PlacedPod, nodes: Iterable[str]) -> _Room | None:
        """Choose the victims and hold their room, None if no node has enough victims.

        Raises `ApiError` if the API does not tell who may be evicted.
        """
        uid, spared_uids, protected_uids = pod.metadata.uid, set[str](), set[str]()
        nodes = self.pods.cache.preemptible(placed_pod, nodes)[:_MOST_NODES]
        possible_victims = await self._on_each(uid, placed_pod, nodes)
        if not possible_victims:
            return None
        budgets = await DisruptionBudgets.read(self.api, await self._policy_version())

        def may_evict(uids: Collection[str]) -> bool:
            budgeted_uids = budgets.protected(filter(None, map(self.pods.holder, uids)))
            protected_uids.update(budgeted_uids)
            return not budgeted_uids

        nodes = [victims.node for victims in possible_victims]
        choices = await self._on_each(uid, placed_pod, nodes, may_evict)
        for _ in range(_MOST_TRIED_SETS):
            choice = min(choices, key=lambda choice: choice.loss, default=None)
            if choice is None:
                break
            choices.remove(choice)
            refused_uids = await self._refused(choice.uids)
            spared_uids.update(refused_uids)
            node = choice.node
            victims = self.victims(uid, placed_pod, node, spared=spared_uids, may_evict=may_evict)
            if victims is not None and (refused_uids or victims.uids != choice.uids):
                choices.append(victims)  # the node has others, or changed while we asked
            elif victims is not None:
                going_uids = (*victims.uids, *victims.ending)
                placement = self.pods.cache.hold(uid, placed_pod, node, without_uids=going_uids)
                if isinstance(placement, Placement):
                    return _Room(victims, placement)
        protected_uids |= spared_uids
        if protected_uids:
            message = f"preemption: PodDisruptionBudgets protect {len(protected_uids)} pods"
            await self.events.tell(pod.metadata, "PreemptionRefused", message)
        return None

    async def _on_each(
        self,
        uid: str,
        placed_pod: PlacedPod,
        nodes: Iterable[str],
        may_evict: Callable[[Collection[str]], bool] = lambda _: True,
    ) -> list[Victims]:
        """Return the victims of each node that has any."""
        all_victims = []
        for node in nodes:
            victims = self.victims(uid, placed_pod, node, may_evict=may_evict)
            if victims is not None:
                all_victims.append(victims)
            await asyncio.sleep(0)  # others are scheduled meanwhile
        return all_victims

    async def _refused(self, uids: Iterable[str]) -> list[str]:
        """Return the first pod that the API would not evict now, an empty list without one."""
        for uid in uids:
            if error := await self._post_eviction(uid, dry_run=True):
                log.info("preemption: %s", error)
                return [uid]
        return []

    async def _evict(self, pod: Pod, room: _Room) -> None:
        """Evict all victims, one after the other.

        If the API refuses the first, none is evicted. A later refusal is retried while the room is
        held, for `RESERVATION_S`: half a gang serves nobody. Raises `ApiError`.
        """
        pod_name = "/".join(pod.full_name)
        for evicted_count, uid in enumerate(room.victims.uids):
            victim = self.pods.holder(uid)
            deadline_s = monotonic() + (RESERVATION_S if evicted_count else 0.0)
            while error := await self._post_eviction(uid):
                if monotonic() >= deadline_s or not self._is_held(pod.metadata.uid, room):
                    progress = f"{evicted_count} of {len(room.victims.uids)} evicted"
                    raise ApiError(progress, 0, str(error)) if evicted_count else error
                await asyncio.sleep(EVICTION_RETRY_S)
            if victim is not None:
                log.info("preemption: %s: evicted %s", pod_name, "/".join(victim.full_name))
                message = f"preempted by pod {pod_name} on node {room.placement.node}"
                await self.events.tell(victim.metadata, "Preempted", message)
        if room.victims.uids:
            node = room.placement.node
            message = f"evicts {len(room.victims.uids)} of lower priority on node {node}"
            await self.events.tell(pod.metadata, "Preempting", message)

    async def _wait(self, pod: Pod, room: _Room) -> None:
        """Wait until the victims are gone, and then until the pod is bound or its time is over.

        Victims of a gang on other nodes are not waited for.
        """
        node_uids = self.pods.cache.on(room.placement.node)
        ending_uids = node_uids.intersection((*room.victims.uids, *room.victims.ending))
        grace_s = max((self._grace(victim) for victim in ending_uids), default=0)
        standing_uids = self.pods.cache.standing.keys()
        is_gone = await self._until(
            lambda: standing_uids.isdisjoint(ending_uids), pod, room, grace_s + _LATENESS_S
        )
        if is_gone:
            self.again(pod)
            await self._until(lambda: False, pod, room, RESERVATION_S)

    async def _until(
        self, is_done: Callable[[], bool], pod: Pod, room: _Room, wait_s: float
    ) -> bool:
        """Return whether a condition became true in time while the room was held."""
        uid, deadline_s = pod.metadata.uid, monotonic() + wait_s
        while self._is_held(uid, room) and monotonic() < deadline_s:
            if is_done():
                return True
            await asyncio.sleep(_POLL_PERIOD_S)
        return False

    def _is_held(self, uid: str, room: _Room) -> bool:
        """Return whether the room is still held for the pod."""
        return self.pods.cache.standing.get(uid) is room.placement

    def _grace(self, uid: str) -> int:
        pod = self.pods.holder(uid)
        grace_s = pod.spec.termination_grace_period_seconds if pod else 0
        return _DEFAULT_GRACE_S if grace_s is None else grace_s

    async def _post_eviction(self, uid: str, *, dry_run: bool = False) -> ApiError | None:
        """Evict a pod by the API. Return the refusal, None for success or a pod that is gone."""
        pod = self.pods.holder(uid)
        if pod is None:
            return None
        namespace, name = pod.full_name
        options: Plain = {"preconditions": {"uid": uid}}
        if dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": f"policy/{await self._policy_version()}",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": options,
        }
        try:
            await self.api.post(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another of its name
                return error
        return None

    async def _policy_version(self) -> str:
        """Return the version of evictions: v1 from Kubernetes 1.22 on. Raises `ApiError`."""
        if not self._api_version:
            for resource in (await self.api.get("/api/v1"))["resources"]:
                if resource["name"] == "pods/eviction":
                    self._api_version = resource["version"]
        return self._api_version

    async def _nominate(self, pod: Pod, node: str | None) -> None:
        """Set the node that a pod waits for in its status. Raises `ApiError`."""
        namespace, name = pod.full_name
        body = {
            "metadata": {"uid": pod.metadata.uid},
            "status": {"nominatedNodeName": node},
        }
        await self.api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", body)
