"""A grant's memory is all that the card holds for it: on a simulated card with contexts."""

import json
import re
from pathlib import Path

import hetero_simulator
import pytest

from tests.programs import next_line

from .conftest import Begin, Run

#: Has so many children make a context each and keep it; prints their answers, then ends them.
CHILDREN = """
import ctypes, os, sys
answers = []
children = []
for _ in range(int(sys.argv[1])):
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        cuda = ctypes.CDLL("libcuda.so.1")
        code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
        os.write(ready[1], bytes([code]))
        os.read(done[0], 1)
        os._exit(0)
    children.append((child, done))
    answers.append(os.read(ready[0], 1)[0])
print(answers)
for child, done in children:
    os.write(done[1], b"!")
    os.waitpid(child, 0)
"""


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """A card of 8 GiB on which a context takes 398 MiB, and its first small piece of memory 2."""
    rack = tmp_path / "contexts.rack"
    rack.write_text(
        "[device]\nvendor = nvidia\nmodel = Card\nmemory = 8 GiB\ncontext = 398 MiB\n"
        "uuid = GPU-11111111-2222-3333-4444-555555555555\n"
    )
    return {**environ, "HETERO_RACK": str(rack), "PYTHONPATH": ""}


def count(tmp_path: Path, value: str) -> str:
    settings = tmp_path / "node.toml"
    settings.write_text(f"[count]\ncontext = {value}\n")
    return str(settings)


def test_run_says_what_a_context_takes_of_the_grant(hetero: Run) -> None:
    done = hetero("run", "--memory", "3Gi", "--", "true")

    assert "memory 3 GiB, of which 400 MiB are the driver's context" in done.stderr
    assert 0 == done.returncode


def test_less_than_a_context_is_bad_input_with_the_figure(hetero: Run) -> None:
    done = hetero("run", "--memory", "400Mi", "--", "true")

    assert (2, "") == (done.returncode, done.stdout)
    assert "the driver's context alone takes 400 MiB" in done.stderr
    assert 1 == done.stderr.count("\n")
    assert {"items": []}.items() <= json.loads(hetero("ps", "--json").stdout).items()


def test_fit_says_of_less_than_a_context_what_run_would(hetero: Run) -> None:
    assert 0 == hetero("run", "--memory", "401Mi", "--", "true").returncode

    fit = hetero("fit", "--memory", "400Mi")

    assert (2, "") == (fit.returncode, fit.stdout)
    assert "the driver's context alone takes 400 MiB" in fit.stderr
    assert 0 == hetero("fit", "--memory", "401Mi").returncode


def test_processes_have_together_as_many_contexts_as_fit(hetero: Run) -> None:
    done = hetero("run", "--memory", "1Gi", "--", "python3", "-c", CHILDREN, "12")

    assert [0] * 2 + [2] * 10 == json.loads(done.stdout)


def test_contexts_are_not_counted_where_the_settings_say_so(
    hetero: Run, tmp_path: Path, environ: dict[str, str]
) -> None:
    """Nor are they measured."""
    settings = count(tmp_path, "false")
    command = ("run", "--memory", "100Mi", "--", "python3", "-c", CHILDREN, "3")

    done = hetero(*command, HETERO_CONFIG=settings)
    doctor = hetero("doctor", HETERO_CONFIG=settings)

    assert [0] * 3 == json.loads(done.stdout)
    assert "context" not in done.stderr
    assert "count as no grant's memory" in doctor.stdout
    assert [] == [*Path(environ["HETERO_STATE"]).glob("*/contexts.json")]


def test_an_out_of_memory_line_counts_contexts(hetero: Run) -> None:
    done = hetero("run", "--memory", "1Gi", "--", "python3", "-c", CHILDREN, "3")

    assert "400 MiB refused: 800 of 1024 MiB of the grant are in use" in done.stderr


def test_a_card_is_measured_once(hetero: Run) -> None:
    hetero("run", "--memory", "3Gi", "--", "true")
    described = hetero("describe", "0").stdout

    assert re.search(r"400 MiB for each context$", described, re.MULTILINE)


def test_a_card_that_was_full_is_measured_later(
    hetero: Run, begin: Begin, environ: dict[str, str]
) -> None:
    """A program without a grant leaves no room for a context. Thirty seconds are not waited for.

    Until then what NVIDIA's declaration says counts.
    """
    drivers = str(hetero_simulator.fake_drivers())
    job = (str(hetero_simulator.job("cuda")), "--seconds", "600", "--memory", "7600MiB")
    program = begin(*job, LD_LIBRARY_PATH=drivers)
    next_line(program)

    def told() -> int:
        done = hetero("run", "--anyway", "--memory", "1Gi", "--", "true")
        (mib,) = re.findall(r"of which (\d+) MiB are the driver's context", done.stderr)
        return int(mib)

    while_full = told()
    program.kill()
    program.wait()
    at_once = told()
    (path,) = Path(environ["HETERO_STATE"]).glob("*/contexts.json")
    notes = {kind: [size, 0.0] for kind, (size, _) in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(notes))

    assert (518, 518, 400) == (while_full, at_once, told())
