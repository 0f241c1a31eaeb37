"""hetero release: free a grant, ending its processes if that is what is wanted."""

from __future__ import annotations

import click

from hetero.cli import _json
from hetero.cli._done import quiet_option, say
from hetero.cli._show import Seconds, dumps, json_option
from hetero.node.grants import grants_of, release
from hetero.node.node import Node


@click.command()
@click.argument("grant")
@click.option("--force", is_flag=True, help="End the processes that hold it.")
@click.option(
    "--grace",
    type=Seconds(min=0),
    default=5.0,
    show_default=True,
    help="Seconds between asking them (SIGTERM) and killing them.",
)
@quiet_option
@json_option
def command(grant: str, *, force: bool, grace: float, quiet: bool, as_json: bool) -> None:
    """Free GRANT. A grant is free by itself when its last process is gone.

    GRANT is the start of an id that `hetero ps` shows, or a label; or a request that
    waits, which leaves the queue.

    While processes hold it this is refused, and says which; --force ends exactly
    those.

    \b
      hetero release 4f1c
      hetero release --force trainer
      hetero release w12
    """
    sentence = release(grants_of(Node.here()), grant, force=force, grace=grace)
    if as_json:
        click.echo(dumps(_json.released(grant, sentence)))
    else:
        say(sentence, quiet=quiet)
