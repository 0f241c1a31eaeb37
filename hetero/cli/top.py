"""hetero top: how busy the devices are, and what each grant, container and process uses of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click
from attrs import define, evolve

from hetero.cli import _json
from hetero.cli._grants import (
    container_of,
    device_option,
    name_of,
    note_of,
    of_user,
    on_device,
    program_of,
    user_option,
)
from hetero.cli._render import (
    UNKNOWN,
    Part,
    Table,
    Text,
    age,
    condition_word,
    core_of,
    foreign_memory,
    heading,
    kept_by,
    memory_of,
    model_of,
    own_units,
    percent,
    sick_first,
    table,
    troubles,
)
from hetero.cli._show import Seconds, json_option, show, wide_option
from hetero.model import CORE, MEMORY
from hetero.model.units import format_memory
from hetero.node.node import Node
from hetero.node.view.observe import (
    CoreMeter,
    DeviceView,
    GrantView,
    NodeView,
    RowView,
    Share,
    observe_node,
)

if TYPE_CHECKING:
    from rich.console import Console

    from hetero.cli._draw import Line
    from hetero.kube.cluster_view import ClusterView

_INTERVAL = 1.0
#: Seconds over which core in use is a mean: a share of time slices shows little of itself in one.
_WINDOW = 10.0
_BAR = 10
_KEYS = """
q, Ctrl-C       end
s               sort grants by the next of: device, core, memory, age
e               show idle devices one by one, or in one line
arrows, j k     scroll by a line
PgUp PgDn       scroll by a page; Home and End as well
?               these keys, or the grants again
"""


@click.command()
@click.option(
    "-n",
    "--interval",
    type=Seconds(min=0.1, max=60),
    metavar="SECONDS",
    help="Look again this often. Default: 1.",
)
@click.option("-1", "--once", is_flag=True, help="Look once and end.")
@click.option("--cluster", is_flag=True, help="Of all nodes, by the cluster's API and metrics.")
@user_option
@device_option
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

    Keys: q ends it, s sorts, ? shows the others. Core and memory read
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
    interval_s = interval or _INTERVAL
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
    meter = CoreMeter(node, window=_WINDOW)
    if once and interval is not None:
        meter.wait(interval)

    def query() -> NodeView:
        view = observe_node(node, meter)
        return evolve(view, grants=on_device(of_user(view.grants, user), device))

    if watch and not as_json and sys.stdout.isatty():
        from hetero.cli._draw import console_of

        console = console_of(sys.stdout)
        if console.is_interactive:
            _interact(query, console, interval_s, wide=wide)
            return
    document = partial(_json.node, seconds=interval if once else None)
    show(
        query,
        partial(render, wide=wide),
        document,
        as_json=as_json,
        watch=watch,
        wide=wide,
        period_s=interval_s,
    )


@define
class _Choice:
    """What the keys chose; `wide`: as the command was begun."""

    sort: int = 0
    idle: bool = False
    keys: bool = False
    wide: bool = False


def _interact(
    query: Callable[[], NodeView], console: Console, interval_s: float, *, wide: bool
) -> None:
    """Show frame after frame until a key ends it."""
    from hetero.cli._screen import Screen

    choice = _Choice(wide=wide)
    view = query()
    with Screen(console) as screen:
        while pressed_key := screen.show(_frame(view, choice, console), wait_s=interval_s):
            match pressed_key:
                case "s":
                    choice.sort = (choice.sort + 1) % len(_ORDERS)
                case "e":
                    choice.idle = not choice.idle
                case "?" | "h":
                    choice.keys = not choice.keys
                case _:
                    view = query()


def _frame(view: NodeView, choice: _Choice, console: Console) -> list[Line]:
    """Return the lines of a frame, the first of which stays when it is scrolled."""
    from time import strftime

    from hetero.cli._draw import layout

    order_name, order = _ORDERS[choice.sort]
    title = (
        f"hetero top   {len(view.devices)} cards, {len(view.grants)} grants   {_real(view)}"
        f"{strftime('%H:%M:%S')}   by {order_name}   q quit  s sort  e idle  ? keys"
    )
    if choice.keys:
        body: Part = _KEYS.strip("\n").splitlines()
    else:
        grants = sorted(view.grants, key=order)
        body = _tables(
            evolve(view, grants=tuple(grants)), fold_idle=not choice.idle, wide=choice.wide
        )
    # The first line is cut at the edge, as the keys are in the help.
    return [
        *layout(Text(title, "reverse"), console, wide=True),
        *layout(body, console, wide=choice.wide),
    ]


def _real(view: NodeView) -> str:
    if view.simulated is None:
        return ""
    return f"SIMULATED by {view.simulated.rpartition('/')[2]}   "


def render(view: NodeView, *, wide: bool = False) -> Part:
    """Return the tables of a moment."""
    return [*heading(view.simulated), *_tables(view, fold_idle=False, wide=wide)]


def _tables(view: NodeView, *, fold_idle: bool, wide: bool = False) -> list[Part]:
    idle_rows = [row for row in view.devices if fold_idle and row.idle]
    devices = _devices()
    rows = sick_first(view.devices)
    for row in rows:
        if len(idle_rows) < 2 or row not in idle_rows:
            devices.add_row(*_cells(row, wide=wide))
    parts: list[Part] = [devices] if devices.rows else []
    if len(idle_rows) > 1:
        numbers_text = " ".join(str(row.number) for row in idle_rows)
        models = ", ".join(dict.fromkeys(model_of(row.device) for row in idle_rows))
        parts.append(f"{numbers_text}: idle {models} (e: one by one)")
    if not view.devices:
        parts.append("no devices")
    parts += troubles(rows)
    parts += [
        Text(f"grant {unreadable_grant.id}: {unreadable_grant.reason}", "red")
        for unreadable_grant in view.unreadable
    ]
    parts += ["", _grants(view.grants, wide=wide) if view.grants else "no grants stand"]
    return parts


def render_cluster(view: ClusterView) -> Part:
    """Return the tables of a cluster's moment, the busiest containers first."""
    devices = _devices("node")
    for node in view.nodes:
        for row in sick_first(node.devices):
            devices.add_row(node.name, *_cells(row))
    pods = table(
        *("namespace", "claim", "pod", "container", "node"),
        *("#", "core", "memory", "kept by", "phase"),
        elides=("claim", "pod", "container"),
        optional=("claim",),
        right=("#", "core", "memory"),
        drops=("kept by", "phase", "container", "namespace", "node", "claim"),
    )  # fmt: skip
    for pod in sorted(view.pods, key=lambda pod: _use(pod.shares), reverse=True):
        for share in pod.shares:
            pods.add_row(
                *(pod.namespace, pod.claim or "", pod.pod, pod.container, pod.node),
                UNKNOWN if share.number is None else str(share.number),
                core_of(share),
                memory_of(share.memory_used, share.memory),
                kept_by(share.enforcement),
                pod.phase,
            )
    faults = (
        f"node {node.name}: {fault_text}"
        for node in view.nodes
        for fault_text in (node.fault, node.silent)
        if fault_text
    )
    return [
        devices if devices.rows else "no devices",
        *(Text(fault, "red") for fault in faults),
        *(Text(note, "yellow") for note in view.notes),
        "",
        pods if pods.rows else "no pod holds any",
    ]


def _devices(*first_columns: str) -> Table:
    return table(
        *first_columns,
        *("#", "vendor", "model", "busy", "", "memory", " ", "others", "given"),
        *("temp", "power", "health"),
        optional=("others", "temp", "power"),
        right=("#", "busy", "memory", "others", "given", "temp", "power"),
        elides=("health",),
        drops=(" ", "", "vendor", "power", "temp", "given", "model", "others", "health"),
    )


def _cells(row: DeviceView, *, wide: bool = False) -> tuple[str | Text, ...]:
    usage, device = row.usage, row.device
    busy_part, memory_bytes = usage.core, device.capacity[MEMORY]
    core_text = percent(row.held[CORE], device)
    if wide:
        core_text += own_units(row.held[CORE], device.of_card(CORE))
    return (
        str(row.number),
        device.vendor,
        model_of(device),
        UNKNOWN if busy_part is None else f"{100 * busy_part:.0f} %",
        _bar(busy_part),
        memory_of(usage.memory, memory_bytes),
        _bar(None if usage.memory is None or not memory_bytes else usage.memory / memory_bytes),
        foreign_memory(row.foreign),
        "open" if row.open and not row.held[CORE] else core_text,
        "" if usage.temperature is None else f"{usage.temperature} °C",
        "" if usage.power is None else f"{usage.power:.0f} W",
        condition_word(device),
    )


def _bar(fraction: float | None) -> Text:
    """Return a bar of so much of its length, in eighths of a column."""
    if fraction is None:
        return Text()
    eighths = round(min(max(fraction, 0.0), 1.0) * _BAR * 8)
    full_columns, rest_eighths = divmod(eighths, 8)
    bar = "█" * full_columns + (" ▏▎▍▌▋▊▉"[rest_eighths] if rest_eighths else "")
    return Text(bar.ljust(_BAR, "·"), "red" if fraction > 0.9 else "green")


def _grants(grants: Sequence[GrantView], *, wide: bool) -> Table:
    """Return the table of grants, each with its containers and processes."""
    grants_table = table(
        *("#", "grant", "name", "user", "core", "memory", " ", "stopped", "borrowed", "lent"),
        *("row", "excess", "note", "policy", "kept by", "age", "pid", "container", "program"),
        right=("#", "core", "memory", "stopped", "borrowed", "lent", "excess", "age", "pid"),
        elides=("name", "container", "program"),
        optional=("name", "stopped", "borrowed", "lent", "row", "excess", "note", "container"),
        drops=(
            *(" ", "kept by", "age", "container", "user", "policy", "program", "pid"),
            *("lent", "borrowed", "row", "stopped", "note", "excess", "name"),
        ),
    )
    for grant in grants:
        for row in _rows_of(grant, wide=wide):
            grants_table.add_row(*(row.get(column, "") for column in grants_table.columns))
    return grants_table


def _rows_of(grant: GrantView, *, wide: bool) -> list[dict[str, str | Text]]:
    """Return a row for each device of a grant, then for each device that a process of it uses.

    A grant of one process has that in its own rows.
    """
    name_by_container = {container.id: container_of(container) for container in grant.containers}
    # One container is the grant's; several are told at their processes.
    only_container = next(iter(name_by_container.values())) if len(name_by_container) == 1 else ""
    rows: list[dict[str, str | Text]] = []
    for position, share in enumerate(grant.shares):
        memory_part = None if share.memory_used is None else share.memory_used / share.memory
        rows.append(
            {
                **_of_share(share, wide=wide),
                " ": _bar(memory_part),
                "note": note_of(grant, share),
                **({} if position else _of_grant(grant, only_container)),
            }
        )
    if len(grant.running) == 1:
        return rows
    for process in grant.running:
        process_cells: dict[str, str | Text] = {
            "pid": str(process.pid),
            "container": ""
            if only_container
            else name_by_container.get(process.container or "", ""),
            "program": f"  {process.program}",
        }
        device_rows = [
            {**process_cells, "#": _number(share), "memory": format_memory(memory_bytes)}
            for share, memory_bytes in zip(grant.shares, process.memory, strict=False)
            if memory_bytes
        ]
        rows += device_rows or [{**process_cells, "memory": UNKNOWN}]
    return rows


def _of_share(share: Share, *, wide: bool) -> dict[str, str | Text]:
    return {
        "#": _number(share),
        "core": core_of(share, wide=wide),
        "memory": memory_of(share.memory_used, share.memory),
        "stopped": f"{share.core_stopped:.0f} ms/s" if share.core_stopped else "",
        "borrowed": _points(share.core_borrowed),
        "lent": _points(share.core_lent),
        "excess": _excess(share),
        "kept by": kept_by(share.enforcement),
    }


def _points(fraction: float | None) -> str:
    """Say a part of the card, if there is half a percent of it."""
    return f"{fraction:.0f} %" if fraction and fraction >= 0.5 else ""


def _excess(share: Share) -> Text:
    """Say what is used past the limiter: time of the card, and memory."""
    excess_texts = [_points(share.core_excess)]
    if share.excess and share.excess.is_told:
        excess_texts.append(format_memory(share.excess.memory))
    return Text(" ".join(filter(None, excess_texts)), "red")


def _of_grant(grant: GrantView, container_name: str) -> dict[str, str | Text]:
    return {
        "grant": grant.id,
        "name": name_of(grant),
        "user": grant.user,
        "policy": grant.policy.value,
        "age": age(grant.since),
        "pid": str(grant.processes[0]) if len(grant.processes) == 1 else "",
        "container": container_name,
        "program": program_of(grant),
        "row": "" if grant.row is None else _row(grant.row),
    }


def _row(row: RowView) -> str:
    """Say how much of each period a gang has, and whether it runs in it."""
    if not row.length:
        return "none free"
    row_text = f"{row.length:g} of {row.period:g} ms"
    row_text += ", runs" if row.runs else ""
    return row_text + (f", {row.intruded:.0f} ms of others" if row.intrusions else "")


def _number(share: Share) -> str:
    return UNKNOWN if share.number is None else str(share.number)


def _use(shares: tuple[Share, ...]) -> tuple[float, int]:
    core_percent = sum(share.core_used or 0 for share in shares)
    return core_percent, sum(share.memory_used or 0 for share in shares)


#: What grants can be sorted by, with the key of each; they come by device.
_ORDERS: tuple[tuple[str, Callable[[GrantView], tuple[float | str, ...]]], ...] = (
    ("device", lambda grant: ()),  # noqa: ARG005
    ("core", lambda grant: tuple(-part for part in _use(grant.shares))),
    ("memory", lambda grant: tuple(-part for part in _use(grant.shares)[::-1])),
    ("age", lambda grant: (grant.since, grant.id)),
)
