"""What cards say through ROCm SMI, whose names begin with rsmi_: several vendors have one.

The declarations are our own, after its public header. A library is opened by the vendor.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_char, c_int32, c_int64, c_uint32, c_uint64
from typing import Any

from hetero.plugin import (
    Device,
    Driver,
    DriverError,
    Library,
    Usage,
    drm_of,
    pci_address,
    struct,
    text,
)

_VRAM, _MEMORY_BLOCK = 0, 1  # of rsmi_memory_type_t, and of the kinds of blocks
_DRIVER = 0  # of rsmi_sw_component_t: the module of the kernel
_EDGE, _NOW = 0, 0  # rsmi_temperature_type_t; rsmi_temperature_metric_t
_PCIE, _XGMI, _ACROSS = 1, 2, 3  # RSMI_IO_LINK_TYPE; hops of a way between NUMA nodes
_Errors = struct("rsmi_error_count_t", "u64 corrected uncorrected")
_Process = struct("rsmi_process_info_t", "u32 pid pasid; u64 vram sdma; u32 occupancy evicted")
_LIST, _OF_CARD = "rsmi_compute_process_info_get", "rsmi_compute_process_info_by_device_get"
_NOT_FOUND = 10  # RSMI_STATUS_NOT_FOUND: the process has ended
_COMING = 16  # processes that may begin between two calls


def driver(*names: str) -> Driver:
    """Return the library with one of these names."""
    return Driver(
        names=names,
        start="rsmi_init",
        flags=(0,),
        absent=(8,),  # RSMI_STATUS_INIT_ERROR: no driver
        unsupported=(2, 9),  # not supported, not yet implemented
        meanings={1: "invalid arguments", 3: "a file of the driver", 4: "permission", 16: "busy"},
    )


def way(rsmi: Library, first_device: Device, second_device: Device) -> str | None:
    """Return how two cards are linked."""
    hops = c_uint64()
    link_type = rsmi.find(
        "rsmi_topo_get_link_type", first_device.index, second_device.index, hops, c_uint32
    )
    if link_type not in (_PCIE, _XGMI):
        return None
    return "XGMI" if link_type == _XGMI else "NODE" if hops.value < _ACROSS else "SYS"


def usage(rsmi: Library, index: int) -> Usage:
    """Return the memory in use, the share of time the card was busy, its heat and power."""
    busy_percent = rsmi.find("rsmi_dev_busy_percent_get", index, c_uint32)
    millidegrees = rsmi.find("rsmi_dev_temp_metric_get", index, _EDGE, _NOW, c_int64)  # 1/1000
    power_microwatts = rsmi.find("rsmi_dev_power_ave_get", index, 0, c_uint64)
    limit_microwatts = rsmi.find("rsmi_dev_power_cap_get", index, 0, c_uint64)
    return Usage(
        memory=rsmi.find("rsmi_dev_memory_usage_get", index, _VRAM, c_uint64),
        core=None if busy_percent is None else busy_percent / 100,
        processes=processes(rsmi, index),
        temperature=None if millidegrees is None else millidegrees // 1000,
        power=None if power_microwatts is None else power_microwatts / 1e6,
        power_limit=None if limit_microwatts is None else limit_microwatts / 1e6,
    )


def processes(rsmi: Library, index: int) -> Mapping[int, int] | None:
    """Return the bytes that each process has on a card; None where that is not to be known.

    The library reads the kernel's `/sys/class/kfd/kfd/proc/PID/vram_*`: what a process took through
    /dev/kfd, by whatever library. Its list of processes says nothing of a card, and has no bytes.
    """
    if not (rsmi.has(_LIST) and rsmi.has(_OF_CARD)):
        return None
    try:
        most_processes = rsmi.get(_LIST, None, c_uint32) + _COMING
        process_array, process_count = (_Process * most_processes)(), c_uint32(most_processes)
        rsmi.call(_LIST, process_array, process_count)
        bytes_by_pid = {
            process.pid: _held(rsmi, process.pid, index)
            for process in process_array[: process_count.value]
        }
    except DriverError:
        return None
    known_bytes = {
        pid: memory_bytes for pid, memory_bytes in bytes_by_pid.items() if memory_bytes is not None
    }
    if bytes_by_pid and not known_bytes:
        return None  # this kernel does not say
    return {pid: memory_bytes for pid, memory_bytes in known_bytes.items() if memory_bytes}


def _held(rsmi: Library, pid: int, index: int) -> int | None:
    try:
        process = rsmi.find(_OF_CARD, pid, index, _Process)
    except DriverError as error:
        if error.code != _NOT_FOUND:
            raise
        return 0
    return None if process is None else int(process.vram)


def name(rsmi: Library, index: int) -> str | None:
    """Return the model's name."""
    return text(rsmi.find("rsmi_dev_name_get", index, c_char * 256, 256))


def facts(rsmi: Library, index: int) -> dict[str, Any]:
    """Return what a card says of itself that `Vendor.device` takes, but for who it is."""
    pci_id = rsmi.find("rsmi_dev_pci_id_get", index, c_uint64)  # domain, bus, device, function
    pci_text = (
        None
        if pci_id is None
        else pci_address(pci_id >> 32, pci_id >> 8 & 255, pci_id >> 3 & 31, pci_id & 7)
    )
    numa_node = rsmi.find("rsmi_topo_numa_affinity_get", index, c_int32)
    error_counts = rsmi.find("rsmi_dev_ecc_count_get", index, _MEMORY_BLOCK, _Errors)
    health = "ok" if error_counts else None
    if error_counts and error_counts.uncorrected:
        health = f"{error_counts.uncorrected} uncorrected memory errors: reset the card"
    return {
        "memory": rsmi.get("rsmi_dev_memory_total_get", index, _VRAM, c_uint64),
        "health": health,
        "numa": None if numa_node is None or numa_node < 0 else numa_node,
        "pci": pci_text,
        "attributes": {
            **drm_of(pci_text),
            "driver": text(rsmi.find("rsmi_version_str_get", _DRIVER, c_char * 256, 256)),
        },
    }
