"""How values become text: aligned and quiet, coloured only for state, one record a line.

A table drops columns until it is as narrow as the terminal; it splits none and cuts no number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click
from attrs import define, field

from hetero.cli._terminal import Line, Terminal, columns_of
from hetero.model import (
    CORE,
    MEMORY,
    Device,
    Enforcement,
    Fractional,
    Grain,
    Ladder,
    Step,
    Templated,
    Whole,
)
from hetero.model.frozen import frozen
from hetero.model.units import GiB, MiB, format_memory

if TYPE_CHECKING:
    from hetero.node.view.observe import Share

T = TypeVar("T")

#: What stands where nothing is known; never a zero.
UNKNOWN = "–"
_COLOURS = {"ok": "green", "note": "yellow", "absent": "yellow", "partial": "yellow"}
_KEEPERS = {Enforcement.PRELOAD: "limiter", Enforcement.NONE: "nothing !"}
_GAP = 2
#: A column of sentences, or of words that may end in `…`, is never narrower.
_LEAST = 20


class Seconds(click.FloatRange):
    """A number of seconds within limits, which NaN is not."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, as click's own type does."""
        seconds = super().convert(value, param, ctx)
        # NaN is within all limits, since no comparison with it holds.
        return seconds if seconds >= 0 else self.fail(f"{value!r} is no number.", param, ctx)


json_option = click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")
watch_option = click.option(
    "-w", "--watch", is_flag=True, help="Look again every second, until q or Ctrl-C."
)
wide_option = click.option(
    "-W", "--wide", is_flag=True, help="Every column, however long the lines get."
)


@frozen
class Text:
    """A text of any origin in one of `_terminal`'s styles."""

    text: str = ""
    style: str = ""


@define
class Table:
    """Rows under named columns; a subset of the columns is shown where not all fit.

    `right` hold numbers. `folds` hold sentences, which go on in the next line where somebody looks
    on. `elides` hold words of any length, which end in `…` where they must. `optional` columns are
    left out where no row says anything. `drops` are the columns that go when it gets narrow, the
    first one first.
    """

    columns: tuple[str, ...]
    folds: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    elides: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    rows: list[tuple[Text, ...]] = field(factory=list)

    def add_row(self, *cells: str | Text) -> None:
        """Add a row of as many cells as there are columns."""
        self.rows.append(tuple(Text(one) if isinstance(one, str) else one for one in cells))


#: What can be shown: texts and tables, below each other.
Part: TypeAlias = "str | Text | Table | Sequence[Part]"


def table(
    *columns: str,
    folds: tuple[str, ...] = (),
    right: tuple[str, ...] = (),
    elides: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    drops: tuple[str, ...] = (),
) -> Table:
    """Return an empty table."""
    return Table(columns, folds, right, elides, optional, drops)


def show(
    query: Callable[[], T],
    render: Callable[[T], Part],
    document: Callable[[T], Mapping[str, Any]],
    *,
    as_json: bool,
    watch: bool = False,
    wide: bool = False,
    period: float = 1.0,
) -> None:
    """Print what `query` finds, once or, with `watch`, again every `period` seconds.

    `document` makes the JSON of it (`_json`); watched, each document is one line.
    """
    terminal = Terminal.here()
    if wide:
        terminal = terminal.unlimited()
    if watch and terminal.moves and not as_json:
        from hetero.cli._screen import Screen

        with Screen(terminal) as screen:
            while screen.show(layout(render(query()), terminal), wait=period):
                terminal = screen.terminal
        return
    try:
        while True:
            found = query()
            if as_json:
                click.echo(dumps(document(found), indent=None if watch else 2))
            else:
                put(render(found), terminal)
            if not watch:
                return
            time.sleep(period)
    except KeyboardInterrupt:
        if not watch:
            raise


def put(part: Part, terminal: Terminal | None = None) -> None:
    """Write to standard output, as a terminal or a pipe is to have it."""
    terminal = terminal or Terminal.here()
    terminal.write(layout(part, terminal))


def dumps(document: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """Return a document as JSON in ASCII alone, without a character that a terminal obeys."""
    return json.dumps(document, indent=indent).replace("\x7f", "\\u007f")


# --- lines ------------------------------------------------------------------------------------


def layout(part: Part, terminal: Terminal) -> list[Line]:
    """Return the lines of what is to be shown, no wider than the terminal where that can be."""
    if isinstance(part, str):
        part = Text(part)
    if isinstance(part, Text):
        words = terminal.text(part.text)
        width = terminal.width if terminal.live and terminal.width else None
        return [[(line, part.style)] for line in _folded(words, width)]
    if isinstance(part, Table):
        return list(_rows(part, terminal))
    return [line for one in part for line in layout(one, terminal)]


def _rows(table: Table, terminal: Terminal) -> Iterator[Line]:
    cells = [tuple(Text(terminal.text(one.text), one.style) for one in row) for row in table.rows]
    natural = {
        name: max(columns_of(name), *(columns_of(row[at].text) for row in cells), 0)
        for at, name in enumerate(table.columns)
        if name not in table.optional or any(row[at].text for row in cells)
    }
    widths = _fitting(table, natural, terminal)
    shown = [(at, name) for at, name in enumerate(table.columns) if name in widths]
    head = [(at, name, Text(name, "bold")) for at, name in shown]
    for row in [head, *([(at, name, row[at]) for at, name in shown] for row in cells)]:
        yield from _lines(row, table, widths, terminal)


def _fitting(table: Table, natural: Mapping[str, int], terminal: Terminal) -> dict[str, int]:
    """Return the widths of the columns that are shown."""
    widths = dict(natural)
    if terminal.width is None:
        return widths
    soft = [*table.elides, *(table.folds if terminal.live else ())]
    least = {
        name: min(natural[name], _LEAST) if name in soft else natural[name] for name in natural
    }
    # A sentence in a pipe is as long as it is.
    free = () if terminal.live else table.folds

    def needed() -> int:
        fixed = [least[name] for name in widths if name not in free]
        return sum(fixed) + _GAP * (len(widths) - 1)

    for name in table.drops:
        if needed() <= terminal.width:
            break
        widths.pop(name, None)
    spare = terminal.width - needed()
    for name in [name for name in table.columns if name in soft and name in widths]:
        widths[name] = least[name] + max(0, min(natural[name] - least[name], spare))
        spare -= widths[name] - least[name]
    return widths


def _lines(
    row: Sequence[tuple[int, str, Text]],
    table: Table,
    widths: Mapping[str, int],
    terminal: Terminal,
) -> Iterator[Line]:
    """Yield the line of a row, and those in which its sentences go on."""
    columns = []
    for _, name, cell in row:
        if name in table.elides:
            texts = [_elided(cell.text, widths[name], plain=terminal.plain)]
        elif name in table.folds:
            texts = _folded(cell.text, widths[name])
        else:
            texts = [cell.text]
        columns.append((name, cell.style, texts))
    for number in range(max(len(texts) for _, _, texts in columns)):
        line: Line = []
        for name, style, texts in columns:
            text = texts[number] if number < len(texts) else ""
            space = " " * (widths[name] - columns_of(text))
            pair = [(space, ""), (text, style)]
            line += pair if name in table.right else pair[::-1]
            line.append((" " * _GAP, ""))
        yield line


def _folded(text: str, width: int | None) -> list[str]:
    """Return a text in lines of `width` columns, broken between words where that can be."""
    if width is None or columns_of(text) <= width:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        if line and columns_of(line) + 1 + columns_of(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
        while columns_of(line) > width:  # a word, a path mostly, that is longer than the line
            head = _cut(line, width)
            lines.append(head)
            line = line[len(head) :]
    return [*lines, line] if line or not lines else lines


def _elided(text: str, width: int, *, plain: bool) -> str:
    if columns_of(text) <= width:
        return text
    mark = "..." if plain else "…"
    return _cut(text, width - len(mark)) + mark


def _cut(text: str, width: int) -> str:
    """Return the beginning of a text, at least one character."""
    end = min(len(text), max(width, 1))
    while end > 1 and columns_of(text[:end]) > width:
        end -= 1
    return text[:end]


# --- cells ------------------------------------------------------------------------------------


def state(word: str) -> Text:
    """Return a state in its colour."""
    return Text(word, _COLOURS.get(word, "red"))


def heading(simulated: str | None) -> list[Part]:
    """Return the line that says that nothing below is real, where that is so."""
    if simulated is None:
        return []
    rack = simulated.rpartition("/")[2]
    return [Text(f"simulated by {rack}: no card below is real", "yellow")]


def memory_of(part: int | None, whole: int) -> str:
    """Return `part` of `whole` bytes in one unit: `3/16 GiB`."""
    size, unit = (GiB, "GiB") if whole >= GiB else (MiB, "MiB")
    said = UNKNOWN if part is None else _short(part / size)
    return f"{said}/{_short(whole / size)} {unit}"


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def percent(units: int, device: Device) -> float:
    """Return units of a device's core in percent of the card."""
    return 100 * units / device.of_card(CORE)


def core_of(share: Share) -> str:
    """Return the core a share used, where known, of what it may use: `29.8/30 %`."""
    if share.core is None:
        return "no limit"
    used = "" if share.core_used is None else f"{share.core_used:.1f}/"
    return f"{used}{share.core:g} %" + (" rest" if share.rest else "")


def kept_by(enforcement: Enforcement | None) -> Text:
    """Return what keeps a share, in words of people; what nothing keeps stands out."""
    if enforcement is None:
        return Text(UNKNOWN)
    word = _KEEPERS.get(enforcement, enforcement.value)
    return Text(word, "yellow" if enforcement is Enforcement.NONE else "")


def short(uuid: str) -> str:
    """Return enough of a UUID to name it by."""
    return uuid if len(uuid) <= 12 else uuid[:12]


def model_of(device: Device) -> str:
    """Return the model's name without the vendor's, which has a column of its own."""
    return device.short_model


def age(since: str) -> str:
    """Return how long ago a time was, in its largest unit."""
    seconds = int((datetime.now(timezone.utc) - datetime.fromisoformat(since)).total_seconds())
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def few(pids: tuple[int, ...]) -> str:
    """Return the first processes of a grant and how many more there are."""
    more = f" +{len(pids) - 3}" if len(pids) > 3 else ""
    return " ".join(map(str, pids[:3])) + more or UNKNOWN


def granularity_of(device: Device) -> str:
    """Return how a device divides, in words."""
    match device.granularity:
        case Whole():
            return "whole card"
        case Fractional(memory, core):
            units = device.of_card(CORE)
            return f"{_grain(core, ' %' if units == 100 else f'/{units}')}, {_grain(memory, None)}"
        case Templated(menu):
            first, *others = dict.fromkeys(template.name for template in menu)
            return f"{first} +{len(others)}" if others else first


def _grain(grain: Grain, unit: str | None) -> str:
    match grain:
        case Step(of):
            return format_memory(of) if unit is None else f"{of}{unit}"
        case Ladder(sizes):
            low, high = (
                (format_memory(size) if unit is None else f"{size}{unit}").partition(" ")
                for size in (sizes[0], sizes[-1])
            )
            return f"{low[0]}{'' if low[2] == high[2] else ' ' + low[2]}–{' '.join(high[::2])}"


def free_memory(held: int, device: Device) -> str:
    """Return the memory left of a device, and the card's own where the node promises more."""
    promised, own = device.capacity[MEMORY], device.of_card(MEMORY)
    beyond = f" (card {format_memory(own)})" if promised > own else ""
    return memory_of(promised - held, promised) + beyond
