"""Clients of NVML show what `hetero inventory` and `ps` report of the same cards at the same time.

What those have no word for, such as a limit of power, is compared with the rack.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clients import HETERO, ClientMachine, client_path, detected, figure, mebibytes
from simulated import MIB

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
#: Each card is busy for as long as the program lives.
NEIGHBOUR = """
import time
cuda = Cuda()
for card in (0, 1):
    cuda.start(card)
    cuda.made("cuMemAlloc_v2", 1024 * MIB)
    assert 0 == cuda.launch(cuda.kernel(), 600_000_000)
time.sleep(0.4)  # more than a sample of utilization
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


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClientMachine, list[Any]]]:
    """Two cards, of which one is busy, and what `hetero` says of them."""
    station = ClientMachine(tmp_path_factory.mktemp("nvidia"), NVIDIA)
    with station.standing(BUSY) as process:
        items = station.inventory()
        assert [100.0, 0.0] == [item["core_used"] for item in items]
        assert [[process.pid], []] == [[p["pid"] for p in item["processes"]] for item in items]
        yield station, items


def test_gpustat_shows_what_hetero_reports(nvidia: tuple[ClientMachine, list[Any]]) -> None:
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
    station = ClientMachine(tmp_path)
    inside = f"""
from simulated import *
cuda = Cuda()
cuda.start()
cuda.made("cuMemAlloc_v2", 510 * MIB)  # and 2 for the context
for command in ([{client_path("gpustat")!r}, "--json"], [*{HETERO}, "ps", "--json"]):
    print(json.dumps(json.loads(subprocess.check_output(command))))
"""
    program = [sys.executable, "-c", inside]
    lines = station.hetero("run", "--quiet", "--memory", "600Mi", "--", *program).splitlines()
    (card,), (grant,) = json.loads(lines[0])["gpus"], json.loads(lines[1])["items"]
    (share,) = grant["shares"]
    assert (600, 512) == (card["memory.total"], card["memory.used"])
    assert (share["device"], share["memory"] // MIB, share["memory_used"] // MIB) == (
        *(card[name] for name in ("uuid", "memory.total", "memory.used")),
    )


def test_in_a_grant_clients_show_the_granted_card_and_the_grants_process_alone(
    tmp_path: Path,
) -> None:
    station = ClientMachine(tmp_path, NVIDIA)
    inside = f"""
from simulated import *
cuda = Cuda()
cuda.start()
cuda.made("cuMemAlloc_v2", 510 * MIB)  # and 2 for the context
commands = [
    [{client_path("gpustat")!r}, "--json"],
    [{client_path("nvitop")!r}, "--once", "--no-unicode"],
    [{client_path("py3smi")!r}, "--full"],
]
print(json.dumps([os.getpid(), *(subprocess.check_output(each, text=True) for each in commands)]))
"""
    program = [sys.executable, "-c", inside]
    with station.standing(NEIGHBOUR):
        second = station.inventory()[1]["uuid"]
        limits = ["--uuid", second, "--memory", "600Mi", "--core", "50"]
        printed = station.hetero("run", "--quiet", *limits, "--", *program)
    pid, gpustat, nvitop, py3smi = json.loads(printed)
    (card,) = json.loads(gpustat)["gpus"]
    assert [0, second, 512, 600] == [
        card[name] for name in ("index", "uuid", "memory.used", "memory.total")
    ]
    assert 0 == card["utilization.gpu"]
    assert [(pid, 510)] == [(one["pid"], one["gpu_memory_usage"]) for one in card["processes"]]

    rows = re.findall(r"\| +N/A .*\| +(\S+) / (\S+) \| +(\S+) ", nvitop)
    assert [("512.0MiB", "600.0MiB", "0%")] == rows
    processes = re.findall(r"\| +(\d+) +(\d+) C +\S+ (\S+) +(\d+) ", nvitop)
    assert [("0", str(pid), "510.0MiB", "0")] == processes

    assert [("512", "600", "0")] == re.findall(r"(\d+)MiB / +(\d+)MiB \| +(\d+)%", py3smi)
    # Its first column is the number of the device node, which is the machine's.
    assert [("1", str(pid), "510")] == re.findall(r"\| +(\d+) +\S+ +(\d+) .* (\d+)MiB \|", py3smi)


def test_nvitop_shows_what_hetero_reports(nvidia: tuple[ClientMachine, list[Any]]) -> None:
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
            figure(item["temperature"], "C"),
            figure(item["power"], "W"),
            figure(item["core_used"], "%"),
        ]
        for item in items
    ] == [[*card[:5], card[8]] for card in cards]
    assert [f"{LIMIT}W", "N/A"] == [card[5] for card in cards]
    memory = [[mebibytes(text) for text in card[6:8]] for card in cards]  # four digits
    for item, (used, total) in zip(items, memory, strict=True):
        assert item["memory_used"] / MIB == pytest.approx(used, rel=1e-3)
        assert item["memory_card"] / MIB == pytest.approx(total, rel=1e-3)
    assert [
        (str(item["index"]), str(one["pid"]), f"{one['memory'] / MIB:.1f}MiB", "100")
        for item in items
        for one in item["processes"]
    ] == re.findall(r"\| +(\d+) +(\d+) C +\S+ (\S+) +(\d+) ", shown)


def test_py3smi_shows_what_hetero_reports(nvidia: tuple[ClientMachine, list[Any]]) -> None:
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


def test_mig_instances_are_shown_as_hetero_reports_them(tmp_path: Path) -> None:
    station = ClientMachine(tmp_path, MIG)
    with station.standing(BUSY) as process:
        (item,) = station.inventory()
        nvitop = station.client("nvitop", "--once", "--no-unicode")
        (card,) = detected(station)
    menu = item["granularity"]["menu"]
    parts = [(one["part"], one["name"], one["takes"]["memory"] // MIB) for one in menu]
    instances = card["appendix"]["mig_devices"]
    rows = re.findall(r"\| 0:\d +(\S+) @ GI/CI: \d/0 \| +(\S+) / (\S+) \|", nvitop)

    assert sorted(parts) == sorted((one["uuid"], one["name"], one["memory"]) for one in instances)
    assert item["memory_used"] // MIB == sum(one["memory_used"] for one in instances)
    assert [(one["name"], one["memory_used"]) for one in instances] == [
        (name, mebibytes(used)) for name, used, _ in rows
    ]
    assert [one["memory"] for one in instances] == pytest.approx(
        [mebibytes(total) for _, _, total in rows], rel=1e-3
    )
    assert [(str(process.pid), f"{item['processes'][0]['memory'] / MIB:.1f}MiB")] == re.findall(
        r"\| +0:0 +(\d+) C +\S+ (\S+) ", nvitop
    )
