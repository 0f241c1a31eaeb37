"""hetero ps: the grants that stand, with what they use right now."""

from __future__ import annotations

import click
from rich.console import RenderableType
from rich.text import Text

from hetero.cli._render import Seconds, json_option, show, watch_option
from hetero.cli.inventory import holdings
from hetero.node.node import Node
from hetero.node.view.observe import GrantView, observe_grants


@click.command()
@click.option(
    "--seconds",
    type=Seconds(min=0.05, max=60),
    default=0.5,
    show_default=True,
    help="Measure the core in use over this long.",
)
@json_option
@watch_option
def command(*, seconds: float, as_json: bool, watch: bool) -> None:
    """Show the grants that stand, whose they are, and what they use right now.

    \b
      hetero ps
      hetero ps --watch
      hetero ps --json

    Core and memory read used/limit; what is not known is a dash. Core in use is
    counted where it is limited; rest is what limited neighbours leave to a grant
    without a limit. Memory that spills may exceed the card: what does
    not fit lies with the host. Driver is what the driver takes on top for the
    processes of the grant, where it says so: contexts, the code of kernels.
    """
    node = Node.here()
    if node.unseen and not as_json:
        click.echo(f"hetero: {node.unseen}", err=True)
    show(lambda: observe_grants(node, seconds=seconds), render, as_json=as_json, watch=watch)


def render(grants: tuple[GrantView, ...]) -> RenderableType:
    """Return the table of grants."""
    return holdings(grants) if grants else Text("no grants stand")
