"""Reads HAMi's allocations of pods: those that it started run on, so their cards are not empty."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hetero.kube.objects.kinds import Pod
from hetero.kube.words.annotations import HAMI_ALLOCATION


def given(pod: Pod) -> dict[str, tuple[str, ...]]:
    """Return the UUIDs that HAMi gave each container of a pod, by the container's name.

    Its annotation has `uuid,type,MiB,percent:` for each device of a container and `;` after each
    container, init containers first (older versions omit those).
    """
    main_containers, all_containers = pod.spec.containers, pod.containers
    uuids_by_container: dict[str, tuple[str, ...]] = {}
    for annotation_name, text in pod.metadata.annotations.items():
        if not fnmatchcase(annotation_name, HAMI_ALLOCATION):
            continue
        container_texts = text.split(";")[:-1]
        has_all = len(container_texts) == len(all_containers)
        named_containers = all_containers if has_all else main_containers
        for container, container_text in zip(named_containers, container_texts, strict=False):
            uuids = tuple(device.split(",")[0] for device in container_text.split(":") if device)
            if uuids:
                uuids_by_container[container.name] = uuids
    return uuids_by_container
