"""Huawei Ascend: discovered through DCMI, cut into vNPUs by the driver's own templates.

The declarations are our own, after the public header dcmi_interface_api.h (Ascend/mind-cluster,
component/ascend-common/devmanager/dcmi). Every function returns 0 or a negative code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from ctypes import c_char, c_int, c_uint, sizeof
from pathlib import Path

from attrs import evolve

import hetero
from hetero import CORE, MEMORY, Allocation, Device, DriverError, Edits, Library, MiB, Rung

#: Model, AI cores, AI CPUs, slots (how often the smallest template fits), then the templates as
#: name MiB/cores/CPUs: as MindCluster and HAMi's 2.10 chart list them.
_TABLE = """
910A    30 0 15  vir02 2184/2/0, vir04 4369/4/0, vir08 8738/8/0, vir16 17476/16/0
910B2   24 6  8  vir03_1c_8g 8192/3/1, vir06_1c_16g 16384/6/1, vir12_3c_32g 32768/12/3
910B3   20 7  4  vir05_1c_16g 16384/5/1, vir10_3c_32g 32768/10/3
910B4-1 20 7  4  vir05_1c_16g 16384/5/1, vir10_3c_32g 32768/10/3
910B4   20 7  4  vir05_1c_8g 8192/5/1, vir10_3c_16g 16384/10/3
910C    20 7  4  vir05_1c_16g 16384/5/1, vir10_3c_32g 32768/10/3
310P3    8 7  7  vir01 3072/1/1, vir02 6144/2/2, vir04 12288/4/4
"""


def _model(row: str) -> hetero.Model:
    name, cores, cpus, slots, menu = row.split(maxsplit=4)
    counts_cpus = int(cpus) > 0

    def template(entry: str) -> hetero.Template:
        shape, sizes = entry.split()
        memory, core, cpu = map(int, sizes.split("/"))
        takes = {MEMORY: memory * MiB, CORE: core, **({"aicpu": cpu} if counts_cpus else {})}
        return hetero.Template(shape, takes)

    return hetero.Model(
        match=name,
        # Memory decides which template a request gets; the cores come with it.
        granularity=hetero.Templated(tuple(map(template, menu.split(", "))), by=(MEMORY,)),
        core=int(cores),
        slots=int(slots),
        extra={"aicpu": int(cpus)} if counts_cpus else {},
    )


#: What HAMi's users write: each model has resources of its own.
_WORDS = hetero.Words(
    count="huawei.com/Ascend{model}",
    memory=("huawei.com/Ascend{model}-memory",),
    core=("huawei.com/Ascend{model}-core",),
    only_uuid="hami.io/use-Ascend{model}-uuid",
    never_uuid="hami.io/no-use-Ascend{model}-uuid",
)
VENDOR = hetero.Vendor(
    name="ascend",
    title="Huawei Ascend",
    models=tuple(map(_model, _TABLE.strip().splitlines())),
    visible=("ASCEND_RT_VISIBLE_DEVICES",),
    visible_by="index",
    # Beside the NPU itself: what Ascend's docker runtime gives and its base.list mounts
    # (Ascend/mind-cluster, component/ascend-docker-runtime).
    device_nodes=("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc", "/dev/dvpp_cmdlist"),
    files=(
        "/usr/local/Ascend/driver/lib64",
        "/usr/local/Ascend/driver/version.info",
        "/usr/local/dcmi",
        "/usr/local/bin/npu-smi",
        "/etc/ascend_install.info",
    ),
    words=(
        *_WORDS.each("910A", "910B2", "910B3", "910B4-1", "910B4", "310P"),
        *evolve(_WORDS, module=2).each("910C"),  # two dies
    ),
)

#: What a 310P3 of 24 GiB can give out; its driver keeps the rest.
_ALLOCATABLE = {"310P3": 21527 * MiB}
#: A 910C is a module of two dies under one card number, each of which calls itself by this name.
_DIE_OF_TWO, _MODULE = "Ascend910", "910C"

_DCMI = hetero.Driver(
    names=(
        "libdcmi.so",
        "/usr/local/dcmi/libdcmi.so",
        "/usr/local/Ascend/driver/lib64/driver/libdcmi.so",
    ),
    start="dcmi_init",
    absent=(-8005,),
    unsupported=(-8255, -8013),  # not supported; not supported in a container
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
#: A vNPU's number belongs to its chip: from 100 on, sixteen to each physical id.
_FIRST, _PER_CHIP = 100, 16

_ChipInfo = hetero.struct(
    "dcmi_chip_info_v2", "char type[32] name[32] version[32]; u32 aicores; char npu[32]"
)
_Hbm = hetero.struct("dcmi_hbm_info", "u64 size; u32 freq; u64 used; i32 temp; u32 bandwidth")
_Ddr = hetero.struct(
    "dcmi_get_memory_info_stru",
    "u64 size available; u32 freq; long page pages pages_free; u32 utilization; u8 rest[60]",
)
_Pcie = hetero.struct(
    "dcmi_pcie_info_all", "u32 ids[4]; i32 domain; u32 bus device function; u8 rest[32]"
)
_Wish = hetero.struct("dcmi_create_vdev_res_stru", "u32 id group; char template[32]; u8 rest[64]")
_Made = hetero.struct("dcmi_create_vdev_out", "u32 id pcie[3] group; u8 rest[32]")
#: The facts of a vNPU are a struct of their own, aligned to 8; `resources` are three more.
_Vnpu = hetero.struct(
    "dcmi_vdev_query_stru",
    "u32 id gap; char name[16]; u32 status in_container vf group; u64 container resources[27]",
)
_Vnpus = hetero.struct(
    "dcmi_soc_total_resource", "u32 count ids[32] groups bitmap gap; u64 resources[27]"
)


@hetero.hookimpl
def hetero_vendor() -> hetero.Vendor:
    """Return the declaration: a menu of templates for each model, whole cards when several."""
    return VENDOR


@hetero.hookimpl
def hetero_discover() -> Iterator[Device | DriverError]:
    """Return the NPUs of every card: a 910C shows its two dies, one group."""
    dcmi, count, cards = _DCMI.open(), c_int(), (c_int * 64)()
    dcmi.call("dcmi_get_card_list", count, cards, len(cards))
    places = [
        (cards[number], chip)
        for number in hetero.counted(count.value)
        for chip in hetero.counted(dcmi.get("dcmi_get_device_num_in_card", cards[number], c_int))
        if dcmi.get("dcmi_get_device_type", cards[number], chip, c_uint) == _NPU
    ]

    def between(here: Device, there: Device) -> str | None:
        ends = (*_place(here), *_place(there))
        return _WAYS.get(dcmi.find("dcmi_get_topo_info_by_device_id", *ends, c_int))

    found = hetero.each_card(lambda place: _device(dcmi, *place), places)
    return hetero.linked(found, between, _FASTER)


@hetero.hookimpl
def hetero_enforce(
    allocation: Allocation, devices: Sequence[Device], directory: Path, container: bool
) -> Edits:
    """Give the NPUs, or the vNPU that is made for this grant, and nothing of its NPU beside that.

    In a container the vendor's docker runtime makes the vNPU of the template it is told. A vNPU
    is the only one its program sees, so that it counts from 0, as tensor parallel jobs expect.
    """
    grant, first = allocation.grants[0], devices[0]
    numbers = sorted(int(device.attributes["physical"]) for device in devices)
    env = {"ASCEND_VISIBLE_DEVICES": ",".join(map(str, numbers))}
    if grant.template is None:
        return Edits(env=env, device_nodes=tuple(f"/dev/davinci{number}" for number in numbers))
    if container:
        return Edits(env={**env, "ASCEND_VNPU_SPECS": grant.template})
    made = _make(_DCMI.open(), first, grant.template, directory)
    seen = {"ASCEND_VISIBLE_DEVICES": made, "ASCEND_RT_VISIBLE_DEVICES": "0"}
    return Edits(
        env={**seen, "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"},
        device_nodes=(f"/dev/vdavinci{made}",),
        parts={first.uuid: made},
    )


@hetero.hookimpl
def hetero_reconcile(device: Device, parts: AbstractSet[str], directory: Path) -> None:
    """Destroy the vNPUs we noted on this chip that no grant holds and no container runs on."""
    dcmi, place = _DCMI.open(), _place(device)
    for number in _numbers(device):
        note = directory / str(number)
        if note.name in parts or not note.exists():
            continue
        if number in _vnpus(dcmi, *place):
            vnpu = _Vnpu(id=number)
            dcmi.call("dcmi_get_device_info", *place, _VDEVICES, _ONE, vnpu, c_uint(sizeof(vnpu)))
            if vnpu.in_container:
                continue
            dcmi.call("dcmi_set_destroy_vdevice", *place, number)
        note.unlink(missing_ok=True)


@hetero.hookimpl
def hetero_observe(device: Device) -> hetero.Usage:
    """Return the memory in use and the share of time the AI cores were busy."""
    dcmi, place = _DCMI.open(), _place(device)
    busy = dcmi.find("dcmi_get_device_utilization_rate", *place, _AICORE, c_uint)
    _, used = _memory(dcmi, *place)
    return hetero.Usage(memory=used, core=None if busy is None else busy / 100)


def _device(dcmi: Library, card: int, chip: int) -> Device:
    logic = dcmi.get("dcmi_get_device_logic_id", c_int, card, chip)
    physical = dcmi.get("dcmi_get_device_phyid_from_logicid", logic, c_uint)
    name = hetero.text(dcmi.get("dcmi_get_device_chip_info_v2", card, chip, _ChipInfo).name) or ""
    words = c_uint * 5
    die = dcmi.find("dcmi_get_device_die_v2", card, chip, _VDIE, words)
    die = die or dcmi.get("dcmi_get_device_die", card, chip, words)  # of older drivers
    model = _MODULE if name == _DIE_OF_TWO else name
    memory, _ = _memory(dcmi, card, chip)
    at = dcmi.find("dcmi_get_device_pcie_info_v2", card, chip, _Pcie)
    pci = hetero.pci_address(at.domain, at.bus, at.device, at.function) if at else None
    health = dcmi.find("dcmi_get_device_health", card, chip, c_uint)
    return VENDOR.device(
        uuid="-".join(f"{word:X}" for word in die),
        model=model,
        index=logic,
        memory=min(memory, _ALLOCATABLE.get(model, memory)),
        rung=Rung.PARTITION,
        health=None if health is None else _HEALTH.get(health, f"alarm {health}"),
        pci=pci,
        numa=hetero.numa_of(pci),
        attributes={
            "card": str(card),
            "chip": str(chip),
            "physical": str(physical),
            "driver": hetero.text(dcmi.find("dcmi_get_driver_version", c_char * 64, 64)),
        },
        group=f"card {card}" if model == _MODULE else None,
    )


def _memory(dcmi: Library, card: int, chip: int) -> tuple[int, int]:
    """Return total and used bytes: chips have HBM or, where that is not supported, DDR."""
    hbm = dcmi.find("dcmi_get_device_hbm_info", card, chip, _Hbm)
    if hbm and hbm.size:
        return hbm.size * MiB, hbm.used * MiB
    ddr = dcmi.get("dcmi_get_device_memory_info_v3", card, chip, _Ddr)
    return ddr.size * MiB, (ddr.size - ddr.available) * MiB


def _place(device: Device) -> tuple[int, int]:
    return int(device.attributes["card"]), int(device.attributes["chip"])


def _numbers(device: Device) -> range:
    first = _FIRST + int(device.attributes["physical"]) * _PER_CHIP
    return range(first, first + _PER_CHIP)


def _vnpus(dcmi: Library, card: int, chip: int) -> set[int]:
    found = _Vnpus()
    dcmi.call("dcmi_get_device_info", card, chip, _VDEVICES, _TOTAL, found, c_uint(sizeof(found)))
    return set(found.ids[: found.count])


def _make(dcmi: Library, device: Device, template: str, directory: Path) -> str:
    """Make a vNPU and return its number, noted before it exists: it has no name to mark."""
    place = _place(device)
    taken = _vnpus(dcmi, *place)
    number = next((n for n in _numbers(device) if n not in taken), None)
    if number is None:
        raise DriverError(f"card {place}: all {_PER_CHIP} vNPU numbers are taken")
    hetero.note(directory / str(number))
    wish = _Wish(id=number, template=template.encode())
    made = dcmi.get("dcmi_create_vdevice", *place, wish, _Made)
    if made.id != number:
        dcmi.call("dcmi_set_destroy_vdevice", *place, made.id)
        raise DriverError(f"card {place}: asked for vNPU {number} and got {made.id}")
    return str(number)
