"""Makes room for a pod that no node serves: evicts the fewest and least important, by the API."""

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
_MOST_TRIED = 20
#: Seconds that freed room is held for the pod it was freed for, and that an eviction which fails
#: after others were made is tried again.
HELD = 30.0
#: Seconds between two tries of an eviction.
RETRY = 1.0
#: Seconds that a victim may end later than its grace period says, and between looks.
_LATE, _PAUSE = 30.0, 0.1
#: Seconds that a pod has to end in if it does not say (Kubernetes' default).
_GRACE = 30


@frozen(eq=False)
class _Room:
    """What is being made free for a pod."""

    victims: Victims
    held: Placement


@define(eq=False)
class Preemption:
    """One scheduler's evictions: for each pod at most one set of victims, on one node, at a time.

    `gang` returns the UIDs of those that go with a pod that holds something, its own too. `again`
    has kube-scheduler try a pod anew.
    """

    api: ApiCalls
    events: Events
    pods: PodTable
    gang: Callable[[Pod], frozenset[str]]
    again: Callable[[Pod], Any]
    _rooms: dict[str, _Room | None] = field(factory=dict)  # by UID; None: still being chosen
    _version: str = ""

    def node(self, uid: str) -> str | None:
        """Return the node where room is being made or held for a pod."""
        plan = self._rooms.get(uid)
        return plan.held.node if plan else None

    def _ends(self, uid: str) -> bool:
        """Return whether a pod was told to end: what it holds comes free by itself."""
        pod = self.pods.holder(uid)
        return pod is not None and pod.metadata.deletion_timestamp is not None

    def victims(
        self,
        uid: str,
        wanted: PlacedPod,
        node: str,
        *,
        given: Sequence[str] = (),
        spared: Collection[str] = (),
        may_evict: Callable[[Collection[str]], bool] = lambda _: True,
    ) -> Victims | None:
        """Return whom to evict so that the pod fits on a node, None if nobody's end is enough.

        `given` are evicted in any case, `spared` never, and others only if `may_evict` allows the
        pods together. Of a gang all go or none. Pods that end already are not counted as victims.
        Room that is held for the pod itself is its own, for others it is theirs.
        """
        on_node = self.pods.cache.on(node)
        ending = [one for one in sorted(on_node) if one == uid or self._ends(one)]
        possible = on_node.difference(ending)
        gangs = {one: self.gang(pod) for one in possible if (pod := self.pods.holder(one))}
        going = on_node.union(*gangs.values())
        unbound = {one for one in going if self.pods.holder(one) is None}
        return self.pods.cache.victims(
            wanted,
            node,
            certain=given,
            ending=ending,
            spared=unbound.union(spared),
            gangs=gangs,
            may_evict=may_evict,
        )

    def wanted(self, pod: Pod) -> bool:
        """Return whether a pod may have others evicted, and has none being evicted."""
        polite = pod.spec.preemption_policy == "Never"
        return not polite and pod.metadata.uid not in self._rooms

    async def make_room(self, pod: Pod, wanted: PlacedPod, nodes: Iterable[str]) -> None:
        """Evict for the pod where the fewest and least important hold its room, and hold that.

        Returns when the pod is bound, is gone, or did not come for its room in time.
        """
        uid = pod.metadata.uid
        self._rooms[uid] = None
        try:
            plan = await self._choose(pod, wanted, nodes)
            if plan is None:
                return
            self._rooms[uid] = plan
            try:
                await self._nominate(pod, plan.held.node)
                await self._evict(pod, plan)
                await self._wait(pod, plan)
            finally:
                if self._is_held(uid, plan):  # nobody came for it
                    self.pods.cache.release(uid)
                    with suppress(ApiError):  # the pod is gone
                        await self._nominate(pod, None)
        except ApiError as error:
            await self.events.tell(pod.metadata, "PreemptionRefused", f"preemption: {error}")
        finally:
            del self._rooms[uid]

    async def _choose(self, pod: Pod, wanted: PlacedPod, nodes: Iterable[str]) -> _Room | None:
        """Return the room to be made, already held, None if there is none to be had.

        Raises `ApiError` if the API does not say who may be evicted.
        """
        uid, spared, protected = pod.metadata.uid, set[str](), set[str]()
        some = self.pods.cache.preemptible(wanted, nodes)[:_MOST_NODES]
        possible_victims = await self._on_each(uid, wanted, some)
        if not possible_victims:
            return None
        budgets = await DisruptionBudgets.read(self.api, await self._policy_version())

        def may_evict(some: Collection[str]) -> bool:
            over = budgets.protected(filter(None, map(self.pods.holder, some)))
            protected.update(over)
            return not over

        choices = await self._on_each(
            uid, wanted, [one.node for one in possible_victims], may_evict
        )
        for _ in range(_MOST_TRIED):
            choice = min(choices, key=lambda victims: victims.loss, default=None)
            if choice is None:
                break
            choices.remove(choice)
            refused = await self._refused(choice.uids)
            spared.update(refused)
            now = self.victims(uid, wanted, choice.node, spared=spared, may_evict=may_evict)
            if now is not None and (refused or now.uids != choice.uids):
                choices.append(now)  # the node has others, or changed while we asked
            elif now is not None:
                going = (*now.uids, *now.ending)
                held = self.pods.cache.hold(uid, wanted, choice.node, without_uids=going)
                if isinstance(held, Placement):
                    return _Room(now, held)
        protected |= spared
        if protected:
            message = f"preemption: PodDisruptionBudgets protect {len(protected)} pods"
            await self.events.tell(pod.metadata, "PreemptionRefused", message)
        return None

    async def _on_each(
        self,
        uid: str,
        wanted: PlacedPod,
        nodes: Iterable[str],
        may_evict: Callable[[Collection[str]], bool] = lambda _: True,
    ) -> list[Victims]:
        """Return the victims on those of the nodes where there are any."""
        all_victims = []
        for node in nodes:
            victims = self.victims(uid, wanted, node, may_evict=may_evict)
            if victims is not None:
                all_victims.append(victims)
            await asyncio.sleep(0)  # others are scheduled meanwhile
        return all_victims

    async def _refused(self, uids: Iterable[str]) -> list[str]:
        """Return the first that the API would not let be evicted now, none if it would all."""
        for uid in uids:
            if error := await self._post_eviction(uid, dry_run=True):
                log.info("preemption: %s", error)
                return [uid]
        return []

    async def _evict(self, pod: Pod, plan: _Room) -> None:
        """Evict all victims, one after the other.

        If the first may not be evicted nobody is. After it one that may not is tried again for
        `HELD` seconds while the room is held: half a gang serves nobody. Raises `ApiError`.
        """
        name = "/".join(pod.full_name)
        for done, uid in enumerate(plan.victims.uids):
            victim = self.pods.holder(uid)
            end = monotonic() + (HELD if done else 0.0)
            while error := await self._post_eviction(uid):
                if monotonic() >= end or not self._is_held(pod.metadata.uid, plan):
                    some = f"{done} of {len(plan.victims.uids)} evicted"
                    raise ApiError(some, 0, str(error)) if done else error
                await asyncio.sleep(RETRY)
            if victim is not None:
                log.info("preemption: %s: evicted %s", name, "/".join(victim.full_name))
                message = f"preempted by pod {name} on node {plan.held.node}"
                await self.events.tell(victim.metadata, "Preempted", message)
        if plan.victims.uids:
            message = f"evicts {len(plan.victims.uids)} of lower priority on node {plan.held.node}"
            await self.events.tell(pod.metadata, "Preempting", message)

    async def _wait(self, pod: Pod, plan: _Room) -> None:
        """Wait until the victims are gone, and then until the pod is bound or its time is over.

        Those of a gang that are on other nodes are not waited for.
        """
        on_node = self.pods.cache.on(plan.held.node)
        going = on_node.intersection((*plan.victims.uids, *plan.victims.ending))
        grace = max((self._grace(victim) for victim in going), default=0)
        gone = await self._until(
            lambda: self.pods.cache.standing.keys().isdisjoint(going), pod, plan, grace + _LATE
        )
        if gone:
            self.again(pod)
            await self._until(lambda: False, pod, plan, HELD)

    async def _until(self, done: Callable[[], bool], pod: Pod, plan: _Room, seconds: float) -> bool:
        """Return whether something came true within a time while the room was held."""
        uid, end = pod.metadata.uid, monotonic() + seconds
        while self._is_held(uid, plan) and monotonic() < end:
            if done():
                return True
            await asyncio.sleep(_PAUSE)
        return False

    def _is_held(self, uid: str, plan: _Room) -> bool:
        """Return whether the room still waits for the pod."""
        return self.pods.cache.standing.get(uid) is plan.held

    def _grace(self, uid: str) -> int:
        pod = self.pods.holder(uid)
        seconds = pod.spec.termination_grace_period_seconds if pod else 0
        return _GRACE if seconds is None else seconds

    async def _post_eviction(self, uid: str, *, dry_run: bool = False) -> ApiError | None:
        """Ask the API to evict a pod; return why it did not, None for one that is gone already."""
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
        if not self._version:
            for resource in (await self.api.get("/api/v1"))["resources"]:
                if resource["name"] == "pods/eviction":
                    self._version = resource["version"]
        return self._version

    async def _nominate(self, pod: Pod, node: str | None) -> None:
        """Have the pod's status say for which node it waits. Raises `ApiError`."""
        namespace, name = pod.full_name
        body = {
            "metadata": {"uid": pod.metadata.uid},
            "status": {"nominatedNodeName": node},
        }
        await self.api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", body)
