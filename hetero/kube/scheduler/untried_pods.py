"""Whether kube-scheduler tries the pods that come: one may live, answer, and try none.

Its loop may stand still, and its watch of pods may wait: client-go's Reflector tries again up to a
minute after an API server that was away is back, and no option shortens that. A pod that was tried
is bound, or has the condition `PodScheduled`; while many wait, those that are tried are heard of.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from attrs import define, field

from hetero.kube.objects.kinds import Pod

#: Seconds for which a kube-scheduler may try none of the pods that wait, and in which one starts.
SILENT, STARTS = 10.0, 60.0


@define(eq=False)
class UntriedPods:
    """The pods that kube-scheduler has not tried yet; `schedulers` are its names in pods."""

    schedulers: frozenset[str] = frozenset()
    clock: Callable[[], float] = monotonic
    _uids: set[str] = field(factory=set)
    _since: float = field(default=0.0, init=False)  # from when its silence counts
    _held: bool = field(default=False, init=False)
    _started: bool = field(default=False, init=False)  # it was told to start

    def pods_listed(self, uids: set[str]) -> None:
        """Forget all pods but these."""
        self._uids &= uids

    def pod_changed(self, event: str, pod: Pod) -> None:
        """Note a pod that came, went, or was tried."""
        uid = pod.metadata.uid
        if event != "DELETED" and self._waits(pod):
            if not self._uids:
                self.heard()
            self._uids.add(uid)
        elif uid in self._uids:
            self._uids.remove(uid)
            self.heard()

    def heard(self) -> None:
        """Note that there is nothing to complain of at this moment."""
        self._since = max(self._since, self.clock())

    def is_silent(self, *, held: bool) -> bool:
        """Whether kube-scheduler is to be started anew, which is said once each time.

        `held`: this process leads now. It does not while the API server is away: then nobody can
        try a pod, and from the moment on that it is back kube-scheduler has its full time.
        """
        now_s = self.clock()
        if held and not self._held:
            self._since = max(self._since, now_s + (0.0 if self._started else STARTS - SILENT))
            self._started = True
        self._held = held
        if not (held and self._uids and now_s - self._since > SILENT):
            return False
        self._since = now_s + STARTS - SILENT
        return True

    def _waits(self, pod: Pod) -> bool:
        """Whether kube-scheduler is to try a pod at once.

        It waits itself with pods that have gates, whose claims are not there, or of groups.
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
