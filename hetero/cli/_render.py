"""How values become text: aligned and quiet, coloured only for state, plain when not a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, TypeVar

import click
from attrs import frozen
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hetero.model import (
    CORE,
    MEMORY,
    Device,
    Fractional,
    Grain,
    Ladder,
    Step,
    Templated,
    Whole,
    codec,
)
from hetero.model.units import GiB, MiB, format_memory
from hetero.node.view.observe import Share

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: What stands where nothing is known; never a zero.
UNKNOWN = "–"
_COLOURS = {
    "ok": "green",
    "note": "yellow",
    "absent": "yellow",
    "partial": "yellow",
    "bad": "red",
    "broken": "red",
}
_WATCH_PERIOD = 1.0
_ANY_WIDTH = 1000  # more than any table needs


class Seconds(click.FloatRange):
    """A number of seconds within limits, which NaN is not."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, as click's own type does."""
        seconds = super().convert(value, param, ctx)
        # NaN is within all limits, since no comparison with it holds.
        return seconds if seconds >= 0 else self.fail(f"{value!r} is no number.", param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print the value as JSON.")
watch_option = click.option("--watch", is_flag=True, help="Look again every second, until Ctrl-C.")


def show(
    query: Callable[[], T],
    render: Callable[[T], RenderableType],
    *,
    as_json: bool,
    watch: bool = False,
    period: float = _WATCH_PERIOD,
) -> None:
    """Print what `query` finds, once or, with `watch`, again and again, `period` seconds apart."""
    # What goes to a file or a pipe is wide enough to be cut nowhere.
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    console = Console(width=160 if wide else None, highlight=False)

    def put(value: T) -> None:
        if as_json:
            click.echo(codec.dumps(value))
        else:
            console.print(render(value))

    if not watch:
        put(query())
        return
    try:
        if as_json or not console.is_terminal:
            while True:
                put(query())
                time.sleep(period)
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(render(query()), refresh=True)
                time.sleep(period)
    except KeyboardInterrupt:
        pass  # the way a watch ends


def table(*columns: str, folds: tuple[str, ...], right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without lines: `right` hold numbers, `folds` give way when tight."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        side: JustifyMethod = "right" if name in right else "left"
        made.add_column(name, justify=side, overflow="fold", no_wrap=name not in folds)
    return made


@frozen
class Fitted:
    """A table whose columns come closer before any of them is folded."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, as wide as the terminal lets it be."""
        natural = console.measure(self.table, options=options.update(width=_ANY_WIDTH))
        if natural.maximum > options.max_width:
            self.table.padding = (0, 1, 0, 0)
        yield self.table


def one_line(text: str) -> Text:
    """Return a text that is cut where its column ends."""
    return Text(" ".join(text.split()), no_wrap=True, overflow="ellipsis")


def state(word: str) -> Text:
    """Return a state in its colour."""
    return Text(word, style=_COLOURS.get(word, "red"))


def memory_of(part: int | None, whole: int) -> str:
    """Return `part` of `whole` bytes in one unit: `3/16 GiB`."""
    size, unit = (GiB, "GiB") if whole >= GiB else (MiB, "MiB")
    said = UNKNOWN if part is None else f"{part / size:.1f}".removesuffix(".0")
    return f"{said}/{f'{whole / size:.1f}'.removesuffix('.0')} {unit}"


def core_of(share: Share) -> str:
    """Return the core a share got, where known, of what it may have: `29.8/30 %`."""
    if share.core is None:
        return "no limit"
    got = "" if share.core_used is None else f"{share.core_used:.1f}/"
    return f"{got}{share.core:g} %" + (" rest" if share.rest else "")


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


def held_core(held: int, device: Device) -> str:
    """Return the core held of a device, in its units."""
    return f"{held}/{device.capacity[CORE]}"


def held_memory(held: int, device: Device) -> str:
    """Return the memory held of a device, and the card's own where the node promises more."""
    promised, own = device.capacity[MEMORY], device.of_card(MEMORY)
    beyond = f" (card {format_memory(own)})" if promised > own else ""
    return memory_of(held, promised) + beyond
