"""What `cordon`, `uncordon` and `health` share: how a card is named, and what is printed of it."""

from __future__ import annotations

import click

from hetero.cli import _json
from hetero.cli._done import say
from hetero.cli._show import dumps
from hetero.model.errors import BadInput
from hetero.node.cordon import CordonResult

#: Called `devices`, so that a shell completes a card's name.
card_argument = click.argument("devices", nargs=-1, required=True, metavar="[NODE] CARD")


def node_and_card(names: tuple[str, ...]) -> tuple[str | None, str]:
    """Return the node, None for this machine, and the card. Raises `BadInput`."""
    if len(names) > 2:
        raise BadInput(f"{len(names)} names: write [NODE] CARD, one card at a time")
    return (names[0] if len(names) == 2 else None), names[-1]


def tell(result: CordonResult, sentence: str, *, as_json: bool, quiet: bool) -> None:
    """Print what became of a card, who holds it, and whose ledger alone knows of it."""
    if result.private_state:
        click.echo(
            f"hetero: for what is run with HETERO_STATE={result.private_state} alone: other users "
            "do not see it",
            err=True,
        )
    if as_json:
        click.echo(dumps(_json.cordon(result)))
        return
    device, place = result.device, f"{result.node}: " if result.node else ""
    card = f"{place}{device.name} ({device.model}, {device.uuid})"
    lines = [f"{card} {sentence}"]
    if device.cordon is not None and result.holders:
        lines.append(f"still held by {', '.join(result.holders)}")
    say(*lines, *result.notes, quiet=quiet)
