"""What holds for every test: no deadline a busy machine would miss, no driver in this process."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hetero_simulator
import pytest
from hypothesis import settings

from tests.kube.binaries import binaries

# What a test says depends on the change alone; `make soak` asks for "soak", which looks further
# each time. Neither count is set anywhere else.
settings.register_profile("hetero", deadline=None, derandomize=True, max_examples=30)
settings.register_profile("soak", deadline=None, max_examples=3000, print_blob=True)
settings.load_profile("hetero")

_DRIVERS = str(hetero_simulator.fake_drivers())

# A child that a test had forked was seen collecting, for ever, what gRPC's event loops had left
# behind in the test process.
os.register_at_fork(after_in_child=gc.disable)


@pytest.fixture(autouse=True, scope="module")
def no_driver_is_left() -> Iterator[None]:
    """A library is loaded once and for good: whoever came next would meet it, its rack and all.

    Simulated drivers belong in a process of their own (`Rack.meet`, a subprocess).
    """
    yield
    assert _DRIVERS not in Path("/proc/self/maps").read_text()


@pytest.fixture(autouse=True, scope="session")
def nothing_is_left_on_simulated_cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A simulated driver keeps what must outlive a program in a file, as a card keeps its slices.

    A card's own state is locked by whoever uses it; slices are noted after the path of their rack.
    """
    yield
    ours = f"{tmp_path_factory.getbasetemp()}/".encode()
    for path in Path("/dev/shm").glob(f"hetero-*-{os.getuid()}-*"):
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as state:
            if path.name.startswith("hetero-rack-"):
                fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            elif state.read(512).startswith(ours):
                path.unlink()


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Kubernetes' binaries."""
    return binaries(tmp_path_factory.mktemp("kubernetes"))
