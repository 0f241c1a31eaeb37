"""hetero doctor: each thing that must be right, and what to do where it is not."""

from __future__ import annotations

from datetime import datetime
from typing import NoReturn

import click

from hetero.cli import _json
from hetero.cli._render import Part, state, table
from hetero.cli._show import dumps, json_option, show
from hetero.container.log import tell
from hetero.model.errors import Refused
from hetero.node.node import Node
from hetero.node.view.bypass import Bypass, watch
from hetero.node.view.doctor import Finding, Verdict, examine, standing_anywhere, what_for


@click.command()
@click.option(
    "--uninstall-check",
    is_flag=True,
    help="Only check that nothing stands; exit 3 with the list if something does.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Only tell of processes that get past their limiter, until Ctrl-C: of memory within 5 s, "
    "of device time within 60.",
)
@json_option
def command(*, uninstall_check: bool, watch: bool, as_json: bool) -> int:
    """Check drivers, limiters, devices, state and ledger. Exits 1 if something is bad.

    \b
      hetero doctor
      hetero doctor --watch
      hetero doctor --uninstall-check && pip uninstall hetero
    """
    node = Node.here()
    if watch:
        _watch(node)
    if uninstall_check:
        standing = standing_anywhere(node)
        found = [Finding(f"grant {e.id}", Verdict.BAD, f"stands for {e.user}") for e in standing]
        if as_json:
            click.echo(dumps(_json.listing("doctor")(found)))
            return Refused.code if found else 0
        if standing:
            names = ", ".join(f"{e.id} ({e.user}: {what_for(node, e)})" for e in standing)
            raise Refused(f"grants still stand: {names}: end them before uninstalling")
        return 0
    findings = examine(node)
    show(lambda: findings, render, _json.listing("doctor"), as_json=as_json)
    return int(any(finding.verdict is Verdict.BAD for finding in findings))


def _watch(node: Node) -> NoReturn:
    """Tell of every escape once, here and in `hetero log`."""

    def said(found: Bypass) -> None:
        click.echo(f"{datetime.now():%H:%M:%S} {found}")
        tell(node, f"process {found.pid}", str(found))

    watch(node, said)


def render(findings: tuple[Finding, ...]) -> Part:
    """Return one line for each finding."""
    made = table("what", "is", "", elides=("what",), folds=("",))
    for finding in findings:
        made.add_row(finding.subject, state(finding.verdict.value), finding.says)
    return made
