"""The pods of a node, by what the API tells of them and by what it answers."""

from __future__ import annotations

import asyncio
from time import monotonic

from attrs import define, field

from hetero.kube.client.api import Api, ApiError
from hetero.kube.objects.kinds import Pod
from hetero.kube.words.annotations import ALLOCATION
from hetero.kube.words.pod import SignedContainer, active, ended, identity_of, read_pod, signed
from hetero.kube.words.signing import PublicKeys
from hetero.model.errors import BadInput
from hetero.node.ledger.ledger import Grant

#: Seconds between two questions to an API server that is away.
_RETRY_S = 0.1


class NeverGiven(BadInput):
    """A pod on this node gets no share as it is, however often its kubelet asks."""


@define(eq=False)
class NodePods:
    """The pods of one node; the API itself is asked of those that it has not told of."""

    node: str
    public_keys: str  # the file of them
    api: Api
    by_uid: dict[str, Pod] = field(init=False, factory=dict)
    listed: bool = field(init=False, default=False)  # whether the API told of all of them once
    _bound: dict[str, int] = field(init=False, factory=dict)  # the order in which pods came, by UID

    def update(self, pod: Pod) -> None:
        """Note what the API says of a pod."""
        self.by_uid[pod.metadata.uid] = pod
        if ALLOCATION in pod.metadata.annotations:
            self._bound.setdefault(pod.metadata.uid, int(pod.metadata.resource_version))

    def remove(self, uid: str) -> None:
        """Note that a pod is gone."""
        self.by_uid.pop(uid, None)
        self._bound.pop(uid, None)

    def signed(self, pod: Pod) -> list[SignedContainer]:
        """Return what the scheduler gave a pod here.

        Raises `NeverGiven` on a forgery, `BadInput` where the public keys cannot be read.
        """
        public_keys = PublicKeys.read(self.public_keys)
        try:
            return signed(pod, public_keys, node=self.node)
        except BadInput as error:
            raise NeverGiven(str(error)) from None

    def order(self, pod: Pod) -> int:
        """Return what pods are sorted by in the order in which they were bound."""
        return self._bound.get(pod.metadata.uid, int(pod.metadata.resource_version))

    async def named(self, namespace: str, name: str) -> Pod | None:
        """Return the pod if the API says that it is on this node."""
        return self._known(namespace, name) or await self._ask(namespace, name)

    async def named_by(self, deadline_s: float, namespace: str, name: str) -> Pod | None:
        """Return such a pod. Raises `ApiError` where the API server does not say by a time.

        One that just started refuses for a while: 401, 403 or 429.
        """
        pod = self._known(namespace, name)
        while pod is None:
            try:
                return await self._ask_by(deadline_s, namespace, name)
            except ApiError:
                if monotonic() + _RETRY_S > deadline_s:
                    raise
            await asyncio.sleep(_RETRY_S)
        return pod

    async def still_active(self, pod: Pod, *, deadline_s: float) -> bool:
        """Whether a pod may still start containers, unless the API itself says no by a time."""
        try:
            current = await self._ask_by(deadline_s, *pod.full_name)
        except ApiError:
            return True
        return current is not None and active(current) and current.metadata.uid == pod.metadata.uid

    async def is_over(self, grant: Grant) -> bool | None:
        """Whether the pod of a grant ended or is not on this node any more, by the API's word.

        None where the API does not say.
        """
        owner = grant.owner
        pod = self.by_uid.get(owner["uid"])
        if pod is None:
            # Not in our copy: only the API itself can say that it is gone.
            try:
                pod = await self._ask(owner["namespace"], owner["pod"])
            except ApiError:
                return None
        return pod is None or pod.metadata.uid != owner["uid"] or ended(pod)

    def may_start(self) -> set[str]:
        """Return the grants of all containers that a kubelet may start on this node."""
        return {
            identity_of(uid, container.name)
            for uid, pod in self.by_uid.items()
            if not ended(pod)
            for container in pod.containers
        }

    def _known(self, namespace: str, name: str) -> Pod | None:
        return next(
            (pod for pod in self.by_uid.values() if pod.full_name == (namespace, name)), None
        )

    async def _ask_by(self, deadline_s: float, namespace: str, name: str) -> Pod | None:
        """Ask the API, whose server may be away or silent. Raises `ApiError`."""
        try:
            return await asyncio.wait_for(self._ask(namespace, name), deadline_s - monotonic())
        except asyncio.TimeoutError:
            raise ApiError(f"pod {namespace}/{name}", 0, "the API server does not answer") from None

    async def _ask(self, namespace: str, name: str) -> Pod | None:
        pod = await read_pod(self.api, namespace, name)
        return pod if pod and pod.spec.node_name == self.node else None
