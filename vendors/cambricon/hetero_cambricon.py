"""Cambricon MLU: discovered through CNDev, cut into sMLU instances by the driver.

The declarations are our own, after the public header cndev.h (Cambricon/mlu-exporter,
pkg/cndev/include).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from ctypes import c_char_p, c_int, c_uint, create_string_buffer
from pathlib import Path
from typing import Any

from hetero import plugin
from hetero.plugin import (
    CORE,
    MEMORY,
    Allocation,
    Device,
    DeviceAllocation,
    DriverError,
    Edits,
    Enforcement,
    Library,
    MiB,
)

#: sMLU counts in units of 256 MiB (the vendor's plugin runs with --min-dsmlu-unit=256) and in
#: percent, cuts no memory without core, and allows 16 instances on a card.
_SLICED = plugin.Fractional(
    memory=plugin.Step(256 * MiB),
    multi=plugin.MultiDevice.WHOLE,
    together=True,
    cut_at_admission=True,
)
#: What HAMi's users write; its examples name the model in some resources.
_RESOURCE_NAMES = plugin.ResourceNames(
    count="cambricon.com/vmlu",
    memory=("cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu370.smlu.vmemory"),
    memory_unit=256 * MiB,
    core=("cambricon.com/mlu.smlu.vcore", "cambricon.com/mlu370.smlu.vcore"),
    choice=plugin.DeviceChoice(
        include_model="cambricon.com/use-mlutype",
        exclude_model="cambricon.com/nouse-mlutype",
        spelling={"MLU-": ""},  # HAMi's kind of device before the model: MLU-MLU370-X8
        include_uuid="cambricon.com/use-gpuuuid",
        exclude_uuid="cambricon.com/nouse-gpuuuid",
    ),
)
VENDOR = plugin.Vendor(
    api=2,
    name="cambricon",
    title="Cambricon",
    models=(
        plugin.Model(match="MLU370*", granularity=_SLICED, slots=16),
        plugin.Model(match="MLU590*", granularity=_SLICED, slots=16),
        plugin.Model(match="MLU*", granularity=plugin.Whole()),
    ),
    visible=("MLU_VISIBLE_DEVICES",),
    visible_by="index",
    runtime=plugin.ContainerRuntime(variables=("CAMBRICON_VISIBLE_DEVICES",)),
    # After the vendor's device plugin (Cambricon/cambricon-k8s-device-plugin, pkg/mlu); the
    # libraries are in the image.
    container=plugin.ContainerEdits(
        device_nodes=(
            "/dev/cambricon_ctl",
            "/dev/cambricon_gdr",
            "/dev/cambricon_dev{index}",
            "/dev/cambricon_ipcm{index}",
        ),
        files=("/usr/bin/cnmon",),
    ),
    resource_names=(_RESOURCE_NAMES,),
)

_CNDEV = plugin.Driver(
    names=("libcndev.so", "/usr/local/neuware/lib64/libcndev.so"),
    start="cndevInit",
    flags=(0,),
    absent=(1, 12),  # no driver, no devices
    unsupported=(10,),
    in_use=(15,),
    versions=(6, 5),
    other_version=3,
    explain="cndevGetErrorString",
)
_WAYS = plugin.ways(range(1, 7))  # cndevTopologyRelationshipEnum_t

_Count = plugin.struct("cndevCardInfo_t", "i32 version; u32 number")
_Uuid = plugin.struct("cndevUUID_t", "i32 version; char uuid[37]; u64 ncs")
_Memory = plugin.struct(
    "cndevMemoryInfoV2_t", "i64 total used reserved virtual virtual_used; u64 smt rest[16]"
)
_Pcie = plugin.struct(
    "cndevPCIeInfoV2_t",
    "u32 ids[2]; u16 vendors[2]; u32 domain bus device function; u16 module slot; u32 rest[8]",
)
_Version = plugin.struct(
    "cndevVersionInfo_t", "i32 version; u32 mcu_major mcu_minor mcu_build major minor build"
)
_Numa = plugin.struct("cndevNUMANodeId_t", "i32 version node")
_Health = plugin.struct("cndevCardHealthState_t", "i32 version health device driver")
_Busy = plugin.struct("cndevUtilizationInfo_t", "i32 version average core[80]")
_Heat = plugin.struct("cndevTemperatureInfo_t", "i32 version board parts[28] chip rest[6]")
_Power = plugin.struct("cndevDevicePowerInfo_t", "i32 usage cap machine tdp most rest[16]")
_Process = plugin.struct("cndevProcessInfo_t", "i32 version; u32 pid; u64 memory virtual")  # KiB
_NO_SPACE, _USUAL_PROCESSES, _MOST_PROCESSES = 9, 16, 4096
_Way = plugin.struct("cndevTopologyRelationship_t", "i32 version relation")
_Mode = plugin.struct("cndevSMLUMode_t", "i32 version on")
_Quota = plugin.struct("cndevSMluSet_t", "i32 version; u32 core; u64 memory")
_Ids = plugin.struct("cndevSMluProfileIdInfo_t", "i32 version count ids[128]")
_Profile = plugin.struct(
    "cndevSMluProfileInfo_t",
    "i32 version id; char name[100]; u32 total left core[2]; u64 memory[2]",
)
_Instance = plugin.struct(
    "cndevSMluInfo_t",
    "i32 version profile id; char uuid[37]; i32 domain bus device function; "
    "char profile_name[100] name[100] node[100]; u32 core[2]; u64 memory[2]; u32 rest[128]",
)


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Return the declaration: 1 % and 256 MiB on cards that know sMLU, whole cards when several."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the cards; one whose sMLU mode is off is given as a whole."""
    cndev = _CNDEV.open()
    card_count = cndev.get("cndevGetDeviceCount", _Count)

    def between(first_device: Device, second_device: Device) -> str | None:
        handles = _handle(cndev, first_device.index), _handle(cndev, second_device.index)
        relation = cndev.find("cndevTopologyGetRelationship", _Way, *handles)
        return _WAYS.get(relation.relation) if relation else None

    indices = plugin.counted(card_count.number)
    return plugin.each_card(lambda index: _device(cndev, index), indices, between)


@plugin.hookimpl
def hetero_enforce(allocation: Allocation, devices: Sequence[Device], directory: Path) -> Edits:
    """Make an instance for every share, or bring the one it has to its size."""
    device_nodes, parts = [], {}
    for piece, device in plugin.shares(allocation, devices):
        instance = _instance(_CNDEV.open(), device, piece, directory)
        parts[device.uuid] = instance.name.decode()
        device_nodes.append(instance.node.decode())
    return Edits(device_nodes=tuple(device_nodes), parts=parts)


@plugin.hookimpl
def hetero_reconcile(device: Device, parts: AbstractSet[str], directory: Path) -> None:
    """Destroy our instances that no grant holds, and our profiles that nothing is made from."""
    cndev = _CNDEV.open()
    handle = _handle(cndev, device.index)
    for instance in _instances(cndev, handle):
        if plugin.orphaned(instance.name.decode(), parts, directory):
            cndev.destroy("cndevDestroySMluInstanceByInstanceName", handle, instance.name)
    used_profiles = {instance.profile for instance in _instances(cndev, handle)}
    for note in directory.glob(f"{device.uuid}-*"):
        profiles_before = note.read_text().split()
        profiles_of_size = [
            profile.id
            for profile in _profiles(cndev, handle)
            if _note(device, profile) == note.name
        ]
        own_profiles = {
            profile_id for profile_id in profiles_of_size if str(profile_id) not in profiles_before
        }
        for profile_id in own_profiles - used_profiles:
            cndev.call("cndevDestroySMluProfileInfo", profile_id, handle)
        if not own_profiles & used_profiles:
            note.unlink()


@plugin.hookimpl
def hetero_observe(device: Device) -> plugin.Usage:
    """Return the memory in use, in all and of each process, and how busy the cores are on average.

    With the chip's heat and power.
    """
    cndev = _CNDEV.open()
    handle = _handle(cndev, device.index)
    used_bytes = cndev.get("cndevGetMemoryUsageV2", _Memory, handle).used * MiB
    utilization = cndev.find("cndevGetDeviceUtilizationInfo", _Busy, handle)
    heat_info = cndev.find("cndevGetTemperatureInfo", _Heat, handle)
    power_info = cndev.find("cndevGetDevicePowerInfo", _Power, handle)
    return plugin.Usage(
        memory=used_bytes,
        core=utilization.average / 100 if utilization else None,
        processes=_processes(cndev, handle),
        temperature=heat_info.chip if heat_info else None,
        power=power_info.usage if power_info else None,
        power_limit=power_info.cap or None if power_info else None,
    )


def _processes(cndev: Library, handle: int) -> dict[int, int] | None:
    """Return the bytes of each process on a card, None where the driver does not say."""
    process_count = c_uint(_USUAL_PROCESSES)
    try:
        try:
            processes = _listed(cndev, handle, process_count)
        except DriverError as error:
            if error.code != _NO_SPACE:
                raise
            process_count.value += _USUAL_PROCESSES  # the count there is, and what begins meanwhile
            processes = _listed(cndev, handle, process_count)
    except DriverError:
        return None
    if processes is None:
        return None
    return {process.pid: process.memory * 1024 for process in processes[: process_count.value]}


def _listed(cndev: Library, handle: int, process_count: c_uint) -> Any:
    """Return the processes, as many as there is room for; the driver sets the count to theirs."""
    room = min(process_count.value, _MOST_PROCESSES)
    return cndev.find("cndevGetProcessInfo", process_count, _Process * room, handle)


def _handle(cndev: Library, index: int) -> int:
    return int(cndev.get("cndevGetDeviceHandleByIndex", index, c_int))


def _device(cndev: Library, index: int) -> Device:
    handle = _handle(cndev, index)
    uuid = cndev.get("cndevGetUUID", _Uuid, handle)
    model_name = cndev.value("cndevGetCardNameStringByDevId", handle, kind=c_char_p)
    numa_node = cndev.find("cndevGetNUMANodeIdByDevId", _Numa, handle)
    health = cndev.find("cndevGetCardHealthState", _Health, handle)
    mode = cndev.find("cndevGetSMLUMode", _Mode, handle)
    is_sliced = mode and mode.on == 1
    driver = cndev.find("cndevGetVersionInfo", _Version, handle)
    return VENDOR.device(
        uuid=f"MLU-{plugin.text(uuid.uuid)}",
        model=plugin.text(model_name),
        index=index,
        memory=cndev.get("cndevGetMemoryUsageV2", _Memory, handle).total * MiB,
        enforcement=Enforcement.PARTITION if is_sliced else Enforcement.NONE,
        granularity=None if is_sliced else plugin.Whole(),
        health=("ok" if health.health == 1 else "the driver reports a problem") if health else None,
        numa=numa_node.node if numa_node and numa_node.node >= 0 else None,
        pci=plugin.pci_of(cndev.find("cndevGetPCIeInfoV2", _Pcie, handle)),
        attributes={
            "smlu": None if is_sliced else "off",
            "driver": driver and f"{driver.major}.{driver.minor}.{driver.build}",
        },
    )


def _instances(cndev: Library, handle: int) -> list[Any]:
    most_instances = 128
    instances, instance_count = (_Instance * most_instances)(), c_int(most_instances)
    cndev.call("cndevGetAllSMluInstanceInfo", instance_count, instances, handle)
    return list(instances[: instance_count.value])


def _instance(cndev: Library, device: Device, piece: DeviceAllocation, directory: Path) -> Any:
    """Return the instance of this grant's size: the one it names, resized, or a new one."""
    handle = _handle(cndev, device.index)
    core_percent = piece.takes[CORE] * 100 // device.capacity[CORE]
    quota = _Quota(core=core_percent, memory=piece.takes[MEMORY])
    instance_name = plugin.slice_name(piece, directory).encode()
    if any(instance.name == instance_name for instance in _instances(cndev, handle)):
        cndev.call("cndevUpdateSMluInstanceQuotaByInstanceName", handle, instance_name, quota)
    else:
        profile = _profile(cndev, device, quota, directory)
        unused_handle = c_int()  # not needed: instances are addressed by their names
        name_buffer = create_string_buffer(instance_name)
        cndev.call(
            "cndevCreateSMluInstanceByProfileId", unused_handle, profile, handle, name_buffer
        )
    return next(
        instance for instance in _instances(cndev, handle) if instance.name == instance_name
    )


def _profiles(cndev: Library, handle: int) -> list[Any]:
    profile_list = cndev.get("cndevGetSMluProfileIdInfo", _Ids, handle)
    ids = profile_list.ids[: profile_list.count]
    return [
        cndev.get("cndevGetSMluProfileInfo", _Profile, profile_id, handle) for profile_id in ids
    ]


def _note(device: Device, profile: Any) -> str:
    return f"{device.uuid}-{profile.core[0]}-{profile.memory[0]}"


def _profile(cndev: Library, device: Device, quota: Any, directory: Path) -> int:
    """Return the profile of this size, which is reused when it exists.

    Profiles have no name to mark: a note of those there were before tells which are ours.
    """
    handle = _handle(cndev, device.index)
    wanted_profile = _Profile(core=(quota.core,), memory=(quota.memory,))
    profile_name = _note(device, wanted_profile)
    profiles = [
        profile for profile in _profiles(cndev, handle) if _note(device, profile) == profile_name
    ]
    for profile in profiles:
        if profile.left:
            return int(profile.id)
    if not (directory / profile_name).exists():
        plugin.note(directory / profile_name, " ".join(str(profile.id) for profile in profiles))
    return int(cndev.get("cndevCreateSMluProfileInfo", quota, c_int, handle))
