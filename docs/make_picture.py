"""Draws README's pictures from what commands printed: docs/inventory.svg and docs/demo.svg.

    python docs/make_picture.py             draws them (`make docs` does)
    python docs/make_picture.py --record    runs the demo first and keeps what it prints

Rates and ids differ between runs, so a run is kept and the picture is drawn from it:
docs/captures/demo.txt, and docs/captures/picture.ansi, which `make captures` writes.
`tests/docs/test_site.py` holds the pictures to the runs, `tests/cli/test_demo.py` the run to what
the demo prints now.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
RECORD, SHOWN = DOCS / "captures" / "demo.txt", DOCS / "captures" / "picture.ansi"
PICTURE, INVENTORY = DOCS / "demo.svg", DOCS / "inventory.svg"
#: The sections of the demo that are drawn.
FIRST, BEHIND = "Two programs share", "A program that wants twice"
#: Pixels of a character and of a line; the frame around the text.
_WIDTH, _HEIGHT, _FRAME = 8.0, 19, 16
_BACK, _TEXT, _COMMAND, _BAR, _REFUSAL = "#11161d", "#d5dce4", "#7fd1ae", "#6cb6ff", "#f2b866"
#: The colours of a terminal by the numbers of its codes (ECMA-48, select graphic rendition).
_COLOURS = {
    "31": "#ff7b72",
    "32": "#7fd1ae",
    "33": "#f2b866",
    "36": "#6cb6ff",
    "2": "#8b949e",
    "1": "#ffffff",
}
#: Signs of bars, which fonts draw in all sizes: the part of a line that they are high, and how
#: opaque they are.
_BARS = {"█": (0.8, 1.0), "▓": (0.8, 0.55), "▒": (0.8, 0.8), "·": (0.12, 0.6), "━": (0.2, 1.0)}
_CODE = re.compile("\x1b\\[([0-9;]*)m")


class _Piece(NamedTuple):
    """A text of one colour that begins in a column."""

    column: int
    text: str
    colour: str


def record() -> None:
    """Run the demo and keep what it prints, with the checkout's path as /opt/hetero."""
    hetero = Path(sys.executable).with_name("hetero")
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environ = {**clean, "LANG": "C.UTF-8", "COLUMNS": "100"}
    printed = subprocess.run(
        [hetero, "demo"], env=environ, stdout=subprocess.PIPE, check=True
    ).stdout
    RECORD.write_text(printed.decode().replace(str(DOCS.parent), "/opt/hetero"))


def write() -> None:
    """Draw the pictures from the records."""
    PICTURE.write_text(drawn(RECORD.read_text()))
    INVENTORY.write_text(drawn_inventory(SHOWN.read_text()))


def drawn(printed: str) -> str:
    """Return the picture of the demo's middle sections, as SVG."""
    lines = printed[printed.index(FIRST) : printed.index(BEHIND)].rstrip().splitlines()
    label = "hetero demo: two programs share a card, a third is refused"
    return _svg([[_Piece(0, line, _colour_of(line))] for line in lines], label)


def drawn_inventory(printed: str) -> str:
    """Return the picture of what `hetero inventory` shows in a terminal, as SVG."""
    label = "hetero inventory: cards with what is granted, used and free, and who has it"
    return _svg([list(_pieces(line)) for line in printed.rstrip().splitlines()], label)


def _colour_of(line: str) -> str:
    if line.startswith("$ "):
        return _COMMAND
    if "━" in line:
        return _BAR
    return _REFUSAL if line.startswith(("hetero: ", "exit status")) else _TEXT


def _pieces(line: str) -> Iterator[_Piece]:
    """Yield the texts of a line of a terminal, each with its colour."""
    colour, column = _COMMAND if line.startswith("$ ") else _TEXT, 0
    # Between the codes, which the pattern's group returns, stand the texts.
    for number, part in enumerate(_CODE.split(line)):
        if number % 2:
            codes = [code for code in part.split(";") if code in _COLOURS]
            colour = _COLOURS[codes[-1]] if codes else _TEXT
        elif part:
            yield _Piece(column, part, colour)
            column += len(part)


def _svg(lines: list[list[_Piece]], label: str) -> str:
    columns = max(piece.column + len(piece.text) for line in lines for piece in line)
    width, height = int(columns * _WIDTH) + 2 * _FRAME, len(lines) * _HEIGHT + 2 * _FRAME
    shapes = "\n".join(
        shape
        for number, line in enumerate(lines)
        for piece in line
        for shape in _shapes(piece, _FRAME + number * _HEIGHT)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"\n'
        f'     aria-label="{escape(label)}">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACK}"/>\n'
        '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">\n'
        f"{shapes}\n</g>\n</svg>\n"
    )


def _shapes(piece: _Piece, top: int) -> Iterator[str]:
    """Yield what draws a text: words at the places of their columns, and bars.

    No element has two spaces in a row, which browsers would make one, and the length of each is
    fixed: so columns stay columns in any font.
    """
    signs = "".join(_BARS)
    for match in re.finditer(rf"([{signs}])\1*|[^ {signs}]+(?: [^ {signs}]+)*", piece.text):
        x = _FRAME + (piece.column + match.start()) * _WIDTH
        length, sign = len(match[0]) * _WIDTH, match[1]
        if sign:
            part, opacity = _BARS[sign]
            y = top + (1 - part) / 2 * _HEIGHT
            yield (
                f'<rect x="{x:g}" y="{y:g}" width="{length:g}" height="{part * _HEIGHT:g}"'
                f' fill="{piece.colour}" opacity="{opacity:g}"/>'
            )
        else:
            yield (
                f'<text x="{x:g}" y="{top + 13}" textLength="{length:g}" fill="{piece.colour}">'
                f"{escape(match[0])}</text>"
            )


if __name__ == "__main__":
    if "--record" in sys.argv[1:]:
        record()
    write()
