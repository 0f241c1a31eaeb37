"""hetero top: how busy the devices are, and what each grant, container and process uses of them."""

from __future__ import annotations

import sys
from functools import partial

import click

from hetero.cli import _json
from hetero.cli._grants import Filter, Name, user_option
from hetero.cli._show import Seconds, json_option, show, wide_option
from hetero.cli._top_tables import render, render_cluster
from hetero.node.node import Node
from hetero.node.view.chosen import Choice
from hetero.node.view.observe import CoreMeter, NodeView, observe_node

_DEFAULT_INTERVAL_S = 1.0
#: Seconds over which core in use is a mean: a share of time slices shows little of itself in one.
_CORE_WINDOW_S = 10.0


@click.command()
@click.option(
    "-n",
    "-d",
    "--interval",
    "--delay",
    "interval",
    type=Seconds(min=0.1, max=60),
    metavar="SECONDS",
    help="Look again this often. Default: 1.",
)
@click.option("-1", "--once", is_flag=True, help="Look once and end.")
@click.option("--cluster", is_flag=True, help="Of all nodes, by the cluster's API and metrics.")
@user_option
@click.option(
    "--device",
    cls=Filter,
    type=Name(),
    metavar="NAME",
    help="Only this card: VENDOR:INDEX, number or UUID.",
)
@wide_option
@json_option
def command(
    *,
    interval: float | None,
    once: bool,
    cluster: bool,
    user: str | None,
    device: str | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Show what is in use now: devices, grants, containers, processes.

    \b
      hetero top
      hetero top --interval 5 --user alice
      hetero top --once --json
      hetero top --cluster

    Keys: q ends it, s sorts, / filters, t shows grants below their cards, r
    releases one, ? shows the others. Core and memory read
    used/limit; what is not known is a dash. A grant of several cards has a row,
    a part of each period in which it has all of them at once. Core in use is counted where it is
    limited, and so is for how long of each second a grant's processes were
    stopped because it had its share. Both are means over 10 s; in the first
    frame, and with --once, since the grant began. --once --interval gives means
    over the interval. Excess is what the driver counts past the limiter: time of
    the card, as heterod saw it last, and memory. Where the output is no terminal,
    it looks once unless an interval is given.
    """
    watch = not once and (interval is not None or sys.stdout.isatty())
    interval_s = interval or _DEFAULT_INTERVAL_S
    if cluster:
        from hetero.kube.cluster_view import read_cluster

        show(
            partial(read_cluster, seconds=interval_s),
            render_cluster,
            _json.cluster,
            as_json=as_json,
            watch=watch,
            period_s=0,  # the query takes the interval
        )
        return
    node = Node.here()
    meter = CoreMeter(node, window_s=_CORE_WINDOW_S)
    if once and interval is not None:
        meter.wait(interval)

    chosen = (("--device", device), ("--user", user))
    filters = " ".join(f"{option} {name}" for option, name in chosen if name is not None)

    def query() -> NodeView:
        return Choice(device=device, user=user).of_node(observe_node(node, meter))

    if watch and not as_json and sys.stdout.isatty():
        from hetero.cli._draw import Pipe, console_of
        from hetero.cli._top_keys import Choices, interact
        from hetero.node.view.history import History

        console = console_of(sys.stdout)
        if not isinstance(console, Pipe) and console.is_interactive:
            interact(
                query,
                node,
                console,
                interval_s,
                Choices(wide=wide, filters=filters, history=History(window_s=_CORE_WINDOW_S)),
            )
            return
    document = partial(_json.node, seconds=interval if once else None)
    show(
        query,
        partial(render, wide=wide, filters=filters),
        document,
        as_json=as_json,
        watch=watch,
        wide=wide,
        period_s=interval_s,
    )
