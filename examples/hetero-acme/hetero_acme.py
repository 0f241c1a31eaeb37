"""Acme: a whole-card vendor, the smallest real one, to start your own from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hetero import plugin

VENDOR = plugin.Vendor(
    api=2,
    name="acme",
    title="Acme",
    models=(plugin.Model(match="*", granularity=plugin.Whole()),),
    visible=("ACME_VISIBLE_DEVICES",),
)


@plugin.hookimpl
def hetero_vendor() -> plugin.Vendor:
    """Every Acme card is given as a whole."""
    return VENDOR


@plugin.hookimpl
def hetero_discover() -> Iterator[plugin.Device]:
    """Read the driver's list of cards: a line each of serial number, model, MiB and state."""
    cards = Path(os.environ.get("ACME_CARDS", "/proc/driver/acme/cards"))
    if not cards.exists():
        raise plugin.DriverAbsent(f"{cards} not found (is the acme kernel module loaded?)")
    for index, line in enumerate(cards.read_text().splitlines()):
        serial, model, mib, state = line.split()
        yield VENDOR.device(
            uuid=serial,
            model=model,
            index=index,
            memory=int(mib) * plugin.MiB,
            enforcement=plugin.Enforcement.NONE,
            health=state,
        )
