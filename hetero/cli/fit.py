"""hetero fit: what a request would get now, or why it would get nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from hetero.cli import _json
from hetero.cli._render import Part, Text, card_and_model, core_limit, percent, table
from hetero.cli._request import anyway_option, request_from, request_options
from hetero.cli._show import json_option, show
from hetero.model import CORE, MEMORY, Allocation, Device, Refusal
from hetero.model.units import format_memory
from hetero.node.node import Node
from hetero.node.outlook import explain_now, fit_now
from hetero.node.selection import refused
from hetero.placement import Explanation


@click.command()
@request_options
@anyway_option
@click.option("--explain", is_flag=True, help="Show what every device says, with numbers.")
@json_option
def command(*, as_json: bool, explain: bool, anyway: bool, **flags: Any) -> int:
    """Show what a request would get now, without taking it. Exits 3 if refused.

    \b
      hetero fit --memory 3000Mi --core 30
      hetero fit --count 2 --memory 40Gi --explain
    """
    request = request_from(**flags)
    node = Node.here()
    if explain:
        explanation = explain_now(node, request, anyway=anyway)
        answer = explanation.answer
        show(
            lambda: explanation,
            lambda explained: render_explanation(explained, _cards(node)),
            lambda explained: _json.explanation(explained, _cards(node)),
            as_json=as_json,
        )
    else:
        answer = fit_now(node, request, anyway=anyway)
    error = refused(answer, request) if isinstance(answer, Refusal) else None
    if error and not as_json and not explain:
        raise error
    if not explain:
        show(
            lambda: answer,
            lambda answer: render(answer, _cards(node)),
            lambda answer: _json.fit(answer, _cards(node)),
            as_json=as_json,
        )
    return error.code if error else 0


def _cards(node: Node) -> dict[str, Device]:
    return {device.uuid: device for device in node.discover().devices}


def render_explanation(explanation: Explanation, cards: Mapping[str, Device]) -> Part:
    """Return the answer, and what every device says: of those that fit, the fullest are taken."""
    lines = [verdict.sentence for verdict in explanation.verdicts]
    return [render(explanation.answer, cards), "", *lines]


def render(answer: Allocation | Refusal, cards: Mapping[str, Device]) -> Part:
    """Return the table of what would be granted of these cards, or the reason against it."""
    if isinstance(answer, Refusal):
        return answer.sentence
    pieces_table = table(
        *("device", "shape", "core", "memory"),
        right=("core", "memory"),
        elides=("device",),
        drops=("shape",),
    )
    for piece in answer.pieces:
        core_units = piece.takes[CORE]
        shape = "whole card" if core_units and piece.core is None else "share"
        pieces_table.add_row(
            card_and_model(cards[piece.device]),
            piece.template or shape,
            percent(core_units, cards[piece.device]) if core_units else core_limit(None),
            format_memory(piece.takes[MEMORY]),
        )
    return [pieces_table, *(Text(note, "yellow") for note in answer.notes)]
