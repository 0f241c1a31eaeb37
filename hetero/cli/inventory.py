"""hetero inventory: every device, what is free of it, and who holds the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hetero.cli import _json
from hetero.cli._grants import holdings
from hetero.cli._render import (
    UNKNOWN,
    Part,
    Table,
    Text,
    condition_word,
    core_of,
    foreign_memory,
    free_memory,
    granularity_of,
    heading,
    kept_by,
    model_of,
    own_units,
    percent,
    short,
    sick_first,
    state,
    table,
    troubles,
)
from hetero.cli._show import json_option, show, watch_option, wide_option
from hetero.model import CORE, MEMORY, SLOTS, Whole
from hetero.model.units import format_memory
from hetero.node.node import Node
from hetero.node.view.observe import DeviceView, NodeView, observe_node

if TYPE_CHECKING:
    from hetero.kube.cluster_view import ClusterView


@click.command()
@json_option
@watch_option
@wide_option
@click.option("--cluster", is_flag=True, help="Of all nodes of the cluster, by its API.")
def command(*, as_json: bool, watch: bool, wide: bool, cluster: bool) -> None:
    """Show every device, what is free of it, and who holds what.

    \b
      hetero inventory
      hetero inventory --watch
      hetero inventory --cluster
      hetero inventory --json | jq '.items[].uuid'

    Free core is what can still be promised: `open job` says that a grant without
    a limit uses it meanwhile, `whole only` that the device has no shares. Free
    memory is what is neither granted nor held by `others`, which are programs
    without a grant; `~` is an estimate, of a driver that counts no processes. Of a
    cluster it is what is not granted: its API does not tell of others. `kept
    by` says what holds grants to their share: the limiter, the kernel, a
    partition, a service, or nothing.
    """
    if cluster:
        from hetero.kube.cluster_view import read_cluster

        show(read_cluster, render_cluster, _json.cluster, as_json=as_json, watch=watch, wide=wide)
        return
    node = Node.here()
    show(
        lambda: observe_node(node),
        lambda view: render(view, wide=wide),
        _json.node,
        as_json=as_json,
        watch=watch,
        wide=wide,
    )


def render(view: NodeView, *, wide: bool = False) -> Part:
    """Return the tables of a node."""
    devices = _devices(wide=wide)
    rows = sick_first(view.devices)
    for row in rows:
        devices.add_row(*_cells(row, wide=wide))
    parts: list[Part] = [*heading(view.simulated), devices if view.devices else "no devices"]
    parts += troubles(rows)
    parts += [
        Text(f"vendor {row.name} is {row.state}: {row.reason}", state(row.state).style)
        for row in view.vendors
        # A vendor that has nothing here is news only where nothing else is.
        if row.state != "ok" and (row.state not in ("absent", "untrusted") or not view.devices)
    ]
    parts += [Text(note, "yellow") for note in view.notes]
    parts += [
        Text(f"grant {unreadable_grant.id}: {unreadable_grant.reason}", "red")
        for unreadable_grant in view.unreadable
    ]
    if view.grants:
        parts += ["", holdings(view.grants, wide=wide)]
    return parts


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


def _devices(*first_columns: str, wide: bool = False) -> Table:
    return table(
        *first_columns,
        *(
            "#",
            "vendor",
            "model",
            "free core",
            "free memory",
            "others",
            "grants",
            "kept by",
            "health",
        ),
        *(("divides by",) if wide else ()),
        "uuid",
        right=("#", "free core", "free memory", "others", "grants"),
        elides=("health",),
        optional=("others",),
        drops=("uuid", "vendor", "grants", "kept by", "model", "others", "health"),
    )


def _cells(row: DeviceView, *, wide: bool = False) -> tuple[str | Text, ...]:
    device = row.device
    return (
        str(row.number),
        device.vendor,
        model_of(device),
        _free_core(row, wide=wide),
        free_memory(row.free[MEMORY], device) if device.usable else UNKNOWN,
        foreign_memory(row.foreign),
        f"{row.held[SLOTS]}/{device.capacity[SLOTS]}",
        kept_by(device.enforcement),
        condition_word(device),
        *((granularity_of(device),) if wide else ()),
        device.uuid if wide else short(device.uuid),
    )


def _free_core(row: DeviceView, *, wide: bool) -> str:
    """Return the core that is left, in the device's own units, too, where it is wide."""
    device = row.device
    if not device.usable:
        return UNKNOWN
    free_units, card_units = device.capacity[CORE] - row.held[CORE], device.of_card(CORE)
    free_text = percent(free_units, device)
    if wide:
        free_text += own_units(free_units, card_units)
    if row.open:
        return "open job" if not row.held[CORE] else f"{free_text}, open job"
    return "whole only" if isinstance(device.granularity, Whole) and not row.grants else free_text
