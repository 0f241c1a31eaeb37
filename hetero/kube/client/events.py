"""Tells users what became of their pods where they look: in the events of pods, and of nodes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from time import monotonic
from typing import Any

from attrs import define, field

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.objects.kinds import Metadata, Plain

log = logging.getLogger(__name__)

#: Seconds in which the same sentence is not told twice to the same pod.
_SAID = 60.0
#: The longest message the API takes.
_LONGEST = 1024


@define(eq=False)
class Events:
    """Writes events, and no sentence again at once."""

    api: ApiCalls
    _told: dict[tuple[str, str], float] = field(factory=dict)

    async def tell(self, about: Metadata, reason: str, sentence: str, *, kind: str = "Pod") -> None:
        """Put a sentence into the events of a pod, or a node, unless it was just told."""
        now = monotonic()
        key = (about.uid, sentence)
        if now - self._told.get(key, -_SAID) < _SAID:
            return
        self._told = {one: at for one, at in self._told.items() if now - at < _SAID}
        self._told[key] = now
        namespace = about.namespace or "default"  # where the API wants those of nodes
        involved = {"apiVersion": "v1", "kind": kind, "name": about.name, "uid": about.uid}
        involved |= {"namespace": about.namespace} if about.namespace else {}
        try:
            event = _event(involved, namespace, reason, sentence)
            await self.api.post(f"/api/v1/namespaces/{namespace}/events", event)
        except ApiError as error:
            log.warning("event for %s/%s: %s", namespace, about.name, error)


def timestamp() -> str:
    """Return the time as the API writes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _event(involved: Mapping[str, Any], namespace: str, reason: str, sentence: str) -> Plain:
    now = timestamp()
    return {
        "metadata": {"generateName": f"{involved['name'][:200]}.", "namespace": namespace},
        "involvedObject": involved,
        "type": "Warning",
        "reason": reason,
        "message": sentence if len(sentence) <= _LONGEST else f"{sentence[: _LONGEST - 1]}…",
        "source": {"component": "hetero"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
