"""Signs allocations, and signs standing ones again after the key was replaced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from attrs import define, field

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.objects.kinds import Pod
from hetero.kube.scheduler.pod_table import PodTable
from hetero.kube.words.annotations import (
    ALLOCATION,
    SIGNATURE,
    Assignment,
    read_assignment,
    signed_assignment,
)
from hetero.kube.words.pod import path_of
from hetero.kube.words.signing import PublicKeys, SigningKey

log = logging.getLogger(__name__)

#: Seconds between two looks at what is to be signed anew, and after a failure.
POLL_PERIOD_S = 1.0


@define(eq=False)
class Signatures:
    """One scheduler's signing key, and the previous public keys, which verify older signatures.

    `ready` returns whether this scheduler leads.
    """

    api: ApiCalls
    key: SigningKey
    previous: PublicKeys
    pods: PodTable
    ready: Callable[[], bool]
    _outdated_uids: set[str] = field(factory=set)  # pods whose allocation a former key signed

    def sign(self, assignment: Assignment) -> dict[str, str]:
        """Return the annotations that give a pod its allocation."""
        return signed_assignment(assignment, self.key)

    def read(self, pod: Pod) -> Assignment | None:
        """Return the verified assignment of a bound pod, None without one. Raises `BadInput`."""
        metadata = pod.metadata
        assignment = read_assignment(
            metadata.annotations,
            self.key.public + self.previous,
            pod="/".join(pod.full_name),
            uid=metadata.uid,
            node=pod.spec.node_name or "",
        )
        self._note(metadata.uid, pod)
        return assignment

    def use(self, key: SigningKey, previous: PublicKeys) -> None:
        """Sign with this key from now on. Signatures by the previous keys stay valid."""
        if (key.public, previous) == (self.key.public, self.previous):
            return
        self.key, self.previous = key, previous
        log.info("signing keys: read anew")
        for uid, pod in self.pods.holders():
            self._note(uid, pod)

    def _note(self, uid: str, pod: Pod) -> None:
        """Record that a pod's allocation is to be signed again, if another key signed it."""
        annotations, node = pod.metadata.annotations, pod.spec.node_name
        text, signature = annotations.get(ALLOCATION), annotations.get(SIGNATURE, "")
        if text and node and not self.key.public.signed(text, signature, uid=uid, node=node):
            self._outdated_uids.add(uid)

    async def follow(self) -> None:
        """Sign outdated allocations again, for ever, while this scheduler leads."""
        while True:
            while self._outdated_uids and self.ready():
                await self._sign_anew(self._outdated_uids.pop())
            await asyncio.sleep(POLL_PERIOD_S)

    async def _sign_anew(self, uid: str) -> None:
        pod = self.pods.holder(uid)
        if pod is None:
            return
        namespace, name = pod.full_name
        text, node = pod.metadata.annotations[ALLOCATION], pod.spec.node_name or ""
        annotations = {SIGNATURE: self.key.sign(text, uid=uid, node=node)}
        metadata = {"uid": uid, "annotations": annotations}
        try:
            await self.api.patch(path_of(pod), {"metadata": metadata})
        except ApiError as error:
            if error.status in (404, 409):
                return  # it is gone, or another pod of its name is there
            log.warning("pod %s/%s: not signed anew: %s", namespace, name, error)
            self._outdated_uids.add(uid)
            await asyncio.sleep(POLL_PERIOD_S)
