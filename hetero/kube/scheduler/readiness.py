"""Whether a scheduler may answer: once it knows the cluster, and while it leads."""

from __future__ import annotations

import asyncio

from attrs import define, field

from hetero.kube.client.leadership import Leadership
from hetero.model.errors import HeteroError

#: Seconds a caller waits for a scheduler that is starting, and between looks.
PATIENCE, PAUSE = 5.0, 0.05


@define(eq=False)
class Readiness:
    """What one scheduler has read, and whether it leads; without a lease it does."""

    lease: Leadership | None = None
    listed: set[str] = field(factory=set)  # of "nodes", "pods" and "quotas" those that were listed

    def knows_all(self) -> bool:
        """Whether this scheduler knows the cluster."""
        return self.listed == {"nodes", "pods", "quotas"}

    def is_ready(self) -> bool:
        """Whether this scheduler leads and knows the cluster."""
        return self.knows_all() and (self.lease is None or self.lease.held)

    def led(self) -> bool:
        """Whether this scheduler led at any time."""
        return self.lease is None or self.lease.led

    def busy(self) -> None:
        """Have who watches this process be patient: a long list is about to be read."""
        if self.lease:
            self.lease.busy()

    async def until_ready(self) -> None:
        """Wait a little: kube-scheduler tries a pod that met an error again only after a minute."""
        for _ in range(int(PATIENCE / PAUSE)):
            if self.is_ready():
                return
            await asyncio.sleep(PAUSE)
        self.expect_ready()

    def expect_ready(self) -> None:
        """Raise `HeteroError` unless this scheduler is ready."""
        if not self.is_ready():
            raise HeteroError("hetero: this scheduler is starting or standing by: asked too early")
