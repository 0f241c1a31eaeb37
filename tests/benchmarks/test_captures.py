"""docs/captures shows what the commands show now, where that does not differ between runs."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from captures import (  # noqa: E402 - benchmarks is no package
    COMMANDS,
    FOLDER,
    HERE,
    PICTURE,
    SCENES,
    WIDTHS,
    captures,
    scene,
)


def headings(text: str) -> list[list[str]]:
    """Return the headings of a capture's tables."""
    return [
        line.split()
        for line in text.splitlines()
        if line.startswith(("card  ", "device  ", "what"))
    ]


def kept(name: str, columns: int) -> str:
    return (FOLDER / f"{name}-{columns}.txt").read_text()


def test_the_captures_have_the_columns_that_the_commands_show() -> None:
    """At one width, since each takes a command; what fit says is the same in every run."""
    fresh = captures([80])

    for name in COMMANDS:
        assert headings(kept(name, 80))
        assert headings(kept(name, 80)) == headings(fresh[f"{name}-80"])
    assert kept("fit", 80) == fresh["fit-80"]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_of_a_capture_is_wider_than_its_terminal(name: str, columns: int) -> None:
    lines = kept(name, columns).splitlines()
    # Paths were other ones in the terminal: of this checkout and of a folder that is gone.
    assert max(len(line) for line in lines if not re.search("/opt/|/run/", line)) <= columns


def sections(name: str) -> dict[int, str]:
    """Return what is kept of a machine, by the columns of its terminal."""
    first, *others = re.split(r"^(?=\$ hetero inventory$)", kept_whole(name), flags=re.MULTILINE)
    assert "" == first
    return {columns: text.rstrip("\n") for columns, text in zip(WIDTHS, others, strict=True)}


def kept_whole(name: str) -> str:
    return (FOLDER / f"inventory-{name}.txt").read_text()


@pytest.mark.parametrize("name", [*HERE, *SCENES])
def test_a_machine_is_kept_at_every_width(name: str) -> None:
    for columns, text in sections(name).items():
        assert max(map(len, text.splitlines())) <= columns
        assert len(text.splitlines()) <= 50


def without_names(text: str) -> list[list[str]]:
    """Return the words of a picture but for ids, PIDs and ages, which are those of a run."""
    plain = re.sub(r"\b[0-9a-f]{8}\b|\b\d+ s\b|\b\d{3,}\b", "", text)
    return [line.split() for line in plain.splitlines()]


def test_what_is_kept_of_seven_vendors_is_what_is_drawn_now() -> None:
    assert without_names(sections("seven")[200]) == without_names(scene("seven", [200])[200])


@pytest.mark.parametrize("name", HERE)
def test_every_rack_that_is_kept_has_programs_on_its_cards(name: str) -> None:
    for text in sections(name).values():
        assert "   0 grants" not in text
        assert re.search("^ +[├└] ", text, re.MULTILINE)


def test_a_cluster_is_kept_at_every_width_with_a_node_of_it() -> None:
    parts = re.split(r"^(?=\$ )", kept_whole("cluster"), flags=re.MULTILINE)[1:]

    for columns, pair in zip(WIDTHS, zip(parts[::2], parts[1::2], strict=True), strict=True):
        assert all(max(map(len, part.splitlines()[1:])) <= columns for part in pair)
        assert all(len(part.splitlines()) <= 60 for part in pair)
        assert "5000 nodes with 40000 cards" in pair[0]
        assert "node-00003: 8 cards of 1 vendor" in pair[1]


def test_the_picture_shows_a_sick_card_shares_partitions_and_who_has_no_grant() -> None:
    shown = re.sub(r"\x1b\[[\d;]*m", "", (FOLDER / "picture.ansi").read_text())

    assert max(map(len, shown.splitlines())) <= PICTURE
    for words in ("ecc", "no grant", "[notebook]", "4 idle: nvidia:2–5", "left: 3 ×", "trainer"):
        assert words in shown
