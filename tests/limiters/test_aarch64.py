"""The limiter on AArch64, which Grace and Kunpeng processors are: cross-compiled, emulated."""

import os
import shutil
import subprocess
from pathlib import Path

import hetero_simulator
import pytest
from simulated import MIB
from tenancy import LIMITER, Grant, Rack, Terms, rate

from tests.programs import completed

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
LIMITERS = LIMITER.parents[2]
SIMULATOR = hetero_simulator.fake_drivers().parents[2]

pytestmark = [
    pytest.mark.aarch64,
    pytest.mark.skipif(
        None in (shutil.which(COMPILER), shutil.which(EMULATOR[0])),
        reason="needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user of Debian",
    ),
]


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of what the limiters' Makefile builds, built for AArch64."""
    variables = ("BUILD=build/aarch64", "LIB=build/aarch64/lib", f"CC={COMPILER}")
    jobs = str(os.cpu_count() or 1)
    for source, targets in ((LIMITERS, ("all", "tests")), (SIMULATOR, ("all",))):
        command = ["make", "-s", "-j", jobs, "-C", source, *variables, *targets]
        subprocess.run(command, check=True, timeout=300)
    return LIMITERS / "build/aarch64"


def _job(
    built: Path, rack: Rack, *options: str, grant: Grant | None = None
) -> "subprocess.Popen[str]":
    """Start the job on the rack's card, under the grant if there is one; all of it emulated."""
    simulator = SIMULATOR / "build/aarch64/lib"
    variables = {"LD_LIBRARY_PATH": str(simulator / "drivers")}
    if grant is not None:
        variables["HETERO_GRANT"] = grant.environment["HETERO_GRANT"]
        variables["LD_PRELOAD"] = str(built / "lib" / LIMITER.name)
    guest = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    return rack.machine.spawn([*EMULATOR, *guest, str(simulator / "hetero-job-cuda"), *options])


@pytest.mark.parametrize(
    "program",
    ["budget_test", "gate_test", "governor_test", "ledger_test", "power_test", "time_slice_test"],
)
def test_core_on_aarch64(built: Path, program: str) -> None:
    emulated = [*EMULATOR, str(built / program)]
    names = completed(emulated, timeout=60).stdout.split()
    assert names
    for name in names:
        done = completed([*emulated, name], timeout=120)
        assert done.returncode == 0, name + done.stdout + done.stderr


def test_programs_on_aarch64_have_their_shares(built: Path, tmp_path: Path) -> None:
    rack = Rack.of(tmp_path)
    whole = rate(_job(built, rack, "--seconds", "2"))
    jobs = [
        _job(built, rack, "--seconds", "4", grant=rack.grant(Terms(core=core), name=f"{core}"))
        for core in (3000, 5000)
    ]
    got = [100 * rate(job) / whole for job in jobs]
    print(got)
    assert 25 < got[0] < 33, got
    assert 45 < got[1] < 53, got


def test_a_program_on_aarch64_has_its_memory_and_no_more(built: Path, tmp_path: Path) -> None:
    rack = Rack.of(tmp_path)
    grant = rack.grant(Terms(memory=64 * MIB))
    job = _job(built, rack, "--seconds", "1", "--alloc", "64MiB", "--alloc", "65MiB", grant=grant)
    out, errors = job.communicate(timeout=60)
    assert job.returncode == 1, errors
    assert "CUDA_ERROR_OUT_OF_MEMORY" in out
    assert (grant.usage().peak, grant.usage().denied) == (64 * MIB, 1)
