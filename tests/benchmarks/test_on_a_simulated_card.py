"""Every benchmark from its command line to its JSON, on a simulated card."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hetero_limiters
import pytest

#: How far a share may be from what was asked, in points.
ERROR = 5


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Any]:
    rack = shutil.copy(hetero_limiters.rack("one"), tmp_path)
    environment = {**os.environ, "HETERO_RACK": str(rack), "HETERO_STATE": str(tmp_path / "state")}

    def run(*arguments: str) -> Any:
        report = tmp_path / "report.json"
        command = (sys.executable, "-m", "hetero", "bench", *arguments, "--json", str(report))
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return json.loads(report.read_text())

    return run


def test_a_job_gets_its_share_and_its_full_speed_before_and_after(
    bench: Callable[..., Any],
) -> None:
    told = bench("isolation", "--jobs", "simulated", "--shares", "30", "--seconds", "2")

    assert [None, 30, None] == [row["asked"] for row in told["alone"]]
    assert pytest.approx([100, 30, 100], abs=ERROR) == [row["got"] for row in told["alone"]]
    assert told["command"].startswith("hetero bench isolation --jobs simulated")
    assert told["machine"]["simulated"] is True


def test_two_tenants_get_their_shares_beside_each_other(bench: Callable[..., Any]) -> None:
    beside = "60:simulated,30:simulated"

    told = bench("isolation", "--jobs", "", "--together", beside, "--seconds", "2")

    (rows,) = told["together"]
    assert pytest.approx([60, 30], abs=ERROR) == [row["got"] for row in rows]


def test_the_memory_limit_holds_and_what_is_not_installed_is_absent(
    bench: Callable[..., Any],
) -> None:
    told = bench("memory")

    verdicts = {(check["program"], check["passed"]) for check in told["checks"]}
    assert ("the driver API", True) in verdicts
    assert not [check for check in told["checks"] if check["passed"] is False]


def test_every_call_is_timed_under_every_variant(bench: Callable[..., Any]) -> None:
    told = bench("overhead", "--rounds", "1", "--calls", "50")

    timed = {(cost["call"], cost["variant"]) for cost in told["costs"]}
    assert 6 * 4 == len(timed)
    assert all(cost["median"] > 0 for cost in told["costs"])


def test_a_job_that_lacks_its_framework_is_one_clear_line(tmp_path: Path) -> None:
    # Frameworks are hidden rather than hoped absent.
    for framework in ("torch", "torchvision"):
        (tmp_path / f"{framework}.py").write_text("raise ImportError('hidden')\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"

    ended = subprocess.run(
        (sys.executable, "-m", "hetero_benchmarks.job", "gemm", "--seconds", "1"),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "gemm needs PyTorch and torchvision here (hidden)\n" == ended.stderr
    assert 1 == ended.returncode
