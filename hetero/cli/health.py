"""hetero health: what was noted of cards, and how to forget what a reset has mended."""

from __future__ import annotations

import click

from hetero.cli import _json
from hetero.cli._cordon import tell
from hetero.cli._done import quiet_option
from hetero.cli._render import Part, condition_of, table
from hetero.cli._show import json_option, show
from hetero.node.cordon import CardFault, clear_fault, noted_faults
from hetero.node.node import Node


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, *, as_json: bool) -> None:
    """Show the faults that are noted of this machine's cards.

    Some drivers tell of a fault once and keep no state of it, as an Xid. The
    agent and heterod note it, and nothing new is given of the card until its
    driver says that it is well, the driver is loaded anew, or the note is
    cleared. `hetero inventory` shows the health of all cards.

    \b
      hetero health
      hetero health clear 2      # after the card's reset
    """
    if context.invoked_subcommand:
        return
    node = Node.here()
    show(lambda: noted_faults(node), _render, _json.faults, as_json=as_json)


@command.command("clear")
@click.argument("device", metavar="CARD")
@quiet_option
@json_option
def _clear(device: str, *, quiet: bool, as_json: bool) -> None:
    """Forget the fault that is noted of CARD: give of it again.

    CARD is named as for `hetero cordon`. What the driver says of the card now
    cannot be cleared.
    """
    result = clear_fault(Node.here(), device)
    health = result.device.health
    rest = "" if result.device.healthy else f"; its driver says now: {health}"
    tell(result, f"has no fault noted{rest}", as_json=as_json, quiet=quiet)


def _render(faults: tuple[CardFault, ...]) -> Part:
    if not faults:
        return "no fault is noted"
    faults_table = table("card", "model", "health", "since", "uuid", folds=("health",))
    for fault in faults:
        device = fault.device
        faults_table.add_row(
            device.name,
            device.model,
            condition_of(device),
            fault.since_utc,
            device.uuid,
        )
    return faults_table
