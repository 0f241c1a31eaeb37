"""NVIDIA: what its driver says through NVML, and how its cards divide.

`declaration` is pure, `cards` and `mig` read NVML, `mps` speaks to the daemon of that name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
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
_SAMPLED = 1.5
_LEVELS = plugin.ways(range(0, 60, 10))  # nvmlGpuTopologyLevel_t
_NVLINKS = {f"NV{count}": 10 * count for count in range(1, pynvml.NVML_NVLINK_MAX_LINKS + 1)}
#: Xids of what a program did, not of its card: those that NVIDIA's own device plugin leaves out
#: (k8s-device-plugin, internal/rm/health.go).
_OF_PROGRAMS = (13, 31, 43, 45, 68, 109)
_XIDS, _WAIT_MS = pynvml.nvmlEventTypeXidCriticalError, 60_000
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
        power_milliwatts = find(pynvml.nvmlDeviceGetPowerUsage, handle)  # milliwatts
        return plugin.Usage(
            memory=cards.memory(handle).used,
            core=utilization.gpu / 100 if utilization else None,
            processes=_memory_of_processes(handle),
            busy=None if utilization is None else _busy_processes(handle),
            temperature=find(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            power=None if power_milliwatts is None else power_milliwatts / 1000,
        )


@plugin.hookimpl
def hetero_watch() -> dict[str, str]:
    """Wait for a critical Xid. Nothing says when its card is well again: until who asks ends."""
    return next(_xids())


@cache
def _xids() -> Iterator[dict[str, str]]:
    """Yield which cards had a critical Xid, after each of them. One in a process: it holds NVML."""
    with NVML.open():
        event_set, xid_by_uuid = get(pynvml.nvmlEventSetCreate), dict[str, str]()
        for index in plugin.counted(get(pynvml.nvmlDeviceGetCount)):
            with suppress(DriverError):  # one that cannot tell, or is lost, which a look finds
                uuid = get(pynvml.nvmlDeviceGetHandleByIndex, index)
                get(pynvml.nvmlDeviceRegisterEvents, uuid, _XIDS, event_set)
        while True:
            event = _EVENTS.find(pynvml.nvmlEventSetWait_v2, event_set, _WAIT_MS)
            if event and event.eventData not in _OF_PROGRAMS:
                uuid = get(pynvml.nvmlDeviceGetUUID, event.device)
                xid_by_uuid = {
                    **xid_by_uuid,
                    uuid: f"Xid {event.eventData}: see the kernel log, reset the card",
                }
                yield xid_by_uuid


def _memory_of_processes(handle: Any) -> dict[int, int] | None:
    """Return the bytes that each process has; None where NVML does not say that of each."""
    process_lists = [find(processes, handle) for processes in _PROCESS_LISTS]
    bytes_by_pid = {
        process.pid: process.usedGpuMemory
        for process_list in process_lists
        for process in process_list or ()
    }  # in two, maybe
    return None if process_lists[0] is None or None in bytes_by_pid.values() else bytes_by_pid


def _busy_processes(handle: Any) -> dict[int, float]:
    """Return the part of the card's time in each process's newest sample, of a second or less."""
    since_us = int((time.time() - _SAMPLED) * 1e6)
    utilization_samples = find(pynvml.nvmlDeviceGetProcessUtilization, handle, since_us) or ()
    return {
        sample.pid: sample.smUtil / 100
        for sample in sorted(utilization_samples, key=lambda sample: sample.timeStamp)
    }
