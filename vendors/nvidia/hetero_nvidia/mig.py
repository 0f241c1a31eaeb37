"""MIG: the instances that a card is partitioned into, and the nodes that open them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml

from hetero.plugin import CORE, MEMORY, Device, MiB, Template
from hetero_nvidia.nvml import NVML, find, get

#: The driver's table of what opens instances: a path of theirs and the minor number of its node.
MINORS = Path("/proc/driver/nvidia-caps/mig-minors")


def is_on(handle: Any) -> bool:
    """Return whether a card is in MIG mode."""
    current_and_pending = find(pynvml.nvmlDeviceGetMigMode, handle)  # now, and after the next reset
    return bool(current_and_pending and current_and_pending[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def instances(handle: Any) -> tuple[Template, ...]:
    """Return a template per GPU instance: the largest of its compute instances share its memory.

    Its name is the driver's ("… MIG 1g.18gb+me") as resource names have it: "1g.18gb.me".
    """
    largest_by_instance: dict[int, Template] = {}
    for number in range(get(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        mig_handle = find(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if mig_handle is None:  # numbers have gaps
            continue
        attributes = get(pynvml.nvmlDeviceGetAttributes, mig_handle)
        template = Template(
            name=get(pynvml.nvmlDeviceGetName, mig_handle).rpartition("MIG ")[2].replace("+", "."),
            takes={
                MEMORY: attributes.memorySizeMB * MiB,
                CORE: attributes.computeInstanceSliceCount,
            },
            part=get(pynvml.nvmlDeviceGetUUID, mig_handle),
        )
        instance_id = get(pynvml.nvmlDeviceGetGpuInstanceId, mig_handle)
        known_template = largest_by_instance.get(instance_id)
        if known_template is None or known_template.takes[CORE] < template.takes[CORE]:
            largest_by_instance[instance_id] = template
    return tuple(largest_by_instance.values())


def device_nodes(parts: list[tuple[str, Device]]) -> Iterator[str]:
    """Yield the nodes by which a program opens compute instances, each given with its card."""
    minor_by_path = dict(line.split() for line in MINORS.read_text().splitlines())
    with NVML.open():
        for part_uuid, card in parts:
            handle = get(pynvml.nvmlDeviceGetHandleByUUID, part_uuid)
            gpu = f"gpu{card.attributes['minor']}"
            instance_path = f"{gpu}/gi{get(pynvml.nvmlDeviceGetGpuInstanceId, handle)}"
            compute_path = f"{instance_path}/ci{get(pynvml.nvmlDeviceGetComputeInstanceId, handle)}"
            for path in (instance_path, compute_path):
                yield f"/dev/nvidia-caps/nvidia-cap{minor_by_path[f'{path}/access']}"
