"""hetero vendors: what is installed, from where, and whether it works."""

from __future__ import annotations

import click

from hetero.cli import _json
from hetero.cli._render import UNKNOWN, Part, state, table
from hetero.cli._show import json_option, show
from hetero.cli._undoing import undoing
from hetero.node.node import Node
from hetero.registry.vendor_row import VendorRow
from hetero.testing.contract import Clause, check


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, *, as_json: bool) -> None:
    """Show the vendors that are installed, from where, working or why not.

    A vendor is a Python distribution with an entry point in the group
    `hetero.plugin.vendor`; installing one is all it takes to see it here. Its
    code is run only if the node's settings trust it ([vendors] allow).
    """
    if context.invoked_subcommand:
        return
    node = Node.here()
    show(lambda: node.discover(anew=True).rows, render, _json.listing("vendors"), as_json=as_json)


@command.command("check")
@click.argument("vendor", metavar="NAME")
@json_option
def _check(vendor: str, *, as_json: bool) -> int:
    """Hold a vendor to the contract, on the cards of this machine.

    It makes and destroys slices, so nothing should stand on its cards. Exits 1
    if a promise is not kept. What could not be shown, for want of cards, is
    counted by itself.
    """
    with undoing():
        clauses = tuple(check(Node.here().registry.plugin(vendor)))
    show(lambda: clauses, _clauses, _json.listing("check"), as_json=as_json)
    return int(any(clause.failure and clause.shown for clause in clauses))


def _clauses(clauses: tuple[Clause, ...]) -> Part:
    clauses_table = table("promise", "is", "", folds=("",))
    for clause in clauses:
        verdict = "not shown" if not clause.shown else "bad" if clause.failure else "ok"
        clauses_table.add_row(clause.says, state(verdict), clause.failure or "")
    count_by_verdict = {
        "ok": sum(clause.failure is None for clause in clauses),
        "bad": sum(clause.shown and clause.failure is not None for clause in clauses),
        "not shown": sum(not clause.shown for clause in clauses),
    }
    counts = ", ".join(f"{count} {verdict}" for verdict, count in count_by_verdict.items() if count)
    return [clauses_table, f"{counts} of {len(clauses)} promises"]


def render(rows: tuple[VendorRow, ...]) -> Part:
    """Return the table of vendors."""
    if not rows:
        return "no vendors are installed: in hetero's sources, pip install ./vendors/NAME"
    vendors_table = table(
        *("vendor", "from", "state", "devices", "reason", "trusted", "file"),
        folds=("reason",),
        right=("devices",),
        drops=("file", "trusted", "from", "devices"),
    )
    for row in rows:
        vendors_table.add_row(
            row.name,
            row.source,
            state(row.state),
            str(row.devices) if row.works else UNKNOWN,
            row.reason or "",
            "yes" if row.trusted else "no",
            row.file or UNKNOWN,
        )
    return vendors_table
