"""hetero inventory: every device, what is free of it, and who holds the rest."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from hetero.cli import _json
from hetero.cli._bars import LEGEND
from hetero.cli._grants import Filter, Name, name_of, queue_lines, remarks, tree
from hetero.cli._machine import Picture, counted, draw_cards, summary_line, totals_table
from hetero.cli._render import Part, Text, heading, state
from hetero.cli._show import json_option, show, watch_option, wide_option
from hetero.model.errors import BadInput
from hetero.node.node import Node
from hetero.node.place import has_simulator
from hetero.node.view.chosen import HEALTHS, Choice
from hetero.node.view.observe import NodeView, observe_node

#: Stands for the cluster of $KUBECONFIG where `--cluster` names no file.
LIVE = "-"


@click.command()
@click.option(
    "--vendor", cls=Filter, type=Name(), metavar="NAME", help="Only cards of this vendor."
)
@click.option(
    "--model", cls=Filter, type=Name(), metavar="NAME", help="Only models with this in their name."
)
@click.option(
    "-d",
    "--device",
    cls=Filter,
    type=Name(),
    metavar="NAME",
    help="Only this card: VENDOR:INDEX, number or UUID.",
)
@click.option(
    "--numa", cls=Filter, type=int, metavar="NUMBER", help="Only cards of this NUMA node."
)
@click.option("--health", cls=Filter, type=click.Choice(HEALTHS), help="Only cards that are so.")
@json_option
@watch_option
@wide_option
@click.option(
    "--cluster",
    type=click.Path(),
    is_flag=False,
    flag_value=LIVE,
    metavar="[FILE]",
    help="Of a cluster: that of $KUBECONFIG, or one saved by kubectl.",
)
@click.option(
    "--node",
    cls=Filter,
    type=Name(),
    metavar="NAME",
    help="With --cluster: this node, as a machine is shown.",
)
def command(
    *,
    vendor: str | None,
    model: str | None,
    device: str | None,
    numa: int | None,
    health: str | None,
    as_json: bool,
    watch: bool,
    wide: bool,
    cluster: str | None,
    node: str | None,
) -> None:
    """Show every card, what is free of it, and who has the rest.

    \b
      hetero inventory
      hetero inventory --watch
      hetero inventory --model H200 --health sick
      hetero inventory --cluster
      hetero inventory --cluster saved.json --node n1
      hetero inventory --json | jq '.items[].uuid'

    Cards stand by NUMA node and driver, those first of which nothing is given since they
    are not well. Below each stand its grants, and programs without one. Core given is what
    grants have of it; `open`: a grant without a limit uses what the others leave. Busy and
    used are what the driver says. Slots are how many may share a card, and how many of them
    are taken: a whole card takes all, and containers of a pod that run one after the other
    take one. Free memory is what is neither granted nor held by
    `others`, which are programs without a grant; of a card that is partitioned it is what
    its free partitions have. `~` is an estimate, of a driver that counts no processes. Of a
    cluster it is what is not granted: its API does not tell of others. `kept by` says what
    holds grants to their share: the limiter, the kernel, a partition, a service, or nothing.

    In a terminal there are bars, blank where nobody can have the rest, and one line for
    idle cards that are alike, but with --wide. A pipe gets neither.
    """
    choice = Choice(vendor=vendor, model=model, device=device, numa=numa, health=health)
    folded = sys.stdout.isatty()
    if cluster is not None:
        from hetero.cli import _fleet

        saved = None if cluster == LIVE else Path(cluster)
        if as_json:
            read = partial(_fleet.read_view, saved, node, choice)
            show(read, lambda _: "", _json.cluster, as_json=True, watch=watch)
            return
        show(
            partial(_fleet.read_fleet, saved, node, choice, full=wide),
            partial(_fleet.render_fleet, wide=wide, folded=folded),
            lambda _: {},
            as_json=False,
            watch=watch,
            wide=wide,
        )
        return
    if node is not None:
        raise BadInput("--node names a node of a cluster: add --cluster (a NUMA node: --numa)")
    machine = Node.here()
    show(
        lambda: choice.of_node(observe_node(machine)),
        partial(render, wide=wide, folded=folded),
        _json.node,
        as_json=as_json,
        watch=watch,
        wide=wide,
    )


def render(view: NodeView, *, wide: bool = False, folded: bool = False) -> Part:
    """Return the picture of a node; `folded`: with bars, and idle cards in one line."""
    picture = Picture(
        folded=folded,
        wide=wide,
        index_by_uuid={row.device.uuid: row.device.index for row in view.devices},
        name_by_grant={grant.id: name_of(grant) for grant in view.grants},
    )
    parts: list[Part] = [*heading(view.rack_file)]
    if view.devices:
        parts += [
            summary_line(_name(view), view.devices, len(view.grants)),
            draw_cards(view.devices, *tree(view.devices, view.grants, wide=wide), picture),
        ]
        parts += [LEGEND] if folded else []
    else:
        parts.append(_none(view))
    parts += [
        Text(f"vendor {row.name} is {row.state}: {row.reason}", state(row.state).style)
        for row in view.vendors
        # A vendor that has nothing here is news only where nothing else is.
        if row.state != "ok" and (row.state not in ("absent", "untrusted") or not _card_count(view))
    ]
    parts += [Text(note, "yellow") for note in view.notes]
    parts += queue_lines(view.queue)
    parts += [
        Text(f"grant {unreadable_grant.id}: {unreadable_grant.reason}", "red")
        for unreadable_grant in view.unreadable
    ]
    return [*parts, *remarks(view.grants), *totals_table(view.devices)]


def _card_count(view: NodeView) -> int:
    """Return how many cards the machine has, also those that were not asked for."""
    return sum(row.devices for row in view.vendors)


def _none(view: NodeView) -> str:
    """Return that there is no card, and how to try it without one, where that would work."""
    count = _card_count(view)
    if count:
        return f"no card is what was asked for ({counted(count, 'card')} here)"
    is_possible = view.rack_file is None and has_simulator()
    return "no devices" + (
        ": without a card, try `export HETERO_RACK=mixed`" if is_possible else ""
    )


def _name(view: NodeView) -> str:
    """Return what a machine is called: a simulated one by its rack."""
    return Path(view.rack_file).stem if view.rack_file else view.host
