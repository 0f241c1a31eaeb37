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
    is_terminal = stream.isatty()
    # A terminal that does not say what it is understands no codes.
    is_smart = is_terminal and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
    is_coloured = is_smart and not os.environ.get("NO_COLOR")
    return _Console(
        file=unescaped(stream),
        force_terminal=is_terminal,
        force_interactive=is_smart,
        color_system="auto" if is_coloured else None,
        width=_width(stream, is_smart=is_smart),
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )


def _width(stream: TextIO, *, is_smart: bool) -> int | None:
    """Return the columns that rich is to keep to, None for those that it asks of the kernel."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    if is_smart:
        return None
    # rich takes each dumb terminal for one of 80 columns.
    return os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else _ENDLESS


def draw(shown_part: Part, console: Console, *, wide: bool = False) -> None:
    """Write texts and tables; `wide`: in lines as long as they get."""
    console.print(joined(layout(shown_part, console, wide=wide)), crop=False, end="")


def joined(lines: Iterable[Line]) -> RenderableType:
    """Return lines as rich draws them."""
    return segment.SegmentLines(lines, new_lines=True)


def layout(shown_part: Part, console: Console, *, wide: bool = False) -> list[Line]:
    """Return the lines of what is to be shown, no wider than the console where that can be."""
    width = _ENDLESS if wide else console.width
    if isinstance(shown_part, str):
        shown_part = Text(shown_part)
    if isinstance(shown_part, Text):
        # A sentence in a pipe is as long as it is.
        return _lines(
            _escaped(shown_part, console), console, width if console.is_terminal else _ENDLESS
        )
    if isinstance(shown_part, Table):
        return _table(shown_part, console, width)
    return [line for part in shown_part for line in layout(part, console, wide=wide)]


def _escaped(text_part: Text, console: Console) -> text.Text:
    """Return a text as it can be shown here. Nothing else makes texts for rich."""
    shown_text = visible(text_part.text)
    return text.Text(
        shown_text if _is_utf(console) else to_ascii(shown_text), text_part.style, overflow="fold"
    )


def _is_utf(console: Console) -> bool:
    return console.encoding.startswith("utf")


def _table(table_part: Table, console: Console, width: int) -> list[Line]:
    rows = [[_escaped(cell, console) for cell in row] for row in table_part.rows]
    natural_widths = {
        column_name: max(cells.cell_len(column_name), *(row[position].cell_len for row in rows), 0)
        for position, column_name in enumerate(table_part.columns)
        if column_name not in table_part.optional or any(row[position] for row in rows)
    }
    # A sentence in a pipe is as long as it is, and takes no room of others.
    long_columns = () if console.is_terminal else table_part.folds
    soft_columns = {*table_part.elides, *table_part.folds}.difference(long_columns)
    fixed_widths = {
        column: 0 if column in long_columns else width for column, width in natural_widths.items()
    }
    least_widths = _fitting(
        {
            column: min(column_width, _LEAST) if column in soft_columns else column_width
            for column, column_width in fixed_widths.items()
        },
        table_part.drops,
        width,
    )
    # Where nothing more may go, lines are longer than the terminal: no number is cut.
    total_width = max(width, _span(least_widths.values())) + sum(
        natural_widths[column] for column in least_widths if column in long_columns
    )
    rich_table = table.Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for column in least_widths:
        rich_table.add_column(
            column,
            justify="right" if column in table_part.right else "left",
            no_wrap=column not in soft_columns,
            min_width=least_widths[column] if column in soft_columns else natural_widths[column],
        )
    for row in rows:
        shown_cells = {
            column: cell
            for column, cell in zip(table_part.columns, row, strict=True)
            if column in least_widths
        }
        for column in shown_cells.keys() & table_part.elides:
            shown_cells[column].no_wrap, shown_cells[column].overflow = True, "ellipsis"
        rich_table.add_row(*shown_cells.values())
    return _lines(rich_table, console, total_width)


def _fitting(widths: Mapping[str, int], drops: Iterable[str], width: int) -> dict[str, int]:
    """Return the columns that stay when those go that must, the first of `drops` first."""
    staying_widths = {**widths}
    for column in drops:
        if _span(staying_widths.values()) <= width:
            break
        staying_widths.pop(column, None)
    return staying_widths


def _span(widths: Iterable[int]) -> int:
    """Return how wide columns of these widths are together."""
    width_list = [*widths]
    return sum(width_list) + _GAP * (len(width_list) - 1)


def _lines(renderable: RenderableType, console: Console, width: int) -> list[Line]:
    """Return what rich makes of it within so many columns, without the space behind each line."""
    options = console.options.update(max_width=width)
    return [
        _trimmed(line, ascii_only=not _is_utf(console))
        for line in segment.Segment.split_lines(console.render(renderable, options))
    ]


def _trimmed(line: Sequence[segment.Segment], *, ascii_only: bool) -> Line:
    segments = [*line]
    while segments and not segments[-1].text.strip(" "):
        segments.pop()
    if segments:
        segment_text, style, _ = segments[-1]
        segments[-1] = segment.Segment(segment_text.rstrip(" "), style)
    if not ascii_only:
        return segments
    # rich knows one sign for what it left out.
    return [
        segment.Segment(re.sub("..…", "...", segment_text), style)
        for segment_text, style, _ in segments
    ]
