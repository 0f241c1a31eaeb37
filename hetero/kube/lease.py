"""Who leads: of several schedulers, the one that holds the Lease; the others stand by."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timezone
from time import monotonic

from attrs import define, field

from hetero.errors import HeteroError
from hetero.kube.api import Api, ApiError, Plain

log = logging.getLogger(__name__)

_PATH = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
#: Seconds: how long a lease stands unless renewed, when the holder stops relying on it, how often
#: it is renewed. The gap between the first two is what a slow request of an old leader may take.
LASTS, TRUSTED, PERIOD = 15, 10, 2


@define(eq=False)
class Lease:
    """One contender for a Lease. Times of other machines are never compared with ours."""

    api: Api
    namespace: str
    name: str
    holder: str
    _trusted_until: float = field(default=0.0, init=False)
    _seen: tuple[str, str] = field(default=("", ""), init=False)  # holder and its last renewal
    _seen_at: float = field(default=0.0, init=False)

    @property
    def held(self) -> bool:
        """Whether this contender leads, beyond doubt, at this moment."""
        return monotonic() < self._trusted_until

    async def contend(self) -> None:
        """Take the lease when it is free and renew it, until it is lost: then raise.

        Whoever has led holds reservations that a later leader knows nothing of, so it starts anew.
        """
        before = False
        while True:
            try:
                await self._round()
            except ApiError as error:
                log.warning("lease %s: %s", self.name, error)
            if before and not self.held:
                raise HeteroError(f"lease {self.name}: lost; starting anew")
            if self.held and not before:
                log.info("lease %s: leading", self.name)
            before = self.held
            await asyncio.sleep(PERIOD)

    async def give_up(self) -> None:
        """Let the next one lead at once."""
        if self.held:
            self._trusted_until = 0.0
            path = f"{_PATH.format(self.namespace)}/{self.name}"
            try:
                found = await self.api.get(path)
                if found["spec"].get("holderIdentity") == self.holder:
                    found["spec"]["holderIdentity"] = ""
                    await self.api.put(path, found)
            except ApiError as error:
                log.warning("lease %s: %s", self.name, error)

    async def _round(self) -> None:
        path, asked_at = _PATH.format(self.namespace), monotonic()
        try:
            found = await self.api.get(f"{path}/{self.name}")
        except ApiError as error:
            if error.status != 404:
                raise
            await self.api.post(path, self._mine({"metadata": {"name": self.name}}))
            self._trusted_until = asked_at + TRUSTED
            return
        spec = found.get("spec") or {}
        seen = (spec.get("holderIdentity") or "", spec.get("renewTime") or "")
        if seen != self._seen:
            self._seen, self._seen_at = seen, asked_at
        free = not seen[0] or asked_at - self._seen_at > LASTS
        if seen[0] != self.holder and not free:
            return
        try:
            await self.api.put(f"{path}/{self.name}", self._mine(found))  # as of what was read
        except ApiError as error:
            if error.status != 409:
                raise
            return  # another was faster
        self._trusted_until = asked_at + TRUSTED

    def _mine(self, found: Plain) -> Plain:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = found.get("spec") or {}
        changes = int(spec.get("leaseTransitions") or 0)
        if spec.get("holderIdentity") != self.holder:
            spec = {**spec, "acquireTime": now, "leaseTransitions": changes + 1}
        spec = {
            **spec,
            "holderIdentity": self.holder,
            "renewTime": now,
            "leaseDurationSeconds": LASTS,
        }
        return {
            **found,
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "spec": spec,
        }
