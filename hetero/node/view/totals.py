"""Sums over devices by vendor and model: how many there are, and what is left of them."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import define, field, fields

from hetero.model import CORE, MEMORY, SLOTS, Counters
from hetero.model.json_keys import json_key
from hetero.node.view.observe import DeviceView


@define(kw_only=True, eq=False, repr=False)
class Total:
    """Sums over the devices of a model. Core is in percent of a card, memory in bytes.

    `whole_count` devices can be given as a whole: they are well, not cordoned, and nobody has any
    of them. `sick_count` are not well, and `cordoned_count` are well. What is left of either is not
    free. `foreign` is the memory of programs without a grant, `used` all that drivers count.
    """

    vendor: str
    model: str
    device_count: int = field(default=0, metadata=json_key("devices"))
    whole_count: int = field(default=0, metadata=json_key("whole"))
    sick_count: int = field(default=0, metadata=json_key("sick"))
    cordoned_count: int = field(default=0, metadata=json_key("cordoned"))
    core_percent: float = field(default=0, metadata=json_key("core"))
    core_free_percent: float = field(default=0, metadata=json_key("core_free"))
    memory_bytes: int = field(default=0, metadata=json_key("memory"))
    memory_free_bytes: int = field(default=0, metadata=json_key("memory_free"))
    memory_held_bytes: int = field(default=0, metadata=json_key("memory_held"))
    memory_used_bytes: int = field(default=0, metadata=json_key("memory_used"))
    memory_foreign_bytes: int = field(default=0, metadata=json_key("memory_foreign"))


def count(
    sums: Total,
    capacity: Counters,
    *,
    card_units: int,
    held: Counters,
    free: Counters,
    healthy: bool,
    usable: bool,
    foreign_bytes: int = 0,
) -> None:
    """Add a device that has `capacity`; its card has `card_units` of core.

    `held` was granted of it, `free` can still be had, if it is `usable`. Programs without a grant
    hold `foreign_bytes`.
    """
    core_units, memory_bytes = capacity[CORE], capacity[MEMORY]
    unit_percent = 100 / card_units if card_units else 0.0
    sums.device_count += 1
    sums.core_percent += unit_percent * core_units
    sums.memory_bytes += memory_bytes
    sums.memory_held_bytes += held.get(MEMORY, 0)
    sums.memory_foreign_bytes += foreign_bytes
    if usable:
        is_free = free[SLOTS] == capacity[SLOTS] and not foreign_bytes
        sums.whole_count += is_free and not any(held.values())
        sums.core_free_percent += unit_percent * free[CORE]
        sums.memory_free_bytes += free[MEMORY]
    elif healthy:
        sums.cordoned_count += 1
    else:
        sums.sick_count += 1


def merge(sums: Total, other: Total) -> None:
    """Add the sums of other devices, which are of one model with these."""
    for name in (attribute.name for attribute in fields(Total)):
        if name not in ("vendor", "model"):
            setattr(sums, name, getattr(sums, name) + getattr(other, name))


def totals(rows: Iterable[DeviceView]) -> tuple[Total, ...]:
    """Return the sums for each vendor and model, in the order in which they first come."""
    rows_by_model: dict[tuple[str, str], list[DeviceView]] = {}
    for row in rows:
        key = (row.device.vendor, row.device.short_model)
        rows_by_model.setdefault(key, []).append(row)
    return tuple(_total(vendor, model, rows) for (vendor, model), rows in rows_by_model.items())


def total(rows: Iterable[DeviceView]) -> Total:
    """Return the sums over all devices."""
    return _total("", "", rows)


def _total(vendor: str, model: str, rows: Iterable[DeviceView]) -> Total:
    sums = Total(vendor=vendor, model=model)
    for row in rows:
        device = row.device
        count(
            sums,
            device.capacity,
            card_units=device.of_card(CORE),
            held=row.held,
            free=row.free,
            healthy=device.healthy,
            usable=device.usable,
            foreign_bytes=row.foreign.memory if row.foreign else 0,
        )
        sums.memory_used_bytes += row.usage.memory or 0
    return sums
