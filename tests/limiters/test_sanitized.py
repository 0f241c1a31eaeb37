"""The whole limiter under ASan, UBSan and TSan, in front of the fake driver."""

import json
import os
import sys
from pathlib import Path

import hetero_simulator
import pytest
from tenancy import LIMITER, MIB, Grant, Rack, Terms

from tests.programs import completed

BUILD = LIMITER.parents[2] / "build"
SANITIZED = BUILD / "address/libhetero-cuda.so"

#: A build under a sanitizer is ten times as slow: these limits are for what hangs.
HANGS = 180
pytestmark = [pytest.mark.usefixtures("instrumented"), pytest.mark.timeout(600)]


@pytest.fixture
def grant(tmp_path: Path) -> Grant:
    return Rack.of(tmp_path).grant(Terms(memory=64 * MIB, core=5000, flags=3))


def _environment(grant: Grant) -> dict[str, str]:
    runtime = completed(["cc", "-print-file-name=libasan.so"], check=True)
    return {
        **grant.environment,
        "LD_PRELOAD": f"{runtime.stdout.strip()} {SANITIZED}",
        # The interpreter and the fake driver keep what they allocate until they end.
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def _without_refusals(errors: str) -> str:
    """Return what was said, but for what a program is told that asks for too much."""
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if "MiB of the grant are in use" not in line)


@pytest.mark.parametrize(
    "load", [("--kernel-us", "200"), ("--kernel-us", "20", "--graph", "50")], ids=["plain", "graph"]
)
def test_a_job_meets_nothing_wrong(grant: Grant, load: tuple[str, ...]) -> None:
    command = [str(hetero_simulator.job("cuda")), *load, "--seconds", "0.5", "--memory", "32MiB"]
    job = grant.rack.machine.spawn(command, **_environment(grant))
    out, errors = job.communicate(timeout=HANGS)

    assert (0, "") == (job.returncode, errors)
    assert 32 * MIB == json.loads(out.splitlines()[-1])["memory"]


def test_every_path_to_memory_meets_nothing_wrong(grant: Grant) -> None:
    text = f"""
context = start()
def every_path(number):
    call("cuCtxSetCurrent", context)
    for path in PATHS:
        for _ in range(3):
            what = take(path, {2 * MIB})
            refused = take(path, {512 * MIB})
            if not isinstance(what, int) or what != OUT_OF_MEMORY:  # four chunks of pools are more
                give(path, what)
in_threads(4, every_path)
own, stream = c_void_p(), c_void_p()
call("cuCtxCreate_v2", byref(own), c_uint(0), c_int(0))
call("cuStreamCreate", byref(stream), c_uint(1))
launch(spin_kernel(), 100, stream)
call("cuCtxDestroy_v2", own)
start()
say(info()[0])
"""
    program = grant.rack.start(text, **_environment(grant))
    out, errors = program.communicate(timeout=HANGS)

    assert (0, "") == (program.returncode, _without_refusals(errors))
    assert 64 * MIB == json.loads(out)


def test_what_nvml_lists_meets_nothing_wrong(grant: Grant) -> None:
    text = """
from pynvml import *
nvmlInit()
start()
take("plain", 2 << 20)
card = nvmlDeviceGetHandleByIndex(0)
say([nvmlDeviceGetMemoryInfo(card).used, nvmlDeviceGetUtilizationRates(card).gpu,
     len(nvmlDeviceGetComputeRunningProcesses(card)),
     len(nvmlDeviceGetProcessUtilization(card, 0))])
"""
    program = grant.rack.start(text, **_environment(grant))
    out, errors = program.communicate(timeout=HANGS)

    assert (0, "") == (program.returncode, errors)
    assert [2 * MIB, 0, 1, 1] == json.loads(out)


@pytest.mark.parametrize("limit", [3, 256], ids=["short of memory", "plain"])
def test_threads_of_one_program_meet_no_data_race(tmp_path: Path, limit: int) -> None:
    grant = Rack.of(tmp_path).grant(Terms(memory=limit * MIB, core=5000))
    program = grant.rack.machine.spawn(
        [str(BUILD / "thread/threads")], HETERO_GRANT=grant.environment["HETERO_GRANT"]
    )
    out, errors = program.communicate(timeout=HANGS)

    assert ("", "", 0) == (out, _without_refusals(errors), program.returncode)
    assert 320 < grant.usage().launches
    assert grant.usage().peak <= limit * MIB
    assert (limit == 3) == (grant.usage().denied > 0)


def test_threads_of_a_gang_meet_no_data_race(tmp_path: Path) -> None:
    """Two governors of one process agree on rows that are short, so that there are many.

    On a busy machine the lead changes in most rows, which are not told then: the program is run
    until three were.
    """
    (tmp_path / "rack").write_text("[device]\nvendor = nvidia\nmodel = Card\nmemory = 1 GiB\n" * 2)
    program = f"LD_PRELOAD= exec {BUILD / 'thread/threads'}"  # the limiter is linked in
    limits = ("--count", "2", "--core", "3", "--memory", "256Mi")
    rows = 0
    for _ in range(9):
        done = completed(
            [sys.executable, "-m", "hetero.cli", "run", "-q", *limits, "--", "sh", "-c", program],
            env={
                **os.environ,
                "HETERO_RACK": str(tmp_path / "rack"),
                "HETERO_STATE": str(tmp_path / "state"),
                "HETERO_LOG": "debug",
            },
            timeout=HANGS,
        )
        reports = [line for line in done.stderr.splitlines() if not line.startswith("hetero[")]
        assert (0, []) == (done.returncode, reports)
        rows += done.stderr.count("gang: row")
        if rows > 2:
            break

    assert rows > 2
