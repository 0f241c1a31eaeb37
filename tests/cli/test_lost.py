"""A card that its driver no longer lists, while a program holds a share of it."""

import json
import subprocess
from pathlib import Path

from tests.programs import next_line

from .conftest import VENDOR, Begin, Run


def lose(folder: Path) -> None:
    """Have the driver list no second card from now on."""
    listing = VENDOR.replace('"T-1": 16, ', "")
    assert listing != VENDOR
    (folder / "site/hetero_testing.py").write_text(listing)


def line_of(hetero: Run, uuid: str) -> str:
    """Return the line of a card in the inventory, nothing if it is in none."""
    lines = hetero("inventory", COLUMNS="200").stdout.splitlines()
    return next((" ".join(line.split()) for line in lines if f" {uuid}" in line), "")


def test_a_card_that_is_lost_stays_in_the_views_until_its_holder_has_ended(
    hetero: Run, begin: Begin, command: tuple[str, ...], tmp_path: Path
) -> None:
    ask = ("run", "--device", "1:mem=3000Mi,core=30", "--label", "holder")
    program: subprocess.Popen[str] = begin(*command, *ask, "--", "sh", "-c", "echo run; read end")
    assert "run\n" == next_line(program)
    assert "T1000" in line_of(hetero, "T-1")
    lose(tmp_path)

    row = line_of(hetero, "T-1")
    words = row.split()
    assert ["testing:1", "T1000"] == words[:2]
    assert ["30", "%", "–"] == words[words.index("30") : words.index("30") + 3]
    assert ["1/4", "nothing", "!", "lost", "T-1"] == words[words.index("1/4") :]
    assert "testing:1: lost by its driver: nothing is given of it" in hetero("inventory").stdout
    items = json.loads(hetero("inventory", "--json").stdout)["items"]
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    assert ["T-0", "T-2", "T-3", "T-4", "T-1"] == [item["uuid"] for item in items]
    assert [grant["id"]] == items[-1]["grants"]
    assert 30 == grant["shares"][0]["core"]
    assert 3 == hetero("run", "--memory", "16Gi", "--count", "4", "--", "true").returncode
    assert 0 == hetero("fit", "--memory", "1Gi").returncode

    program.communicate("\n", timeout=30)
    assert "" == line_of(hetero, "T-1")
