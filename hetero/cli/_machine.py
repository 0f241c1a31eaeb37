"""The picture of a machine: its cards by NUMA node and driver, and below each who has some of it.

`inventory` draws it, of this machine and of a node of a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from attrs import field

from hetero.cli._bars import core_bar, memory_bar
from hetero.cli._render import (
    UNKNOWN,
    Cell,
    Flow,
    Outline,
    Part,
    Table,
    Text,
    condition_word,
    foreign_memory,
    free_memory,
    free_of,
    granularity_of,
    kept_by,
    model_of,
    own_units,
    percent,
    short,
    table,
)
from hetero.model import CORE, MEMORY, SLOTS, Device
from hetero.model.frozen import frozen
from hetero.model.units import rounded_memory
from hetero.node.view.observe import DeviceView
from hetero.node.view.templates import TemplateView
from hetero.node.view.topology import PCIE_WEIGHT
from hetero.node.view.totals import Total, total, totals

#: From how many idle cards on that are alike one line says so.
_LEAST_ALIKE_CARDS = 3
#: Columns by which what belongs to a card stands behind its number.
_INDENT = "   "


def _card_table(picture: Picture) -> Table:
    core_bars, memory_bars = ((" ",), ("",)) if picture.folded else ((), ())
    return table(
        *("card", "model", "granularity", *core_bars, "core given", "busy", *memory_bars),
        *("memory free", "given", "used", "others", "slots", "temp", "power", "links"),
        *("kept by", "health", "uuid"),
        right=(
            *("core given", "busy", "memory free", "given", "used", "others", "slots"),
            *("temp", "power"),
        ),
        elides=("health",),
        optional=("others", "used", "busy", "temp", "power", "links"),
        drops=()
        if picture.wide
        else (
            *("uuid", "links", "slots", "given", "granularity", "used", "power", "kept by"),
            *("temp", " ", "", "busy", "others", "model", "health"),
        ),
    )


@frozen(kw_only=True)
class Picture:
    """How cards are drawn.

    `folded`: with bars, and with one line for idle cards that are alike. `wide`: with every column.
    `index_by_uuid` are the cards' by their drivers, `name_by_grant` is what grants are called.
    """

    folded: bool = False
    wide: bool = False
    index_by_uuid: Mapping[str, int] = field(factory=dict)
    name_by_grant: Mapping[str, str] = field(factory=dict)


def draw_cards(
    rows: Sequence[DeviceView],
    holders: Table,
    holder_rows: Mapping[int, Sequence[Sequence[str | Cell]]],
    picture: Picture,
) -> Outline:
    """Return the cards by NUMA node and driver, those first that are not well.

    `holder_rows` are the rows of the table `holders` by the card's number, without the first
    column, which has the branch.
    """
    outline = Outline(_card_table(picture), holders)
    sick_rows = [row for row in rows if not row.device.healthy]
    if sick_rows:
        outline.add_line(Text("not well: nothing is given of these", "bold red"))
    for row in sick_rows:
        _add_card(outline, row, holder_rows.get(row.device_number, ()), picture)
    well_rows = sorted((row for row in rows if row.device.healthy), key=_place)
    for block_name, block_rows in groupby(well_rows, key=_block):
        outline.add_line(Text(block_name, "bold cyan"))
        for group in _alike([*block_rows], fold=picture.folded and not picture.wide):
            if len(group) == 1:
                _add_card(outline, group[0], holder_rows.get(group[0].device_number, ()), picture)
            else:
                outline.add_line(_idle_line(group))
    return outline


def _place(row: DeviceView) -> tuple[int, str, str, int]:
    device = row.device
    return (
        -1 if device.numa is None else device.numa,
        device.vendor,
        _driver(device),
        row.device_number,
    )


def _block(row: DeviceView) -> str:
    device = row.device
    numa_text = "" if device.numa is None else f"NUMA {device.numa}  "
    return f"{numa_text}{device.vendor} {_driver(device)}".rstrip()


def _driver(device: Device) -> str:
    return device.attributes.get("driver") or ""


def _alike(rows: Sequence[DeviceView], *, fold: bool) -> Iterator[list[DeviceView]]:
    """Yield the rows in their order, idle ones that are alike together at the first's place."""
    keys = [_likeness(row) if fold and row.idle else None for row in rows]
    for position, (row, key) in enumerate(zip(rows, keys, strict=True)):
        group = [other for other, other_key in zip(rows, keys, strict=True) if other_key == key]
        if key is None or len(group) < _LEAST_ALIKE_CARDS:
            yield [row]
        elif key not in keys[:position]:
            yield group


def _likeness(row: DeviceView) -> object:
    """Return what idle cards that are alike have in common."""
    device = row.device
    amounts = tuple(sorted(device.capacity.items()))
    return device.short_model, device.enforcement, device.condition, amounts


def _idle_line(rows: Sequence[DeviceView]) -> Text:
    """Return what is so of idle cards that are alike."""
    device = rows[0].device
    temperatures = [row.usage.temperature for row in rows if row.usage.temperature is not None]
    heat_text = f"   {_range(temperatures)} °C" if temperatures else ""
    memory_text = free_memory(device.capacity[MEMORY], device)
    return Text(
        f"{len(rows)} idle: {card_ranges(rows)}   {model_of(device)}   "
        f"{granularity_of(device)}   {memory_text} each{heat_text}   "
        f"{kept_by(device.enforcement).text}   {condition_word(device).text}",
        "dim",
    )


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}–{high}"


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers in their order, three or more that follow each other as `3–7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(
        f"{run[0]}–{run[-1]}" if len(run) > 2 else " ".join(map(str, run)) for run in runs
    )


def card_ranges(rows: Iterable[DeviceView]) -> str:
    """Return the names of cards, those of a vendor together: `acme:0 2–5, zephyr:1`."""
    indices_by_vendor: dict[str, list[int]] = {}
    for row in rows:
        indices_by_vendor.setdefault(row.device.vendor, []).append(row.device.index)
    return ", ".join(f"{vendor}:{ranges(indices)}" for vendor, indices in indices_by_vendor.items())


def _add_card(
    outline: Outline,
    row: DeviceView,
    holder_rows: Sequence[Sequence[str | Cell]],
    picture: Picture,
) -> None:
    """Add a card, what is wrong with it, what it is cut into, and who has some of it."""
    cells = _cells(row, picture)
    outline.add_row(*(cells[column] for column in outline.outer.columns))
    if not row.device.healthy:
        sentence = f"{row.device.name}: {row.device.health}: nothing is given of it"
        outline.add_line(Text(_INDENT + sentence, "red"))
    if templates_line := _templates_line(row, picture.name_by_grant):
        outline.add_line(Text(_INDENT + templates_line))
    for position, holder_cells in enumerate(holder_rows, 1):
        branch = "├" if position < len(holder_rows) else "└"
        outline.add_below(_INDENT + branch, *holder_cells)


def _cells(row: DeviceView, picture: Picture) -> dict[str, str | Cell]:
    device, usage = row.device, row.usage
    style = "" if device.healthy else "red"
    memory_bytes = device.capacity[MEMORY]
    return {
        "card": Text(device.name, style),
        "model": Text(model_of(device), style),
        "granularity": granularity_of(device),
        " ": core_bar(row) if device.healthy else Text(),
        "core given": _core_given(row, wide=picture.wide),
        # As wide as the most, so that no column goes when a card becomes busy.
        "busy": "" if usage.core is None else f"{100 * usage.core:.0f} %".rjust(5),
        "": memory_bar(row) if device.healthy and memory_bytes else Text(),
        "memory free": free_memory(row.free[MEMORY], device) if device.usable else UNKNOWN,
        "given": _amount(row.held[MEMORY]),
        "used": "" if usage.memory is None else _amount(usage.memory),
        "others": foreign_memory(row.foreign),
        "slots": f"{row.held[SLOTS]}/{device.capacity[SLOTS]}",
        "temp": "" if usage.temperature is None else f"{usage.temperature} °C",
        "power": _power(usage.power, usage.power_limit),
        "links": links_of(device, picture.index_by_uuid),
        "kept by": kept_by(device.enforcement),
        "health": condition_word(device),
        "uuid": device.uuid if picture.wide else short(device.uuid),
    }


def _core_given(row: DeviceView, *, wide: bool) -> str:
    """Return the core that is granted, in the device's own units, too, where it is wide."""
    device, units = row.device, row.held[CORE]
    if not device.healthy and not row.grants:
        return UNKNOWN
    given_text = percent(units, device)
    if wide:
        given_text += own_units(units, device.of_card(CORE))
    if row.open:
        return f"{given_text}, open" if units else "open"
    return given_text


def _amount(size_bytes: int) -> str:
    return rounded_memory(size_bytes) if size_bytes else "0"


def _power(watts: float | None, limit_watts: float | None) -> str:
    if watts is None:
        return ""
    return f"{watts:.0f} W" if limit_watts is None else f"{watts:.0f}/{limit_watts:.0f} W"


def links_of(device: Device, index_by_uuid: Mapping[str, int]) -> str:
    """Return the cards of its vendor that a card has the vendor's own links to: `NV18 1–7`."""
    indices_by_kind: dict[str, list[int]] = {}
    for link in device.links:
        if link.weight > PCIE_WEIGHT and link.peer in index_by_uuid:
            indices_by_kind.setdefault(link.kind, []).append(index_by_uuid[link.peer])
    return ", ".join(f"{kind} {ranges(indices)}" for kind, indices in indices_by_kind.items())


def _templates_line(row: DeviceView, name_by_grant: Mapping[str, str]) -> str:
    """Return which partitions of a card are taken, or what of its menu is, and what is left."""
    partitions = [template for template in row.templates if template.part]
    if partitions:
        unheld_word = "free" if row.device.usable else _unusable_word(row.device)
        return "partitions: " + "  ".join(
            f"{template.name} [{_holders_of(template, name_by_grant) or unheld_word}]"
            for template in partitions
        )
    if not row.grants:
        return ""
    left = [f"{template.free} × {template.name}" for template in row.templates if template.free]
    return f"left: {' or '.join(left)}" if left else ""


def _unusable_word(device: Device) -> str:
    return device.ailment or "cordoned"


def _holders_of(template: TemplateView, name_by_grant: Mapping[str, str]) -> str:
    return ", ".join(name_by_grant.get(grant_id) or grant_id for grant_id in template.grants)


# --- sums -------------------------------------------------------------------------------------


def summary_line(name: str, rows: Sequence[DeviceView], grant_count: int) -> Flow:
    """Return what a machine has, and what is left of it."""
    sums = total(rows)
    vendor_count = len({row.device.vendor for row in rows})
    foreign_count = sum(len(row.foreign.processes) for row in rows if row.foreign)
    words: list[str | Text] = [
        f"{name}: {counted(sums.device_count, 'card')} of {counted(vendor_count, 'vendor')}",
        Text(f"{sums.sick_count} not well" if sums.sick_count else "", "bold red"),
        f"{sums.cordoned_count} cordoned" if sums.cordoned_count else "",
        f"free {_left(sums)}",
        counted(grant_count, "grant"),
        f"{counted(foreign_count, 'program')} without a grant" if foreign_count else "",
    ]
    return flow(words)


def flow(words: Iterable[str | Text]) -> Flow:
    """Return the words that are not empty beside each other, bold."""
    texts = (Text(word, "bold") if isinstance(word, str) else word for word in words)
    return Flow(tuple(each for each in texts if each.text))


def _left(sums: Total) -> str:
    memory_text = free_of(sums.memory_free_bytes, sums.memory_bytes)
    return f"{sums.core_free_percent:.0f} of {sums.core_percent:.0f} % core, {memory_text}"


def counted(count: int, noun: str) -> str:
    """Return `1 card`, `2 cards`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def totals_table(rows: Sequence[DeviceView]) -> list[Part]:
    """Return the sums by vendor and model, nothing where there is one model."""
    sums_table = table(
        *("vendor", "model", "cards", "whole", "not well", "cordoned", "core free", "memory free"),
        *("given", "used", "others"),
        right=(
            *("cards", "whole", "not well", "cordoned", "core free", "memory free", "given"),
            *("used", "others"),
        ),
        optional=("not well", "cordoned", "others"),
        drops=("used", "given", "whole", "others", "vendor", "cordoned", "core free"),
    )  # fmt: skip
    for sums in totals(rows):
        sums_table.add_row(*_sums_cells(sums))
    return ["", sums_table] if len(sums_table.rows) > 1 else []


def _sums_cells(sums: Total) -> tuple[str | Cell, ...]:
    return (
        sums.vendor,
        sums.model,
        str(sums.device_count),
        str(sums.whole_count),
        Text(str(sums.sick_count) if sums.sick_count else "", "bold red"),
        Text(str(sums.cordoned_count) if sums.cordoned_count else "", "yellow"),
        f"{sums.core_free_percent:.0f} of {sums.core_percent:.0f} %",
        free_of(sums.memory_free_bytes, sums.memory_bytes),
        _amount(sums.memory_held_bytes),
        _amount(sums.memory_used_bytes),
        Text(_amount(sums.memory_foreign_bytes) if sums.memory_foreign_bytes else "", "yellow"),
    )
