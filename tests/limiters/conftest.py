"""What the native parts' tests stand on."""

import fcntl
import subprocess
from pathlib import Path

import pytest
from tenancy import LIMITER, MIB, Grant, Rack, Terms


@pytest.fixture
def rack(tmp_path: Path) -> Rack:
    """A card of 1 GiB for tenants."""
    return Rack.of(tmp_path)


@pytest.fixture
def grant(rack: Rack) -> Grant:
    """A grant of 64 MiB on it."""
    return rack.grant(Terms(memory=64 * MIB))


@pytest.fixture(scope="session")
def instrumented() -> None:
    """The builds under sanitizers, and the fuzzer, which only some tests need."""
    limiters = LIMITER.parents[2]
    with (limiters / "build/instrumented.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
        subprocess.run(["make", "-s", "-C", limiters, "instrumented"], check=True, timeout=600)
