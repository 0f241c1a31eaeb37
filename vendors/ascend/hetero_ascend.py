"""Huawei Ascend: discovered through DCMI, cut into vNPUs by the driver's own templates.

The declarations are our own, after the public header dcmi_interface_api.h (Ascend/mind-cluster,
component/ascend-common/devmanager/dcmi). Every function returns 0 or a negative code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from ctypes import c_char, c_int, c_uint, sizeof
from pathlib import Path
from typing import Any

from hetero import plugin
from hetero.plugin import CORE, Allocation, Device, DriverError, Edits, Library, MiB

#: Model, AI cores and AI CPUs, then the templates as name MiB/cores/CPUs: as MindCluster and HAMi's
#: 2.10 chart list them. A request gets the smallest that has its memory and its cores.
_TABLE = """
910A    30    vir02 2184/2, vir04 4369/4, vir08 8738/8, vir16 17476/16
910B2   24/6  vir03_1c_8g 8192/3/1, vir06_1c_16g 16384/6/1, vir12_3c_32g 32768/12/3
910B3   20/7  vir05_1c_16g 16384/5/1, vir10_3c_32g 32768/10/3
910B4-1 20/7  vir05_1c_16g 16384/5/1, vir10_3c_32g 32768/10/3
910B4   20/7  vir05_1c_8g 8192/5/1, vir10_3c_16g 16384/10/3
910C    20/7  vir05_1c_16g 16384/5/1, vir10_3c_32g 32768/10/3
310P3   8/7   vir01 3072/1/1, vir02 6144/2/2, vir04 12288/4/4
"""
#: What HAMi's users write: each model has resources of its own.
_RESOURCE_NAMES = plugin.ResourceNames(
    count="huawei.com/Ascend{model}",
    memory=("huawei.com/Ascend{model}-memory",),
    core=("huawei.com/Ascend{model}-core",),
    choice=plugin.DeviceChoice(
        include_uuid="hami.io/use-Ascend{model}-uuid",
        exclude_uuid="hami.io/no-use-Ascend{model}-uuid",
    ),
)
#: Of HAMi's soft slices: pkg/device/ascend/device.go (4707fb02), ascend-device-plugin ed35e1c and
#: hami-vnpu-core f795831.
_BY_TEMPLATES = (
    "hetero cuts these cards by their templates and has no limiter for them: the pod gets the "
    "smallest template with the memory that it asks"
)
VENDOR = plugin.Vendor(
    api=2,
    name="ascend",
    title="Huawei Ascend",
    models=plugin.menus(_TABLE, counters=(CORE, "aicpu")),
    visible=("ASCEND_RT_VISIBLE_DEVICES",),
    visible_by="index",
    soft_limiter="acl",
    runtime=plugin.ContainerRuntime(
        variables=("ASCEND_VISIBLE_DEVICES",),
        name="{physical}",
        template="ASCEND_VNPU_SPECS",  # which starts no container where that is empty
        options=("ASCEND_VNPU_SPECS", "ASCEND_RUNTIME_OPTIONS"),
        by_hook=True,
    ),
    # In addition to the NPU itself: what Ascend's docker runtime gives and its base.list mounts
    # (Ascend/mind-cluster, component/ascend-docker-runtime).
    container=plugin.ContainerEdits(
        device_nodes=(
            "/dev/davinci_manager",
            "/dev/devmm_svm",
            "/dev/hisi_hdc",
            "/dev/dvpp_cmdlist",
        ),
        files=(
            "/usr/local/Ascend/driver/lib64",
            "/usr/local/Ascend/driver/version.info",
            "/usr/local/dcmi",
            "/usr/local/bin/npu-smi",
            "/etc/ascend_install.info",
        ),
    ),
    ineffective_words=(
        plugin.IneffectiveWords(
            kind="annotation",
            names=("huawei.com/vnpu-mode",),
            values=("hami-core", "enpu"),
            sentence=_BY_TEMPLATES,
        ),
        plugin.IneffectiveWords(
            kind="annotation", names=("huawei.com/enpu-*",), sentence=_BY_TEMPLATES
        ),
        plugin.IneffectiveWords(
            kind="variable",
            names=("NPU_MEM_QUOTA", "NPU_PRIORITY"),
            sentence="hetero has no limiter for these cards that would read it: ask for memory "
            "among the resources",
        ),
    ),
    resource_names=(
        *_RESOURCE_NAMES.each("910A", "910B2", "910B3", "910B4-1", "910B4", "310P"),
        *_RESOURCE_NAMES.each("910C", module=2),  # two dies
    ),
)

#: What a 310P3 of 24 GiB can give out; its driver keeps the rest.
_ALLOCATABLE = {"310P3": 21527 * MiB}

_DCMI = plugin.Driver(
    names=(
        *("libdcmi.so", "/usr/local/dcmi/libdcmi.so"),
        "/usr/local/Ascend/driver/lib64/driver/libdcmi.so",
    ),
    start="dcmi_init",
    absent=(-8005,),
    unsupported=(-8255, -8013),  # not supported; not supported in a container
    in_use=(-8020,),
    meanings={
        -8002: "not permitted: are you root?",
        -8007: "no such device",
        -8008: "the device is gone",
        -8012: "not ready",
        -8020: "in use, or nothing left to cut",
    },
)
_NPU, _VDIE, _AICORE = 0, 1, 2  # dcmi_unit_type; dcmi_die_type; a kind of utilization
_VDEVICES, _ONE, _TOTAL = 52, 0, 1  # DCMI_MAIN_CMD_VDEV_MNG and two of its sub commands
_HEALTH = {0: "ok", 1: "ok", 2: "major alarm", 3: "critical alarm"}  # 1: a minor alarm
_WAYS = {1: "SYS", 2: "PHB", 3: "HCCS", 4: "PXB", 5: "PIX", 6: "SIO", 7: "HCCS_SW"}
_FASTER = {"SIO": 30, "HCCS": 20, "HCCS_SW": 20}

_ChipInfo = plugin.struct(
    "dcmi_chip_info_v2", "char type[32] name[32] version[32]; u32 aicores; char npu[32]"
)
_Hbm = plugin.struct("dcmi_hbm_info", "u64 size; u32 freq; u64 used; i32 temp; u32 bandwidth")
_Ddr = plugin.struct(
    "dcmi_get_memory_info_stru",
    "u64 size available; u32 freq; long page pages pages_free; u32 utilization; u8 rest[60]",
)
_Pcie = plugin.struct(
    "dcmi_pcie_info_all", "u32 ids[4]; i32 domain; u32 bus device function; u8 rest[32]"
)
_Process = plugin.struct("dcmi_proc_mem_info", "i32 pid; long memory")  # bytes
#: The driver fills in what it has and takes no notice of how many there is room for: its own tools
#: have room for 32 (MaxProcNum of MindCluster's devmanager).
_MOST_PROCESSES = 256
_Asked = plugin.struct("dcmi_create_vdev_res_stru", "u32 id group; char template[32]; u8 rest[64]")
_Made = plugin.struct("dcmi_create_vdev_out", "u32 id pcie[3] group; u8 rest[32]")
#: The facts of a vNPU are a struct of their own, aligned to 8; `resources` are three more.
_Vnpu = plugin.struct(
    "dcmi_vdev_query_stru",
    "u32 id gap; char name[16]; u32 status in_container vf group; u64 container resources[27]",
)
_Vnpus = plugin.struct(
    "dcmi_soc_total_resource", "u32 count ids[32] groups bitmap gap; u64 resources[27]"
)


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Return the declaration: a menu of templates for each model, whole cards when several."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the NPUs of every card: a 910C shows its two dies, one group."""
    dcmi, card_count, cards = _DCMI.open(), c_int(), (c_int * 64)()
    dcmi.call("dcmi_get_card_list", card_count, cards, len(cards))
    card_and_chip = [
        (cards[card_number], chip_number)
        for card_number in plugin.counted(card_count.value)
        for chip_number in plugin.counted(
            dcmi.get("dcmi_get_device_num_in_card", cards[card_number], c_int)
        )
        if dcmi.get("dcmi_get_device_type", cards[card_number], chip_number, c_uint) == _NPU
    ]

    def between(first_device: Device, second_device: Device) -> str | None:
        chip_addresses = (*_place(first_device), *_place(second_device))
        return _WAYS.get(dcmi.find("dcmi_get_topo_info_by_device_id", *chip_addresses, c_int))

    return plugin.each_card(lambda place: _device(dcmi, *place), card_and_chip, between, _FASTER)


@plugin.hookimpl
def hetero_enforce(
    allocation: Allocation, devices: Sequence[Device], directory: Path, container: bool
) -> Edits:
    """Give the NPUs, or the vNPU that is made for this grant and nothing else of its NPU."""
    piece = allocation.pieces[0]
    physical_ids = sorted(int(device.attributes["physical"]) for device in devices)
    if piece.template is None:
        return Edits(device_nodes=tuple(f"/dev/davinci{number}" for number in physical_ids))
    if container:  # the vendor's docker runtime makes the vNPU of the template it is told
        return Edits()
    dcmi, vnpu_number = _DCMI.open(), piece.part
    if vnpu_number is None or int(vnpu_number) not in _vnpus(dcmi, *_place(devices[0])):
        vnpu_number = _make(dcmi, devices[0], piece.template, directory)
    environment = {"ASCEND_VISIBLE_DEVICES": vnpu_number, "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}
    return Edits(
        # The only one its program sees, so that it counts from 0, as tensor parallel jobs expect.
        env={**environment, "ASCEND_RT_VISIBLE_DEVICES": "0"},
        device_nodes=(f"/dev/vdavinci{vnpu_number}",),
        parts={piece.device: vnpu_number},
    )


@plugin.hookimpl
def hetero_reconcile(device: Device, parts: AbstractSet[str], directory: Path) -> None:
    """Destroy the vNPUs we noted on this chip that no grant holds and no container runs on."""
    dcmi, chip_place = _DCMI.open(), _place(device)
    for number in _numbers(device):
        note = directory / str(number)
        if note.name in parts or not note.exists():
            continue
        is_made = number in _vnpus(dcmi, *chip_place)
        if is_made and _said(dcmi, chip_place, _ONE, _Vnpu(id=number)).in_container:
            continue
        if not is_made or dcmi.destroy("dcmi_set_destroy_vdevice", *chip_place, number):
            note.unlink(missing_ok=True)


@plugin.hookimpl
def hetero_observe(device: Device) -> plugin.Usage:
    """Return the memory in use, in all and of each process, how busy the AI cores are, and more.

    That is the share of time, and heat and power.
    """
    dcmi, chip_place = _DCMI.open(), _place(device)
    busy_percent = dcmi.find("dcmi_get_device_utilization_rate", *chip_place, _AICORE, c_uint)
    power_tenths = dcmi.find("dcmi_get_device_power_info", *chip_place, c_int)  # tenths of a watt
    return plugin.Usage(
        memory=_memory(dcmi, *chip_place)[1],
        core=None if busy_percent is None else busy_percent / 100,
        processes=_processes(dcmi, *chip_place),
        temperature=dcmi.find("dcmi_get_device_temperature", *chip_place, c_int),
        power=None if power_tenths is None else power_tenths / 10,
    )


def _device(dcmi: Library, card_number: int, chip_number: int) -> Device:
    logic = dcmi.get("dcmi_get_device_logic_id", c_int, card_number, chip_number)
    physical = dcmi.get("dcmi_get_device_phyid_from_logicid", logic, c_uint)
    model_name = (
        plugin.text(
            dcmi.get("dcmi_get_device_chip_info_v2", card_number, chip_number, _ChipInfo).name
        )
        or ""
    )
    # A 910C is a module of two dies under one card number, each of which calls itself this.
    is_module = model_name == "Ascend910"
    model = "910C" if is_module else model_name
    die = dcmi.find("dcmi_get_device_die_v2", card_number, chip_number, _VDIE, c_uint * 5)
    # The second function is that of older drivers.
    die = die or dcmi.get("dcmi_get_device_die", card_number, chip_number, c_uint * 5)
    memory_bytes, _ = _memory(dcmi, card_number, chip_number)
    pci_address = plugin.pci_of(
        dcmi.find("dcmi_get_device_pcie_info_v2", card_number, chip_number, _Pcie)
    )
    health_code = dcmi.find("dcmi_get_device_health", card_number, chip_number, c_uint)
    driver_version = plugin.text(dcmi.find("dcmi_get_driver_version", c_char * 64, 64))
    return VENDOR.device(
        uuid="-".join(f"{word:X}" for word in die),
        model=model,
        index=logic,
        memory=min(memory_bytes, _ALLOCATABLE.get(model, memory_bytes)),
        enforcement=plugin.Enforcement.PARTITION,
        health=None if health_code is None else _HEALTH.get(health_code, f"alarm {health_code}"),
        pci=pci_address,
        numa=plugin.numa_of(pci_address),
        attributes={
            "card": card_number,
            "chip": chip_number,
            "physical": physical,
            "driver": driver_version,
            "driver_uuid": "-".join(f"{word:08X}" for word in die[:4]),  # what acl calls it
        },
        group=f"card {card_number}" if is_module else None,
    )


def _memory(dcmi: Library, card_number: int, chip_number: int) -> tuple[int, int]:
    """Return total and used bytes: chips have HBM or, where that is not supported, DDR."""
    hbm = dcmi.find("dcmi_get_device_hbm_info", card_number, chip_number, _Hbm)
    if hbm and hbm.size:
        return hbm.size * MiB, hbm.used * MiB
    ddr = dcmi.get("dcmi_get_device_memory_info_v3", card_number, chip_number, _Ddr)
    return ddr.size * MiB, (ddr.size - ddr.available) * MiB


def _processes(dcmi: Library, *card_and_chip: int) -> dict[int, int] | None:
    """Return the bytes of each process on a chip, None where the driver does not say."""
    process_count = c_int()
    try:
        processes = dcmi.find(
            "dcmi_get_device_resource_info",
            *card_and_chip,
            _Process * _MOST_PROCESSES,
            process_count,
        )
    except DriverError:
        return None
    if processes is None or not 0 <= process_count.value <= _MOST_PROCESSES:
        return None
    return {process.pid: process.memory for process in processes[: process_count.value]}


def _place(device: Device) -> tuple[int, int]:
    return int(device.attributes["card"]), int(device.attributes["chip"])


def _numbers(device: Device) -> range:
    """Return the numbers that belong to the chip: from 100 on, sixteen to each physical id."""
    first_number = 100 + int(device.attributes["physical"]) * 16
    return range(first_number, first_number + 16)


def _vnpus(dcmi: Library, *card_and_chip: int) -> set[int]:
    vnpu_struct = _said(dcmi, card_and_chip, _TOTAL, _Vnpus())
    return set(vnpu_struct.ids[: vnpu_struct.count])


def _said(dcmi: Library, card_and_chip: Sequence[int], query: int, result_struct: Any) -> Any:
    """Return the answer, filled in with what the chip says of its vNPUs."""
    dcmi.call(
        "dcmi_get_device_info",
        *card_and_chip,
        _VDEVICES,
        query,
        result_struct,
        c_uint(sizeof(result_struct)),
    )
    return result_struct


def _make(dcmi: Library, device: Device, template_name: str, directory: Path) -> str:
    """Make a vNPU and return its number, noted before it exists: it has no name to mark."""
    chip_place = _place(device)
    vnpu_number = plugin.free_number(
        _numbers(device), _vnpus(dcmi, *chip_place), f"vNPU of card {chip_place}"
    )
    plugin.note(directory / str(vnpu_number))
    creation_request = _Asked(id=vnpu_number, template=template_name.encode())
    creation_result = dcmi.get("dcmi_create_vdevice", *chip_place, creation_request, _Made)
    if creation_result.id != vnpu_number:
        dcmi.call("dcmi_set_destroy_vdevice", *chip_place, creation_result.id)
        raise DriverError(
            f"card {chip_place}: asked for vNPU {vnpu_number} and got {creation_result.id}"
        )
    return str(vnpu_number)
