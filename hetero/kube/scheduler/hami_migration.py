"""Reads what HAMi gave a pod: those that it started run on, and their cards are not empty."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

#: On a pod, one for each kind of device: `uuid,type,MiB,percent:` for each device of a container,
#: `;` after each container, init containers first (older versions leave those out).
_GIVEN = "hami.io/*-devices-allocated"


def given(pod: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the UUIDs that HAMi gave each container of a pod, by the container's name."""
    notes = pod["metadata"].get("annotations") or {}
    containers = pod["spec"]["containers"]
    every = [*(pod["spec"].get("initContainers") or ()), *containers]
    found: dict[str, tuple[str, ...]] = {}
    for note, text in notes.items():
        if not fnmatchcase(note, _GIVEN):
            continue
        parts = text.split(";")[:-1]
        named = every if len(parts) == len(every) else containers
        for container, part in zip(named, parts, strict=False):
            uuids = tuple(device.split(",")[0] for device in part.split(":") if device)
            if uuids:
                found[container["name"]] = uuids
    return found
