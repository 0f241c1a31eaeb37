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

pytestmark = pytest.mark.measured


#: How far a share may be from what was asked, in points.
ERROR = 5


Bench = Callable[..., Any]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    rack = shutil.copy(hetero_limiters.rack("one"), folder)
    environment = {**os.environ, "HETERO_RACK": str(rack), "HETERO_STATE": str(folder / "state")}

    def run(*arguments: str) -> Any:
        report = folder / "report.json"
        command = (sys.executable, "-m", "hetero", "bench", *arguments, "--json", str(report))
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return json.loads(report.read_text())

    return run


@pytest.fixture(scope="module")
def isolation(bench: Bench) -> Any:
    alone = ("--jobs", "simulated", "--shares", "30")
    return bench("isolation", *alone, "--together", "60:simulated,30:simulated", "--seconds", "2")


def test_a_job_gets_its_share_and_its_full_speed_before_and_after(isolation: Any) -> None:
    rows = isolation["alone"]

    assert [None, 30, None] == [row["asked"] for row in rows]
    assert pytest.approx([100, 30, 100], abs=ERROR) == [row["got"] for row in rows]


def test_two_tenants_get_their_shares_beside_each_other(isolation: Any) -> None:
    (rows,) = isolation["together"]

    assert pytest.approx([60, 30], abs=ERROR) == [row["got"] for row in rows]


def test_a_report_says_how_it_was_made_and_that_its_card_is_simulated(isolation: Any) -> None:
    assert isolation["command"].startswith("hetero bench isolation --jobs simulated")
    assert isolation["machine"]["simulated"] is True
    assert {"python", "hetero"} <= isolation["machine"]["versions"].keys()


def test_the_memory_limit_holds_and_what_is_not_installed_is_absent(
    bench: Bench,
) -> None:
    told = bench("memory")

    verdicts = {(check["program"], check["passed"]) for check in told["checks"]}
    assert ("the driver API", True) in verdicts
    assert not [check for check in told["checks"] if check["passed"] is False]


def test_every_call_is_timed_under_every_variant(bench: Bench) -> None:
    told = bench("overhead", "--rounds", "1", "--calls", "50", "--at-once", "20")

    timed = {(cost["call"], cost["variant"]) for cost in told["costs"]}
    assert 9 * 5 == len(timed)
    assert all(cost["median"] > 0 for cost in told["costs"])


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts the instructions")
def test_a_launch_that_nothing_limits_is_a_few_instructions_longer(bench: Bench) -> None:
    told = bench("overhead", "--rounds", "1", "--calls", "50", "--count")

    added = {count["variant"]: count["added"] for count in told["counts"]}
    assert (0, 0) == (added["native"], added["limiter, no grant"])
    # 30 ns are about a hundred; the clock's are for `hetero bench overhead` on a quiet machine.
    assert 0 < added["memory only"] == added["core 100"] < 80


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
