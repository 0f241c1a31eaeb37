"""Tells of what is past a limiter, and says what becomes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from attrs import define, field

from hetero.kube.agent.allocator import Allocator
from hetero.kube.agent.metrics import Metrics
from hetero.kube.client.events import Events
from hetero.kube.dra.node_claims import uses
from hetero.kube.objects.kinds import Pod
from hetero.model import Device, OnBypass, OnExcess
from hetero.node.guard.monitor import Ended, Finding, Monitor, Reaction, reaction
from hetero.node.ledger.events import record
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node
from hetero.node.view.bypass import Bypass
from hetero.node.view.debt import Owing, Wait
from hetero.node.view.excess import Excess

log = logging.getLogger(__name__)

#: A container's variable, of HAMi's: "true" has processes ended that hold memory past a limiter.
KILLER = "ACTIVE_OOM_KILLER"
#: What a pod's event calls a finding.
_REASONS: dict[type[Finding], str] = {
    Bypass: "PastLimiter",
    Excess: "MemoryExcess",
    Ended: "EndedPastLimiter",
    Owing: "OwesDeviceTime",
    Wait: "WaitsForDebt",
}


@define(eq=False)
class LimiterGuard:
    """Monitors one node's cards and grants for work past the limiter."""

    node: Node
    allocator: Allocator
    metrics: Metrics
    events: Events
    _monitor: Monitor = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._monitor = Monitor(self.node, reactions=self._reaction)

    async def look(self, devices: Iterable[Device]) -> None:
        """Sample once, and report findings in the agent's log, the node's, and events of pods."""
        sighting = await asyncio.to_thread(self._monitor.sample, devices)
        self.metrics.sighting = sighting
        grants = {grant.id: grant for grant in self.node.snapshot().grants} if sighting.news else {}
        for finding in sighting.news:
            record(self.node.ledger.persistent, finding.subject, str(finding))
            grant = grants.get(finding.grant or "")
            sentence = finding.what if isinstance(finding, Wait) else str(finding)
            await self.tell(grant, _REASONS.get(type(finding), "ServiceEnded"), sentence)

    async def tell(self, grant: Grant | None, reason: str, sentence: str) -> None:
        """Write a sentence to the log, and to the events of the pods that a grant is for."""
        log.warning("%s", sentence)
        for pod in self.pods_of(grant) if grant else ():
            await self.events.tell(pod.metadata, reason, sentence)

    def pods_of(self, grant: Grant) -> list[Pod]:
        """Return the pods of this node that a grant is for; a claim's grant may have several."""
        pod, pods = self.allocator.pod_of(grant), self.allocator.pods.by_uid.values()
        return [user for user in pods if user is pod or uses(user, grant)]

    def _reaction(self, grant: Grant) -> Reaction:
        """Return the reaction to a grant's excess that the pod's annotations, or its variable, set.

        The variable alone ends nobody for device time: the drivers' figures of it are coarse.
        """
        configured = reaction(self.node, grant)
        if self.allocator.variable(grant, KILLER) not in ("true", "1"):
            return configured
        return Reaction(on_excess=OnExcess.KILL, on_bypass=OnBypass.KILL, spares_time=True)
