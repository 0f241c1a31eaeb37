"""Clients of all vendors' libraries show what `hetero inventory` reports of the same cards."""

from __future__ import annotations

import json
import re
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
