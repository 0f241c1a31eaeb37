"""hetero log: what containers and shares asked for, and what came of it."""

from __future__ import annotations

import click
from rich.console import RenderableType
from rich.text import Text

from hetero.cli._render import json_option, show, table
from hetero.container.log import Event, events
from hetero.node.node import Node


@click.command()
@click.argument("subject", required=False)
@json_option
def command(subject: str | None, *, as_json: bool) -> None:
    """Tell what containers and shares asked for, and what came of it, oldest first.

    SUBJECT is the beginning of a container's id or name, or of a share's name.

    \b
      hetero log
      hetero log train
      hetero log --json | jq '.items[-1].says'
    """
    show(lambda: events(Node.here(), subject=subject), _render, as_json=as_json)


def _render(told: tuple[Event, ...]) -> RenderableType:
    made = table("at", "who", "what", folds=("what",))
    for event in told:
        made.add_row(event.at, event.subject[:20], event.says)
    return made if told else Text("nothing was told")
