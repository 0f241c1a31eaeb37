"""The cards of a cluster: sums by model and pool first, then nodes, of which one can be opened."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from hetero.cli._bars import LEGEND, part_bar
from hetero.cli._machine import Picture, counted, draw_cards, flow, summary_line
from hetero.cli._render import (
    UNKNOWN,
    Cell,
    Flow,
    Part,
    Table,
    Text,
    condition_word,
    core_limit_of,
    free_memory,
    free_of,
    kept_by,
    model_of,
    percent,
    short,
    sick_first,
    table,
    troubles,
)
from hetero.kube.cluster_totals import ClusterTotals, PoolTotal, merged, plain_totals
from hetero.model import CORE, MEMORY, SLOTS, Whole
from hetero.model.errors import NotFound
from hetero.model.frozen import frozen
from hetero.model.names import did_you_mean
from hetero.model.units import GiB, rounded_memory
from hetero.node.view.chosen import Choice
from hetero.node.view.observe import DeviceView

if TYPE_CHECKING:
    from hetero.kube.cluster_objects import ClusterObjects
    from hetero.kube.cluster_view import ClusterView, ContainerView, MemberView

#: Nodes up to which all their cards are shown.
_MOST_UNSUMMED_NODES = 16
#: Lines of sums, and of cards that are not well: with what stands around them less than 60.
_MOST_SUMS, _MOST_SICK, _FEW_NOTES = 30, 12, 2
#: From these amounts on sums are shown in a larger unit.
_TIB_BYTES = 1024 * GiB


@frozen(kw_only=True)
class Fleet:
    """A cluster: its sums, and a view of its cards where they are few, or all are asked for.

    `node` is the node that is opened.
    """

    totals: ClusterTotals
    view: ClusterView | None = None
    node: str | None = None


def read_fleet(saved: Path | None, node: str | None, choice: Choice, *, full: bool) -> Fleet:
    """Return what is to be shown of the cluster of $KUBECONFIG, or of a saved one.

    `full`: with all cards of all nodes. Raises `HeteroError`.
    """
    objects = _objects(saved, node)
    by_cards = choice != Choice(vendor=choice.vendor, model=choice.model)
    in_sums = (
        not full and node is None and not by_cards and len(objects.nodes) > _MOST_UNSUMMED_NODES
    )
    if in_sums:
        return Fleet(totals=_chosen(_totals(objects), choice))
    from hetero.kube.cluster_view import totals_of, view_of

    view = _of(view_of(objects), choice)
    return Fleet(totals=totals_of(view), view=view, node=node)


def _totals(objects: ClusterObjects) -> ClusterTotals:
    """Return the sums of a cluster, by each card only where there is no quicker way."""
    totals, rest = plain_totals(objects)
    if rest is None:
        return totals
    from hetero.kube.cluster_view import totals_of, view_of

    return merged(totals, totals_of(view_of(rest)))


def read_view(saved: Path | None, node: str | None, choice: Choice) -> ClusterView:
    """Return all cards of a cluster, or of a node of it. Raises `HeteroError`."""
    from hetero.kube.cluster_view import view_of

    return _of(view_of(_objects(saved, node)), choice)


def _objects(saved: Path | None, node: str | None) -> ClusterObjects:
    if saved is None:
        from hetero.kube.cluster_view import objects_of

        return objects_of(node=node)
    from hetero.kube.cluster_objects import read_saved

    objects = read_saved(saved)
    return objects if node is None else objects.of_node(node)


def _chosen(totals: ClusterTotals, choice: Choice) -> ClusterTotals:
    """Return the sums of a vendor and model alone. Raises `NotFound` where there is none."""
    chosen = evolve(
        totals,
        totals=tuple(
            each
            for each in totals.totals
            if choice.allows_model(each.total.vendor, each.total.model)
        ),
        sick=tuple(card for card in totals.sick if choice.allows_model(card.vendor, card.model)),
    )
    if totals.totals and not chosen.totals:
        model_names = dict.fromkeys(
            f"{each.total.vendor} {each.total.model}" for each in totals.totals
        )
        asked = " ".join(filter(None, (choice.vendor, choice.model)))
        raise NotFound(
            f"no card of {asked!r} in this cluster (here: {', '.join(model_names)})"
            + did_you_mean(asked, model_names)
        )
    return chosen


def _of(view: ClusterView, choice: Choice) -> ClusterView:
    """Return a view of the chosen cards alone, and of who has some of them."""
    if choice.everything:
        return view
    chosen_uuids = {
        row.device.uuid for row in choice.of([row for node in view.nodes for row in node.devices])
    }
    members = (
        evolve(
            member,
            devices=tuple(row for row in member.devices if row.device.uuid in chosen_uuids),
        )
        for member in view.nodes
    )
    return evolve(
        view,
        nodes=tuple(member for member in members if member.devices),
        containers=tuple(
            with_shares
            for container in view.containers
            if (with_shares := _on(container, chosen_uuids)).shares
        ),
    )


def _on(container: ContainerView, uuids: Collection[str]) -> ContainerView:
    """Return what a container has of these cards alone."""
    shares = (
        share
        for share, piece in zip(container.shares, container.allocation.pieces, strict=True)
        if piece.device in uuids
    )
    return evolve(container, shares=tuple(shares))


# --- pictures ---------------------------------------------------------------------------------


def render_fleet(fleet: Fleet, *, wide: bool = False, folded: bool = False) -> Part:
    """Return the sums, and below them the cards where they are to be shown; or one node."""
    if fleet.view and fleet.node is not None:
        return _opened(fleet.view, fleet.node, wide=wide, folded=folded)
    parts = _sums(fleet.totals, folded=folded)
    if fleet.view:
        return [*parts, "", *_cards(fleet.view)]
    return [
        *parts,
        *_troubles(fleet.totals),
        Text("`--node NAME` shows a node, `--wide` all of them", "dim"),
    ]


def _sums(totals: ClusterTotals, *, folded: bool) -> list[Part]:
    sums_table = table(
        *("vendor", "model", "pool", "nodes", "cards", "whole", "not well", "cordoned"),
        *([" "] if folded else []),
        "core free",
        *([""] if folded else []),
        "memory free",
        right=("nodes", "cards", "whole", "not well", "cordoned", "core free", "memory free"),
        elides=("pool",),
        optional=("pool", "not well", "cordoned"),
        drops=(" ", "", "cordoned", "whole", "vendor", "nodes", "not well"),
    )
    for each in totals.totals[:_MOST_SUMS]:
        cells = _sums_cells(each)
        sums_table.add_row(*(cells[column] for column in sums_table.columns))
    parts: list[Part] = [_headline(totals), sums_table if sums_table.rows else "no devices"]
    rest = totals.totals[_MOST_SUMS:]
    if rest:
        cards = sum(each.total.device_count for each in rest)
        parts.append(f"and {counted(cards, 'card')} of {len(rest)} more models and pools")
    return [*parts, LEGEND] if folded and sums_table.rows else parts


def _troubles(totals: ClusterTotals) -> list[Part]:
    """Return the first cards of which nothing is given, and the first nodes."""
    sick_table = table(
        *("not well", "#", "vendor", "model", "health", "says"),
        right=("#",),
        elides=("not well", "says"),
        drops=("says", "vendor", "model"),
    )
    for card in totals.sick[:_MOST_SICK]:
        sick_table.add_row(
            *(Text(card.node, "red"), str(card.device_number), card.vendor, card.model),
            *(Text(card.ailment, "bold red"), card.health),
        )
    more = len(totals.sick) - _MOST_SICK
    return [
        *(("", sick_table) if totals.sick else ()),
        *((Text(f"and {more} more: --health sick", "red"),) if more > 0 else ()),
        *(Text(fault, "red") for fault in totals.faults[:_FEW_NOTES]),
        *(Text(note, "yellow") for note in totals.notes[:_FEW_NOTES]),
    ]


def _headline(totals: ClusterTotals) -> Flow:
    sums = [each.total for each in totals.totals]
    card_count = sum(t.device_count for t in sums)
    core_free_percent, core_percent = (
        sum(t.core_free_percent for t in sums),
        sum(t.core_percent for t in sums),
    )
    words = (
        f"{counted(totals.nodes, 'node')} with {counted(card_count, 'card')}",
        Text(f"{len(totals.sick)} not well" if totals.sick else "", "bold red"),
        f"{counted(sum(t.whole_count for t in sums), 'card')} whole",
        f"free {_share(core_free_percent, core_percent)} of core, "
        f"{_large(sum(t.memory_free_bytes for t in sums), sum(t.memory_bytes for t in sums))}",
        f"{totals.pods} pods and claims hold some",
    )
    return flow(words)


def _sums_cells(pool_total: PoolTotal) -> dict[str, str | Cell]:
    sums = pool_total.total
    granted_core = 1 - sums.core_free_percent / sums.core_percent if sums.core_percent else 0
    granted_memory = 1 - sums.memory_free_bytes / sums.memory_bytes if sums.memory_bytes else 0
    return {
        "vendor": sums.vendor,
        "model": sums.model,
        "pool": pool_total.pool or "",
        "nodes": str(pool_total.nodes),
        "cards": str(sums.device_count),
        "whole": str(sums.whole_count),
        "not well": Text(str(sums.sick_count) if sums.sick_count else "", "bold red"),
        "cordoned": Text(str(sums.cordoned_count) if sums.cordoned_count else "", "yellow"),
        " ": part_bar(granted_core),
        "core free": _share(sums.core_free_percent, sums.core_percent),
        "": part_bar(granted_memory),
        "memory free": _large(sums.memory_free_bytes, sums.memory_bytes),
    }


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else UNKNOWN


def _large(part_bytes: int, whole_bytes: int) -> str:
    """Return bytes of a sum in TiB where they are many, both rounded down."""
    if whole_bytes < 10 * _TIB_BYTES:
        return free_of(part_bytes, whole_bytes)
    return f"{_tebibytes(part_bytes)} of {_tebibytes(whole_bytes)} TiB"


def _tebibytes(size_bytes: int) -> str:
    """Return bytes in TiB, with a decimal below a thousand."""
    tenths = size_bytes * 10 // _TIB_BYTES
    return f"{tenths / 10:.1f}" if tenths < 10_000 else str(tenths // 10)


def _cards(view: ClusterView) -> list[Part]:
    """Return the tables of all cards, and of who has some of them."""
    devices_table = _devices("node")
    for node in view.nodes:
        for row in sick_first(node.devices):
            devices_table.add_row(node.name, *_cells(row))
    parts: list[Part] = [devices_table if devices_table.rows else "no devices"]
    parts += [line for node in view.nodes for line in troubles(node.devices, node=node.name)]
    parts += [Text(node.inventory_error, "red") for node in view.nodes if node.inventory_error]
    parts += [Text(note, "yellow") for note in view.notes]
    if not view.containers:
        return parts
    containers_table = table(
        "namespace", "claim", "pod", "container", "node", "card", "core", "memory", "phase",
        elides=("claim", "pod", "container"),
        optional=("claim",),
        right=("core", "memory"),
        drops=("phase", "container", "namespace", "node", "claim"),
    )  # fmt: skip
    for container in view.containers:
        for share in container.shares:
            containers_table.add_row(
                *(container.namespace, container.claim or "", container.pod_name),
                *(container.container_name, container.node),
                share.card or UNKNOWN,
                core_limit_of(share),
                rounded_memory(share.memory_bytes),
                container.phase,
            )
    return [*parts, "", containers_table]


def _devices(*first_columns: str) -> Table:
    return table(
        *first_columns,
        *("card", "model", "free core", "free memory", "slots", "kept by", "health"),
        "uuid",
        right=("free core", "free memory", "slots"),
        elides=("health",),
        drops=("uuid", "slots", "kept by", "model", "health"),
    )


def _cells(row: DeviceView) -> tuple[str | Text, ...]:
    device = row.device
    is_whole = isinstance(device.granularity, Whole) and not row.grants
    free_core = "whole only" if is_whole else percent(row.free[CORE], device)
    return (
        device.name,
        model_of(device),
        free_core if device.usable else UNKNOWN,
        free_memory(row.free[MEMORY], device) if device.usable else UNKNOWN,
        f"{row.held[SLOTS]}/{device.capacity[SLOTS]}",
        kept_by(device.enforcement),
        condition_word(device),
        short(device.uuid),
    )


# --- one node ---------------------------------------------------------------------------------

_HOLDER_COLUMNS = ("namespace", "claim", "pod", "container", "core", "memory", "phase")


def _opened(view: ClusterView, node_name: str, *, wide: bool, folded: bool) -> Part:
    """Return the picture of a node, as of a machine, with pods and claims below their cards."""
    parts: list[Part] = []
    for member in view.nodes:
        parts.append(summary_line(member.name, member.devices, len(view.containers)))
        picture = Picture(
            folded=folded,
            wide=wide,
            index_by_uuid={row.device.uuid: row.device.index for row in member.devices},
        )
        parts.append(draw_cards(member.devices, *_tree(member, view.containers), picture))
        parts += [Text(member.inventory_error, "red")] if member.inventory_error else []
    if not parts:
        parts.append(f"node {node_name} has no cards")
    elif folded:
        parts.append(LEGEND)
    return [*parts, *(Text(note, "yellow") for note in view.notes)]


def _tree(
    member: MemberView, containers: Sequence[ContainerView]
) -> tuple[Table, dict[int, list[tuple[str, ...]]]]:
    """Return the table of who holds what below each card, and its rows by the card's number."""
    holders_table = table(
        *("", *_HOLDER_COLUMNS),
        right=("core", "memory"),
        elides=("claim", "pod", "container"),
        optional=("claim",),
        drops=("phase", "container", "namespace"),
    )
    rows: dict[int, list[tuple[str, ...]]] = {row.device_number: [] for row in member.devices}
    for container in containers:
        for share in container.shares:
            if share.device_number in rows:
                rows[share.device_number].append(
                    (
                        *(container.namespace, container.claim or "", container.pod_name),
                        *(container.container_name, core_limit_of(share)),
                        *(rounded_memory(share.memory_bytes), container.phase),
                    )
                )
    return holders_table, rows
