"""The cards of a cluster as tables: of each node, and who holds them."""

from __future__ import annotations

from hetero.cli._render import (
    UNKNOWN,
    Part,
    Table,
    Text,
    condition_word,
    core_of,
    free_memory,
    kept_by,
    model_of,
    percent,
    short,
    sick_first,
    table,
    troubles,
)
from hetero.kube.cluster_view import ClusterView
from hetero.model import CORE, MEMORY, SLOTS, Whole
from hetero.model.units import format_memory
from hetero.node.view.observe import DeviceView


def render_cluster(view: ClusterView) -> Part:
    """Return the tables of a cluster."""
    devices = _devices("node")
    for node in view.nodes:
        for row in sick_first(node.devices):
            devices.add_row(node.name, *_cells(row))
    parts: list[Part] = [devices if devices.rows else "no devices"]
    parts += [line for node in view.nodes for line in troubles(node.devices, node=node.name)]
    parts += [Text(node.fault, "red") for node in view.nodes if node.fault]
    parts += [Text(note, "yellow") for note in view.notes]
    if view.pods:
        pods = table(
            "namespace", "claim", "pod", "container", "node", "#", "core", "memory", "phase",
            elides=("claim", "pod", "container"),
            optional=("claim",),
            right=("#", "core", "memory"),
            drops=("phase", "container", "namespace", "node", "claim"),
        )  # fmt: skip
        for pod in view.pods:
            for share in pod.shares:
                pods.add_row(
                    *(pod.namespace, pod.claim or "", pod.pod, pod.container, pod.node),
                    UNKNOWN if share.number is None else str(share.number),
                    core_of(share),
                    format_memory(share.memory),
                    pod.phase,
                )
        parts += ["", pods]
    return parts


def _devices(*first_columns: str) -> Table:
    return table(
        *first_columns,
        *("#", "vendor", "model", "free core", "free memory", "grants", "kept by", "health"),
        "uuid",
        right=("#", "free core", "free memory", "grants"),
        elides=("health",),
        drops=("uuid", "vendor", "grants", "kept by", "model", "health"),
    )


def _cells(row: DeviceView) -> tuple[str | Text, ...]:
    device = row.device
    free_units = device.capacity[CORE] - row.held[CORE]
    is_whole = isinstance(device.granularity, Whole) and not row.grants
    free_core = "whole only" if is_whole else percent(free_units, device)
    return (
        str(row.number),
        device.vendor,
        model_of(device),
        free_core if device.usable else UNKNOWN,
        free_memory(row.free[MEMORY], device) if device.usable else UNKNOWN,
        f"{row.held[SLOTS]}/{device.capacity[SLOTS]}",
        kept_by(device.enforcement),
        condition_word(device),
        short(device.uuid),
    )
