"""A rack for one test, gone with all its slices afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from racks import Rack


@pytest.fixture
def make_rack(tmp_path: Path) -> Iterator[Callable[..., Rack]]:
    made: list[Rack] = []

    def make(*texts: str) -> Rack:
        made.append(Rack(tmp_path / f"{len(made)}.rack", "".join(texts)))
        return made[-1]

    yield make
    for rack in made:
        rack.forget()
