"""Clients of all vendors' libraries show what `hetero inventory` reports of the same cards."""

import json
import re
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest
from clients import ClientMachine, detected, figure, mebibytes
from simulated import MIB

#: A card of each vendor and a second one of Moore Threads that is not well; power is in watts.
RACK = """
[device]
vendor = nvidia
model = NVIDIA L4
memory = 23034 MiB
power = 31
temperature = 41
pci = 0000:18:00.0

[device]
vendor = ascend
model = 910B3
memory = 64 GiB
uuid = E0F4EE64 802061B1 6A691492 89528485 104301E3
pci = 0000:c1:00.0
busy = 37
processes = 4242:512
power = 351
power_limit = 400
temperature = 52

[device]
vendor = hygon
model = Z100
memory = 32 GiB
uuid = 7100f95cee823041
pci = 0000:07:00.0
busy = 38
used = 700 MiB
power = 190
power_limit = 350
temperature = 53

[device]
vendor = cambricon
model = MLU370-X8
memory = 24 GiB
pci = 0000:5e:00.0
busy = 39
used = 701 MiB
power = 120
power_limit = 250
temperature = 54

[device]
vendor = iluvatar
model = Iluvatar BI-V150
memory = 32 GiB
pci = 0000:86:00.0
power = 130
power_limit = 350
temperature = 55

[device]
vendor = mthreads
model = MTT S4000
memory = 48 GiB
core = 8192
pci = 0000:3a:00.0
busy = 40
used = 702 MiB
power = 140
temperature = 56

[device]
vendor = mthreads
model = MTT S80
memory = 16 GiB
core = 4096
pci = 0000:3b:00.0
health = ecc
power = 150
temperature = 57

[device]
vendor = metax
model = MXC500
memory = 64 GiB
pci = 0000:0e:00.0
busy = 41
used = 703 MiB
power = 151
power_limit = 350
temperature = 58
"""


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClientMachine, dict[str, Any]]:
    """Cards of all vendors, and what `hetero` says of them, by their PCI addresses."""
    station = ClientMachine(tmp_path_factory.mktemp("others"), RACK)
    return station, {item["pci"]: item for item in station.inventory()}


def test_gpustack_detects_what_hetero_reports(others: tuple[ClientMachine, dict[str, Any]]) -> None:
    """All but Hygon's, for which it imports a module that comes with ROCm alone."""
    station, items = others
    shown = detected(station)
    fields = (
        *("manufacturer", "index", "name", "memory", "memory_used", "cores_utilization"),
        *("temperature", "memory_status"),
    )
    assert {
        pci: (
            *(item[name] for name in ("vendor", "index", "model")),
            item["memory_card"] // MIB,
            item["memory_used"] // MIB,
            item["core_used"],
            item["temperature"],
            "healthy" if item["health"] == "ok" else "unhealthy",
        )
        for pci, item in items.items()
        if item["vendor"] != "hygon"
    } == {card["appendix"]["bdf"]: tuple(card[name] for name in fields) for card in shown}
    for card in shown:
        item = items[card["appendix"]["bdf"]]
        # It writes a die's words apart, and takes MTML's milliwatts for watts (mtml.h: "in
        # milliwatts").
        uuid = item["uuid"].replace("-", " ") if item["vendor"] == "ascend" else item["uuid"]
        scale = 1000 if item["vendor"] == "mthreads" else 1
        power = None if item["power"] is None else item["power"] * scale
        assert (uuid.lower(), power) == (card["uuid"].lower(), card["power_used"])


def test_ascendtop_shows_what_hetero_reports(others: tuple[ClientMachine, dict[str, Any]]) -> None:
    station, items = others
    (item,) = (item for item in items.values() if item["vendor"] == "ascend")
    shown = station.client("ascendtop", "--once", "--no-color", "--backend", "dcmi")
    ((*card, used, total),) = re.findall(
        r"│ +(\d+)  (\S+) +(\S+) │ (\S+) .*\n"
        r"│ N/A +(\S+) +(\S+) +(\S+) / N/A │ +(\S+) / (\S+) │",
        shown,
    )
    assert [
        str(item["index"]),
        item["model"],
        item["health"].upper(),
        item["pci"],
        figure(item["temperature"], "C"),
        figure(item["core_used"], "%"),
        figure(item["power"], "W"),
    ] == card
    assert item["memory_used"] / MIB == mebibytes(used)
    assert item["memory_card"] / MIB == mebibytes(total)
    # It takes bytes for KiB (dcmi_interface_api.h: `proc_mem_usage` is in bytes).
    assert [("0", "4242", "512.0GiB")] == re.findall(r"│ +(\d+) +(\d+) +- +(\S+) ", shown)


#: Its own beginning wants AMD's kernel module loaded, where Hygon's is another.
PYRSMI = """
import json
from pyrsmi import rocml
rocml._load_rocm_library()
assert 0 == rocml.rocm_lib.rsmi_init(0)
print()
print(json.dumps([
    [
        rocml.smi_get_device_name(index),
        rocml.smi_get_device_pci_id(index),
        rocml.smi_get_device_memory_used(index),
        rocml.smi_get_device_memory_total(index),
        rocml.smi_get_device_utilization(index),
        rocml.smi_get_device_average_power(index),
    ]
    for index in range(rocml.smi_get_device_count())
]))
"""


def test_pyrsmi_reads_what_hetero_reports(others: tuple[ClientMachine, dict[str, Any]]) -> None:
    station, items = others
    (item,) = (item for item in items.values() if item["vendor"] == "hygon")
    rocm = station.rack.parent / "rocm"
    rocm.mkdir()
    (rocm / "lib").symlink_to(hetero_simulator.fake_drivers())
    shown = station.client("python", "-c", PYRSMI, ROCM_PATH=str(rocm)).splitlines()
    domain, bus, device, function = (int(part, 16) for part in re.split("[:.]", item["pci"]))
    assert [
        [
            item["model"],
            domain << 32 | bus << 8 | device << 3 | function,
            item["memory_used"],
            item["memory_card"],
            item["core_used"],
            item["power"],
        ]
    ] == json.loads(shown[-1])


#: Two cards of AMD's, of which one tells all and the other is not well.
AMD = """
[device]
vendor = amd
model = Instinct MI60
memory = 32 GiB
uuid = GPU-423592d2d74e6a1b
pci = 0000:18:00.0
multiprocessors = 64
numa = 1
busy = 38
used = 700 MiB
processes = 4242:512
power = 190
power_limit = 300
temperature = 53
links = 1:XGMI

[device]
vendor = amd
model = Instinct MI300X
memory = 192 GiB
pci = 0000:19:00.1
numa = 0
health = ecc
power = 120
temperature = 41
"""
#: AMD's own binding. Importing it takes every name of the library that it knows.
AMDSMI = """
import json
from amdsmi import *

def shown(card):
    asic, power = amdsmi_get_gpu_asic_info(card), amdsmi_get_power_info(card)
    memory = amdsmi_get_gpu_vram_usage(card)
    return {
        "uuid": amdsmi_get_gpu_enumeration_info(card)["hip_uuid"],
        "serial": asic["asic_serial"],
        "long uuid": amdsmi_get_gpu_device_uuid(card),
        "model": asic["market_name"],
        "units": asic["num_compute_units"],
        "pci": amdsmi_get_gpu_device_bdf(card),
        "memory": amdsmi_get_gpu_memory_total(card, AmdSmiMemoryType.VRAM),
        "used": amdsmi_get_gpu_memory_usage(card, AmdSmiMemoryType.VRAM),
        "MiB": [amdsmi_get_gpu_vram_info(card)["vram_size"], *memory.values()],
        "busy": amdsmi_get_gpu_activity(card)["gfx_activity"],
        "heat": amdsmi_get_temp_metric(
            card, AmdSmiTemperatureType.EDGE, AmdSmiTemperatureMetric.CURRENT
        ),
        "power": power["average_socket_power"],
        "limit": power["power_limit"],
        "numa": amdsmi_topo_get_numa_node_number(card),
        "errors": amdsmi_get_gpu_total_ecc_count(card)["uncorrectable_count"],
        "driver": amdsmi_get_gpu_driver_info(card)["driver_version"],
        "processes": [[one["pid"], one["mem"]] for one in amdsmi_get_gpu_process_list(card)],
    }

def refused(ask, *arguments):
    try:
        ask(*arguments)
    except AmdSmiLibraryException as refusal:
        return refusal.get_error_code()

before = refused(amdsmi_get_socket_handles)
amdsmi_init()
cards = amdsmi_get_processor_handles()
known = amdsmi_get_processor_handle_from_bdf("0000:19:00.1").value == cards[1].value
cap = amdsmi_get_power_cap_info(cards[0])["power_cap"]
others = [refused(ask, cards[1]) for ask in (amdsmi_get_power_cap_info, amdsmi_get_gpu_vbios_info)]
way = amdsmi_topo_get_link_type(*cards)
types = {amdsmi_get_processor_type(card)["processor_type"] for card in cards}
print(json.dumps([before, known, cap, others, way, [*types], [shown(card) for card in cards]]))
"""
NOT_SUPPORTED, NOT_INITIALISED, XGMI = 2, 32, 2


def test_amdsmi_reads_what_hetero_reports(tmp_path: Path) -> None:
    """AMD's own package of PyPI, over AMD's library that is simulated."""
    station = ClientMachine(tmp_path, AMD)
    first, second = items = station.inventory()
    before, known, cap, others, way, types, cards = json.loads(
        station.client("python", "-c", AMDSMI)
    )
    assert NOT_INITIALISED == before
    assert (True, 300_000_000) == (known, cap)
    assert [NOT_SUPPORTED, NOT_SUPPORTED] == others
    assert {"hops": 1, "type": XGMI} == way
    assert ["AMDSMI_PROCESSOR_TYPE_AMD_GPU"] == types
    assert [
        {
            "uuid": item["uuid"],
            "serial": f"0x{item['uuid'].removeprefix('GPU-').upper()}",
            "model": item["model"],
            "pci": item["pci"],
            "memory": item["memory_card"],
            "used": item["memory_used"],
            "MiB": [item["memory_card"] // MIB] * 2 + [item["memory_used"] // MIB],
            "busy": item["core_used"],
            "heat": item["temperature"],
            "power": item["power"],
            "numa": item["numa"],
            "errors": int(item["health"] != "ok"),
        }
        for item in items
    ] == [{name: card[name] for name in card if name not in OF_THE_RACK} for card in cards]
    reported, untold = ({name: card[name] for name in OF_THE_RACK} for card in cards)
    # The long one has no place for the serial number's fifth byte (amd_smi_uuid.cc).
    assert {
        "long uuid": "42ff0000-0000-1000-8035-92d2d74e6a1b",
        "units": 64,
        "limit": 300,
        "driver": reported["driver"],
        "processes": [[4242, 512 * MIB]],
    } == reported
    assert ("N/A", []) == (untold["limit"], untold["processes"])
    assert first["uuid"] != second["uuid"]


#: What `hetero inventory` has no word for.
OF_THE_RACK = ("long uuid", "units", "limit", "driver", "processes")
