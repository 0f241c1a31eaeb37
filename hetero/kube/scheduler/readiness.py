"""Whether a scheduler may answer: once it knows the cluster, and while it leads."""

from __future__ import annotations

import asyncio

from attrs import define, field

from hetero.kube.client.leadership import Leadership
from hetero.model.errors import HeteroError

#: Seconds a caller waits for a scheduler that is starting, and between looks.
START_WAIT_S, POLL_PERIOD_S = 5.0, 0.05


@define(eq=False)
class Readiness:
    """What one scheduler has listed, and whether it leads. Without a lease it leads."""

    lease: Leadership | None = None
    listed: set[str] = field(factory=set)  # of "nodes", "pods" and "quotas" those that were listed

    def knows_all(self) -> bool:
        """Return whether nodes, pods and quotas were listed."""
        return self.listed == {"nodes", "pods", "quotas"}

    def is_ready(self) -> bool:
        """Return whether this scheduler leads and has listed all."""
        return self.knows_all() and (self.lease is None or self.lease.held)

    def led(self) -> bool:
        """Return whether this scheduler led at any time."""
        return self.lease is None or self.lease.led

    def busy(self) -> None:
        """Extend the liveness deadline of this process: a long list is about to be read."""
        if self.lease:
            self.lease.busy()

    async def until_ready(self) -> None:
        """Wait a few seconds: kube-scheduler retries a pod after an error only a minute later."""
        for _ in range(int(START_WAIT_S / POLL_PERIOD_S)):
            if self.is_ready():
                return
            await asyncio.sleep(POLL_PERIOD_S)
        self.expect_ready()

    def expect_ready(self) -> None:
        """Raise `HeteroError` unless this scheduler is ready."""
        if not self.is_ready():
            raise HeteroError("hetero: this scheduler is starting or standing by: asked too early")
