"""What the simulator's tests stand on."""

from pathlib import Path

import pytest
from simulated import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with one card of 1 GiB."""
    return Machine(tmp_path)
