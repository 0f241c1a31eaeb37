"""What commands show: values as texts and tables, which `_draw` draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, TypeAlias

from attrs import define, field

from hetero.model import (
    CORE,
    MEMORY,
    Device,
    Enforcement,
    Fractional,
    Grain,
    Ladder,
    Step,
    Templated,
    Whole,
)
from hetero.model.frozen import frozen
from hetero.model.units import GiB, MiB, format_memory, format_percent, rounded_memory

if TYPE_CHECKING:
    from hetero.node.foreign import ForeignUse
    from hetero.node.view.observe import DeviceView, Share

#: What stands where nothing is known; never a zero.
UNKNOWN = "–"
_COLOUR_BY_STATE = {"ok": "green"} | dict.fromkeys(
    ("note", "absent", "partial", "untrusted"), "yellow"
)
_WORD_BY_ENFORCEMENT = {
    Enforcement.PRELOAD: "limiter",
    Enforcement.VARIABLE: "variable !",
    Enforcement.NONE: "nothing !",
}


@frozen
class Text:
    """A text of any origin, not escaped yet, in one of rich's styles."""

    text: str = ""
    style: str = ""


#: What stands in one cell: a text, or pieces of it in styles of their own.
Cell: TypeAlias = "Text | tuple[Text, ...]"


@define(eq=False, repr=False)
class Memory:
    """What earlier frames showed of a table: its columns stay, those that went, too.

    A width never becomes less. It is of one size of a window.
    """

    widths: dict[str, int] = field(factory=dict)
    gone: set[str] = field(factory=set)


@define(eq=False, repr=False)
class Table:
    """Rows under named columns, of which some are dropped where not all fit: none is cut.

    `right` hold numbers. `folds` hold sentences, which go on in the next line where somebody looks
    on. `elides` hold words of any length, which end in `…` where they must. `optional` columns are
    left out where no row says anything. With a `memory`, frames that follow each other have the
    same columns. `drops` are the columns that go when it gets narrow, the
    first one first.
    """

    columns: tuple[str, ...]
    folds: tuple[str, ...] = ()
    right: tuple[str, ...] = ()
    elides: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    rows: list[tuple[Cell, ...]] = field(factory=list)
    memory: Memory | None = None

    def add_row(self, *cells: str | Cell) -> None:
        """Add a row of as many cells as there are columns."""
        self.rows.append(tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells))


@define(eq=False, repr=False)
class Outline:
    """Rows of an outer table, each with rows of an inner one below it, and sentences between."""

    outer: Table
    inner: Table
    entries: list[Table | Text] = field(factory=list)

    def add_row(self, *cells: str | Cell) -> None:
        """Add a row of the outer table."""
        self.outer.add_row(*cells)
        self.entries.append(self.outer)

    def add_below(self, *cells: str | Cell) -> None:
        """Add a row of the inner table."""
        self.inner.add_row(*cells)
        self.entries.append(self.inner)

    def add_line(self, line: Text) -> None:
        """Add a sentence."""
        self.entries.append(line)


@frozen
class Flow:
    """Texts beside each other, of which none is broken: what does not fit goes on below."""

    texts: tuple[Cell, ...]


#: What can be shown: texts and tables, below each other.
Part: TypeAlias = "str | Text | Table | Outline | Flow | Sequence[Part]"


def table(
    *columns: str,
    folds: tuple[str, ...] = (),
    right: tuple[str, ...] = (),
    elides: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    drops: tuple[str, ...] = (),
) -> Table:
    """Return an empty table."""
    return Table(columns, folds, right, elides, optional, drops)


def state(state_word: str) -> Text:
    """Return a state in its colour."""
    return Text(state_word, _COLOUR_BY_STATE.get(state_word, "red"))


def sick_first(rows: Iterable[DeviceView]) -> list[DeviceView]:
    """Return the devices with those first that something is wrong with."""
    return sorted(rows, key=lambda row: row.device.healthy)


def troubles(rows: Sequence[DeviceView], *, node: str | None = None) -> list[Part]:
    """Return a line for each device that is not healthy, and for what others use of one."""
    of_node = f" of node {node}" if node else ""
    return [
        *(
            Text(f"{row.device.name}{of_node}: {row.device.health}: nothing is given of it", "red")
            for row in rows
            if not row.device.healthy
        ),
        *(
            foreign_line(row.device.name, row.foreign)
            for row in rows
            if row.foreign and row.foreign.memory
        ),
    ]


def foreign_line(card: str, use: ForeignUse) -> Text:
    """Return the line that says who uses a card without a grant."""
    return Text(f"{card}: {use.sentence}", "yellow")


def foreign_memory(use: ForeignUse | None) -> Text:
    """Return the memory that programs without a grant hold, nothing where they hold none."""
    if use is None or not use.memory:
        return Text()
    return Text(("~" if use.estimated else "") + rounded_memory(use.memory), "yellow")


def condition_of(device: Device) -> Text:
    """Return how a device is, and whether it is cordoned."""
    condition = device.condition
    if condition is None:
        return Text(UNKNOWN)
    return (
        Text(condition, "yellow")
        if device.healthy and device.cordon is not None
        else state(condition)
    )


def condition_word(device: Device) -> Text:
    """Return how a device is, in one word where it is not healthy; `troubles` says more."""
    return Text(device.ailment, "bold red") if device.ailment else condition_of(device)


def heading(simulated_name: str | None) -> list[Part]:
    """Return the line that says that nothing below is real, where that is so."""
    if simulated_name is None:
        return []
    rack = simulated_name.rpartition("/")[2]
    return [Text(f"simulated by {rack}: no card below is real", "yellow")]


def memory_of(part_bytes: int | None, whole_bytes: int) -> str:
    """Return what is used of `whole_bytes` in one unit, both rounded down: `3/16 GiB`."""
    return _amounts(part_bytes, whole_bytes, "/")


def free_of(free_bytes: int, whole_bytes: int) -> str:
    """Return what is free of `whole_bytes` in one unit, both rounded down: `13 of 16 GiB`.

    So what is shown as free can be asked for, and a refusal names the same number.
    """
    return _amounts(free_bytes, whole_bytes, " of ")


def _amounts(part_bytes: int | None, whole_bytes: int, sign: str) -> str:
    unit_bytes, unit = (GiB, "GiB") if whole_bytes >= GiB else (MiB, "MiB")
    part_text = UNKNOWN if part_bytes is None else _short(part_bytes * 10 // unit_bytes / 10)
    return f"{part_text}{sign}{_short(whole_bytes * 10 // unit_bytes / 10)} {unit}"


def _short(amount: float) -> str:
    return f"{amount:.1f}".removesuffix(".0")


def percent(units: int, device: Device) -> str:
    """Return units of a device's core in percent of the card: `71.4 %`."""
    return format_percent(100 * units / device.of_card(CORE))


def core_limit(core_percent: float | None) -> str:
    """Return a limit of core in percent of the card, None where there is none."""
    return "no limit" if core_percent is None else format_percent(core_percent)


def core_of(share: Share, *, wide: bool = False) -> str:
    """Return the core a share used of what it may use: `29.8/30 %`.

    `wide` adds the vendor's own units: `25 % (5/20)`.
    """
    if share.sm_percent is not None or share.core_percent is None:
        used_text = ""
    else:
        used_text = (
            f"{UNKNOWN if share.core_used_percent is None else f'{share.core_used_percent:.1f}'}/"
        )
    return used_text + core_limit_of(share, wide=wide)


def core_limit_of(share: Share, *, wide: bool = False) -> str:
    """Return the core that a share may use: `30 %`."""
    if share.sm_percent is not None:
        return f"{share.sm_percent} % of SMs"
    units_text = own_units(*share.core_units) if wide and share.core_units else ""
    return core_limit(share.core_percent) + units_text + (" rest" if share.rest else "")


def own_units(units: int, card_units: int) -> str:
    """Return core in a vendor's units, behind its percentage; nothing where they are percent."""
    return "" if card_units % 100 == 0 else f" ({units}/{card_units})"


def kept_by(enforcement: Enforcement | None) -> Text:
    """Return what keeps a share, in words of people; what a program may ignore stands out."""
    if enforcement is None:
        return Text(UNKNOWN)
    enforcement_word = _WORD_BY_ENFORCEMENT.get(enforcement, enforcement.value)
    return Text(enforcement_word, "yellow" if enforcement_word.endswith("!") else "")


def short(uuid: str) -> str:
    """Return enough of a UUID to name it by."""
    return uuid if len(uuid) <= 12 else uuid[:12]


def model_of(device: Device) -> str:
    """Return the model's name without the vendor's, which has a column of its own."""
    return device.short_model


def card_and_model(device: Device) -> str:
    """Return a card's name that every command takes, and its model: `acme:0 A1`."""
    return f"{device.name} {device.short_model}"


def age(since_iso: str) -> str:
    """Return how long ago a time was, in its largest unit; one that is to come was just now."""
    elapsed = datetime.now(timezone.utc) - datetime.fromisoformat(since_iso)
    age_s = max(int(elapsed.total_seconds()), 0)  # a clock may have been set back
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if age_s >= unit_s:
            return f"{age_s // unit_s} {unit}"
    return f"{age_s} s"


def few(pids: tuple[int, ...]) -> str:
    """Return the first processes of a grant and how many more there are."""
    more_text = f" +{len(pids) - 3}" if len(pids) > 3 else ""
    return " ".join(map(str, pids[:3])) + more_text or UNKNOWN


def granularity_of(device: Device) -> str:
    """Return how a device divides, in words."""
    match device.granularity:
        case Whole():
            return "whole card"
        case Fractional(memory, core):
            card_units = device.of_card(CORE)
            core_unit = " %" if card_units == 100 else f"/{card_units}"
            return f"{_grain(core, core_unit)}, {_grain(memory, None)}"
        case Templated(menu):
            first_name, *other_names = dict.fromkeys(template.name for template in menu)
            return f"{first_name} +{len(other_names)}" if other_names else first_name


def _grain(grain: Grain, unit: str | None) -> str:
    match grain:
        case Step(step):
            return format_memory(step) if unit is None else f"{step}{unit}"
        case Ladder(sizes):
            low, high = (
                (format_memory(size) if unit is None else f"{size}{unit}").partition(" ")
                for size in (sizes[0], sizes[-1])
            )
            return f"{low[0]}{'' if low[2] == high[2] else ' ' + low[2]}–{' '.join(high[::2])}"


def free_memory(free_bytes: int, device: Device) -> str:
    """Return the memory left of a device, and the card's own where the node promises more."""
    promised_bytes, own_bytes = device.capacity[MEMORY], device.of_card(MEMORY)
    card_text = f" (card {format_memory(own_bytes)})" if promised_bytes > own_bytes else ""
    return free_of(free_bytes, promised_bytes) + card_text
