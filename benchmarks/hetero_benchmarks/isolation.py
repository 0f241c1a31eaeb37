"""`hetero bench isolation`: does a program get the share of the card that was asked for it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import click
from attrs import frozen
from rich.table import Table

from hetero.errors import BadInput
from hetero.units import parse_percent
from hetero_benchmarks import peers, report
from hetero_benchmarks.job import JOBS
from hetero_benchmarks.rates import Pace, share, swing
from hetero_benchmarks.trial import Machine, Trial, find_machine, run_together

NAME = "hetero bench isolation"

#: The trials that ran at the same time, each with the pace of its job.
Run = tuple[tuple[Trial, Pace], ...]


@frozen(kw_only=True)
class Row:
    """What one job was asked to take and took, in percent of its mean rate alone and unlimited.

    `asked` None is a run without hetero. `slowest` and `fastest` are its single seconds.
    """

    job: str
    asked: int | None
    got: float
    error: float | None
    slowest: float
    fastest: float
    pace: Pace


@frozen(kw_only=True)
class Isolation:
    """The whole report: jobs one at a time, then jobs that ran together."""

    command: str
    machine: Machine
    seconds: float
    alone: tuple[Row, ...]
    together: tuple[tuple[Row, ...], ...]


def main(argv: Sequence[str]) -> int:
    """Run the benchmark and return its exit code."""
    return report.call(isolation, argv, name=NAME)


def _jobs(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    return tuple(_job(name) for name in text.split(",") if name)


def _job(name: str) -> str:
    if name not in JOBS:
        raise BadInput(f"no job {name!r}: there are {', '.join(JOBS)}")
    return name


def _shares(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    return tuple(parse_percent(part, of="share") for part in text.split(",") if part)


def _tenants(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[Trial, ...], ...]:
    return tuple(tuple(_tenant(part) for part in text.split(",")) for text in texts)


def _tenant(text: str) -> Trial:
    core, colon, name = text.partition(":")
    if not colon:
        raise BadInput(f"tenant {text!r} is not SHARE:JOB, as in 60:gemm")
    return Trial(job=_job(name), core=parse_percent(core, of="share"))


@click.command(epilog="Jobs: " + "; ".join(f"{name} ({job.step})" for name, job in JOBS.items()))
@click.option(
    "--jobs",
    callback=_jobs,
    default="resnet18,gemm,small,graph",
    show_default=True,
    help="The jobs to run one at a time.",
)
@click.option(
    "--shares",
    callback=_shares,
    default="30,60",
    show_default=True,
    help="The shares to run each at, in percent of the card.",
)
@click.option(
    "--together",
    callback=_tenants,
    multiple=True,
    metavar="SHARE:JOB,SHARE:JOB",
    help="Also run these jobs at once, as in 60:gemm,30:resnet18. Repeatable.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=10,
    show_default=True,
    help="How long each run is measured, after its warm-up.",
)
@click.option("--uuid", help="The card, by the start of its UUID. Default: the first one.")
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report here, anew after every run.",
)
@click.pass_obj
def isolation(
    command: str,
    jobs: tuple[str, ...],
    shares: tuple[int, ...],
    together: tuple[tuple[Trial, ...], ...],
    seconds: float,
    uuid: str | None,
    file: Path | None,
) -> None:
    """Measure how much of a card a program gets at a share, beside what was asked.

    Every job runs without hetero first, then under `hetero run --core SHARE`, then without it
    again, so that a card that warms up or slows down shows. "got" is the job's throughput in
    percent of the mean of those two, "swing" its slowest and fastest second. The card should have
    nothing else to do.

    \b
    hetero bench isolation --jobs gemm --shares 10,30,60
    hetero bench isolation --together 60:gemm,30:resnet18 --json isolation.json
    HETERO_RACK=one hetero bench isolation --jobs simulated   (needs no card)
    """
    machine = find_machine(uuid)
    plan = planned(jobs, shares, together)
    runs: list[Run] = []

    def so_far() -> Isolation:
        alone, beside = judged(runs)
        return Isolation(
            command=command,
            machine=machine,
            seconds=seconds,
            alone=alone,
            together=beside,
        )

    try:
        for number, trials in enumerate(plan, 1):
            report.progress(f"[{number}/{len(plan)}] {' beside '.join(map(str, trials))}")
            paces = run_together(trials, machine, seconds=seconds)
            runs.append(tuple(zip(trials, paces, strict=True)))
            report.save(so_far(), file)
    finally:
        if runs:
            _show(so_far())


def planned(
    jobs: Sequence[str], shares: Sequence[int], together: Sequence[tuple[Trial, ...]]
) -> list[tuple[Trial, ...]]:
    """Return what to run, in order: each job unlimited first and last, tenants at the end."""
    plan: list[tuple[Trial, ...]] = []
    for job in jobs:
        cores = (None, *shares, None)
        plan += [(Trial(job=job, core=core),) for core in cores]
    guests = dict.fromkeys(trial.job for trials in together for trial in trials)
    plan += [(Trial(job=job),) for job in guests if job not in jobs]
    return [*plan, *together]


def judged(runs: Sequence[Run]) -> tuple[tuple[Row, ...], tuple[tuple[Row, ...], ...]]:
    """Return the rows of the jobs that ran alone and those of each run together."""
    natives: dict[str, list[float]] = {}
    for run in runs:
        for trial, pace in run:
            if trial.core is None:
                natives.setdefault(trial.job, []).append(pace.rate)
    native = {job: mean(rates) for job, rates in natives.items()}
    rows = [tuple(_row(trial, pace, native) for trial, pace in run) for run in runs]
    return tuple(run[0] for run in rows if len(run) == 1), tuple(run for run in rows if run[1:])


def _row(trial: Trial, pace: Pace, native: Mapping[str, float]) -> Row:
    got = share(pace.rate, native[trial.job])
    slowest, fastest = swing(pace, native[trial.job])
    return Row(
        job=trial.job,
        asked=trial.core,
        got=got,
        error=None if trial.core is None else got - trial.core,
        slowest=slowest,
        fastest=fastest,
        pace=pace,
    )


def _show(result: Isolation) -> None:
    tables = [_table("One job at a time", result.alone, peers.ALONE)] if result.alone else []
    for rows in result.together:
        title = " beside ".join(f"{row.job} at {row.asked} %" for row in rows)
        same = {(row.job, row.asked) for row in rows} == set(peers.BESIDE)
        tables.append(_table(title, rows, peers.BESIDE if same else {}))
    compared = any(len(table.columns) > len(_HEADINGS) for table in tables)
    report.show(result.machine, *tables, notes=[peers.SOURCE] if compared else [])


_HEADINGS = ("job", "asked %", "got %", "error", "swing %", "steps/s", "p50 ms", "p99 ms")


def _table(
    title: str, rows: Sequence[Row], known: Mapping[tuple[str, int], tuple[str, ...]]
) -> Table:
    """Return the rows as a table, with the peers' columns where they are known for any of them."""
    unknown = ("",) * len(peers.NAMES)
    theirs = [known.get((row.job, row.asked or 0), unknown) for row in rows]
    compared = any(each is not unknown for each in theirs)
    table = Table(title=title, title_justify="left")
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "job" else "right")
    for name in peers.NAMES if compared else ():
        table.add_column(f"{name} %", justify="right", style="dim")
    for row, peer in zip(rows, theirs, strict=True):
        table.add_row(
            row.job,
            "unlimited" if row.asked is None else str(row.asked),
            f"{row.got:.1f}",
            "" if row.error is None else f"{row.error:+.1f}",
            f"{row.slowest:.1f}–{row.fastest:.1f}",
            f"{row.pace.rate:.4g}",
            f"{1000 * row.pace.p50:.2f}",
            f"{1000 * row.pace.p99:.2f}",
            *(peer if compared else ()),
        )
    return table
