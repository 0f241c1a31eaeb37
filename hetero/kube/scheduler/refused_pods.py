"""Reports pods that their node refused, and removes their allocations: nobody runs with them.

A kubelet fails a pod for good that it cannot admit, whatever the reason: `Failed` before it ran. A
controller makes another pod. A pod without one stays, with its annotations.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from attrs import define, field

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.client.events import Events
from hetero.kube.objects.kinds import Pod, PodStatus
from hetero.kube.words.annotations import ALLOCATION, SIGNATURE
from hetero.kube.words.pod import path_of

log = logging.getLogger(__name__)

#: Why a pod may have failed that was admitted, and whose containers some kubelets do not name then.
_ADMITTED = ("DeadlineExceeded", "Evicted", "NodeLost", "Shutdown", "Terminated")
#: What else a kubelet says where it gives one of these reasons for a pod that it did not admit.
_REJECTED = ("Pod was rejected", "Pod The node had condition")
#: Seconds between two looks, and after a failure.
POLL_PERIOD_S = 1.0


@define(eq=False)
class RefusedPods:
    """The refused pods to report; `ready` returns whether this scheduler leads."""

    api: ApiCalls
    events: Events
    ready: Callable[[], bool]
    _pods: dict[str, Pod] = field(factory=dict)  # by UID

    def pods_listed(self, uids: Collection[str]) -> None:
        """Forget all pods but these."""
        for uid in self._pods.keys() - uids:
            del self._pods[uid]

    def pod_changed(self, event: str, pod: Pod) -> None:
        """Record a pod with an allocation that its node refused; forget a deleted one."""
        if event == "DELETED":
            self._pods.pop(pod.metadata.uid, None)
        elif ALLOCATION in pod.metadata.annotations and _refused(pod.status):
            self._pods[pod.metadata.uid] = pod

    async def follow(self) -> None:
        """Report refused pods and remove their allocations while this scheduler leads."""
        while True:
            for uid, pod in [*self._pods.items()]:
                if self.ready() and await self._take_back(pod):
                    self._pods.pop(uid, None)
            await asyncio.sleep(POLL_PERIOD_S)

    async def _take_back(self, pod: Pod) -> bool:
        """Remove the allocation and write the event. Return whether that is done."""
        namespace, name = pod.full_name
        metadata, status = pod.metadata, pod.status
        no_allocation = {ALLOCATION: None, SIGNATURE: None}
        try:
            await self.api.patch(
                path_of(pod), {"metadata": {"uid": metadata.uid, "annotations": no_allocation}}
            )
        except ApiError as error:
            if error.status in (404, 409):
                return True  # it is gone, or another pod of its name is there
            log.warning("pod %s/%s: not taken back: %s", namespace, name, error)
            return False
        is_owned = any(owner.controller for owner in metadata.owner_references)
        advice = "its controller makes another" if is_owned else "create it anew: nothing else will"
        reason = status.message or status.reason
        refusal = f"node {pod.spec.node_name} did not admit it ({reason})"
        sentence = f"{refusal}; its share is given back; {advice}"
        await self.events.tell(metadata, "NotAdmitted", sentence)
        log.info("pod %s/%s: %s", namespace, name, sentence)
        return True


def _refused(status: PodStatus) -> bool:
    """Return whether a kubelet refused a pod, for any reason: one that ran has containers."""
    reason = status.reason
    is_rejected = bool(reason) and (reason not in _ADMITTED or status.message.startswith(_REJECTED))
    return status.phase == "Failed" and is_rejected and not status.container_statuses
