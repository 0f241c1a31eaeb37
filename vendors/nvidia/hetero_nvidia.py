"""NVIDIA: what its driver says through NVML, and how its cards divide.

NVIDIA's own binding opens libnvidia-ml.so.1 in nvmlInit. What NVML will not say of a card is None.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pynvml
from attrs import evolve
from pynvml import NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_NOT_FOUND, NVML_ERROR_NOT_SUPPORTED

from hetero import plugin
from hetero.plugin import CORE, MEMORY, Device, DriverError, Enforcement, MiB, Policy, Template

#: What users of NVIDIA's own plugin write for a MIG instance; below it HAMi's and Volcano's names.
_INSTANCE = plugin.ResourceNames(
    count="nvidia.com/mig-{shape}",
    include_model="nvidia.com/use-gputype",
    exclude_model="nvidia.com/nouse-gputype",
    include_uuid="nvidia.com/use-gpuuuid",
    exclude_uuid="nvidia.com/nouse-gpuuuid",
    numa="nvidia.com/numa-bind",
    policy="GPU_CORE_UTILIZATION_POLICY",
    policies={"force": Policy.FIXED, "disable": None},
    mode="nvidia.com/vgpu-mode",
    modes={
        "hami-core": plugin.Selector(exclude=("partition", "service")),
        "mig": plugin.Selector(include=("partition",)),
        "mps": plugin.Selector(include=("service",)),
    },
)
_HAMI = evolve(
    _INSTANCE,
    count="nvidia.com/gpu",
    memory=("nvidia.com/gpumem",),
    memory_percent="nvidia.com/gpumem-percentage",
    core=("nvidia.com/gpucores",),
    priority="nvidia.com/priority",
)
_VOLCANO = evolve(
    _INSTANCE,
    count="volcano.sh/vgpu-number",
    memory=("volcano.sh/vgpu-memory",),
    memory_percent="volcano.sh/vgpu-memory-percentage",
    core=("volcano.sh/vgpu-cores",),
)
#: The profiles of cards in MIG mode, from the A30 to the B200, as NVIDIA's guide to MIG lists them.
_PROFILES = """1g.5gb 1g.6gb 1g.10gb 1g.12gb 1g.18gb 1g.20gb 1g.23gb 1g.24gb 1g.35gb 1g.45gb 2g.10gb
2g.12gb 2g.20gb 2g.24gb 2g.35gb 2g.45gb 2g.48gb 3g.20gb 3g.40gb 3g.47gb 3g.48gb 3g.71gb 3g.90gb
4g.20gb 4g.24gb 4g.40gb 4g.47gb 4g.48gb 4g.71gb 4g.90gb 4g.96gb 7g.40gb 7g.79gb 7g.80gb 7g.94gb
7g.96gb 7g.141gb 7g.180gb"""
VENDOR = plugin.Vendor(
    name="nvidia",
    title="NVIDIA",
    models=(plugin.Model(match="*", granularity=plugin.Fractional(), core=100, slots=10),),
    visible=("CUDA_VISIBLE_DEVICES",),
    runtime=("NVIDIA_VISIBLE_DEVICES",),
    runtime_none=("void", "none"),
    runtime_mounts="/var/run/nvidia-container-devices",
    # Of NVIDIA's container toolkit, to devices that are of no card alone: who manages MIG, the ways
    # to other nodes' memory, and the switches between all cards.
    runtime_options=(
        *("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"),
        *("NVIDIA_IMEX_CHANNELS", "NVIDIA_NVSWITCH"),
    ),
    limiter="cuda",
    # What NVIDIA's container library mounts for compute and utility, as far as the driver needs it.
    cdi="nvidia.com/gpu",
    device_nodes=tuple(f"/dev/nvidia{each}" for each in ("{minor}", "ctl", "-uvm", "-uvm-tools")),
    files=(
        *("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"),
        *("libnvidia-nvvm.so.4", "libnvidia-gpucomp.so.{driver}", "/usr/bin/nvidia-smi"),
    ),
    resource_names=(_HAMI, _VOLCANO, *_INSTANCE.each_shape(*_PROFILES.split())),
    monitors=("nv-hostengine", "dcgm-exporter"),
)
_NVML = plugin.Binding(
    library="libnvidia-ml.so.1",
    start=pynvml.nvmlInit,
    stop=pynvml.nvmlShutdown,
    error=pynvml.NVMLError,
    absent=(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
    unsupported=(NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_NOT_FOUND),
    hint="see `nvidia-smi -q` and the kernel log",
)
#: https://docs.nvidia.com/deploy/mps, appendix "Tools and Interface Reference". Newer drivers serve
#: several users at a time, if told so.
_MPS = plugin.ControlDaemon(
    program="nvidia-cuda-mps-control",
    processes="nvidia-cuda-mps",
    start=("-d",),
    several_users="-multiuser-server",
    pipe="CUDA_MPS_PIPE_DIRECTORY",
    log="CUDA_MPS_LOG_DIRECTORY",
    visible="CUDA_VISIBLE_DEVICES",
    sm="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    servers="get_server_list",
    clients="get_client_list {server}",
    status="get_server_status {server}",
    failed="FAULT",
    limits=("set_default_device_pinned_mem_limit 0 {mebibytes}M",),
    server_limits=("set_device_pinned_mem_limit {server} 0 {mebibytes}M",),
    end="terminate_client {server} {client}",
    stop="quit -t 1",
)
_get, _find = _NVML.get, _NVML.find
_wait = evolve(_NVML, unsupported=(pynvml.NVML_ERROR_TIMEOUT,)).find
_link = evolve(_NVML, unsupported=(*_NVML.unsupported, pynvml.NVML_ERROR_INVALID_ARGUMENT)).find
_LISTS = [f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute")]
_LEVELS = plugin.ways(range(0, 60, 10))  # nvmlGpuTopologyLevel_t
_NVLINKS = {f"NV{count}": 10 * count for count in range(1, pynvml.NVML_NVLINK_MAX_LINKS + 1)}
MINORS = Path("/proc/driver/nvidia-caps/mig-minors")  # of the nodes of what opens MIG instances
#: Xids of what a program did, not of its card: those that NVIDIA's own device plugin leaves out
#: (k8s-device-plugin, internal/rm/health.go).
_OF_PROGRAMS = (13, 31, 43, 45, 68, 109)
_XIDS, _WAIT_MS = pynvml.nvmlEventTypeXidCriticalError, 60_000
_HOT = plugin.Lingering(60.0)  # it comes and goes within seconds
_SWITCH = "switch"  # the far end of an NVLink that leads to every card on the same switches


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Return the declaration: 1 % of core and 1 MiB, and several cards stay shares."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the cards NVML lists, with the links between those that answer."""
    card = cache(lambda index: _get(pynvml.nvmlDeviceGetHandleByIndex, index))
    ends = cache(lambda index: _nvlinks(card(index)))

    def read(index: int) -> Device:
        try:
            return _device(card(index), index)
        except DriverError as error:
            if error.code not in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED):
                raise
            return _lost(index, health=str(error))

    def between(here: Device, there: Device) -> str | None:
        one, other = ends(here.index), ends(there.index)
        if count := one[there.pci] or min(one[_SWITCH], other[_SWITCH]):
            return f"NV{count}"
        pair = card(here.index), card(there.index)
        return _LEVELS.get(_find(pynvml.nvmlDeviceGetTopologyCommonAncestor, *pair))

    with _NVML.open():
        indices = plugin.counted(_get(pynvml.nvmlDeviceGetCount))
        yield from plugin.each_card(read, indices, between, _NVLINKS)


@plugin.hookimpl
def hetero_enforce(allocation: plugin.Allocation, devices: Sequence[Device]) -> plugin.Edits | None:
    """Return the nodes that let a program open its MIG instances."""
    given = [(p.part, d) for p, d in zip(allocation.pieces, devices, strict=True) if p.part]
    if not given or not MINORS.exists():
        return None
    minors, nodes = dict(line.split() for line in MINORS.read_text().splitlines()), list[str]()
    with _NVML.open():
        for part, card in given:
            at = _get(pynvml.nvmlDeviceGetHandleByUUID, part)
            gi = f"gpu{card.attributes['minor']}/gi{_get(pynvml.nvmlDeviceGetGpuInstanceId, at)}"
            ci = f"{gi}/ci{_get(pynvml.nvmlDeviceGetComputeInstanceId, at)}"
            nodes += [f"/dev/nvidia-caps/nvidia-cap{minors[f'{each}/access']}" for each in (gi, ci)]
    return plugin.Edits(device_nodes=tuple(nodes))


@plugin.hookimpl
def hetero_serve(
    device: Device, do: plugin.Serve, directory: Path, memory: int, process: int
) -> plugin.Service:
    """Have MPS share a card: a control daemon of its own."""
    return _MPS.serve(device, do, directory, memory=memory, process=process)


@plugin.hookimpl
def hetero_observe(device: Device) -> plugin.Usage:
    """Return what the driver says is used, and the share of its last sample that was busy."""
    with _NVML.open():
        handle = _get(pynvml.nvmlDeviceGetHandleByUUID, device.uuid)
        busy = _find(pynvml.nvmlDeviceGetUtilizationRates, handle)
        lists = [_find(getattr(pynvml, each), handle) for each in _LISTS]  # a process may be in two
        known = {p.pid: p.usedGpuMemory for each in lists for p in each or ()}
        return plugin.Usage(
            memory=_memory(handle).used,
            core=busy.gpu / 100 if busy else None,
            processes=None if lists[0] is None or None in known.values() else known,
            busy=None if busy is None else _busy(handle),
            temperature=_find(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            power=(mw := _find(pynvml.nvmlDeviceGetPowerUsage, handle)) and mw / 1000,
        )


@plugin.hookimpl
def hetero_watch() -> dict[str, str]:
    """Wait for a critical Xid. Nothing says when its card is well again: until who asks ends."""
    return next(_xids())


@cache
def _xids() -> Iterator[dict[str, str]]:
    """Yield which cards had a critical Xid, after each of them. One in a process: it holds NVML."""
    with _NVML.open():
        events, told = _get(pynvml.nvmlEventSetCreate), dict[str, str]()
        for index in plugin.counted(_get(pynvml.nvmlDeviceGetCount)):
            with suppress(DriverError):  # one that cannot tell, or is lost, which a look finds
                card = _get(pynvml.nvmlDeviceGetHandleByIndex, index)
                _get(pynvml.nvmlDeviceRegisterEvents, card, _XIDS, events)
        while True:
            event = _wait(pynvml.nvmlEventSetWait_v2, events, _WAIT_MS)
            if event and event.eventData not in _OF_PROGRAMS:
                card = _get(pynvml.nvmlDeviceGetUUID, event.device)
                told = {**told, card: f"Xid {event.eventData}: see the kernel log, reset the card"}
                yield told


def _busy(handle: Any) -> dict[int, float]:
    """Return the part of the card's time in each process's newest sample, of a second or less."""
    said = _find(pynvml.nvmlDeviceGetProcessUtilization, handle, int((time.time() - 1.5) * 1e6))
    return {one.pid: one.smUtil / 100 for one in sorted(said or (), key=lambda one: one.timeStamp)}


def _device(handle: Any, index: int) -> Device:
    mig = (_find(pynvml.nvmlDeviceGetMigMode, handle) or (0,))[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    menu = _instances(handle) if mig else ()  # such a card counts its core in slices
    compute = _find(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    minor = _find(pynvml.nvmlDeviceGetMinorNumber, handle)
    # Not `nvmlDeviceGetNumaNodeId`: that is the card's own memory as a node.
    nodes = _find(pynvml.nvmlDeviceGetMemoryAffinity, handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
    return VENDOR.device(
        uuid=_get(pynvml.nvmlDeviceGetUUID, handle),
        model=_get(pynvml.nvmlDeviceGetName, handle),
        index=index,
        memory=_memory(handle).total,
        enforcement=Enforcement.PARTITION if mig else Enforcement.PRELOAD,
        granularity=plugin.Templated(menu, whole=False) if mig else None,
        capacity={CORE: _get(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)} if mig else None,
        health="MIG is on without an instance" if mig and not menu else _health(handle),
        numa=plugin.first_node(nodes[0]) if nodes else None,
        pci=plugin.pci_of(_find(pynvml.nvmlDeviceGetPciInfo, handle)),
        attributes={
            "driver": _get(pynvml.nvmlSystemGetDriverVersion),
            "reserved": getattr(_memory(handle), "reserved", None) or None,
            "minor": index if minor is None else minor,
            "compute-capability": f"{compute[0]}.{compute[1]}" if compute else None,
        },
    )


def _lost(index: int, *, health: str) -> Device:
    """Return a card that fell off the bus, by what NVML still knows; it is never given out."""
    try:
        handle = _get(pynvml.nvmlDeviceGetHandleByIndex, index)
        uuid, model = _get(pynvml.nvmlDeviceGetUUID, handle), _get(pynvml.nvmlDeviceGetName, handle)
    except DriverError:
        uuid, model = f"lost-{index}", "unknown"
    return VENDOR.device(
        uuid=uuid, model=model, index=index, memory=0, enforcement=Enforcement.NONE, health=health
    )


def _memory(handle: Any) -> Any:
    """Version 2 keeps the driver's own reserve out of `used`; drivers before r510 lack it."""
    newer = _find(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return newer or _get(pynvml.nvmlDeviceGetMemoryInfo, handle)


def _health(handle: Any) -> str | None:
    """Return what NVML's error records say: "ok", what is wrong, or None where it keeps none."""
    rows = _find(pynvml.nvmlDeviceGetRemappedRows, handle)  # Ampere and later
    pages = _find(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)  # before Ampere
    uncorrected = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    errors = _find(pynvml.nvmlDeviceGetTotalEccErrors, handle, *uncorrected)
    if rows and rows[3]:
        return "row remapping failed: replace the card"
    if (rows and rows[2]) or pages:
        return "memory repair pending: reset the card"
    reasons = _find(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    hot = bool(reasons & pynvml.nvmlClocksThrottleReasonHwThermalSlowdown)
    if _HOT.holds(_get(pynvml.nvmlDeviceGetUUID, handle), seen=hot):
        return "too hot: the hardware slows it down"
    fine = None if rows is pages is errors is None else "ok"
    return f"{errors} uncorrected memory errors: reset the card" if errors else fine


def _instances(handle: Any) -> tuple[Template, ...]:
    """One template per GPU instance: the largest of its compute instances, who share memory."""
    largest: dict[int, Template] = {}
    get = partial(_find, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle)  # indices have gaps
    for part in filter(None, map(get, range(_get(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)))):
        shape = _get(pynvml.nvmlDeviceGetAttributes, part)
        name = _get(pynvml.nvmlDeviceGetName, part).rpartition("MIG ")[2]  # "… MIG 1g.18gb"
        size = {MEMORY: shape.memorySizeMB * MiB, CORE: shape.computeInstanceSliceCount}
        gi = _get(pynvml.nvmlDeviceGetGpuInstanceId, part)
        if gi not in largest or largest[gi].takes[CORE] < size[CORE]:
            largest[gi] = Template(name=name, takes=size, part=_get(pynvml.nvmlDeviceGetUUID, part))
    return tuple(largest.values())


def _nvlinks(handle: Any) -> Counter[str | None]:
    """Return how many of the card's active NVLinks end at each PCI address, or at a switch."""
    ends: Counter[str | None] = Counter()
    links = range(pynvml.NVML_NVLINK_MAX_LINKS)  # a card's last one may come sooner
    for link in filter(partial(_link, pynvml.nvmlDeviceGetNvLinkState, handle), links):
        kind = _find(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        remote = plugin.pci_of(_find(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link))
        ends[_SWITCH if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else remote] += 1
    ends.pop(None, None)  # a link whose other end NVML does not name
    return ends
