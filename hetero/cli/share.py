"""hetero share: named shares that containers get by a CDI name."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli import _json
from hetero.cli._done import id_option, limits, quiet_option, say, tell
from hetero.cli._render import UNKNOWN, Part, Text, core_limit, memory_of, table
from hetero.cli._request import note_size, request_from, request_options
from hetero.cli._show import json_option, show
from hetero.container.share import Shares, change, create, remove, settle
from hetero.model.errors import BadInput
from hetero.model.request_parser import ask_from
from hetero.node.node import Node


@click.group()
def command() -> None:
    """Keep a named share of a device for whichever container asks for it.

    \b
      hetero share create train --memory 8Gi --core 30
      podman run --device hetero.io/share=train IMAGE
      hetero share ls
      hetero share resize train --core 60
      hetero share rm train

    A share stands until it is removed, also after a reboot; containers that use
    it at the same time use it together.
    """


@command.command("create")
@click.argument("name")
@request_options
@id_option
@json_option
def _create(name: str, *, quiet: bool, as_json: bool, **flags: Any) -> None:
    """Take a share of a device and call it NAME.

    \b
      hetero share create train --memory 8Gi --core 30
      id=$(hetero share create train --memory 8Gi -q)
    """
    view = create(Node.here(), name, request_from(**flags))
    devices = " ".join(f"--device {device}" for device in view.devices)
    use = f"use it with: podman run {devices} IMAGE   (docker run takes the same)"
    lines = [view.entry.id] if quiet else [*limits(view.entry), use]
    tell(view.entry, *lines, quiet=False, as_json=as_json, cdi=view.devices)


@command.command("ls")
@json_option
def _ls(*, as_json: bool) -> None:
    """List the shares, and bring their CDI specs in line with the cards there are."""
    show(lambda: settle(Node.here()), _render, _json.shares, as_json=as_json)


@command.command("restore")
def _restore() -> None:
    """Make the shares and their CDI specs again, as after a reboot; for a start-up unit."""
    shares = settle(Node.here())
    for message in shares.words:
        click.echo(message)
    share_count = len(shares.shares)
    click.echo(f"{share_count} share stands" if share_count == 1 else f"{share_count} shares stand")


@command.command("rm")
@click.argument("share", metavar="NAME")
@quiet_option
def _rm(share: str, *, quiet: bool) -> None:
    """Remove NAME; refused while a container has it."""
    grant_id = remove(Node.here(), share)
    say(f"removed share {share}, grant {grant_id}", quiet=quiet)


@command.command("resize")
@click.argument("share", metavar="NAME")
@click.option("-m", "--memory", metavar="SIZE", help="Of each device: 3000Mi, 3G, 50%.")
@click.option("-c", "--core", metavar="PERCENT", help="Share of each device's compute, 1 to 100.")
@click.option(
    "--device", metavar="NAME", help="Only this card of the share: VENDOR:INDEX, number or UUID."
)
@quiet_option
@json_option
def _resize(
    *,
    share: str,
    memory: str | None,
    core: str | None,
    device: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Change the memory or core of NAME; containers that run meet it at once."""
    if memory is None and core is None:
        raise BadInput("nothing to set: give --memory, --core or both")
    note_size(memory)
    grant = change(Node.here(), share, ask_from(memory=memory, core=core, device=device))
    tell(grant, *limits(grant), quiet=quiet, as_json=as_json)


def _render(shares: Shares) -> Part:
    parts: list[Part] = [Text(message, "yellow") for message in shares.words]
    shares_table = table(
        "share", "grant", "device", "core", "memory", "containers",
        elides=("share", "containers"),
        right=("core", "memory"),
        drops=("containers", "grant"),
    )  # fmt: skip
    for view in shares.shares:
        entry = view.entry
        for position, (limit, piece, core_percent) in enumerate(
            zip(entry.limits, entry.allocation.pieces, entry.core_percents, strict=True)
        ):
            shares_table.add_row(
                "" if position else view.name,
                "" if position else entry.id,
                f"{limit.name} (gone)" if piece.device in view.gone else limit.name,
                core_limit(core_percent),
                memory_of(limit.memory, limit.memory).partition("/")[2],
                ""
                if position
                else ", ".join(container.name for container in view.containers) or UNKNOWN,
            )
    return [*parts, shares_table if shares.shares else "no shares stand"]
