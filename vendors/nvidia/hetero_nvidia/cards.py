"""What NVML says of a card: who it is, how it is, and which cards it has ways to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pynvml
from attrs import evolve

from hetero import plugin
from hetero.plugin import CORE, Device, DriverError, Enforcement
from hetero_nvidia import mig
from hetero_nvidia.declaration import VENDOR
from hetero_nvidia.nvml import NVML, find, get

#: The far end of an NVLink that leads to every card on the same switches.
SWITCH = "switch"
#: What the driver wants done to recover a card, from r555 on (nvmlDeviceGpuRecoveryAction_t).
_RECOVERIES = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset the card",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "end what uses its links to other cards",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "end what runs on it, then reset it",
    pynvml.NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "recover its IMEX domain",
    pynvml.NVML_GPU_RECOVERY_ACTION_BUS_RESET: "reset its PCIe bus",
    pynvml.NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT: "reboot the system",
}
#: Throttling by heat comes and goes within seconds.
HOT = plugin.Lingering(60.0)
#: A card's last NVLink may come before the last number there can be.
_LINKS = evolve(NVML, unsupported=(*NVML.unsupported, pynvml.NVML_ERROR_INVALID_ARGUMENT))
#: A library without the call is broken, not a card without memory of its own.
_MEMORY = evolve(NVML, unsupported=(pynvml.NVML_ERROR_NOT_SUPPORTED,))


def device(handle: Any, index: int) -> Device:
    """Return a card as NVML describes it. Raises `DriverError`."""
    is_partitioned = mig.is_on(handle)
    menu = mig.instances(handle) if is_partitioned else ()
    compute_capability = find(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    minor = find(pynvml.nvmlDeviceGetMinorNumber, handle)
    # Not `nvmlDeviceGetNumaNodeId`: that is the card's own memory as a node.
    numa_mask = find(pynvml.nvmlDeviceGetMemoryAffinity, handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
    memory_info = memory(handle)
    return VENDOR.device(
        uuid=get(pynvml.nvmlDeviceGetUUID, handle),
        model=get(pynvml.nvmlDeviceGetName, handle),
        index=index,
        memory=memory_info.total if memory_info else None,
        enforcement=Enforcement.PARTITION if is_partitioned else Enforcement.PRELOAD,
        granularity=plugin.Templated(menu, whole=False) if is_partitioned else None,
        # In slices, as its instances count them.
        capacity={CORE: get(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)}
        if is_partitioned
        else None,
        health="MIG is on without an instance" if is_partitioned and not menu else _health(handle),
        numa=plugin.first_node(numa_mask[0]) if numa_mask else None,
        pci=plugin.pci_of(find(pynvml.nvmlDeviceGetPciInfo, handle)),
        attributes={
            "driver": get(pynvml.nvmlSystemGetDriverVersion),
            "reserved": getattr(memory_info, "reserved", None) or None,
            "minor": index if minor is None else minor,
            "compute-capability": f"{compute_capability[0]}.{compute_capability[1]}"
            if compute_capability
            else None,
        },
    )


def lost(index: int, *, health: str) -> Device:
    """Return a card that fell off the bus, by what NVML still knows; it is never given out."""
    try:
        handle = get(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid = get(pynvml.nvmlDeviceGetUUID, handle)
        model = get(pynvml.nvmlDeviceGetName, handle)
    except DriverError:
        uuid, model = f"lost-{index}", "unknown"
    return VENDOR.device(
        uuid=uuid, model=model, index=index, memory=0, enforcement=Enforcement.NONE, health=health
    )


def memory(handle: Any) -> Any:
    """Return NVML's struct of a card's memory, None for one of unified memory (GB10).

    Raises `DriverError`, also where the library has no such function: no NVML lacks it.
    Version 2 keeps the driver's own reserve out of `used`; drivers before r510 lack it.
    """
    memory_info = find(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return memory_info or _MEMORY.find(pynvml.nvmlDeviceGetMemoryInfo, handle)


def recovery(handle: Any) -> int | None:
    """Return the driver's recovery action for a card; None where it has no word of that."""
    field_id = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    values = find(pynvml.nvmlDeviceGetFieldValues, handle, [field_id])
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _health(handle: Any) -> str | None:
    """Return what NVML's error records say: "ok", what is wrong, or None where it keeps none."""
    remapped_rows = find(pynvml.nvmlDeviceGetRemappedRows, handle)  # Ampere and later
    pages = find(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)  # before Ampere
    error_count = find(
        pynvml.nvmlDeviceGetTotalEccErrors,
        handle,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        pynvml.NVML_VOLATILE_ECC,
    )
    if remapped_rows and remapped_rows[3]:
        return "row remapping failed: replace the card"
    if (remapped_rows and remapped_rows[2]) or pages:
        return "memory repair pending: reset the card"
    throttle_reasons = find(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    is_hot = bool(throttle_reasons & pynvml.nvmlClocksThrottleReasonHwThermalSlowdown)
    if HOT.holds(get(pynvml.nvmlDeviceGetUUID, handle), seen=is_hot):
        return "too hot: the hardware slows it down"
    if error_count:
        return f"{error_count} uncorrected memory errors: reset the card"
    action = recovery(handle)
    if action:
        remedy = _RECOVERIES.get(action, f"recovery action {action}")
        return f"the driver wants it recovered: {remedy}"
    return None if remapped_rows is pages is error_count is action is None else "ok"


def nvlinks(handle: Any) -> Counter[str]:
    """Return how many of the card's active NVLinks end at each PCI address, or at a switch."""
    link_count_by_end: Counter[str] = Counter()
    for link_index in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not _LINKS.find(pynvml.nvmlDeviceGetNvLinkState, handle, link_index):
            continue
        remote_type = find(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link_index)
        remote_address = plugin.pci_of(
            find(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link_index)
        )
        if remote_type == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            link_count_by_end[SWITCH] += 1
        elif remote_address is not None:  # NVML does not name the other end of every link
            link_count_by_end[remote_address] += 1
    return link_count_by_end
