"""Gives gangs their rows: the part of each period that a grant of several devices has on all.

Rows are given anew whenever grants come, change or go. They follow from the grants alone, so every
process computes the same. docs/decisions/gangs.md says what a row is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from attrs import evolve, field

from hetero.model import Gang, Policy
from hetero.model.frozen import frozen
from hetero.node.ledger.grant_file import CORE_FULL, DeviceLimit

#: Nanoseconds. No row is shorter: less is lost where it begins and ends (measured on two H100s).
SHORTEST_ROW_NS = 3_000_000

#: By how much a row is longer than its share says where a period has room for that: what is lost at
#: its beginning and end is made up in it. A gang uses no more than its share. Percent of a period.
SPARE_PERCENT = 4


@frozen(kw_only=True)
class Periods:
    """How a node cuts time for gangs: the settings' [gangs] table.

    `overrun_ns` is for how long a gang may run over the end of its row; None: for a period.
    """

    period_ns: int = 100_000_000
    overrun_ns: int | None = None


@frozen(kw_only=True)
class GangRow:
    """A gang's row: `core_share` is the smallest of its shares, as in a grant file.

    `asked_length_ns` is how long the row would be by that share. No length: no row was free, and
    the grant has time slices on each of its devices as if it were none. `by_hand`: its user gave
    it.
    """

    core_share: int
    begin_ns: int
    length_ns: int
    period_ns: int
    asked_length_ns: int
    devices: frozenset[str] = field(factory=frozenset)
    by_hand: bool = False

    def overlaps(self, other_row: GangRow) -> bool:
        """Return whether two rows have a device and any time in common."""
        if (
            not self.length_ns
            or not other_row.length_ns
            or self.devices.isdisjoint(other_row.devices)
        ):
            return False
        ahead_ns = (other_row.begin_ns - self.begin_ns) % self.period_ns
        return ahead_ns < self.length_ns or self.period_ns - ahead_ns < other_row.length_ns


def gang_row(
    limits: Sequence[DeviceLimit], *, policy: Policy, gang: Gang | None, period_ns: int
) -> GangRow | None:
    """Return the row that a grant asks for, wherever it begins; None if it is no gang.

    A gang has several devices that are limited, or was made one by hand.
    """
    limited_devices = [limit for limit in limits if limit.core < CORE_FULL]
    if policy is Policy.OFF or (gang is not None and gang.off):
        return None
    if not limited_devices or not may_be_gang(len(limited_devices), gang):
        return None
    core_share = min(limit.core for limit in limited_devices)
    length_ns = period_ns * core_share // CORE_FULL
    begin_ns = 0
    if gang is not None and gang.row is not None and gang.rows is not None:
        begin_ns = period_ns * (gang.row - 1) // gang.rows
        length_ns = min(length_ns, period_ns // gang.rows)
    return GangRow(
        core_share=core_share,
        begin_ns=begin_ns,
        length_ns=length_ns,
        period_ns=period_ns,
        asked_length_ns=length_ns,
        devices=frozenset(limit.name for limit in limited_devices),
        by_hand=gang is not None and gang.row is not None,
    )


def may_be_gang(device_count: int, gang: Gang | None) -> bool:
    """Whether a grant may have a row that is limited on so many devices: one, if made by hand."""
    return device_count > 1 or (gang is not None and gang.row is not None)


def with_spare(rows: Mapping[str, GangRow], core_given: Mapping[str, int]) -> dict[str, GangRow]:
    """Return the rows, each made longer by what its devices have to spare.

    `core_given` is the core that grants have of each device, in a grant file's units. Gangs share
    evenly what is free of a device.
    """

    def spare_ns(row: GangRow) -> int:
        spare_shares = (
            (CORE_FULL - core_given[device])
            // sum(device in other_row.devices for other_row in rows.values())
            for device in row.devices
        )
        return max(
            0,
            min(
                row.period_ns * SPARE_PERCENT // 100, row.period_ns * min(spare_shares) // CORE_FULL
            ),
        )

    return {
        grant_id: evolve(row, length_ns=row.length_ns + spare_ns(row))
        for grant_id, row in rows.items()
    }


def place_rows(
    asked_rows: Mapping[str, GangRow], fixed_rows: Mapping[str, GangRow]
) -> dict[str, GangRow]:
    """Return where each row is, by the grant's id; those in `fixed_rows` stay where they are.

    First fit around the period, in the order of `asked_rows`. If one does not fit, the longest goes
    first. One that does not fit even so has the longest part that is free, if it is of any use.
    """
    longest_first = dict(
        sorted(asked_rows.items(), key=lambda id_and_row: -id_and_row[1].length_ns)
    )
    placed_rows = _first_fit(asked_rows, fixed_rows)
    if any(placed_rows[grant_id].length_ns < row.length_ns for grant_id, row in asked_rows.items()):
        other_placed = _first_fit(longest_first, fixed_rows)
        if sum(row.length_ns for row in other_placed.values()) > sum(
            row.length_ns for row in placed_rows.values()
        ):
            placed_rows = other_placed
    return placed_rows


def _first_fit(
    asked_rows: Mapping[str, GangRow], fixed_rows: Mapping[str, GangRow]
) -> dict[str, GangRow]:
    placed_rows = dict(fixed_rows)
    for grant_id, row in asked_rows.items():
        placed_rows[grant_id] = _fitted(row, placed_rows.values())
    return placed_rows


def _fitted(row: GangRow, other_rows: Iterable[GangRow]) -> GangRow:
    overlapping_rows = [
        other_row
        for other_row in other_rows
        if other_row.length_ns and not other_row.devices.isdisjoint(row.devices)
    ]
    ends_ns = sorted(
        {
            (other_row.begin_ns + other_row.length_ns) % row.period_ns
            for other_row in overlapping_rows
        }
        | {0}
    )
    longest_row = evolve(row, length_ns=0)
    for begin_ns in ends_ns:
        length_ns = min(
            chain((row.length_ns,), (_until(other_row, begin_ns) for other_row in overlapping_rows))
        )
        if length_ns > longest_row.length_ns:
            longest_row = evolve(row, begin_ns=begin_ns, length_ns=length_ns)
        if longest_row.length_ns == row.length_ns:
            break
    return (
        longest_row
        if longest_row.length_ns >= min(SHORTEST_ROW_NS, row.length_ns)
        else evolve(row, length_ns=0)
    )


def _until(other_row: GangRow, begin_ns: int) -> int:
    """Return the nanoseconds from `begin_ns` to the beginning of another row."""
    ahead_ns = (other_row.begin_ns - begin_ns) % other_row.period_ns
    return 0 if other_row.period_ns - ahead_ns < other_row.length_ns or ahead_ns == 0 else ahead_ns
