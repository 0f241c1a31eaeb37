"""What the native parts' tests stand on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from simulated import Machine


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
