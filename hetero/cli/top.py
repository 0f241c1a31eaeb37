"""hetero top: how busy the devices are, and what each grant, container and process uses of them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetero.cli._render import (
    UNKNOWN,
    Seconds,
    core_of,
    json_option,
    memory_of,
    model_of,
    one_line,
    show,
    state,
    table,
)
from hetero.cli.inventory import container_of, what
from hetero.model import MEMORY
from hetero.model.units import format_memory
from hetero.node.node import Node
from hetero.node.view.observe import DeviceView, GrantView, NodeView, Share, observe_node

if TYPE_CHECKING:
    from hetero.kube.cluster_view import ClusterView

_INTERVAL = 1.0


@click.command()
@click.option(
    "--interval",
    type=Seconds(min=0.1, max=60),
    metavar="SECONDS",
    help="Look again this often; core in use is what was used in between. Default: 1.",
)
@click.option("--once", is_flag=True, help="Look once and end.")
@click.option("--cluster", is_flag=True, help="Of all nodes, by the cluster's API and metrics.")
@json_option
def command(*, interval: float | None, once: bool, cluster: bool, as_json: bool) -> None:
    """Show what is in use now, until Ctrl-C: devices, grants, containers, processes.

    \b
      hetero top
      hetero top --interval 5
      hetero top --once --json
      hetero top --cluster

    Core and memory read used/limit; what is not known is a dash. Core in use is
    counted where it is limited. Where the output is no terminal, it looks once
    unless an interval is given.
    """
    watch = not once and (interval is not None or sys.stdout.isatty())
    seconds = interval or _INTERVAL
    if cluster:
        from hetero.kube.cluster_view import read_cluster

        everywhere = partial(read_cluster, seconds=seconds)
        show(everywhere, render_cluster, as_json=as_json, watch=watch, period=0)
        return
    query = partial(observe_node, Node.here(), seconds=seconds)
    show(query, render, as_json=as_json, watch=watch, period=0)  # the query takes the interval


def render(view: NodeView) -> RenderableType:
    """Return the tables of a moment."""
    parts: list[RenderableType] = []
    if view.simulated:
        rack = Path(view.simulated).name
        parts.append(Text(f"simulated by {rack}: no card below is real", "yellow"))
    devices = _devices()
    for row in view.devices:
        devices.add_row(*_cells(row))
    parts.append(devices if view.devices else Text("no devices"))
    parts += [Text(f"grant {entry.id}: {entry.reason}", "red") for entry in view.unreadable]
    parts += [Text(), _grants(view.grants) if view.grants else Text("no grants stand")]
    return Group(*parts)


def render_cluster(view: ClusterView) -> RenderableType:
    """Return the tables of a cluster's moment, the busiest containers first."""
    devices = _devices("node")
    for node in view.nodes:
        for row in node.devices:
            devices.add_row(node.name, *_cells(row))
    pods = table(
        "namespace", "pod", "container", "node", "#", "core", "memory", "enforcement", "phase",
        folds=("pod", "container"),
        right=("#", "core", "memory"),
    )  # fmt: skip
    for pod in sorted(view.pods, key=lambda pod: _use(pod.shares), reverse=True):
        for share in pod.shares:
            pods.add_row(
                *(pod.namespace, pod.pod, pod.container, pod.node),
                UNKNOWN if share.number is None else str(share.number),
                core_of(share),
                memory_of(share.memory_used, share.memory),
                UNKNOWN if share.enforcement is None else share.enforcement.value,
                pod.phase,
            )
    faults = (
        f"node {node.name}: {said}"
        for node in view.nodes
        for said in (node.fault, node.silent)
        if said
    )
    return Group(
        devices if devices.rows else Text("no devices"),
        *(Text(fault, "red") for fault in faults),
        Text(),
        pods if pods.rows else Text("no pod holds any"),
    )


def _devices(*before: str) -> Table:
    return table(
        *before,
        *("#", "vendor", "model", "busy", "memory", "health"),
        folds=("model", "health"),
        right=("#", "busy", "memory"),
    )


def _cells(row: DeviceView) -> tuple[RenderableType, ...]:
    busy, health = row.usage.core, row.device.health
    return (
        str(row.number),
        row.device.vendor,
        model_of(row.device),
        UNKNOWN if busy is None else f"{100 * busy:.0f} %",
        memory_of(row.usage.memory, row.device.capacity[MEMORY]),
        state(health) if health else UNKNOWN,
    )


def _grants(grants: tuple[GrantView, ...]) -> RenderableType:
    """Return the table of grants, the busiest first, each with its containers and processes."""
    named = ("container",) if any(grant.containers for grant in grants) else ()
    made = table(
        "grant", "pid", "#", "core", "memory", "enforcement", *named, "command",
        folds=("container", "command"),
        right=("pid", "#", "core", "memory"),
    )  # fmt: skip
    for grant in sorted(grants, key=lambda grant: _use(grant.shares), reverse=True):
        containers = {one.id: container_of(one) for one in grant.containers}
        # One container is the grant's; several are told at their processes.
        whole = next(iter(containers.values())) if len(containers) == 1 else ""
        for first, share in enumerate(grant.shares):
            made.add_row(
                "" if first else grant.id,
                "",
                UNKNOWN if share.number is None else str(share.number),
                core_of(share),
                memory_of(share.memory_used, share.memory),
                UNKNOWN if share.enforcement is None else share.enforcement.value,
                *(("" if first else whole,) if named else ()),
                one_line("" if first else what(grant)),
            )
        for process in grant.running:
            held = " ".join(map(format_memory, process.memory)) or UNKNOWN
            inside = "" if whole else containers.get(process.container or "", "")
            made.add_row(
                *("", str(process.pid), "", "", held, ""),
                *((inside,) if named else ()),
                one_line(process.program),
            )
    return made


def _use(shares: tuple[Share, ...]) -> tuple[float, int]:
    core = sum(share.core_used or 0 for share in shares)
    return core, sum(share.memory_used or 0 for share in shares)
