"""`benchmarks/waits.py`: its programs run, and a word that stands is told."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.programs import completed

WAITS = Path(__file__).parent.parent.parent / "benchmarks/waits.py"
#: The simulated driver runs no kernels of a module's, and opens no events of other processes.
WAYS = ("word", "host-function", "callback", "event", "legacy-stream", "graph", "words-of-two")


@pytest.mark.parametrize("way", WAYS)
def test_a_way_runs_under_a_share(way: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HETERO_STATE": str(tmp_path), "HETERO_RACK": "seven"}
    command = ["run", "-q", "--vendor", "nvidia", "--memory", "1Gi", "--core", "50", "--"]
    program = [sys.executable, str(WAITS), "--run", way, "--rounds", "3"]
    done = completed([sys.executable, "-m", "hetero.cli", *command, *program], env=environment)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert 3 == len(json.loads(done.stdout))


def test_a_way_that_fails_is_said_to(tmp_path: Path) -> None:
    environment = {**os.environ, "HETERO_STATE": str(tmp_path), "HETERO_RACK": "seven"}
    command = [sys.executable, str(WAITS), "--ways", "word", "--rounds", "2", "--shares", "50"]
    done = completed(command, env=environment)

    assert 1 == done.returncode, done.stdout + done.stderr
    _, none_line, share_line = done.stdout.splitlines()
    assert "stands, or failed" in none_line  # without hetero there is no driver
    assert ["word", "50"] == share_line.split()[:2]
