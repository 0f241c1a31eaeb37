"""Sums over devices by vendor and model: how many there are, and what is left of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import evolve, fields

from hetero.model import CORE, MEMORY
from hetero.model.frozen import frozen
from hetero.node.view.observe import DeviceView


@frozen(kw_only=True)
class Total:
    """Sums over the devices of a model. Core is in percent of a card, memory in bytes.

    `whole` devices can be given as a whole: they are well, not cordoned, and nobody has any of
    them. `sick` are not well, and `cordoned` are well. What is left of either is not free.
    `foreign` is the memory of programs without a grant, `used` all that drivers count.
    """

    vendor: str
    model: str
    devices: int = 0
    whole: int = 0
    sick: int = 0
    cordoned: int = 0
    core: float = 0
    core_free: float = 0
    memory: int = 0
    memory_free: int = 0
    memory_held: int = 0
    memory_used: int = 0
    memory_foreign: int = 0

    def __add__(self, other: Total) -> Total:
        """Return the sums over the devices of both, which are of one model."""
        amounts = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(Total)
            if field.name not in ("vendor", "model")
        }
        return evolve(self, **amounts)


def totals(rows: Iterable[DeviceView]) -> tuple[Total, ...]:
    """Return the sums for each vendor and model, in the order in which they first come."""
    rows_by_model: dict[tuple[str, str], list[DeviceView]] = {}
    for row in rows:
        key = (row.device.vendor, row.device.short_model)
        rows_by_model.setdefault(key, []).append(row)
    return tuple(_total(vendor, model, rows) for (vendor, model), rows in rows_by_model.items())


def total(rows: Iterable[DeviceView]) -> Total:
    """Return the sums over all devices."""
    return _total("", "", [*rows])


def _total(vendor: str, model: str, rows: list[DeviceView]) -> Total:
    usable_rows = [row for row in rows if row.device.usable]
    return Total(
        vendor=vendor,
        model=model,
        devices=len(rows),
        whole=sum(not any(row.held.values()) and not _foreign(row) for row in usable_rows),
        sick=sum(not row.device.healthy for row in rows),
        cordoned=sum(row.device.healthy and not row.device.usable for row in rows),
        core=sum(_percents(rows)),
        core_free=sum(_percents(usable_rows)) - sum(_held_percents(usable_rows)),
        memory=sum(row.device.capacity[MEMORY] for row in rows),
        memory_free=sum(row.free[MEMORY] for row in usable_rows),
        memory_held=sum(row.held[MEMORY] for row in rows),
        memory_used=sum(row.usage.memory or 0 for row in rows),
        memory_foreign=sum(map(_foreign, rows)),
    )


def _percents(rows: Iterable[DeviceView]) -> Iterator[float]:
    return (_percent(row, row.device.capacity[CORE]) for row in rows)


def _held_percents(rows: Iterable[DeviceView]) -> Iterator[float]:
    return (_percent(row, row.held[CORE]) for row in rows)


def _percent(row: DeviceView, units: int) -> float:
    """Return units of a device's core in percent of the card; 0 of one that has none."""
    card_units = row.device.of_card(CORE)
    return 100 * units / card_units if card_units else 0.0


def _foreign(row: DeviceView) -> int:
    return row.foreign.memory if row.foreign else 0
