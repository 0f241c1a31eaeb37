"""How a device divides: whole, by grains of memory and core, or by a menu of templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import field

from hetero.model.frozen import frozen

#: Named integer counters. Every device counts at least these three; a vendor may add its own.
Counters = Mapping[str, int]
CORE = "core"  # the device's own units of compute (`Vendor.models` says how many make a card)
MEMORY = "memory"  # bytes
SLOTS = "slots"  # how many grants may share the device


@frozen
class Step:
    """A grain of multiples: sizes are rounded up to the next multiple of `of`."""

    of: int = field()

    @of.validator
    def _positive(self, _: object, value: int) -> None:
        if value < 1:
            raise ValueError("a step is at least 1")


def _ascending(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(sizes))


@frozen
class Ladder:
    """A grain of listed sizes: the first one that covers a request is taken."""

    sizes: tuple[int, ...] = field(converter=_ascending)

    @sizes.validator
    def _not_empty(self, _: object, value: tuple[int, ...]) -> None:
        if not value or value[0] < 1:
            raise ValueError("a ladder has at least one positive size")


Grain = Step | Ladder


class MultiDevice(str, Enum):
    """What a request for several devices gets of each."""

    SHARES = "shares"
    WHOLE = "whole"


@frozen
class Whole:
    """The device is given as a whole or not at all."""


@frozen
class Fractional:
    """Memory and core are cut freely, each by its grain (bytes and core units).

    `together` is for cards whose driver cuts no memory without core: a request that names no core
    gets the same part of the core as of the memory, rounded down so that equal parts fit.
    `cut_at_admission`: slices are cut before a pod's first container starts and last until it ends,
    so that init containers hand theirs to a main container.
    """

    memory: Grain = Step(1024 * 1024)
    core: Grain = Step(1)
    multi: MultiDevice = MultiDevice.SHARES
    together: bool = False
    cut_at_admission: bool = False


@frozen
class Template:
    """One named shape: what it takes of each counter, and the id of its part if there is one."""

    name: str
    takes: Counters = field()
    part: str | None = None

    @takes.validator
    def _measurable(self, _: object, value: Counters) -> None:
        if not {CORE, MEMORY} <= set(value):
            raise ValueError(f"template {self.name!r} takes core and memory, of each at least 0")


def _smallest_first(menu: Iterable[Template]) -> tuple[Template, ...]:
    return tuple(
        sorted(
            menu,
            key=lambda template: (
                template.takes[MEMORY],
                template.takes[CORE],
                template.part or "",
            ),
        )
    )


@frozen
class Templated:
    """The device is cut by a menu: the smallest entry that covers memory and core is taken.

    The menu is sorted by memory, then core. A request that no entry covers gets the whole device,
    unless `whole` is False (a card that is partitioned already and can only be given by its parts).
    A shape's core comes with it, asked or not. `measured_by` is of older documents, where memory
    alone could decide; nothing reads it. `cut_at_admission` is as in `Fractional`. `counted` is
    whether parts of a device that is partitioned already count as devices, for requests that are
    not for partitioned devices (`Request.unpartitioned`).
    """

    menu: tuple[Template, ...] = field(converter=_smallest_first)
    multi: MultiDevice = MultiDevice.WHOLE
    whole: bool = True
    measured_by: tuple[str, ...] = (CORE, MEMORY)
    cut_at_admission: bool = False
    counted: bool = False


Granularity = Whole | Fractional | Templated
