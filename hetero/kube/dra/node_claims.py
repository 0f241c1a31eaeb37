"""The claims of one node: a grant of the ledger for each, and a CDI device that brings it.

The ledger is the checkpoint. A claim's grant has an id that is made of the claim's UID, so what was
prepared is found again after a kill at any step, and is prepared only once. The order is grant,
spec, status; back it is spec, grant. Each step may be done again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from time import monotonic
from weakref import WeakValueDictionary

from attrs import define, evolve, field

from hetero.container.cdi import Specs
from hetero.container.pin import Libraries, pin
from hetero.kube.client.api import Api, ApiError
from hetero.kube.dra.admin_access import AdminAccess
from hetero.kube.dra.claims import Prepared, other_claims, prepared, results_of, used_by, users
from hetero.kube.dra.device_status import differ, statuses
from hetero.kube.dra.offers import DRIVER, offers
from hetero.kube.dra.proto import dra_pb2 as wire
from hetero.kube.dra.resizing import resize_claim
from hetero.kube.objects.kinds import Pod, ResourceClaim
from hetero.kube.objects.reading import read
from hetero.kube.words.pod import ended, expect_unhidden, has_ended
from hetero.kube.words.pod import named as pod_name
from hetero.model import Edits
from hetero.model.errors import BadInput, HeteroError, Refused
from hetero.node.grants import LocalGrants
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node
from hetero.node.tenants.containers import in_use
from hetero.registry.registry import Discovery

log = logging.getLogger(__name__)

#: Where the CDI devices of claims are named.
KIND = f"{DRIVER}/claim"
_PREFIX = "claim-"
#: Seconds that a claim waits for devices of an earlier one whose processes are ending.
_DEVICE_WAIT_S, _POLL_PERIOD_S = 2.0, 0.1
#: The field manager of the agent's fields in claims' status.
_OWNER = "hetero-agent"
#: The ledger's notes of a claim's grant.
CLAIM, CLAIM_UID, NAMESPACE = "claim", "claim-uid", "namespace"


class _Unprepared(Enum):
    """Why a claim stands that its kubelet had unprepared: a container runs with it."""

    RESERVED = auto()  # for a pod of this node
    ENDING = auto()  # for none
    GONE = auto()  # it is not allocated here any more


@define(eq=False)
class NodeClaims:
    """The claims of one node.

    `discovery` is the latest, `injection` how drivers come into the containers of the pod that a
    claim is reserved for, `cdi` the directory of specs that the container
    runtime reads. `pod` returns a pod if it is on this node.
    """

    node: Node
    name: str
    api: Api
    libraries: Libraries
    discovery: Callable[[], Discovery]
    pod: Callable[[str, str], Awaitable[Pod | None]]
    injection: Callable[[Pod, Edits], Edits]
    cdi: Path = Path("/var/run/cdi")
    # By a claim's UID, while it is being changed.
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(init=False, factory=WeakValueDictionary)
    _noted: set[str] = field(init=False, factory=set)  # UIDs of pods whose claims all say so
    _ended_by_pod: dict[str, frozenset[str]] = field(init=False, factory=dict)  # as its grants say
    # By UID, what was unprepared while a container runs with it.
    _unprepared: dict[str, _Unprepared] = field(init=False, factory=dict)

    @property
    def admin(self) -> AdminAccess:
        """The claims that see devices and consume nothing."""
        return AdminAccess(self.cdi)

    @property
    def specs(self) -> Specs:
        """The CDI specs of claims. They have no hook: this program is not on the machine."""
        return Specs((self.cdi,), kind=KIND, hooked=False)

    @property
    def ending(self) -> set[str]:
        """UIDs of claims that only wait for their containers: to be checked soon."""
        unprepared_claims = [*self._unprepared.items()]  # threads unprepare meanwhile
        return {uid for uid, state in unprepared_claims if state is not _Unprepared.RESERVED}

    @property
    def gone(self) -> set[str]:
        """UIDs of claims that are allocated here no more, and with whose devices containers run."""
        unprepared_claims = [*self._unprepared.items()]
        return {uid for uid, state in unprepared_claims if state is _Unprepared.GONE}

    async def prepare(self, wire_claim: wire.Claim) -> wire.NodePrepareResourceResponse:
        """Make a claim's grant stand and its CDI device be there. Raises `HeteroError`."""
        claim = await self._claim(wire_claim.namespace, wire_claim.name)
        if claim.metadata.uid != wire_claim.uid:
            raise Refused("another claim of this name has taken its place")
        prepared_claim = prepared(
            claim, node_name=self.name, offers=offers(self.discovery().devices)
        )
        pods = await self._reserved(claim)
        if not pods:
            raise BadInput("it is reserved for no pod of this node")
        for pod in pods:
            _expect_unhidden(pod, wire_claim.name)
        if prepared_claim.admin:
            cdi_names = await asyncio.to_thread(self._show, wire_claim, prepared_claim, pods)
            log.info("%s: prepared, with admin access and no grant", named(wire_claim))
        else:
            grant = await self._granted(wire_claim, prepared_claim, pods)
            cdi_names = (f"{KIND}={_cdi_device(wire_claim.uid)}", *grant.edits.cdi)
            log.info("%s: prepared, grant %s", named(wire_claim), grant.id)
        self._unprepared.pop(wire_claim.uid, None)
        await self._tell(claim, prepared_claim)
        return wire.NodePrepareResourceResponse(
            devices=[
                wire.Device(
                    request_names=[result.request],
                    pool_name=self.name,
                    device_name=result.device,
                    cdi_device_ids=cdi_names,
                    share_id=result.share,
                )
                for result in prepared_claim.results
            ]
        )

    async def _granted(
        self, wire_claim: wire.Claim, prepared_claim: Prepared, pods: Sequence[Pod]
    ) -> Grant:
        """Make the grant of a claim stand, once an earlier grant's devices are free."""
        began_s = monotonic()
        while True:
            try:
                return await asyncio.to_thread(self._grant, wire_claim, prepared_claim, pods)
            except Refused:
                if monotonic() - began_s > _DEVICE_WAIT_S:
                    raise
            await asyncio.sleep(_POLL_PERIOD_S)

    async def _tell(self, claim: ResourceClaim, prepared_claim: Prepared) -> None:
        """Update the claim's status with its devices; a failure is retried later."""
        snapshot = await asyncio.to_thread(self.node.ledger.snapshot)
        grant_by_id = {grant.id: grant for grant in snapshot.grants}
        grant = grant_by_id.get(identity_of(claim.metadata.uid))
        offer_by_name = offers(self.discovery().devices)
        device_statuses = statuses(claim, prepared_claim, offer_by_name, grant, node_name=self.name)
        if not differ(claim, device_statuses, node_name=self.name):
            return
        metadata = claim.metadata
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": metadata.name,
                "namespace": metadata.namespace,
                "uid": metadata.uid,
            },
            "status": {"devices": device_statuses},
        }
        path = f"{_path(*claim.full_name)}/status"
        try:
            await self.api.apply(path, body, owner=_OWNER)
        except ApiError as error:
            log.warning("claim %s/%s: its status: %s", *claim.full_name, error)

    async def _reserved(self, claim: ResourceClaim) -> list[Pod]:
        """Return the pods of this node that a claim is reserved for. Raises `ApiError`.

        All of them, since a kubelet asks once, however many pods use the claim.
        """
        pods = []
        for consumer in claim.status.reserved_for:
            if consumer.resource != "pods":
                continue
            pod = await self.pod(claim.metadata.namespace, consumer.name)
            if pod is not None and pod.metadata.uid == consumer.uid and not ended(pod):
                pods.append(pod)
        return pods

    def _grant(
        self, wire_claim: wire.Claim, prepared_claim: Prepared, pods: Sequence[Pod]
    ) -> Grant:
        """Make the grant of a claim stand, and write its CDI spec.

        A grant of an earlier allocation of the claim is removed first.
        """
        device_uuids = {piece.device for piece in prepared_claim.allocation.pieces}
        for standing_grant in self._beside(wire_claim, pods):
            held_uuids = {piece.device for piece in standing_grant.allocation.pieces}
            if standing_grant.id == identity_of(wire_claim.uid) and device_uuids != held_uuids:
                self._replace(wire_claim)
        self.admin.hide(_cdi_device(wire_claim.uid))
        grant = pin(
            self.node,
            prepared_claim.allocation,
            discovery=self.discovery(),
            grant_id=identity_of(wire_claim.uid),
            label=f"{wire_claim.namespace}/{wire_claim.name}",
            owner={
                NAMESPACE: wire_claim.namespace,
                CLAIM: wire_claim.name,
                CLAIM_UID: wire_claim.uid,
            },
            libraries=self.libraries,
            injection=lambda edits: self.injection(pods[0], edits),
        )
        self._write_spec(wire_claim.uid, grant)
        for pod in pods:
            self._note(grant, pod.metadata.uid)
        return grant

    def _write_spec(self, uid: str, grant: Grant) -> None:
        """Write the CDI spec of a claim; what the vendor's own brings is named with it."""
        edits = evolve(grant.edits, cdi=())
        self.specs.put(_cdi_device(uid), edits, owner=self.node.ledger.path)

    def note_user(self, pod: Pod) -> None:
        """Note in the grants of its claims that a pod of this node uses them.

        A kubelet asks for the first pod of a claim alone.
        """
        uid = pod.metadata.uid
        claim_names = used_by(pod).values()
        if not claim_names or ended(pod) or uid in self._noted:
            return
        used_grants = [grant for grant in self.node.ledger.snapshot().grants if uses(pod, grant)]
        for grant in used_grants:
            self._note(grant, uid)
        if len(used_grants) == len({*claim_names}):
            self._noted.add(uid)

    def note_ended(self, pod: Pod, pod_by_uid: Mapping[str, Pod]) -> None:
        """Note in the grants of a pod's claims whether all containers that use them have ended."""
        uid = pod.metadata.uid
        ended_names = frozenset(
            container.name for container in pod.containers if has_ended(pod, container.name)
        )
        if not used_by(pod) or self._ended_by_pod.get(uid) == ended_names:
            return
        self._ended_by_pod[uid] = ended_names
        for grant in self.node.ledger.snapshot().grants:
            if uses(pod, grant):
                noted_pods = map(pod_by_uid.get, self.node.ledger.notes(grant.id))
                ends = [
                    has_ended(user, container.name)
                    for user in filter(None, noted_pods)
                    for container in users(user, grant.owner[CLAIM])
                ]
                self.node.ledger.set_ended(grant.id, has_ended=bool(ends) and all(ends))

    def forget_user(self, uid: str) -> None:
        """Note that a pod is gone; its grants keep its note until they go."""
        self._noted.discard(uid)
        self._ended_by_pod.pop(uid, None)

    def _note(self, grant: Grant, uid: str) -> None:
        if uid not in self.node.ledger.notes(grant.id):
            self.node.ledger.note(grant.id, uid)

    def _show(
        self, wire_claim: wire.Claim, prepared_claim: Prepared, pods: Sequence[Pod]
    ) -> tuple[str, ...]:
        """Write the CDI spec of a claim that has admin access; return its CDI devices."""
        self._beside(wire_claim, pods)
        if self.node.ledger.stands(
            identity_of(wire_claim.uid)
        ):  # of an allocation that it had before
            self._replace(wire_claim)
        return self.admin.show(
            self.node,
            prepared_claim.allocation,
            (wire_claim.namespace, wire_claim.name),
            _cdi_device(wire_claim.uid),
            discovery=self.discovery(),
            injection=lambda edits: self.injection(pods[0], edits),
        )

    def _beside(self, wire_claim: wire.Claim, pods: Sequence[Pod]) -> tuple[Grant, ...]:
        """Return all grants. Raises `BadInput` if a container of a pod uses two claims."""
        grants = self.node.ledger.snapshot().grants
        user_by_claim = {
            other_claim: user
            for pod in pods
            for other_claim, user in other_claims(pod, wire_claim.name).items()
        }
        named_claims = [(grant.owner.get(NAMESPACE), grant.owner.get(CLAIM)) for grant in grants]
        for namespace, other_claim in (*named_claims, *self.admin.standing().values()):
            if other_claim in user_by_claim and namespace == wire_claim.namespace:
                raise BadInput(
                    f"container {user_by_claim[other_claim]} uses claim {other_claim}, too: "
                    "a container's devices are of one claim, so ask for all of them in one"
                )
        return grants

    def unprepare(self, uid: str) -> None:
        """Take back what a claim holds, unless a container still runs with it.

        A kubelet of 1.36 unprepares a claim of several pods when one goes that it counts no more or
        never did (kubernetes#140212). What stays is taken back when the claim is allocated here no
        more and no container runs with it.
        """
        if self._runs(uid):
            if uid not in self._unprepared:
                log.warning("claim %s: not unprepared while a container runs with it", uid)
            if self._unprepared.get(uid) is not _Unprepared.GONE:
                self._unprepared[uid] = _Unprepared.ENDING
            return
        self.take_back(uid)

    def _runs(self, uid: str) -> bool:
        """Whether a container runs with a claim's grant, or one of the pods that used it."""
        grant_id = identity_of(uid)
        return bool(in_use(self.node.ledger, {grant_id: self.node.ledger.notes(grant_id)}))

    def _replace(self, wire_claim: wire.Claim) -> None:
        """Take back what a claim held by an earlier allocation. Raises `Refused` while it is used.

        A pod that was deleted by force is gone before its containers are.
        """
        if self._runs(wire_claim.uid):
            raise Refused(f"{named(wire_claim)}: a container runs on with the devices that it had")
        self.take_back(wire_claim.uid)

    def take_back(self, uid: str) -> None:
        """Remove the CDI spec of a claim and unpin its grant, as far as they exist."""
        self._unprepared.pop(uid, None)
        self.specs.remove(_cdi_device(uid))
        self.admin.hide(_cdi_device(uid))
        standing_grants = self.node.ledger.snapshot().grants
        vendors = {
            vendor
            for grant in standing_grants
            if grant.id == identity_of(uid)
            for vendor in grant.allocation.vendors
        }
        if vendors:
            self.node.ledger.unpin(identity_of(uid))
            LocalGrants(self.node).sweep(vendors)
            log.info("claim %s: unprepared", uid)

    async def reconcile(self) -> list[tuple[Grant, str]]:
        """Take back the grants of claims that are gone, and resize those of others.

        A container may run on: a grant that one uses stays, and is checked again. Return the grants
        of claims whose size cannot be had, each with the reason.
        """
        refusals: list[tuple[Grant, str]] = []
        claim_by_uid = await asyncio.to_thread(self._standing)
        for uid, (namespace, claim_name, grant) in claim_by_uid.items():
            async with self.alone(uid):
                claim = await self._allocated(uid, namespace, claim_name)
                try:
                    if claim is not None:
                        await self._attend(claim, grant)
                except HeteroError as error:
                    if grant is not None:
                        refusals.append((grant, f"claim {namespace}/{claim_name}: {error}"))
        for cdi_device in self.specs.owned(self.node.ledger.path):
            uid = _uid(cdi_device)
            async with self.alone(uid):
                if not self.node.ledger.stands(identity_of(uid)):
                    self.specs.remove(cdi_device)
        return refusals

    async def reconcile_ending(self) -> None:
        """Take back what ending claims no longer use, and check no others."""
        claim_by_uid = await asyncio.to_thread(self._standing) if self.ending else {}
        for uid in self.ending:
            async with self.alone(uid):
                if uid in claim_by_uid:
                    await self._allocated(uid, *claim_by_uid[uid][:2])
                else:  # the grant was released meanwhile
                    await asyncio.to_thread(self.unprepare, uid)

    async def _allocated(self, uid: str, namespace: str, claim_name: str) -> ResourceClaim | None:
        """Return a claim that is allocated here; take back what stands for one that is not.

        The claim's lock is held: an answer of the API from before it was prepared means nothing.
        """
        claim = await self._found(namespace, claim_name)
        if claim is None:
            return None
        pool_names = {result.pool for result in results_of(claim)}
        if claim.metadata.uid != uid or self.name not in pool_names:
            await asyncio.to_thread(self.unprepare, uid)
            if uid in self._unprepared:
                self._unprepared[uid] = _Unprepared.GONE
            return None
        if uid in self._unprepared:
            with suppress(ApiError):
                is_reserved = bool(await self._reserved(claim))
                state = _Unprepared.RESERVED if is_reserved else _Unprepared.ENDING
                self._unprepared[uid] = state
        return claim

    def _standing(self) -> dict[str, tuple[str, str, Grant | None]]:
        """Return namespace, name and grant of what is prepared, by UID; admin access has none."""
        claim_by_uid: dict[str, tuple[str, str, Grant | None]] = {
            _uid(cdi_device): (*claim, None) for cdi_device, claim in self.admin.standing().items()
        }
        for grant in self.node.ledger.snapshot().grants:
            owner = grant.owner
            if CLAIM_UID in owner:
                claim_by_uid[owner[CLAIM_UID]] = (owner[NAMESPACE], owner[CLAIM], grant)
        return claim_by_uid

    async def _claim(self, namespace: str, claim_name: str) -> ResourceClaim:
        """Return a claim as the API has it. Raises `ApiError`."""
        return read(ResourceClaim, await self.api.get(_path(namespace, claim_name)))

    async def _found(self, namespace: str, claim_name: str) -> ResourceClaim | None:
        """Return a claim, one without a UID where it is gone, None where the API is away."""
        try:
            claim = await self._claim(namespace, claim_name)
        except ApiError as error:
            return ResourceClaim() if error.status == 404 else None
        return claim if claim.is_named else None

    async def _attend(self, claim: ResourceClaim, grant: Grant | None) -> None:
        """Resize a claim's grant as the claim says, note its pods, and update its status.

        A spec that was removed is written again, since a container may start anew with it. Raises
        `HeteroError` when the size cannot be had; the status is updated all the same.
        """
        if grant is not None:
            await asyncio.to_thread(self._write_spec, claim.metadata.uid, grant)
            for consumer in claim.status.reserved_for:
                self._note(grant, consumer.uid)
        discovery = self.discovery()
        prepared_claim = prepared(claim, node_name=self.name, offers=offers(discovery.devices))
        try:
            if grant is not None and await asyncio.to_thread(
                resize_claim, self.node, grant, claim, prepared_claim.allocation, discovery
            ):
                log.info("claim %s: resized, grant %s", grant.label, grant.id)
        finally:
            await self._tell(claim, prepared_claim)

    def alone(self, uid: str) -> asyncio.Lock:
        """Return the lock of a claim, under which it is prepared and taken back."""
        return self._locks.setdefault(uid, asyncio.Lock())


def identity_of(uid: str) -> str:
    """Return the id of a claim's grant, which depends on the UID alone."""
    return hashlib.sha256(f"claim/{uid}".encode()).hexdigest()[:12]


def uses(pod: Pod, grant: Grant) -> bool:
    """Return whether a pod uses the claim that a grant is for."""
    claim, namespace = grant.owner.get(CLAIM), grant.owner.get(NAMESPACE)
    return claim in used_by(pod).values() and pod.metadata.namespace == namespace


def _expect_unhidden(pod: Pod, claim_name: str) -> None:
    """Raise `BadInput` if a container that uses the claim hides what would limit it."""
    try:
        for container in users(pod, claim_name):
            expect_unhidden(container)
    except BadInput as error:
        raise BadInput(f"{pod_name(pod)}, {error}") from None


def named(claim: wire.Claim) -> str:
    """Return a claim's name in sentences."""
    return f"claim {claim.namespace}/{claim.name}"


def _cdi_device(claim_uid: str) -> str:
    """Return the name of a claim's CDI device: one that begins with a letter."""
    return f"{_PREFIX}{claim_uid}"


def _uid(cdi_device: str) -> str:
    """Return the UID of the claim that a CDI device is of."""
    return cdi_device.removeprefix(_PREFIX)


def _path(namespace: str, claim_name: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{claim_name}"
