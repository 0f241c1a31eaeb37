"""Writes to the events of pods and nodes, where users look for them."""

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

#: Seconds in which the same sentence is not written twice for the same pod.
_REPEAT_S = 60.0
#: The longest message the API takes.
_LONGEST_MESSAGE = 1024


@define(eq=False)
class Events:
    """Writes events, but no sentence twice in a short time."""

    api: ApiCalls
    _written_at_s: dict[tuple[str, str], float] = field(factory=dict)

    async def tell(
        self, metadata: Metadata, reason: str, sentence: str, *, kind: str = "Pod"
    ) -> None:
        """Put a sentence into the events of a pod, or a node, unless it was just written."""
        now_s = monotonic()
        event_key = (metadata.uid, sentence)
        if now_s - self._written_at_s.get(event_key, -_REPEAT_S) < _REPEAT_S:
            return
        self._written_at_s = {
            told_key: told_at_s
            for told_key, told_at_s in self._written_at_s.items()
            if now_s - told_at_s < _REPEAT_S
        }
        self._written_at_s[event_key] = now_s
        namespace = metadata.namespace or "default"  # where the API wants those of nodes
        involved_object = {
            "apiVersion": "v1",
            "kind": kind,
            "name": metadata.name,
            "uid": metadata.uid,
        }
        involved_object |= {"namespace": metadata.namespace} if metadata.namespace else {}
        try:
            event = _event(involved_object, namespace, reason, sentence)
            await self.api.post(f"/api/v1/namespaces/{namespace}/events", event)
        except ApiError as error:
            log.warning("event for %s/%s: %s", namespace, metadata.name, error)


def timestamp() -> str:
    """Return the time as the API writes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _event(involved_object: Mapping[str, Any], namespace: str, reason: str, sentence: str) -> Plain:
    now_text = timestamp()
    return {
        "metadata": {"generateName": f"{involved_object['name'][:200]}.", "namespace": namespace},
        "involvedObject": involved_object,
        "type": "Warning",
        "reason": reason,
        "message": sentence
        if len(sentence) <= _LONGEST_MESSAGE
        else f"{sentence[: _LONGEST_MESSAGE - 1]}…",
        "source": {"component": "hetero"},
        "firstTimestamp": now_text,
        "lastTimestamp": now_text,
        "count": 1,
    }
