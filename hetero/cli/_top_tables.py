"""The tables of `hetero top`: how busy devices are, and what grants and processes use of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from hetero.cli._bars import spark
from hetero.cli._grants import (
    container_of,
    name_of,
    note_of,
    program_of,
    queue_lines,
    share_memory,
)
from hetero.cli._machine import card_ranges
from hetero.cli._render import (
    UNKNOWN,
    Memory,
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
from hetero.model import CORE, MEMORY
from hetero.model.units import format_memory
from hetero.node.view.history import History
from hetero.node.view.observe import DeviceView, GrantView, NodeView, RowView, Share

if TYPE_CHECKING:
    from hetero.kube.cluster_view import ClusterView

_BAR_COLUMNS = 10


def render(view: NodeView, *, wide: bool = False, filters: str = "") -> Part:
    """Return the tables of a moment; `filters` are those by which the view was chosen."""
    filter_lines = [Text(f"only {filters}", "yellow")] if filters else []
    return [*heading(view.rack_file), *filter_lines, *tables(view, fold_idle=False, wide=wide)]


def tables(
    view: NodeView,
    *,
    fold_idle: bool,
    wide: bool = False,
    history: History | None = None,
    memories: Mapping[str, Memory] = MappingProxyType({}),
) -> list[Part]:
    idle_rows = [row for row in view.devices if fold_idle and row.idle]
    devices = _devices(past=history is not None)
    devices.memory = memories.get("devices")
    rows = sick_first(view.devices)
    for row in rows:
        if len(idle_rows) < 2 or row not in idle_rows:
            past = () if history is None else (spark(history.of_device(row)),)
            devices.add_row(*_cells(row, wide=wide), *past)
    parts: list[Part] = [devices] if devices.rows else []
    if len(idle_rows) > 1:
        cards_text = card_ranges(idle_rows)
        models = ", ".join(dict.fromkeys(model_of(row.device) for row in idle_rows))
        parts.append(f"{cards_text}: idle {models} (e: one by one)")
    if not view.devices:
        parts.append("no devices")
    parts += troubles(rows)
    parts += queue_lines(view.queue)
    parts += [
        Text(f"grant {unreadable_grant.id}: {unreadable_grant.reason}", "red")
        for unreadable_grant in view.unreadable
    ]
    if not view.grants:
        return [*parts, "", "no grants stand"]
    grants_table = _grants(view.grants, wide=wide, history=history)
    grants_table.memory = memories.get("grants")
    return [*parts, "", grants_table]


def render_cluster(view: ClusterView) -> Part:
    """Return the tables of a cluster's moment, the busiest containers first."""
    devices_table = _devices("node")
    for node in view.nodes:
        for row in sick_first(node.devices):
            devices_table.add_row(node.name, *_cells(row))
    containers_table = table(
        *("namespace", "claim", "pod", "container", "node"),
        *("card", "core used", "memory used", "kept by", "phase"),
        elides=("claim", "pod", "container"),
        optional=("claim",),
        right=("core used", "memory used"),
        drops=("kept by", "phase", "container", "namespace", "node", "claim"),
    )  # fmt: skip
    for container in sorted(
        view.containers, key=lambda container: use_of(container.shares), reverse=True
    ):
        for share in container.shares:
            containers_table.add_row(
                *(container.namespace, container.claim or "", container.pod_name),
                *(container.container_name, container.node),
                share.card or UNKNOWN,
                core_of(share),
                memory_of(share.memory_used_bytes, share.memory_bytes),
                kept_by(share.enforcement),
                container.phase,
            )
    error_texts = (
        f"node {node.name}: {error_text}"
        for node in view.nodes
        for error_text in (node.inventory_error, node.metrics_error)
        if error_text
    )
    return [
        devices_table if devices_table.rows else "no devices",
        *(Text(error_text, "red") for error_text in error_texts),
        *(Text(note, "yellow") for note in view.notes),
        "",
        containers_table if containers_table.rows else "no pod holds any",
    ]


def _devices(*first_columns: str, past: bool = False) -> Table:
    return table(
        *first_columns,
        *("card", "model", "busy", "", "memory used", " ", "others", "given"),
        *("temp", "power", "health", *(("history",) if past else ())),
        optional=("others", "temp", "power"),
        right=("busy", "memory used", "others", "given", "temp", "power"),
        elides=("health",),
        drops=(" ", "", "history", "power", "temp", "given", "model", "others", "health"),
    )


def _cells(row: DeviceView, *, wide: bool = False) -> tuple[str | Text, ...]:
    usage, device = row.usage, row.device
    busy_part, memory_bytes = usage.core, device.capacity[MEMORY]
    core_text = percent(row.held[CORE], device)
    if wide:
        core_text += own_units(row.held[CORE], device.of_card(CORE))
    return (
        device.name,
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
    eighths = round(min(max(fraction, 0.0), 1.0) * _BAR_COLUMNS * 8)
    full_columns, rest_eighths = divmod(eighths, 8)
    bar = "█" * full_columns + (" ▏▎▍▌▋▊▉"[rest_eighths] if rest_eighths else "")
    return Text(bar.ljust(_BAR_COLUMNS, "·"), "red" if fraction > 0.9 else "green")


def _grants(grants: Sequence[GrantView], *, wide: bool, history: History | None = None) -> Table:
    """Return the table of grants, each with its containers and processes."""
    grants_table = table(
        *("card", "grant", "name", "user", "core used", "history", "memory used", " "),
        *("stopped", "borrowed", "lent", "row", "excess", "note", "policy", "kept by", "age"),
        *("pid", "container", "program"),
        right=(
            *("core used", "memory used", "stopped", "borrowed", "lent", "excess", "age"),
            "pid",
        ),
        elides=("name", "container", "program"),
        optional=(
            *("name", "history", "stopped", "borrowed", "lent", "row", "excess", "note"),
            "container",
        ),
        drops=(
            *(" ", "history", "kept by", "age", "container", "policy", "user", "program", "pid"),
            *("lent", "borrowed", "row", "stopped", "note", "excess", "name"),
        ),
    )
    for grant in grants:
        rows = _rows_of(grant, wide=wide)
        if history is not None:
            rows[0]["history"] = spark(history.of_grant(grant))
        for row in rows:
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
        memory_part = (
            None
            if share.memory_used_bytes is None
            else share.memory_used_bytes / share.memory_bytes
        )
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
            {
                **process_cells,
                "card": share.card or UNKNOWN,
                "memory used": format_memory(memory_bytes),
            }
            for share, memory_bytes in zip(grant.shares, process.memory_bytes, strict=False)
            if memory_bytes
        ]
        rows += device_rows or [{**process_cells, "memory used": UNKNOWN}]
    return rows


def _of_share(share: Share, *, wide: bool) -> dict[str, str | Text]:
    return {
        "card": share.card or UNKNOWN,
        "core used": core_of(share, wide=wide),
        "memory used": share_memory(share),
        "stopped": f"{share.core_stopped_ms_per_s:.0f} ms/s" if share.core_stopped_ms_per_s else "",
        "borrowed": _points(share.core_borrowed_percent),
        "lent": _points(share.core_lent_percent),
        "excess": _excess(share),
        "kept by": kept_by(share.enforcement),
    }


def _points(fraction: float | None) -> str:
    """Say a part of the card, if there is half a percent of it."""
    return f"{fraction:.0f} %" if fraction and fraction >= 0.5 else ""


def _excess(share: Share) -> Text:
    """Say what is used past the limiter: time of the card, and memory."""
    excess_texts = [_points(share.core_excess_percent)]
    if share.excess and share.excess.is_told:
        excess_texts.append(format_memory(share.excess.memory))
    return Text(" ".join(filter(None, excess_texts)), "red")


def _of_grant(grant: GrantView, container_name: str) -> dict[str, str | Text]:
    return {
        "grant": grant.id,
        "name": name_of(grant),
        "user": grant.user,
        "policy": grant.policy.value,
        "age": age(grant.since_utc),
        "pid": str(grant.processes[0]) if len(grant.processes) == 1 else "",
        "container": container_name,
        "program": program_of(grant),
        "row": "" if grant.row is None else _row(grant.row),
    }


def _row(row: RowView) -> str:
    """Say how much of each period a gang has, and whether it runs in it."""
    if not row.length_ms:
        return "none free"
    row_text = f"{row.length_ms:g} of {row.period_ms:g} ms"
    row_text += ", runs" if row.runs else ""
    return row_text + (f", {row.intruded_ms:.0f} ms of others" if row.intrusion_count else "")


def use_of(shares: tuple[Share, ...]) -> tuple[float, int]:
    core_percent = sum(share.core_used_percent or 0 for share in shares)
    return core_percent, sum(share.memory_used_bytes or 0 for share in shares)
