"""`hetero top`: each grant and each of its processes, with what they use of a simulated card."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import hetero_simulator
import pytest

from tests.programs import next_line

from .conftest import Run
from .window import Window


@pytest.fixture
def environ(environ: dict[str, str], one_card: Path) -> dict[str, str]:
    return {**environ, "HETERO_RACK": str(one_card), "PYTHONPATH": ""}


@pytest.fixture
def pair(hetero: Run, environ: Mapping[str, str], command: tuple[str, ...]) -> Iterator[None]:
    """A shell whose grant two programs use, with 1 and 2 GiB, a context's 2 MiB with it."""
    job = f"{hetero_simulator.job('cuda')} --seconds 600 --iterations 1000 --memory"
    with subprocess.Popen(
        [*command, "run", "--memory", "8Gi", "--core", "30", "--label", "a pair", "--",
         "sh", "-c", f"{job} 1022MiB & {job} 2046MiB & wait"],
        env=environ,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as shell:  # fmt: skip
        while shell.poll() is None:
            grants = json.loads(hetero("ps", "--json", "--seconds", "0.05").stdout)["items"]
            if [3 << 30] == [grant["shares"][0]["memory_used"] for grant in grants]:
                break
        yield
        subprocess.run(["kill", "-KILL", "--", f"-{shell.pid}"], check=True)


def test_top_says_what_each_process_holds_and_how_its_limits_are_kept(
    hetero: Run, pair: None
) -> None:
    view = json.loads(hetero("top", "--once", "--json", "--interval", "1").stdout)
    (grant,) = view["grants"]
    (share,) = grant["shares"]

    held = sorted(process["memory"] for process in grant["running"])
    assert [[], [1 << 30], [2 << 30]] == held
    assert {"hetero-job-cuda", "sh"} == {process["program"] for process in grant["running"]}
    assert (8 << 30, 3 << 30) == (share["memory"], share["memory_used"])
    assert (30, "preload") == (share["core"], share["enforcement"])
    assert share["core_used"] > 0
    # Two processes that always want the card, at 30 % of it together; where the machine is busy,
    # they want it later. A wait that began before the interval ends in it, too.
    assert 200 < share["core_stopped"] < 3000
    assert 0 == share["core_borrowed"]


def test_where_nobody_watches_top_looks_once_in_plain_text(hetero: Run, pair: None) -> None:
    done = hetero("top")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]

    assert (0, "") == (done.returncode, done.stderr)
    assert 1 == sum(line.startswith("card grant name user core used memory used") for line in lines)
    (grant,) = [line for line in lines if "a pair" in line]
    assert re.match("nvidia:0 [0-9a-f]{8} a pair ", grant)
    assert "/30 % 3/8 GiB" in grant
    assert any(re.fullmatch(r"nvidia:0 2 GiB \d+ hetero-job-cuda", line) for line in lines)
    assert any(re.fullmatch(r"– \d+ sh", line) for line in lines)
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout


def test_top_says_that_nothing_stands(hetero: Run) -> None:
    done = hetero("top", "--once", "--interval", "0.1")

    assert (0, "no grants stand") == (done.returncode, done.stdout.splitlines()[-1])


def test_top_goes_on_until_it_is_interrupted(
    environ: Mapping[str, str], command: tuple[str, ...]
) -> None:
    with subprocess.Popen(
        [*command, "top", "--interval", "0.1"], env=environ, stdout=subprocess.PIPE, text=True
    ) as top:
        seen = 0
        while seen < 3:
            seen += next_line(top).startswith("no grants stand")
        top.send_signal(signal.SIGINT)

        assert 0 == top.wait(10)


def test_an_interval_that_makes_no_sense_is_refused_in_a_line(hetero: Run) -> None:
    done = hetero("top", "--interval", "0")

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert "--interval" in done.stderr


def test_the_shell_has_its_terminal_while_top_is_stopped(
    environ: Mapping[str, str], command: tuple[str, ...]
) -> None:
    """Ctrl-Z, then `fg`, in a shell with job control."""
    script = f"set -m; stty -g; {shlex.join(command)} top; echo stopped; stty -g; read line; fg"
    with closing(Window(("bash", "-c", script), environ, columns=100, lines=40)) as shell:
        first = shell.read(lambda screen: "no grants stand" in screen)
        modes, _, drawn = first.partition("\r\n")
        shell.type("\x1a")
        stopped = shell.read(lambda screen: f"{modes}\r\n" in screen)
        shell.type("\n")
        again = shell.read(lambda screen: "no grants stand" in screen)
        shell.type("q")
        shell.read(lambda screen: "\x1b[?1049l" in screen)

        assert 0 == shell.program.wait(10)
        assert shell.before == shell.modes()
    assert drawn.startswith("\x1b[?1049h")
    assert stopped.index("\x1b[?1049l") < stopped.index("stopped")
    assert "\x1b[?1049h" in again
