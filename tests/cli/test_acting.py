"""A grant that holds more than was charged is refused more, and ends where it says so."""

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import hetero_simulator
import pytest

from hetero.node.ledger.grant_file import read_excess, read_limits
from tests.programs import WITHOUT_LIMITER, next_line

from .conftest import Begin, Run

#: MiB that a context takes of a card in the simulated driver, and with a first piece of memory; of
#: the grants here.
CONTEXT = 500
LIMIT = CONTEXT + 2 + 64
RACK = f"[device]\nvendor = nvidia\nmodel = Card\nmemory = 32 GiB\ncontext = {CONTEXT} MiB\n"
JOB = str(hetero_simulator.job("cuda"))


@pytest.fixture
def rack(tmp_path: Path) -> Path:
    (tmp_path / "test.rack").write_text(RACK)
    return tmp_path / "test.rack"


@pytest.fixture
def environ(environ: dict[str, str], rack: Path) -> dict[str, str]:
    return {**environ, "HETERO_RACK": str(rack), "PYTHONPATH": ""}


@pytest.fixture
def start(begin: Begin, command: tuple[str, ...]) -> Begin:
    """Start a job under a grant of so little, and return when it holds its memory or is to end."""

    def job(*before: str, memory: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        limits = ("-q", "--memory", f"{LIMIT}Mi", *options)
        program = begin(*command, "run", *limits, "--", *before, *asking(memory))
        assert next_line(program) or "kill" in options
        return program

    return job


@pytest.fixture
def private_loader(tmp_path: Path) -> tuple[str, ...]:
    """A copy of the dynamic loader that reads no list of what to preload, without the variable."""
    (loader,) = Path("/lib64").glob("ld-linux*.so.*")
    own = tmp_path / "ld.so"
    own.write_bytes(loader.read_bytes().replace(b"/etc/ld.so.preload", b"/xtc/ld.so.preload"))
    own.chmod(0o700)
    return *WITHOUT_LIMITER, str(own)


def asking(memory: str) -> tuple[str, ...]:
    return JOB, "--seconds", "600", "--memory", memory


def ended(watch: subprocess.Popen[str]) -> str:
    """Have a watcher end, and return what it told and nobody has read."""
    watch.terminate()
    watch.wait(timeout=60)
    assert watch.stdout
    return watch.stdout.read()


def grants(hetero: Run) -> dict[str, dict[str, object]]:
    """Return the excess and who is past the limiter, by the label of grants."""
    return {
        grant["label"]: {
            "excess": grant["shares"][0]["excess"],
            "pids": [found["pid"] for found in grant["bypass"]],
        }
        for grant in json.loads(hetero("ps", "--json").stdout)["items"]
    }


def test_a_private_loader_is_shown_within_five_seconds_and_left_alone(
    hetero: Run, begin: Begin, start: Begin, command: tuple[str, ...], private_loader: tuple[str]
) -> None:
    watch = begin(*command, "doctor", "--watch")
    start(memory="1MiB", options=("--label", "honest"))
    thief = start(*private_loader, memory="256MiB", options=("--label", "thief"))
    before = time.monotonic()  # from then on it has its memory
    report = next_line(watch)
    took = time.monotonic() - before
    print(f"shown after {took:.1f} s of 5")
    assert took < 5
    assert f"({thief.pid}) holds {CONTEXT + 256} MiB" in report

    standing = grants(hetero)
    assert [thief.pid] == standing["thief"]["pids"]
    excess = standing["thief"]["excess"]
    assert isinstance(excess, dict)
    assert (CONTEXT + 256) << 20 == excess["memory"]
    assert (CONTEXT + 256 - LIMIT) << 20 == excess["over"]
    assert 0 == standing["honest"]["excess"]["memory"]  # type: ignore[index]
    time.sleep(4)
    assert None is thief.poll()
    shown = " ".join(hetero("ps").stdout.split())
    assert f"{CONTEXT + 256 - LIMIT} MiB beyond its limit, most in process {thief.pid}" in shown


def test_with_on_bypass_kill_it_is_ended_and_nobody_else(
    begin: Begin, start: Begin, command: tuple[str, ...], private_loader: tuple[str], tmp_path: Path
) -> None:
    watch = begin(*command, "doctor", "--watch")
    kill = ("--on-bypass", "kill")
    monitor = tmp_path / "nv-hostengine"
    shutil.copy(JOB, monitor)
    honest = start(memory="32MiB", options=kill)
    neighbour = start(*WITHOUT_LIMITER, memory="256MiB")
    ignored = begin(
        *command,
        *("run", "-q", "--memory", f"{LIMIT}Mi", *kill, "--", *WITHOUT_LIMITER),
        *(str(monitor), *asking("256MiB")[1:]),
    )
    thief = start(*private_loader, memory="256MiB", options=kill)
    assert -signal.SIGKILL == thief.wait(timeout=60)
    time.sleep(4)
    report = ended(watch)
    assert f"({thief.pid}) of grant" in report
    assert 1 == report.count("is killed")
    assert f"({ignored.pid}) holds" in report
    assert [None] * 3 == [one.poll() for one in (honest, neighbour, ignored)]


def test_where_the_driver_says_nothing_of_processes_nothing_is_done(
    hetero: Run,
    begin: Begin,
    start: Begin,
    command: tuple[str, ...],
    private_loader: tuple[str],
    rack: Path,
) -> None:
    call = "call = nvmlDeviceGetComputeRunningProcesses*"
    rack.write_text(f"{RACK}[fault]\n{call}\ndoes = error 3\n")  # NVML_ERROR_NOT_SUPPORTED
    watch = begin(*command, "doctor", "--watch")
    options = ("--on-bypass", "kill", "--on-excess", "kill", "--label", "thief")
    thief = start(*private_loader, memory="256MiB", options=options)

    time.sleep(7)

    assert "" == ended(watch)
    assert None is thief.poll()
    assert None is grants(hetero)["thief"]["excess"]


def test_what_one_program_takes_past_its_limiter_the_others_of_its_grant_are_refused(
    begin: Begin, command: tuple[str, ...]
) -> None:
    """And no longer when it is gone."""
    limited = f"{JOB} --alloc 1GiB >&2"
    thief = " ".join((*WITHOUT_LIMITER, *asking("4GiB")))
    script = (
        f"{limited} && echo granted; {thief} & while {limited}; do sleep 0.1; done; echo refused;"
        f"kill $!; wait; until {limited}; do sleep 0.1; done; echo granted"
    )
    program = begin(*command, "run", "-q", "--memory", "4Gi", "--", "sh", "-c", script)
    watch = begin(*command, "doctor", "--watch")

    program.wait(timeout=150)
    assert program.stdout
    outcomes = [line for line in map(str.strip, program.stdout) if line in ("granted", "refused")]
    assert ["granted", "refused", "granted"] == outcomes
    report = ended(watch)
    assert f"holds {CONTEXT + 4096} MiB" in report
    assert f"{CONTEXT} MiB beyond its limit" in report


#: Twenty processes, each with a context by its limiter, and 40 MiB by the driver's own function,
#: which is found in the driver's table.
SPLIT = """
#include "own_function.h"
#include <stdio.h>
#include <unistd.h>
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
static int take(void)
{
    void *context;
    unsigned long address;
    int (*allocate)(unsigned long *, unsigned long) =
        own_function("libcuda.so.1", "cuMemAlloc_v2");
    return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
           allocate(&address, 40ul << 20);
}
int main(void)
{
    int ready[2];
    char byte;
    if (pipe(ready))
        return 1;
    for (int number = 0; number < 20; number++)
        if (fork() == 0)
            return take() || write(ready[1], "x", 1) != 1 ? 1 : pause();
    close(ready[1]);
    for (int number = 0; number < 20; number++)
        if (read(ready[0], &byte, 1) != 1)
            return 1;
    puts("taken");
    fflush(stdout);
    return pause();
}
"""


def test_excess_that_is_split_over_twenty_processes_is_told_of_its_grant_within_five_seconds(
    hetero: Run, begin: Begin, command: tuple[str, ...], rack: Path, tmp_path: Path
) -> None:
    """Each has less than is told of one process."""
    rack.write_text(RACK.replace(f"context = {CONTEXT} MiB\n", ""))
    program = str(tmp_path / "split")
    header = Path(__file__).parents[1] / "limiters"
    words = ["cc", "-D_GNU_SOURCE", f"-I{header}", "-x", "c", "-", "-x", "none", "-o", program]
    words += [f"-L{hetero_simulator.fake_drivers()}", "-l:libcuda.so.1", "-ldl"]
    subprocess.run(words, input=SPLIT, text=True, check=True)
    watch = begin(*command, "doctor", "--watch")
    split = begin(*command, "run", "-q", "--memory", "512Mi", "--label", "split", "--", program)
    assert "taken\n" == next_line(split)
    before = time.monotonic()
    report = next_line(watch)
    took = time.monotonic() - before
    print(f"shown after {took:.1f} s of 5: {report}")

    assert took < 5
    assert re.search(r" grant \w+ holds \d{3} MiB of .* that its limiter did not count", report)
    standing = grants(hetero)["split"]
    excess = standing["excess"]
    assert isinstance(excess, dict)
    # A charged context is 2 MiB, which this card takes with the first small piece of memory alone.
    assert 20 * (40 - 2) << 20 == excess["memory"]
    assert [] == standing["pids"]


def test_with_on_excess_report_nobody_is_refused(begin: Begin, command: tuple[str, ...]) -> None:
    begin(*command, "doctor", "--watch")
    thief = " ".join((*WITHOUT_LIMITER, *asking("4GiB")))
    script = f"{thief} & sleep 6; {JOB} --alloc 1GiB >&2 && echo granted; kill $!"
    options = ("-q", "--memory", "4Gi", "--on-excess", "report")
    program = begin(*command, "run", *options, "--", "sh", "-c", script)

    program.wait(timeout=60)
    assert program.stdout
    assert "granted" in program.stdout.read().splitlines()


def test_what_was_charged_is_taken_back_when_nobody_watches_any_more(
    begin: Begin, start: Begin, command: tuple[str, ...], environ: dict[str, str]
) -> None:
    watch = begin(*command, "doctor", "--watch")
    start(*WITHOUT_LIMITER, memory="256MiB")
    assert "holds" in next_line(watch)
    (file,) = Path(environ["HETERO_STATE"]).glob("sim-*/grants/*/tenant/grant")
    assert ((CONTEXT + 256) << 20,) == read_excess(file, device_count=1)

    ended(watch)

    assert (0,) == read_excess(file, device_count=1)


def test_a_strict_grant_is_written_so_for_the_limiter(
    begin: Begin, command: tuple[str, ...]
) -> None:
    """What that does is in tests/limiters/test_entry_points.py."""
    script = "import os; print(os.environ['HETERO_GRANT'])"
    for options, strict in ((("--strict",), True), ((), False)):
        program = begin(
            *command, "run", "-q", *options, "--", "sh", "-c", f'python3 -c "{script}"; cat'
        )
        file = Path(next_line(program).strip())
        assert [strict] == [limit.strict for limit in read_limits(file)]
        program.communicate(timeout=60)  # all of the card is the next one's
