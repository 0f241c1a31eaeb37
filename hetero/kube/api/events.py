"""Tells users what became of their pods where they look: in the pods' events."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from time import monotonic
from typing import Any

from attrs import define, field

from hetero.kube.api.client import ApiCalls, ApiError, Plain

log = logging.getLogger(__name__)

#: Seconds in which the same sentence is not told twice to the same pod.
_SAID = 60.0
#: The longest message the API takes.
_LONGEST = 1024


@define(eq=False)
class Events:
    """Writes events of pods, and no sentence again at once."""

    api: ApiCalls
    _told: dict[tuple[str, str], float] = field(factory=dict)

    async def tell(self, pod: Plain, reason: str, sentence: str) -> None:
        """Put a sentence into the pod's events, unless it was just told."""
        metadata, now = pod["metadata"], monotonic()
        said = (metadata["uid"], sentence)
        if now - self._told.get(said, -_SAID) < _SAID:
            return
        self._told = {one: at for one, at in self._told.items() if now - at < _SAID}
        self._told[said] = now
        namespace = metadata["namespace"]
        try:
            event = _event(metadata, reason, sentence)
            await self.api.post(f"/api/v1/namespaces/{namespace}/events", event)
        except ApiError as error:
            log.warning("event for %s/%s: %s", namespace, metadata["name"], error)


def timestamp() -> str:
    """Return the time as the API writes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _event(metadata: Mapping[str, Any], reason: str, sentence: str) -> Plain:
    namespace, name, now = metadata["namespace"], metadata["name"], timestamp()
    return {
        "metadata": {"generateName": f"{name[:200]}.", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": namespace,
            "name": name,
            "uid": metadata["uid"],
        },
        "type": "Warning",
        "reason": reason,
        "message": sentence if len(sentence) <= _LONGEST else f"{sentence[: _LONGEST - 1]}…",
        "source": {"component": "hetero"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
