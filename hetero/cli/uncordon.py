"""hetero uncordon: give of a card again."""

from __future__ import annotations

import click

from hetero.cli._cordon import card_argument, node_and_card, tell
from hetero.cli._done import quiet_option
from hetero.cli._show import json_option
from hetero.node.cordon import uncordon
from hetero.node.node import Node


@click.command()
@card_argument
@quiet_option
@json_option
def command(devices: tuple[str, ...], *, quiet: bool, as_json: bool) -> None:
    """Give of CARD again, which `hetero cordon` took out of use.

    Names are as there. A card that the node's settings exclude stays so.

    \b
      hetero uncordon 2
      hetero uncordon node-7 2
    """
    node_name, card_name = node_and_card(devices)
    if node_name is None:
        result = uncordon(Node.here(), card_name)
    else:
        from hetero.kube.cordon import uncordon_in_cluster

        result = uncordon_in_cluster(node_name, card_name)
    tell(result, "is not cordoned", as_json=as_json, quiet=quiet)
