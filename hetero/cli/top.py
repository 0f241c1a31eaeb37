"""hetero top: how busy the devices are, and what each grant, container and process uses of them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click
from rich.console import Group, RenderableType
from rich.text import Text

from hetero.cli._render import (
    UNKNOWN,
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
from hetero.node.node import Node
from hetero.node.observe import GrantView, NodeView, observe_node
from hetero.units import format_memory

_INTERVAL = 1.0


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=60),
    metavar="SECONDS",
    help="Look again this often; core in use is what was used in between. Default: 1.",
)
@click.option("--once", is_flag=True, help="Look once and end.")
@json_option
def command(*, interval: float | None, once: bool, as_json: bool) -> None:
    """Show what is in use now, until Ctrl-C: devices, grants, containers, processes.

    \b
      hetero top
      hetero top --interval 5
      hetero top --once --json

    Core and memory read used/limit; what is not known is a dash. Core in use is
    counted where it is limited. Where the output is no terminal, it looks once
    unless an interval is given.
    """
    watch = not once and (interval is not None or sys.stdout.isatty())
    query = partial(observe_node, Node.here(), seconds=interval or _INTERVAL)
    show(query, render, as_json=as_json, watch=watch, period=0)  # the query takes the interval


def render(view: NodeView) -> RenderableType:
    """Return the tables of a moment."""
    parts: list[RenderableType] = []
    if view.simulated:
        rack = Path(view.simulated).name
        parts.append(Text(f"simulated by {rack}: no card below is real", "yellow"))
    devices = table(
        "#", "vendor", "model", "busy", "memory", "health",
        folds=("model", "health"),
        right=("#", "busy", "memory"),
    )  # fmt: skip
    for row in view.devices:
        busy = row.usage.core
        devices.add_row(
            str(row.number),
            row.device.vendor,
            model_of(row.device),
            UNKNOWN if busy is None else f"{100 * busy:.0f} %",
            memory_of(row.usage.memory, row.device.capacity[MEMORY]),
            state(row.device.health) if row.device.health else UNKNOWN,
        )
    parts.append(devices if view.devices else Text("no devices"))
    parts += [Text(f"grant {entry.id}: {entry.reason}", "red") for entry in view.unreadable]
    parts += [Text(), _grants(view.grants) if view.grants else Text("no grants stand")]
    return Group(*parts)


def _grants(grants: tuple[GrantView, ...]) -> RenderableType:
    """Return the table of grants, the busiest first, each with its containers and processes."""
    named = ("container",) if any(grant.containers for grant in grants) else ()
    made = table(
        "grant", "pid", "#", "core", "memory", "rung", *named, "command",
        folds=("container", "command"),
        right=("pid", "#", "core", "memory"),
    )  # fmt: skip
    for grant in sorted(grants, key=_use, reverse=True):
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
                UNKNOWN if share.rung is None else share.rung.value,
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


def _use(grant: GrantView) -> tuple[float, int]:
    core = sum(share.core_used or 0 for share in grant.shares)
    return core, sum(share.memory_used or 0 for share in grant.shares)
