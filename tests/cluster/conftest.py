"""What tests on the cluster share: one cluster with hetero on it, cleared after each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.books import Books
from tests.cluster.lab import Lab, running
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

CARD = "nvidia.com/gpu"


def share(memory: int = 2000, core: int = 20, count: int = 1) -> dict[str, str]:
    """Ask for MiB and percent of so many cards."""
    return {CARD: str(count), "nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": str(core)}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, kubernetes: Path) -> Iterator[Release]:
    with running(tmp_path_factory.mktemp("lab"), binaries=kubernetes) as lab:
        release = Release(lab)
        release.install()
        yield release


@pytest.fixture
def release(cluster: Release) -> Iterator[Release]:
    yield cluster
    cluster.lab.clear()
    wait_for(cluster.works)


@pytest.fixture
def lab(release: Release) -> Lab:
    return release.lab


def ended(lab: Lab, *names: str, seconds: float = 60) -> None:
    """Wait until pods have ended."""
    wait_for(
        lambda: all(lab.phases()[name] in ("Succeeded", "Failed") for name in names),
        seconds=seconds,
    )


def run_all(lab: Lab, *names: str, seconds: float = 90) -> None:
    """Wait until pods run; meanwhile no card may be over capacity."""

    def running() -> bool:
        assert [] == Books(lab).faults()
        return all(lab.phases()[name] == "Running" for name in names)

    wait_for(running, seconds=seconds)
