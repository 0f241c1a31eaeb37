"""Follows the pods of a cluster and tells all who keep something of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from attrs import define

from hetero.kube.client.api import ApiCalls
from hetero.kube.objects.kinds import Pod
from hetero.kube.scheduler.inventory import ClusterNodes
from hetero.kube.scheduler.kubelet_watches import KubeletWatches
from hetero.kube.scheduler.readiness import Readiness
from hetero.kube.scheduler.waker import Waker, in_background

log = logging.getLogger(__name__)

#: Seconds between two attempts of a scheduler to follow pods, of which a cluster has two: it hears
#: so much later of pods that a kube-scheduler does not try after the API server was away.
_RETRY_S = 2.0


class PodSubscriber(Protocol):
    """Keeps something of pods."""

    def pods_listed(self, uids: set[str]) -> None:
        """Note that there are no other pods than these; each is told of as `ADDED` then."""

    def pod_changed(self, event: str, pod: Pod) -> None:
        """Note a pod that was `ADDED`, `MODIFIED` or `DELETED`."""


@define(eq=False)
class PodInformer:
    """The pods of one cluster, for subscribers that hear of each in this order."""

    api: ApiCalls
    subscribers: Sequence[PodSubscriber]
    nodes: ClusterNodes
    kubelet_watches: KubeletWatches
    readiness: Readiness
    waker: Waker

    async def follow(self) -> None:
        """Follow the pods, for ever."""
        await self.api.follow(
            "/api/v1/pods",
            Pod,
            listed=self.listed,
            changed=self._changed,
            lost=self._lost,
            retry_s=_RETRY_S,
        )

    def listed(self, pods: list[Pod]) -> None:
        """Tell of all pods that there are."""
        self.kubelet_watches.api_back()
        self.readiness.busy()
        uids = {pod.metadata.uid for pod in pods}
        for subscriber in self.subscribers:
            subscriber.pods_listed(uids)
        for pod in sorted(pods, key=lambda pod: pod.created):  # in the order they arrived in
            self._changed("ADDED", pod)
        if "pods" not in self.readiness.listed:
            in_background(self.waker.wake_all())
        self.readiness.listed.add("pods")
        self.nodes.cordon_all()

    def _changed(self, event: str, pod: Pod) -> None:
        for subscriber in self.subscribers:
            subscriber.pod_changed(event, pod)

    def _lost(self, error: Exception) -> None:
        log.warning("pods: %s", error)
        self.kubelet_watches.api_lost()
