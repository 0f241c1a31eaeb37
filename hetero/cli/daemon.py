"""hetero daemon: heterod, which keeps one ledger for all users of this machine."""

from __future__ import annotations

import click

from hetero.node.daemon.server import serve
from hetero.node.node import Node


@click.command()
def command() -> None:
    """Be heterod: give all users of this machine shares from one ledger, until SIGTERM.

    \b
      hetero install        # as a systemd unit
      hetero daemon         # in a container, or by hand

    It takes root. Users are served at heterod.sock in the ledger's directory,
    /run/hetero. Grants stand while it is away; what users may take is [quota] in
    the node's settings.
    """
    serve(Node.here(), ready=lambda path: click.echo(f"heterod serves {path}"))
