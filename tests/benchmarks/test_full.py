"""The measurement of whether anybody waits while the card could work, on a simulated card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest
from hetero_benchmarks.busy import union
from hetero_benchmarks.job import answer

FULL = Path(__file__).parents[2] / "benchmarks/full.py"
sys.path.insert(0, str(FULL.parent))
from full import main, missed  # noqa: E402 - benchmarks is no package


@pytest.mark.measured
def test_programs_are_measured_beside_each_other_and_alone(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HETERO_RACK": str(hetero_simulator.rack("one")),
        "HETERO_STATE": str(tmp_path / "state"),
    }
    report = tmp_path / "full.json"
    options = ("mixes,alone", "--mix", "tick:30,simulated:60", "--alone", "tick", "--seconds", "2")
    done = subprocess.run(
        [sys.executable, str(FULL), *options, "--json", str(report)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(report.read_text())
    print(done.stdout)
    # What a simulated card on a busy machine gives is no promise, without a limiter least of all:
    # the exit status says which promises it missed.
    assert bool(missed(_numbers(told))) == bool(done.returncode)
    assert "tick:30,simulated:60 mps: not run" in done.stdout
    (mix,), (alone,) = told["mixes"], told["alone"]
    assert {"none", "fixed", "elastic"} == set(mix["got"])
    assert all(len(got) == 2 and min(got) > 0 for got in mix["got"].values())
    assert (None, {10, 30, 60}) == (alone["b"], set(alone["got"]))


def _numbers(told: dict[str, Any]) -> dict[str, Any]:
    """Undo what JSON makes of keys that are numbers."""
    for row in told["alone"]:
        for name in ("got", "law"):
            row[name] = {int(share): figure for share, figure in row[name].items()}
    return told


def _report(**changes: Any) -> dict[str, Any]:
    mix = {
        "mix": "light:50,prefill:50",
        "got": {"none": [90.0, 92.0], "mps": [96.0, 95.0], "fixed": [88.0, 50.0]},
    }
    alone = {"job": "light", "b": 0.1, "got": {10: 97.5, 30: 99.0}, "law": {10: 100, 30: 100}}
    online = {"batch": "vit", "times": 1.2, "left": 0.95}
    return {"mixes": [mix], "alone": [alone], "online": [online]} | changes


def test_a_report_that_keeps_the_promises_misses_nothing() -> None:
    assert [] == missed(_report())


@pytest.mark.parametrize(
    ("got", "line"),
    [
        ({"none": [90, 92], "fixed": [80, 50]}, "fixed: light has 80.0, and 90.0 without"),
        ({"none": [90, 92], "fixed": [90, 48]}, "fixed: prefill has 48.0 of its share of 50"),
        ({"none": [90, 92], "elastic": [90, 80]}, "elastic: less than 0.97 of no limiter"),
    ],
)
def test_what_a_mix_lacks_is_said(got: dict[str, list[float]], line: str) -> None:
    (said,) = missed(_report(mixes=[{"mix": "light:50,prefill:50", "got": got}]))

    assert line in said


def test_what_a_program_lacks_alone_and_beside_requests_is_said() -> None:
    alone = {"job": "light", "b": 0.1, "got": {10: 96.0}, "law": {10: 100}}
    online = {"batch": "vit", "times": 1.31, "left": 0.89}

    assert [
        "light alone at 10: 96.0 of 100.0",
        "online beside vit: 1.31 times as late",
        "vit beside online: 89.0 % of what is left",
    ] == missed(_report(alone=[alone], online=[online]))


@pytest.mark.parametrize(
    "options",
    [("mixes", "--mix", "light"), ("mixes", "--mix", "nobody:30"), ("all",), ("--alone", "nobody")],
)
def test_bad_options_are_refused(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)

    assert 2 == ended.value.code
    assert "error: argument" in capsys.readouterr().err


def test_what_overlaps_keeps_the_card_busy_once() -> None:
    assert 0 == union([])
    assert 6 == union([(5, 8), (0, 2), (1, 3), (6, 7)])


def test_a_request_takes_from_when_it_came_until_its_answer() -> None:
    def steps() -> Iterator[int]:
        while True:
            time.sleep(0.02)
            yield 1

    begun = time.monotonic()
    marks = answer(steps(), until=begun + 0.5, arrivals=200)  # type: ignore[arg-type]

    # Five times as many come as can be answered: the later, the longer they have waited.
    assert marks[0][1:] == (0, 0.0)
    assert begun + 0.5 <= marks[-1][0]
    waits = [wait for _, _, wait in marks[1:]]
    assert 0.02 <= waits[0] < waits[-1]
    assert waits[-1] > 0.2
