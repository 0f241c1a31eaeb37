"""hetero describe: all that is known of one card."""

from __future__ import annotations

from collections.abc import Iterator

import click

from hetero.cli import _json
from hetero.cli._bars import core_bar, memory_bar
from hetero.cli._grants import holdings, name_of, queue_lines
from hetero.cli._machine import card_ranges
from hetero.cli._render import (
    UNKNOWN,
    Cell,
    Part,
    Text,
    condition_of,
    foreign_line,
    free_of,
    granularity_of,
    heading,
    kept_by,
    model_of,
    own_units,
    percent,
    table,
)
from hetero.cli._show import json_option, show, wide_option
from hetero.model import CORE, MEMORY, SLOTS, Device
from hetero.model.units import format_memory, format_percent, rounded_memory
from hetero.node.node import Node
from hetero.node.view.observe import DeviceView, GrantView
from hetero.node.view.one_card import CardView, describe_card

#: The attributes that are bytes.
_SIZES = frozenset({"reserved", "context"})


@click.command()
@click.argument("device", metavar="CARD")
@wide_option
@json_option
def command(device: str, *, wide: bool, as_json: bool) -> None:
    """Show all that is known of a card.

    CARD is its name in `hetero inventory`, its vendor and its driver's index
    (VENDOR:INDEX); its number there in JSON; or the start of its UUID.

    \b
      hetero describe acme:3
      hetero describe E0F4EE64 --json
    """
    node = Node.here()
    show(
        lambda: describe_card(node, device),
        lambda view: render(view, wide=wide),
        _json.card,
        as_json=as_json,
        wide=wide,
    )


def render(view: CardView, *, wide: bool = False) -> Part:
    """Return what is known of a card, one fact below the other, and tables of what it is cut into.

    Grants, processes and what others use of it are tables, too.
    """
    row = view.card
    title = model_of(row.device)
    facts = table(row.device.name, title, folds=(title,))
    for name, fact in _facts(view):
        facts.add_row(name, fact)
    parts: list[Part] = [*heading(view.rack_file), facts]
    parts += _templates(row, view.grants)
    if view.grants:
        parts += ["", holdings(view.grants, wide=wide)]
    parts += _processes(row, view.grants)
    if row.foreign and row.foreign.memory:
        parts += ["", foreign_line(row.device.name, row.foreign)]
    parts += queue_lines(view.queue)
    return parts


def _facts(view: CardView) -> Iterator[tuple[str, str | Cell]]:
    """Yield the names and texts of all that is known."""
    row = view.card
    device = row.device
    yield "health", condition_of(device)
    if view.fault_since is not None:
        yield "fault noted", f"{view.fault_since} (hetero health)"
    yield from _identity(device, row.device_number)
    yield "granularity", granularity_of(device)
    yield "kept by", kept_by(device.enforcement)
    yield from _amounts(row)
    if row.usage.temperature is not None:
        yield "temperature", f"{row.usage.temperature} °C"
    if row.usage.power is not None:
        limit_watts = row.usage.power_limit
        limit_text = "" if limit_watts is None else f" of {limit_watts:.0f} W"
        yield "power", f"{row.usage.power:.0f} W{limit_text}"
    peers_by_kind: dict[str, list[DeviceView]] = {}
    for link in view.connections:
        if link.kind is not None:
            peers_by_kind.setdefault(link.kind, []).append(view.peers[link.number])
    for kind, peers in peers_by_kind.items():
        yield f"link {kind}", f"to {card_ranges(peers)}"
    yield from view.settings.items()


def _identity(device: Device, number: int) -> Iterator[tuple[str, str]]:
    yield "uuid", device.uuid
    yield "model", device.model
    yield "number", str(number)
    yield "NUMA node", UNKNOWN if device.numa is None else str(device.numa)
    yield "PCI", device.pci or UNKNOWN
    if device.group is not None:
        yield "group", device.group
    for name, attribute in sorted(device.attributes.items()):
        is_size = name in _SIZES and attribute.isdecimal()
        yield name, format_memory(int(attribute)) if is_size else attribute


def _amounts(row: DeviceView) -> Iterator[tuple[str, str | Cell]]:
    """Yield what it has of each counter, and what is granted and in use of it."""
    device, usage = row.device, row.usage
    busy_text = UNKNOWN if usage.core is None else f"{100 * usage.core:.0f} %"
    core_units = device.of_card(CORE)
    given_text = percent(row.held[CORE], device) + own_units(row.held[CORE], core_units)
    yield "core", (*core_bar(row), Text(f"  {given_text} granted, {busy_text} busy"))
    yield "memory", (*memory_bar(row), Text(f"  {_memory(row)}"))
    yield "slots", f"{row.held[SLOTS]} of {device.capacity[SLOTS]}"
    shown = {CORE, MEMORY, SLOTS, *(template.part for template in row.templates)}
    for counter, total in device.capacity.items():
        if counter not in shown:
            yield counter, f"{row.held[counter]} of {total}"


def _memory(row: DeviceView) -> str:
    device, usage = row.device, row.usage
    used_text = UNKNOWN if usage.memory is None else rounded_memory(usage.memory)
    own_bytes = device.of_card(MEMORY)
    card_text = f", {format_memory(own_bytes)} on the card" if device.card else ""
    reserved_text = (
        f", {rounded_memory(device.reserved_bytes)} kept by its driver"
        if device.reserved_bytes
        else ""
    )
    context_text = (
        f", {rounded_memory(device.context_bytes)} for each context" if device.context_bytes else ""
    )
    if device.context_is_declared:
        context_text += " as declared, not measured"
    return (
        f"{free_of(row.free[MEMORY], device.capacity[MEMORY])} free, "
        f"{rounded_memory(row.held[MEMORY])} granted, {used_text} used{card_text}"
        f"{reserved_text}{context_text}"
    )


def _templates(row: DeviceView, grants: tuple[GrantView, ...]) -> list[Part]:
    """Return the table of what it can be cut into, or is."""
    if not row.templates:
        return []
    names = {grant.id: name_of(grant) or grant.id for grant in grants}
    templates_table = table(
        *("template", "core", "memory", "free", "held by", "part"),
        right=("core", "memory", "free"),
        optional=("part",),
        drops=("part",),
    )
    for template in row.templates:
        templates_table.add_row(
            template.name,
            format_percent(template.core),
            rounded_memory(template.memory),
            str(template.free),
            ", ".join(names.get(grant_id, grant_id) for grant_id in template.grants),
            template.part or "",
        )
    return ["", templates_table]


def _processes(row: DeviceView, grants: tuple[GrantView, ...]) -> list[Part]:
    """Return the table of the processes that the driver counts on it, the largest first."""
    if not row.usage.processes:
        return []
    grant_by_pid = {pid: grant.id for grant in grants for pid in grant.processes}
    processes_table = table(
        *("pid", "memory", "busy", "grant"), right=("pid", "memory", "busy"), optional=("busy",)
    )
    busy_by_pid = row.usage.busy or {}
    for pid, size_bytes in sorted(row.usage.processes.items(), key=lambda each: -each[1]):
        busy_text = f"{100 * busy_by_pid[pid]:.0f} %" if pid in busy_by_pid else ""
        grant_cell = Text(grant_by_pid.get(pid, "none"), "" if pid in grant_by_pid else "yellow")
        processes_table.add_row(str(pid), rounded_memory(size_bytes), busy_text, grant_cell)
    return ["", processes_table]
