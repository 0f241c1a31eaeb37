"""Serving engines that share a card: the client, what answers say, and the script."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import hetero_simulator
import pytest
from hetero_benchmarks.engine import FIRST_S, NEXT_S, Setup, command
from hetero_benchmarks.engine_cells import (
    ALTERNATIONS,
    HALVES,
    OPEN,
    SHARES,
    accounts,
    cost,
    lines,
    reason,
)
from hetero_benchmarks.engine_detail import descendants
from hetero_benchmarks.rates import Window
from hetero_benchmarks.serving import Load, Request, ask, figures

SCRIPT = Path(__file__).parents[2] / "benchmarks/engines.py"
sys.path.insert(0, str(SCRIPT.parent))
from engines import main  # noqa: E402 - benchmarks is no package


def _request(arrived: float, *tokens: tuple[float, int], done: bool = True) -> Request:
    return Request(arrived, list(tokens), [tokens[-1][0]] if done else [])


def test_tokens_are_counted_where_they_came_and_times_where_requests_did() -> None:
    before = _request(9.0, (9.5, 1), (10.5, 1), (11.0, 2))
    inside = _request(10.0, (10.2, 1), (10.4, 2), (11.2, 2), (13.0, 1))

    got = figures([before, inside], Window(10.0, 12.0))

    assert 4.0 == got["tokens_per_s"]  # 1 + 2 of the first, 1 + 2 + 2 of the second in two seconds
    assert (1, 0) == (got["requests"], got["unfinished"])
    assert pytest.approx({"p50": 200, "p99": 200, "longest": 200}) == got["ttft_ms"]
    assert pytest.approx({"p50": 560, "p99": 560, "longest": 560}) == got["tpot_ms"]
    assert pytest.approx({"p50": 800, "p99": 1800, "longest": 1800}) == got["gap_ms"]


def test_a_request_without_its_whole_answer_is_unfinished_and_has_no_times() -> None:
    got = figures([_request(10.0, (10.2, 1), done=False), Request(10.1)], Window(10.0, 11.0))

    assert (2, 2, None, None) == tuple(
        got[name] for name in ("requests", "unfinished", "ttft_ms", "tpot_ms")
    )


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    got = figures([_request(10.0, (10.2, 1))], Window(10.0, 11.0))

    assert None is got["tpot_ms"]
    assert 200 == pytest.approx(got["ttft_ms"]["p50"])


def _ask(load: Load, seconds: float, answer: Any, patience: float = 5.0) -> list[Request]:
    return asyncio.run(ask(answer, load, time.monotonic() + seconds, patience=patience))


def test_a_saturated_engine_has_as_many_requests_as_there_are_clients() -> None:
    under_way, most, prompts = 0, 0, list[tuple[int, ...]]()

    async def answer(prompt: Sequence[int], tokens: int) -> AsyncIterator[int]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        prompts.append(tuple(prompt))
        await asyncio.sleep(0.01)
        yield tokens
        under_way -= 1

    load, seconds = Load(clients=3, prompt_tokens=8, answer_tokens=5), 0.1
    requests = _ask(load, seconds, answer)
    while len(requests) <= 3:  # on a busy machine an answer may take longer than all of it
        prompts.clear()
        seconds *= 2
        requests = _ask(load, seconds, answer)

    assert (3, 0) == (most, under_way)
    assert all(each.done and each.tokens[0][1] == 5 for each in requests)
    assert len(requests) == len(set(prompts))
    assert {8} == {len(prompt) for prompt in prompts}


def test_engines_measured_together_have_requests_at_other_moments() -> None:
    async def answer(_: Sequence[int], tokens: int) -> AsyncIterator[int]:
        yield tokens

    began = time.monotonic()
    first, second = (
        [each.arrived - began for each in _ask(Load(per_second=50, seed=seed), 0.3, answer)]
        for seed in (1, 2)
    )

    assert first[1] - first[0] != pytest.approx(second[1] - second[0], rel=1e-3)


def test_requests_at_a_rate_do_not_wait_for_answers() -> None:
    async def answer(_: Sequence[int], tokens: int) -> AsyncIterator[int]:
        await asyncio.sleep(0.3)
        yield tokens

    requests = _ask(Load(per_second=100), 0.5, answer)

    # 50 are expected, and 0.3 s each would be 2 a client.
    assert 30 < len(requests) < 75
    assert all(each.done[0] - each.arrived >= 0.3 for each in requests)


def test_an_engine_that_stands_still_is_not_waited_for_forever() -> None:
    async def answer(_: Sequence[int], __: int) -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(60)

    began = time.monotonic()
    requests = _ask(Load(clients=2), 0.1, answer, patience=0.2)

    assert time.monotonic() - began < 10
    assert [[], []] == [each.done for each in requests]


def test_an_engine_that_fails_ends_the_measurement() -> None:
    async def answer(_: Sequence[int], __: int) -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("out of blocks")

    with pytest.raises(RuntimeError, match="out of blocks"):
        _ask(Load(clients=2), 0.1, answer)


def test_an_engines_process_answers_a_line_with_figures() -> None:
    with subprocess.Popen(
        command("simulated", Setup(memory=1 << 20, cards=2, sleeps=True)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert {"ready": True, "cache_tokens": 1024} == json.loads(process.stdout.readline())
        assert process.pid in descendants(os.getpid())
        start = time.monotonic()
        cue = {"per_second": None, "clients": 4, "seed": 1, "start": start, "end": start + 0.5}
        print(json.dumps(cue), file=process.stdin, flush=True)
        got = json.loads(process.stdout.readline())
        process.stdin.close()

    assert 0 == process.returncode
    assert got["requests"] >= 4
    assert got["ttft_ms"]["p50"] >= 1000 * FIRST_S
    assert got["tpot_ms"]["p50"] > 500 * NEXT_S  # of tokens that came late the next are not


def test_cells_are_named_by_what_runs_and_its_shares() -> None:
    assert ["alone", "trainer", "pair", "engine + trainer"] == [str(cell) for cell in OPEN]
    assert ["alone 50", "pair 50 + 50", "engine + trainer 50 + 50"] == list(map(str, HALVES))
    named = [str(cell) for cell in SHARES]
    once = [name for name in named if not name.startswith("cost")]
    assert len(once) == len(set(once))
    assert ["cost", "cost 100"] * ALTERNATIONS == named[len(once) :]
    assert {"pair 50 + 50 elastic", "pair 30 + 60", "alone 99"} < set(named)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", "it said nothing"),
        ("INFO starts\nbye\n", "bye"),
        (
            "(EngineCore) ERROR ValueError: No available memory for the cache blocks.\n"
            "RuntimeError: Engine core initialization failed. See root cause above.\n",
            "ValueError: No available memory for the cache blocks.",
        ),
        ("File x\n    assert free >= left, (\nAssertionError: Error in memory profiling", "assert"),
        ("torch.OutOfMemoryError: CUDA out of memory.\n", "torch.OutOfMemoryError: CUDA out of"),
    ],
)
def test_a_failed_start_is_told_with_the_first_reason_of_its_log(log: str, expected: str) -> None:
    assert reason(log).startswith(expected)


def test_a_row_is_a_line_for_each_program() -> None:
    times = {"p50": 12.34, "p99": 56.78, "longest": 60.0}
    engine = {
        "program": "engine 1", "rate": 1000.0, "of_none": 50.0, "of_own": None,
        "ttft_ms": times, "tpot_ms": times, "unfinished": 2, "detail": {"core_used": 48.1},
    }  # fmt: skip
    trainer = {"program": "trainer", "rate": 9.87, "of_none": None, "of_own": 60.0}
    row = {
        "manager": "hetero",
        "cell": "engine + trainer",
        "load": "6/s",
        "programs": [engine, trainer],
    }

    first, second = lines(row)

    assert ["1000.0", "50.0", "-", "12.3", "56.8", "12.34", "56.78", "2"] == first.split()[-8:]
    assert ["9.9", "-", "60.0", "-", "-", "-", "-"] == second.split()[-7:]
    assert ["    engine 1: core_used 48.1"] == accounts(row)


@pytest.mark.parametrize(
    "words",
    [
        ("bogus",),
        ("--engine", "bogus"),
        ("--cells", "alone,bogus"),
        ("--loads", "saturated,0"),
        ("--loads", ""),
        ("--clients", "0"),
        ("--priority", "bogus"),
        ("--seconds", "nan"),
        ("--memory", "much"),
        ("--together", "bogus"),
        ("--hami-core", "/nowhere"),
        ("--json", "/nowhere/rows"),
    ],
)
def test_bad_input_is_refused_in_a_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)

    assert 2 == raised.value.code
    assert 1 == capsys.readouterr().err.count("\n")


def test_what_the_limiter_costs_is_a_mean_of_ratios_with_its_interval() -> None:
    def row(cell: str, tpot: float) -> dict[str, Any]:
        times = {"tpot_ms": {"p50": tpot, "p99": 2 * tpot}, "ttft_ms": {"p99": 20.0}}
        return {"cell": cell, "load": "40/s", "programs": [{"requests": 500, **times}]}

    added = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # mean 0.5 %, standard deviation 0.374
    rows = [each for more in added for each in (row("cost", 2), row("cost 100", 2 + more / 50))]
    assert 2 * ALTERNATIONS == len(rows)

    assert [
        "cost 40/s: 6 alternations, each of 500 requests or more",
        "cost 40/s: TPOT p50 +0.50 % (+0.11 to +0.89)",
        "cost 40/s: TPOT p99 +0.50 % (+0.11 to +0.89)",
        "cost 40/s: TTFT p99 +0.00 % (+0.00 to +0.00)",
    ] == cost(rows)
    assert [] == cost(rows[1:])  # an alternation is not whole


def measured(tmp_path: Path, *options: str, **environment: str) -> tuple[int, str, list[Any]]:
    """Return the exit status on a simulated card, what was printed, and the rows."""
    rack = str(shutil.copy(hetero_simulator.rack("one"), tmp_path))
    file = tmp_path / "rows.jsonl"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, "--json", str(file), "--memory", "2Gi"],
        env={**os.environ, "HETERO_RACK": rack, "HETERO_STATE": f"{tmp_path}/state", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return done.returncode, done.stdout, rows


def test_engines_are_measured_alone_and_with_a_trainer_under_shares(tmp_path: Path) -> None:
    options = ("--engine", "simulated", "--seconds", "0.5", "--loads", "saturated", "--detail")
    which = ("hetero", "--cells", "trainer", "--priority", "high", "--lead", "0.5")
    code, printed, rows = measured(tmp_path, *which, *options)

    assert 0 == code
    limited = ["engine + trainer 50 + 50", "engine + trainer 50 + 50 elastic"]
    cells = [row["cell"] for row in rows if "cell" in row]
    assert ["trainer", "engine + trainer", *limited] == cells
    assert 2 == sum("start" in row and row["failed"] is None for row in rows)
    (fixed,) = (row for row in rows if row.get("cell") == limited[0])
    engine, trainer = fixed["programs"]
    assert engine["tokens_per_s"] > 0
    assert trainer["of_own"] > 0  # a simulated card on a busy machine promises no more
    assert "high" == fixed["priority"]
    assert "core_stopped" in trainer["detail"]
    assert "hetero    engine + trainer 50 + 50 elastic saturated trainer" in printed


def test_an_engine_that_cannot_start_is_tried_twice_and_its_cells_are_not_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "vllm.py").write_text("raise ImportError('hidden')\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    options = ("none", "--cells", "alone", "--loads", "saturated")
    code, printed, rows = measured(tmp_path, *options, PYTHONPATH=path)

    assert 1 == code
    assert [1, 2] == [row["attempt"] for row in rows]
    assert all("hidden" in row["failed"] for row in rows)
    assert "none: alone, saturated: not run (engine 1 does not run)" in printed
