"""Moore Threads: discovered through MTML, cut by its sgpu kernel module.

MTML is spoken through the vendor's own binding (mthreads-ml-py), which opens libmtml when it is
initialised and not before. What MTML will not say of a card is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pymtml as mtml

from hetero import plugin
from hetero.plugin import (
    CORE,
    MEMORY,
    Allocation,
    Device,
    DriverError,
    Edits,
    Enforcement,
    MiB,
    Policy,
)

#: An S4000 has 16 core groups and gives memory in these multiples of 512 MiB.
_S4000 = plugin.Fractional(
    memory=plugin.Ladder(tuple(units * 512 * MiB for units in (2, 4, 8, 16, 32, 64, 96))),
    multi=plugin.MultiDevice.WHOLE,
    together=True,
)
#: What HAMi's users write, in units of 512 MiB and of one core group.
_RESOURCE_NAMES = plugin.ResourceNames(
    count="mthreads.com/vgpu",
    memory=("mthreads.com/sgpu-memory",),
    memory_unit=512 * MiB,
    core=("mthreads.com/sgpu-core",),
    core_whole=16,
    choice=plugin.DeviceChoice(
        include_uuid="mthreads.ai/use-gpuuuid", exclude_uuid="mthreads.ai/nouse-gpuuuid"
    ),
)
VENDOR = plugin.Vendor(
    api=2,
    name="mthreads",
    title="Moore Threads",
    models=(
        plugin.Model(match="MTT S4000*", granularity=_S4000, core=16, slots=16),
        plugin.Model(match="*", granularity=plugin.Whole()),
    ),
    visible=("MUSA_VISIBLE_DEVICES",),
    visible_by="index",
    soft_limiter="musa",
    context_bytes=0,  # not known
    runtime=plugin.ContainerRuntime(variables=("MTHREADS_VISIBLE_DEVICES",)),
    # The paths of a card are what MTML says they are; in addition, what the vendor's container
    # runtime brings of the driver.
    container=plugin.ContainerEdits(
        device_nodes=("{node}", "{card}", "{render}"),
        files=("libmusa.so.1", "libmtml.so", "/usr/bin/mthreads-gmi"),
    ),
    resource_names=(_RESOURCE_NAMES,),
)

#: The files of the kernel module that shares a card; its container runtime makes the instances.
SGPU = Path("/proc/sgpu_km")
#: What the module calls what a grant's policy means: strong, weak and no bounds between tenants.
_POLICIES = {Policy.FIXED: "2", Policy.ELASTIC: "1", Policy.OFF: "0"}

_MTML = plugin.Binding(
    library="libmtml.so",
    start=mtml.mtmlLibraryInit,
    stop=mtml.mtmlLibraryShutDown,
    error=mtml.MTMLError,
    absent=(mtml.MTML_ERROR_DRIVER_NOT_LOADED, mtml.MTML_ERROR_LIBRARY_NOT_FOUND),
    unsupported=(mtml.MTML_ERROR_NOT_SUPPORTED, mtml.MTML_ERROR_FUNCTION_NOT_FOUND),
    hint="see `mthreads-gmi -q` and the kernel log",
)
_get, _find = _MTML.get, _MTML.find
_WAYS = plugin.ways(range(mtml.MTML_TOPOLOGY_INTERNAL, mtml.MTML_TOPOLOGY_SYSTEM + 1))
_MTLINK = "MtLink"


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Return the declaration: core groups and a ladder of sizes, whole cards when several."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the cards MTML lists."""
    with _MTML.open():
        indices = plugin.counted(_get(mtml.mtmlLibraryCountDevice))
        driver_version = _driver_version()
        read = partial(_device, driver_version=driver_version)
        yield from plugin.each_card(read, indices, _between, {_MTLINK: 20})


@plugin.hookimpl
def hetero_enforce(allocation: Allocation, devices: Sequence[Device]) -> Edits:
    """Say the limits of shares, which the vendor's runtime makes instances of.

    The memory limit is in bytes; the weight is relative to those of the card's other tenants, so
    core groups serve as well as any unit.
    """
    environment = {}
    for piece, device in plugin.shares(allocation, devices):
        policy = SGPU / str(device.index) / "policy"
        if policy.exists():
            policy.write_text(_POLICIES[allocation.policy])
        environment["MTHREADS_QOS_MEMORY_LIMIT"] = str(piece.takes[MEMORY])
        environment["MTHREADS_QOS_COMPUTING_POWER_WEIGHT"] = str(piece.takes[CORE])
    return Edits(env=environment)


@plugin.hookimpl
def hetero_observe(device: Device) -> plugin.Usage:
    """Return the memory in use, the utilization of the card, its heat and power."""
    with _MTML.open(), _card(device.index) as card:
        with mtml.mtmlMemoryContext(card) as memory_context:
            used_bytes = _get(mtml.mtmlMemoryGetUsed, memory_context)
        with mtml.mtmlGpuContext(card) as gpu:
            busy_percent = _find(mtml.mtmlGpuGetUtilization, gpu)
            chip_celsius = _find(mtml.mtmlGpuGetTemperature, gpu)
        power_milliwatts = _find(mtml.mtmlDeviceGetPowerUsage, card)  # milliwatts
    return plugin.Usage(
        memory=used_bytes,
        core=None if busy_percent is None else busy_percent / 100,
        temperature=chip_celsius,
        power=None if power_milliwatts is None else power_milliwatts / 1000,
    )


@contextmanager
def _card(index: int) -> Iterator[Any]:
    card = _get(mtml.mtmlLibraryInitDeviceByIndex, index)
    try:
        yield card
    except mtml.MTMLError as error:  # of freeing what belonged to a card that is gone
        raise DriverError(f"error {error.value} ({error})", error.value) from None
    finally:
        with suppress(mtml.MTMLError):
            mtml.mtmlLibraryFreeDevice(card)


def _driver_version() -> str | None:
    system = _find(mtml.mtmlLibraryInitSystem)
    if system is None:
        return None
    try:
        return _find(mtml.mtmlSystemGetDriverVersion, system) or None
    finally:
        _find(mtml.mtmlLibraryFreeSystem, system)


def _device(index: int, *, driver_version: str | None) -> Device:
    with _card(index) as card:
        with mtml.mtmlMemoryContext(card) as memory_context:
            total_bytes = _get(mtml.mtmlMemoryGetTotal, memory_context)
            is_pending = _find(mtml.mtmlMemoryGetRetiredPagesPendingStatus, memory_context)
        pci_info = _find(mtml.mtmlDeviceGetPciInfo, card)
        numa_mask = _find(mtml.mtmlDeviceGetMemoryAffinityWithinNode, card, 1)
        return VENDOR.device(
            uuid=_get(mtml.mtmlDeviceGetUUID, card),
            model=_get(mtml.mtmlDeviceGetName, card),
            index=index,
            memory=total_bytes,
            enforcement=Enforcement.PARTITION if SGPU.exists() else Enforcement.NONE,
            health=None if is_pending is None else "memory repair pending" if is_pending else "ok",
            numa=plugin.first_node(numa_mask[0]) if numa_mask else None,
            pci=plugin.pci_address(pci_info.segment, pci_info.bus, pci_info.device)
            if pci_info
            else None,
            attributes={
                "node": _find(mtml.mtmlDeviceGetGpuPath, card) or None,
                "card": _find(mtml.mtmlDeviceGetPrimaryPath, card) or None,
                "render": _find(mtml.mtmlDeviceGetRenderPath, card) or None,
                "driver": driver_version,
            },
        )


def _between(first_device: Device, second_device: Device) -> str | None:
    with _card(first_device.index) as card, _card(second_device.index) as other_card:
        link_spec = _find(mtml.mtmlDeviceGetMtLinkSpec, card)
        for link_index in range(link_spec.linkNum if link_spec else 0):
            if _get(mtml.mtmlDeviceGetMtLinkState, card, link_index) != mtml.MTML_MTLINK_STATE_UP:
                continue
            remote_device = _get(mtml.mtmlDeviceGetMtLinkRemoteDevice, card, link_index)
            if _get(mtml.mtmlDeviceGetUUID, remote_device) == second_device.uuid:
                return _MTLINK
        return _WAYS.get(_find(mtml.mtmlDeviceGetTopologyLevel, card, other_card))
