"""The node's settings: one small TOML file, checked word by word."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from hetero.errors import BadInput
from hetero.model import CORE, MEMORY, SLOTS, Device, Fractional

#: Where the settings are when $HETERO_CONFIG does not say otherwise; no file means the defaults.
DEFAULT = Path("/etc/hetero/node.toml")


@frozen(kw_only=True)
class Settings:
    """How often the node may promise a device, and what counts as a program's memory.

    [scale]             # factors, at least 1 and 1 unless set
    memory = 1.5        # what does not fit on a card then lies with the host, and is slower
    core = 2
    slots = 2           # how many may share a device

    [count]
    context = true      # the driver's memory for a program counts against its grant; else not
    """

    memory_scale: Decimal = Decimal(1)
    core_scale: Decimal = Decimal(1)
    slots_scale: Decimal = Decimal(1)
    context: bool = False

    def scaled(self, device: Device) -> Device:
        """Return `device` with the capacity this node promises of it.

        A percentage still means a percentage of the card itself. Only what is cut freely can be
        promised more than once: a whole card or a shape of it is there or not.
        """
        if self.memory_scale == self.core_scale == self.slots_scale == 1:
            return device
        if not isinstance(device.granularity, Fractional):
            return device
        factors = {MEMORY: self.memory_scale, CORE: self.core_scale, SLOTS: self.slots_scale}
        capacity = {
            name: int(amount * factors.get(name, 1)) for name, amount in device.capacity.items()
        }
        return evolve(device, capacity=capacity, card=device.capacity)


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings of this node. Raises `BadInput` with the line to mend."""
    named = environ.get("HETERO_CONFIG")
    path = Path(named) if named else DEFAULT
    try:
        text = path.read_text()
    except FileNotFoundError:
        if named:
            raise BadInput(f"settings {path}: no such file (HETERO_CONFIG names it)") from None
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"settings {path}: {error}") from None
    if sys.version_info >= (3, 11):  # here: most nodes have no settings, and need no parser
        import tomllib
    else:
        import tomli as tomllib

    try:
        document = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"settings {path}: {error}") from None
    scale, count = (_table(path, document, name) for name in ("scale", "count"))
    _expect(path, document, known=())
    _expect(path, scale, known=("memory", "core", "slots"))
    _expect(path, count, known=("context",))
    context = count.get("context", False)
    if not isinstance(context, bool):
        raise BadInput(f"settings {path}: count.context {context!r} is not true or false")
    return Settings(
        memory_scale=_factor(path, "memory", scale.get("memory", 1)),
        core_scale=_factor(path, "core", scale.get("core", 1)),
        slots_scale=_factor(path, "slots", scale.get("slots", 1)),
        context=context,
    )


def _table(path: Path, document: dict[str, Any], name: str) -> Mapping[str, Any]:
    table = document.pop(name, {})
    if not isinstance(table, dict):
        raise BadInput(f"settings {path}: {name} is a table: write [{name}]")
    return table


def _expect(path: Path, table: Mapping[str, Any], *, known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise BadInput(
                f"settings {path}: unknown key {key!r}: "
                "there is [scale] with memory, core and slots, [count] with context, nothing else"
            )


def _factor(path: Path, name: str, value: object) -> Decimal:
    numeric = isinstance(value, int | Decimal) and not isinstance(value, bool)
    factor = Decimal(value) if numeric else Decimal("nan")  # type: ignore[arg-type]
    if factor.is_nan() or not 1 <= factor <= 100:
        raise BadInput(f"settings {path}: scale.{name} {value!r} is not a number from 1 to 100")
    return factor
