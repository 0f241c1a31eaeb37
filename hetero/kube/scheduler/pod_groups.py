"""Places all pods of a group or none, and gives the group one row of gang time on its nodes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

from attrs import define, field, frozen

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.objects.kinds import Pod, PodGroup
from hetero.kube.words.annotations import GangSlot
from hetero.kube.words.pod import POD_GROUP, ended
from hetero.kube.words.pod_request import PodRequest, Vocabulary
from hetero.model import Refusal, Request
from hetero.model.errors import HeteroError
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedPod, Placement

log = logging.getLogger(__name__)

#: The APIs that PodGroups are read from: the plugin's, and Kubernetes' own from 1.36 on, which a
#: pod names in `spec.schedulingGroup`.
_PLUGIN, _KUBERNETES = APIS = ("scheduling.x-k8s.io/v1alpha1", "scheduling.k8s.io/v1alpha2")
#: Seconds that room is held for a group's pods until all of them were to be bound, and that the
#: first of them waits for the others (kube-scheduler gives a binding ten).
RESERVATION_S, _GATHER_S = 30.0, 8.0
_MOST_GONE = 4096

#: Chooses among the nodes, any if None, for a pod; or says why it fits on none.
Choose = Callable[[PodRequest, Collection[str] | None], str | Refusal]


@frozen
class Group:
    """A pod group's name; `api` is the API group and version of its PodGroup."""

    api: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"pod group {self.name}"


@define(eq=False)
class _Plan:
    """The nodes where room is held for pods of a group, by UID."""

    nodes: dict[str, str]
    came: set[str] = field(factory=set)  # those that kube-scheduler wants to bind
    decided: asyncio.Event = field(factory=asyncio.Event)
    all_came: bool = False


@define(eq=False)
class _GroupRecord:
    """The state of a group that has a PodGroup, pods, or both."""

    min_pods: int | None = None  # pods that are placed together; None: there is no PodGroup
    members: dict[str, Pod] = field(factory=dict)  # that have not ended, by UID
    plan: _Plan | None = None
    row: GangSlot | None = None
    refused: bool = False


@define(eq=False)
class PodGroups:
    """The pod groups of a cluster, and the room that is held for their pods.

    A group's room is reserved and released as a whole: two groups never hold parts of what both
    need. `again` wakes a pod.
    """

    api: ApiCalls
    vocabulary: Vocabulary
    cache: SchedulerCache
    choose: Choose
    again: Callable[[Pod], Any]
    _groups: dict[Group, _GroupRecord] = field(factory=dict)
    _group_by_uid: dict[str, Group] = field(factory=dict)  # a member's label may change later
    # The nodes that kube-scheduler offered for pods that it refused the held node.
    _nodes_by_uid: dict[str, frozenset[str]] = field(factory=dict)
    _whole_uids: set[str] = field(factory=set)  # pods whose group has come whole
    _ended_uids: dict[str, None] = field(factory=dict)  # the last that ended or were deleted

    # --- what the API says ----------------------------------------------------------------------

    async def follow(self) -> None:
        """Follow the PodGroups of both APIs; a cluster may lack these APIs."""
        await asyncio.gather(
            *(
                self.api.follow(
                    f"/apis/{api}/podgroups",
                    PodGroup,
                    listed=partial(self._listed, api),
                    changed=partial(self._changed, api),
                    lost=_lost,
                )
                for api in APIS
            )
        )

    def _listed(self, api: str, groups: list[PodGroup]) -> None:
        for group, record in [*self._groups.items()]:
            if group.api == api:
                record.min_pods = None
                self._drop_unknown(group)
        for pod_group in groups:
            self._changed(api, "ADDED", pod_group)

    def _changed(self, api: str, event: str, pod_group: PodGroup) -> None:
        group, spec = Group(api, *pod_group.full_name), pod_group.spec
        gang_size = spec.scheduling_policy.gang.min_count
        # A group of Kubernetes' own without a gang policy is no more than a name.
        record = self._record(group)
        record.min_pods = (spec.min_member if api == _PLUGIN else gang_size) or 1
        if event == "DELETED":
            record.min_pods = None
            self._drop_unknown(group)
        elif record.refused:
            self._try_again(group)

    def _record(self, group: Group) -> _GroupRecord:
        return self._groups.setdefault(group, _GroupRecord())

    def _drop_unknown(self, group: Group) -> None:
        """Forget a group without a PodGroup and without pods."""
        record = self._groups[group]
        if record.min_pods is None and not record.members:
            del self._groups[group]

    def pod_changed(self, event: str, pod: Pod) -> None:
        """Update the group that a pod belongs to by its labels, and its members.

        A pod that holds devices stays in its group, whose row it has, whatever its labels say now.
        """
        uid, is_gone = pod.metadata.uid, event == "DELETED" or ended(pod)
        group_before, group = self._group_by_uid.get(uid), group_of(pod)
        if group_before is not None and not is_gone and uid in self.cache.standing:
            group = group_before
        if group_before is not None and (is_gone or group_before != group):
            self._take_out(group_before, uid)
        self._ended_uids.pop(uid, None)
        if is_gone and (group_before or group):
            self._ended_uids[uid] = None
            if len(self._ended_uids) > _MOST_GONE:
                del self._ended_uids[next(iter(self._ended_uids))]
        if group is None or is_gone:
            return
        record = self._join(group, pod)
        if group_before != group and record.refused:
            self._try_again(group)

    def _join(self, group: Group, pod: Pod) -> _GroupRecord:
        """Add a pod to a group."""
        record, uid = self._record(group), pod.metadata.uid
        self._group_by_uid[uid] = group
        record.members[uid] = pod
        return record

    def _take_out(self, group: Group, uid: str) -> None:
        """Remove a pod from a group, and the group with its last pod."""
        del self._group_by_uid[uid]
        record = self._groups[group]
        del record.members[uid]
        self._nodes_by_uid.pop(uid, None)
        self._whole_uids.discard(uid)
        if uid in _held(record):
            self._undo(record)
        if not record.members:
            record.row, record.refused = None, False
            self._drop_unknown(group)

    def pods_listed(self, uids: Collection[str]) -> None:
        """Remove all pods but these."""
        members = [pod for record in self._groups.values() for pod in record.members.values()]
        for pod in members:
            if pod.metadata.uid not in uids:
                self.pod_changed("DELETED", pod)

    def restore(self, pod: Pod, row: GangSlot | None) -> None:
        """Record the row in the allocation of one of a group's pods."""
        group = self.group(pod)
        if group is not None and row is not None:
            self._record(group).row = row

    # --- what kube-scheduler asks ---------------------------------------------------------------

    def place(self, pod: Pod, nodes: Collection[str]) -> str | Refusal | None:
        """Return the node that is held for a pod, or why its group cannot be placed.

        None for a pod without a group, or of a group with as many placed pods as it needs.
        """
        group, uid = self.group(pod), pod.metadata.uid
        if group is None:
            return None
        if uid in self._ended_uids:  # kube-scheduler has not heard of it yet
            return Refusal(wanted=1, verdicts={}, missing=f"{group}: the pod is gone")
        record = self._join(group, pod)
        members, min_pods = record.members, record.min_pods
        if min_pods is None:
            return self._no(group, f"namespace {group.namespace} has no PodGroup of this name")
        waiting_pods = [member for member in members.values() if not self._settled(member)]
        needed_count = min_pods - (len(members) - len(waiting_pods))
        if needed_count <= 0 or self._settled(pod):
            return None
        if len(waiting_pods) < needed_count:
            return self._no(group, f"{len(members)} of {min_pods} pods are there")
        held_node = _held(record).get(uid)
        if held_node in nodes:
            return held_node
        if held_node is not None:  # kube-scheduler has a reason of its own against that node
            self._undo(record)
            self._nodes_by_uid[uid] = frozenset(nodes)
        elif record.plan:
            return self._no(group, "its first pods are being placed")
        return self._place_all(group, pod, waiting_pods, needed_count, nodes)

    def _place_all(
        self, group: Group, asking_pod: Pod, pods: list[Pod], needed: int, nodes: Collection[str]
    ) -> str | Refusal:
        """Hold room for all waiting pods, else for `needed` of them, else for none."""
        uid = asking_pod.metadata.uid
        nodes_by_uid = {**self._nodes_by_uid, uid: nodes}
        ranked = sorted(pods, key=lambda pod: (pod is not asking_pod, pod.full_name))
        answer = self._hold(group, ranked, nodes_by_uid)
        if isinstance(answer, Refusal) and len(ranked) > needed:
            answer = self._hold(group, ranked[:needed], nodes_by_uid)
        record = self._groups[group]
        record.refused = isinstance(answer, Refusal)
        if isinstance(answer, Refusal):
            return answer
        plan = record.plan = _Plan(answer)
        asyncio.get_running_loop().call_later(RESERVATION_S, self._expire, group, plan)
        self._give_row(group, answer)
        for waiting_pod in pods:
            if waiting_pod is not asking_pod and waiting_pod.metadata.uid in answer:
                self.again(waiting_pod)
        return answer[uid]

    def _hold(
        self, group: Group, pods: list[Pod], nodes_by_uid: dict[str, Collection[str]]
    ) -> dict[str, str] | Refusal:
        """Hold room for each of the pods, the largest first, or for none of them."""
        requests = [(pod, self.vocabulary.pod_request(pod)) for pod in pods]
        own_requests = [(pod, request) for pod, request in requests if request is not None]
        own_requests.sort(key=lambda pair: -_devices(pair[1]))
        node_by_uid: dict[str, str] = {}
        for pod, request in own_requests:
            uid = pod.metadata.uid
            answer = self.choose(request, nodes_by_uid.get(uid))
            if isinstance(answer, str):
                placement = self.cache.reserve(uid, request.pod, answer)
                if isinstance(placement, Placement):
                    node_by_uid[uid] = answer
                    continue
                answer = placement
            for other_uid in node_by_uid:
                self.cache.release(other_uid)
            progress = f"room for {len(node_by_uid)} of {len(own_requests)} pods"
            return self._no(group, f"{progress}; pod {pod.metadata.name}: {answer.sentence}")
        return node_by_uid

    async def gather(self, pod: Pod) -> None:
        """Wait until all pods with held room are to be bound. Raises `HeteroError`."""
        group, uid = self.group(pod), pod.metadata.uid
        record = self._groups.get(group) if group else None
        plan = record.plan if record else None
        if record is None or plan is None or uid not in plan.nodes:
            return
        plan.came.add(uid)
        if plan.came == plan.nodes.keys():
            plan.all_came = True
            plan.decided.set()
            self._whole_uids |= plan.came
            record.plan = None
        try:
            await asyncio.wait_for(plan.decided.wait(), _GATHER_S)
        except asyncio.TimeoutError:
            plan.came.discard(uid)
        if not plan.all_came:
            self.again(pod)
            raise HeteroError(f"{group}: its other pods did not come in time")

    def group(self, pod: Pod) -> Group | None:
        """Return the group that a pod was recorded in, else the one that it names."""
        return self._group_by_uid.get(pod.metadata.uid) or group_of(pod)

    def row(self, pod: Pod) -> GangSlot | None:
        """Return the row of a pod's group, None if it has none.

        Also None for a late pod whose device another group uses in that row.
        """
        group, placement = self.group(pod), self.cache.standing.get(pod.metadata.uid)
        record = self._groups.get(group) if group else None
        row = record.row if record else None
        if row is None or placement is None:
            return row
        devices = {usage.device for usage in placement.holds}
        rows = (other_row for other, other_row in self._rows_on(devices) if other != group)
        return None if any(map(row.overlaps, rows)) else row

    def gang(self, pod: Pod) -> frozenset[str]:
        """Return the UIDs of all pods that hold devices and are evicted together with a pod.

        A group whose PodGroup needs one pod is no gang. One without a known PodGroup may be.
        """
        group, uid = self.group(pod), pod.metadata.uid
        record = self._groups.get(group) if group else None
        if record is None or (record.min_pods or 2) < 2:
            return frozenset({uid})
        return frozenset(
            member_uid
            for member_uid, member in record.members.items()
            if member_uid in self.cache.standing and member.metadata.deletion_timestamp is None
        ) | {uid}

    # --- what follows from it -------------------------------------------------------------------

    def _settled(self, pod: Pod) -> bool:
        """Return whether a pod is bound, or is being bound with its group."""
        uid = pod.metadata.uid
        return bool(pod.spec.node_name) or (uid in self._whole_uids and uid in self.cache.standing)

    def _no(self, group: Group, reason: str) -> Refusal:
        self._groups[group].refused = True
        return Refusal(wanted=1, verdicts={}, missing=f"{group}: {reason}")

    def _undo(self, record: _GroupRecord) -> None:
        """Release the room that is held for a group."""
        for uid in _held(record):
            self.cache.release(uid)
        if record.plan:
            record.plan.decided.set()
            record.plan = None

    def _expire(self, group: Group, plan: _Plan) -> None:
        record = self._groups.get(group)
        if record and record.plan is plan:
            log.info("%s: gives its room back: its pods did not come in time", group)
            self._undo(record)
            refused_groups = (other for other, record in self._groups.items() if record.refused)
            for other in sorted(refused_groups, key=str):
                self._try_again(other)

    def _try_again(self, group: Group) -> None:
        """Wake one waiting pod of a group; the others follow it."""
        record = self._groups[group]
        next_pod = next((pod for pod in record.members.values() if not self._settled(pod)), None)
        if next_pod is not None:
            record.refused = False
            self.again(next_pod)

    def _give_row(self, group: Group, uids: Iterable[str]) -> None:
        """Give a group the first row that no other group has on any of its devices.

        The number of rows is how often its core fits into a card. Without a core limit, or where no
        row is free, the group has none.
        """
        if self._groups[group].row:
            return
        placements = [self.cache.standing[uid] for uid in uids]
        requests = [request for placement in placements for request in _requests(placement.pod)]
        asks = [ask for request in requests for ask in request.asks]
        row_count = min((ask.core_of // ask.core if ask.core else 1 for ask in asks), default=1)
        devices = {usage.device for placement in placements for usage in placement.holds}
        taken_rows = [row for _, row in self._rows_on(devices)]
        free_rows = (GangSlot(row=number, rows=row_count) for number in range(1, row_count + 1))
        row = next((row for row in free_rows if not any(map(row.overlaps, taken_rows))), None)
        if row is not None and any(ask.core for ask in asks):
            self._groups[group].row = row

    def _rows_on(self, devices: set[str]) -> Iterator[tuple[Group, GangSlot]]:
        """Yield the groups that hold any of the devices and have a row, and their rows."""
        standing = self.cache.standing
        for group, record in self._groups.items():
            if record.row is not None:
                uids = record.members.keys() & standing.keys()
                if any(usage.device in devices for uid in uids for usage in standing[uid].holds):
                    yield group, record.row


def _held(record: _GroupRecord) -> dict[str, str]:
    return record.plan.nodes if record.plan else {}


def _requests(pod: PlacedPod) -> list[Request]:
    containers = (*pod.sidecars, *pod.containers, *pod.init)
    return [container.request for container in containers if container.request is not None]


def _devices(request: PodRequest) -> int:
    return max((len(pod_request.asks) for pod_request in _requests(request.pod)), default=0)


def group_of(pod: Pod) -> Group | None:
    """Return the group that a pod names, None without one."""
    own_group, namespace = pod.spec.scheduling_group, pod.metadata.namespace
    if own_group is not None and own_group.pod_group_name:
        return Group(_KUBERNETES, namespace, own_group.pod_group_name)
    name = pod.metadata.labels.get(POD_GROUP)
    return Group(_PLUGIN, namespace, name) if name else None


def _lost(error: Exception) -> None:
    if not isinstance(error, ApiError) or error.status != 404:  # 404: the cluster has no such API
        log.warning("pod groups: %s", error)
