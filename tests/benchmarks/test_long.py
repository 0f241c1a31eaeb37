"""The measurement of long kernels, on a simulated card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hetero_simulator
import pytest

LONG = Path(__file__).parents[2] / "benchmarks/long.py"


@pytest.mark.measured
def test_long_kernels_are_measured_alone_and_beside_a_neighbour(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HETERO_RACK": str(hetero_simulator.rack("one")),
        "HETERO_STATE": str(tmp_path / "state"),
    }
    report = tmp_path / "long.json"
    options = ("--kernels", "50,200", "--beside", "5", "--long", "200", "--json", str(report))
    done = subprocess.run(
        [sys.executable, str(LONG), *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    print(done.stdout)
    told = json.loads(report.read_text())
    assert [pytest.approx(50, rel=0.2), pytest.approx(200, rel=0.2)] == [
        row["ms"] for row in told["alone"]
    ]
    assert [30, 30] == pytest.approx([row["got"] for row in told["alone"]], abs=3)
    assert 3 == told["beside"]["most"]
    assert told["beside"]["after"] >= 5
    assert 3 == len(done.stdout.splitlines())
