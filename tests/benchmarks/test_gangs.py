"""The measurement of programs of several cards, on two simulated ones."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hetero_benchmarks.cells import Cell, Share, Tenant
from hetero_benchmarks.fleet import Fleet
from hetero_benchmarks.gang import GANGS, Rank, StepLimit
from hetero_benchmarks.gang_goals import Together, groups, law, missed, natives
from hetero_benchmarks.trial import find_machines

from hetero.model import Policy
from hetero.model.errors import HeteroError
from tests.programs import completed

GANGS_PY = Path(__file__).parents[2] / "benchmarks/gangs.py"
sys.path.insert(0, str(GANGS_PY.parent))
from gangs import main  # noqa: E402 - benchmarks is no package

CARD = "[device]\nvendor = nvidia\nmodel = Card\nmemory = 32 GiB\n"
RACK = f"{CARD}{CARD}[kernel spin]\ntime = 2 us\nper_arg0 = 1 ns\n"
PAIR = Tenant(job="simulated", cards=(0, 1))


@pytest.fixture
def rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two.rack").write_text(RACK)
    monkeypatch.setenv("HETERO_RACK", str(tmp_path / "two.rack"))
    monkeypatch.setenv("HETERO_STATE", str(tmp_path / "state"))


@pytest.mark.usefixtures("rack")
def test_a_gang_is_measured_alone_and_another_beside_it(tmp_path: Path) -> None:
    report = tmp_path / "gangs.json"
    options = ("--programs", "simulated", "--shares", "50", "--seconds", "1", "--starts", "1")
    done = completed(
        [sys.executable, str(GANGS_PY), *options, "--cells", "alone,hami,four", "--json", report]
    )
    document = json.loads(report.read_text())
    print(done.stdout)
    # What simulated cards on a busy machine give is no promise: the exit status says what it was.
    assert bool(document["missed"]) == bool(done.returncode)
    (alone,) = document["alone"]
    assert ("simulated on 2, start 1", "simulated", 2, None, 50) == tuple(
        alone[key] for key in ("title", "program", "cards", "b", "share")
    )
    assert 0 < alone["got"]
    assert alone["law"] == 50
    assert "hami: not run: no --hami" in done.stdout
    assert "four: not run: 4 cards are needed" in done.stdout


@pytest.mark.usefixtures("rack")
def test_what_no_time_is_left_for_is_not_run_and_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "gangs.json"
    options = ["--programs", "simulated", "--cells", "alone,beside", "--starts", "1"]

    assert 1 == main([*options, "--within", "20", "--json", str(report)])

    document = json.loads(report.read_text())
    assert ([], []) == (document["alone"], document["beside"])
    assert 5 == len(document["missed"])
    assert all(": not run: " in line for line in document["missed"])
    assert 5 == capsys.readouterr().out.count("missed: simulated ")


def _ranks(of: int) -> list[int]:
    """Return the processes that a process has started."""
    children = Path(f"/proc/{of}/task/{of}/children").read_text()
    return [int(pid) for pid in children.split()]


def _runs(pid: int) -> bool:
    """Return whether a process is there, and more than what nobody has waited for yet."""
    try:
        return " (zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def fleet(rack: None) -> Iterator[Fleet]:
    first, second = find_machines()
    with Fleet(first, others=(second.uuid,), overrun=2) as standing:
        yield standing


def _started(fleet: Fleet) -> tuple[Cell, list[int]]:
    cell = Cell(tenants=(PAIR,), seconds=0.3, lead=0.2)
    before = set(_ranks(os.getpid()))
    fleet.prepare([cell])
    (program,) = set(_ranks(os.getpid())) - before
    return cell, _ranks(program)


def test_a_gang_that_hangs_is_killed_and_leaves_nobody(fleet: Fleet) -> None:
    cell, ranks = _started(fleet)
    assert 2 == len(ranks)
    os.kill(ranks[1], signal.SIGSTOP)

    with pytest.raises(HeteroError, match="hung and was killed"):
        fleet.measure(cell)

    while any(map(_runs, ranks)):  # their files are closed already
        time.sleep(0.01)


@pytest.mark.usefixtures("rack")
def test_rows_have_the_period_asked_for_and_what_limiters_say_of_them_is_on_file(
    tmp_path: Path,
) -> None:
    first, second = find_machines()
    tenant = Tenant(job="simulated", cards=(0, 1), share=Share(core=50))
    cell = Cell(tenants=(tenant,), seconds=0.5, lead=0.2)
    (tmp_path / "logs").mkdir()
    before = set(_ranks(os.getpid()))

    with Fleet(
        first, others=(second.uuid,), overrun=5, logs=tmp_path / "logs", period=250
    ) as fleet:
        fleet.prepare([cell])
        fleet.measure(cell)
        (log,) = (tmp_path / "logs").iterdir()
        while "gang: row" not in log.read_text():  # a busy machine may end none in that time
            fleet.measure(cell)
        (program,) = set(_ranks(os.getpid())) - before
        set_for = Path(f"/proc/{program}/environ").read_text().split("\0")
        (config,) = [each for each in set_for if each.startswith("HETERO_CONFIG=")]
        words = ("env", config, sys.executable, "-m", "hetero.cli", "top", "--once", "--json")
        top = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=60).stdout)

    assert [250] == [grant["row"]["period"] for grant in top["grants"]]
    log_text = log.read_text()
    assert "00-simulated-0.log" == log.name
    assert "simulated on 0+1 at 50 %: 0.5 s" in log_text
    assert "gate closed with" in log_text


def test_a_gang_ends_when_a_rank_dies(fleet: Fleet) -> None:
    cell, ranks = _started(fleet)
    os.kill(ranks[1], signal.SIGKILL)

    with pytest.raises(HeteroError, match="simulated on 0\\+1 unlimited ended with status 1"):
        fleet.measure(cell)


def test_all_ranks_make_the_same_steps(tmp_path: Path) -> None:
    (tmp_path / "limit").write_bytes(bytes(8))
    made = [0, 0, 0]

    def steps(number: int) -> Iterator[int]:
        while True:
            time.sleep(0.001 * (1 + number))  # no rank waits for another but at the limit
            made[number] += 1
            yield 1

    ranks = [
        Rank(number, steps(number), StepLimit.of(tmp_path / "limit"))  # type: ignore[arg-type]
        for number in range(3)
    ]

    def run(rank: Rank) -> None:
        rank.begin()
        for _ in range(3):
            # Only the first one's moment counts.
            until = time.monotonic() + (0.05 if rank.number == 0 else 1000)
            marks = rank.run(until)
            assert until <= marks[-1][0] or rank.number
            met.wait()
            seen.append(tuple(made))
            met.wait()

    met, seen = threading.Barrier(3), list[tuple[int, ...]]()
    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert 9 == len(seen)
    assert all(1 == len(set(counts)) for counts in seen)


def _row(*got: float, low: float = 45.0, high: float = 55.0) -> dict[str, Any]:
    return {"tenants": [{"got": each, "b": None, "seconds": [low, high]} for each in got]}


def _two(policy: Policy = Policy.FIXED, **options: Any) -> Together:
    gang = Tenant(job="tp", cards=(0, 1), share=Share(core=50, policy=policy))
    return Together(name="two", tenants=(gang, gang), **options)


def test_gangs_that_have_their_shares_miss_nothing() -> None:
    assert [] == missed(_two(), _row(50, 48))
    assert [] == missed(_two(Policy.ELASTIC), _row(50, 48, high=90))
    free = Tenant(job="tp", cards=(0, 1))
    assert [] == missed(Together(name="free", tenants=(free, free)), _row(6.5, 6.5, low=0))


@pytest.mark.parametrize(
    ("together", "row", "line"),
    [
        (_two(), _row(55, 46), "has 46.0, less than 47"),
        (_two(), _row(50, 50, low=39), "has a second of 39.0"),
        (_two(), _row(50, 50, high=61), "has a second of 61.0, more than 60.0"),
        (_two(points=4.0), _row(48, 46.5), "two: card 1 has 94.5 of 100 in all"),
        (_two(spread=10.0), _row(50, 50, low=44), "spreads from 44.0 to 55.0 by the second"),
    ],
)
def test_what_gangs_lack_beside_each_other_is_said(
    together: Together, row: dict[str, Any], line: str
) -> None:
    assert any(line in said for said in missed(together, row))


def test_a_gang_of_busy_part_b_may_have_its_share_of_that() -> None:
    assert [50, 100, 62.5] == [law(50, None), law(50, 0.4), law(50, 0.8)]


def test_programs_of_one_card_are_measured_for_reference_at_the_same_time() -> None:
    (mixed,) = (each for group in groups(["tp"]) for each in group if "gemm" in each.name)
    first, other = (Tenant(job="gemm", cards=(card,)) for card in (0, 1))

    assert [(Tenant(job="tp", cards=(0, 1)),), (first, other)] == natives(mixed.tenants)


def test_each_program_of_pytorch_is_a_function_there() -> None:
    source = (GANGS_PY.parent / "hetero_benchmarks/gang_jobs.py").read_text()

    for name in GANGS:
        function = "all_reduce" if name.startswith("allreduce") else name.replace("-", "_")
        assert f"def {function}(" in source


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--cells", "nobody"),
        ("--programs", "tp,nobody"),
        ("--shares", "30,100"),
        ("--seconds", "0"),
        ("--starts", "x"),
        ("--period", "30"),
        ("--hami", "/nowhere/libvgpu.so"),
        ("--json", "/nowhere/gangs.json"),
        ("--log", "/"),
    ],
)
def test_bad_options_are_refused(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([option, value])

    assert 2 == ended.value.code
    assert f"error: argument {option}: " in capsys.readouterr().err
