"""Gives gangs their rows: the part of each period that a grant of several devices has on all.

Rows are given anew whenever grants come, change or go, and by the grants alone: whoever looks finds
the same. docs/decisions/gangs.md says what a row is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from attrs import evolve, field

from hetero.model import Gang, Policy
from hetero.model.frozen import frozen
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit

#: Nanoseconds. No row is shorter: less is lost where it begins and ends (measured on two H100s).
LEAST = 3_000_000

#: By how much a row is longer than its share says where a period has room for that: what is lost at
#: its beginning and end is made up in it. A gang uses no more than its share. Percent of a period.
SPARE = 4


@frozen(kw_only=True)
class Periods:
    """How a node cuts time for gangs, in nanoseconds: the settings' [gangs] table.

    `overrun` is for how long a gang may run over the end of its row; None: for a period.
    """

    period: int = 100_000_000
    overrun: int | None = None


@frozen(kw_only=True)
class GangRow:
    """A gang's row: `core` is the smallest of its shares, as in a grant file; times in nanoseconds.

    `asked` is how long the row would be by that share. No length: no row was free, and the grant
    has time slices on each of its devices as if it were none. `by_hand`: its user gave it.
    """

    core: int
    begin: int
    length: int
    period: int
    asked: int
    devices: frozenset[str] = field(factory=frozenset)
    by_hand: bool = False

    def overlaps(self, other: GangRow) -> bool:
        """Return whether two rows have a device and any time in common."""
        if not self.length or not other.length or self.devices.isdisjoint(other.devices):
            return False
        ahead = (other.begin - self.begin) % self.period
        return ahead < self.length or self.period - ahead < other.length


def gang_row(
    limits: Sequence[DeviceLimit], *, policy: Policy, gang: Gang | None, period: int
) -> GangRow | None:
    """Return the row that a grant asks for, wherever it begins; None if it is no gang.

    A gang has several devices that are limited, or was made one by hand.
    """
    limited = [limit for limit in limits if limit.core < CORE_FULL]
    by_hand = gang is not None and gang.row is not None
    if policy is Policy.OFF or (gang is not None and gang.off):
        return None
    if not limited or (len(limited) < 2 and not by_hand):
        return None
    core = min(limit.core for limit in limited)
    length = period * core // CORE_FULL
    begin = 0
    if gang is not None and gang.row is not None and gang.rows is not None:
        begin = period * (gang.row - 1) // gang.rows
        length = min(length, period // gang.rows)
    return GangRow(
        core=core,
        begin=begin,
        length=length,
        period=period,
        asked=length,
        devices=frozenset(limit.name for limit in limited),
        by_hand=by_hand,
    )


def with_spare(rows: Mapping[str, GangRow], taken: Mapping[str, int]) -> dict[str, GangRow]:
    """Return the rows with what may be spared for each; `taken` is all that is given of a device.

    The latter is in a grant file's units. Gangs have even parts of what is free of a device.
    """

    def spare(row: GangRow) -> int:
        shares_left = (
            (CORE_FULL - taken[device]) // sum(device in one.devices for one in rows.values())
            for device in row.devices
        )
        return max(0, min(row.period * SPARE // 100, row.period * min(shares_left) // CORE_FULL))

    return {name: evolve(row, length=row.length + spare(row)) for name, row in rows.items()}


def place_rows(asked: Mapping[str, GangRow], fixed: Mapping[str, GangRow]) -> dict[str, GangRow]:
    """Return where each row is, by the grant's id; those in `fixed` stay where they are.

    First fit around the period, in the order of `asked`; if somebody is left without, the longest
    first. Who does not fit even so has the longest part that is free, if it is of any use.
    """
    longest = dict(sorted(asked.items(), key=lambda named: -named[1].length))
    placed = _first_fit(asked, fixed)
    if any(placed[name].length < row.length for name, row in asked.items()):
        other = _first_fit(longest, fixed)
        if sum(row.length for row in other.values()) > sum(row.length for row in placed.values()):
            placed = other
    return placed


def _first_fit(asked: Mapping[str, GangRow], fixed: Mapping[str, GangRow]) -> dict[str, GangRow]:
    placed = dict(fixed)
    for name, row in asked.items():
        placed[name] = _fitted(row, placed.values())
    return placed


def _fitted(row: GangRow, others: Iterable[GangRow]) -> GangRow:
    overlapping = [one for one in others if one.length and not one.devices.isdisjoint(row.devices)]
    ends = sorted({(one.begin + one.length) % row.period for one in overlapping} | {0})
    best = evolve(row, length=0)
    for begin in ends:
        length = min(chain((row.length,), (_until(one, begin) for one in overlapping)))
        if length > best.length:
            best = evolve(row, begin=begin, length=length)
        if best.length == row.length:
            break
    return best if best.length >= min(LEAST, row.length) else evolve(row, length=0)


def _until(other: GangRow, begin: int) -> int:
    """Return how much time there is from `begin` on to where another row begins."""
    ahead = (other.begin - begin) % other.period
    return 0 if other.period - ahead < other.length or ahead == 0 else ahead
