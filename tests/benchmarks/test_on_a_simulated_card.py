"""Every benchmark from its command line to its JSON, on a simulated card."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import hetero_simulator
import pytest
from hetero_benchmarks import overhead

from tests.programs import completed

#: How far a share may be from what was asked, in points.
ERROR = 8


Bench = Callable[..., Any]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    rack = shutil.copy(hetero_simulator.rack("one"), folder)
    environment = {**os.environ, "HETERO_RACK": str(rack), "HETERO_STATE": str(folder / "state")}

    def run(*arguments: str, code: int = 0, **more: str) -> Any:
        report = folder / "report.json"
        command = (sys.executable, "-m", "hetero.cli", "bench", *arguments, "--json", str(report))
        ended = subprocess.run(
            command, env={**environment, **more}, check=False, stdout=subprocess.DEVNULL
        )
        assert code == ended.returncode
        return json.loads(report.read_text())

    return run


@pytest.fixture(scope="module")
def isolation(tmp_path_factory: pytest.TempPathFactory, bench: Bench) -> Any:
    """One job alone and beside another; one that cannot run; and what was recorded of the runs."""
    folder = tmp_path_factory.mktemp("isolation")
    record = folder / "runs.jsonl"
    wanted = ("--jobs", "gemm,simulated", "--together", "60:simulated,30:simulated")
    options = ("--shares", "30", "--seconds", "1", "--record", str(record))
    without = _hidden(folder, "torch", "torchvision")
    document = bench("isolation", *wanted, *options, code=1, PYTHONPATH=without)
    return {
        **document,
        "runs": [json.loads(line)["run"] for line in record.read_text().splitlines()],
    }


@pytest.mark.measured
def test_a_job_gets_its_share_and_runs_unlimited_before_and_after(isolation: Any) -> None:
    rows = isolation["alone"]

    assert [None, 30, None] == [row["asked"] for row in rows]
    assert pytest.approx(30, abs=ERROR) == rows[1]["got"]


@pytest.mark.measured
def test_two_tenants_get_their_shares_beside_each_other(isolation: Any) -> None:
    (two,) = isolation["together"]

    assert pytest.approx([60, 30], abs=ERROR) == [row["got"] for row in two]


@pytest.mark.measured
def test_every_run_is_recorded_as_it_ends_and_what_cannot_run_is_named(isolation: Any) -> None:
    alone = ["simulated unlimited", "simulated at 30 %", "simulated unlimited"]

    together = "simulated at 60 % beside simulated at 30 %"
    assert [*alone, together, "simulated unlimited"] == isolation["runs"]
    assert 3 == len(isolation["missing"])
    assert "gemm at 30 %" in isolation["missing"][1]
    assert "gemm needs PyTorch and torchvision here (hidden)" in isolation["missing"][1]


@pytest.mark.measured
def test_a_report_says_how_it_was_made_and_that_its_card_is_simulated(isolation: Any) -> None:
    assert isolation["command"].startswith("hetero bench isolation --jobs gemm,simulated")
    assert isolation["machine"]["simulated"] is True
    assert {"python", "hetero"} <= isolation["machine"]["versions"].keys()


@pytest.mark.soak
def test_every_promise_is_measured_and_kept(bench: Bench) -> None:
    """The promises that take a minute: four programs at once, lending, precedence, no limits."""
    wanted = ("--jobs", "processes,cooperative", "--pairs", "cooperative:25x4", "--shares", "30")
    goals = ("--elastic", "simulated", "--priority", "tick:simulated", "--free", "simulated")
    document = bench("isolation", *wanted, *goals, "--seconds", "1")

    got = {row["job"]: row["got"] for row in document["alone"] if row["asked"] == 30}
    assert pytest.approx(30, abs=ERROR) == got["cooperative"]
    # Four programs lose time to the driver's changes between them, which time slices spare them.
    assert 20 < got["processes"] < 45
    (four,) = document["together"]
    assert pytest.approx([25] * 4, abs=ERROR) == [row["got"] for row in four]
    (lent,) = document["elastic"]
    assert lent["lone"] > 75
    assert lent["requests"] > 2
    (precedence,) = document["priority"]
    assert precedence["left"] > 90
    assert precedence["undisturbed"] > 75
    assert 0 < precedence["p50_alone"] < precedence["p50"]
    (free,) = document["free"]
    assert pytest.approx(100, abs=ERROR) == median(free["memory_only"])
    assert pytest.approx(100, abs=ERROR) == median(free["full"])


def test_the_memory_limit_holds_and_what_is_not_installed_is_absent(
    bench: Bench,
) -> None:
    document = bench("memory", "--strict", "--programs", "driver,cumem,jax,nccl")

    verdicts = {(check["program"], check["passed"]) for check in document["checks"]}
    assert ("the driver API", True) in verdicts
    assert ("the calls of vLLM's cumem allocator", True) in verdicts
    assert {("JAX", None), ("NCCL on two cards", None)} <= verdicts
    assert not [check for check in document["checks"] if check["passed"] is False]


#: Says what a card holds as nvidia-smi does: more for a moment.
_SMI = """#!/bin/sh
echo 700; echo 700; echo 21703
while sleep 0.05; do echo 700; done
"""


def test_the_most_that_a_card_held_meanwhile_is_found_from_outside(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "nvidia-smi").write_text(_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    wanted = ("memory", "--limit", "20000Mi", "--programs", "cumem-again", "--seconds", "1")
    inside, outside = bench(*wanted, code=1, PATH=f"{tmp_path}:{os.environ['PATH']}")["checks"]

    assert inside["check"].startswith("filled and freed for 1 s")
    assert inside["passed"]
    assert outside["check"].startswith("from outside, the card never holds more than")
    assert not outside["passed"]
    assert outside["saw"].startswith("21003 MiB at most in ")


def test_a_program_that_is_run_without_hetero_first_may_lack_what_it_needs(
    bench: Bench, tmp_path: Path
) -> None:
    """On two cards, which NCCL needs, and without PyTorch, which its native run imports."""
    environ = {
        "HETERO_RACK": str(hetero_simulator.rack("seven")),
        "PYTHONPATH": _hidden(tmp_path, "torch"),
    }
    (check,) = bench("memory", "--programs", "nccl", **environ)["checks"]

    assert (None, "hidden") == (check["passed"], check["saw"])


def test_a_count_leaves_out_one_library_and_what_was_called_is_counted_there() -> None:
    profile = """ob=(1) /lib/ours.so
fn=(1) launch
10 7
cob=(2) /lib/clock.so
cfn=(2) look
calls=3 0
+1 40
-2 5
ob=(2)
fn=(2)
20 40
ob=(1)
fn=(3) leave
* 2
totals: 54
"""
    assert 14 == overhead.instructions(profile, without="clock.so")


def test_every_call_is_timed_under_every_variant_and_a_launch_counted(bench: Bench) -> None:
    counting = ("--count",) if shutil.which("valgrind") else ()
    document = bench("overhead", "--rounds", "1", "--calls", "50", "--at-once", "20", *counting)

    timed = {(cost["call"], cost["variant"]) for cost in document["costs"]}
    assert 9 * 5 == len(timed)
    assert all(cost["median"] > 0 for cost in document["costs"])
    if not counting:
        pytest.skip("valgrind counts the instructions")
    added = {count["variant"]: count["added"] for count in document["counts"]}
    assert (0, 0) == (added["native"], added["limiter, no grant"])
    # One call of ours on that way saves every argument of the launch: ten more (gcc 12, x86-64).
    assert 0 < added["memory only"] == added["core 100"] < 54


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "fast"], "no job 'fast': there are resnet18"),
        (["--jobs", "gemm", "--shares", "100"], "share 100 is not from 1 to 99"),
        (["--together", "gemm"], "tenant 'gemm' is not SHARE:JOB"),
        (["--pairs", "gemm"], "pairs 'gemm' are not JOB,JOB,...:SHARE+SHARE"),
        (["--priority", "decode"], "priority 'decode' is not HIGH:LOW"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_runs(arguments: list[str], message: str) -> None:
    ended = completed((sys.executable, "-m", "hetero.cli", "bench", "isolation", *arguments))

    assert (2, "") == (ended.returncode, ended.stdout)
    assert ended.stderr.startswith(f"hetero: {message}")
    assert 1 == ended.stderr.count("\n")


def test_a_job_that_lacks_its_framework_is_one_clear_line(tmp_path: Path) -> None:
    ended = completed(
        (sys.executable, "-m", "hetero_benchmarks.job", "gemm"),
        env={**os.environ, "PYTHONPATH": _hidden(tmp_path, "torch", "torchvision")},
    )

    assert "gemm needs PyTorch and torchvision here (hidden)\n" == ended.stderr
    assert 1 == ended.returncode


def _hidden(folder: Path, *frameworks: str) -> str:
    """A PYTHONPATH on which these cannot be imported: hidden rather than hoped absent."""
    for framework in frameworks:
        (folder / f"{framework}.py").write_text("raise ImportError('hidden')\n")
    return f"{folder}:{os.environ.get('PYTHONPATH', '')}"
