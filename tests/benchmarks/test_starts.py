"""First starts of a serving engine: which are made at the same time, and what is said of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hetero_simulator

SCRIPT = Path(__file__).parents[2] / "benchmarks/starts.py"
sys.path.insert(0, str(SCRIPT.parent))
from starts import parser, plan  # noqa: E402 - benchmarks is no package


def test_each_share_is_started_on_each_number_of_cards_in_each_mode() -> None:
    asked = parser().parse_args([])
    groups = plan(asked)
    under_hetero = [start for group in groups for start in group if start.manager == "hetero"]

    assert 21 == len(under_hetero)  # and one with empty caches
    assert 20 == len({(start.cards, start.mode, start.core) for start in under_hetero[1:]})
    assert [1, 5, 5, 5, 5, 1, 4, 1, 4, 1, 4, 1, 4, 1] == [len(group) for group in groups]
    assert all(len(group) == 1 for group in groups for start in group if start.core == 100)
    assert [True, False] == [groups[at][0].empty for at in (0, 1)]


def started(tmp_path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script on a simulated card, with engines of 2 GiB."""
    rack = str(shutil.copy(hetero_simulator.rack("one"), tmp_path))
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options, "--memory", "2Gi"],
        env={**os.environ, "HETERO_RACK": rack, "HETERO_STATE": f"{tmp_path}/state", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_starts_are_compared_with_those_without_hetero(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    shares = ("--cores", "30,50", "--cards", "1", "--modes", "sleep")
    done = started(tmp_path, "--engine", "simulated", *shares, "--json", str(file))
    rows = [json.loads(line) for line in file.read_text().splitlines()]

    assert 0 == done.returncode, done.stderr + done.stdout
    assert [None, None, None, 30, 30, 50] == [row["core"] for row in rows]
    assert [1, 2, 2, 1, 2, 2] == [row["at_once"] for row in rows]
    assert all(row["times"] > 0 for row in rows[3:])
    assert " of none" in done.stdout


def test_an_engine_that_does_not_start_is_told_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "vllm.py").write_text("raise ImportError('hidden')\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    options = ("none", "--cores", "30", "--cards", "1", "--modes", "default")
    done = started(tmp_path, *options, PYTHONPATH=path)

    assert 1 == done.returncode
    assert 2 == done.stdout.count("ImportError: hidden")


def test_more_cards_than_there_are_are_refused_in_a_line(tmp_path: Path) -> None:
    done = started(tmp_path, "--cards", "8")

    assert (2, "starts.py: --cards 8: 1 here\n") == (done.returncode, done.stderr)
