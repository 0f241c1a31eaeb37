"""The programs that stay up while they are measured, on a simulated card."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hetero_simulator
import pytest
from hetero_benchmarks.cells import Cell, Share, Tenant
from hetero_benchmarks.fleet import Fleet
from hetero_benchmarks.trial import find_machine

from hetero.model.errors import HeteroError

NATIVE = Cell(tenants=(Tenant(job="simulated"),), seconds=0.5, lead=0.2)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    rack = shutil.copy(hetero_simulator.rack("one"), tmp_path)
    monkeypatch.setenv("HETERO_RACK", str(rack))
    monkeypatch.setenv("HETERO_STATE", str(tmp_path / "state"))
    with Fleet(find_machine()) as standing:
        yield standing
    assert set() == _children()


def _children() -> set[int]:
    pids = set[int]()
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # a thread of pytest's that ended meanwhile
            pids |= {*map(int, children.read_text().split())}
    return pids


def _third(core: int) -> Cell:
    tenant = Tenant(job="simulated", share=Share(core=core))
    return Cell(tenants=(tenant,), seconds=1, lead=0.2)


@pytest.mark.measured
def test_one_program_is_measured_at_one_share_after_the_other(fleet: Fleet) -> None:
    cells = [NATIVE, _third(30), _third(60)]
    fleet.prepare(cells)
    programs = _children()
    rates = []
    for cell in cells:
        fleet.prepare([cell])
        (pace,) = fleet.measure(cell)
        assert pace is not None
        rates.append(pace.rate)

    assert 2 == len(programs)
    assert programs == _children()
    assert rates[1] < rates[2] < rates[0]


def test_a_program_that_dies_is_named_and_the_next_run_has_another(fleet: Fleet) -> None:
    fleet.prepare([NATIVE])
    (program,) = _children()
    os.kill(program, signal.SIGTERM)

    with pytest.raises(HeteroError, match="simulated unlimited ended with status -15"):
        fleet.measure(NATIVE)
    fleet.prepare([NATIVE])
    (pace,) = fleet.measure(NATIVE)

    assert pace is not None
    assert {program} != _children()


def test_a_program_that_cannot_start_is_not_tried_again(
    fleet: Fleet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('hidden')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    cell = Cell(tenants=(Tenant(job="infer"),), seconds=1)

    for _ in range(2):
        fleet.prepare([cell])
        with pytest.raises(HeteroError, match="infer needs PyTorch"):
            fleet.measure(cell)

    assert 1 == capsys.readouterr().err.count("starting 1 infer")
