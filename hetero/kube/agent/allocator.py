"""Finds out whose share the kubelet is asking for, gives it, and takes it back with its pod.

The kubelet's Allocate names no pod. But its list of what pods hold has every pod it knows, also the
one it is admitting at this moment, and it admits one at a time: whoever is on that list, on this
node by the API's word, has a signed allocation and holds nothing yet is the one. When the container
starts, the same list says who got the devices, and a start that does not match is stopped.

A kubelet waits for each answer before it goes on to the next pod. So a pod's grants are made when
the API says that it is on this node, which the kubelet hears at the same moment: Allocate hands out
what stands by then, and notes in the grant for which devices it did.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import monotonic

from attrs import define, evolve, field

from hetero.container.pin import Libraries, each, pin
from hetero.kube.agent.driver_injection import DriverInjection
from hetero.kube.agent.kubelet import Kubelet
from hetero.kube.agent.node_pods import NodePods
from hetero.kube.agent.remembered_paths import RememberedPaths
from hetero.kube.objects.kinds import Pod
from hetero.kube.words.annotations import ALLOCATION, Held, RunsOn, device_of
from hetero.kube.words.pod import (
    SignedContainer,
    active,
    asking,
    ended,
    ending,
    expect_unhidden,
    identity_of,
    initialized,
    named,
)
from hetero.model import Allocation, Counters, Edits
from hetero.model.errors import BadInput, HeteroError, Refused
from hetero.node.grants import LocalGrants
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node
from hetero.node.view.containers import in_use
from hetero.placement.place_pod import holds
from hetero.registry.registry import Discovery

log = logging.getLogger(__name__)

#: How long Allocate waits for a share whose pod is gone and whose processes are about to be. The
#: kubelet admits pods one by one: whoever waits here lets all others wait.
_PATIENCE = 2.0
_PAUSE = 0.1
#: How long it waits for an API server that is away: the kubelet ends for good whom we refuse, and
#: hears of no other pod meanwhile.
_AWAY = 10.0
#: Seconds until it is looked again whether a container runs whose pod is said to have ended, and
#: until the first look is tried again.
_AGAIN = 1.0
#: Seconds within which Allocate follows upon a preference: no kubelet starts anew as fast.
_AT_ONCE = 1.0


@define(eq=False)
class Allocator:
    """The shares of one node's pods."""

    node: Node
    pods: NodePods
    kubelet: Kubelet
    libraries: Libraries
    discovery: Discovery
    driver: DriverInjection = field(factory=DriverInjection)
    # What containers hold whose pods are over, by grant.
    running_on: Held = field(init=False, factory=dict)
    # Whether all of that was looked for once, and the API said of each pod whether it is over.
    reconciled: bool = field(init=False, default=False)
    # Set when a share may have to go.
    reconcile_due: asyncio.Event = field(init=False, factory=asyncio.Event)
    # By a pod's UID, its grants by container as they are made or were: of the same vendors one pod
    # after the other, as the API tells of them. Whoever waits for a vendor has others go on.
    _making: dict[str, asyncio.Future[dict[str, Grant]]] = field(init=False, factory=dict)
    _makers: defaultdict[frozenset[str], ThreadPoolExecutor] = field(
        init=False, factory=partial(defaultdict, partial(ThreadPoolExecutor, 1))
    )
    # The resource and the ids last preferred, for whom and when.
    _preferred: tuple[str, frozenset[str], SignedContainer, float] | None = field(
        init=False, default=None
    )

    # --- what the API says ------------------------------------------------------------------------

    def update_pod(self, pod: Pod) -> None:
        """Note what the API says of a pod of this node; give it what is signed, ahead of its start.

        What cannot be given is the kubelet's to hear, when it asks.
        """
        self.pods.update(pod)
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
        known = {pod.metadata.uid: pod for pod in pods}
        for uid in self.pods.by_uid.keys() - known.keys():
            self.remove_pod(uid)
        for pod in known.values():
            self.update_pod(pod)
        self.pods.listed = True
        self.reconcile_due.set()

    # --- what the kubelet asks ------------------------------------------------------------------

    async def prefer(
        self, resource: str, available: list[str], must: list[str], size: int
    ) -> list[str]:
        """Return the ids that are slots of the very cards the container was given."""
        wanted = await self._wanted(resource, size)
        chosen = list(must)
        left = [name for name in available if name not in chosen]
        for piece in wanted.allocation.pieces:
            if any(device_of(name) == piece.device for name in chosen):
                continue
            slot = next((name for name in left if device_of(name) == piece.device), None)
            if slot is not None:
                chosen.append(slot)
                left.remove(slot)
        ids = (chosen + left)[:size]
        self._preferred = (resource, frozenset(ids), wanted, monotonic())
        return ids

    async def allocate(self, resource: str, ids: Iterable[str]) -> Grant:
        """Give the container that is being admitted its share. Raises `Refused`.

        Its mounts are as the kubelet may remember them.
        """
        names = frozenset(ids)
        wanted = self._just_preferred(resource, names) or await self._wanted(resource, len(names))
        grant = await self._give(wanted, _line(resource, names))
        mounts = self._remembered.put(grant.id, grant.edits.mounts)
        log.info("%s: given grant %s", wanted, grant.id)
        return evolve(grant, edits=evolve(grant.edits, mounts=mounts))

    async def confirm(self, resource: str, ids: Iterable[str]) -> None:
        """Make sure that the container about to start got these ids for its own share.

        Raises `Refused` when it did not. A share that was lost, as at a reboot, is given again.
        """
        names = frozenset(ids)
        line = _line(resource, names)
        owners = [
            (await self.pods.named(*pod), container)
            for pod, containers in (await self.kubelet.held()).items()
            for container, resources in containers.items()
            if names <= resources.get(resource, frozenset())
        ]
        (pod, container), *others = owners or [(None, "")]
        if pod is not None and not others and line in self._notes(pod, container):
            return
        served = [e for e in await self._standing() if line in self.node.ledger.notes(e.id)]
        if not owners:
            # Kubelets before 1.29 do not list init containers.
            (pod, container), *others = [
                (self.pod_of(entry), entry.owner["container"]) for entry in served
            ] or [(None, "")]
        if pod is None or others:
            raise Refused(f"the kubelet does not say which container got {_list(names)}")
        for entry in served:
            # An init container's devices are handed on to a later container of the same pod.
            if entry.owner["uid"] != pod.metadata.uid:
                raise Refused(
                    f"{named(pod)}, container {container}, got {_list(names)}, which was given "
                    f"for {entry.label}: it is not started (delete the pod and create it anew)"
                )
        if not any(entry.owner["container"] == container for entry in served):
            await self._give(self._signed(pod, container), line)

    # --- whose it is ----------------------------------------------------------------------------

    async def _wanted(self, resource: str, count: int) -> SignedContainer:
        """Return the container that is being admitted. Raises `Refused` when there is none."""
        held, until = await self.kubelet.held(), monotonic() + _AWAY
        candidates: list[SignedContainer] = []
        faults: list[str] = []
        for (namespace, name), pod_devices in held.items():
            pod = await self.pods.named_by(until, namespace, name)
            if pod is None or not active(pod):
                continue
            try:
                wanted = self._next(pod, resource, held=pod_devices)
            except HeteroError as error:
                faults.append(str(error))
                continue
            if wanted is not None and len(wanted.allocation.pieces) == count:
                candidates.append(wanted)
        if not candidates:
            why = "; ".join(faults) or "the scheduler gave none on this node what it asks"
            raise Refused(f"no pod waits for {count} {resource}: {why}")
        # Of two, the kubelet refused one for another reason, and we or the API have not heard yet:
        # the one being admitted is the one that was bound last, whatever changed since.
        if len(candidates) > 1:
            candidates = [
                one for one in candidates if await self.pods.still_active(one.pod)
            ] or candidates
        return max(candidates, key=lambda signed: self.pods.order(signed.pod))

    def _just_preferred(self, resource: str, ids: frozenset[str]) -> SignedContainer | None:
        """Return whom these very ids were chosen for by the call before this one, if they were.

        A kubelet that asks for a preference goes on to Allocate with the same container, and waits
        for each of our answers: it need not be asked a second time who that is.
        """
        preferred, self._preferred = self._preferred, None
        if preferred is None or preferred[:2] != (resource, ids):
            return None
        _, _, wanted, at = preferred
        return wanted if monotonic() - at < _AT_ONCE else None

    def _next(
        self, pod: Pod, resource: str, *, held: Mapping[str, Mapping[str, frozenset[str]]]
    ) -> SignedContainer | None:
        """Return the pod's first container that asks for `resource` and does not hold it yet."""
        for container in asking(pod, resource):
            if held.get(container, {}).get(resource):
                continue
            wanted = self._signed(pod, container)
            # An init container, which older kubelets do not list, may be served all the same.
            if container in held or not self._notes(pod, container):
                return wanted
        return None

    def _signed(self, pod: Pod, container: str) -> SignedContainer:
        """Return what the scheduler gave the container.

        Raises `BadInput` on a forgery, and where the container hides what would limit it.
        """
        for container_spec in pod.containers:
            if container_spec.name == container:
                expect_unhidden(container_spec)
        for wanted in self.pods.signed(pod):
            if wanted.container == container:
                return wanted
        raise BadInput(
            f"{named(pod)}: the scheduler gave container {container} no share: is its "
            "schedulerName the one of hetero? (if it started before hetero came, delete it and "
            "create it anew)"
        )

    def pod_of(self, entry: Grant) -> Pod | None:
        """Return the pod that a grant is for, None for one that has none any more."""
        return self.pods.by_uid.get(entry.owner.get("uid", ""))

    def variable(self, entry: Grant, name: str) -> str | None:
        """Return a variable of the container a grant is for, as its pod sets it."""
        pod = self.pod_of(entry)
        for container in pod.containers if pod else ():
            if container.name == entry.owner["container"]:
                variables = {one.name: one.value for one in container.env}
                return variables.get(name)
        return None

    # --- the ledger -----------------------------------------------------------------------------

    async def _standing(self) -> tuple[Grant, ...]:
        """Return the grants of pods that stand."""
        snapshot = await asyncio.to_thread(self.node.ledger.snapshot)
        return tuple(entry for entry in snapshot.grants if entry.owner.get("uid"))

    def _notes(self, pod: Pod, container: str) -> tuple[str, ...]:
        """Return for which devices a container was given its grant."""
        return self.node.ledger.notes(identity_of(pod.metadata.uid, container))

    async def _give(self, wanted: SignedContainer, line: str) -> Grant:
        """Return the grant of a container, and note for which devices it is given."""
        began = monotonic()
        while True:
            try:
                made = await asyncio.shield(self._made(wanted.pod))
                grant = made.get(wanted.container)
                if grant and self.node.ledger.note(grant.id, line):
                    return grant
                self._making.pop(wanted.pod.metadata.uid, None)
                why = "its grant was unpinned"
            except Refused as error:
                why = str(error)
            if monotonic() - began > _PATIENCE:
                raise Refused(f"{wanted}: {why}")
            await self.reconcile()
            await asyncio.sleep(_PAUSE)

    def _made(self, pod: Pod) -> asyncio.Future[dict[str, Grant]]:
        """Return the making of a pod's grants, begun now unless it was. Raises `BadInput`."""
        uid = pod.metadata.uid
        making = self._making.get(uid)
        if making is None:
            given = self.pods.signed(pod)
            vendors = frozenset().union(*(wanted.allocation.vendors for wanted in given))
            maker = self._makers[vendors]
            making = asyncio.get_running_loop().run_in_executor(maker, self._pin, given)
            self._making[uid] = making
            making.add_done_callback(partial(self._done, uid))
        return making

    def _done(self, uid: str, making: asyncio.Future[dict[str, Grant]]) -> None:
        """Have what failed made anew when it is asked for; see whether the pod is still here."""
        if (making.cancelled() or making.exception()) and self._making.get(uid) is making:
            del self._making[uid]
        pod = self.pods.by_uid.get(uid)
        if pod is None or ended(pod):
            self.reconcile_due.set()

    def _pin(self, given: Iterable[SignedContainer]) -> dict[str, Grant]:
        """Make the grants of a pod stand."""
        return {
            wanted.container: pin(
                self.node,
                wanted.allocation,
                discovery=self.discovery,
                grant_id=wanted.identity,
                label="/".join((*wanted.pod.full_name, wanted.container)),
                owner=wanted.owner,
                libraries=self.libraries,
                totals_of=partial(self._taken, wanted.pod),
                injection=partial(self.inject, wanted.pod),
            )
            for wanted in given
        }

    def inject(self, pod: Pod, edits: Edits) -> Edits:
        """Return what a container of the pod is given of the vendors' edits."""
        return self.driver.into(pod, edits, self.discovery.vendors)

    def _taken(self, pod: Pod, grants: Sequence[Grant]) -> Iterator[tuple[str, Counters]]:
        """Yield what grants take: of a pod whose init containers run, the most at any time."""
        by_pod: defaultdict[str, list[Grant]] = defaultdict(list)
        for entry in grants:
            by_pod[entry.owner.get("uid", "")].append(entry)
        for uid, pod_grants in by_pod.items():
            owner = pod if uid == pod.metadata.uid else self.pods.by_uid.get(uid)
            if owner is None:
                yield from each(pod_grants)
                continue
            first = ending(owner)
            main = {one.name for one in owner.spec.containers}
            sidecars = {one.owner["container"] for one in pod_grants} - first - main
            resting = set() if initialized(owner) else first
            for usage in holds(*(_of(pod_grants, names) for names in (sidecars, main, resting))):
                yield usage.device, usage.takes

    async def reconcile(self) -> None:
        """Take back the shares of pods that ended or are not on this node any more.

        A container may run on: who may write a pod's status may say that it has ended, and who
        deletes a pod by force has it gone before its containers are. What still sees its grant, or
        is in the cgroups of its pod, keeps it, and is looked at again.
        """
        gone: set[str] = set()
        links = self._remembered.names()  # before we look what stands: a link is made after that
        stand: set[str] = set()
        over: list[Grant] = []
        unsaid = False
        for entry in await self._standing():
            is_over = await self.pods.is_over(entry)
            unsaid |= is_over is None
            if is_over or (
                is_over is None and entry.id in self.running_on
            ):  # what is over stays so
                over.append(entry)
            else:
                stand.add(entry.id)
        owners = {one.id: (one.owner["uid"],) for one in over}
        running = await asyncio.to_thread(in_use, self.node.ledger, owners)
        for entry in over:
            if entry.id not in running:
                await asyncio.to_thread(self.node.ledger.unpin, entry.id)
                log.info("%s: its pod is gone, grant %s is unpinned", entry.label, entry.id)
                gone |= entry.allocation.vendors
            elif entry.id not in self.running_on:
                log.warning("%s: its pod is over, and a container runs on", entry.label)
        self.running_on = {
            entry.id: RunsOn(
                takes={piece.device: piece.takes for piece in entry.allocation.pieces},
                namespace=entry.owner["namespace"],
            )
            for entry in over
            if entry.id in running
        }
        if gone:
            await asyncio.to_thread(LocalGrants(self.node).sweep, gone)
        self.reconciled |= self.pods.listed and not unsaid
        if running or not self.reconciled:
            asyncio.get_running_loop().call_later(_AGAIN, self.reconcile_due.set)
        if self.pods.listed:  # else a kubelet may still start any of them
            self._remembered.remove(links - stand - running - self.pods.may_start())

    @property
    def _remembered(self) -> RememberedPaths:
        return RememberedPaths(self.node.ledger)


def _of(grants: Iterable[Grant], containers: Container[str]) -> list[Allocation]:
    """Return what some containers of a pod were given."""
    return [entry.allocation for entry in grants if entry.owner["container"] in containers]


def _line(resource: str, ids: Iterable[str]) -> str:
    """Return what is noted in a grant when it is given for devices."""
    return f"{resource} {','.join(sorted(ids))}"


def _list(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids))
