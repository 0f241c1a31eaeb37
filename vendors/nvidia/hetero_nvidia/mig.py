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
    modes = find(pynvml.nvmlDeviceGetMigMode, handle)  # now, and after the next reset
    return bool(modes and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def instances(handle: Any) -> tuple[Template, ...]:
    """Return a template per GPU instance: the largest of its compute instances share its memory."""
    largest: dict[int, Template] = {}
    for number in range(get(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        part = find(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if part is None:  # numbers have gaps
            continue
        shape = get(pynvml.nvmlDeviceGetAttributes, part)
        template = Template(
            name=get(pynvml.nvmlDeviceGetName, part).rpartition("MIG ")[2],  # "… MIG 1g.18gb"
            takes={MEMORY: shape.memorySizeMB * MiB, CORE: shape.computeInstanceSliceCount},
            part=get(pynvml.nvmlDeviceGetUUID, part),
        )
        instance = get(pynvml.nvmlDeviceGetGpuInstanceId, part)
        known = largest.get(instance)
        if known is None or known.takes[CORE] < template.takes[CORE]:
            largest[instance] = template
    return tuple(largest.values())


def device_nodes(parts: list[tuple[str, Device]]) -> Iterator[str]:
    """Yield the nodes by which a program opens compute instances, each given with its card."""
    minors = dict(line.split() for line in MINORS.read_text().splitlines())
    with NVML.open():
        for part, card in parts:
            handle = get(pynvml.nvmlDeviceGetHandleByUUID, part)
            gpu = f"gpu{card.attributes['minor']}"
            instance = f"{gpu}/gi{get(pynvml.nvmlDeviceGetGpuInstanceId, handle)}"
            compute = f"{instance}/ci{get(pynvml.nvmlDeviceGetComputeInstanceId, handle)}"
            for path in (instance, compute):
                yield f"/dev/nvidia-caps/nvidia-cap{minors[f'{path}/access']}"
