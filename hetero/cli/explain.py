"""hetero explain: what something would get of a cluster, or why not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hetero.cli import _json
from hetero.cli._render import Part, table
from hetero.cli._show import json_option, show

if TYPE_CHECKING:
    from hetero.kube.what_if.claims import Explained


@click.group()
def command() -> None:
    """Say what something would get of the cluster of $KUBECONFIG, or why not.

    \b
      hetero explain claim examples/dra/gang.yaml
    """


@command.command("claim")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def _claim(file: Path, *, as_json: bool) -> int:
    """Show what each claim in FILE would get by itself of what is free now. Exits 3 if one fails.

    FILE has ResourceClaims, their templates, or pods that ask by resource names; all else in it is
    passed over.
    """
    from hetero.kube.what_if.claims import explain_claims

    explained_claims = explain_claims(file)
    show(lambda: explained_claims, _render, _json.claims, as_json=as_json)
    return 0 if all(claim_answer.answer.given for claim_answer in explained_claims.answers) else 3


def _render(explained_claims: Explained) -> list[Part]:
    """Return a table of what is given, and a line for each request that is not served."""
    answers = explained_claims.answers
    given_table = table("claim", "request", "node", "device", "consumes", folds=("consumes",))
    for answer in answers:
        for given_device in answer.answer.given:
            amounts = " ".join(
                f"{capacity} {amount}" for capacity, amount in given_device.consumes.items()
            )
            node = given_device.node or "any"
            given_table.add_row(
                answer.claim,
                given_device.request,
                node,
                given_device.device,
                amounts or "all of it",
            )
    lines = [f"{answer.claim}: {sentence}" for answer in answers for sentence in answer.answer.why]
    unread_parts = [explained_claims.unread] if explained_claims.unread else []
    return [
        *([given_table] if any(answer.answer.given for answer in answers) else []),
        *lines,
        *unread_parts,
    ]
