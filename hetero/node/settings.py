"""The node's settings: one small TOML file, checked word by word."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

from attrs import evolve

from hetero.model import CORE, MEMORY, SLOTS, Device, Fractional, Rung, Templated
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen

#: Where the settings are when $HETERO_CONFIG does not say otherwise; no file means the defaults.
DEFAULT = Path("/etc/hetero/node.toml")
_MOST_SPLIT = 1000


class Parts(str, Enum):
    """What becomes of cards that are partitioned already."""

    NONE = "none"  # not given out
    SINGLE = "single"  # given out where all cards of their vendor are partitioned alike
    MIXED = "mixed"  # given out by their parts, beside cards that are shared


@frozen(kw_only=True)
class Settings:
    """What the node gives out of its devices, and what counts as a program's memory.

    [scale]             # factors, at least 1 and 1 unless set
    memory = 1.5        # what does not fit on a card then lies with the host, and is slower
    core = 2

    [cards]
    split = 10          # how many may share a card; at most as many as its driver can, if that cuts
    without = ["ab12"]  # UUIDs, or the driver's indices, that are not given out
    parts = "mixed"     # cards that are partitioned already: mixed, single or none (see `Parts`)

    [count]
    context = true      # the driver's memory for a program counts against its grant; else not
    """

    memory_scale: Decimal = Decimal(1)
    core_scale: Decimal = Decimal(1)
    split: int | None = None
    without: tuple[str | int, ...] = ()
    parts: Parts = Parts.MIXED
    context: bool = False

    def offered(self, devices: Iterable[Device], *, ours: AbstractSet[str]) -> tuple[Device, ...]:
        """Return what this node gives out of its devices; our own limiter shares those of `ours`.

        A device that breaks a rule of the settings is there but unhealthy, for that reason.
        """
        left = [d for d in devices if d.uuid not in self.without and d.index not in self.without]
        if self.parts is Parts.NONE:
            left = [device for device in left if not _partitioned(device)]
        if self.parts is Parts.SINGLE:
            left = list(_alike(left))
        return tuple(self.scaled(self._split(device, ours)) for device in left)

    def scaled(self, device: Device) -> Device:
        """Return `device` with the capacity this node promises of it.

        A percentage still means a percentage of the card itself. Only what is cut freely can be
        promised more than once: a whole card or a shape of it is there or not.
        """
        if self.memory_scale == self.core_scale == 1:
            return device
        if not isinstance(device.granularity, Fractional):
            return device
        factors = {MEMORY: self.memory_scale, CORE: self.core_scale}
        capacity = {
            name: int(amount * factors.get(name, 1)) for name, amount in device.capacity.items()
        }
        return evolve(device, capacity=capacity, card=device.capacity)

    def _split(self, device: Device, ours: AbstractSet[str]) -> Device:
        if self.split is None or not isinstance(device.granularity, Fractional):
            return device
        free = device.vendor in ours and device.rung is not Rung.PARTITION
        slots = self.split if free else min(self.split, device.capacity[SLOTS])
        return evolve(device, capacity={**device.capacity, SLOTS: slots})


def _alike(devices: Iterable[Device]) -> Iterator[Device]:
    """Yield the devices, unhealthy where their vendor's are partitioned and they not like those."""
    given = list(devices)
    first: dict[str, str] = {}
    for device in given:
        for shape in sorted(_shapes(device)):
            first.setdefault(device.vendor, shape)
    for device in given:
        wanted = first.get(device.vendor)
        if wanted is None or not device.usable or _shapes(device) == {wanted}:
            yield device
        else:
            why = f"not cut into {wanted} alone, as this node's settings want"
            yield evolve(device, health=why)


def _partitioned(device: Device) -> bool:
    """Return whether the device is cut already, so that it is only given by its parts."""
    return isinstance(device.granularity, Templated) and not device.granularity.whole


def _shapes(device: Device) -> frozenset[str]:
    return device.shapes if _partitioned(device) else frozenset()


def load_settings(environ: Mapping[str, str], base: Settings | None = None) -> Settings:
    """Return the settings of this node, over `base`. Raises `BadInput` with the line to mend."""
    named = environ.get("HETERO_CONFIG")
    path = Path(named) if named else DEFAULT
    try:
        text = path.read_text()
    except FileNotFoundError:
        if named:
            raise BadInput(f"settings {path}: no such file (HETERO_CONFIG names it)") from None
        return base or Settings()
    except OSError as error:
        raise BadInput(f"settings {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"settings {path}: not a text in UTF-8") from None
    if sys.version_info >= (3, 11):  # here: most nodes have no settings, and need no parser
        import tomllib
    else:
        import tomli as tomllib

    try:
        return read_settings(tomllib.loads(text, parse_float=Decimal), base)
    except (tomllib.TOMLDecodeError, BadInput) as error:
        raise BadInput(f"settings {path}: {error}") from None


def read_settings(document: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Return `base` with what the document says instead. Raises `BadInput`."""
    was = base or Settings()
    _expect(document, known=("scale", "cards", "count"))
    scale, cards, count = (_table(document, name) for name in ("scale", "cards", "count"))
    _expect(scale, known=("memory", "core"))
    _expect(cards, known=("split", "without", "parts"))
    _expect(count, known=("context",))
    context = count.get("context", was.context)
    if not isinstance(context, bool):
        raise BadInput(f"count.context {context!r} is not true or false")
    return Settings(
        memory_scale=_factor("memory", scale.get("memory", was.memory_scale)),
        core_scale=_factor("core", scale.get("core", was.core_scale)),
        split=_split(cards.get("split", was.split)),
        without=_names(cards.get("without", was.without)),
        parts=_parts(cards.get("parts", was.parts)),
        context=context,
    )


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise BadInput(f"{name} is a table: write [{name}]")
    return table


def _expect(table: Mapping[str, Any], *, known: tuple[str, ...]) -> None:
    for key in table:
        if key not in known:
            raise BadInput(
                f"unknown key {key!r}: there is [scale] with memory and core, [cards] with split, "
                "without and parts, [count] with context, nothing else"
            )


def _factor(name: str, value: object) -> Decimal:
    numeric = isinstance(value, int | Decimal | float) and not isinstance(value, bool)
    factor = Decimal(str(value)) if numeric else Decimal("nan")
    if factor.is_nan() or not 1 <= factor <= 100:
        raise BadInput(f"scale.{name} {value!r} is not a number from 1 to 100")
    return factor


def _split(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_SPLIT:
        raise BadInput(f"cards.split {value!r} is not a whole number from 1 to {_MOST_SPLIT}")
    return value


def _names(value: object) -> tuple[str | int, ...]:
    listed = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in listed):
        raise BadInput(f"cards.without {value!r} is not a list of UUIDs and indices")
    return tuple(listed)


def _parts(value: object) -> Parts:
    if value not in [parts.value for parts in Parts]:
        raise BadInput(f"cards.parts {value!r} is none of mixed, single, none")
    return Parts(value)
