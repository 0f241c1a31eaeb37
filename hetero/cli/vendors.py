"""hetero vendors: what is installed, from where, and whether it works."""

from __future__ import annotations

import click

from hetero.cli import _json
from hetero.cli._render import UNKNOWN, Part, state, table
from hetero.cli._show import json_option, show
from hetero.node.node import Node
from hetero.plugin.registry import VendorRow


@click.command()
@json_option
def command(*, as_json: bool) -> None:
    """Show the vendors that are installed, from where, working or why not.

    A vendor is a Python distribution with an entry point in the group
    `hetero.plugin.vendor`; installing one is all it takes to see it here.
    """
    node = Node.here()
    show(lambda: node.discover().rows, render, _json.listing("vendors"), as_json=as_json)


def render(rows: tuple[VendorRow, ...]) -> Part:
    """Return the table of vendors."""
    if not rows:
        return "no vendors are installed: pip install one, such as hetero[all]"
    made = table(
        *("vendor", "from", "state", "devices", "reason", "trusted", "file"),
        folds=("reason",),
        right=("devices",),
        drops=("file", "trusted", "from", "devices"),
    )
    for row in rows:
        made.add_row(
            row.name,
            row.source,
            state(row.state),
            str(row.devices) if row.works else UNKNOWN,
            row.reason or "",
            "yes" if row.trusted else "no",
            row.file or UNKNOWN,
        )
    return made
