"""The tables of `hetero bench isolation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING

from rich.table import Table

from hetero_benchmarks import peers, report
from hetero_benchmarks.goals import JUDGED_FROM, Free, Lent, Precedence, Row

if TYPE_CHECKING:
    from hetero_benchmarks.isolation import Isolation


def show(result: Isolation) -> None:
    """Print a table for each promise that something was measured for."""
    tables = []
    if result.alone:
        tables.append(_alone(result.alone))
    if result.together:
        tables.append(_together(result.together))
    if result.elastic:
        tables.append(_elastic(result.elastic))
    if result.priority:
        tables.append(_priority(result.priority))
    if result.free:
        tables.append(_free(result.free))
    compared = any(
        name in str(column.header) for t in tables for column in t.columns for name in peers.NAMES
    )
    notes = [peers.SOURCE] if compared else []
    report.show(
        result.machine, *tables, notes=notes + [f"not measured: {why}" for why in result.missing]
    )


def _table(title: str, *headings: str, words: int = 1) -> Table:
    """Return an empty table, its first `words` columns for words and the others for figures."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < words else "right")
    return table


def _peers(
    table: Table, rows: Sequence[Row], known: Mapping[tuple[str, int], tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Return what peers gave in place of each row, in columns added if that is known of any."""
    peer_cells = [known.get((row.job, row.asked or 0)) for row in rows]
    if not any(peer_cells):
        return [()] * len(rows)
    for name in peers.NAMES:
        table.add_column(f"{name} %", justify="right", style="dim")
    return [each or ("",) * len(peers.NAMES) for each in peer_cells]


_ROW = ("job", "asked %", "got %", "error", "worst 1 s", "swing %", "steps/s", "p50 ms", "p99 ms")


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.job,
        "unlimited" if row.asked is None else str(row.asked),
        f"{row.got:.1f}",
        "" if row.error is None else f"{row.error:+.1f}",
        "" if row.worst is None else f"{row.worst:+.1f}",
        f"{row.slowest:.1f}–{row.fastest:.1f}",
        f"{row.pace.rate:.4g}",
        f"{1000 * row.pace.p50:.2f}",
        f"{1000 * row.pace.p99:.2f}",
    )


def _alone(rows: Sequence[Row]) -> Table:
    table = _table("One job at a time", *_ROW)
    peer_cells = _peers(table, rows, peers.ALONE)
    for row, peer in zip(rows, peer_cells, strict=True):
        table.add_row(*_cells(row), *peer)
    _judge(table, rows, within=1)
    return table


def _judge(table: Table, rows: Sequence[Row], *, within: float) -> None:
    """Say below the table how many of its rows are as exact as hetero means to be."""
    errors = [row.error for row in rows if row.error is not None]
    seconds = [row.worst for row in rows if row.worst is not None]
    table.caption = (
        f"{_count(errors, within)}; from {JUDGED_FROM} % in every second {_count(seconds, 3)}"
    )


def _count(errors: Sequence[float], within: float) -> str:
    kept = sum(abs(error) <= within for error in errors)
    return f"{kept} of {len(errors)} within {within:g} points"


def _together(runs: Sequence[Sequence[Row]]) -> Table:
    """Return a section for each run, which ends with the total of what its tenants got."""
    table = _table("Together", *_ROW, "total of asked %")
    flat = [row for rows in runs for row in rows]
    whole = any({(row.job, row.asked) for row in rows} == set(peers.BESIDE) for rows in runs)
    peer_cells = iter(_peers(table, flat, peers.BESIDE if whole else {}))
    for rows in runs:
        same = {(row.job, row.asked) for row in rows} == set(peers.BESIDE)
        total = 100 * sum(row.got for row in rows) / sum(row.asked or 0 for row in rows)
        for row in rows:
            peer = next(peer_cells)
            last = row is rows[-1]
            table.add_row(
                *_cells(row),
                f"{total:.1f}" if last else "",
                *(peer if same else ("",) * len(peer)),
                end_section=last,
            )
    _judge(table, flat, within=1.5)
    return table


def _elastic(lendings: Sequence[Lent]) -> Table:
    table = _table(
        "Elastic: half of the card and an idle neighbour's half",
        "job", "lone %", "requests of the neighbour", "later by ms", "at most ms",
    )  # fmt: skip
    for each in lendings:
        table.add_row(
            each.job,
            f"{each.lone:.1f}",
            str(each.requests),
            f"{each.late:.2f}",
            f"{each.latest:.2f}",
        )
    return table


def _priority(precedences: Sequence[Precedence]) -> Table:
    table = _table(
        "Priority: an inference loop beside another job: alone, unshared and under grants",
        "high", "low", "p50 ms", "alone", "unshared", "×", "p99 ms", "alone", "unshared", "×",
        "left %", "low got %", "of it %", "low, high idle %", words=2,
    )  # fmt: skip
    for each in precedences:
        table.add_row(
            each.high,
            each.low_job,
            f"{each.p50:.2f}",
            f"{each.p50_alone:.2f}",
            f"{each.p50_unshared:.2f}",
            f"{each.p50 / each.p50_alone:.2f}",
            f"{each.p99:.2f}",
            f"{each.p99_alone:.2f}",
            f"{each.p99_unshared:.2f}",
            f"{each.p99 / each.p99_alone:.2f}",
            f"{each.left:.1f}",
            f"{each.low:.1f}",
            f"{100 * each.low / each.left:.1f}",
            f"{each.undisturbed:.1f}",
        )
    return table


def _free(free_runs: Sequence[Free]) -> Table:
    table = _table(
        "Nothing limited but memory: throughput beside that without hetero, alternating",
        "job", "memory only %", "lowest–highest", "core 100 %", "lowest–highest",
    )  # fmt: skip
    for each in free_runs:
        figures = []
        for rounds in (each.memory_only, each.full):
            figures += [f"{mean(rounds):.2f}", f"{min(rounds):.1f}–{max(rounds):.1f}"]
        table.add_row(each.job, *figures)
    return table
