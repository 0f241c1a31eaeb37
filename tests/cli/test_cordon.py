"""Cards that are cordoned on one machine, and what the settings exclude."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hetero.node.card_book import CardBook
from tests.programs import next_line
from tests.registry.installed import install

from .conftest import VENDOR, Begin, Run


@pytest.fixture
def holder(begin: Begin, command: tuple[str, ...]) -> "subprocess.Popen[str]":
    """A program that holds 3000 MiB and 30 % of device 1."""
    ask = ("run", "--device", "1:mem=3000Mi,core=30", "--label", "holder")
    program = begin(*command, *ask, "--", "sh", "-c", "echo ready; read end")
    assert "ready\n" == next_line(program)
    return program


def device(hetero: Run, number: int) -> Mapping[str, object]:
    items: list[Mapping[str, object]] = json.loads(hetero("inventory", "--json").stdout)["items"]
    return items[number]


def test_nothing_new_is_given_of_a_cordoned_card_and_its_holder_stays_in_the_views(
    hetero: Run, holder: "subprocess.Popen[str]"
) -> None:
    done = hetero("cordon", "1", "--reason", "loud fan")
    first, second = done.stdout.splitlines()
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]

    assert "testing:1 (T1000, T-1) is cordoned: nothing new is given of it" == first
    assert f"still held by {grant['id']}" == second
    row = next(
        line for line in hetero("inventory").stdout.splitlines() if line.startswith("testing:1 ")
    )
    assert "cordoned (loud fan)" in row
    words = row.split()
    assert ["testing:1", "T1000", "30", "%"] == [*words[:2], *words[words.index("30") :][:2]]
    assert "–" in words  # nothing of its memory is free
    assert (1, 30) == (grant["shares"][0]["number"], grant["shares"][0]["core"])
    refused = hetero("fit", "--device", "1:mem=1Gi")
    assert 3 == refused.returncode
    assert "1 cordoned (loud fan)" in refused.stdout + refused.stderr
    assert 0 == hetero("fit", "--memory", "1Gi").returncode
    assert ("loud fan", "ok") == (device(hetero, 1)["cordon"], device(hetero, 1)["health"])

    assert "testing:1 (T1000, T-1) is not cordoned\n" == hetero("uncordon", "T-1").stdout
    assert 0 == hetero("fit", "--device", "1:mem=1Gi").returncode
    assert None is device(hetero, 1)["cordon"]


def test_a_cordon_without_a_reason_and_twice_is_one_cordon(hetero: Run) -> None:
    hetero("cordon", "testing:2", "-q")
    hetero("cordon", "2")

    assert "" == device(hetero, 2)["cordon"]
    assert " cordoned " in hetero("inventory").stdout
    assert "cordoned: nothing new is given of it" in hetero("doctor").stdout
    assert ("", 0) == ((done := hetero("uncordon", "2", "-q")).stdout, done.returncode)
    assert 0 == hetero("uncordon", "2").returncode


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (
            ("cordon", "9"),
            4,
            "no card '9' here: name one as vendor:index, by its UUID, or by",
        ),
        (("cordon", "testing:9"), 4, "no card 'testing:9' here"),
        (("uncordon", "T-"), 2, "card 'T-' may be any of T-0, T-1, T-2, T-3, T-4: write more of"),
        (("cordon",), 2, "Missing argument '[NODE] CARD'"),
        (
            ("cordon", "1", "--reason", "a\x1b"),
            2,
            r"--reason has a character that cannot be printed ('\x1b'): leave it out",
        ),
        (("cordon", "1", "--reason", "x" * 201), 2, "--reason has 201 characters: write at most 2"),
    ],
)
def test_a_card_that_is_none_or_several_is_one_line(
    hetero: Run, words: tuple[str, ...], code: int, sentence: str
) -> None:
    done = hetero(*words)

    assert (code, 1) == (done.returncode, len(done.stderr.splitlines())), done.stderr
    assert sentence in done.stderr
    assert [None] * 5 == [
        row["cordon"] for row in json.loads(hetero("inventory", "--json").stdout)["items"]
    ]


def test_an_excluded_card_keeps_its_holder_and_uncordon_says_where_it_is_excluded(
    hetero: Run, holder: "subprocess.Popen[str]", environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "node.toml").write_text('[cards]\nexclude = ["testing:1", "T-9"]\n')
    environ["HETERO_CONFIG"] = str(tmp_path / "node.toml")
    (grant,) = json.loads(hetero("ps", "--json").stdout)["items"]
    inventory, refused = hetero("inventory"), hetero("uncordon", "1")

    assert (1, 30) == (grant["shares"][0]["number"], grant["shares"][0]["core"])
    assert "excluded by the node's settings" == device(hetero, 1)["cordon"]
    assert "cards.exclude names 'T-9', and no card of this machine is that" in inventory.stdout
    assert "cards.exclude names 'T-9'" in hetero("doctor").stdout
    assert (3, "testing:1 is excluded by the node's settings: change them") == (
        refused.returncode,
        refused.stderr.strip().removeprefix("hetero: "),
    )
    assert [0, 1, 2, 3, 4] == [
        row["number"] for row in json.loads(hetero("inventory", "--json").stdout)["items"]
    ]


def test_a_card_that_waits_for_a_grant_says_so_and_is_not_uncordoned(
    hetero: Run, holder: "subprocess.Popen[str]", environ: dict[str, str]
) -> None:
    (entry,) = Path(environ["HETERO_STATE"]).rglob("allocation.json")
    entry_text = entry.read_text()
    entry.write_text("{")
    shown, refused = device(hetero, 2), hetero("uncordon", "2")
    entry.write_text(entry_text)

    assert f"grant {entry.parent.name} stands but cannot be read" in str(shown["cordon"])
    assert 3 == refused.returncode
    assert f"testing:2 waits for older grants: grant {entry.parent.name} stands" in refused.stderr
    assert None is device(hetero, 2)["cordon"]


def test_notes_of_cards_that_are_broken_are_one_line_and_nothing_is_given(
    hetero: Run, environ: dict[str, str]
) -> None:
    hetero("cordon", "1")
    (path,) = Path(environ["HETERO_STATE"]).rglob("cards.json")
    path.write_text("{")
    done = hetero("run", "--memory", "1Gi", "--", "true")

    assert 2 == done.returncode
    assert f"cards: {path}" in done.stderr
    assert "repair or remove it, then cordon anew what was cordoned" in done.stderr


def test_a_cordon_outlives_a_boot(hetero: Run, environ: dict[str, str]) -> None:
    """What lies in the state directory itself is lost with /run; what is persistent is not."""
    hetero("cordon", "1", "--reason", "swap")
    state = Path(environ["HETERO_STATE"])
    for path in state.iterdir():
        if path.name != "persistent" and path.is_file():
            os.unlink(path)

    assert "swap" == device(hetero, 1)["cordon"]


def test_a_noted_fault_is_shown_keeps_the_card_from_being_given_and_is_cleared(
    hetero: Run, environ: dict[str, str]
) -> None:
    assert "no fault is noted\n" == hetero("health").stdout
    book = CardBook(Path(environ["HETERO_STATE"]) / "persistent")
    book.note({"T-3": "Xid 48: reset the card", "T-9": "gone"}, module=None)
    (fault,) = json.loads(hetero("health", "--json").stdout)["items"]
    shown = [" ".join(line.split()) for line in hetero("health").stdout.splitlines()]

    assert (3, "T-3", "Xid 48: reset the card") == tuple(
        fault[key] for key in ("number", "uuid", "health")
    )
    assert f"testing:3 T1000 Xid 48: reset the card {fault['since']} T-3" == shown[1]
    refused = hetero("run", "--device", "3:mem=1Gi", "--", "true")
    assert (3, True) == (refused.returncode, "unhealthy (Xid 48: reset the card)" in refused.stderr)
    assert "testing:3 (T1000, T-3) has no fault noted\n" == hetero("health", "clear", "3").stdout
    assert 0 == hetero("run", "--device", "3:mem=1Gi", "--", "true").returncode
    assert "ok" == device(hetero, 3)["health"]


def test_what_the_driver_says_now_cannot_be_cleared(hetero: Run, environ: dict[str, str]) -> None:
    vendor = VENDOR.replace('health="ok"', 'health="ok" if index else "fell off the bus"')
    shutil.rmtree(Path(environ["PYTHONPATH"]))
    Path(environ["PYTHONPATH"]).mkdir()
    install(Path(environ["PYTHONPATH"]), "testing", vendor)
    done = hetero("health", "clear", "0")

    assert (3, "testing:0: its driver says so now: fell off the bus") == (
        done.returncode,
        done.stderr.strip().removeprefix("hetero: "),
    )
    assert 4 == hetero("health", "clear", "7").returncode
