"""Draws texts and tables by rich: escaped, with the columns that fit, a record a line in pipes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO, TypeAlias

from rich import cells, segment, table, text
from rich.console import Console, RenderableType

from hetero.cli._render import Part, Table, Text
from hetero.cli._terminal import to_ascii, unescaped
from hetero.model.visible import visible

#: A line in pieces, each with its style.
Line: TypeAlias = list[segment.Segment]

#: More columns than any line has: those of a pipe.
_ENDLESS = 1_000_000
_GAP = 2
#: A column of sentences, or of words that may end in `…`, is never narrower.
_LEAST = 20


class _Console(Console):
    """A console whose reader may go: `main` knows what to do then."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console_of(stream: TextIO) -> Console:
    """Return the console that writes to a standard stream.

    It is a terminal where the stream is one, and interactive where frames can be drawn in place.
    A terminal is as wide as $COLUMNS or the kernel says, a pipe as $COLUMNS says, or endless.
    """
    live = stream.isatty()
    # A terminal that does not say what it is understands no codes.
    smart = live and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
    coloured = smart and not os.environ.get("NO_COLOR")
    return _Console(
        file=unescaped(stream),
        force_terminal=live,
        force_interactive=smart,
        color_system="auto" if coloured else None,
        width=_width(stream, smart=smart),
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def _width(stream: TextIO, *, smart: bool) -> int | None:
    """Return the columns that rich is to keep to, None for those that it asks of the kernel."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    if smart:
        return None
    # rich takes each dumb terminal for one of 80 columns.
    return os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else _ENDLESS


def draw(part: Part, console: Console, *, wide: bool = False) -> None:
    """Write texts and tables; `wide`: in lines as long as they get."""
    console.print(joined(layout(part, console, wide=wide)), crop=False, end="")


def joined(lines: Iterable[Line]) -> RenderableType:
    """Return lines as rich draws them."""
    return segment.SegmentLines(lines, new_lines=True)


def layout(part: Part, console: Console, *, wide: bool = False) -> list[Line]:
    """Return the lines of what is to be shown, no wider than the console where that can be."""
    width = _ENDLESS if wide else console.width
    if isinstance(part, str):
        part = Text(part)
    if isinstance(part, Text):
        # A sentence in a pipe is as long as it is.
        return _lines(_escaped(part, console), console, width if console.is_terminal else _ENDLESS)
    if isinstance(part, Table):
        return _table(part, console, width)
    return [line for one in part for line in layout(one, console, wide=wide)]


def _escaped(part: Text, console: Console) -> text.Text:
    """Return a text as it can be shown here. Nothing else makes texts for rich."""
    shown = visible(part.text)
    return text.Text(shown if _is_utf(console) else to_ascii(shown), part.style, overflow="fold")


def _is_utf(console: Console) -> bool:
    return console.encoding.startswith("utf")


def _table(made: Table, console: Console, width: int) -> list[Line]:
    rows = [[_escaped(cell, console) for cell in row] for row in made.rows]
    natural = {
        name: max(cells.cell_len(name), *(row[at].cell_len for row in rows), 0)
        for at, name in enumerate(made.columns)
        if name not in made.optional or any(row[at] for row in rows)
    }
    # A sentence in a pipe is as long as it is, and takes no room of others.
    long = () if console.is_terminal else made.folds
    soft = {*made.elides, *made.folds}.difference(long)
    fixed = {name: 0 if name in long else wanted for name, wanted in natural.items()}
    least = _fitting(
        {name: min(each, _LEAST) if name in soft else each for name, each in fixed.items()},
        made.drops,
        width,
    )
    # Where nothing more may go, lines are longer than the terminal: no number is cut.
    room = max(width, _span(least.values())) + sum(natural[name] for name in least if name in long)
    drawn = table.Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for name in least:
        drawn.add_column(
            name,
            justify="right" if name in made.right else "left",
            no_wrap=name not in soft,
            min_width=least[name] if name in soft else natural[name],
        )
    for row in rows:
        shown = {name: cell for name, cell in zip(made.columns, row, strict=True) if name in least}
        for name in shown.keys() & made.elides:
            shown[name].no_wrap, shown[name].overflow = True, "ellipsis"
        drawn.add_row(*shown.values())
    return _lines(drawn, console, room)


def _fitting(widths: Mapping[str, int], drops: Iterable[str], width: int) -> dict[str, int]:
    """Return the columns that stay when those go that must, the first of `drops` first."""
    staying = {**widths}
    for name in drops:
        if _span(staying.values()) <= width:
            break
        staying.pop(name, None)
    return staying


def _span(widths: Iterable[int]) -> int:
    """Return how wide columns of these widths are together."""
    each = [*widths]
    return sum(each) + _GAP * (len(each) - 1)


def _lines(drawn: RenderableType, console: Console, width: int) -> list[Line]:
    """Return what rich makes of it within so many columns, without the space behind each line."""
    options = console.options.update(max_width=width)
    return [
        _trimmed(line, ascii_only=not _is_utf(console))
        for line in segment.Segment.split_lines(console.render(drawn, options))
    ]


def _trimmed(line: Sequence[segment.Segment], *, ascii_only: bool) -> Line:
    left = [*line]
    while left and not left[-1].text.strip(" "):
        left.pop()
    if left:
        text, style, _ = left[-1]
        left[-1] = segment.Segment(text.rstrip(" "), style)
    if not ascii_only:
        return left
    # rich knows one sign for what it left out.
    return [segment.Segment(re.sub("..…", "...", text), style) for text, style, _ in left]
