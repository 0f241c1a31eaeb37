"""Who leads: the extender beside the kube-scheduler that holds the Lease; the others stand by.

kube-scheduler elects its own leader. Its extender leads with it, so the two never part, call each
other inside one pod, and nothing else elects anybody.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from attrs import define, field

from hetero.kube.api.client import Api, ApiError
from hetero.model.errors import HeteroError

log = logging.getLogger(__name__)

_PATH = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}"
#: Seconds a renewal is relied on, fewer than the 15 after which another kube-scheduler may lead:
#: the gap is what the last requests of an old leader may take.
TRUSTED = 10
_PERIOD = 1


@define(eq=False)
class Lease:
    """A Lease as seen from beside one contender. Clocks of other machines are never read."""

    api: Api
    namespace: str
    name: str
    host: str  # what the contender's identity begins with: its pod's host name
    _renewal: tuple[str, str] | None = field(default=None, init=False)  # holder and time, as read
    _trusted_until: float = field(default=0.0, init=False)

    @property
    def held(self) -> bool:
        """Whether the kube-scheduler beside us leads, beyond doubt, at this moment."""
        return monotonic() < self._trusted_until

    async def follow(self) -> None:
        """Watch the lease until it is lost: then raise.

        Whoever has led holds reservations that a later leader knows nothing of, so it starts anew.
        """
        led = False
        while True:
            try:
                await self._read_lease()
            except ApiError as error:
                if error.status != 404:  # nobody has led yet
                    log.warning("lease %s: %s", self.name, error)
            if led and not self.held:
                raise HeteroError(f"lease {self.name}: lost; starting anew")
            if self.held and not led:
                log.info("lease %s: leading", self.name)
            led = self.held
            await asyncio.sleep(_PERIOD)

    async def _read_lease(self) -> None:
        asked_at = monotonic()
        found = await self.api.get(_PATH.format(self.namespace, self.name))
        spec = found.get("spec") or {}
        renewal = (spec.get("holderIdentity") or "", spec.get("renewTime") or "")
        if not renewal[0].startswith(f"{self.host}_"):
            self._trusted_until = 0.0
        elif renewal != self._renewal:
            # A renewal seen for the first time may be as old as the time since we last looked.
            fresh = self._renewal is not None
            self._trusted_until = asked_at + TRUSTED - _PERIOD if fresh else 0.0
        self._renewal = renewal
