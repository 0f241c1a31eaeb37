"""Delays bindings to nodes whose kubelet may not watch pods yet: one pod goes first and shows it.

client-go's Reflector, by which a kubelet watches the pods of its node, retries up to a minute after
an API server that was away is back. A pod that is bound meanwhile is admitted when the watch is. If
the node's agent has ended by then, the kubelet fails the pod for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from attrs import define, field

from hetero.kube.objects.kinds import Pod

#: Seconds after which all kubelets watch again, and for which a pod waits for one at most, whoever
#: goes first meanwhile: kube-scheduler waits 10 s for a binding, which itself takes a while.
REWATCH_S, KUBELET_WAIT_S = 60.0, 6.0


@define(eq=False)
class KubeletWatches:
    """By node, the first pod that was bound there since the API server was away.

    `away`: whether the API server is away, or may have been right before this process started.
    """

    clock: Callable[[], float] = monotonic
    _is_away: bool = False
    _until_s: float = field(default=0.0, init=False)  # when all are taken to watch again
    # And what is set once others need not wait: its kubelet took it up, or it is none any more.
    _first: dict[str, tuple[str, asyncio.Event]] = field(factory=dict, init=False)

    def api_lost(self) -> None:
        """Record that the API server is away. Pods that wait for a kubelet keep waiting."""
        self._is_away, self._until_s = True, self.clock() + REWATCH_S
        self._first = {
            node: (uid, decision)
            for node, (uid, decision) in self._first.items()
            if not decision.is_set()
        }

    def api_back(self) -> None:
        """Record that the API server answers: kubelets start to watch again from now on."""
        if self._is_away:
            self._is_away, self._until_s = False, self.clock() + REWATCH_S

    def pods_listed(self, uids: set[str]) -> None:
        """Let others go first where the first pod is none of these."""
        for node, (uid, decision) in [*self._first.items()]:
            if uid not in uids and not decision.is_set():
                self.pass_on(node, uid)

    def pod_changed(self, event: str, pod: Pod) -> None:
        """Record a pod that was bound, or that its kubelet accepted: then it has a start time.

        A listed pod may have been bound, and accepted, before the API server was away.
        """
        uid, node = pod.metadata.uid, pod.spec.node_name or ""
        if pod.status.start_time:
            first_uid, decision = self._first.get(node, ("", None))
            if decision and first_uid == uid and not decision.is_set():
                if event == "ADDED":
                    self.pass_on(node, uid)
                else:
                    decision.set()
        elif event == "DELETED":
            self.pass_on(node, uid)
        elif event == "MODIFIED" and node and self.clock() < self._until_s:
            self._first.setdefault(node, (uid, asyncio.Event()))  # by the scheduler that led then

    def pass_on(self, node: str, uid: str) -> None:
        """Let the next pod go first to a node, if this pod did and will show nothing."""
        first_uid, decision = self._first.get(node, ("", None))
        if decision and first_uid == uid:
            del self._first[node]
            decision.set()

    async def until_watched(self, node: str, uid: str) -> None:
        """Wait until the node's first pod was accepted, unless this pod is the first."""
        deadline_s = self.clock() + KUBELET_WAIT_S
        while self.clock() < self._until_s:
            first_uid, decision = self._first.setdefault(node, (uid, asyncio.Event()))
            if first_uid == uid or decision.is_set():
                return
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(decision.wait(), deadline_s - self.clock())
            decision.set()  # nobody waits for long because a pod cannot be bound
