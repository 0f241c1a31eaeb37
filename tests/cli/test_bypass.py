"""What runs past its limiter is found by the driver's own figures, on a simulated card."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import hetero_limiters
import hetero_simulator
import pytest

from tests.programs import WITHOUT_LIMITER, completed, next_line

from .conftest import Begin, Run


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    rack = "[device]\nvendor = nvidia\nmodel = Card\nmemory = 32 GiB\ncontext = 500 MiB\n"
    rack += "[kernel spin]\ntime = 2 us\nper_arg0 = 1 ns\n"
    file = f"{environ['PYTHONPATH']}/test.rack"
    with open(file, "w") as written:
        written.write(rack)
    return {**environ, "HETERO_RACK": file, "PYTHONPATH": ""}


@pytest.fixture
def start(begin: Begin, command: tuple[str, ...]) -> Begin:
    """Start a job under a grant of 4 GiB, by way of other commands in front of it."""

    def job(*before: str, memory: str) -> subprocess.Popen[str]:
        limits = ("--memory", "4Gi", "--core", "50")
        return with_memory(begin(*command, "run", *limits, "--", *before, *asking(memory)))

    return job


@pytest.fixture
def outside(begin: Begin) -> Begin:
    """Start a command that has no grant and meets the simulated drivers."""

    def program(*words: str) -> subprocess.Popen[str]:
        return with_memory(begin(*words, LD_LIBRARY_PATH=str(hetero_simulator.fake_drivers())))

    return program


def asking(memory: str) -> tuple[str, ...]:
    return str(hetero_simulator.job("cuda")), "--seconds", "600", "--memory", memory


def with_memory(program: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """Wait until a job that was started says a line: it has its memory."""
    next_line(program)
    return program


def test_a_program_that_dropped_the_limiter_is_found(hetero: Run, start: Begin) -> None:
    program = start(*WITHOUT_LIMITER, memory="6GiB")

    done = hetero("doctor")

    assert 1 == done.returncode
    (line,) = [
        line for line in done.stdout.splitlines() if line.startswith(f"process {program.pid}")
    ]
    assert "bad" in line
    assert "6644 MiB" in " ".join(done.stdout.split())
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    assert [program.pid] == [found["pid"] for found in grant["bypass"]]
    assert f"process {program.pid} of grant {grant['id']}" in hetero("ps").stdout


def test_a_program_that_lost_both_the_limiter_and_the_open_file_is_its_starters(
    hetero: Run, start: Begin
) -> None:
    """Python closes files, and a program with file capabilities, say, loads no limiter."""
    starter = "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"
    program = start(sys.executable, "-c", starter, *WITHOUT_LIMITER, memory="6GiB")

    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    (bypass,) = grant["bypass"]
    assert program.pid != bypass["pid"]
    assert 6644 << 20 == bypass["memory"]


def test_who_watches_is_told_within_five_seconds_and_once(
    begin: Begin, start: Begin, command: tuple[str, ...]
) -> None:
    watch = begin(*command, "doctor", "--watch")
    assert watch.stdout
    start(memory="1GiB")
    program = start(*WITHOUT_LIMITER, memory="3GiB")
    report = watch.stdout.readline()
    time.sleep(4)
    watch.kill()
    more = watch.stdout.read()

    assert f"({program.pid}) holds 3572 MiB" in report
    assert "past the limiter of grant" in report
    assert "" == more


STRANGE = """
import ctypes, time
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
for number in 1, 2, 2:
    driver.cuGetExportTable(ctypes.byref(ctypes.c_void_p()), ctypes.c_char_p(bytes([number] * 16)))
print("asked", flush=True)
time.sleep(600)
"""


def test_ps_counts_what_programs_ask_for_and_the_limiter_does_not_know(
    hetero: Run, begin: Begin, command: tuple[str, ...], start: Begin
) -> None:
    start(memory="1GiB")
    run = (*command, "run", "--memory", "4Gi", "--label", "strange", "--", sys.executable, "-c")
    with_memory(begin(*run, STRANGE))

    grants = {grant["label"]: grant for grant in json.loads(hetero("ps", "--json").stdout)["items"]}
    notes = [line for line in hetero("ps").stdout.splitlines() if "does not know" in line]

    assert {"strange": 2, None: 0} == {label: grant["unknown"] for label, grant in grants.items()}
    asked = "asked for 2 of the driver's functions that its limiter does not know"
    assert [f"grant {grants['strange']['id']} {asked}"] == notes


STATIC = """
#include "abi.h"
#include <stdio.h>
#include <unistd.h>
int main(void)
{
    CUcontext context;
    CUdeviceptr memory;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
        cuMemAlloc_v2(&memory, 3ull << 30))
        return 1;
    puts("holds it");
    fflush(stdout);
    return pause();
}
"""


@pytest.mark.skipif(
    not Path(subprocess.check_output(["cc", "-print-file-name=rcrt1.o"], text=True)).is_absolute(),
    reason="the C library is not there for static programs",
)
def test_a_static_program_that_brings_its_own_driver_is_found(
    hetero: Run, start: Begin, tmp_path: Path
) -> None:
    """No loader runs in it that could be told to preload anything."""
    limiters = hetero_limiters.library("cuda").parents[2]
    driver = hetero_simulator.fake_drivers().parents[2] / "build/drivers"
    parts = ("rack", "engine", "object", "process_number", "nvidia")
    objects = [*driver.glob("cuda_*.o"), *(driver / f"{n}.o" for n in parts)]
    static = tmp_path / "static"
    command = ["cc", "-static-pie", "-pthread", f"-I{limiters / 'cuda'}", "-o", str(static)]
    command += ["-x", "c", "-", "-x", "none", *map(str, objects)]
    completed(command, input=STATIC, check=True)

    program = start(str(static), memory="1GiB")
    done = hetero("doctor")

    assert 1 == done.returncode
    (line,) = [
        line for line in done.stdout.splitlines() if line.startswith(f"process {program.pid}")
    ]
    assert "past the limiter" in line


def test_a_tenant_that_writes_over_its_usage_hides_nothing_and_stops_nobody_looking(
    hetero: Run, start: Begin, environ: Mapping[str, str]
) -> None:
    program = start(memory="3GiB")
    (usage,) = Path(environ["HETERO_STATE"]).glob("sim-*/grants/*/tenant/usage")
    whole = usage.read_bytes()
    rng = random.Random(1)
    for garbage, is_region in (
        (bytes(len(whole)), False),
        (rng.randbytes(len(whole)), False),
        (whole[:16] + rng.randbytes(9000), True),  # says more than the limit, and is believed that
    ):
        with usage.open("r+b") as file:
            file.write(garbage)
        listed, checkup = hetero("ps"), hetero("doctor")

        assert (0, "", "") == (listed.returncode, listed.stderr, checkup.stderr)
        assert (0 if is_region else 1) == checkup.returncode
        assert is_region != (f"process {program.pid} of grant" in listed.stdout)
        assert is_region != (f"process {program.pid}" in checkup.stdout)
    os.truncate(usage, 100)
    listed = hetero("ps")
    assert (0, "") == (listed.returncode, listed.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="root makes a mount namespace")
def test_a_program_in_a_container_without_its_limiter_is_found(
    hetero: Run, start: Begin, outside: Begin, environ: Mapping[str, str]
) -> None:
    start(memory="1GiB")
    (grant,) = Path(environ["HETERO_STATE"]).glob("sim-*/grants/*/tenant/grant")
    inside = "mount -t tmpfs none /etc && mkdir /etc/hetero && touch /etc/hetero/grant && "
    inside += f"mount --bind {grant} /etc/hetero/grant && exec {' '.join(asking('3GiB'))}"
    program = outside("unshare", "--mount", "sh", "-c", inside)

    done = hetero("doctor")

    assert 1 == done.returncode
    (line,) = [
        line for line in done.stdout.splitlines() if line.startswith(f"process {program.pid}")
    ]
    assert "past the limiter" in line


def test_a_context_is_part_of_what_is_used_and_no_escape(hetero: Run, start: Begin) -> None:
    """It takes 500 MiB, and 2 for the first small piece of memory."""
    start(memory="2GiB")

    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    (share,) = grant["shares"]
    assert ((2 << 30) + (502 << 20), 0, []) == (
        share["memory_used"],
        share["overhead"],
        grant["bypass"],
    )
    assert 0 == hetero("doctor").returncode


def test_who_takes_device_time_past_the_limiter_is_seen_beside_who_keeps_to_a_share(
    hetero: Run, begin: Begin, start: Begin, command: tuple[str, ...]
) -> None:
    watch = begin(*command, "doctor", "--watch")
    kept = start(memory="1MiB")
    program = start(*WITHOUT_LIMITER, memory="1MiB")
    holds, report = next_line(watch), next_line(watch)

    assert f"({program.pid}) holds" in holds
    assert re.search(
        rf" \({program.pid}\) takes \d+ % of the time of GPU-\w+ past the limiter", report
    )
    grants = json.loads(hetero("ps", "--json").stdout)["items"]
    core_percent = {
        one["pid"]: one["core"] for grant in grants for one in grant["bypass"] if one["core"]
    }
    assert {program.pid} == set(core_percent)
    assert 25 <= core_percent[program.pid] <= 100
    top = hetero("top", "--once").stdout
    (share,) = json.loads(hetero("top", "--once", "--json").stdout)["grants"][1]["shares"]
    assert 25 <= share["core_excess"] <= 100
    assert " excess " in top
    assert f"process {program.pid} of grant" in hetero("ps").stdout
    assert kept.poll() is None


def test_a_program_without_a_grant_is_noted(hetero: Run, start: Begin, outside: Begin) -> None:
    start(memory="1GiB")
    stranger = outside(*asking("1GiB"))

    done = hetero("doctor")

    assert 0 == done.returncode
    (line,) = [line for line in done.stdout.splitlines() if f"process {stranger.pid}" in line]
    assert "note" in line
