"""hetero agent: serve this node's devices to a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hetero.cli._listen import driver_option, metrics_options


def _path_option(name: str, default: str, says: str) -> Callable[..., Any]:
    """Return an option that names a file or a directory."""
    path = click.Path(path_type=Path)
    return click.option(name, type=path, default=default, show_default=True, help=says)


@click.command()
@click.option("--node", envvar="NODE_NAME", default="", help="This node's name in the cluster.")
@_path_option("--kubelet", "/var/lib/kubelet", "The kubelet's directory.")
@_path_option(
    "--libraries",
    "/var/lib/hetero/lib",
    "Where containers get their limiters from: at the same path on the node, not noexec.",
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
@_path_option(
    "--token-file",
    "/var/run/secrets/hetero/token",
    "This pod's token for the webhook, which proves where it runs.",
)
@metrics_options
@driver_option
@_path_option("--host", "/", "Where the node's own files are seen.")
@click.option(
    "--driver-root",
    metavar="PATH",
    default="",
    help="The node's path of the root directory of a container that brings a driver, if there is "
    "one: /run/VENDOR/driver, say.",
)
@click.option(
    "--selinux-type",
    metavar="TYPE",
    default="",
    help="The SELinux type of what containers get of the node's files: container_file_t.",
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
    "--autoscaler",
    is_flag=True,
    help="Have the node's status state memory and core of its cards, and no spare slots of full "
    "ones, for autoscalers.",
)
@_path_option("--cdi", "/var/run/cdi", "Where the container runtime reads what claims bring.")
@click.option("--config", type=click.Path(path_type=Path), help="The settings (TOML).")
def command(node: str, driver: str, allocation: str, **where: Any) -> None:
    """Offer this node's devices to its kubelet and publish them to the scheduler.

    Runs until it is told to end; grants of pods stand on meanwhile.
    """
    from hetero.kube.agent.agent import Options, run
    from hetero.kube.dra.way import AllocationWay
    from hetero.kube.words.log_level import log_level
    from hetero.kube.words.runtime_variables import InjectionWay

    level = log_level(os.environ)
    logging.basicConfig(level=level, format="%(levelname).1s %(name)s: %(message)s")
    driver_way, allocation_way = InjectionWay(driver), AllocationWay(allocation)
    run(Options(name=node, driver_injection=driver_way, allocation=allocation_way, **where))
