"""Gangs as people start them, on two simulated cards, and what is said of them."""

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.programs import next_line

from .conftest import Begin, Run

CARD = "[device]\nvendor = nvidia\nmodel = Card\nmemory = 32 GiB\n"
RACK = f"{CARD}{CARD}[kernel spin]\ntime = 2 us\nper_arg0 = 1 ns\n"
GANG = [sys.executable, "-m", "hetero_benchmarks.gang", "simulated", "2"]

Json = dict[str, Any]


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    (tmp_path / "two.rack").write_text(RACK)
    return {**environ, "HETERO_RACK": str(tmp_path / "two.rack"), "PYTHONPATH": ""}


@pytest.fixture
def start(begin: Begin, command: tuple[str, ...]) -> Begin:
    """Start `hetero run`."""
    return partial(begin, *command, "run", "-q", "--memory", "4Gi")


def grants(hetero: Run) -> list[Json]:
    grants: list[Json] = json.loads(hetero("top", "--once", "--json").stdout)["grants"]
    return grants


def run_gang(program: subprocess.Popen[str]) -> None:
    """Have a gang run for half a second, again and again until it has made steps."""
    assert program.stdin
    assert {"ready": True} == json.loads(next_line(program))
    steps: list[list[float]] = []
    while len(steps) < 2:  # the first says when it began
        print(time.monotonic() + 0.5, file=program.stdin, flush=True)
        steps = json.loads(next_line(program))


def test_ranks_that_wait_for_each_other_run_in_rows_and_top_shows_them(
    hetero: Run, start: Begin
) -> None:
    program = start("--count", "2", "--core", "50", "--", *GANG)

    run_gang(program)

    (grant,) = grants(hetero)
    row = grant["row"]
    assert (0, 54, 100) == (row["begin"], row["length"], row["period"])
    assert row["rows"] > 0
    assert (0, 0) == (row["intrusions"], row["intruded"])
    assert "54 of 100 ms" in hetero("top", COLUMNS="250").stdout


def test_a_gang_that_is_off_has_no_row(hetero: Run, start: Begin) -> None:
    program = start("--count", "2", "--core", "50", "--gang", "off", "--", *GANG)

    run_gang(program)

    assert [None] == [grant["row"] for grant in grants(hetero)]


def test_two_gangs_by_hand_of_one_node_each_have_their_half(hetero: Run, start: Begin) -> None:
    both = [
        start("--count", "2", "--core", "50", "--gang", "us", "--row", row, "--", *GANG)
        for row in ("1/2", "2/2")
    ]

    for program in both:
        run_gang(program)

    rows = [grant["row"] for grant in grants(hetero)]
    assert [(0, 50), (50, 50)] == sorted((row["begin"], row["length"]) for row in rows)
    assert all(row["rows"] > 0 for row in rows)
    clock = [
        found["says"]
        for found in json.loads(hetero("doctor", "--json").stdout)["items"]
        if found["subject"] == "clock"
    ]
    assert 1 == len(clock)
    assert "row" in clock[0]


def test_mixed_shares_run_at_the_smallest_and_one_line_says_so(hetero: Run) -> None:
    mixed = ("--device", "0:mem=1Gi,core=50", "--device", "1:mem=1Gi,core=30")
    done = hetero("run", *mixed, "--", "true")

    (note,) = [line for line in done.stderr.splitlines() if "smallest" in line]
    assert 0 == done.returncode
    assert "runs on all its devices at the same time, at 30 %, the smallest of its shares" in note


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--gang", "off", "--core", "50"], "--gang off is for several devices, and one is asked"),
        (["--gang", "us", "--row", "1/2"], "--row is when a share of the core is used, and none"),
        (["--count", "2", "--core", "100", "--gang", "us", "--row", "1/2"], "give --core"),
    ],
)
def test_a_gang_that_would_change_nothing_is_one_line_and_nothing_stands(
    hetero: Run, flags: list[str], says: str
) -> None:
    done = hetero("run", "--memory", "1Gi", *flags, "--", "true")

    assert (2, 1, "") == (done.returncode, done.stderr.count("\n"), done.stdout)
    assert says in done.stderr
    assert "no grants stand" == hetero("ps").stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--gang", "us"], "a gang is off, or by hand: --gang NAME --row 1/2"),
        (["--row", "1/2"], "a gang is off, or by hand"),
        (["--gang", "off", "--row", "1/2"], "a gang is off, or by hand"),
        (["--gang", "us", "--row", "half"], "--row 'half' is not a row: write 1/2"),
        (["--gang", "us", "--row", "1/²"], "--row '1/²' is not a row"),
        (["--gang", "us", "--row", "3/2"], "counted from 1"),
        (["--gang", "us", "--row", "0/2"], "counted from 1"),
        (["--gang", "us", "--row", f"1/{'9' * 5000}"], "is not a row"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value)[:24],
)
def test_a_gang_that_cannot_be_is_one_line_and_nothing_stands(
    hetero: Run, flags: list[str], says: str
) -> None:
    done = hetero("run", "--count", "2", "--core", "50", *flags, "--", "true")

    assert (2, 1, "") == (done.returncode, done.stderr.count("\n"), done.stdout)
    assert says in done.stderr
    assert "no grants stand" == hetero("ps").stdout.splitlines()[-1]
