"""hetero install: has systemd run heterod, which keeps one ledger for all users."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

import hetero
from hetero.cli._terminal import note
from hetero.cli.runtime import change, prefix_option
from hetero.container.install import closed_to_users, service_installation, service_removal

_START_COMMAND = "systemctl daemon-reload && systemctl enable --now heterod.socket heterod.service"
_STOP_COMMAND = "systemctl disable --now heterod.socket heterod.service heterod-setup.service"


@click.command()
@click.option("--remove", is_flag=True, help="Take the units out again.")
@prefix_option
@click.option("--yes", is_flag=True, help="Change it without asking.")
def command(prefix: Path, *, remove: bool, yes: bool) -> None:
    """Give all users of this machine one ledger: write heterod's systemd units.

    \b
      hetero install
      hetero install --remove

    What changes is shown first. Without it each user has a ledger, and two users
    can be promised the same card.
    """
    if remove:
        if change(service_removal(prefix=prefix), yes=yes):
            _advise(f"if it still runs: {_STOP_COMMAND}", prefix)
    elif change(service_installation(prefix=prefix, environ=os.environ), yes=yes):
        _advise(f"start it: {_START_COMMAND}", prefix)
        closed_folder = closed_to_users(Path(sys.executable), Path(hetero.__file__))
        if closed_folder:
            note(
                f"hetero: users cannot run this hetero: {closed_folder} is closed to them. "
                "Install it elsewhere, such as in /opt"
            )


def _advise(message: str, prefix: Path) -> None:
    """Say what to do next, where this machine is the one that was changed."""
    if prefix == Path("/"):
        click.echo(message)
