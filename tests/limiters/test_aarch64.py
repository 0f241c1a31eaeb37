"""The limiter on AArch64, which Grace and Kunpeng processors are: cross-compiled, emulated."""

import shutil
import subprocess
from pathlib import Path

import hetero_simulator
import pytest
from simulated import MIB
from tenancy import LIMITER, Grant, Rack, Terms, rate

from tests.programs import completed

EMULATOR = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
LIMITERS = LIMITER.parents[2]
SIMULATOR = hetero_simulator.fake_drivers().parents[2]

#: What `make test-aarch64` builds before: under load that takes longer than a test may.
BUILT = LIMITERS / "build/aarch64"

pytestmark = [
    pytest.mark.aarch64,
    pytest.mark.skipif(
        shutil.which(EMULATOR[0]) is None or not BUILT.is_dir(),
        reason="make test-aarch64 builds it, with gcc-aarch64-linux-gnu, libc6-dev-arm64-cross "
        "and qemu-user of Debian",
    ),
]


def _job(rack: Rack, *options: str, grant: Grant | None = None) -> "subprocess.Popen[str]":
    """Start the job on the rack's card, under the grant if there is one; all of it emulated."""
    simulator = SIMULATOR / "build/aarch64/lib"
    variables = {"LD_LIBRARY_PATH": str(simulator / "drivers")}
    if grant is not None:
        variables["HETERO_GRANT"] = grant.environment["HETERO_GRANT"]
        variables["LD_PRELOAD"] = str(BUILT / "lib" / LIMITER.name)
    guest = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    return rack.machine.spawn([*EMULATOR, *guest, str(simulator / "hetero-job-cuda"), *options])


@pytest.mark.parametrize(
    "program",
    ["budget_test", "gate_test", "governor_test", "ledger_test", "power_test", "time_slice_test"],
)
def test_core_on_aarch64(program: str) -> None:
    emulated = [*EMULATOR, str(BUILT / program)]
    names = completed(emulated, timeout=60).stdout.split()
    assert names
    for name in names:
        done = completed([*emulated, name], timeout=120)
        assert done.returncode == 0, name + done.stdout + done.stderr


def test_programs_on_aarch64_have_their_shares(tmp_path: Path) -> None:
    rack = Rack.of(tmp_path)
    whole = rate(_job(rack, "--seconds", "2"))
    jobs = [
        _job(rack, "--seconds", "4", grant=rack.grant(Terms(core=core), name=f"{core}"))
        for core in (3000, 5000)
    ]
    got = [100 * rate(job) / whole for job in jobs]
    print(got)
    assert 25 < got[0] < 33, got
    assert 45 < got[1] < 53, got


def test_a_program_on_aarch64_has_its_memory_and_no_more(tmp_path: Path) -> None:
    rack = Rack.of(tmp_path)
    grant = rack.grant(Terms(memory=64 * MIB))
    job = _job(rack, "--seconds", "1", "--alloc", "64MiB", "--alloc", "65MiB", grant=grant)
    out, errors = job.communicate(timeout=60)
    assert job.returncode == 1, errors
    assert "CUDA_ERROR_OUT_OF_MEMORY" in out
    assert (grant.usage().peak, grant.usage().denied) == (64 * MIB, 1)
