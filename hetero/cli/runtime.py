"""hetero runtime: registers the OCI runtime `hetero` with docker and podman."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hetero.cli._terminal import note
from hetero.container.install import Change, apply, expect_unused, installation, removal
from hetero.node.node import Node

_yes = click.option("--yes", is_flag=True, help="Change it without asking.")
prefix_option = click.option(
    "--prefix",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default="/",
    help="The root of the machine to change, when it is not this one.",
)


@click.group()
def command() -> None:
    """Let containers ask for a share in their environment.

    \b
      hetero runtime install
      podman run --runtime hetero -e HETERO=count=1,mem=3Gi,core=30 IMAGE
      podman run --runtime hetero -e 'HETERO=0:mem=3Gi,core=10;1:mem=8Gi' IMAGE
      hetero runtime uninstall

    The runtime admits what a container asks and becomes runc or crun; one that
    asks for nothing passes as it is.
    """


@command.command("install")
@click.option("--runtime", metavar="PATH", help="The real runtime. Default: runc, or else crun.")
@prefix_option
@_yes
def _install(runtime: str | None, prefix: Path, *, yes: bool) -> None:
    """Register the runtime, after showing what that changes."""
    changes = installation(prefix=prefix, real_runtime=runtime, environ=os.environ)
    change(changes, yes=yes)
    if any(change.path.name == "daemon.json" for change in changes):
        click.echo("docker reads its settings anew: systemctl reload docker")


@command.command("uninstall")
@prefix_option
@_yes
def _uninstall(prefix: Path, *, yes: bool) -> None:
    """Put everything back; refused while a container holds a grant."""
    expect_unused(Node.here())
    change(removal(prefix=prefix), yes=yes)


def change(changes: list[Change], *, yes: bool) -> bool:
    """Show the changes, ask, and make them; return whether there were any."""
    if not changes:
        click.echo("nothing to change")
        return False
    for change in changes:
        click.echo(change.diff())
    if not yes:
        try:
            click.confirm("Change this?", abort=True)
        except click.Abort:
            note("hetero: nothing was changed")
            raise
    apply(changes)
    return True
