"""Which engines and trainers are measured at the same time, and what is printed of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from attrs import evolve, frozen

from hetero.model import Policy

FIRST, SECOND, TRAINER = "engine 1", "engine 2", "trainer"
#: An engine that hetero does not start, beside those that it does.
BARE = "bare"
ENGINES = (FIRST, SECOND, BARE)
HALF = 50
#: What an engine takes by itself of the memory that it may have.
OF_MEMORY = 0.9
#: Nearly all of a card: the limiter charges, and what it charges is what the program needs.
NEARLY_ALL = 99
KINDS = ("alone", "pair", "trainer", "cost")
#: How often an engine without hetero and one with it are measured in turn for "cost".
ALTERNATIONS = 6
#: Student's t for 95 % of ALTERNATIONS - 1 degrees of freedom (NIST's table of critical values).
_T_95 = 2.571
#: The names of its two cells.
_COST = ("cost", "cost 100")
WITH_TRAINER = "engine + trainer"
#: What vLLM and Python say when the reason is in another process's words.
_CONSEQUENCES = ("See root cause above", "Engine core initialization failed", "EngineDeadError")
_REASON = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception)\b: .*|\bassert\b.*|out of memory.*")
COLUMNS = (
    f"{'manager':9} {'cell':32} {'load':9} {'program':8} {'rate/s':>9} {'of none':>7} {'own':>6} "
    f"{'TTFT p50':>8} {'p99':>8} {'TPOT p50':>8} {'p99':>7} {'late':>4}"
)


@frozen
class Part:
    """A program and its share in percent; None: no limit."""

    program: str
    core: int | None = None
    policy: Policy = Policy.FIXED


@frozen(kw_only=True)
class Cell:
    """Programs that are measured at the same time; `kind` is one of KINDS.

    One that is `saturated` is not measured at a request rate.
    """

    kind: str
    parts: tuple[Part, ...]
    saturated: bool = False

    @property
    def programs(self) -> tuple[str, ...]:
        """Which programs run."""
        return tuple(part.program for part in self.parts)

    def __str__(self) -> str:
        what = self.kind if len(self.parts) == 1 or TRAINER not in self.programs else WITH_TRAINER
        limited = any(part.core is not None for part in self.parts)
        shares = " + ".join("open" if part.core is None else f"{part.core}" for part in self.parts)
        policy = "" if self.parts[0].policy is Policy.FIXED else " elastic"
        return f"{what} {shares}{policy}" if limited else what


def _cell(*parts: Part, kind: str, policy: Policy = Policy.FIXED, saturated: bool = False) -> Cell:
    each = tuple(evolve(part, policy=policy) for part in parts)
    return Cell(kind=kind, parts=each, saturated=saturated)


def _alone(core: int | None = None, *, saturated: bool = False) -> Cell:
    return _cell(Part(FIRST, core), kind="alone", saturated=saturated)


def _pair(first: int | None = None, second: int | None = None, **rest: Any) -> Cell:
    return _cell(Part(FIRST, first), Part(SECOND, second), kind="pair", **rest)


def _with_trainer(core: int | None = None, **rest: Any) -> Cell:
    return _cell(Part(FIRST, core), Part(TRAINER, core), kind="trainer", **rest)


#: Where nobody has a share.
OPEN = (
    _alone(),
    _cell(Part(TRAINER), kind="trainer", saturated=True),
    _pair(),
    _with_trainer(),
)
#: Where shares are set when programs start, and stay.
HALVES = (_alone(HALF), _pair(HALF, HALF), _with_trainer(HALF))
#: Where they change in place. What matters most comes first: time may be over.
SHARES = (
    _alone(),
    _pair(),
    _pair(HALF, HALF),
    _pair(HALF, HALF, policy=Policy.ELASTIC),
    _cell(Part(TRAINER), kind="trainer", saturated=True),
    _with_trainer(),
    _with_trainer(HALF),
    _with_trainer(HALF, policy=Policy.ELASTIC),
    *(_alone(core, saturated=True) for core in (NEARLY_ALL, 30, HALF, 70)),
    _pair(60, 40, saturated=True),
    _pair(30, 60, saturated=True),
    # What the limiter costs: an engine without hetero and one with all of the card, in turn.
    *(_cell(Part(BARE), kind="cost"), _cell(Part(FIRST, 100), kind="cost")) * ALTERNATIONS,
)


def cost(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return, of the rows of the cells "cost", what hetero adds to TPOT and TTFT in percent.

    It is the mean of the alternations' ratios, with its interval of confidence at 95 %.
    """
    loads = dict.fromkeys(row["load"] for row in rows if row.get("cell") in _COST)
    return [line for load in loads for line in _cost(rows, load)]


def _cost(rows: Sequence[Mapping[str, Any]], load: str) -> Iterator[str]:
    bare, own = (
        [row["programs"][0] for row in rows if (row.get("cell"), row.get("load")) == (cell, load)]
        for cell in _COST
    )
    if not len(bare) == len(own) == ALTERNATIONS:
        return
    requests = min(each["requests"] for each in bare + own)
    yield f"cost {load}: {ALTERNATIONS} alternations, each of {requests} requests or more"
    for times, percentile in (("tpot_ms", "p50"), ("tpot_ms", "p99"), ("ttft_ms", "p99")):
        pairs = zip(bare, own, strict=True)
        added = [100 * (b[times][percentile] / a[times][percentile] - 1) for a, b in pairs]
        half = _T_95 * stdev(added) / ALTERNATIONS**0.5
        low, high = mean(added) - half, mean(added) + half
        what = f"{times[:4].upper()} {percentile}"
        yield f"cost {load}: {what} {mean(added):+.2f} % ({low:+.2f} to {high:+.2f})"


def earlier_rows(file: Path | None, card: str, engine: str) -> list[dict[str, Any]]:
    """Return what a file of rows has of this engine on such a card."""
    if file is None or not file.exists():
        return []
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row for row in rows if (row["card"], row["engine"]) == (card, engine)]


def reason(log: str) -> str:
    """Return the first line of a log that says why a program failed, or its last one."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for line in lines:
        match = _REASON.search(line)
        if match and not any(each in line for each in _CONSEQUENCES):
            return match[0]
    return lines[-1] if lines else "it said nothing"


def lines(row: Mapping[str, Any]) -> list[str]:
    """Return a row of the report as lines of the table, one a program."""
    return [_line(row, got) for got in row["programs"]]


def _line(row: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    none, own = ("-" if got[of] is None else f"{got[of]:.1f}" for of in ("of_none", "of_own"))
    return (
        f"{row['manager']:9} {row['cell']:32} {row['load']:9} {got['program']:8} "
        f"{got['rate']:9.1f} {none:>7} {own:>6} {_times(got, 'ttft_ms', 8, 1)} "
        f"{_times(got, 'tpot_ms', 8, 2, second=7)} {got.get('unfinished', 0) or '':>4}"
    ).rstrip()


def _times(
    got: Mapping[str, Any], name: str, width: int, digits: int, *, second: int | None = None
) -> str:
    times = got.get(name)
    p50, p99 = (f"{times[key]:.{digits}f}" if times else "-" for key in ("p50", "p99"))
    return f"{p50:>{width}} {p99:>{second or width}}"


def accounts(row: Mapping[str, Any]) -> list[str]:
    """Return what was seen of a row's programs from outside, as lines."""
    return [
        f"    {got['program']}: " + ", ".join(f"{name} {value}" for name, value in seen.items())
        for got in row["programs"]
        if (seen := got.get("detail"))
    ]
