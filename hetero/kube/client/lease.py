"""Leader election by a Lease: its holder leads, the others try to get it.

kube-scheduler's own election ends kube-scheduler when the API server is away for longer than a
renewal may take. This one lets the leader go on until another is seen to lead.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone
from time import monotonic

from attrs import define, field

from hetero.kube.client.api import Api, ApiError
from hetero.kube.objects.kinds import Lease, LeaseSpec, Plain
from hetero.kube.objects.reading import read

log = logging.getLogger(__name__)

#: Seconds a Lease lasts after a renewal, a renewal is relied on, and between two renewals. The gap
#: between the first two is what the last requests of an old leader may take.
LEASE_DURATION_S, TRUSTED_S, RENEWAL_PERIOD_S = 4, 3.0, 1.0
#: Seconds between two looks of who stands by.
STANDBY_PERIOD_S = 0.5
#: Seconds by which a timer may be early.
_TIMER_ERROR_S = 0.02
#: Seconds that one attempt may take.
_ATTEMPT_TIMEOUT_S = 2.0
_CONFLICT, _ABSENT = 409, 404


@define(eq=False)
class LeaseElection:
    """A Lease as one contender, `identity`, sees it. Clocks of other machines are never read."""

    api: Api
    namespace: str
    name: str
    identity: str
    #: Whether this contender holds it, as far as is known: nobody else was seen to.
    leads: bool = field(default=False, init=False)
    #: Until when that is beyond doubt, in seconds of this machine's monotonic clock.
    trusted_until_s: float = field(default=0.0, init=False)
    _lease: Plain | None = field(default=None, init=False)  # as last read or written
    _renewal: tuple[str, str] = field(default=("", ""), init=False)  # holder and time, as read
    _seen_at_s: float | None = field(default=None, init=False)  # None: there may be a newer one
    _duration_s: float = field(default=LEASE_DURATION_S, init=False)
    _logged_text: str = field(default="", init=False)

    async def attempt(self) -> None:
        """Renew the Lease, or take it if it is free; once."""
        try:
            await asyncio.wait_for(self._attempt(), _ATTEMPT_TIMEOUT_S)
            self._logged_text = ""
        except (ApiError, asyncio.TimeoutError) as error:
            # Its holder may have renewed it unseen, or could not: it gets its whole time again.
            self._seen_at_s = None
            message = str(error) or "no answer"
            if message != self._logged_text:
                log.warning("lease %s: %s", self.name, message)
            self._logged_text = message

    @property
    def pause_s(self) -> float:
        """Seconds until the next attempt can succeed."""
        if self.leads:
            return RENEWAL_PERIOD_S
        if self._seen_at_s is None:
            return STANDBY_PERIOD_S
        return min(
            STANDBY_PERIOD_S,
            max(0.0, self._seen_at_s + self._duration_s - monotonic()) + _TIMER_ERROR_S,
        )

    async def release(self) -> None:
        """Release the Lease at once. The process must have stopped what it led."""
        if not self.leads:
            return
        self.leads, self.trusted_until_s = False, 0.0
        try:
            spec = {"leaseDurationSeconds": 1, "renewTime": _now()}
            await asyncio.wait_for(self._write(spec), _ATTEMPT_TIMEOUT_S)
        except (ApiError, asyncio.TimeoutError) as error:
            log.warning("lease %s: not released, it ends by itself: %s", self.name, error)

    async def _attempt(self) -> None:
        asked_at_s = monotonic()
        if not self.leads and not await self._free():
            return
        try:
            await self._write(self._taken())
        except ApiError as error:
            if error.status not in (_CONFLICT, _ABSENT):
                raise
            # Somebody wrote meanwhile; perhaps we did, and the answer was lost.
            await self._read()
            self.leads = self._spec.holder_identity == self.identity
            return
        self.leads, self.trusted_until_s = True, asked_at_s + TRUSTED_S

    async def _free(self) -> bool:
        """Read the Lease; return whether it may be taken."""
        await self._read()
        if self._lease is None:
            return True
        spec = self._spec
        renewal = (spec.holder_identity, spec.renew_time)
        if renewal != self._renewal or self._seen_at_s is None:
            self._renewal, self._seen_at_s = renewal, monotonic()
        self._duration_s = spec.lease_duration_seconds or LEASE_DURATION_S
        return renewal[0] in ("", self.identity) or monotonic() - self._seen_at_s > self._duration_s

    @property
    def _spec(self) -> LeaseSpec:
        """The spec of the Lease as it was last read or written."""
        return read(Lease, self._lease).spec

    def _taken(self) -> Plain:
        """Return the spec of the Lease with this contender as its holder."""
        now_text = _now()
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": now_text,
        }
        spec_before = self._spec
        if self._lease is not None and spec_before.holder_identity == self.identity:
            return {**(self._lease.get("spec") or {}), **spec}
        return {
            **spec,
            "acquireTime": now_text,
            "leaseTransitions": spec_before.lease_transitions + 1,
        }

    async def _read(self) -> None:
        try:
            self._lease = await self.api.get(self._path)
        except ApiError as error:
            if error.status != _ABSENT:
                raise
            self._lease = None

    async def _write(self, spec: Plain) -> None:
        """Write the Lease, unless another contender did since it was read."""
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        if self._lease is None:
            new_lease = {**lease, "metadata": {"name": self.name, "namespace": self.namespace}}
            await self.api.post(self._all, new_lease)
            await self._read()
        else:
            changed_lease = {**lease, "metadata": self._lease["metadata"]}
            self._lease = await self.api.put(self._path, changed_lease)

    @property
    def _all(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    @property
    def _path(self) -> str:
        return f"{self._all}/{self.name}"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
