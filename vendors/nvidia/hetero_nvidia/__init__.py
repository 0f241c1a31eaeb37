"""NVIDIA: what its driver says through NVML, and how its cards divide.

`declaration` is pure, `cards` and `mig` read NVML, `mps` speaks to the daemon of that name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pynvml
from attrs import evolve

from hetero import plugin
from hetero.plugin import Device, DriverError
from hetero_nvidia import cards, mig
from hetero_nvidia.declaration import VENDOR
from hetero_nvidia.nvml import NVML, find, get

_PROCESS_LISTS = (
    pynvml.nvmlDeviceGetComputeRunningProcesses,
    pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
)
#: Seconds of samples that are asked for: NVML has one or more a second.
_SAMPLED_S = 1.5
_LEVELS = plugin.ways(range(0, 60, 10))  # nvmlGpuTopologyLevel_t
_NVLINKS = {f"NV{count}": 10 * count for count in range(1, pynvml.NVML_NVLINK_MAX_LINKS + 1)}
#: Xids that say nothing lasting of a card: those for which NVIDIA's catalogue has RESTART_APP or
#: IGNORE as immediate action (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid
#: Catalog"). Most of them any program can cause. 45 comes with another. 109 is a kernel that was
#: not stopped in time, which NVIDIA's device plugin passes over, too (k8s-device-plugin,
#: internal/rm/health.go). 154 says that the recovery action changed, which each look reads.
_PASSING = {
    *(8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 60, 63, 66, 67, 68, 69, 70, 71),
    *(72, 75, 76, 77, 80, *range(82, 87), 88, 89, 92, 93, 94, *range(96, 110), 121),
    *(*range(126, 136), 137, 139, 141, 154),
}
#: Milliseconds between two looks at whether a card is well again, and where none is to be.
_XIDS, _LOOK_MS, _WAIT_MS = pynvml.nvmlEventTypeXidCriticalError, 10_000, 60_000
_EVENTS = evolve(NVML, unsupported=(pynvml.NVML_ERROR_TIMEOUT,))


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Return the declaration: 1 % of core and 1 MiB, and several cards stay shares."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the cards NVML lists, with the links between those that answer."""
    handle_of = cache(lambda index: get(pynvml.nvmlDeviceGetHandleByIndex, index))
    link_ends_of = cache(lambda index: cards.nvlinks(handle_of(index)))

    def read(index: int) -> Device:
        try:
            return cards.device(handle_of(index), index)
        except DriverError as error:
            if error.code not in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
                raise
            return cards.lost(index, health=str(error))

    def between(first_device: Device, second_device: Device) -> str | None:
        first_links, second_links = (
            link_ends_of(first_device.index),
            link_ends_of(second_device.index),
        )
        direct_links = first_links[second_device.pci] if second_device.pci else 0
        if link_count := direct_links or min(first_links[cards.SWITCH], second_links[cards.SWITCH]):
            return f"NV{link_count}"
        handles = handle_of(first_device.index), handle_of(second_device.index)
        return _LEVELS.get(find(pynvml.nvmlDeviceGetTopologyCommonAncestor, *handles))

    with NVML.open():
        indices = plugin.counted(get(pynvml.nvmlDeviceGetCount))
        yield from plugin.each_card(read, indices, between, _NVLINKS)


@plugin.hookimpl
def hetero_enforce(allocation: plugin.Allocation, devices: Sequence[Device]) -> plugin.Edits | None:
    """Return the nodes that let a program open its MIG instances."""
    pieces_and_devices = zip(allocation.pieces, devices, strict=True)
    parts_and_devices = [(piece.part, device) for piece, device in pieces_and_devices if piece.part]
    if not parts_and_devices or not mig.MINORS.exists():
        return None
    return plugin.Edits(device_nodes=tuple(mig.device_nodes(parts_and_devices)))


@plugin.hookimpl
def hetero_serve(device: Device, directory: Path) -> plugin.ServiceDriver:
    """Have MPS share a card: a daemon of its own."""
    from hetero_nvidia.mps import Daemon  # here: most nodes share no card by it

    return Daemon(directory, device.uuid)


@plugin.hookimpl
def hetero_observe(device: Device) -> plugin.Usage:
    """Return what the driver says is used, and the share of its last sample that was busy."""
    with NVML.open():
        handle = get(pynvml.nvmlDeviceGetHandleByUUID, device.uuid)
        utilization = find(pynvml.nvmlDeviceGetUtilizationRates, handle)
        power_milliwatts = find(pynvml.nvmlDeviceGetPowerUsage, handle)
        limit_milliwatts = find(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        return plugin.Usage(
            memory=getattr(cards.memory(handle), "used", None),
            core=utilization.gpu / 100 if utilization else None,
            processes=_memory_of_processes(handle),
            busy=None if utilization is None else _busy_processes(handle),
            temperature=find(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            power=None if power_milliwatts is None else power_milliwatts / 1000,
            power_limit=None if limit_milliwatts is None else limit_milliwatts / 1000,
        )


@plugin.hookimpl
def hetero_measure(device: Device) -> int | None:
    """Return what NVML counts for this process when it has a context, and a byte in it."""
    from hetero_nvidia.context import made_on  # here: it is asked once for a model

    with NVML.open(), made_on(device.uuid):
        handle = get(pynvml.nvmlDeviceGetHandleByUUID, device.uuid)
        return (_memory_of_processes(handle) or {}).get(os.getpid())


@plugin.hookimpl
def hetero_watch(faults: Mapping[str, str]) -> dict[str, str | None]:
    """Wait for a critical Xid, or until the driver wants nothing more done about a noted one.

    The driver needs a moment to say what it wants done, so what is noted is not looked at first.
    Events of programs put no look off: one that faults again and again would keep a card ill.
    """
    _, event_set = _events()
    pause_s = (_LOOK_MS if faults else _WAIT_MS) / 1000
    due_s = time.monotonic() + pause_s
    while True:
        left_ms = max(0, round((due_s - time.monotonic()) * 1000))
        event = _EVENTS.find(pynvml.nvmlEventSetWait_v2, event_set, left_ms)
        if event and event.eventData not in _PASSING:
            uuid = get(pynvml.nvmlDeviceGetUUID, event.device)
            return {uuid: f"Xid {event.eventData}: see the kernel log, reset the card"}
        if time.monotonic() >= due_s:
            if well_again := [uuid for uuid in faults if _recovered(uuid)]:
                return dict.fromkeys(well_again)
            due_s = time.monotonic() + pause_s


@cache
def _events() -> tuple[ExitStack, Any]:
    """Return the set of all cards' events, with what keeps NVML open. One in a process."""
    opened = ExitStack()
    opened.enter_context(NVML.open())
    event_set = get(pynvml.nvmlEventSetCreate)
    for index in plugin.counted(get(pynvml.nvmlDeviceGetCount)):
        with suppress(DriverError):  # one that cannot tell, or is lost, which a look finds
            handle = get(pynvml.nvmlDeviceGetHandleByIndex, index)
            get(pynvml.nvmlDeviceRegisterEvents, handle, _XIDS, event_set)
    return opened, event_set


def _recovered(uuid: str) -> bool:
    """Return whether the driver says that nothing needs to be done about a card."""
    with suppress(DriverError):  # it is lost, or another vendor's
        handle = get(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        return cards.recovery(handle) == 0
    return False


def _memory_of_processes(handle: Any) -> dict[int, int] | None:
    """Return device memory in bytes by pid, None if NVML does not report it for every process."""
    process_lists = [find(processes, handle) for processes in _PROCESS_LISTS]
    bytes_by_pid = {  # a process may be in more than one list
        process.pid: process.usedGpuMemory
        for process_list in process_lists
        for process in process_list or ()
    }
    return None if process_lists[0] is None or None in bytes_by_pid.values() else bytes_by_pid


def _busy_processes(handle: Any) -> dict[int, float]:
    """Return the part of the card's time in each process's newest sample, of a second or less."""
    since_us = int((time.time() - _SAMPLED_S) * 1e6)
    utilization_samples = find(pynvml.nvmlDeviceGetProcessUtilization, handle, since_us) or ()
    return {
        sample.pid: sample.smUtil / 100
        for sample in sorted(utilization_samples, key=lambda sample: sample.timeStamp)
    }
