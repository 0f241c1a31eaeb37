"""Others' programs, unmodified, meet the simulated drivers, and show what `hetero` reports.

They are installed in an environment of their own (`make setup`), and each finds its vendor's
library as on a real machine. What they show must be what `hetero inventory` says of the same cards
at the same time; what that has no word for, such as a limit of power, is compared with the rack.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated import MIB, Machine

_CLIENTS = Path(__file__).parents[2] / ".venv-clients" / "bin"

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
        inherited = ("HETERO_", "LD_", "PYTHON")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(inherited)}
        ours = {k: v for k, v in super().environment(**more).items() if k.startswith(inherited)}
        state = str(self.rack.parent / "state")
        return {**clean, **ours, "HETERO_STATE": state, "TERM": "dumb", "COLUMNS": "80"}

    def client(self, program: str, *arguments: str, **more: str) -> str:
        """Return what a client prints; it complains of nothing."""
        path = _CLIENTS / program
        assert path.exists(), f"{path} is not there: run `make setup`"
        environment = self.environment(**more)
        environment.pop("PYTHONPATH")
        done = subprocess.run(
            [str(path), *arguments], env=environment, capture_output=True, text=True, timeout=60
        )
        assert ("", 0) == (done.stderr, done.returncode)
        return done.stdout

    def inventory(self) -> list[dict[str, Any]]:
        """Return what `hetero inventory` says of the cards."""
        command = [sys.executable, "-c", "from hetero.cli import main; main()"]
        done = subprocess.run(
            [*command, "inventory", "--json"],
            env=self.environment(),
            capture_output=True,
            text=True,
        )
        assert ("", 0) == (done.stderr, done.returncode)
        items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
        return items


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
