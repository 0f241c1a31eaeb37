"""A part of a card that variables alone name to a program is not said to be kept by a partition."""

import json
import shutil
from pathlib import Path

import hetero_simulator
import pytest

from tests.cli.conftest import Run

#: A card in two MIG instances. A program has one at a time, whatever it says.
MIG = "[device]\nvendor = nvidia\nmodel = NVIDIA H200\nmemory = 143771 MiB\nmig = 1g.18gb x2\n"


@pytest.fixture
def environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Those of a machine with cards of seven vendors."""
    rack = shutil.copy(hetero_simulator.rack("seven"), tmp_path)
    return {**environ, "HETERO_RACK": str(rack), "PYTHONPATH": "", "COLUMNS": "200"}


def enforcements(listed: str) -> list[str]:
    return [share["enforcement"] for one in json.loads(listed)["items"] for share in one["shares"]]


def part_of(vendor: str) -> tuple[str, ...]:
    return "--vendor", vendor, "--memory", "4Gi", "--core", "25"


@pytest.mark.parametrize("vendor", ["ascend", "cambricon", "metax", "hygon"])
def test_a_part_of_a_cut_card_is_kept_by_a_variable_on_one_machine(
    hetero: Run, command: tuple[str, ...], vendor: str
) -> None:
    run = ("run", "-q", *part_of(vendor), "--", *command)
    shown = hetero(*run, "top", "--once").stdout
    checkup = hetero(*run, "doctor")

    assert ["variable"] == enforcements(hetero(*run, "ps", "--json").stdout)
    assert " variable !" in shown
    assert " partition " not in shown
    (note,) = [line for line in checkup.stdout.splitlines() if "is told its part" in line]
    assert " note " in note
    assert "a program that ignores that has the whole card" in " ".join(checkup.stdout.split())


def test_a_card_as_a_whole_and_an_instance_that_stands_are_kept_by_the_partition(
    hetero: Run, command: tuple[str, ...], environ: dict[str, str], tmp_path: Path
) -> None:
    whole = hetero("run", "-q", "--vendor", "cambricon", "--", *command, "ps", "--json")
    (tmp_path / "mig.rack").write_text(MIG)
    rack = {"HETERO_RACK": str(tmp_path / "mig.rack")}
    instance = ("run", "-q", "--memory", "10Gi", "--", *command, "ps", "--json")

    assert ["partition"] == enforcements(whole.stdout)
    assert ["partition"] == enforcements(hetero(*instance, **rack).stdout)
