"""Iluvatar CoreX: discovered through ixml, confined by the limiter for the CUDA API it speaks.

ixml has NVML's ABI with a few calls of its own. The declarations are our own, after the public
header api.h (Deep-Spark/go-ixml, pkg/ixml).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from ctypes import c_char, c_int, c_uint, c_uint64, c_void_p

from hetero import plugin
from hetero.plugin import Device, DriverError, Enforcement, Library, MiB

#: What HAMi's users write: each model has resources of its own.
_RESOURCE_NAMES = plugin.ResourceNames(
    count="iluvatar.ai/{model}-vgpu",
    memory=("iluvatar.ai/{model}.vMem",),
    memory_unit=256 * MiB,
    core=("iluvatar.ai/{model}.vCore",),
    choice=plugin.DeviceChoice(
        include_uuid="hami.io/use-{model}-uuid", exclude_uuid="hami.io/no-use-{model}-uuid"
    ),
)
VENDOR = plugin.Vendor(
    api=2,
    name="iluvatar",
    title="Iluvatar",
    models=(
        plugin.Model(
            match="*",
            # 256 MiB units and 100 grants a card, as the vendor's gpu-manager counts.
            granularity=plugin.Fractional(
                memory=plugin.Step(256 * MiB), multi=plugin.MultiDevice.WHOLE
            ),
            slots=100,
        ),
    ),
    visible=("CUDA_VISIBLE_DEVICES",),
    runtime=plugin.ContainerRuntime(variables=("IX_VISIBLE_DEVICES",)),
    limiter="cuda",
    context_bytes=0,  # not known
    # After the vendor's device plugin (Deep-Spark/ix-device-plugin, pkg/dpm): the libraries are in
    # the image, or its container runtime brings them.
    container=plugin.ContainerEdits(device_nodes=("/dev/itrctl", "/dev/iluvatar{minor}")),
    resource_names=_RESOURCE_NAMES.each("MR-V100", "MR-V50", "BI-V150", "BI-V100"),
    resource_domains=("iluvatar.com",),  # the vendor's own device plugin's
)

_IXML = plugin.Driver(
    names=("libixml.so", "/usr/local/corex/lib64/libixml.so", "/usr/local/corex/lib/libixml.so"),
    start="nvmlInit_v2",
    absent=(9,),  # driver not loaded
    unsupported=(3, 13),  # not supported, function not found
)
#: The driver whose calls the limiter stands in front of.
_CUDA = ("/usr/local/corex/lib64/libcuda.so.1", "libcuda.so.1")
_WAYS = plugin.ways(range(0, 60, 10))  # nvmlGpuTopologyLevel_t
_DIE = 0  # nvmlTemperatureSensors_t
#: ixmlDeviceGetHealth is a set of these.
_HEALTH = ("hub", "memory controller", "over temperature", "over voltage", "ECC", "memory", "PCIe")

_Memory = plugin.struct("nvmlMemory_t", "u64 total free used")
_Pci = plugin.struct(
    "nvmlPciInfo_t", "char legacy[16]; u32 domain bus device id subsystem; char address[32]"
)
_Rates = plugin.struct("nvmlUtilization_t", "u32 core memory")


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Return the declaration: 1 % and 256 MiB, whole cards when several."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the cards ixml lists."""
    ixml = _IXML.open()
    card_count = ixml.get("nvmlDeviceGetCount_v2", c_uint)
    driver_version = plugin.text(ixml.find("nvmlSystemGetDriverVersion", c_char * 80, 80))
    enforcement = _enforcement()

    def between(first_device: Device, second_device: Device) -> str | None:
        handles = _handle(ixml, first_device.index), _handle(ixml, second_device.index)
        return _WAYS.get(ixml.find("nvmlDeviceGetTopologyCommonAncestor", *handles, c_int))

    def read(index: int) -> Device:
        return _device(ixml, index, enforcement, driver_version)

    return plugin.each_card(read, plugin.counted(card_count), between)


@plugin.hookimpl
def hetero_observe(device: Device) -> plugin.Usage:
    """Return the memory in use, the share of the last sample a kernel ran in, heat and power."""
    ixml = _IXML.open()
    handle = _handle(ixml, device.index)
    utilization = ixml.find("nvmlDeviceGetUtilizationRates", handle, _Rates)
    power_milliwatts = ixml.find("nvmlDeviceGetPowerUsage", handle, c_uint)  # milliwatts
    return plugin.Usage(
        memory=ixml.get("nvmlDeviceGetMemoryInfo", handle, _Memory).used,
        core=utilization.core / 100 if utilization else None,
        temperature=ixml.find("nvmlDeviceGetTemperature", handle, _DIE, c_uint),
        power=None if power_milliwatts is None else power_milliwatts / 1000,
    )


def _handle(ixml: Library, index: int) -> int:
    return ixml.get("nvmlDeviceGetHandleByIndex_v2", index, c_void_p) or 0


def _device(
    ixml: Library, index: int, enforcement: Enforcement, driver_version: str | None
) -> Device:
    handle = _handle(ixml, index)
    minor = ixml.find("nvmlDeviceGetMinorNumber", handle, c_uint)
    pci_address = plugin.pci_of(ixml.find("nvmlDeviceGetPciInfo_v3", handle, _Pci))
    return VENDOR.device(
        uuid=plugin.text(ixml.get("nvmlDeviceGetUUID", handle, c_char * 96, 96)),
        model=plugin.text(ixml.get("nvmlDeviceGetName", handle, c_char * 96, 96)),
        index=index,
        memory=ixml.get("nvmlDeviceGetMemoryInfo", handle, _Memory).total,
        enforcement=enforcement,
        health=_health(ixml, handle),
        numa=plugin.numa_of(pci_address),
        pci=pci_address,
        attributes={"driver": driver_version, "minor": index if minor is None else minor},
    )


def _health(ixml: Library, handle: int) -> str | None:
    faults = ixml.find("ixmlDeviceGetHealth", handle, c_uint64)
    if faults is None:
        return None
    fault_names = [fault_name for bit, fault_name in enumerate(_HEALTH) if faults >> bit & 1]
    if faults and not fault_names:
        return f"fault {faults:#x}"
    return f"{', '.join(fault_names)} fault" if fault_names else "ok"


def _enforcement() -> Enforcement:
    """Shares are kept where the CUDA driver is, for the limiter to stand in front of."""
    for library_name in _CUDA:
        with suppress(OSError):
            ctypes.CDLL(library_name)
            return Enforcement.PRELOAD
    return Enforcement.NONE
