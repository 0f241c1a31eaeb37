"""What is measured for each promise about shares, and what the measurements say of it: all pure.

Throughput is in percent of the same job without hetero, alone on the card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from statistics import mean

from attrs import frozen

from hetero.model import Policy, Priority
from hetero_benchmarks.cells import FULL, Cell, Share, Tenant
from hetero_benchmarks.rates import Pace, share, swing

#: Below this share a single second is not judged: it holds a few time slices only.
JUDGED_FROM = 25

#: Seconds between two requests of a neighbour that uses its card now and then.
RARELY = 0.25
#: Seconds between two requests of an inference loop.
THINKING = 0.02

#: How many rounds the ways to run unhindered alternate for.
ROUNDS = 4

#: What was measured, cell by cell; a cell measured again has more than one.
Results = Mapping[Cell, Sequence[tuple[Pace | None, ...]]]


@frozen(kw_only=True)
class Row:
    """What one job was asked to take and took.

    `asked` None is a run without hetero. `slowest` and `fastest` are any seconds of it, `worst` is
    how far the worse of them is from what was asked, from JUDGED_FROM up.
    """

    job: str
    asked: int | None
    got: float
    error: float | None
    worst: float | None
    slowest: float
    fastest: float
    pace: Pace


@frozen(kw_only=True)
class Lent:
    """What an elastic tenant gets while its neighbour is idle, and how soon that one is served.

    `late` are milliseconds beyond what a request of the neighbour takes without hetero, the median
    and the most of so many `requests`.
    """

    job: str
    lone: float
    requests: int
    late: float
    latest: float


@frozen(kw_only=True)
class Precedence:
    """An inference loop of high priority beside a job of low priority.

    Step times are in milliseconds, `alone` and `unshared` without hetero: by itself and beside the
    other job. `left` is the percentage of the time that the loop leaves when alone, `low` what the
    other job got, `undisturbed` what it gets while the loop stands idle.
    """

    high: str
    low_job: str
    p50_alone: float
    p50_unshared: float
    p50: float
    p99_alone: float
    p99_unshared: float
    p99: float
    left: float
    low: float
    undisturbed: float


@frozen(kw_only=True)
class Free:
    """What the limiter takes when it limits nothing: throughput in each round."""

    job: str
    memory_only: tuple[float, ...]
    full: tuple[float, ...]


def natives(results: Results) -> dict[str, float]:
    """Return each job's steps per second without hetero, the mean of its runs for a table."""
    rates_of: dict[str, list[float]] = {}
    for cell, runs in results.items():
        if cell == unlimited(cell.tenants[0].job, cell.seconds):
            paces = [run[0] for run in runs]
            rates_of.setdefault(cell.tenants[0].job, []).extend(p.rate for p in paces if p)
    return {job: mean(rates) for job, rates in rates_of.items()}


def unlimited(job: str, seconds: float) -> Cell:
    """Return the cell of a job without hetero."""
    return Cell(tenants=(Tenant(job=job),), seconds=seconds)


def row(tenant: Tenant, pace: Pace, native: float) -> Row:
    """Return what a tenant got beside what it asked."""
    got = share(pace.rate, native)
    slowest, fastest = swing(pace, native)
    asked = tenant.share.core if tenant.share else None
    return Row(
        job=tenant.job,
        asked=asked,
        got=got,
        error=None if asked is None else got - asked,
        worst=_worst(asked, slowest, fastest),
        slowest=slowest,
        fastest=fastest,
        pace=pace,
    )


def _worst(asked: int | None, slowest: float, fastest: float) -> float | None:
    if asked is None or asked < JUDGED_FROM:
        return None
    return max(slowest - asked, fastest - asked, key=abs)


def alone(jobs: Sequence[str], shares: Sequence[int], seconds: float) -> Iterator[Cell]:
    """Give what is measured of jobs that are alone: unlimited first and last, to show a drift."""
    for job in jobs:
        yield unlimited(job, seconds)
        for core in shares:
            yield Cell(tenants=(Tenant(job=job, share=Share(core=core)),), seconds=seconds)
        yield unlimited(job, seconds)


def rows(cells: Sequence[Cell], results: Results) -> tuple[tuple[Row, ...], ...]:
    """Return the rows of each of `cells` that was measured, those of a cell together."""
    native = natives(results)
    seen: dict[Cell, int] = {}
    rows_by_cell = []
    for cell in cells:
        nth = seen[cell] = seen.get(cell, -1) + 1
        runs = results.get(cell, ())
        if nth < len(runs) and all(tenant.job in native for tenant in cell.tenants):
            pairs = zip(cell.tenants, runs[nth], strict=True)
            rows_by_cell.append(
                tuple(row(tenant, p, native[tenant.job]) for tenant, p in pairs if p)
            )
    return tuple(rows_by_cell)


def pairings(jobs: Sequence[str], split: Sequence[int], seconds: float) -> Iterator[Cell]:
    """Give every pairing of `jobs`, a job with itself too, that shares a card as `split` says.

    25, 25, 25 and 25 are two programs of each. Unequal shares are tried both ways.
    """
    for pair in combinations_with_replacement(jobs, 2):
        ways = [split] if pair[0] == pair[1] or len(set(split)) == 1 else [split, split[::-1]]
        for cores in ways:
            tenants = tuple(
                Tenant(job=pair[place % 2], share=Share(core=core))
                for place, core in enumerate(cores)
            )
            yield Cell(tenants=tenants, seconds=seconds)


_ELASTIC = Share(core=50, policy=Policy.ELASTIC)
_FIRST = Share(core=50, policy=Policy.ELASTIC, priority=Priority.HIGH)
_RARE = Tenant(job="tick", share=Share(core=50), rest=RARELY)


def lending(job: str, seconds: float) -> tuple[Cell, Cell, Cell]:
    """Return an elastic tenant beside an idle one; the neighbour without hetero; both at work."""
    elastic = Tenant(job=job, share=_ELASTIC)
    idle = Tenant(job="tick", share=_RARE.share, idle=True)
    return (
        Cell(tenants=(elastic, idle), seconds=seconds),
        Cell(tenants=(Tenant(job="tick", rest=RARELY),), seconds=seconds),
        Cell(tenants=(elastic, _RARE), seconds=seconds),
    )


def lent(job: str, seconds: float, results: Results) -> Lent | None:
    """Return what `lending` says, if all of it was measured."""
    measured = [_last(cell, results) for cell in lending(job, seconds)]
    native = natives(results).get(job)
    match measured:
        case [(Pace() as lone, None), (Pace() as rare,), (Pace(), Pace() as together)] if native:
            return Lent(
                job=job,
                lone=share(lone.rate, native),
                requests=round(together.rate * seconds),
                late=1000 * (together.p50 - rare.p50),
                latest=1000 * (together.longest - rare.p50),
            )
    return None


def precedence_cells(high: str, low: str, seconds: float) -> tuple[Cell, ...]:
    """Return the runs of an inference loop beside another job.

    The loop without hetero, alone and beside the other; both under grants at work; the other
    beside an idle loop.
    """
    loop = Tenant(job=high, share=_FIRST, rest=THINKING)
    idle = Tenant(job=high, share=_FIRST, idle=True)
    other = Tenant(job=low, share=_ELASTIC)
    unlimited_loop = Tenant(job=high, rest=THINKING)
    return (
        Cell(tenants=(unlimited_loop,), seconds=seconds),
        Cell(tenants=(unlimited_loop, Tenant(job=low)), seconds=seconds),
        Cell(tenants=(loop, other), seconds=seconds),
        Cell(tenants=(idle, other), seconds=seconds),
    )


def precedence(high: str, low: str, seconds: float, results: Results) -> Precedence | None:
    """Return what `precedence_cells` say, if all of it was measured."""
    measured = [_last(cell, results) for cell in precedence_cells(high, low, seconds)]
    native = natives(results).get(low)
    match measured:
        case [
            (Pace() as alone,),
            (Pace() as unshared, Pace()),
            (Pace() as loop, Pace() as other),
            (None, Pace() as free),
        ] if native:
            return Precedence(
                high=high,
                low_job=low,
                p50_alone=1000 * alone.p50,
                p50_unshared=1000 * unshared.p50,
                p50=1000 * loop.p50,
                p99_alone=1000 * alone.p99,
                p99_unshared=1000 * unshared.p99,
                p99=1000 * loop.p99,
                left=100 * (1 - alone.busy),
                low=share(other.rate, native),
                undisturbed=share(free.rate, native),
            )
    return None


def unhindered(job: str, seconds: float) -> tuple[Cell, ...]:
    """Return the ways to run without a limit of the core, alternating in short runs."""
    ways = (None, Share(), Share(core=FULL))
    return ROUNDS * tuple(
        Cell(tenants=(Tenant(job=job, share=way),), seconds=seconds / ROUNDS, lead=0.5)
        for way in ways
    )


def free(job: str, seconds: float, results: Results) -> Free | None:
    """Return what `unhindered` says, if all of it was measured."""
    ways = [results.get(cell, ()) for cell in unhindered(job, seconds)[:3]]
    rates = [[run[0].rate for run in runs if run[0]] for runs in ways]
    if any(len(each) < ROUNDS for each in rates):
        return None
    plain, memory_only, full = rates
    return Free(
        job=job,
        memory_only=tuple(map(share, memory_only, plain)),
        full=tuple(map(share, full, plain)),
    )


def _last(cell: Cell, results: Results) -> tuple[Pace | None, ...]:
    runs = results.get(cell, ())
    return runs[-1] if runs else ()
