"""Limits in a running program: the real limiter in front of a simulated card of 32 GiB."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import hetero_limiters
import hetero_simulator
import pytest
from attrs import frozen

from tests.programs import next_line

from .conftest import CONTEXT, Begin, Run

Start = Callable[..., "Job"]


@pytest.fixture
def environ(environ: dict[str, str], one_card: Path) -> dict[str, str]:
    return {**environ, "HETERO_RACK": str(one_card), "PYTHONPATH": ""}


@frozen(eq=False)
class Job:
    """A program that keeps the card busy under a grant and says every second how far it got."""

    program: subprocess.Popen[str]
    grant: str

    def steps(self) -> int:
        """Return the steps of its next second."""
        steps: int = json.loads(next_line(self.program))["steps"]
        return steps


@pytest.fixture
def start(hetero: Run, begin: Begin, command: tuple[str, ...]) -> Start:
    def job(*flags: str, memory: str = "1GiB") -> Job:
        job = (str(hetero_simulator.job("cuda")), "--seconds", "600", "--memory", memory)
        program = begin(*command, "run", *flags, "--", *job)
        while program.poll() is None:
            for grant in json.loads(hetero("ps", "--json", "--seconds", "0.05").stdout)["items"]:
                if program.pid in grant["processes"] and grant["shares"][0]["memory_used"]:
                    return Job(program, grant["id"])
        raise AssertionError(f"the job ended with {program.returncode}")

    return job


def share(hetero: Run, grant: str, *, seconds: float = 0.05) -> dict[str, float]:
    items = json.loads(hetero("ps", "--json", "--seconds", str(seconds)).stdout)["items"]
    (shares,) = [item["shares"] for item in items if item["id"] == grant]
    share: dict[str, float] = shares[0]
    return share


@pytest.mark.measured
def test_core_is_changed_in_the_running_program_both_ways(hetero: Run, start: Start) -> None:
    job = start("--memory", "2Gi", "--core", "60")
    job.steps()
    at_sixty = job.steps()

    assert 0 == hetero("resize", job.grant, "--core", "20").returncode
    job.steps()  # the second of the change
    at_twenty = job.steps()
    assert 0 == hetero("resize", job.grant, "--core", "60").returncode
    job.steps()
    again = job.steps()

    assert pytest.approx(20 / 60, abs=0.08) == at_twenty / at_sixty
    assert pytest.approx(1, abs=0.12) == again / at_sixty


def test_memory_is_changed_in_the_running_program_both_ways(hetero: Run, start: Start) -> None:
    job = start("--memory", "2Gi", memory="1GiB")

    lower = hetero("resize", job.grant, "--memory", "1200Mi")
    below_use = hetero("resize", job.grant, "--memory", "1000Mi")

    assert (0, "") == (lower.returncode, lower.stderr)
    assert f"{job.grant}  " in lower.stdout
    assert 3 == below_use.returncode
    assert "uses 1.1 GiB" in below_use.stderr
    assert (1200 << 20, (1 << 30) + CONTEXT) == tuple(
        share(hetero, job.grant)[key] for key in ("memory", "memory_used")
    )
    assert 0 == hetero("resize", job.grant, "--memory", "30Gi").returncode
    assert 3 == hetero("run", "--memory", "3Gi", "--", "true").returncode


def test_what_does_not_fit_beside_the_neighbours_is_refused(hetero: Run, start: Start) -> None:
    job = start("--memory", "2Gi", "--core", "60")
    start("--memory", "2Gi", "--core", "40")

    more_core = hetero("resize", job.grant, "--core", "61")
    more_memory = hetero("resize", job.grant, "--memory", "31Gi")
    all_of_it = hetero("resize", job.grant, "--memory", "100%")

    assert (3, 3, 3) == (more_core.returncode, more_memory.returncode, all_of_it.returncode)
    assert "lacks core: 61 % asked, 60 % free" in more_core.stderr
    assert (2 << 30, 60) == tuple(share(hetero, job.grant)[key] for key in ("memory", "core"))


@pytest.mark.measured
def test_ps_shows_what_the_program_gets(hetero: Run, start: Start) -> None:
    job = start("--memory", "2Gi", "--core", "30")
    job.steps()

    seen = share(hetero, job.grant, seconds=1)

    assert pytest.approx(30, abs=5) == seen["core_used"]
    assert ((1 << 30) + CONTEXT, 0) == (seen["memory_used"], seen["denied"])


@pytest.mark.measured
def test_a_program_without_a_limit_leaves_a_limited_neighbour_its_share(
    hetero: Run, start: Start
) -> None:
    free = start("--memory", "2Gi")
    free.steps()
    alone = free.steps()

    limited = start("--memory", "2Gi", "--core", "60")
    limited.steps()
    seen = share(hetero, free.grant)
    assert pytest.approx(0.6, abs=0.06) == limited.steps() / alone
    assert (40, True) == (seen["core"], seen["rest"])
    assert "/40 % rest" in hetero("ps", "--seconds", "0.1").stdout

    limited.program.kill()
    limited.program.wait()
    assert None is share(hetero, free.grant)["core"]


def test_over_the_memory_is_the_drivers_own_error_and_is_counted(
    hetero: Run, environ: Mapping[str, str]
) -> None:
    job = str(hetero_simulator.job("cuda"))
    done = hetero("run", "--memory", "1Gi", "--", job, "--alloc", "1024MiB")

    assert 1 == done.returncode
    assert "OUT_OF_MEMORY" in done.stdout
    assert 0 == hetero("run", "--memory", "1Gi", "--", job, "--alloc", "1022MiB").returncode


@pytest.mark.measured
def test_a_program_that_is_killed_gives_everything_back_within_a_second(
    hetero: Run, start: Start
) -> None:
    job = start("--memory", "30Gi", "--core", "90")

    job.program.send_signal(signal.SIGKILL)
    began = time.monotonic()
    while hetero("run", "--memory", "30Gi", "--core", "90", "--", "true").returncode != 0:
        assert time.monotonic() - began < 1


def test_policy_off_runs_without_the_limiter(hetero: Run) -> None:
    done = hetero("run", "--policy", "off", "--memory", "1Gi", "--", "env")

    assert "LD_PRELOAD" not in done.stdout
    assert "HETERO_GRANT" not in done.stdout


def test_a_preload_of_the_users_own_stays(hetero: Run, tmp_path: Path) -> None:
    (own, *_) = sorted(Path("/usr/lib").glob("*/libutil.so.1"))
    done = hetero(
        "run", "--memory", "1Gi", "--", "sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD=str(own)
    )

    assert f"{own}:{hetero_limiters.library('cuda')}\n" == done.stdout


def test_simulated_grants_stand_apart_from_real_ones(
    hetero: Run, environ: Mapping[str, str], start: Start, one_card: Path
) -> None:
    job = start("--memory", "2Gi")
    state = Path(environ["HETERO_STATE"])

    assert [job.grant] == [path.name for path in state.glob("sim-*/grants/*")]
    view = json.loads(hetero("inventory", "--json").stdout)
    assert str(one_card) == view["simulated"]
    assert "no card below is real" in hetero("inventory").stdout
    real = json.loads(hetero("inventory", "--json", HETERO_RACK="").stdout)
    assert (None, []) == (real["simulated"], real["grants"])
    # An uninstall would pull the limiter from under the simulated program as well.
    assert 3 == hetero("doctor", "--uninstall-check", HETERO_RACK="").returncode


def test_a_rack_that_is_not_there_is_one_line(hetero: Run) -> None:
    done = hetero("inventory", HETERO_RACK="nowhere")

    assert 2 == done.returncode
    assert "HETERO_RACK=nowhere" in done.stderr
    assert "mixed" in done.stderr  # the shipped ones are named
    assert 1 == done.stderr.count(os.linesep)


def test_a_program_of_one_and_a_half_cards_completes_where_the_node_grants_it(
    hetero: Run, command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "node.toml").write_text("[scale]\nmemory = 1.5\n")
    config = str(tmp_path / "node.toml")
    job = [str(hetero_simulator.job("cuda")), "--seconds", "0.2", "--memory", "49150MiB"]
    arguments = ("run", "--quiet", "--memory", "48Gi", "--core", "50", "--", *job)

    assert 3 == hetero(*arguments).returncode
    done = hetero(*arguments, HETERO_CONFIG=config)
    assert (0, "") == (done.returncode, done.stderr)
    assert "is granted 1.5 times: what does not fit lies with the host" in " ".join(
        hetero("doctor", HETERO_CONFIG=config).stdout.split()
    )
    assert "48 of 48 GiB (card 32 GiB)" in hetero("inventory", HETERO_CONFIG=config).stdout
    seen = hetero("run", "--memory", "48Gi", "--", *command, "ps", HETERO_CONFIG=config).stdout
    assert re.search(r"0/48 GiB +spills", seen)
    for view in ("inventory", "ps"):
        shown = hetero("run", "--memory", "1Gi", "--", *command, view).stdout
        assert "spills" not in shown
        assert "(card" not in shown
