"""hetero doctor: each thing that must be right, and what to do where it is not."""

from __future__ import annotations

from datetime import datetime
from typing import NoReturn

import click

from hetero.cli import _json
from hetero.cli._render import Part, state, table
from hetero.cli._show import dumps, json_option, show
from hetero.cli._undoing import undoing
from hetero.model.errors import BadInput, Refused
from hetero.node.guard.monitor import Finding as News
from hetero.node.guard.monitor import acts_for, watch
from hetero.node.ledger.events import record
from hetero.node.node import Node
from hetero.node.view.doctor import Diagnosis, Finding, examine, standing_anywhere, what_for


@click.command()
@click.option(
    "--uninstall-check",
    is_flag=True,
    help="Only check that nothing stands; exit 3 with the list if something does.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Until Ctrl-C, do what heterod does where it is not installed, for your own processes: "
    "tell of memory past a limiter within 5 s and of device time within 60, count it, act on it.",
)
@json_option
def command(*, uninstall_check: bool, watch: bool, as_json: bool) -> int:
    """Check drivers, limiters, devices, state and ledger. Exits 1 if something is bad.

    \b
      hetero doctor
      hetero doctor --watch
      hetero doctor --uninstall-check && pip uninstall hetero
    """
    if watch and (as_json or uninstall_check):
        raise BadInput("--watch: not with --json or --uninstall-check; see `hetero log --json`")
    node = Node.here()
    if watch:
        _watch(node)
    if uninstall_check:
        standing_grants = standing_anywhere(node)
        obstacles = [
            Finding(f"grant {grant.id}", Diagnosis.BAD, f"stands for {grant.user}")
            for grant in standing_grants
        ]
        if as_json:
            click.echo(dumps(_json.listing("doctor")(obstacles)))
            return Refused.code if obstacles else 0
        if standing_grants:
            grants_text = ", ".join(
                f"{grant.id} ({grant.user}: {what_for(node, grant)})" for grant in standing_grants
            )
            raise Refused(f"grants still stand: {grants_text}: end them before uninstalling")
        return 0
    findings = examine(node)
    show(lambda: findings, render, _json.listing("doctor"), as_json=as_json)
    return int(any(finding.verdict is Diagnosis.BAD for finding in findings))


def _watch(node: Node) -> NoReturn:
    """Tell of every finding once, here and in `hetero log`."""
    click.echo(f"hetero: {acts_for(node)}", err=True)

    def report(news: News) -> None:
        click.echo(f"{datetime.now():%H:%M:%S} {news}")
        record(node.ledger.persistent, news.subject, str(news))

    with undoing():  # what it charged is taken back
        watch(node, report)


def render(findings: tuple[Finding, ...]) -> Part:
    """Return one line for each finding."""
    findings_table = table("what", "is", "", elides=("what",), folds=("",))
    for finding in findings:
        findings_table.add_row(finding.subject, state(finding.verdict.value), finding.says)
    return findings_table
