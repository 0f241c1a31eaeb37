"""The measurement of long kernels, on a simulated card."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest

from tests.programs import completed

LONG = Path(__file__).parents[2] / "benchmarks/long.py"
sys.path.insert(0, str(LONG.parent))
from long import missed  # noqa: E402 - benchmarks is no package


@pytest.mark.measured
def test_long_kernels_are_measured_alone_and_beside_a_neighbour(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HETERO_RACK": str(shutil.copy(hetero_simulator.rack("one"), tmp_path)),
        "HETERO_STATE": str(tmp_path / "state"),
    }
    report = tmp_path / "long.json"
    options = ("--kernels", "50,200", "--beside", "5", "--long", "200", "--json", str(report))
    done = completed([sys.executable, str(LONG), *options], env=environment)
    document = json.loads(report.read_text())
    # A simulated card on a busy machine promises no points: the exit status says what was got.
    assert (bool(missed(document)), "") == (bool(done.returncode), unexpected(done.stderr))
    print(done.stdout)
    assert [pytest.approx(50, rel=0.2), pytest.approx(200, rel=0.2)] == [
        row["ms"] for row in document["alone"]
    ]
    assert [30, 30] == pytest.approx([row["got"] for row in document["alone"]], abs=3)
    assert document["beside"]["after"] >= 5
    assert 3 == len(done.stdout.splitlines())


def unexpected(errors: str) -> str:
    return "".join(line for line in errors.splitlines() if not line.startswith("missed: "))


def report(got: float = 30.0, after: float = 121.0, neighbour: float = 60.0) -> dict[str, Any]:
    return {
        "alone": [{"ms": 5.0, "got": 30.4, "asked": 30}, {"ms": 999.0, "got": got, "asked": 30}],
        "beside": {"seconds": 120, "most": 7, "after": after, "asked": 60, "got": neighbour},
    }


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--kernels", "5,abc"),
        ("--kernels", "-5"),
        ("--share", "200"),
        ("--long", "0"),
        ("--beside", "nan"),
        ("--json", "/nowhere/long.json"),
    ],
)
def test_what_it_cannot_measure_is_one_line_before_anything_runs(option: str, value: str) -> None:
    done = completed([sys.executable, str(LONG), option, value])
    assert 2 == done.returncode
    assert f"error: argument {option}: " in done.stderr.splitlines()[-1]


def test_a_report_that_keeps_every_promise_misses_nothing() -> None:
    assert [] == missed(report())
    assert [] == missed({**report(), "beside": None})


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        ({"got": 31.2}, "999 ms: 31.20 is not 30 within 1"),
        ({"got": 28.9}, "999 ms: 28.90 is not 30 within 1"),
        ({"after": 119.5}, "beside: kernel 8 began after 119.5 s, before 120"),
        ({"neighbour": 57.9}, "beside: the neighbour's 57.90 is not 60 within 2"),
    ],
)
def test_a_figure_that_misses_its_promise_has_a_line(figures: dict[str, float], line: str) -> None:
    assert [line] == missed(report(**figures))
