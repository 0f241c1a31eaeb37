"""`hetero bench isolation`: does every program get the share of the card that was asked for it?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from attrs import evolve, frozen

from hetero.model.errors import BadInput, HeteroError
from hetero.model.units import parse_percent
from hetero_benchmarks import goals, report, tables
from hetero_benchmarks.cells import Cell, Share, Tenant
from hetero_benchmarks.fleet import Fleet
from hetero_benchmarks.goals import Free, Lent, Precedence, Row
from hetero_benchmarks.job import JOBS
from hetero_benchmarks.rates import Pace, share
from hetero_benchmarks.trial import Machine, find_machine


@frozen(kw_only=True)
class SignedContainer:
    """Which jobs to measure for which promise."""

    jobs: tuple[str, ...] = ()
    shares: tuple[int, ...] = (30, 60)
    together: tuple[tuple[Tenant, ...], ...] = ()
    pairs: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...] = ()
    elastic: tuple[str, ...] = ()
    priority: tuple[tuple[str, str], ...] = ()
    free: tuple[str, ...] = ()

    def alone(self, seconds: float) -> tuple[Cell, ...]:
        """Return the cells of jobs that are alone."""
        return tuple(goals.alone(self.jobs, self.shares, seconds))

    def together_cells(self, seconds: float) -> tuple[Cell, ...]:
        """Return the cells of tenants that are together."""
        named = (Cell(tenants=tenants, seconds=seconds) for tenants in self.together)
        pairings = (
            cell for jobs, split in self.pairs for cell in goals.pairings(jobs, split, seconds)
        )
        return (*named, *pairings)

    def plan(self, seconds: float) -> list[Cell]:
        """Return all that is to be measured, in order.

        Each job is unlimited before it is judged, and again after all that it was beside, because
        a program's speed alone drifts.
        """
        plan = list(self.alone(seconds))
        rest = list(self.together_cells(seconds))
        judged = [tenant.job for cell in rest for tenant in cell.tenants]
        rest += [goals.unlimited(job, seconds) for job in dict.fromkeys(judged)]
        for job in self.elastic:
            rest += goals.lending(job, seconds)
            judged.append(job)
        for high, low in self.priority:
            rest += goals.precedence_cells(high, low, seconds)
            judged.append(low)
        natives = (goals.unlimited(job, seconds) for job in dict.fromkeys(judged))
        plan += [cell for cell in natives if cell not in plan]
        for job in self.free:
            rest += goals.unhindered(job, seconds)
        return plan + rest


#: Every promise in some ten minutes on a real card.
SHORT_FORM = SignedContainer(
    jobs=(
        "resnet18", "gemm", "small", "graph", "gemm16384", "copy", "decode", "streams",
        "processes", "cooperative",
    ),
    pairs=((("resnet18", "gemm", "decode"), (50, 50)),),
    elastic=("gemm",),
    priority=(("decode", "resnet18"),),
    free=("resnet18", "gemm", "small", "graph"),
)  # fmt: skip


@frozen(kw_only=True)
class Isolation:
    """The whole report; `missing` says of what was not measured why."""

    command: str
    machine: Machine
    seconds: float
    alone: tuple[Row, ...]
    together: tuple[tuple[Row, ...], ...]
    elastic: tuple[Lent, ...]
    priority: tuple[Precedence, ...]
    free: tuple[Free, ...]
    missing: tuple[str, ...]


def judged(
    command: str,
    machine: Machine,
    wanted: SignedContainer,
    seconds: float,
    results: goals.Results,
    missing: Sequence[str],
) -> Isolation:
    """Return the report on what was measured so far."""
    lent = (goals.lent(job, seconds, results) for job in wanted.elastic)
    first = (goals.precedence(high, low, seconds, results) for high, low in wanted.priority)
    free = (goals.free(job, seconds, results) for job in wanted.free)
    return Isolation(
        command=command,
        machine=machine,
        seconds=seconds,
        alone=tuple(row for rows in goals.rows(wanted.alone(seconds), results) for row in rows),
        together=goals.rows(wanted.together_cells(seconds), results),
        elastic=tuple(each for each in lent if each),
        priority=tuple(each for each in first if each),
        free=tuple(each for each in free if each),
        missing=tuple(missing),
    )


def _jobs(text: str) -> tuple[str, ...]:
    return tuple(_job(name) for name in text.split(",") if name)


def _job(name: str) -> str:
    if name not in JOBS:
        raise BadInput(f"no job {name!r}: there are {', '.join(JOBS)}")
    return name


def _shares(text: str) -> tuple[int, ...]:
    return tuple(_percent(part) for part in text.split(",") if part)


def _percent(text: str) -> int:
    percent = parse_percent(text, of="share")
    if not 1 <= percent < 100:
        raise BadInput(f"share {text} is not from 1 to 99: --free measures the whole card")
    return percent


def _tenants(text: str) -> tuple[Tenant, ...]:
    return tuple(_tenant(part) for part in text.split(","))


def _tenant(text: str) -> Tenant:
    core, colon, name = text.partition(":")
    if not colon:
        raise BadInput(f"tenant {text!r} is not SHARE:JOB, as in 60:gemm")
    return Tenant(job=_job(name), share=Share(core=_percent(core)))


def _pairs(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    jobs, colon, split = text.rpartition(":")
    if not colon:
        raise BadInput(f"pairs {text!r} are not JOB,JOB,...:SHARE+SHARE, as in gemm,copy:50+50")
    times = re.fullmatch(r"(\d+)x(\d+)", split)
    parts = [times[1]] * int(times[2]) if times else split.split("+")
    return _jobs(jobs), tuple(map(_percent, parts))


def _priority(text: str) -> tuple[str, str]:
    high, colon, low = text.partition(":")
    if not colon:
        raise BadInput(f"priority {text!r} is not HIGH:LOW, as in decode:resnet18")
    return _job(high), _job(low)


def _each(read: Callable[[str], object]) -> Callable[..., object]:
    """Return a callback for click that reads an option, or every one of a repeatable one."""

    def callback(_context: click.Context, _option: click.Parameter, given: object) -> object:
        if isinstance(given, tuple):
            return tuple(map(read, given))
        return None if given is None else read(str(given))

    return callback


@click.command(epilog="Jobs: " + "; ".join(f"{name} ({job.step})" for name, job in JOBS.items()))
@click.option("--jobs", callback=_each(_jobs), help="Run these one at a time, at every share.")
@click.option(
    "--shares",
    callback=_each(_shares),
    default="30,60",
    show_default=True,
    help="The shares of --jobs, in percent of the card.",
)
@click.option(
    "--together",
    callback=_each(_tenants),
    multiple=True,
    metavar="SHARE:JOB,SHARE:JOB",
    help="Run these at once, as in 60:gemm,30:resnet18. Repeatable.",
)
@click.option(
    "--pairs",
    callback=_each(_pairs),
    multiple=True,
    metavar="JOB,JOB,...:SHARE+SHARE",
    help="Run every pairing of these jobs at once at these shares, as in gemm,copy:10+90 or "
    "gemm,copy:25x4. Repeatable.",
)
@click.option("--elastic", callback=_each(_jobs), help="Lend these an idle neighbour's half.")
@click.option(
    "--priority",
    callback=_each(_priority),
    multiple=True,
    metavar="HIGH:LOW",
    help="Run HIGH as an inference loop of high priority beside LOW, as in decode:resnet18. "
    "Repeatable.",
)
@click.option("--free", callback=_each(_jobs), help="Run these with memory limited only.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=10,
    show_default=True,
    help="How long each run is measured.",
)
@report.uuid_option
@report.json_option
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also append every run here as it ends, one JSON object a line.",
)
@click.pass_obj
def isolation(
    command: str,
    /,
    seconds: float,
    uuid: str | None,
    file: Path | None,
    record: Path | None,
    **options: object,
) -> int:
    """Measure how much of a card programs get, beside what was asked for them.

    Every job is a program that stays up and whose share is changed between runs. "got" is its
    throughput in percent of the same job without hetero. The card should have nothing else to do.
    With no job named, a short form of everything is measured on jobs of PyTorch.

    \b
    hetero bench isolation --jobs gemm --shares 10,30,60
    hetero bench isolation --pairs gemm,resnet18,decode:50+50 --json isolation.json
    hetero bench isolation --elastic gemm --priority decode:resnet18 --free gemm,small
    HETERO_RACK=one hetero bench isolation --jobs simulated   (needs no card)
    """
    named = {name: value for name, value in options.items() if value}
    asked = SignedContainer(**named)  # type: ignore[arg-type]
    wanted = asked if named.keys() - {"shares"} else evolve(SHORT_FORM, shares=asked.shares)
    machine = find_machine(uuid)
    plan = wanted.plan(seconds)
    results: dict[Cell, list[tuple[Pace | None, ...]]] = {}
    missing: list[str] = []

    def so_far() -> Isolation:
        return judged(command, machine, wanted, seconds, results, missing)

    with Fleet(machine) as fleet, _shown_at_the_end(so_far):
        for number, cell in enumerate(plan, 1):
            place = f"[{number}/{len(plan)}] {cell}"
            try:
                fleet.prepare(plan[number - 1 :])
                paces = fleet.measure(cell)
            except HeteroError as error:
                missing.append(f"{cell}: {error}")
                report.progress(f"{place}: not measured: {error}")
                continue
            results.setdefault(cell, []).append(paces)
            report.progress(f"{place}: {_said(cell, paces, results)}")
            report.append({"run": str(cell), "cell": cell, "paces": paces}, record)
            report.save(so_far(), file)
    return int(bool(missing))


main = report.entry(isolation)


@contextmanager
def _shown_at_the_end(so_far: Callable[[], Isolation]) -> Iterator[None]:
    """Show the tables whatever ends the measuring, and before its programs are ended.

    They are there even when the time has run out.
    """
    try:
        yield
    finally:
        tables.show(so_far())


def _said(cell: Cell, paces: Sequence[Pace | None], results: goals.Results) -> str:
    """Return what a run gave, in a few words."""
    native = goals.natives(results)
    words = []
    for tenant, pace in zip(cell.tenants, paces, strict=True):
        if pace is not None and tenant.job in native and not tenant.rest:
            words.append(f"{share(pace.rate, native[tenant.job]):.1f} %")
        elif pace is not None:
            words.append(f"{pace.rate:.4g} steps/s of {1000 * pace.p50:.2f} ms")
    return ", ".join(words)
