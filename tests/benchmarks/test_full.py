"""The measurement of whether anybody waits while the card could work, on a simulated card."""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest
from hetero_benchmarks.busy import gaps, union
from hetero_benchmarks.full_goals import missed
from hetero_benchmarks.job import answer

from tests.programs import completed

FULL = Path(__file__).parents[2] / "benchmarks/full.py"
sys.path.insert(0, str(FULL.parent))
from full import main, median  # noqa: E402 - benchmarks is no package


def measured(
    tmp_path: Path, *options: str, **environment: str
) -> tuple[dict[str, Any], str, list[str]]:
    """Return the report, what was printed, and what was missed by it."""
    report = tmp_path / "full.json"
    # Simulated daemons of MPS end with these tests, and are known by their environment.
    mps_variables = {"MPS_ENDS_WITH": str(os.getpid()), "MPS_OF": str(tmp_path)}
    # What cards do is kept by a rack's path.
    rack = str(shutil.copy(hetero_simulator.rack("one"), tmp_path))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as short:
        # A socket's path has 107 characters at most.
        done = completed(
            [sys.executable, str(FULL), *options, "--json", str(report)],
            env={
                **os.environ,
                "HETERO_RACK": rack,
                "HETERO_STATE": short,
                **mps_variables,
                **environment,
            },
        )
    print(done.stdout, done.stderr)
    assert [] == _daemons(f"MPS_OF={tmp_path}")
    document = json.loads(report.read_text())
    lines = missed(document)
    # What a simulated card on a busy machine gives is no promise, without a limiter least of all:
    # the exit status says which promises it missed.
    assert bool(lines) == bool(done.returncode)
    return document, done.stdout, lines


def _daemons(variable: str) -> list[str]:
    """Return the names of the processes of MPS that have this in their environment."""
    names = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                names.append((process / "comm").read_text().strip())
    return [name for name in names if name.startswith("nvidia-cuda-mps")]


def test_programs_are_measured_beside_each_other(tmp_path: Path) -> None:
    options = ("--seconds", "1", "--configurations", "none,fixed,elastic-mps,hami-core")
    document, printed, _ = measured(tmp_path, "mixes", "--mix", "tick:30,simulated:60", *options)

    (mix,) = document["mixes"]
    assert "tick:30,simulated:60 hami-core: not run (no --hami-core LIBRARY was given)" in printed
    assert {"none", "fixed", "elastic-mps"} == set(mix["got"])
    assert {"fixed", "elastic-mps"} == set(mix["paired"])
    assert all(len(got) == 2 and min(got) > 0 for got in mix["got"].values())


@pytest.mark.soak
def test_programs_are_measured_alone_and_under_every_configuration(tmp_path: Path) -> None:
    options = ("--mix", "tick:30,simulated:60", "--alone", "tick", "--seconds", "1")
    document, _, _ = measured(tmp_path, "mixes,alone", *options)

    (mix,), (alone,) = document["mixes"], document["alone"]
    assert {"none", "mps", "fixed", "elastic", "elastic-mps"} == set(mix["got"])
    assert ({None}, {"10", "30", "60"}) == (set(alone["b"].values()), set(alone["got"]))


@pytest.mark.soak
def test_requests_are_measured_beside_a_program_that_stands_and_runs(tmp_path: Path) -> None:
    options = ("--online", "tick", "--batch", "simulated", "--sharing", "mps", "--phase", "1")
    document, _, _ = measured(tmp_path, "online", *options)

    (online,) = document["online"]
    assert [4, 4] == [len(each) for each in online["p99_ms"].values()]
    assert 0 < online["busy"] < 1
    assert online["left"] > 0


def test_where_there_is_no_mps_its_cells_are_not_run(tmp_path: Path) -> None:
    rack = Path(shutil.copy(hetero_simulator.rack("amd"), tmp_path))
    options = ("jobs", "--sharing", "mps", "--jobs", "processes")
    document, printed, _ = measured(tmp_path, *options, HETERO_RACK=str(rack))

    assert [] == document["jobs"]
    assert "processes mps: not run (" in printed


@pytest.mark.soak
def test_what_neighbours_see_of_an_end_is_told(tmp_path: Path) -> None:
    document, _, _ = measured(tmp_path, "faults", "--events", "a tenant killed")

    (row,) = document["faults"]
    assert "ended with -9: it said nothing" == row["victim"]
    assert ["runs on", "runs on"] == row["neighbours"]
    assert row["recovered"] is not None


def _report(**changes: Any) -> dict[str, Any]:
    mix = {
        "mix": "light:50,prefill:50",
        "got": {"none": [90.0, 92.0], "fixed": [88.0, 50.0], "elastic-mps": [95.0, 94.0]},
        "paired": {"fixed": [90.0, 92.0], "elastic-mps": [96.0, 95.0]},
    }
    alone = {
        "job": "light",
        "b": {10: 0.1, 30: 0.1},
        "got": {10: 97.5, 30: 99.0},
        "law": {10: 100, 30: 100},
    }
    return {
        "mixes": [mix],
        "alone": [alone],
        "online": [_online()],
        "jobs": [{"job": "gemm", "sharing": "time", "got": {10: 10.9, 30: 29.1}}],
        "faults": [{"event": "a tenant killed", "recovered": 6.0}],
    } | changes


def _online(**changes: Any) -> dict[str, Any]:
    return {
        "batch": "vit",
        "sharing": "time",
        "still_ms": 10.0,
        "runs_ms": 12.9,
        "longest_ms": 2.0,
        "left": 0.95,
    } | changes


def test_a_report_that_keeps_the_promises_misses_nothing() -> None:
    assert [] == missed(_report())


FOUR = "light:25,light:25,light:25,light:25"
TWO = "light:50,prefill:50"


@pytest.mark.parametrize(
    ("mix", "name", "got", "free", "line"),
    [
        (TWO, "fixed", [87, 50], [90, 92], "fixed: light has 87.0, and 90.0 without"),
        (TWO, "fixed", [90, 48.9], [90, 92], "fixed: prefill has 48.9 of its share of 50"),
        (TWO, "fixed", [90, 51.1], [90, 92], "prefill has 51.1, more than its share of 50"),
        (TWO, "elastic", [90, 80], [90, 92], "170.0 is less than 0.97 of 182.0"),
        (TWO, "elastic-mps", [90, 86], [96, 95], "176.0 is less than 0.97 of 191.0"),
        (FOUR, "fixed", [80] * 4, [83] * 4, "320.0 is less than 0.97 of 332.0"),
    ],
)
def test_what_a_mix_lacks_is_said(
    mix: str, name: str, got: list[float], free: list[float], line: str
) -> None:
    (miss,) = missed(_report(mixes=[{"mix": mix, "got": {name: got}, "paired": {name: free}}]))

    assert line in miss


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"runs_ms": 13.1}, "online time beside vit: p99 13.10 ms, 13.00 at most"),
        ({"left": 0.89}, "online time: vit has 89.0 % of what is left"),
        ({"sharing": "mps", "runs_ms": 12.3}, "beside vit: p99 12.30 ms, 12.20 at most"),
        ({"sharing": "mps", "longest_ms": None, "runs_ms": 11.6}, "11.60 ms, 11.50 at most"),
    ],
)
def test_what_requests_and_their_neighbour_lack_is_said(changes: dict[str, Any], line: str) -> None:
    (miss,) = missed(_report(online=[_online(**changes)]))

    assert line in miss


def test_what_programs_lack_alone_is_said() -> None:
    b, law = {10: 0.5, 60: 0.5}, {10: 20.0, 60: 100.0}
    light = {"job": "light", "b": b, "got": {10: 16.9, 60: 97.1}, "law": law}
    loop = {"job": "halves", "b": b, "got": {10: 21.1, 60: 98.9}, "law": law}
    unknown = {"job": "tick", "b": {10: None}, "got": {10: 1.0}, "law": {10: 100.0}}
    jobs = [{"job": "gemm", "sharing": "mps", "got": {30: 32.1}}]
    faults = [{"event": "a tenant killed", "recovered": None}]

    assert [
        "light alone at 10: 16.9 of 20.0",
        "halves alone at 10: 21.1 of 20.0",
        "halves alone at 60: 98.9 of 100.0",
        "gemm mps at 30: 32.1",
        "a tenant killed: no new program got the card again",
    ] == missed(_report(alone=[light, loop, unknown], jobs=jobs, faults=faults))


def test_the_middle_of_values() -> None:
    assert 2 == median([3, 1, 2])
    assert 2.5 == median([4, 1, 2, 3])


@pytest.mark.parametrize(
    "options",
    [
        ("mixes", "--mix", "light"),
        ("mixes", "--mix", "nobody:30"),
        ("all",),
        ("--alone", "nobody"),
        ("--events", "x"),
    ],
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


def test_gaps_are_what_lies_between_and_nothing_before_or_behind() -> None:
    assert [] == gaps([])
    assert [] == gaps([(3, 4), (4, 6)])
    assert [2, 1] == gaps([(5, 8), (0, 2), (1, 3), (6, 7), (9, 10)])


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
