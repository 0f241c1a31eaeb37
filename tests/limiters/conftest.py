"""What the native parts' tests stand on."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from simulated import Machine
from tenancy import LIMITER


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with one card of 1 GiB."""
    return Machine(tmp_path)


@pytest.fixture(autouse=True)
def nothing_standing(tmp_path: Path) -> Iterator[None]:
    """Slices outlive the test that cut them, as a driver's do: their file goes with the rack."""
    yield
    for file in Path("/dev/shm").glob(f"hetero-*-{os.getuid()}-*"):
        with suppress(FileNotFoundError), file.open("rb") as state:
            if state.read(512).startswith(f"{tmp_path}/".encode()):
                file.unlink()


@pytest.fixture(scope="session")
def instrumented() -> None:
    """The builds under sanitizers, and the fuzzer, which only some tests need."""
    limiters = LIMITER.parents[2]
    with (limiters / "build/instrumented.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests may run in several processes
        subprocess.run(["make", "-s", "-C", limiters, "instrumented"], check=True, timeout=300)
