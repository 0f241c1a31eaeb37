"""hetero inventory: every device, what is held of it, and who holds it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hetero.cli._render import (
    UNKNOWN,
    Fitted,
    age,
    core_of,
    few,
    granularity_of,
    held_core,
    held_memory,
    json_option,
    memory_of,
    model_of,
    one_line,
    short,
    show,
    state,
    table,
    watch_option,
)
from hetero.model import CORE, MEMORY, SLOTS
from hetero.model.units import format_memory
from hetero.node.ledger.ledger import Container
from hetero.node.node import Node
from hetero.node.view.observe import DeviceView, GrantView, NodeView, observe_node

if TYPE_CHECKING:
    from hetero.kube.cluster_view import ClusterView


@click.command()
@json_option
@watch_option
@click.option("--cluster", is_flag=True, help="Of all nodes of the cluster, by its API.")
def command(*, as_json: bool, watch: bool, cluster: bool) -> None:
    """Show every device, what is held of it, and who holds what.

    \b
      hetero inventory
      hetero inventory --watch
      hetero inventory --cluster
      hetero inventory --json | jq '.devices[].device.uuid'

    Core and memory read held/total, with the card's own memory where the node
    grants more. The enforcement says how a share is kept, strongest first: kernel,
    partition, service, preload, none.
    """
    if cluster:
        from hetero.kube.cluster_view import read_cluster

        show(read_cluster, render_cluster, as_json=as_json, watch=watch)
        return
    node = Node.here()
    show(lambda: observe_node(node), render, as_json=as_json, watch=watch)


def render(view: NodeView) -> RenderableType:
    """Return the tables of a node."""
    parts: list[RenderableType] = []
    if view.simulated:
        rack = Path(view.simulated).name
        parts.append(Text(f"simulated by {rack}: no card below is real", "yellow"))
    devices = _devices()
    for row in view.devices:
        devices.add_row(*_cells(row))
    parts.append(Fitted(devices) if view.devices else Text("no devices"))
    parts += [
        Text.assemble(f"vendor {row.name} is ", state(row.state), f": {row.reason}")
        for row in view.vendors
        # A vendor whose driver is not installed here is news only where nothing else is.
        if row.state not in ("ok", "absent") or (row.state == "absent" and not view.devices)
    ]
    parts += [Text(f"grant {entry.id}: {entry.reason}", "red") for entry in view.unreadable]
    if view.grants:
        parts += [Text(), holdings(view.grants)]
    return Group(*parts)


def render_cluster(view: ClusterView) -> RenderableType:
    """Return the tables of a cluster."""
    devices = _devices("node")
    for node in view.nodes:
        for row in node.devices:
            devices.add_row(node.name, *_cells(row))
    parts: list[RenderableType] = [Fitted(devices) if devices.rows else Text("no devices")]
    parts += [Text(node.fault, "red") for node in view.nodes if node.fault]
    if view.pods:
        pods = table(
            "namespace", "pod", "container", "node", "#", "core", "memory", "phase",
            folds=("pod", "container"),
            right=("#", "core", "memory"),
        )  # fmt: skip
        for pod in view.pods:
            for share in pod.shares:
                pods.add_row(
                    *(pod.namespace, pod.pod, pod.container, pod.node),
                    UNKNOWN if share.number is None else str(share.number),
                    core_of(share),
                    format_memory(share.memory),
                    pod.phase,
                )
        parts += [Text(), pods]
    return Group(*parts)


def _devices(*before: str) -> Table:
    return table(
        *before,
        *(
            "#",
            "vendor",
            "model",
            "uuid",
            "granularity",
            "core",
            "memory",
            "slots",
            "enforcement",
            "health",
        ),
        folds=("model", "granularity", "health"),
        right=("#", "core", "memory", "slots"),
    )


def _cells(row: DeviceView) -> tuple[RenderableType, ...]:
    device = row.device
    return (
        str(row.number),
        device.vendor,
        model_of(device),
        short(device.uuid),
        granularity_of(device),
        held_core(row.held[CORE], device),
        held_memory(row.held[MEMORY], device),
        f"{row.held[SLOTS]}/{device.capacity[SLOTS]}",
        device.enforcement.value,
        state(device.health) if device.health else UNKNOWN,
    )


def holdings(grants: tuple[GrantView, ...]) -> RenderableType:
    """Return the table of who holds what, one line for each device of a grant.

    The driver's own memory is shown where it is known of any of them, containers where there are.
    """
    shares = [share for grant in grants for share in grant.shares]
    known = any(share.overhead is not None for share in shares)
    named = any(grant.containers for grant in grants)
    driver, container = ("driver",) if known else (), ("container",) if named else ()
    made = table(
        "grant", "#", "core", "memory", *driver, "policy", "user", "age", "processes",
        *container, "command",
        folds=("processes", "container", "command"),
        right=("#", "core", "memory", "driver", "age"),
    )  # fmt: skip
    for grant in grants:
        for first, share in enumerate(grant.shares):
            number = UNKNOWN if share.number is None else str(share.number)
            memory = memory_of(share.memory_used, share.memory) + (" spills" if share.spill else "")
            used = [number, core_of(share), memory]
            if known:
                mib = None if share.overhead is None else share.overhead >> 20
                used.append(UNKNOWN if mib is None else f"+{mib} MiB")
            if first:
                made.add_row("", *used)
                continue
            made.add_row(
                grant.id,
                *used,
                grant.policy.value,
                grant.user,
                age(grant.since),
                few(grant.processes),
                *((", ".join(map(container_of, grant.containers)) or UNKNOWN,) if named else ()),
                one_line(what(grant)),
            )
    past = [
        Text(f"process {pid} of grant {grant.id} holds memory past its limiter", "red")
        for grant in grants
        for pid in grant.bypass
    ]
    return Group(made, *past)


def container_of(one: Container) -> str:
    """Return a container's id, name and image, as far as they are known."""
    return " ".join(filter(None, (one.id[:12], one.name if one.name != one.id else "", one.image)))


def what(grant: GrantView) -> str:
    """Return what a grant is for: the share, the label its user gave it, or the command.

    The command goes without its folder, which would leave no room for what it does.
    """
    if grant.share:
        return f"share {grant.share}"
    program, *arguments = grant.command or ("",)
    return grant.label or shlex.join([Path(program).name, *arguments])
