"""hetero simulate --cluster: what would become of a cluster's pods, as tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from hetero.cli import _json
from hetero.cli._render import UNKNOWN, Part, Text, core_limit, short, table
from hetero.cli._show import show
from hetero.model import CORE, MEMORY
from hetero.model.errors import BadInput
from hetero.model.request_parser import ask_from
from hetero.model.units import format_memory, parse_count

if TYPE_CHECKING:
    from hetero.kube.what_if.simulation import PodAnswer, SimulatedPlacement, Totals

#: Stands for the cluster of $KUBECONFIG where `--cluster` names no file.
LIVE = "-"


def what_if(
    cluster: str,
    *,
    add: tuple[Path, ...],
    replicas: int | None,
    memory: str | None,
    core: str | None,
    count: str | None,
    vendor: str | None,
    model: str | None,
    without: tuple[str, ...],
    placement: str | None,
    as_json: bool,
) -> int:
    """Show what would become of the pods; return 3 if one is refused, else 0."""
    from hetero.kube.what_if.changes import WhatIfRequest
    from hetero.kube.what_if.manifests import Shape
    from hetero.kube.what_if.simulation import simulate

    shape = None
    if replicas is not None:
        shape = Shape(
            replicas=replicas,
            ask=ask_from(memory=memory, core=core),
            count=1 if count is None else parse_count(count, of="--count"),
            vendor=vendor,
            model=model,
        )
    elif any((memory, core, count, vendor, model)):
        raise BadInput("--memory, --core, --count, --vendor and --model need --replicas")
    placement_answer = simulate(
        WhatIfRequest(
            saved=None if cluster == LIVE else Path(cluster),
            manifests=add,
            shape=shape,
            without=without,
            placement=placement,
        )
    )
    show(lambda: placement_answer, render, _json.what_if, as_json=as_json)
    return 3 if placement_answer.refused else 0


def render(answer: SimulatedPlacement) -> Part:
    """Return the pods in the order they are placed in, and the cluster before and after."""
    pods_table = table(
        "namespace", "pod", "from", "node", "device", "memory", "core", "why",
        elides=("pod", "device"),
        folds=("why",),
        right=("memory", "core"),
        optional=("device", "memory", "core", "why"),
        drops=("namespace", "device", "core", "memory", "from"),
    )  # fmt: skip
    for refusal_key, group in groupby(answer.pods, key=_alike):
        pods_alike = list(group)
        more_text = f" +{len(pods_alike) - 1}" if refusal_key and len(pods_alike) > 1 else ""
        for pod in pods_alike[:1] if refusal_key else pods_alike:
            pods_table.add_row(*_cells(evolve(pod, pod=pod.pod + more_text), answer))
    totals_table = table(
        "", "nodes", "devices", "allocated", "whole devices free", "whole nodes free",
        right=("nodes", "devices", "allocated", "whole devices free", "whole nodes free"),
        drops=("nodes", "devices"),
    )  # fmt: skip
    totals_table.add_row("before", *_totals(answer.before))
    totals_table.add_row("after", *_totals(answer.after))
    notes = [Text(note, "yellow") for note in answer.notes]
    placed_count = sum(pod.node is not None for pod in answer.pods)
    refused_count = sum(pod.refusal is not None for pod in answer.pods)
    summary = f"{placed_count} of {len(answer.pods)} pods placed, {refused_count} refused"
    parts: list[Part] = [pods_table, ""] if answer.pods else []
    return [*parts, *notes, summary, "", totals_table]


def _alike(pod: PodAnswer) -> tuple[str | None, ...]:
    """Return what is the same of pods that are refused alike; of others nothing is said."""
    return (pod.namespace, pod.origin, pod.from_node, pod.refusal) if pod.refusal else ()


def _cells(pod: PodAnswer, answer: SimulatedPlacement) -> tuple[str | Text, ...]:
    pieces = [piece for _, allocation in pod.containers for piece in allocation.pieces]
    units_and_cards = (
        (piece.takes[CORE], answer.devices[piece.device].of_card(CORE)) for piece in pieces
    )
    reason = Text(pod.refusal, "red") if pod.refusal else Text(", ".join(pod.notes), "yellow")
    return (
        *(pod.namespace, pod.pod, pod.from_node or pod.origin, pod.node or UNKNOWN),
        ", ".join(short(piece.device) for piece in pieces),
        _each(format_memory(piece.takes[MEMORY]) for piece in pieces),
        _each(
            core_limit(100 * units / card_units if units else None)
            for units, card_units in units_and_cards
        ),
        reason,
    )


def _each(sentences: Iterable[str]) -> str:
    """Return what is said of each piece, once where it is the same of all."""
    return ", ".join(dict.fromkeys(sentences))


def _totals(totals: Totals) -> tuple[str, ...]:
    return (
        str(totals.nodes),
        str(totals.devices),
        UNKNOWN if totals.allocated is None else f"{totals.allocated:.1f} %",
        str(totals.whole_devices),
        str(totals.whole_nodes),
    )
