"""What a second tour of the command line found, one test for each."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.programs import completed, next_line

from .conftest import Begin, Run


def shell(script: str, command: tuple[str, ...], environ: Mapping[str, str]) -> tuple[int, str]:
    """Run a line of a shell in which `hetero` is the command; return its code and all it said."""
    quoted = " ".join(f"'{word}'" for word in command)
    done = completed(
        ["bash", "-c", f'hetero() {{ {quoted} "$@"; }}\n{script}'], env=environ, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def test_top_shows_a_grants_id_beside_its_name(
    hetero: Run, begin: Begin, command: tuple[str, ...]
) -> None:
    held = begin(
        *command,
        "run",
        "--label",
        "mine",
        "--memory",
        "1Gi",
        "--",
        "bash",
        "-c",
        "echo; exec sleep 600",
    )
    next_line(held)
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    (row,) = (line for line in hetero("top", "--once").stdout.splitlines() if "mine" in line)

    assert [grant["id"], "mine"] == row.split()[1:3]


@pytest.mark.parametrize("label", ["7d44126e", "", "  "])
def test_a_label_that_is_blank_or_like_an_id_is_refused(hetero: Run, label: str) -> None:
    done = hetero("run", "--memory", "1Gi", "--label", label, "--", "true")

    assert 2 == done.returncode
    assert done.stderr.startswith("hetero: label ")


def test_a_full_disk_behind_standard_error_costs_no_program_and_no_exit_code(
    command: tuple[str, ...], environ: Mapping[str, str], tmp_path: Path
) -> None:
    ran = tmp_path / "ran"

    assert (0, "") == shell(f"hetero run --memory 1Gi -- touch {ran} 2>/dev/full", command, environ)
    assert ran.exists()
    assert (3, "") == shell("hetero fit --memory 900Gi 2>/dev/full", command, environ)


@pytest.mark.parametrize("what", ["ps", "inventory", "top --once", "doctor", "vendors", "log"])
def test_a_closed_standard_output_takes_everything(
    command: tuple[str, ...], environ: Mapping[str, str], what: str
) -> None:
    code, printed = shell(f"hetero {what} >&-", command, environ)

    assert code in (0, 1)
    assert "Traceback" not in printed


def test_a_full_disk_behind_standard_output_is_said_of_the_version_too(
    environ: Mapping[str, str],
) -> None:
    start = ("python3", "-c", "from hetero.start import main; main()")
    python = {**environ, "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}"}
    code, printed = shell("hetero --version >/dev/full", start, python)

    assert (2, "hetero: No space left on device\n") == (code, printed)


def test_who_is_asked_for_is_named_where_nobody_is_found(hetero: Run) -> None:
    assert "no grants stand of user ghost\n" == hetero("ps", "--user", "ghost").stdout
    assert "no grants stand on device 3\n" == hetero("ps", "--device", "3").stdout
    assert "no events of ghost\n" == hetero("log", "ghost").stdout


@pytest.mark.parametrize("words", [("ps",), ("top", "--once"), ("resize", "any", "--core", "5")])
def test_an_unset_variable_is_no_device(hetero: Run, words: tuple[str, ...]) -> None:
    done = hetero(*words, "--device", "")

    assert 2 == done.returncode
    assert "--device': is empty" in done.stderr


def test_an_empty_command_is_refused(hetero: Run) -> None:
    done = hetero("run", "--memory", "1Gi", "--", "")

    assert (2, "hetero: no command to run: its first word is empty\n") == (
        done.returncode,
        done.stderr,
    )


@pytest.mark.parametrize("prefix", ["", "/nonexistent"])
def test_units_are_written_below_a_root_that_is_there(hetero: Run, prefix: str) -> None:
    done = hetero("install", "--prefix", prefix, "--yes")

    assert 2 == done.returncode
    assert "does not exist" in done.stderr


def test_another_machines_root_brings_no_advice_for_this_one(hetero: Run, tmp_path: Path) -> None:
    done = hetero("install", "--prefix", str(tmp_path), "--yes", HETERO_STATE="")

    assert 0 == done.returncode
    assert (tmp_path / "etc/systemd/system/heterod.service").exists()
    assert "systemctl daemon-reload" not in done.stdout


def test_a_question_without_an_answer_changes_nothing_and_says_so(
    hetero: Run, tmp_path: Path
) -> None:
    done = hetero("install", "--prefix", str(tmp_path), HETERO_STATE="")

    assert 130 == done.returncode
    assert "nothing was changed" in done.stderr
    assert not (tmp_path / "etc").exists()


def test_the_real_demo_is_not_shown_on_a_simulated_card(hetero: Run) -> None:
    done = hetero("demo", "--real", HETERO_RACK="mixed")

    assert 2 == done.returncode
    assert "HETERO_RACK is set" in done.stderr


def test_a_ledger_is_named_by_an_absolute_path(hetero: Run) -> None:
    done = hetero("ps", HETERO_STATE="here")

    assert 2 == done.returncode
    assert "HETERO_STATE 'here' is not an absolute path" in done.stderr


def test_thousandths_of_a_byte_are_no_memory(hetero: Run) -> None:
    assert "m is a thousandth: write 3Mi or 3M" in hetero("fit", "--memory", "3m").stderr


def test_what_is_given_twice_is_named(hetero: Run) -> None:
    assert "core is given twice" in hetero("fit", "--device", "0:core=5,core=6").stderr


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('[quota]\nmemory = "50%"', 'is not a size: write "40Gi"'),
        ("[quota.users]\nalice = 5", "quota.users.alice is a table: write [quota.users.alice]"),
    ],
)
def test_a_quota_that_is_none_is_refused_with_what_to_write(
    hetero: Run, tmp_path: Path, settings: str, says: str
) -> None:
    (tmp_path / "node.toml").write_text(settings)
    done = hetero("ps", HETERO_CONFIG=str(tmp_path / "node.toml"))

    assert 2 == done.returncode
    assert says in done.stderr


def test_a_trace_that_is_nested_without_end_is_refused(hetero: Run, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    done = hetero("simulate", "--trace", str(tmp_path / "deep.json"))

    assert 2 == done.returncode
    assert "cannot be read as JSON" in done.stderr


def test_what_stands_before_an_uninstall_is_told_as_json_too(
    hetero: Run, begin: Begin, command: tuple[str, ...]
) -> None:
    assert [] == json.loads(hetero("doctor", "--uninstall-check", "--json").stdout)["items"]
    held = begin(*command, "run", "--memory", "1Gi", "--", "bash", "-c", "echo; exec sleep 600")
    next_line(held)
    done = hetero("doctor", "--uninstall-check", "--json")

    assert 3 == done.returncode
    assert ["bad"] == [one["verdict"] for one in json.loads(done.stdout)["items"]]
