"""hetero log: who had which card when, and what containers and shares asked for."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import click

from hetero.cli import _json
from hetero.cli._grants import Filter, Name
from hetero.cli._render import Part, table
from hetero.cli._show import dumps, json_option, put, show
from hetero.model.errors import BadInput
from hetero.model.units import parse_duration
from hetero.node.ledger.events import Event, events
from hetero.node.node import Node

#: Seconds between two looks at the log that is followed.
_POLL_PERIOD_S = 1.0


@click.command()
@click.argument("subject", required=False)
@click.option(
    "--since", metavar="TIME", help="Only what is younger: 12h, 3d, or a time as 2026-11-28T18:00."
)
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N.")
@click.option(
    "-d", "--device", cls=Filter, type=Name(), metavar="NAME", help="Only grants of this card."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@json_option
def command(
    subject: str | None,
    *,
    since: str | None,
    tail: int | None,
    device: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Show who had which card when, and what containers and shares asked for, oldest first.

    SUBJECT is the beginning of a grant's id or label, of a container's id or
    name, or of a share's name. A grant has ended when somebody looked and it was
    gone: with heterod at once.

    \b
      hetero log --device 3 --since 12h
      hetero log train --tail 5
      hetero log --follow
      hetero log --json | jq '.items[-1].says'
    """
    node, begins = Node.here(), None if since is None else _time_of(since)
    if device is not None and not device.isdecimal():  # events have the numbers of cards
        from hetero.node.cordon import card_named

        device = str(card_named(node.discover().devices, device))

    def query() -> tuple[Event, ...]:
        return tuple(
            event
            for event in events(node.ledger.persistent)
            if subject is None
            or subject in (event.grant or "")[: len(subject)]
            or event.subject.startswith(subject)
            if device is None or device in map(str, event.devices)
            if begins is None or datetime.fromisoformat(event.at) >= begins
        )

    if not follow:
        show(
            lambda: _last(query(), tail),
            lambda shown: _render(shown) if shown else _nothing(subject, device),
            _json.listing("log"),
            as_json=as_json,
        )
        return
    known_events: set[Event] = set()
    with suppress(KeyboardInterrupt):
        for position in itertools.count():
            fresh = tuple(event for event in query() if event not in known_events)
            known_events.update(fresh)
            fresh = fresh if position else _last(fresh, tail)
            if fresh and as_json:
                click.echo(dumps(_json.listing("log")(fresh), indent=None))
            elif fresh:
                put(_render(fresh))
            time.sleep(_POLL_PERIOD_S)


def _time_of(text: str) -> datetime:
    """Return the time that `--since` means."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        seconds = parse_duration(text, of="--since")
        try:
            return datetime.now(timezone.utc) - timedelta(seconds=seconds)
        except OverflowError:
            raise BadInput(f"--since {text!r} is before all times") from None
    return moment.astimezone()  # without a zone it is the machine's


def _last(found_events: tuple[Event, ...], count: int | None) -> tuple[Event, ...]:
    return found_events if count is None else found_events[max(len(found_events) - count, 0) :]


def _nothing(subject: str | None, device: str | None) -> str:
    return (
        "no events"
        + (f" of {subject}" if subject else "")
        + (f" of device {device}" if device else "")
    )


def _render(shown_events: tuple[Event, ...]) -> Part:
    events_table = table("at", "who", "what", elides=("who",), folds=("what",), drops=("at",))
    for event in shown_events:
        events_table.add_row(event.at, event.subject, event.says)
    return events_table
