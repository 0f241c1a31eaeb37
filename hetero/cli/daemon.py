"""hetero daemon: heterod, which keeps one ledger for all users of this machine."""

from __future__ import annotations

import click

from hetero.node.daemon.server import serve, set_up
from hetero.node.guard.monitor import Finding
from hetero.node.ledger.events import record
from hetero.node.node import Node


@click.command()
@click.option(
    "--set-up",
    "before",
    is_flag=True,
    help="Make the ledger's directory and mount what users read of it, and end.",
)
def command(*, before: bool) -> None:
    """Be heterod: give all users of this machine shares from one ledger, until SIGTERM.

    \b
      hetero install        # as a systemd unit
      hetero daemon         # in a container, or by hand

    It takes root. Users are served at heterod.sock in the ledger's directory,
    /run/hetero. Grants stand while it is away; what users may take is [quota] in
    the node's settings. It tells of memory and device time that get past a
    limiter, counts such memory against its grant, and ends processes where a grant
    or [heterod] in the settings says so (`hetero run --help`).
    """
    node = Node.here()
    if before:
        set_up(node)
        return

    def report(finding: Finding) -> None:
        click.echo(str(finding))
        record(node.ledger.persistent, finding.subject, str(finding))

    serve(node.with_threads, ready=lambda path: click.echo(f"heterod serves {path}"), tell=report)
