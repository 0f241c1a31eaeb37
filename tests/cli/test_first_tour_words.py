"""What a first tour found of the command line's words, each row of it a test with its number."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.programs import completed, next_line

from .conftest import Begin, Run

ROOT = Path(__file__).parents[2]
#: The vendors of this environment only: the testing one would add cards to a rack.
SEVEN = {"HETERO_RACK": "seven", "PYTHONPATH": ""}
MIXED = {"HETERO_RACK": "mixed", "PYTHONPATH": ""}


def standing(hetero: Run) -> list[str]:
    """Return the ids of the grants that stand."""
    return [item["id"] for item in json.loads(hetero("ps", "--json").stdout)["items"]]


@pytest.fixture
def trainers(begin: Begin, command: tuple[str, ...], hetero: Run) -> list[str]:
    """Two grants, of which the second is called trainer; their ids."""
    for label in ((), ("--label", "trainer")):
        program = begin(
            *command, "run", "-q", "--memory", "1Gi", "--core", "10", *label, "--",
            "sh", "-c", "echo $$; exec sleep 600",
        )  # fmt: skip
        next_line(program)
    return standing(hetero)


def test_row_02_a_share_is_no_whole_card_while_a_share_fits(hetero: Run) -> None:
    done = hetero("fit", "--memory", "3000Mi", "--core", "30", "--json", **SEVEN)
    (piece,) = json.loads(done.stdout)["items"]

    assert ("nvidia", 30, 3000 << 20) == (piece["vendor"], piece["core"], piece["memory"])
    asked = hetero("fit", "--memory", "3000Mi", "--core", "30", "--whole", "--json", **SEVEN)
    (piece,) = json.loads(asked.stdout)["items"]
    assert (100, True) == (piece["core"], piece["memory"] > 20 << 30)


@pytest.mark.parametrize("words", [(), ("share",), ("runtime",)], ids=" ".join)
def test_row_06_a_command_alone_shows_its_help_laid_out(
    hetero: Run, words: tuple[str, ...]
) -> None:
    alone, asked = hetero(*words), hetero(*words, "--help")

    assert (0, "") == (alone.returncode, alone.stderr)
    assert asked.stdout == alone.stdout
    assert ("\nCommands:\n" if words else "\nLook:\n") in alone.stdout


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("3000", "memory '3000' has no unit: 3000 bytes? write 3000Mi"),
        ("1073741824", "memory '1073741824' has no unit: 1073741824 bytes? write 1073741824B"),
    ],
)
def test_row_07_a_size_without_a_unit_is_refused(hetero: Run, size: str, says: str) -> None:
    for words in (("fit", "--memory", size), ("fit", "--device", f"0:mem={size}")):
        done = hetero(*words)

        assert (2, "", f"hetero: {says}\n") == (done.returncode, done.stdout, done.stderr)


def test_row_03_devices_that_do_not_add_up_are_named(hetero: Run) -> None:
    done = hetero("run", "--count", "3", "--", "true", HETERO_RACK="seven", PYTHONPATH="")

    assert 3 == done.returncode
    says = "hetero: 3 devices of one vendor needed; most here: 2 (ascend, hygon, metax)"
    assert done.stderr.startswith(says)


def test_row_08_each_device_explains_itself_with_numbers(hetero: Run) -> None:
    words = ("fit", "--memory", "200Gi", "--explain")
    done = hetero(*words, HETERO_RACK="mixed", PYTHONPATH="")

    assert 3 == done.returncode
    assert "4 Tesla T4: 15 of 15 GiB memory free, 200 GiB asked" in done.stdout
    assert "cost" not in done.stdout


def test_row_15_a_machine_without_a_card_says_what_to_try(hetero: Run) -> None:
    done = hetero("fit", PYTHONPATH="")

    assert (4, 1) == (done.returncode, done.stderr.count("\n"))
    assert "try `export HETERO_RACK=mixed`" in done.stderr
    assert len(done.stderr) < 200


@pytest.mark.measured
def test_row_15_the_lines_that_the_demo_shows_can_be_repeated(
    hetero: Run, environ: Mapping[str, str], tmp_path: Path
) -> None:
    shown = hetero("demo", "--seconds", "2", PYTHONPATH="").stdout
    lines = re.findall(r"^\$ (.+)$", shown, re.M)
    (tmp_path / "hetero").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hetero.cli "$@"\n')
    (tmp_path / "hetero").chmod(0o755)

    assert 7 <= len(lines)
    assert "export HETERO_RACK=mixed" in shown
    for line in dict.fromkeys(lines):
        again = completed(
            ["bash", "-c", line], env={**environ, **MIXED, "PATH": f"{tmp_path}:{environ['PATH']}"}
        )
        refused = "CUDA_ERROR_OUT_OF_MEMORY" in again.stdout
        assert int(refused) == again.returncode, (line, again.stderr)
        assert "no device" not in again.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("rnu",), 2, "no command 'rnu': did you mean run?"),
        (("share", "lss"), 2, "no command 'lss': did you mean ls?"),
        (("fit", "--memroy", "1Gi"), 2, "--memory"),
        (("fit", "--vendor", "nvida"), 4, ": did you mean nvidia?"),
        (("fit", "--vendor", "huawei"), 4, ": did you mean ascend?"),
        (("fit", "--exclude-vendor", "nvida"), 4, ": did you mean nvidia?"),
        (("fit", "--exclude-model", "H2OO"), 4, "): did you mean NVIDIA H200?"),
        (("fit", "--model", "H100"), 4, "no model 'H100' here (here: "),
        (("fit", "--model", "H100"), 4, "): did you mean NVIDIA H200?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_row_18_a_typing_error_is_told_the_nearest_name_and_what_there_is(
    hetero: Run, words: tuple[str, ...], code: int, says: str
) -> None:
    done = hetero(*words, **MIXED)

    assert (code, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert says in done.stderr


def test_row_18_a_grant_that_is_not_there_is_told_the_nearest(
    hetero: Run, trainers: list[str]
) -> None:
    done = hetero("release", "trianer")

    assert 4 == done.returncode
    assert "no grant 'trianer' stands: `hetero ps` lists those that do: did you mean trainer?" in (
        done.stderr
    )
    assert trainers == standing(hetero)


def test_row_19_what_changes_something_prints_it_with_the_id(
    hetero: Run, trainers: list[str]
) -> None:
    ran = hetero("run", "--memory", "1Gi", "--", "echo", "ran")
    quiet = hetero("run", "-q", "--memory", "1Gi", "--", "echo", "ran")
    released = hetero("release", "--force", trainers[0])

    assert re.fullmatch(
        r"hetero: [0-9a-f]{8}  testing:4 T1000  memory 1 GiB  core no limit\n", ran.stderr
    )
    assert ("ran\n", "ran\n", "") == (ran.stdout, quiet.stdout, quiet.stderr)
    assert (0, f"released grant {trainers[0]}\n") == (released.returncode, released.stdout)
    last = hetero("release", "--force", "-q", trainers[1])
    assert (0, "") == (last.returncode, last.stdout)


def test_row_19_a_label_is_a_name(hetero: Run, trainers: list[str]) -> None:
    refused = hetero("release", "trainer")

    assert 3 == refused.returncode
    assert re.search(r"grant [0-9a-f]{8} is in use by process", refused.stderr)
    released = hetero("release", "--force", "trainer")
    assert re.fullmatch(r"released grant [0-9a-f]{8}\n", released.stdout)
    assert 1 == len(standing(hetero))


def test_row_19_a_label_of_two_grants_is_refused_with_their_ids(
    begin: Begin, command: tuple[str, ...], hetero: Run, trainers: list[str]
) -> None:
    program = begin(
        *command, "run", "-q", "--memory", "1Gi", "--label", "trainer", "--",
        "sh", "-c", "echo $$; exec sleep 600",
    )  # fmt: skip
    next_line(program)
    done = hetero("release", "--force", "trainer")

    assert 2 == done.returncode
    choice = r"[0-9a-f]{8} \(\S+: sh -c 'echo [^)]*sleep 600'\)"
    assert re.search(f"grant 'trainer' could be {choice}, {choice}: give more", done.stderr), (
        done.stderr
    )
    assert 3 == len(standing(hetero))


def test_row_20_a_resize_that_is_refused_names_only_what_lacks(
    begin: Begin, command: tuple[str, ...], hetero: Run
) -> None:
    for core, label in (("50", "other"), ("30", "mine")):
        program = begin(
            *command, "run", "-q", "--device", "0", "--memory", "1Gi", "--core", core,
            "--label", label, "--", "sh", "-c", "echo $$; exec sleep 600",
            **MIXED,
        )  # fmt: skip
        next_line(program)
    done = hetero("resize", "mine", "--core", "80", **MIXED)

    assert (3, "") == (done.returncode, done.stdout)
    assert done.stderr.endswith(" lacks core: 80 % asked, 50 % free\n")


def test_row_22_simulate_can_be_begun_with_the_sample(hetero: Run) -> None:
    sample = ROOT / "examples" / "trace.json"
    done = hetero("simulate", "--trace", str(sample), "--placement", "binpack", "--jobs", "1")
    document = (ROOT / "docs" / "traces.md").read_text()

    assert (0, "") == (done.returncode, done.stderr)
    assert "binpack" in done.stdout
    assert "examples/trace.json" in document
    for kind in json.loads(sample.read_text()).values():
        assert [] == [key for one in kind for key in one if f"`{key}`" not in document]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("vendor = intel", "line 2: no simulated driver of 'intel'"),
        ("vendor = nvida", "line 2: no simulated driver of 'nvida': did you mean nvidia?"),
        ("helth = bad", "line 2: unknown key of [device] 'helth': did you mean health?"),
        ("[kernal spin]", "line 2: unknown section 'kernal': did you mean kernel?"),
    ],
)
def test_row_23_what_a_rack_cannot_mean_is_refused(
    hetero: Run, tmp_path: Path, line: str, says: str
) -> None:
    rack = tmp_path / "my.rack"
    rack.write_text(f"[device]\n{line}\n")
    done = hetero("inventory", HETERO_RACK=str(rack))

    assert (2, f"hetero: HETERO_RACK={rack} is no rack file: {says}\n") == (
        done.returncode,
        done.stderr,
    )


def test_row_23_racks_are_listed_and_their_names_told(hetero: Run) -> None:
    listed = hetero("demo", "--list")
    typo = hetero("inventory", HETERO_RACK="mixd")

    assert (0, "") == (listed.returncode, listed.stderr)
    names = ("amd", "hygon", "iluvatar", "mixed", "mthreads", "one", "seven")
    for name in names:
        assert re.search(rf"^{name} +\S", listed.stdout, re.M)
    assert typo.stderr.endswith(f"shipped are {', '.join(names)}: did you mean mixed?\n")
    assert "HETERO_RACK=mixed" in hetero("--help").stdout


def test_row_24_nobody_is_told_to_remove_a_file(hetero: Run) -> None:
    done = hetero("ps", HETERO_STATE="/etc/passwd")

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert "state directory /etc/passwd is not a directory of user" in done.stderr
    assert "a file: set HETERO_STATE to a directory of yours" in done.stderr
    assert "remove" not in done.stderr
