"""The command line as a user starts it, with one vendor installed as any other would be."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import hetero_simulator
import pytest

from tests.programs import completed
from tests.registry.installed import install

#: Four devices of 16 GiB and one of 8 GiB; usage is a file, so that a test can set it.
VENDOR = """
from hetero.plugin import GiB, Fractional, Model, Enforcement, Usage, Vendor, Whole, hookimpl

VENDOR = Vendor(
    api=2,
    name="testing",
    title="Testing",
    models=(
        Model(match="W*", granularity=Whole()),
        Model(match="*", granularity=Fractional(), slots=4),
    ),
    visible=("TESTING_VISIBLE_DEVICES",),
)
SIZES = {"T-0": 16, "T-1": 16, "T-2": 16, "T-3": 16, "T-4": 8}

@hookimpl
def hetero_vendor():
    return VENDOR

@hookimpl
def hetero_discover():
    for index, (uuid, size) in enumerate(SIZES.items()):
        yield VENDOR.device(
            uuid=uuid,
            model="T1000",
            index=index,
            memory=size * GiB,
            enforcement=Enforcement.NONE,
            health="ok",
        )

@hookimpl
def hetero_observe(device):
    return Usage(memory=GiB, core=0.25)
"""

#: Of a context on a simulated card whose rack names none: a block for small pieces of memory.
CONTEXT = 2 << 20

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a state directory of its own and the testing vendor installed."""
    site = tmp_path / "site"
    site.mkdir()
    install(site, "testing", VENDOR)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HETERO_", "LD_"))}
    return {
        **clean,
        "PYTHONPATH": str(site),
        "HETERO_STATE": str(tmp_path / "state"),
        "COLUMNS": "100",
    }


@pytest.fixture
def one_card(tmp_path: Path) -> Path:
    """The shipped rack of one card, for this test alone: what cards do is kept by a rack's path."""
    return Path(shutil.copy(hetero_simulator.rack("one"), tmp_path))


@pytest.fixture
def command() -> tuple[str, ...]:
    """How the command line is started."""
    return (sys.executable, "-c", "from hetero.start import main; main()")


@pytest.fixture
def begin(environ: Mapping[str, str]) -> Iterator[Begin]:
    """Start programs that run until the test ends, and are then killed with what they started."""
    programs: list[subprocess.Popen[str]] = []

    def start(*words: str, **more: str) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            words,
            env={**environ, **more},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        programs.append(program)
        return program

    yield start
    for program in programs:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate(timeout=30)


@pytest.fixture
def hetero(environ: Mapping[str, str], command: tuple[str, ...]) -> Run:
    """Run a command line to its end and return what came of it."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return completed([*command, *arguments], env={**environ, **more}, timeout=60)

    return run
