"""Others' programs, unmodified, meet the simulated drivers, and show what `hetero` reports.

They are installed in an environment of their own (`make setup`), and each finds its vendor's
library as on a real machine. What they show must be what `hetero inventory` says of the same cards
at the same time; what that has no word for, such as a limit of power, is compared with the rack.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest
from simulated import MIB, Machine

_CLIENTS = Path(__file__).parents[2] / ".venv-clients" / "bin"
_HETERO = [sys.executable, "-c", "from hetero.cli import main; main()"]

LIMIT = 72  # watts
NVIDIA = f"""
[device]
vendor = nvidia
model = NVIDIA L4
memory = 23034 MiB
compute = 8.9
power = 31
power_limit = {LIMIT}
temperature = 41
pci = 0000:18:00.0

[device]
vendor = nvidia
model = NVIDIA H200
memory = 143771 MiB
compute = 9.0

[kernel spin]
time = 2 us
per_arg0 = 1 us
"""
MIG = """
[device]
vendor = nvidia
model = NVIDIA H200
memory = 143771 MiB
compute = 9.0
mig = 1g.18gb x2, 3g.71gb x1

[kernel spin]
time = 2 us
per_arg0 = 1 us
"""
#: Cards of the others, of which one is not well; what is said of the power is in watts.
OTHERS = """
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
#: The first card is busy for as long as the program lives, with memory of its own.
BUSY = """
import time
cuda = Cuda()
cuda.start()
cuda.made("cuMemAlloc_v2", 512 * MIB)
assert 0 == cuda.launch(cuda.kernel(), 600_000_000)
time.sleep(0.4)  # more than a sample of utilization
"""


class Station(Machine):
    """A machine with a rack, on which `hetero` and others' programs run beside each other."""

    def environment(self, **more: str) -> dict[str, str]:
        state = str(self.rack.parent / "state")
        return super().environment(HETERO_STATE=state, TERM="dumb", COLUMNS="80", **more)

    def client(self, program: str, *arguments: str, **more: str) -> str:
        """Return what a client prints; it complains of nothing."""
        environment = self.environment(**more)
        environment.pop("PYTHONPATH")
        return _printed([_client(program), *arguments], environment)

    def hetero(self, *arguments: str) -> str:
        """Return what a command of ours prints."""
        return _printed([*_HETERO, *arguments], self.environment())

    def inventory(self) -> list[dict[str, Any]]:
        """Return what `hetero inventory` says of the cards."""
        items: list[dict[str, Any]] = json.loads(self.hetero("inventory", "--json"))["items"]
        return items


def _client(program: str) -> str:
    path = _CLIENTS / program
    assert path.exists(), f"{path} is not there: run `make setup`"
    return str(path)


def _printed(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ("", 0) == (done.stderr, done.returncode)
    return done.stdout


#: As gpustack uses it. It looks for MetaX's library in /opt alone, and asks the bus for its cards
#: unless told otherwise.
GPUSTACK = """
import ctypes, json
from gpustack_runtime.detector import detect_devices, pymxsml
pymxsml.mxSmlLib = ctypes.CDLL("libmxsml.so")
print(json.dumps([device.to_dict() for device in detect_devices(fast=False)]))
"""


def _detected(station: Station) -> list[dict[str, Any]]:
    settings = {
        "GPUSTACK_RUNTIME_DETECT_NO_PCI_CHECK": "1",
        "GPUSTACK_RUNTIME_DETECT_NO_HEALTH_CHECK": "0",
    }
    shown: list[dict[str, Any]] = json.loads(station.client("python", "-c", GPUSTACK, **settings))
    return shown


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> tuple[Station, dict[str, Any]]:
    """Cards of all vendors, and what `hetero` says of them, by their PCI addresses."""
    station = Station(tmp_path_factory.mktemp("others"), NVIDIA + OTHERS)
    return station, {item["pci"]: item for item in station.inventory()}


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Station, list[Any]]]:
    """Two cards, of which one is busy, and what `hetero` says of them."""
    station = Station(tmp_path_factory.mktemp("nvidia"), NVIDIA)
    with station.standing(BUSY) as process:
        items = station.inventory()
        assert [100.0, 0.0] == [item["core_used"] for item in items]
        assert [[process.pid], []] == [[p["pid"] for p in item["processes"]] for item in items]
        yield station, items


def test_gpustat_shows_what_hetero_reports(nvidia: tuple[Station, list[Any]]) -> None:
    station, items = nvidia
    shown = json.loads(station.client("gpustat", "--json"))
    fields = (
        *("index", "uuid", "name", "temperature.gpu", "power.draw", "utilization.gpu"),
        *("memory.used", "memory.total"),
    )
    assert [
        [
            *(item[name] for name in ("index", "uuid", "model", "temperature", "power")),
            item["core_used"],
            item["memory_used"] // MIB,
            item["memory_card"] // MIB,
            [(one["pid"], one["memory"] // MIB) for one in item["processes"]],
        ]
        for item in items
    ] == [
        [
            *(card[name] for name in fields),
            [(one["pid"], one["gpu_memory_usage"]) for one in card["processes"]],
        ]
        for card in shown["gpus"]
    ]
    assert [LIMIT, None] == [card["enforced.power.limit"] for card in shown["gpus"]]
    assert {item["attributes"]["driver"] for item in items} == {shown["driver_version"]}


def test_in_a_grant_gpustat_shows_the_memory_that_ps_reports(tmp_path: Path) -> None:
    station = Station(tmp_path)
    inside = f"""
from simulated import *
cuda = Cuda()
cuda.start()
cuda.made("cuMemAlloc_v2", 512 * MIB)
for command in ([{_client("gpustat")!r}, "--json"], [*{_HETERO}, "ps", "--json"]):
    print(json.dumps(json.loads(subprocess.check_output(command))))
"""
    program = [sys.executable, "-c", inside]
    told = station.hetero("run", "--quiet", "--memory", "600Mi", "--", *program).splitlines()
    (card,), (grant,) = json.loads(told[0])["gpus"], json.loads(told[1])["items"]
    (share,) = grant["shares"]
    assert (600, 512) == (card["memory.total"], card["memory.used"])
    assert (share["device"], share["memory"] // MIB, share["memory_used"] // MIB) == (
        *(card[name] for name in ("uuid", "memory.total", "memory.used")),
    )


def _unsaid(value: float | None, unit: str) -> str:
    return "N/A" if value is None else f"{value:.0f}{unit}"


def _mebibytes(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(\w+)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"B": 1 / MIB, "MiB": 1, "GiB": 1024}[unit]


def test_nvitop_shows_what_hetero_reports(nvidia: tuple[Station, list[Any]]) -> None:
    station, items = nvidia
    shown = station.client("nvitop", "--once", "--no-unicode")
    cards = re.findall(
        r"\| +(\d+)  (.+?) +On \| (\S+) Off \|.*\n"
        r"\| +N/A +(\S+) +N/A +(\S+) / (\S+) \| +(\S+) / (\S+) \| +(\S+) ",
        shown,
    )
    assert [
        [
            str(item["index"]),
            item["model"].removeprefix("NVIDIA "),
            f"0000{item['pci']}",
            _unsaid(item["temperature"], "C"),
            _unsaid(item["power"], "W"),
            _unsaid(item["core_used"], "%"),
        ]
        for item in items
    ] == [[*card[:5], card[8]] for card in cards]
    assert [f"{LIMIT}W", "N/A"] == [card[5] for card in cards]
    memory = [[_mebibytes(text) for text in card[6:8]] for card in cards]  # four digits
    for item, (used, total) in zip(items, memory, strict=True):
        assert item["memory_used"] / MIB == pytest.approx(used, rel=1e-3)
        assert item["memory_card"] / MIB == pytest.approx(total, rel=1e-3)
    assert [
        (str(item["index"]), str(one["pid"]), f"{one['memory'] / MIB:.1f}MiB", "100")
        for item in items
        for one in item["processes"]
    ] == re.findall(r"\| +(\d+) +(\d+) C +\S+ (\S+) +(\d+) ", shown)


def test_py3smi_shows_what_hetero_reports(nvidia: tuple[Station, list[Any]]) -> None:
    station, items = nvidia
    shown = station.client("py3smi", "--full")
    cards = re.findall(
        r"\| +(\d+) (.+?) +On +\| +(\S+) Off \|.*\n"
        r"\| N/A% +(\S+)C +PN/A +(\S+)W / +(\S+)W \| +(\d+)MiB / +(\d+)MiB \| +(\d+)%",
        shown,
    )
    unsaid = -1  # py3smi's word for it
    assert [
        (
            str(item["index"]),
            item["model"],
            item["pci"],
            f"{unsaid if item['temperature'] is None else item['temperature']}",
            f"{unsaid if item['power'] is None else item['power']:.0f}",
            f"{unsaid if item['power'] is None else LIMIT}",
            f"{item['memory_used'] // MIB}",
            f"{item['memory_card'] // MIB}",
            f"{item['core_used']:.0f}",
        )
        for item in items
    ] == cards
    assert [
        (str(item["index"]), str(one["pid"]), f"{one['memory'] // MIB}")
        for item in items
        for one in item["processes"]
    ] == re.findall(r"\| +(\d+) +\S+ +(\d+) .* (\d+)MiB \|", shown)


def test_gpustack_detects_what_hetero_reports(others: tuple[Station, dict[str, Any]]) -> None:
    """All but Hygon's, for which it imports a module that comes with ROCm alone."""
    station, items = others
    shown = _detected(station)
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


def test_mig_instances_are_shown_as_hetero_reports_them(tmp_path: Path) -> None:
    station = Station(tmp_path, MIG)
    with station.standing(BUSY) as process:
        (item,) = station.inventory()
        nvitop = station.client("nvitop", "--once", "--no-unicode")
        (card,) = _detected(station)
    menu = item["granularity"]["menu"]
    parts = [(one["part"], one["name"], one["takes"]["memory"] // MIB) for one in menu]
    detected = card["appendix"]["mig_devices"]
    rows = re.findall(r"\| 0:\d +(\S+) @ GI/CI: \d/0 \| +(\S+) / (\S+) \|", nvitop)

    assert sorted(parts) == sorted((one["uuid"], one["name"], one["memory"]) for one in detected)
    assert item["memory_used"] // MIB == sum(one["memory_used"] for one in detected)
    assert [(one["name"], one["memory_used"]) for one in detected] == [
        (name, _mebibytes(used)) for name, used, _ in rows
    ]
    assert [one["memory"] for one in detected] == pytest.approx(
        [_mebibytes(total) for _, _, total in rows], rel=1e-3
    )
    assert [(str(process.pid), f"{item['processes'][0]['memory'] / MIB:.1f}MiB")] == re.findall(
        r"\| +0:0 +(\d+) C +\S+ (\S+) ", nvitop
    )


def test_ascendtop_shows_what_hetero_reports(others: tuple[Station, dict[str, Any]]) -> None:
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
        _unsaid(item["temperature"], "C"),
        _unsaid(item["core_used"], "%"),
        _unsaid(item["power"], "W"),
    ] == card
    assert item["memory_used"] / MIB == _mebibytes(used)
    assert item["memory_card"] / MIB == _mebibytes(total)
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


def test_pyrsmi_reads_what_hetero_reports(others: tuple[Station, dict[str, Any]]) -> None:
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
