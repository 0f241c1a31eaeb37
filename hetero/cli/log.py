"""hetero log: what containers and shares asked for, and what came of it."""

from __future__ import annotations

import click

from hetero.cli import _json
from hetero.cli._render import Part, table
from hetero.cli._show import json_option, show
from hetero.container.log import Event, events
from hetero.node.node import Node


@click.command()
@click.argument("subject", required=False)
@json_option
def command(subject: str | None, *, as_json: bool) -> None:
    """Show what containers and shares asked for, and what came of it, oldest first.

    SUBJECT is the beginning of a container's id or name, or of a share's name.

    \b
      hetero log
      hetero log train
      hetero log --json | jq '.items[-1].says'
    """
    show(
        lambda: events(Node.here(), subject=subject),
        lambda events: (
            _render(events) if events else f"no events{f' of {subject}' if subject else ''}"
        ),
        _json.listing("log"),
        as_json=as_json,
    )


def _render(events: tuple[Event, ...]) -> Part:
    events_table = table("at", "who", "what", elides=("who",), folds=("what",), drops=("at",))
    for event in events:
        events_table.add_row(event.at, event.subject, event.says)
    return events_table
