"""Programs as others build and start them: for sanitizers, on small stacks, unprivileged."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

import hetero_simulator
import pytest
from tenancy import MIB, Grant, Rack, Terms

SOURCE = Path(__file__).with_name("built.c")
#: Where programs find driver.py and what it stands on.
FOLDERS = f"{Path(__file__).parent}:{Path(__file__).parents[1] / 'simulator/machine'}"
#: How many streams built.c makes.
STREAMS = "32\n"


@pytest.fixture(params=[10000, 5000], ids=["memory", "memory and core"])
def grant(tmp_path: Path, request: pytest.FixtureRequest) -> Grant:
    return Rack.of(tmp_path).grant(Terms(memory=64 * MIB, core=request.param))


def built(directory: Path, *flags: str) -> str:
    """The program, linked to the driver."""
    program, drivers = directory / "built", hetero_simulator.fake_drivers()
    words = ["cc", "-D_GNU_SOURCE", "-O1", "-g", *flags, "-o", str(program), str(SOURCE)]
    words += [f"-L{drivers}", "-l:libcuda.so.1", "-ldl", "-pthread"]
    subprocess.run(words, check=True)
    return str(program)


def outcome(grant: Grant, *command: str, **environment: str) -> tuple[int, str, str]:
    """The exit status of a program under the grant, and what it wrote."""
    program = grant.rack.machine.spawn([*command], **grant.environment, **environment)
    out, errors = program.communicate(timeout=60)
    return program.returncode, out, errors


def test_threads_with_stacks_of_64_kib_make_streams_and_ask_nvml(
    grant: Grant, tmp_path: Path
) -> None:
    assert (0, STREAMS, "") == outcome(grant, built(tmp_path), "64")


def test_a_build_for_thread_sanitizer_runs_and_meets_no_race(grant: Grant, tmp_path: Path) -> None:
    """The limiter's own threads are known to it: one that is not ends the program."""
    program = built(tmp_path, "-fsanitize=thread")
    assert (0, STREAMS, "") == outcome(grant, program, "1024")


def test_a_build_for_address_sanitizer_starts_as_the_guide_says(
    grant: Grant, tmp_path: Path
) -> None:
    program = built(tmp_path, "-fsanitize=address")
    option = "verify_asan_link_order=0"
    guide = Path(__file__).parents[2] / "docs/guides/one-machine.md"
    assert f"ASAN_OPTIONS={option}" in guide.read_text()

    code, out, errors = outcome(grant, program, "1024", ASAN_OPTIONS="detect_leaks=0")
    assert (1, "") == (code, out)
    assert "ASan runtime does not come first" in errors
    options = f"{option}:detect_leaks=0"  # the simulated driver keeps what it allocates
    assert (0, STREAMS, "") == outcome(grant, program, "1024", ASAN_OPTIONS=options)


#: A program of root's that becomes another user.
BECOMES = """
import os
from driver import *
def become():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes another user")
def test_a_program_that_becomes_another_user_after_its_first_call_keeps_to_the_limit(
    grant: Grant,
) -> None:
    code = f"""{BECOMES}
start()
become()
say([take("plain", {60 * MIB}) > 1000, take("plain", {8 * MIB})])
"""
    grant.directory.chmod(0o700)
    status, out, _ = outcome(grant, sys.executable, "-c", code, PYTHONPATH=FOLDERS)
    assert (0, "[true, 2]\n") == (status, out)


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes another user")
def test_a_program_that_becomes_another_user_first_is_refused_in_a_line_that_says_so(
    grant: Grant,
) -> None:
    """As gosu and JupyterHub do. Another user's grant is in a folder that it cannot enter."""
    code = f"{BECOMES}\nbecome()\nsay(cuda.cuInit(0))"
    grant.directory.chmod(0o700)
    status, out, errors = outcome(grant, sys.executable, "-c", code, PYTHONPATH=FOLDERS)
    assert (0, "800\n") == (status, out)
    assert "it is another user's: have root start it by hetero run --for-user" in errors


@pytest.mark.skipif(which("setpriv") is None, reason="setpriv is of util-linux")
def test_a_program_that_may_gain_no_privileges_keeps_the_limiter(grant: Grant) -> None:
    code = f'from driver import *\nstart()\nsay([info()[1], take("plain", {100 * MIB})])'
    command = ("setpriv", "--no-new-privs", sys.executable, "-c", code)
    status, out, _ = outcome(grant, *command, PYTHONPATH=FOLDERS)
    assert (0, f"[{64 * MIB}, 2]\n") == (status, out)
