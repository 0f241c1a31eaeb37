"""Reads what HAMi gave a pod: those that it started run on, and their cards are not empty."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hetero.kube.objects.kinds import Pod
from hetero.kube.words.annotations import HAMI_ALLOCATION


def given(pod: Pod) -> dict[str, tuple[str, ...]]:
    """Return the UUIDs that HAMi gave each container of a pod, by the container's name.

    Its annotation has `uuid,type,MiB,percent:` for each device of a container and `;` after each
    container, init containers first (older versions leave those out).
    """
    containers, every = pod.spec.containers, pod.containers
    by_container: dict[str, tuple[str, ...]] = {}
    for note, text in pod.metadata.annotations.items():
        if not fnmatchcase(note, HAMI_ALLOCATION):
            continue
        parts = text.split(";")[:-1]
        named = every if len(parts) == len(every) else containers
        for container, part in zip(named, parts, strict=False):
            uuids = tuple(device.split(",")[0] for device in part.split(":") if device)
            if uuids:
                by_container[container.name] = uuids
    return by_container
