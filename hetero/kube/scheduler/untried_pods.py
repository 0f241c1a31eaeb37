"""Detects a kube-scheduler that is healthy but schedules nothing.

Its loop may hang, and its watch of pods may be late: client-go's Reflector retries up to a minute
after an API server that was away is back, and no option shortens that. A pod that was tried is
bound or has the condition `PodScheduled`. While many wait, events of those that are tried arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from attrs import define, field

from hetero.kube.objects.kinds import Pod

#: Seconds for which a kube-scheduler may try none of the pods that wait, and in which one starts.
SILENCE_S, START_S = 10.0, 60.0


@define(eq=False)
class UntriedPods:
    """The pods that kube-scheduler has not tried yet; `schedulers` are its names in pods."""

    schedulers: frozenset[str] = frozenset()
    clock: Callable[[], float] = monotonic
    _untried_uids: set[str] = field(factory=set)
    _silent_since_s: float = field(default=0.0, init=False)  # from when its silence counts
    _is_held: bool = field(default=False, init=False)
    _has_started: bool = field(default=False, init=False)  # it was told to start

    def pods_listed(self, uids: set[str]) -> None:
        """Forget all pods but these."""
        self._untried_uids &= uids

    def pod_changed(self, event: str, pod: Pod) -> None:
        """Record a pod that was created, deleted or tried."""
        uid = pod.metadata.uid
        if event != "DELETED" and self._waits(pod):
            if not self._untried_uids:
                self._silent_since_s = max(self._silent_since_s, self.clock())
            self._untried_uids.add(uid)
        elif uid in self._untried_uids:
            self._untried_uids.remove(uid)
            if event == "DELETED":
                self._silent_since_s = max(self._silent_since_s, self.clock())
            else:
                self.heard()

    def heard(self) -> None:
        """Record that kube-scheduler works at this moment: it needs no more time to start."""
        self._silent_since_s = self.clock()

    def take_stall(self, *, held: bool) -> bool:
        """Return whether kube-scheduler is to be restarted, True once for each silence.

        `held`: this process leads now. It does not while the API server is away. Then nobody can
        try a pod, and kube-scheduler has its full time from the moment on that the API server is
        back.
        """
        now_s = self.clock()
        if held and not self._is_held:
            self._silent_since_s = max(
                self._silent_since_s, now_s + (0.0 if self._has_started else START_S - SILENCE_S)
            )
            self._has_started = True
        self._is_held = held
        if not (held and self._untried_uids and now_s - self._silent_since_s > SILENCE_S):
            return False
        self._silent_since_s = now_s + START_S - SILENCE_S
        return True

    def _waits(self, pod: Pod) -> bool:
        """Return whether kube-scheduler is to try a pod at once.

        It holds pods back itself that have scheduling gates, lack their claims, or belong to
        groups.
        """
        spec, status = pod.spec, pod.status
        return (
            spec.scheduler_name in self.schedulers
            and not (spec.node_name or spec.scheduling_gates or spec.resource_claims)
            and not (spec.scheduling_group or spec.workload_ref)
            and status.phase in (None, "Pending")
            and pod.metadata.deletion_timestamp is None
            and not any(condition.type == "PodScheduled" for condition in status.conditions)
        )
