"""AMD: discovered through ROCm SMI, confined by the limiter for HIP.

The names of the library with a number are AMD's: Hygon's library has the same name without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_uint32, c_uint64

import hetero_rsmi as rsmi

from hetero import plugin
from hetero.plugin import Device, DriverError, Enforcement

VENDOR = plugin.Vendor(
    api=2,
    name="amd",
    title="AMD",
    models=(plugin.Model(match="*", granularity=plugin.Fractional(), core=100, slots=10),),
    # Of AMD's container toolkit.
    runtime=plugin.ContainerRuntime(options=("AMD_VISIBLE_DEVICES",)),
    visible=("ROCR_VISIBLE_DEVICES",),  # by "GPU-" and the unique id, as rocminfo prints it
    limiter="hip",
    context_bytes=None,  # nothing says what a process holds beside its allocations
    # The images bring ROCm.
    container=plugin.ContainerEdits(device_nodes=("/dev/kfd", "{render}")),
    # Of amd-device-plugin 8087841.
    ineffective_words=(
        plugin.IneffectiveWords(
            kind="variable",
            names=("HIP_DEVICE_MEMORY_LIMIT", "HIP_DEVICE_MEMORY_LIMIT_*", "HSA_CU_MASK"),
            sentence="the limits are what the container asks among its resources: write "
            "amd.com/gpumem and amd.com/gpucores",
        ),
    ),
    resource_names=(
        plugin.ResourceNames(
            count="amd.com/gpu",
            memory=("amd.com/gpumem",),
            core=("amd.com/gpucores",),
            choice=plugin.DeviceChoice(
                include_model="amd.com/use-gputype",
                exclude_model="amd.com/nouse-gputype",
                include_uuid="amd.com/use-gpu-uuid",
                exclude_uuid="amd.com/nouse-gpu-uuid",
            ),
        ),
    ),
)
_RSMI = rsmi.driver(*(f"librocm_smi64.so.{version}" for version in (7, 6, 5)))


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Return the declaration: 1 % of core and 1 MiB, and several cards stay shares."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the cards ROCm SMI monitors."""
    smi = _RSMI.open()

    def read(index: int) -> Device:
        return VENDOR.device(
            uuid=f"GPU-{smi.get('rsmi_dev_unique_id_get', index, c_uint64):016x}",
            model=rsmi.name(smi, index),
            index=index,
            enforcement=Enforcement.PRELOAD,
            **rsmi.facts(smi, index),
        )

    indices = plugin.counted(smi.get("rsmi_num_monitor_devices", c_uint32))
    return plugin.each_card(read, indices, lambda *pair: rsmi.way(smi, *pair), {"XGMI": 20})


@plugin.hookimpl
def hetero_observe(device: Device) -> plugin.Usage:
    """Return the memory in use, the share of time the card was busy, its heat and power."""
    return rsmi.usage(_RSMI.open(), device.index)
