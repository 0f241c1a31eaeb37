"""hetero agent: serve this node's devices to a cluster."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from hetero.cli._listen import driver_option, metrics_options


@click.command()
@click.option("--node", envvar="NODE_NAME", default="", help="This node's name in the cluster.")
@click.option(
    "--kubelet",
    type=click.Path(path_type=Path),
    default="/var/lib/kubelet",
    show_default=True,
    help="The kubelet's directory.",
)
@click.option(
    "--libraries",
    type=click.Path(path_type=Path),
    default="/var/lib/hetero/lib",
    show_default=True,
    help="Where containers get their limiters from: at the same path on the node, not noexec.",
)
@click.option(
    "--public-keys",
    envvar="HETERO_PUBLIC_KEYS",
    default="/etc/hetero-keys/keys.pem",
    show_default=True,
    help="The keys by which the scheduler's signatures are told.",
)
@click.option(
    "--webhook",
    metavar="NAMESPACE/NAME",
    default="hetero-system/hetero-webhook",
    show_default=True,
    help="The Service of the webhook, which publishes the inventory.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    default="/var/run/secrets/hetero/token",
    show_default=True,
    help="This pod's token for the webhook, which proves where it runs.",
)
@metrics_options
@driver_option
@click.option(
    "--host",
    type=click.Path(path_type=Path),
    default="/",
    show_default=True,
    help="Where the node's own files are seen.",
)
@click.option(
    "--allocation",
    type=click.Choice(["classic", "dra", "both"]),
    default="classic",
    show_default=True,
    help="How pods get devices: by extender and device plugins, by claims, or as each node's label "
    "hetero.io/by-claims says.",
)
@click.option(
    "--cdi",
    type=click.Path(path_type=Path),
    default="/var/run/cdi",
    show_default=True,
    help="Where the container runtime reads what claims bring.",
)
@click.option("--config", type=click.Path(path_type=Path), help="The settings (TOML).")
def command(node: str, driver: str, allocation: str, **where: Any) -> None:
    """Offer this node's devices to its kubelet and publish them to the scheduler.

    Runs until it is told to end; grants of pods stand on meanwhile.
    """
    from hetero.kube.agent.agent import Options, run
    from hetero.kube.dra.way import AllocationWay
    from hetero.kube.words.runtime_variables import InjectionWay

    logging.basicConfig(level=logging.INFO, format="%(levelname).1s %(name)s: %(message)s")
    way, by = InjectionWay(driver), AllocationWay(allocation)
    run(Options(name=node, driver=way, allocation=by, **where))
