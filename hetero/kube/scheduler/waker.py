"""Makes kube-scheduler retry waiting pods, and reports why they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from attrs import define

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.client.events import Events, timestamp
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read_all
from hetero.kube.scheduler.pod_table import PodTable
from hetero.kube.scheduler.readiness import POLL_PERIOD_S, Readiness
from hetero.kube.words.pod import path_of
from hetero.kube.words.pod_request import Vocabulary
from hetero.model.errors import BadInput, HeteroError
from hetero.placement.cluster import Placement

#: On a pod that is to be tried again soon, and since when.
AGAIN = "hetero.io/tried-again"
#: Tasks that nobody waits for. The event loop alone would not keep them until they end.
_tasks: set[asyncio.Future[Any]] = set()


def in_background(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine as a task that nothing awaits."""
    task = asyncio.ensure_future(coroutine)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


@define(eq=False)
class Waker:
    """Wakes waiting pods of one scheduler.

    kube-scheduler retries a pod that found no node after up to a minute, or when the pod changes.
    So an annotation without a meaning is changed.
    """

    api: ApiCalls
    events: Events
    vocabulary: Vocabulary
    pods: PodTable
    readiness: Readiness

    def tell_unfit(self, pod: Pod, sentence: str) -> None:
        """Write an event that says why no node serves a pod."""
        in_background(self.events.tell(pod.metadata, "Unfit", sentence))

    def tell_notes(self, pod: Pod, placement: Placement) -> None:
        """Write an event for each note about what a bound pod has."""
        for allocation in filter(None, placement.allocations):
            for note in allocation.notes:
                in_background(self.events.tell(pod.metadata, "GivenWhole", note))

    def refuse(self, pod: Pod, sentence: str) -> HeteroError:
        """Write an event that says why a pod is not bound, and wake it soon; return the error."""
        self.tell_unfit(pod, sentence)
        self._wake_soon(pod)
        return HeteroError(sentence)

    def wake(self, pod: Pod) -> None:
        """Wake a pod at once."""
        in_background(self._touch(pod))

    def wake_in(self, namespace: str) -> None:
        """Wake the waiting pods of a namespace."""
        for _, pod, _ in self.pods.waiting():
            if pod.metadata.namespace == namespace:
                self._wake_soon(pod)

    def wake_for(self, node: str) -> None:
        """Wake the waiting pods that fit on a node now."""
        for uid, pod, request in self.pods.waiting():
            if request.devices and self.pods.cache.has_room(uid, request.pod, node):
                self._wake_soon(pod)

    async def wake_all(self) -> None:
        """Wake all pods that kube-scheduler asked about before this scheduler was ready."""
        while not self.readiness.is_ready():
            await asyncio.sleep(POLL_PERIOD_S)
        query = {"fieldSelector": "spec.nodeName=,status.phase=Pending"}
        with suppress(HeteroError):
            for pod in read_all(Pod, (await self.api.get("/api/v1/pods", query))["items"]):
                with suppress(BadInput):
                    if self.vocabulary.pod_request(pod) is not None:
                        await self._touch(pod)

    def _wake_soon(self, pod: Pod) -> None:
        in_background(self._touch(pod, delay_s=1.0))

    async def _touch(self, pod: Pod, *, delay_s: float = 0.0) -> None:
        await asyncio.sleep(delay_s)
        patch = {"metadata": {"uid": pod.metadata.uid, "annotations": {AGAIN: timestamp()}}}
        with suppress(ApiError):  # it is gone, or waits its minute
            await self.api.patch(path_of(pod), patch)
