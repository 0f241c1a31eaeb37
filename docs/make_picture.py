"""Draws README's picture, docs/demo.svg, from what `hetero demo` printed: docs/captures/demo.txt.

    python docs/make_picture.py             draws it (`make docs` does)
    python docs/make_picture.py --record    runs the demo first and keeps what it prints

Rates and ids differ between runs of the demo, so a run is kept and the picture is drawn from it.
`tests/docs/test_site.py` holds the picture to the run, `tests/cli/test_demo.py` the run to what
the demo prints now.
"""

from __future__ import annotations

import os
import subprocess
import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
RECORD = DOCS / "captures" / "demo.txt"
PICTURE = DOCS / "demo.svg"
#: The sections of the demo that are drawn.
FIRST, BEHIND = "Two programs share", "A program that wants twice"
#: Pixels of a character and of a line; the frame around the text.
_WIDTH, _HEIGHT, _FRAME = 8.0, 19, 16
_BACK, _TEXT, _COMMAND, _BAR, _REFUSAL = "#11161d", "#d5dce4", "#7fd1ae", "#6cb6ff", "#f2b866"


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
    """Draw the picture from the record."""
    PICTURE.write_text(drawn(RECORD.read_text()))


def drawn(printed: str) -> str:
    """Return the picture of the demo's middle sections, as SVG."""
    lines = printed[printed.index(FIRST) : printed.index(BEHIND)].rstrip().splitlines()
    width = int(max(map(len, lines)) * _WIDTH) + 2 * _FRAME
    height = len(lines) * _HEIGHT + 2 * _FRAME
    shown = "\n".join(
        _line(line, _FRAME + number * _HEIGHT + 13) for number, line in enumerate(lines) if line
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"\n'
        '     aria-label="hetero demo: two programs share a card, a third is refused">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{_BACK}"/>\n'
        '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13"'
        f' xml:space="preserve">\n{shown}\n</g>\n</svg>\n'
    )


def _line(line: str, y: int) -> str:
    """Return one line; its length is fixed, so that columns stay columns in any font."""
    colour = _TEXT
    if line.startswith("$ "):
        colour = _COMMAND
    elif "━" in line:
        colour = _BAR
    elif line.startswith(("hetero: ", "exit status")):
        colour = _REFUSAL
    indent = len(line) - len(line.lstrip())
    text = line.strip()
    x, length = _FRAME + indent * _WIDTH, len(text) * _WIDTH
    return f'<text x="{x:g}" y="{y}" textLength="{length:g}" fill="{colour}">{escape(text)}</text>'


if __name__ == "__main__":
    if "--record" in sys.argv[1:]:
        record()
    write()
