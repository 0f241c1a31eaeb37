"""A second driver API at the price of a list of names: MUSA, in front of its fake."""

import json
import subprocess
from pathlib import Path
from typing import Any

import hetero_limiters
import hetero_simulator
import pytest
from simulated import Machine
from tenancy import MIB, REGION_BYTES, UUIDS, Terms, packed_grant

RACK = f"""
[device]
vendor = nvidia
model = Other
memory = 1 GiB

[device]
vendor = mthreads
model = MTT S4000
memory = 1 GiB
uuid = {UUIDS[0]}

[kernel spin]
time = 2 us
per_arg0 = 1 ns
"""
LIMITER = hetero_limiters.library("musa")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, RACK)


def _run(
    machine: Machine, terms: Terms | None, *options: str
) -> "subprocess.CompletedProcess[str]":
    environment = {}
    if terms is not None:
        directory = machine.rack.parent / "grant"
        directory.mkdir()
        (directory / "grant").write_bytes(packed_grant([terms]))
        (directory / "usage").write_bytes(bytes(REGION_BYTES))
        environment = {"HETERO_GRANT": str(directory / "grant"), "LD_PRELOAD": str(LIMITER)}
    job = machine.spawn([str(hetero_simulator.job("musa")), *options], **environment)
    out, errors = job.communicate(timeout=60)
    return subprocess.CompletedProcess(job.args, job.returncode, out, errors)


def _told(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert 0 == done.returncode, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_the_second_limiter_keeps_its_grants_memory_exactly(machine: Machine) -> None:
    over = _run(machine, Terms(memory=64 * MIB), "--seconds", "0.1", "--memory", "65MiB")

    assert 0 != over.returncode
    assert "OUT_OF_MEMORY" in over.stderr


def test_the_second_limiter_lets_a_program_have_what_it_was_granted(machine: Machine) -> None:
    _told(_run(machine, Terms(memory=64 * MIB), "--seconds", "0.1", "--memory", "64MiB"))


@pytest.mark.measured
def test_the_second_limiter_keeps_its_grants_share_of_the_core(machine: Machine) -> None:
    load = ("--kernel-us", "500", "--in-flight", "8", "--warmup", "0.2", "--seconds", "1")
    native = _told(_run(machine, None, *load))["rate"]
    limited = _told(_run(machine, Terms(core=3000), *load))["rate"]

    assert 30 == pytest.approx(100 * limited / native, abs=6)
