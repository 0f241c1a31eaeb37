"""A vendor whose library misbehaves changes neither exit codes nor what commands print."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.registry import hostile
from tests.registry.installed import install, install_hostile


@pytest.fixture
def hostile_vendor(environ: Mapping[str, str]) -> None:
    install(Path(environ["PYTHONPATH"]), "hostile", Path(hostile.__file__).read_text())


def test_broken_libraries_are_a_line_each_and_a_program_gets_the_other_vendors_card(
    hetero: Run, environ: Mapping[str, str]
) -> None:
    deeds = ("segfault", "exit_0", "close_descriptors", "raise_an_exit", "write_everywhere")
    bad = install_hostile(Path(environ["PYTHONPATH"]), deeds, ["discover"])
    ran = hetero("run", "--memory", "1Gi", "--", "sh", "-c", "echo $TESTING_VISIBLE_DEVICES")
    inventory = json.loads(hetero("inventory", "--json").stdout)
    doctor = hetero("doctor")

    assert (0, "T-4\n") == (ran.returncode, ran.stdout)
    assert 5 == len(inventory["items"])
    states = {row["name"]: row["state"] for row in inventory["vendors"]}
    assert "ok" == states["testing"]
    assert 1 == doctor.returncode
    for entry in bad.values():
        assert "broken" == states[entry.name]
        lines = [line for line in doctor.stdout.splitlines() if f"vendor {entry.name} " in line]
        assert 1 == len(lines)


@pytest.mark.usefixtures("hostile_vendor")
def test_what_a_library_prints_is_not_in_the_output(hetero: Run) -> None:
    at = {"HOSTILE_AT": "import", "HOSTILE_DOES": "print_much"}
    done = hetero("inventory", "--json", **at)

    assert (0, "") == (done.returncode, done.stderr)
    assert 6 == len(json.loads(done.stdout)["items"])


@pytest.mark.usefixtures("hostile_vendor")
def test_the_children_of_a_program_are_its_own(hetero: Run) -> None:
    waits = "import os\ntry:\n os.wait()\nexcept ChildProcessError:\n print('no child')"
    done = hetero("run", "--memory", "1Gi", "--", "python3", "-c", waits, HOSTILE_AT="nowhere")

    assert "no child\n" == done.stdout


@pytest.mark.usefixtures("hostile_vendor")
def test_ps_asks_only_vendors_that_hold_a_grant(hetero: Run, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    at = {"HOSTILE_AT": "import", "HOSTILE_DOES": "leave_a_mark", hostile.LEFT: mark}
    words = ("run", "--vendor", "testing", "--memory", "1Gi", "--", "sh", "-c")
    start = "from hetero.cli import main; main()"
    command = f'rm -f "${hostile.LEFT}"; {sys.executable} -c "{start}" ps --json'
    listed = json.loads(hetero(*words, command, **at).stdout)

    assert [5] == [share["number"] for grant in listed["items"] for share in grant["shares"]]
    assert not Path(mark).exists()


@pytest.mark.usefixtures("hostile_vendor")
def test_an_admission_asks_nothing_of_other_vendors_slices(hetero: Run, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    at = {"HOSTILE_AT": "reconcile", "HOSTILE_DOES": "leave_a_mark", hostile.LEFT: str(mark)}

    assert 0 == hetero("run", "--vendor", "testing", "--memory", "1Gi", "true", **at).returncode
    assert not mark.exists()
    assert 0 == hetero("run", "--vendor", "hostile", "--memory", "1Gi", "true", **at).returncode
    assert mark.exists()


def test_what_fails_after_discovery_is_one_line_of_doctor(
    hetero: Run, environ: Mapping[str, str]
) -> None:
    install_hostile(Path(environ["PYTHONPATH"]), ["segfault"], ["reconcile", "observe"])
    done = hetero("doctor", COLUMNS="200")

    assert 1 == done.returncode
    for hook in ("reconcile", "observe"):
        assert 1 == done.stdout.count(f"{hook}: its process was ended by SIGSEGV")


def test_what_all_vendors_processes_read_by_was_imported_before_they_were_forked(
    hetero: Run, environ: Mapping[str, str]
) -> None:
    # What was there when the process was forked is not searched for garbage in it.
    reader = "sys.modules['hetero.model.reader']"
    says = f"import gc, sys\nraise RuntimeError({reader} in gc.get_objects())"
    install(Path(environ["PYTHONPATH"]), "telling", says)
    rows = json.loads(hetero("vendors", "--json").stdout)["items"]

    assert "telling: load: False" in [row["reason"] for row in rows]


def test_a_vendor_is_held_to_the_contract(hetero: Run) -> None:
    done = hetero("vendors", "check", "testing", "--json")
    failed = [item["says"] for item in json.loads(done.stdout)["items"] if item["failure"]]

    assert (1, ["usage is unknown of a device that is not there"]) == (done.returncode, failed)
    assert (4, "") == (hetero("vendors", "check", "nobody").returncode, done.stderr)


def test_nothing_of_a_vendor_that_is_not_on_the_nodes_list_is_run(
    hetero: Run, environ: Mapping[str, str], tmp_path: Path
) -> None:
    (tmp_path / "node.toml").write_text('[vendors]\nallow = ["hetero-testing"]\n')
    mark = tmp_path / "mark"
    more = {"HETERO_CONFIG": str(tmp_path / "node.toml"), hostile.LEFT: str(mark)}
    install(Path(environ["PYTHONPATH"]), "hostile", Path(hostile.__file__).read_text())
    done = hetero("vendors", "--json", HOSTILE_AT="import", HOSTILE_DOES="leave_a_mark", **more)
    states = {row["name"]: row["state"] for row in json.loads(done.stdout)["items"]}

    assert ("ok", "untrusted") == (states["testing"], states["hostile"])
    assert not mark.exists()
