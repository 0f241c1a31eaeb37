"""hetero resize: change the limits of a grant while its program runs."""

from __future__ import annotations

import click

from hetero.cli._done import limits, quiet_option, tell
from hetero.cli._grants import Name
from hetero.cli._request import anyway_option, note_size
from hetero.cli._show import json_option
from hetero.model import Policy
from hetero.model.errors import BadInput
from hetero.model.request_parser import ask_from
from hetero.node.grants import grants_of
from hetero.node.node import Node


@click.command()
@click.argument("grant")
@click.option("-m", "--memory", metavar="SIZE", help="Of each device: 3000Mi, 3G, 50%.")
@click.option(
    "-c", "--core", metavar="PERCENT", help="Share of each device's compute, 1 to 100, or open."
)
@click.option(
    "--policy",
    type=click.Choice([Policy.FIXED.value, Policy.ELASTIC.value]),
    help="fixed: the share of device time, idle or not; elastic: idle time is lent.",
)
@click.option(
    "--device",
    type=Name(),
    metavar="NAME",
    help="Only this card of the grant: VENDOR:INDEX, number or UUID.",
)
@anyway_option
@quiet_option
@json_option
def command(
    *,
    grant: str,
    memory: str | None,
    core: str | None,
    policy: str | None,
    device: str | None,
    anyway: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Change the memory, core or policy of GRANT; the running program meets it at once.

    GRANT is the start of an id that `hetero ps` shows, or a label.

    \b
      hetero resize 4f1c --core 60
      hetero resize 4f1c --memory 8Gi --device 1
      hetero resize 4f1c --core open
      hetero resize 4f1c --policy elastic

    Refused when it does not fit, also beside what programs without a grant
    hold, and when more memory is in use than it leaves. A card that is
    cordoned or not well gives no more; less is possible.
    """
    if memory is None and core is None and policy is None:
        raise BadInput("nothing to set: give --memory, --core or --policy")
    note_size(memory)
    ask = ask_from(memory=memory, core=core, device=device)
    changed_grant = grants_of(Node.here()).resize(
        grant, ask, policy=Policy(policy) if policy else None, anyway=anyway
    )
    tell(changed_grant, *limits(changed_grant), quiet=quiet, as_json=as_json)
