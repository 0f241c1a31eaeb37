"""Prints what a command found: drawn or as JSON, once or again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import click

from hetero.cli import _json
from hetero.cli._extras import installed
from hetero.cli._render import Part
from hetero.model.errors import HeteroError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Seconds(click.FloatRange):
    """A number of seconds within limits, which NaN is not."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, as click's own type does."""
        number = super().convert(value, param, ctx)
        # NaN is within all limits, since no comparison with it holds.
        return number if number >= 0 else self.fail(f"{value!r} is no number.", param, ctx)


watch_option = click.option(
    "-w", "--watch", is_flag=True, help="Look again every second, until q or Ctrl-C."
)
wide_option = click.option(
    "-W", "--wide", is_flag=True, help="Every column, however long the lines get."
)


def json_option(function: F) -> F:
    """Add `--json` to a command: then what goes wrong is a document, too, beside the line."""

    @wraps(function)
    def shown(*, as_json: bool, **options: Any) -> Any:
        try:
            with installed():
                return function(as_json=as_json, **options)
        except HeteroError as error:
            if as_json:
                indent = None if options.get("watch") else 2
                click.echo(dumps(_json.failure(error), indent=indent))
            raise

    return click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")(shown)  # type: ignore[return-value]


def show(
    query: Callable[[], T],
    render: Callable[[T], Part],
    document: Callable[[T], Mapping[str, Any]],
    *,
    as_json: bool,
    watch: bool = False,
    wide: bool = False,
    period_s: float = 1.0,
) -> None:
    """Print what `query` finds, once or, with `watch`, again every `period_s` seconds.

    `document` makes the JSON of it (`_json`), which takes no import of rich; watched, each document
    is one line.
    """
    if as_json:
        indent = None if watch else 2
        _repeat(lambda: click.echo(dumps(document(query()), indent=indent)), period_s, watch=watch)
        return
    from hetero.cli import _draw

    console = _draw.console_of(sys.stdout)
    if watch and not isinstance(console, _draw.Pipe) and console.is_interactive:
        from hetero.cli._screen import Screen

        with Screen(console) as screen:
            while screen.show(_draw.layout(render(query()), console, wide=wide), wait_s=period_s):
                pass
        return
    _repeat(lambda: _draw.draw(render(query()), console, wide=wide), period_s, watch=watch)


def _repeat(action: Callable[[], None], period_s: float, *, watch: bool) -> None:
    try:
        action()
        while watch:
            time.sleep(period_s)
            action()
    except KeyboardInterrupt:
        if not watch:
            raise


def put(part: Part) -> None:
    """Write to standard output, as a terminal or a pipe is to have it."""
    from hetero.cli import _draw

    _draw.draw(part, _draw.console_of(sys.stdout))


def dumps(document: Mapping[str, Any], *, indent: int | None = 2) -> str:
    """Return a document as JSON in ASCII alone, without a character that a terminal obeys."""
    return json.dumps(document, indent=indent).replace("\x7f", "\\u007f")
