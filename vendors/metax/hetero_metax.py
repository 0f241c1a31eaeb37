"""MetaX: discovered through mxsml, cut into sGPUs by the driver where that mode is on.

The declarations are our own, after what the public header MxSml.h says of its functions
(gpustack/gpustack-operator, binding/mxsml). A function returns 0 or a positive code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from ctypes import c_char, c_int, c_uint, create_string_buffer
from pathlib import Path
from typing import Any

from attrs import evolve

from hetero import plugin
from hetero.plugin import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Device,
    DeviceAllocation,
    DriverError,
    Library,
    MiB,
    Policy,
)

#: What HAMi's users write: whole cards, and slices whose memory is in GiB.
_CHOICE = plugin.DeviceChoice(
    include_uuid="metax-tech.com/use-gpuuuid", exclude_uuid="metax-tech.com/nouse-gpuuuid"
)
_WHOLE = plugin.ResourceNames(
    count="metax-tech.com/gpu", devices=plugin.MeantDevices(whole=True), choice=_CHOICE
)
_SHARES = plugin.ResourceNames(
    count="metax-tech.com/sgpu",
    memory=("metax-tech.com/vmemory",),
    memory_unit=1024 * MiB,
    core=("metax-tech.com/vcore",),
    # Cards whose sGPU mode is on.
    devices=plugin.MeantDevices(enforcements=plugin.Selector(include=("partition",))),
    choice=evolve(_CHOICE, links="metax-tech.com/sgpu-topology-aware"),
    policies=plugin.Policies(
        name="metax-tech.com/sgpu-qos-policy",
        values={
            "best-effort": Policy.OFF,
            "fixed-share": Policy.FIXED,
            "burst-share": Policy.ELASTIC,
        },
    ),
    qos_classes=plugin.QosClasses(
        name="metax-tech.com/sgpu-app-class",
        compatible={"": ("",), "online": ("online", "offline"), "offline": ("offline",)},
        first=("online",),
    ),
)
VENDOR = plugin.Vendor(
    api=2,
    name="metax",
    title="MetaX",
    models=(plugin.Model(match="*", granularity=plugin.Whole()),),
    visible=("MACA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    visible_by="index",
    runtime=plugin.ContainerRuntime(options=("METAX_VISIBLE_DEVICES",)),
    # After gpustack/runtime (deployer/cdi/metax.py); images bring the libraries.
    container=plugin.ContainerEdits(
        device_nodes=("/dev/mxcd", "/dev/mxnd", "/dev/mxgd", "{card}", "{render}")
    ),
    resource_names=(_WHOLE, _SHARES),
)
#: What a card whose sGPU mode is on divides into: 1 % and 128 MiB, at most 16.
_SLICED = plugin.Fractional(
    memory=plugin.Step(128 * MiB),
    multi=plugin.MultiDevice.WHOLE,
    together=True,
    cut_at_admission=True,
)
_MOST_SLICES = 16

_MXSML = plugin.Driver(
    names=("libmxsml.so", "/opt/mxdriver/lib/libmxsml.so", "/opt/maca/lib/libmxsml.so"),
    start="mxSmlInit",
    absent=(2,),  # no device
    unsupported=(3,),  # which is also the answer about a slice that is not there
    in_use=(5,),  # a write error of the driver's control file
    explain="mxSmlGetErrorString",
)
_XCORE, _HOTSPOT = 4, 0
_DRIVER = 1  # of mxSmlVersionUnit_t
_MOST_WAYS = 8  # in which a board is fed; the public header knows of three
_PHYSICAL = 1  # a card whose virtual functions are given out in its place
_WAYS = {**plugin.ways((0, 1, 2, 3, 4, 6)), 5: "MetaXLink"}
#: How slices of one card share it: all alike.
_CLASSES = {Policy.OFF: 0, Policy.FIXED: 1, Policy.ELASTIC: 2}

_Info = plugin.struct(
    "mxSmlDeviceInfo_t",
    "u32 id type; char pci[32]; u32 gpu node; char uuid[96]; u32 brand mode; char name[32]",
)
_Memory = plugin.struct("mxSmlMemoryInfo_t", "long visible visible_used total used xtt xtt_used")
_Way = plugin.struct("mxSmlBoardWayElectricInfo_t", "u32 voltage current power")
_Reason = plugin.struct("mxSmlDeviceUnavailableReasonInfo_t", "i32 code; char text[64]")
_Slice = plugin.struct(
    "mxSmlSgpuInfo_t", "u32 card id memory priority core minor device_priority; char uuid[96]"
)


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Return the declaration: whole cards; discovery says which of them are sliced."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the cards; one whose sGPU mode is on comes out divisible."""
    mxsml = _MXSML.open()
    card_count = mxsml.value("mxSmlGetDeviceCount", kind=c_uint)

    def between(first_device: Device, second_device: Device) -> str | None:
        return _WAYS.get(
            mxsml.find("mxSmlGetDeviceTopology", first_device.index, second_device.index, c_uint)
        )

    def read(index: int) -> Device:
        return _device(mxsml, index)

    return plugin.each_card(read, plugin.counted(card_count), between, {"MetaXLink": 20})


@plugin.hookimpl
def hetero_enforce(
    allocation: Allocation, devices: Sequence[Device], directory: Path
) -> plugin.Edits:
    """Make a slice on every sliced card, or bring the one it has to its size."""
    slices, parts = [], {}
    for piece, device in zip(allocation.pieces, devices, strict=True):
        if device.capacity[SLOTS] == 1:
            continue
        mxsml = _MXSML.open()
        sgpu = _slice(mxsml, device, piece, allocation.policy, directory)
        parts[device.uuid] = alias = _alias(mxsml, device.index, sgpu.id)
        slices.append(
            f"sgpu={device.pci}#{sgpu.id};compute={sgpu.core};vram={sgpu.memory};alias={alias}"
        )
    return plugin.Edits(env={"METAX_SGPUS": ",".join(slices)} if slices else {}, parts=parts)


@plugin.hookimpl
def hetero_reconcile(device: Device, parts: AbstractSet[str], directory: Path) -> None:
    """Remove our slices that no grant holds, and one that was not yet named when we were killed."""
    if device.capacity[SLOTS] == 1:
        return
    mxsml, note = _MXSML.open(), directory / device.uuid
    ids_before = set(note.read_text().split()) if note.exists() else None
    for slice_id in _slices(mxsml, device.index):
        alias = _alias(mxsml, device.index, slice_id)
        is_unnamed = not alias and ids_before is not None and str(slice_id) not in ids_before
        if plugin.orphaned(alias, parts, directory) or is_unnamed:
            mxsml.destroy("mxSmlRemoveSgpu", device.index, slice_id)
    note.unlink(missing_ok=True)


@plugin.hookimpl
def hetero_observe(device: Device) -> plugin.Usage:
    """Return the memory in use, the utilization of the compute cores, heat and power."""
    mxsml = _MXSML.open()
    used_bytes = mxsml.get("mxSmlGetMemoryInfo", device.index, _Memory).used * 1024
    busy_percent = mxsml.find("mxSmlGetDeviceIpUsage", device.index, _XCORE, c_int)
    centidegrees = mxsml.find("mxSmlGetTemperatureInfo", device.index, _HOTSPOT, c_int)  # 1/100
    power_inputs = mxsml.find(
        "mxSmlGetBoardPowerInfo", device.index, c_uint(_MOST_WAYS), _Way * _MOST_WAYS
    )
    limit_milliwatts = mxsml.find("mxSmlGetBoardPowerLimit", device.index, c_uint)
    return plugin.Usage(
        memory=used_bytes,
        core=None if busy_percent is None else busy_percent / 100,
        temperature=None if centidegrees is None else centidegrees // 100,
        power=None
        if power_inputs is None
        else sum(power_input.power for power_input in power_inputs) / 1000,
        power_limit=None if limit_milliwatts is None else limit_milliwatts / 1000,
    )


def _device(mxsml: Library, index: int) -> Device:
    info = mxsml.get("mxSmlGetDeviceInfo", index, _Info)
    memory_info = mxsml.get("mxSmlGetMemoryInfo", index, _Memory)
    nodes = mxsml.find("mxSmlGetNodeAffinity", index, 1, c_uint)
    pci_address = plugin.text(info.pci)
    is_sliced = mxsml.find("mxSmlGetSgpuToggle", index, c_uint) == 1
    refusal = "its virtual functions are given out instead"
    return VENDOR.device(
        uuid=plugin.text(info.uuid),
        model=plugin.text(info.name),
        index=index,
        memory=memory_info.total * 1024,
        enforcement=plugin.Enforcement.PARTITION if is_sliced else plugin.Enforcement.NONE,
        granularity=_SLICED if is_sliced else None,
        capacity={SLOTS: _MOST_SLICES, **plugin.POLICY_SLOTS} if is_sliced else None,
        health=refusal if info.mode == _PHYSICAL else _health(mxsml, index),
        numa=plugin.first_node(nodes or 0),
        pci=pci_address,
        attributes={
            **plugin.drm_of(pci_address),
            "driver": plugin.text(
                mxsml.find("mxSmlGetDeviceVersion", index, _DRIVER, c_char * 64, c_uint(64))
            ),
        },
    )


def _health(mxsml: Library, index: int) -> str | None:
    state_code = mxsml.find("mxSmlGetDeviceState", index, c_int)
    if state_code != 0:
        return "ok" if state_code else None
    reason = mxsml.find("mxSmlGetDeviceUnavailableReason", index, _Reason)
    return (plugin.text(reason.text) if reason else None) or "not available"


# --- sGPU -----------------------------------------------------------------------------------


def _slices(mxsml: Library, card_index: int) -> list[int]:
    return [
        slice_number
        for slice_number in range(_MOST_SLICES)
        if mxsml.find("mxSmlGetSgpuInfo", card_index, slice_number, _Slice)
    ]


def _alias(mxsml: Library, card_index: int, slice_id: int) -> str:
    return (
        plugin.text(mxsml.get("mxSmlGetSgpuAlias", card_index, slice_id, c_char * 32, c_uint(32)))
        or ""
    )


def _slice(
    mxsml: Library, device: Device, piece: DeviceAllocation, policy: Policy, directory: Path
) -> Any:
    """Return the slice of this grant's size: the one it names, resized, or a new one."""
    memory_mib = piece.takes[MEMORY] // MiB // 128 * 128  # all of a card may be no multiple
    core_percent = piece.takes[CORE]
    slices = _slices(mxsml, device.index)
    alias = plugin.slice_name(piece, directory)
    slice_id = next(
        (number for number in slices if _alias(mxsml, device.index, number) == alias), None
    )
    if slice_id is not None:
        mxsml.call("mxSmlSetSgpuVramQuota", device.index, slice_id, memory_mib)
        mxsml.call("mxSmlSetSgpuComputeQuota", device.index, slice_id, core_percent)
    else:
        _share_as(mxsml, device, policy, is_alone=not slices)
        # A slice gets its name only once it exists: until then the note tells it from others.
        note = directory / device.uuid
        plugin.note(note, " ".join(map(str, slices)))
        slice_id = mxsml.get("mxSmlCreateSgpu", device.index, memory_mib, core_percent, c_uint)
        alias_buffer = create_string_buffer(alias.encode())
        mxsml.call("mxSmlSetSgpuAlias", device.index, slice_id, alias_buffer)
        note.unlink()
    return mxsml.get("mxSmlGetSgpuInfo", device.index, slice_id, _Slice)


def _share_as(mxsml: Library, device: Device, policy: Policy, *, is_alone: bool) -> None:
    """Have the card's slices share it as the policy says; all of a card's do it alike."""
    wanted_class = _CLASSES[policy]
    if mxsml.get("mxSmlGetDeviceSchedClass", device.index, c_uint) == wanted_class:
        return
    if not is_alone:
        raise DriverError(
            f"card {device.index}: its slices share it by another policy than {policy.value}, and "
            "all of a card must share it alike: choose another card or that policy"
        )
    mxsml.call("mxSmlSetDeviceSchedClass", device.index, wanted_class)
