"""Draws texts and tables: escaped, with the columns that fit, a record a line in pipes.

rich draws in terminals. A pipe gets text alone, and most of rich is not imported for it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO, TypeAlias

from rich import cells

from hetero.cli._render import Cell, Flow, Memory, Outline, Part, Table, Text
from hetero.cli._terminal import to_ascii, unescaped
from hetero.model.frozen import frozen
from hetero.model.visible import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import SegmentLines

#: A line in pieces, escaped already.
Line: TypeAlias = list[Text]


class Heading(list[Text]):
    """The line of a table's headings."""


@frozen
class Pipe:
    """What stands for a console where the stream is no terminal: `width` columns, no styles."""

    stream: TextIO
    width: int
    is_terminal: bool = False
    is_interactive: bool = False

    @property
    def encoding(self) -> str:
        """The encoding of the stream."""
        return (self.stream.encoding or "utf-8").lower()


#: More columns than any line has: those of a pipe.
_PIPE_COLUMNS = 1_000_000
_GAP_COLUMNS, _FLOW_GAP_COLUMNS = 2, 3
#: A column of sentences, or of words that may end in `…`, is never narrower.
_LEAST_COLUMN_WIDTH = 20


def console_of(stream: TextIO) -> Console | Pipe:
    """Return the console that writes to a standard stream.

    A pipe is as wide as $COLUMNS says, or endless.
    """
    if stream.isatty():
        return terminal_of(stream)
    return Pipe(unescaped(stream), _width(stream, is_smart=False) or _PIPE_COLUMNS)


def terminal_of(stream: TextIO) -> Console:
    """Return rich's console that writes to a standard stream.

    It is a terminal where the stream is one, and interactive where frames can be drawn in place.
    A terminal is as wide as $COLUMNS or the kernel says.
    """
    from rich.console import Console  # here: a pipe does without

    class Terminal(Console):
        """A console whose reader may go: `main` knows what to do then."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    is_terminal = stream.isatty()
    # A terminal that does not say what it is understands no codes.
    is_smart = is_terminal and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
    is_coloured = is_smart and not os.environ.get("NO_COLOR")
    return Terminal(
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
    return (
        os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else _PIPE_COLUMNS
    )


def draw(shown_part: Part, console: Console | Pipe, *, wide: bool = False) -> None:
    """Write texts and tables; `wide`: in lines as long as they get."""
    lines = layout(shown_part, console, wide=wide)
    if isinstance(console, Pipe):
        for line in lines:
            console.stream.write("".join(piece.text for piece in line) + "\n")
        console.stream.flush()
    else:
        console.print(joined(lines, console), crop=False, end="")


def joined(lines: Iterable[Line], console: Console) -> SegmentLines:
    """Return lines as rich draws them."""
    from rich import segment  # here: a pipe does without

    return segment.SegmentLines(
        [
            [segment.Segment(piece.text, console.get_style(piece.style)) for piece in line]
            for line in lines
        ],
        new_lines=True,
    )


def layout(shown_part: Part, console: Console | Pipe, *, wide: bool = False) -> list[Line]:
    """Return the lines of what is to be shown, no wider than the console where that can be."""
    width = _PIPE_COLUMNS if wide else console.width
    if isinstance(shown_part, str):
        shown_part = Text(shown_part)
    if isinstance(shown_part, Text):
        # A sentence in a pipe is as long as it is.
        return _sentence(shown_part, console, width if console.is_terminal else _PIPE_COLUMNS)
    if isinstance(shown_part, Table):
        return _table(shown_part, console, width)
    if isinstance(shown_part, Outline):
        return _outline(shown_part, console, width)
    if isinstance(shown_part, Flow):
        return _flow(shown_part, console, width if console.is_terminal else _PIPE_COLUMNS)
    return [line for part in shown_part for line in layout(part, console, wide=wide)]


def _escaped(text_part: Text, console: Console | Pipe) -> str:
    """Return a text as it can be shown here. Nothing else makes texts for rich."""
    shown_text = visible(text_part.text)
    return shown_text if _is_utf(console) else to_ascii(shown_text)


def _is_utf(console: Console | Pipe) -> bool:
    return console.encoding.startswith("utf")


def _sentence(text_part: Text, console: Console | Pipe, width: int) -> list[Line]:
    """Return a text in lines of so many columns, broken between words where that can be."""
    shown_text = _escaped(text_part, console)
    return [
        [Text(line_text, text_part.style)] if line_text else []
        for line_text in _wrapped(shown_text, width)
    ]


def _wrapped(shown_text: str, width: int) -> list[str]:
    if cells.cell_len(shown_text) <= width and "\n" not in shown_text:
        return [shown_text.rstrip(" ")]
    from rich.console import Console
    from rich.text import Text as RichText  # here: most texts fit

    wrapped = RichText(shown_text, overflow="fold").wrap(Console(width=width), width)
    return [line.plain.rstrip(" ") for line in wrapped]


def _flow(flow: Flow, console: Console | Pipe, width: int) -> list[Line]:
    lines: list[Line] = []
    line_columns = 0
    for pieces, piece_columns in (_pieces(each, console) for each in flow.texts):
        if lines and line_columns + _FLOW_GAP_COLUMNS + piece_columns <= width:
            lines[-1] += [Text(" " * _FLOW_GAP_COLUMNS), *pieces]
            line_columns += _FLOW_GAP_COLUMNS + piece_columns
        else:
            lines.append([*pieces])
            line_columns = piece_columns
    return lines


# --- tables -----------------------------------------------------------------------------------

#: What a cell shows in one line: its pieces, and how many columns they take.
_Cell: TypeAlias = tuple[Line, int]


def _table(table_part: Table, console: Console | Pipe, width: int) -> list[Line]:
    heading, row_lines = _painted(table_part, console, width)
    return [heading, *(line for lines in row_lines for line in lines)]


def _outline(outline: Outline, console: Console | Pipe, width: int) -> list[Line]:
    """Return the rows of both tables in their order, each under the headings of its table."""
    outer_heading, outer_rows = _painted(outline.outer, console, width)
    inner_heading, inner_rows = _painted(outline.inner, console, width)
    lines = [outer_heading, inner_heading] if inner_rows else [outer_heading]
    rest = {id(outline.outer): iter(outer_rows), id(outline.inner): iter(inner_rows)}
    for entry in outline.entries:
        if isinstance(entry, Table):
            lines += next(rest[id(entry)])
        elif isinstance(entry, Text):
            # A sentence in a pipe is as long as it is.
            lines += _sentence(entry, console, width if console.is_terminal else _PIPE_COLUMNS)
    return lines


def _painted(
    table_part: Table, console: Console | Pipe, width: int
) -> tuple[Line, list[list[Line]]]:
    """Return the heading of a table, and the lines of each of its rows."""
    rows = [
        {
            column: _pieces(cell, console)
            for column, cell in zip(table_part.columns, row, strict=True)
        }
        for row in table_part.rows
    ]
    widths = _widths(table_part, rows, console, width)
    heading = {
        column: ([Text(column, "bold")] if column.strip() else [], cells.cell_len(column))
        for column in widths
    }
    return (
        Heading(_line(heading, widths, table_part.right)),
        [list(_row_lines(table_part, row, widths, console)) for row in rows],
    )


def _pieces(cell: Cell, console: Console | Pipe) -> _Cell:
    """Return the escaped pieces of a cell, and how many columns they take."""
    parts = (cell,) if isinstance(cell, Text) else cell
    pieces = [Text(_escaped(part, console), part.style) for part in parts if part.text]
    return pieces, sum(cells.cell_len(piece.text) for piece in pieces)


def _widths(
    table_part: Table, rows: Sequence[Mapping[str, _Cell]], console: Console | Pipe, width: int
) -> dict[str, int]:
    """Return the columns that are shown, with the width of each: no number is cut.

    Where nothing more may go, lines are longer than the terminal.
    """
    memory = table_part.memory or Memory()
    natural_widths = _natural_widths(table_part, rows, memory)
    # A sentence in a pipe is as long as it is, and takes no room of others.
    long_columns = () if console.is_terminal else table_part.folds
    soft_columns = {*table_part.elides, *table_part.folds}.difference(long_columns)
    widths = _fitting(
        {
            column: 0
            if column in long_columns
            else min(natural, _LEAST_COLUMN_WIDTH)
            if column in soft_columns
            else natural
            for column, natural in natural_widths.items()
        },
        table_part.drops,
        width,
    )
    memory.widths.update({column: natural_widths[column] for column in widths})
    memory.gone.update(natural_widths.keys() - widths.keys())
    spare_columns = width - _span(widths.values())
    # Sentences have what they want first; of words, those that want least.
    by_want = sorted(
        soft_columns & widths.keys(),
        key=lambda column: (column in table_part.elides, natural_widths[column] - widths[column]),
    )
    for position, column in enumerate(by_want):
        sharers = len(by_want) - position if column in table_part.elides else 1
        wanted_columns = natural_widths[column] - widths[column]
        more_columns = max(0, min(wanted_columns, spare_columns // sharers))
        widths[column] += more_columns
        spare_columns -= more_columns
    long_widths = {column: natural_widths[column] for column in long_columns if column in widths}
    return widths | long_widths


def _natural_widths(
    table_part: Table, rows: Sequence[Mapping[str, _Cell]], memory: Memory
) -> dict[str, int]:
    """Return the columns that say something, and did before, with the width that each wants."""
    widths = {
        column: max(cells.cell_len(column), *(row[column][1] for row in rows), 0)
        for column in table_part.columns
        if column not in table_part.optional
        or column in memory.widths
        or any(row[column][1] for row in rows)
    }
    return {
        column: max(width, memory.widths.get(column, 0))
        for column, width in widths.items()
        if column not in memory.gone
    }


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
    return sum(width_list) + _GAP_COLUMNS * (len(width_list) - 1)


def _row_lines(
    table_part: Table, row: Mapping[str, _Cell], widths: Mapping[str, int], console: Console | Pipe
) -> Iterator[Line]:
    """Yield the lines of a row: one, but where sentences go on in the next."""
    cells_by_column = {
        column: _cell_lines(row[column], column_width, console, folds=column in table_part.folds)
        for column, column_width in widths.items()
    }
    blank: _Cell = ([], 0)
    for number in range(max(map(len, cells_by_column.values()))):
        yield _line(
            {
                column: lines[number] if number < len(lines) else blank
                for column, lines in cells_by_column.items()
            },
            widths,
            table_part.right,
        )


def _cell_lines(cell: _Cell, width: int, console: Console | Pipe, *, folds: bool) -> list[_Cell]:
    """Return a cell within its column: folded into lines, or with `…` at its end."""
    pieces, length = cell
    if length <= width or not pieces:
        return [cell]
    first = pieces[0]
    if folds:
        lines = _wrapped(first.text, width)
        return [([Text(line, first.style)], cells.cell_len(line)) for line in lines]
    sign = "…" if _is_utf(console) else "..."
    shown_text = cells.set_cell_size(first.text, max(width - len(sign), 0)) + sign
    return [([Text(shown_text, first.style)], width)]


def _line(
    cells_by_column: Mapping[str, _Cell], widths: Mapping[str, int], right: Collection[str]
) -> Line:
    """Return cells beside each other, without the space behind the last."""
    line: Line = []
    spaces = 0
    for column, width in widths.items():
        pieces, length = cells_by_column[column]
        before, behind = (width - length, 0) if column in right else (0, width - length)
        spaces += before
        if pieces:
            line += [Text(" " * spaces), *pieces] if spaces else pieces
            spaces = 0
        spaces += behind + _GAP_COLUMNS
    return _trimmed(line)


def _trimmed(line: Line) -> Line:
    """Return a line without the space behind it."""
    while line and not line[-1].text.strip(" "):
        line = line[:-1]
    if not line:
        return []
    *pieces, last = line
    return [*pieces, Text(last.text.rstrip(" "), last.style)]
