"""docs/captures shows what the commands show now, where that does not differ between runs."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from captures import COMMANDS, FOLDER, WIDTHS, captures  # noqa: E402 - benchmarks is no package


def headings(text: str) -> list[list[str]]:
    """Return the headings of a capture's tables."""
    return [
        line.split() for line in text.splitlines() if line.startswith(("#", "device  ", "what"))
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
