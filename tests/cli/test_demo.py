"""hetero demo, as a person without a card sees it."""

import getpass
import re
import sys
from pathlib import Path

import pytest
from make_picture import BEHIND, FIRST, RECORD

from hetero.node.demo import why_shares_say_little
from tests.cli.conftest import Run
from tests.programs import completed

#: The row of a program that has memory of its card, and time of it.
AT_WORK = re.compile(r" (?!0\.0/)[\d.]+/[36]0 % +(?!0/)[\d.]+/[\d.]+ GiB  fixed ")


@pytest.mark.measured
def test_the_demo_shows_sharing_and_says_that_its_card_is_simulated(hetero: Run) -> None:
    done = hetero("demo", "--seconds", "2", PYTHONPATH="")

    assert (0, "") == (done.returncode, done.stderr)
    shown = done.stdout
    assert shown.splitlines()[0].startswith("The cards in this demo are SIMULATED")
    small, large = (float(got) for got in re.findall(r"got +([\d.]+) %", shown)[-2:])
    assert 20 < small < 40 < large < 70
    assert "CUDA_ERROR_OUT_OF_MEMORY" in shown
    assert re.search(r"hetero: 0 of \d+ devices: .*lack core.*\nexit status 3", shown)
    assert 2 == len(AT_WORK.findall(shown))  # who held the card while the third one asked
    # A picture of README is drawn from a run that is kept: but for figures it says the same.
    assert figureless(RECORD.read_text()) == figureless(shown)


def figureless(shown: str) -> list[str]:
    """Return the lines that are drawn, without figures, ids, bars, users and what differs besides.

    A command is shown as far as there is room, and either grant may be the first.
    """
    lines = shown[shown.index(FIRST) : shown.index(BEHIND)].splitlines()
    differs = re.compile(
        rf"\b[0-9a-f]{{8}}(-[0-9a-f-]+)?\b|[\d.]+|━+╸?|╸|\b({getpass.getuser()}|root)\b|--warmup.*"
    )
    return [" ".join(differs.sub("~", line).split()) for line in lines]


@pytest.mark.parametrize(
    ("load", "warning"), [(1.0, None), (99.5, "This machine is busy (load 99.5 on ")]
)
def test_where_others_want_the_processors_the_demo_says_that_shares_say_little(
    monkeypatch: pytest.MonkeyPatch, load: float, warning: str | None
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    shown = why_shares_say_little()
    assert shown == warning or (warning and shown and shown.startswith(warning))


@pytest.mark.measured
@pytest.mark.parametrize(
    "vendor",
    [
        "mthreads",
        pytest.param("iluvatar", marks=pytest.mark.soak),
        pytest.param("hygon", marks=pytest.mark.hip),
        pytest.param("amd", marks=[pytest.mark.hip, pytest.mark.soak]),
    ],
)
def test_the_demo_shows_a_vendors_own_api(hetero: Run, vendor: str) -> None:
    """Without slices: what these vendors would cut, the limiter shares."""
    done = hetero("demo", "--vendor", vendor, "--seconds", "2")

    assert (0, "") == (done.returncode, done.stderr)
    small, large = (float(got) for got in re.findall(r"got +([\d.]+) %", done.stdout)[-2:])
    assert 20 < small < 40 < large < 75
    assert "OutOfMemory" in done.stdout or "OUT_OF_MEMORY" in done.stdout
    assert ("CUDA_ERROR" in done.stdout) == (vendor == "iluvatar")  # whose API is CUDA's
    assert 2 == len(AT_WORK.findall(done.stdout))


def test_what_a_third_program_is_told_when_the_two_have_ended_is_not_shown() -> None:
    """On a machine that is very busy, it may come too late: then it has what it asks for."""
    program = """
from hetero.node.demo import stage
with stage(real=False) as demo:
    print(demo.shared(demo.view()), demo.over_core())
"""
    command = (sys.executable, "-c", program)
    done = completed(command, timeout=60, check=True)
    assert "False None\n" == done.stdout


@pytest.mark.parametrize(
    ("options", "variable", "message"),
    [
        (("--vendor", "zephyr"), "", "--vendor zephyr: there is a demo on cards of amd, "),
        (("--vendor", "amd", "--real"), "", "--real takes those that are here"),
        (("--vendor", "amd"), "one", "HETERO_RACK is set, and names the cards: unset it"),
    ],
)
def test_a_vendor_that_cannot_be_shown_is_one_clear_line(
    hetero: Run, options: tuple[str, ...], variable: str, message: str
) -> None:
    done = hetero("demo", *options, HETERO_RACK=variable)

    assert (2, "") == (done.returncode, done.stdout)
    assert message in done.stderr


def test_without_the_vendors_runtime_the_demo_says_which_is_missing(
    hetero: Run, tmp_path: Path
) -> None:
    for name in ("libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7"):
        (tmp_path / name).write_text("no library")
    done = hetero("demo", "--vendor", "amd", LD_LIBRARY_PATH=str(tmp_path))

    assert (2, "") == (done.returncode, done.stdout)
    assert "no HIP runtime is installed" in done.stderr


def test_without_a_card_the_real_demo_says_so_and_touches_nothing(hetero: Run) -> None:
    done = hetero("demo", "--real", HETERO_RACK="")

    assert (4, "") == (done.returncode, done.stdout)
    assert "hetero: no empty card with a limiter here" in done.stderr
