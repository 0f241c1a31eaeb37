"""Finds out whose share the kubelet is asking for, gives it, and takes it back with its pod.

The kubelet's Allocate names no pod. But its list of what pods hold has every pod it knows, also the
one it is admitting at this moment, and it admits one at a time. The one is the pod that is on that
list, is on this node by the API's word, has a signed allocation and holds nothing yet. When the
container starts, the same list says who got the devices, and a start that does not match is
stopped.

A kubelet waits for each answer before it goes on to the next pod. So a pod's grants are made when
the API says that it is on this node, which the kubelet hears at the same moment: Allocate hands out
what stands by then, and notes in the grant for which devices it did.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import monotonic

from attrs import define, evolve, field

from hetero.container.pin import Libraries, pin
from hetero.kube.agent.driver_injection import DriverInjection
from hetero.kube.agent.kubelet import Kubelet
from hetero.kube.agent.node_cards import NodeCards
from hetero.kube.agent.node_pods import NeverGiven, NodePods
from hetero.kube.agent.remembered_paths import RememberedPaths
from hetero.kube.client.api import ApiError
from hetero.kube.objects.kinds import Amounts, Pod
from hetero.kube.words.annotations import ALLOCATION, Held, RunsOn, device_of
from hetero.kube.words.pod import (
    SignedContainer,
    active,
    asking,
    ended,
    expect_unhidden,
    has_ended,
    identity_of,
    kinds,
    named,
)
from hetero.kube.words.quantity import quantity
from hetero.model import ContainerKind, DeviceAllocation, Edits
from hetero.model.errors import BadInput, HeteroError, Refused
from hetero.node.core_units import in_units_of
from hetero.node.grants import LocalGrants
from hetero.node.ledger.grant_file import MAX_DEVICES
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node
from hetero.node.tenants.containers import in_use
from hetero.placement.handing_on import with_slices_of
from hetero.registry.registry import Discovery

log = logging.getLogger(__name__)

#: How long Allocate waits for a share whose pod is gone and whose processes are about to be. The
#: kubelet admits pods one by one: a pod that waits here lets all others wait.
_SHARE_WAIT_S = 2.0
_POLL_PERIOD_S = 0.1
#: Seconds that it waits for an API server that is away or silent, all questions together.
_API_WAIT_S = 1.0
#: Seconds until the containers of an ended pod are checked again, and until a failed first check is
#: repeated.
_RECHECK_S = 1.0
#: Seconds within which Allocate follows a preference: no kubelet restarts as fast.
_PREFERENCE_S = 1.0


@define(eq=False)
class Allocator:
    """The shares of one node's pods."""

    node: Node
    pods: NodePods
    kubelet: Kubelet
    libraries: Libraries
    cards: NodeCards
    driver: DriverInjection = field(factory=DriverInjection)
    # The pods that ended and whose containers run, by UID.
    running_on: Held = field(init=False, factory=dict)
    # Whether all of these were checked once, and the API answered for each pod.
    reconciled: bool = field(init=False, default=False)
    # Set when a share may have to go.
    reconcile_due: asyncio.Event = field(init=False, factory=asyncio.Event)
    # By a pod's UID, its grants by container as they are made or were: of the same vendors one pod
    # after the other, as the API tells of them. Pods of other vendors do not wait.
    _making: dict[str, asyncio.Future[dict[str, Grant]]] = field(init=False, factory=dict)
    _makers: defaultdict[frozenset[str], ThreadPoolExecutor] = field(
        init=False, factory=partial(defaultdict, partial(ThreadPoolExecutor, 1))
    )
    # The resource and the ids last preferred, for whom and when.
    _preferred: tuple[str, frozenset[str], SignedContainer, float] | None = field(
        init=False, default=None
    )

    @property
    def discovery(self) -> Discovery:
        """The node's cards, by the last look."""
        return self.cards.discovery

    # --- what the API says ------------------------------------------------------------------------

    def update_pod(self, pod: Pod) -> None:
        """Note a pod of this node as the API has it; make its signed grants ahead of its start.

        A grant that fails is reported to the kubelet when it asks.
        """
        self.pods.update(pod)
        for container in pod.containers if ALLOCATION in pod.metadata.annotations else ():
            grant_id = identity_of(pod.metadata.uid, container.name)
            self.node.ledger.set_ended(grant_id, has_ended=has_ended(pod, container.name))
        if ended(pod):  # then alone: while pods start, their admission has the processor
            self.reconcile_due.set()
        elif active(pod) and ALLOCATION in pod.metadata.annotations:
            with suppress(HeteroError):
                self._made(pod)

    def remove_pod(self, uid: str) -> None:
        """Note that a pod is gone."""
        self.pods.remove(uid)
        self._making.pop(uid, None)
        self.reconcile_due.set()

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        """Note all the pods of this node."""
        pod_by_uid = {pod.metadata.uid: pod for pod in pods}
        for uid in self.pods.by_uid.keys() - pod_by_uid.keys():
            self.remove_pod(uid)
        for pod in pod_by_uid.values():
            self.update_pod(pod)
        self.pods.listed = True
        self.reconcile_due.set()

    # --- what the kubelet asks ------------------------------------------------------------------

    async def prefer(
        self, resource: str, available_ids: list[str], required_ids: list[str], id_count: int
    ) -> list[str]:
        """Return the ids that are slots of the cards that the container was given.

        Raises `NeverGiven` and `Refused` as `allocate` does.
        """
        container = await self._asker(resource, available_ids, id_count)
        chosen_ids = list(required_ids)
        other_ids = [slot_id for slot_id in available_ids if slot_id not in chosen_ids]
        # Of a pod that was deleted by force a kubelet takes the ids for free before it has ended.
        other_ids.sort(key=self._running_ids().__contains__)
        for piece in container.allocation.pieces:
            if any(device_of(slot_id) == piece.device for slot_id in chosen_ids):
                continue
            next_id = next(
                (slot_id for slot_id in other_ids if device_of(slot_id) == piece.device), None
            )
            if next_id is not None:
                chosen_ids.append(next_id)
                other_ids.remove(next_id)
        ids = (chosen_ids + other_ids)[:id_count]
        self._preferred = (resource, frozenset(ids), container, monotonic())
        return ids

    async def allocate(self, resource: str, ids: Iterable[str]) -> Grant:
        """Give the container that is being admitted its share.

        Its mounts are paths that the kubelet may remember. Raises `NeverGiven` where its pod gets
        none as it is, else another `HeteroError`: the next pod that asks alike may get its share.
        """
        id_set = frozenset(ids)
        container = self._just_preferred(resource, id_set) or await self._asker(
            resource, id_set, len(id_set)
        )
        uuids = {piece.device for piece in container.allocation.pieces}
        try:
            grant = await self._give(container, _line(resource, id_set))
            mounts = self._remembered.put(grant.id, grant.edits.mounts)
        except NeverGiven:
            raise
        except HeteroError as error:
            deadline_s = monotonic() + _API_WAIT_S
            if await self.pods.still_active(container.pod, deadline_s=deadline_s):
                await self.cards.note_refusal(uuids, str(error).removeprefix(f"{container}: "))
            raise
        self.cards.note_share(uuids)
        log.info("%s: given grant %s", container, grant.id)
        return evolve(grant, edits=evolve(grant.edits, mounts=mounts))

    async def confirm(self, resource: str, ids: Iterable[str]) -> tuple[Pod, str]:
        """Return the pod and the container about to start, which got these ids for its own share.

        Raises `Refused` when it did not. A share that was lost, as at a reboot, is given again.
        """
        id_set = frozenset(ids)
        line = _line(resource, id_set)
        holders = [
            (await self.pods.named(*pod), container_name)
            for pod, containers in (await self.kubelet.held()).items()
            for container_name, resources in containers.items()
            if id_set <= resources.get(resource, frozenset())
        ]
        (pod, container_name), *other_owners = holders or [(None, "")]
        if pod is not None and not other_owners and line in self._notes(pod, container_name):
            return pod, container_name
        grants = [
            grant for grant in await self._standing() if line in self.node.ledger.notes(grant.id)
        ]
        if not holders:
            # Kubelets do not list init containers, of which several of a pod may have the same.
            grant_by_pod = {grant.owner["uid"]: grant for grant in grants}
            (pod, container_name), *other_owners = [
                (self.pod_of(grant), grant.owner["container"]) for grant in grant_by_pod.values()
            ] or [(None, "")]
        if pod is None:
            await self._wanted(resource, len(id_set))  # says so of one that gets no share
        if pod is None or other_owners:
            raise Refused(f"the kubelet does not say which container got {_list(id_set)}")
        for grant in grants:
            # An init container's devices are handed on to a later container of the same pod.
            if grant.owner["uid"] != pod.metadata.uid:
                raise Refused(
                    f"{named(pod)}, container {container_name}, got {_list(id_set)}, "
                    f"which was given for {grant.label}: it is not started "
                    "(delete the pod and create it anew)"
                )
        if not any(grant.owner["container"] == container_name for grant in grants):
            await self._give(self._signed(pod, container_name, resource), line)
        return pod, container_name

    # --- whose it is ----------------------------------------------------------------------------

    async def _asker(self, resource: str, ids: Iterable[str], device_count: int) -> SignedContainer:
        """Return what `_wanted` does; all cards of these ids rest if this node cannot tell."""
        try:
            return await self._wanted(resource, device_count)
        except (NeverGiven, Refused, ApiError):
            raise  # the pod is to blame, is gone, or the API is away: then none comes
        except HeteroError as error:
            await self.cards.note_refusal({device_of(slot_id) for slot_id in ids}, str(error))
            raise

    async def _wanted(self, resource: str, device_count: int) -> SignedContainer:
        """Return the container that is being admitted.

        Raises `Refused` when there is none, `NeverGiven` if no pod that asks gets a share, another
        `HeteroError` where this node cannot find out.
        """
        held_by_pod, deadline_s = await self.kubelet.held(), monotonic() + _API_WAIT_S
        candidates: list[SignedContainer] = []
        errors: list[HeteroError] = []
        pods, unanswered = await self._listed(held_by_pod, deadline_s)
        for pod in pods:
            try:
                held_by_container = held_by_pod[pod.full_name]
                container = self._next(pod, resource, held_by_container=held_by_container)
            except HeteroError as error:
                errors.append(error)
                continue
            if container is not None and len(container.allocation.pieces) == device_count:
                candidates.append(container)
        # Of those that this node was told of one waits, mostly: then it is that one. Its start asks
        # once more whose devices these are.
        if unanswered is not None and len(candidates) != 1:
            raise unanswered
        if not candidates:
            reasons = "; ".join(map(str, errors))
            if errors and all(isinstance(error, NeverGiven) for error in errors):
                raise NeverGiven(reasons)
            sentence = f"no pod waits for {device_count} {resource}: "
            if errors:
                raise HeteroError(sentence + reasons)
            raise Refused(f"{sentence}the scheduler gave none on this node what it asks")
        # Of two, the kubelet refused one for another reason, and we or the API have not heard yet:
        # the one being admitted is the one that was bound last, whatever changed since.
        if len(candidates) > 1:
            candidates = [
                candidate
                for candidate in candidates
                if await self.pods.still_active(candidate.pod, deadline_s=deadline_s)
            ] or candidates
        return max(candidates, key=lambda candidate: self.pods.order(candidate.pod))

    async def _listed(
        self, pod_names: Iterable[tuple[str, str]], deadline_s: float
    ) -> tuple[list[Pod], ApiError | None]:
        """Return those of these pods that may start containers, and why one is not known."""
        pods, unanswered = [], None
        for namespace, pod_name in pod_names:
            try:
                pod = await self.pods.named_by(deadline_s, namespace, pod_name)
            except ApiError as error:
                unanswered = error
                continue
            if pod is not None and active(pod):
                pods.append(pod)
        return pods, unanswered

    def _just_preferred(self, resource: str, ids: frozenset[str]) -> SignedContainer | None:
        """Return the container that the call before this one chose these ids for, if it did.

        A kubelet that asks for a preference goes on to Allocate with the same container, and waits
        for each of our answers: it need not be asked a second time.
        """
        preferred, self._preferred = self._preferred, None
        if preferred is None or preferred[:2] != (resource, ids):
            return None
        _, _, container, preferred_at_s = preferred
        return container if monotonic() - preferred_at_s < _PREFERENCE_S else None

    def _next(
        self,
        pod: Pod,
        resource: str,
        *,
        held_by_container: Mapping[str, Mapping[str, frozenset[str]]],
    ) -> SignedContainer | None:
        """Return the pod's first container that asks for `resource` and does not hold it yet."""
        for container_name in asking(pod, resource):
            if held_by_container.get(container_name, {}).get(resource):
                continue
            share = self._signed(pod, container_name, resource)
            # An init container, which older kubelets do not list, may be served all the same.
            if container_name in held_by_container or not self._notes(pod, container_name):
                return share
        return None

    def _signed(self, pod: Pod, container_name: str, resource: str) -> SignedContainer:
        """Return what the scheduler gave a container that asks for a resource.

        Raises `NeverGiven` where the pod has no allocation, another pod's or one of other cards
        than its kubelet counts, and where the container hides what would limit it.
        """
        limits: Amounts = {}
        for container_spec in pod.containers:
            if container_spec.name == container_name:
                limits = container_spec.resources.limits
                try:
                    expect_unhidden(container_spec)
                except BadInput as error:
                    raise NeverGiven(f"{named(pod)}, {error}") from None
        share_by_container = {share.container: share for share in self.pods.signed(pod)}
        share = share_by_container.get(container_name)
        if share is None:
            raise NeverGiven(
                f"{named(pod)}: the scheduler gave container {container_name} no share: is its "
                "schedulerName the one of hetero? (if it started before hetero came, delete it and "
                "create it anew)"
            )
        asked_count = quantity(limits, resource)
        if asked_count != len(share.allocation.pieces):
            raise NeverGiven(
                f"{share}: asks for {asked_count} {resource}, and the scheduler gave it "
                f"{len(share.allocation.pieces)}, as modules have: ask for so many"
            )
        if asked_count > MAX_DEVICES:
            raise NeverGiven(
                f"{share}: asks for {asked_count} {resource}, and a container has at most "
                f"{MAX_DEVICES} cards"
            )
        return share

    def pod_of(self, grant: Grant) -> Pod | None:
        """Return the pod that a grant is for, None for one that has none any more."""
        return self.pods.by_uid.get(grant.owner.get("uid", ""))

    def variable(self, grant: Grant, variable_name: str) -> str | None:
        """Return the value of a variable of a grant's container, as its pod sets it."""
        pod = self.pod_of(grant)
        for container in pod.containers if pod else ():
            if container.name == grant.owner["container"]:
                value_by_name = {variable.name: variable.value for variable in container.env}
                return value_by_name.get(variable_name)
        return None

    # --- the ledger -----------------------------------------------------------------------------

    async def _standing(self) -> tuple[Grant, ...]:
        """Return the standing grants of pods."""
        snapshot = await asyncio.to_thread(self.node.ledger.snapshot)
        return tuple(grant for grant in snapshot.grants if grant.owner.get("uid"))

    def _running_ids(self) -> set[str]:
        """Return the ids that were given to containers that run on after their pods."""
        return {
            slot_id
            for uid, ended_pod in self.running_on.items()
            for container_name, _, _ in ended_pod.containers
            for line in self.node.ledger.notes(identity_of(uid, container_name))
            for slot_id in line.partition(" ")[2].split(",")
        }

    def _notes(self, pod: Pod, container_name: str) -> tuple[str, ...]:
        """Return the notes of the devices for which a container was given its grant."""
        return self.node.ledger.notes(identity_of(pod.metadata.uid, container_name))

    async def _give(self, container: SignedContainer, note: str) -> Grant:
        """Return the grant of a container, and note the devices that it is given for."""
        began_s = monotonic()
        while True:
            try:
                grant_by_container = await asyncio.shield(self._made(container.pod))
                grant = grant_by_container.get(container.container)
                if grant and self.node.ledger.note(grant.id, note):
                    return grant
                self._making.pop(container.pod.metadata.uid, None)
                reason = "its grant was unpinned"
            except Refused as error:
                reason = str(error)
            if monotonic() - began_s > _SHARE_WAIT_S:
                raise Refused(f"{container}: {reason}")
            self.reconcile_due.set()  # it may ask the API, which may be away
            await asyncio.sleep(_POLL_PERIOD_S)

    def _made(self, pod: Pod) -> asyncio.Future[dict[str, Grant]]:
        """Return the future of a pod's grants, begun now unless it exists. Raises `BadInput`."""
        uid = pod.metadata.uid
        future = self._making.get(uid)
        if future is None:
            signed_containers = self.pods.signed(pod)
            vendors = frozenset().union(
                *(container.allocation.vendors for container in signed_containers)
            )
            maker = self._makers[vendors]
            future = asyncio.get_running_loop().run_in_executor(maker, self._pin, signed_containers)
            self._making[uid] = future
            future.add_done_callback(partial(self._done, uid))
        return future

    def _done(self, uid: str, future: asyncio.Future[dict[str, Grant]]) -> None:
        """Have a failed attempt repeated at the next request; check that the pod exists."""
        if (future.cancelled() or future.exception()) and self._making.get(uid) is future:
            del self._making[uid]
        pod = self.pods.by_uid.get(uid)
        if pod is None or ended(pod):
            self.reconcile_due.set()

    def _pin(self, containers: Iterable[SignedContainer]) -> dict[str, Grant]:
        """Make the grants of a pod stand, in the order in which its containers start."""
        grants: dict[str, Grant] = {}
        handed: dict[str, DeviceAllocation] = {}  # slices of init containers, by device
        for container in containers:
            kind = kinds(container.pod)[container.container]
            try:
                grant = grants[container.container] = pin(
                    self.node,
                    with_slices_of(
                        container.allocation, {} if kind is ContainerKind.SIDECAR else handed
                    ),
                    discovery=self.discovery,
                    grant_id=container.identity,
                    label="/".join((*container.pod.full_name, container.container)),
                    owner=container.owner,
                    libraries=self.libraries,
                    injection=partial(self.inject, container.pod),
                )
            except BadInput as error:  # it asks for less than a context: its cards are not at fault
                raise NeverGiven(f"{container}: {error}") from None
            for piece in grant.allocation.pieces:
                if kind is ContainerKind.INIT and piece.part is not None:
                    handed[piece.device] = piece
                elif kind is ContainerKind.MAIN and piece == handed.get(piece.device):
                    del handed[piece.device]  # it has one receiver
        return grants

    def inject(self, pod: Pod, edits: Edits) -> Edits:
        """Return the vendors' edits as a container of the pod is given them."""
        return self.driver.into(pod, edits, self.discovery.vendors)

    async def reconcile(self) -> None:
        """Take back the shares of pods that ended or are not on this node any more.

        A container may run on: a user may write a pod's status, or delete a pod by force before its
        containers end. A grant that a container sees, or whose pod has cgroups with containers,
        stays and is checked again.
        """
        vendors_gone: set[str] = set()
        links = self._remembered.names()  # before we look what stands: a link is made after that
        standing_ids: set[str] = set()
        ended_grants: list[Grant] = []
        is_unsure = False
        for grant in await self._standing():
            is_over = await self.pods.is_over(grant)
            is_unsure |= is_over is None
            if is_over or (
                is_over is None and grant.owner["uid"] in self.running_on
            ):  # what is over stays so
                ended_grants.append(grant)
            else:
                standing_ids.add(grant.id)
        uids_by_grant = {grant.id: (grant.owner["uid"],) for grant in ended_grants}
        running_ids = await asyncio.to_thread(in_use, self.node.ledger, uids_by_grant)
        for grant in ended_grants:
            if grant.id not in running_ids:
                await asyncio.to_thread(self.node.ledger.unpin, grant.id)
                log.info("%s: its pod is gone, grant %s is unpinned", grant.label, grant.id)
                vendors_gone |= grant.allocation.vendors
            elif grant.owner["uid"] not in self.running_on:
                log.warning("%s: its pod is over, and a container runs on", grant.label)
        self.running_on = _running_on(
            in_units_of(
                self.discovery.devices,
                (grant for grant in ended_grants if grant.id in running_ids),
            )
        )
        if vendors_gone:
            await asyncio.to_thread(LocalGrants(self.node).sweep, vendors_gone)
        self.reconciled |= self.pods.listed and not is_unsure
        if running_ids or not self.reconciled:
            asyncio.get_running_loop().call_later(_RECHECK_S, self.reconcile_due.set)
        if self.pods.listed:  # else a kubelet may still start any of them
            self._remembered.remove(links - standing_ids - running_ids - self.pods.may_start())

    @property
    def _remembered(self) -> RememberedPaths:
        return RememberedPaths(self.node.ledger)


def _running_on(grants: Iterable[Grant]) -> Held:
    """Return what these grants are of pods that are over, by the pods' UIDs."""
    running_on: dict[str, RunsOn] = {}
    for grant in grants:
        owner = grant.owner
        ended_pod = running_on.get(
            owner["uid"], RunsOn(namespace=owner["namespace"], pod=owner["pod"], containers=())
        )
        kind = ContainerKind(owner.get("kind", ContainerKind.MAIN))
        container = (owner["container"], kind, grant.reserved)
        running_on[owner["uid"]] = evolve(ended_pod, containers=(*ended_pod.containers, container))
    return running_on


def _line(resource: str, ids: Iterable[str]) -> str:
    """Return the note in a grant that is given for devices."""
    return f"{resource} {','.join(sorted(ids))}"


def _list(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids))
