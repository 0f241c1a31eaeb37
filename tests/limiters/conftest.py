"""What only some of the limiter's tests need built."""

import fcntl
import subprocess

import pytest
from tenancy import LIMITER

LIMITERS = LIMITER.parents[2]


@pytest.fixture(scope="session")
def instrumented() -> None:
    """The builds under sanitizers, and the fuzzer."""
    with (LIMITERS / "build/instrumented.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
        subprocess.run(["make", "-s", "-C", LIMITERS, "instrumented"], check=True, timeout=300)
