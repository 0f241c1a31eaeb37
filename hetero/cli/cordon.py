"""hetero cordon: give nothing new of a card, while who holds it goes on."""

from __future__ import annotations

import click

from hetero.cli._cordon import card_argument, node_and_card, tell
from hetero.cli._done import quiet_option
from hetero.cli._show import json_option
from hetero.node.cordon import cordon
from hetero.node.node import Node


@click.command()
@card_argument
@click.option("--reason", default="", help="Shown in the inventory and in refusals.")
@quiet_option
@json_option
def command(devices: tuple[str, ...], *, reason: str, quiet: bool, as_json: bool) -> None:
    """Give nothing new of CARD; what holds it goes on, and stays in all views.

    CARD is its name in `hetero inventory`, its vendor and its driver's index
    (VENDOR:INDEX), or the start of its UUID. Without NODE it is a card of this
    machine, and outlives a reboot. With NODE it is one of the cluster of
    $KUBECONFIG, whose agent obeys within seconds, without a restart.

    \b
      hetero cordon 2 --reason "fan is loud"
      hetero cordon node-7 2 --reason "fan is loud"
      hetero ps                # who holds it still
      hetero uncordon 2
    """
    node_name, card_name = node_and_card(devices)
    if node_name is None:
        result = cordon(Node.here(), card_name, reason=reason)
    else:
        from hetero.kube.cordon import cordon_in_cluster

        result = cordon_in_cluster(node_name, card_name, reason=reason)
    tell(result, "is cordoned: nothing new is given of it", as_json=as_json, quiet=quiet)
