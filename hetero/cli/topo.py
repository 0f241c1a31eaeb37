"""hetero topo: how the cards of this machine are connected with each other."""

from __future__ import annotations

import sys

import click

from hetero.cli import _json
from hetero.cli._render import UNKNOWN, Part, Table, Text, heading, model_of, table
from hetero.cli._show import json_option, show
from hetero.node.node import Node
from hetero.node.view.observe import DeviceView, NodeView, observe_node
from hetero.node.view.topology import connections, meanings

#: Columns that a matrix leaves to the names of its rows.
_NAME_COLUMNS = 34


@click.command()
@json_option
def command(*, as_json: bool) -> None:
    """Show the links between the cards of this machine, as a matrix.

    \b
      hetero topo
      hetero topo --json | jq '.items[0].connections'

    A cell is the driver's word for the fastest link between two cards. Where no
    driver tells of one, it says in small letters whether both are on one NUMA
    node. The words that stand in the matrix are explained below it.
    """
    node = Node.here()
    columns = _columns()
    show(
        lambda: observe_node(node),
        lambda view: render(view, columns=columns),
        _json.topology,
        as_json=as_json,
    )


def _columns() -> int | None:
    """Return the columns of the terminal, None in a pipe, which takes lines of any length."""
    from shutil import get_terminal_size  # only here

    return get_terminal_size().columns if sys.stdout.isatty() else None


def render(view: NodeView, *, columns: int | None = None) -> Part:
    """Return the matrix, in several below each other where `columns` do not hold it."""
    rows = view.devices
    if not rows:
        return "no devices"
    kinds_by_number = {
        row.device_number: {link.number: link.kind for link in connections(row, rows)}
        for row in rows
    }
    kinds = {kind for kinds in kinds_by_number.values() for kind in kinds.values() if kind}
    cell_columns = max(3, *map(len, (*_columns_of(rows, rows), *kinds))) + 2
    cards_a_line = max(((columns or 10**6) - _NAME_COLUMNS) // cell_columns, 1)
    parts: list[Part] = [*heading(view.rack_file)]
    for first in range(0, len(rows), cards_a_line):
        peers = rows[first : first + cards_a_line]
        parts += [*([""] if first else []), _matrix(rows, peers, kinds_by_number)]
    return [*parts, *_legend(sorted(kinds))]


def _matrix(
    rows: tuple[DeviceView, ...],
    peers: tuple[DeviceView, ...],
    kinds_by_number: dict[int, dict[int, str | None]],
) -> Table:
    # A column of a card would be the one of the rows' own, had it the same name.
    matrix = table("card", "model", *_columns_of(rows, peers), "NUMA", drops=("NUMA",))
    for row in rows:
        kinds = kinds_by_number[row.device_number]
        matrix.add_row(
            row.device.name,
            model_of(row.device),
            *(
                Text("X", "dim") if peer is row else _cell(kinds[peer.device_number])
                for peer in peers
            ),
            UNKNOWN if row.device.numa is None else str(row.device.numa),
        )
    return matrix


def _columns_of(rows: tuple[DeviceView, ...], peers: tuple[DeviceView, ...]) -> list[str]:
    """Return the names of cards above the columns: the index alone where all have one vendor."""
    if len({row.device.vendor for row in rows}) == 1:
        return [str(peer.device.index) for peer in peers]
    return [peer.device.name for peer in peers]


def _cell(kind: str | None) -> Text:
    if kind is None:
        return Text(UNKNOWN, "dim")
    return Text(kind, "" if kind in meanings([kind]) else "green")


def _legend(kinds: list[str]) -> list[Part]:
    """Return what the words of the matrix mean."""
    explained = meanings(kinds)
    own_kinds = [kind for kind in kinds if kind not in explained]
    lines = [f"{kind:<5}  {meaning}" for kind, meaning in explained.items()]
    if own_kinds:
        lines.append(f"{', '.join(own_kinds)}  links of the vendor's own")
    lines += [f"X      the card itself; {UNKNOWN} is not known"]
    return ["", *(Text(line, "dim") for line in lines)]
