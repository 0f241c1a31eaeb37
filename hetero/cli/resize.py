"""hetero resize: change the limits of a grant while its program runs."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hetero.model.errors import BadInput
from hetero.model.request_parser import ask_from
from hetero.model.units import format_memory
from hetero.node.ledger.grant_file import CORE_FULL
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node
from hetero.node.resize import resize


@click.command()
@click.argument("grant")
@click.option("--memory", metavar="SIZE", help="Of each device: 3000Mi, 3G, 50%.")
@click.option("--core", metavar="PERCENT", help="Share of each device's compute, 1 to 100.")
@click.option("--device", metavar="NAME", help="Only this device of the grant: a number or UUID.")
def command(grant: str, memory: str | None, core: str | None, device: str | None) -> None:
    """Change the memory or core of GRANT; the running program meets it at once.

    \b
      hetero resize 4f1c --core 60
      hetero resize 4f1c --memory 8Gi --device 1

    Refused when it does not fit, or when more memory is in use than it leaves.
    """
    if memory is None and core is None:
        raise BadInput("nothing to set: give --memory, --core or both")
    entry = resize(Node.here(), grant, ask_from(memory=memory, core=core, device=device))
    for line in limits(entry):
        click.echo(line)


def limits(entry: Grant) -> Iterator[str]:
    """Yield a line for each limit of a grant."""
    for limit in entry.limits:
        share = "no limit" if limit.core == CORE_FULL else f"{limit.core / 100:g} %"
        yield f"{entry.id}  {limit.name}  memory {format_memory(limit.memory)}  core {share}"
