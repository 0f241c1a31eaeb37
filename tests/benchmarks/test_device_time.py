"""What a driver says of honest programs is recorded, and drawn from without a false alarm."""

import json
import os
import shutil
import sys
from pathlib import Path

import hetero_simulator
import pytest

from tests.programs import completed

#: 17 runs of honest programs on an H100 (docs/measurements/shares.md).
RECORDED = Path(__file__).parent / "data/h100-device-time.jsonl"
SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "device_time.py"


def own_rack(state: Path) -> Path:
    """Return a copy of a shipped rack: what cards do is kept by a rack's path."""
    return Path(shutil.copy(hetero_simulator.rack("one"), state.with_name("one.rack")))


def run(*words: str, state: Path) -> str:
    environ = {
        **os.environ,
        "HETERO_RACK": str(own_rack(state)),
        "HETERO_STATE": str(state),
    }
    done = completed([sys.executable, str(SCRIPT), *words], env=environ)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout


def test_what_is_recorded_is_drawn_from(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    printed = run(
        "record", str(file), "--runs", "cooperative", "--seconds", "10", state=tmp_path / "state"
    )
    (recorded,) = map(json.loads, file.read_text().splitlines())

    assert [0.3] == list(recorded["shares"].values())
    assert 4 <= len(recorded["samples"])
    assert all(each["worked"] for each in recorded["samples"])
    assert printed.startswith("cooperative")
    drawn = run("resample", str(file), "--windows", "50", state=tmp_path / "state")
    assert ["cooperative", "50", "windows,", "0", "alarms"] == drawn.split()


def test_a_program_that_is_not_charged_is_an_alarm_in_each_window(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    samples = [
        {"at": at, "busy": 1.0, "worked": [["a", 7, 0.5]], "charged": {"a": 0.0}}
        for at in range(10)
    ]
    file.write_text(json.dumps({"name": "liar", "shares": {"a": 0.1}, "samples": samples}))

    drawn = run("resample", str(file), "--windows", "20", state=tmp_path / "state")
    assert ["liar", "20", "windows,", "20", "alarms"] == drawn.split()


@pytest.mark.parametrize("windows", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_no_honest_program_that_was_recorded_on_a_card_is_an_alarm(
    tmp_path: Path, windows: int
) -> None:
    drawn = run("resample", str(RECORDED), "--windows", str(windows), state=tmp_path / "state")
    lines = drawn.splitlines()

    assert 17 == len(lines)
    assert [f"{windows} windows, 0 alarms"] * 17 == [line[27:] for line in lines]
