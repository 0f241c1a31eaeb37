"""How cards are shared does not change while grants stand on them."""

import os
import subprocess
import sys
from pathlib import Path

import hetero_simulator
import pytest

from tests.programs import completed, next_line

HETERO = (sys.executable, "-m", "hetero.cli")
SHARE = ("--vendor", "mthreads", "--memory", "1Gi")
SOFT, HARD = '[cards]\nsoft = ["mthreads"]', ""


class Node:
    """The command line on a simulated machine with Moore Threads' cards."""

    def __init__(self, directory: Path) -> None:
        rack = directory / "cards.rack"
        rack.write_text(hetero_simulator.rack("mthreads").read_text())
        self.settings = directory / "node.toml"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HETERO_", "LD_"))}
        self.environ = {
            **clean,
            "HETERO_RACK": str(rack),
            "HETERO_STATE": str(directory / "state"),
            "HETERO_CONFIG": str(self.settings),
            "COLUMNS": "400",
        }

    def says(self, *arguments: str) -> str:
        """What a command says on standard error; nothing where it went well."""
        done = completed([*HETERO, *arguments], env=self.environ, timeout=60)
        assert bool(done.returncode) == bool(done.stderr), done
        return done.stderr

    def start(self) -> "subprocess.Popen[str]":
        """Start a program under a grant, which ends with its standard input."""
        options = ("-q", *SHARE, "--label", "first")
        program = [*HETERO, "run", *options, "--", "sh", "-c", "echo up; cat"]
        started = subprocess.Popen(
            program, env=self.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert "up\n" == next_line(started)
        return started


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [(SOFT, HARD, "shared by a limiter"), (HARD, SOFT, "cut into slices")],
    ids=["soft to hard", "hard to soft"],
)
def test_a_change_of_soft_cards_is_refused_while_a_grant_stands_on_them(
    tmp_path: Path, before: str, after: str, how: str
) -> None:
    node = Node(tmp_path)
    node.settings.write_text(before)
    with node.start() as first:
        node.settings.write_text(after)
        refused = [
            node.says("run", "-q", *SHARE, "--", "true"),
            node.says("fit", *SHARE),
            node.says("resize", "first", "--memory", "2Gi"),
        ]
        node.settings.write_text(before)
        back = node.says("run", "-q", *SHARE, "--", "true")
        first.communicate("", timeout=60)
    node.settings.write_text(after)

    assert "" == back
    assert "" == node.says("run", "-q", *SHARE, "--", "true")
    for message in refused:
        assert "cards.soft was changed for mthreads while grant" in message
        assert f"whose cards are {how}" in message
