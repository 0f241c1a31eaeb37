"""What holds for every test: no wall-clock deadlines, which a busy machine would miss."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.kube.binaries import binaries

settings.register_profile("hetero", deadline=None)
settings.load_profile("hetero")


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Kubernetes' binaries."""
    return binaries(tmp_path_factory.mktemp("kubernetes"))
