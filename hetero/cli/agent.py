"""hetero agent: serve this node's devices to a cluster."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click

from hetero.cli._listen import PORT


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
    "--key-file",
    envvar="HETERO_KEY_FILE",
    default="/etc/hetero-key/key",
    show_default=True,
    help="The key that allocations are signed with.",
)
@click.option("--metrics", type=PORT, help="The port /metrics is served on; none: not at all.")
@click.option(
    "--driver",
    type=click.Choice(["files", "cdi", "runtime"]),
    default="files",
    show_default=True,
    help="Who brings a card's driver into containers: this agent, CDI, or their runtime.",
)
@click.option(
    "--host",
    type=click.Path(path_type=Path),
    default="/",
    show_default=True,
    help="Where the node's own files are seen.",
)
@click.option("--config", type=click.Path(path_type=Path), help="The settings (TOML).")
def command(node: str, driver: str, **where: Any) -> None:
    """Offer this node's devices to its kubelet and publish them to the scheduler.

    Runs until it is told to end; grants of pods stand on meanwhile.
    """
    from hetero.kube.agent.agent import Options, run
    from hetero.kube.agent.driver_injection import InjectionWay

    logging.basicConfig(level=logging.INFO, format="%(levelname).1s %(name)s: %(message)s")
    run(Options(name=node, driver=InjectionWay(driver), **where))
