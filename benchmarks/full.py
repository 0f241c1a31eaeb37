"""Measures whether anybody waits while the card could work.

    benchmarks/full.py [mixes,alone,online,jobs,faults] [--mix light:25,light:25 ...]
                       [--alone light,halves] [--online online] [--batch vit] [--jobs gemm,copy ...]
                       [--sharing time,mps] [--seconds 10] [--phase 15] [--configurations ...]
                       [--events "a tenant killed,…"] [--hami-core LIBRARY] [--json FILE]

mixes   programs beside each other: without a limiter, under NVIDIA MPS without hetero, under hetero
        with fixed shares and with elastic ones, and elastic on a card that MPS shares. HAMi-core
        beside them, where its library is given.
alone   one program at 10, 30 and 60 %, beside what the law says: min(100, 100 share/b), where b is
        the part of the time for which it keeps the card busy alone (PyTorch's profiler).
online  requests of high priority, 40 a second of 5 ms each (Poisson), beside a program of low
        priority that stands still and runs in turn, four times: p99, and what the other has of what
        is left.
jobs    jobs that want all of the card, alone at 10, 30 and 60 %; on a card that MPS shares at 30.
faults  on a card that MPS shares: a program that is killed, one that is released by force, a store
        out of bounds in one, the daemon killed. What each neighbour saw, and what a newcomer.

A configuration is started once. With hetero each figure is in percent of the same processes without
a limit, before and after ("paired"): a program of PyTorch has up to 1.8 times the speed of another
start of it. A line is printed as soon as its run has ended. What cannot be had (MPS, PyTorch) is
"not run". Exit status 1: a figure misses what the limiter promises.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hetero_benchmarks import faults
from hetero_benchmarks.cells import OPEN, Cell, Share, Tenant
from hetero_benchmarks.fleet import Fleet
from hetero_benchmarks.full_goals import missed
from hetero_benchmarks.job import JOBS
from hetero_benchmarks.options import some_of
from hetero_benchmarks.rates import Pace
from hetero_benchmarks.trial import Machine, Program, find_machine
from hetero_benchmarks.ways import Settings, driver, hami_core, mps

from hetero.model import Policy, Priority
from hetero.model.errors import HeteroError

MIXES = ("light:25,light:25,light:25,light:25", "light:50,prefill:50")
SHARES = (10, 30, 60)
PHASES, PHASE = 4, 15.0
#: Seconds before each figure: a program whose limit has just changed learns its launches anew.
LEAD = 2.0
EIGHT = "resnet18,gemm,gemm16384,graph,copy,streams,processes,cooperative"
#: What of the jobs is measured on a card that MPS shares, and at which share.
ON_MPS, ON_MPS_SHARE = ("resnet18", "gemm", "graph", "processes"), 30
#: How programs share the card: without hetero, and under it by (the card's sharing, policies).
WITHOUT = ("none", "mps", "hami-core")
UNDER = {
    "fixed": ("time", Policy.FIXED),
    "elastic": ("time", Policy.ELASTIC),
    "elastic-mps": ("mps", Policy.ELASTIC),
}
CONFIGURATIONS = (*WITHOUT[:2], *UNDER, *WITHOUT[2:])

Around = Callable[[Machine], AbstractContextManager[Settings]]


def say(line: str) -> None:
    """Print a line that is seen at once."""
    print(line, flush=True)


@contextmanager
def skipping(what: str) -> Iterator[None]:
    """Say "not run" of what cannot be had."""
    try:
        yield
    except HeteroError as error:
        say(f"{what}: not run ({error})")


def measure(fleet: Fleet, cells: Sequence[Cell]) -> Iterator[tuple[Pace | None, ...]]:
    """Yield how the tenants of each cell ran, as soon as it has ended."""
    for number, cell in enumerate(cells):
        fleet.prepare(cells[number:])
        yield fleet.measure(cell)


def parts(text: str) -> list[tuple[str, int]]:
    """Return the jobs of a mix and their shares in percent."""
    split = (each.partition(":") for each in text.split(","))
    return [(job, int(share)) for job, _, share in split]


def rates(paces: Sequence[Pace | None]) -> list[float]:
    """Return the steps a second of those who ran."""
    return [pace.rate for pace in paces if pace is not None]


def mean(before: Sequence[float], after: Sequence[float]) -> list[float]:
    """Return the means of two runs."""
    return [(one + other) / 2 for one, other in zip(before, after, strict=True)]


def shown(figures: Sequence[float]) -> str:
    """Return the figures and their sum."""
    return " + ".join(f"{each:.1f}" for each in figures) + f" = {sum(figures):.1f}"


def limited(job: str, core: int, policy: Policy = Policy.FIXED) -> Tenant:
    """Return a job under a share that can be set in place."""
    return Tenant(job=job, share=Share(core=core, policy=policy))


def mix(
    machine: Machine, text: str, seconds: float, names: Sequence[str], hami: Path | None
) -> dict[str, Any]:
    """Return what the programs of a mix get under each configuration, in percent of one alone."""
    row: dict[str, Any] = {"mix": text, "alone": {}, "got": {}, "paired": {}}
    arounds: dict[str, Around] = {"none": driver, "mps": mps, "hami-core": hami_core(hami)}
    for name in WITHOUT:
        if name in names:
            with skipping(f"{text} {name}"), arounds[name](machine) as settings:
                _without(machine, row, name, settings, seconds)
    for sharing in ("time", "mps"):
        policies = {
            name: policy for name, (by, policy) in UNDER.items() if by == sharing and name in names
        }
        if policies:
            with skipping(f"{text} {' '.join(policies)}"), Fleet(machine, sharing=sharing) as fleet:
                _under(fleet, row, policies, seconds)
    return row


def _without(
    machine: Machine, row: dict[str, Any], name: str, settings: Settings, seconds: float
) -> None:
    """Measure a mix without hetero: each job alone, then all of them."""
    wanted = parts(row["mix"])
    tenants = tuple(
        Tenant(job=job, settings=tuple(sorted(settings(share).items()))) for job, share in wanted
    )
    first = {tenant.job: tenant for tenant in reversed(tenants)}
    cells = [
        Cell(tenants=some, seconds=seconds, lead=LEAD)
        for some in (*((tenant,) for tenant in first.values()), tenants)
    ]
    with Fleet(machine) as fleet:
        *solo, all_ = [rates(paces) for paces in measure(fleet, cells)]
    alone = dict(zip(first, (each[0] for each in solo), strict=True))
    row["alone"][name] = alone
    got = [100 * rate / alone[job] for rate, (job, _) in zip(all_, wanted, strict=True)]
    row["got"][name] = got
    say(f"{row['mix']} {name}: {shown(got)}")


def _under(fleet: Fleet, row: dict[str, Any], policies: dict[str, Policy], seconds: float) -> None:
    """Measure a mix under hetero: each job alone, and all with and without limits in turn."""
    text, wanted = row["mix"], parts(row["mix"])

    def cell(tenants: Sequence[Tenant]) -> Cell:
        return Cell(tenants=tuple(tenants), seconds=seconds, lead=LEAD)

    jobs = list(dict.fromkeys(job for job, _ in wanted))
    cells = [cell([limited(job, OPEN)]) for job in jobs]
    free = cell([limited(job, OPEN) for job, _ in wanted])
    cells.append(free)
    for policy in policies.values():
        cells += [cell([limited(job, share, policy) for job, share in wanted]), free]
    runs = measure(fleet, cells)
    alone = {job: rates(next(runs))[0] for job in jobs}
    before = rates(next(runs))
    for name in policies:
        limited_rates, after = rates(next(runs)), rates(next(runs))
        got, open_ = (
            [100 * rate / alone[job] for rate, (job, _) in zip(some, wanted, strict=True)]
            for some in (limited_rates, mean(before, after))
        )
        row["alone"][name], row["got"][name], row["paired"][name] = alone, got, open_
        ratio = sum(got) / sum(open_)
        say(f"{text} {name}: {shown(got)}; the same without limits {shown(open_)}: {ratio:.3f}")
        before = after


def profiled(machine: Machine, job: str) -> dict[str, float] | None:
    """Return what the profiler says of a job; None for one that is none of PyTorch's."""
    if JOBS[job].driver is not None:
        return None
    words = (sys.executable, "-m", "hetero_benchmarks.busy", job)
    with Program(words, machine, None, name=job) as program:
        profile: dict[str, float] = json.loads(list(program.lines())[-1])
    return profile


def alone(machine: Machine, job: str, seconds: float) -> dict[str, Any]:
    """Return what a job gets alone, and b, each beside the same process without a limit."""
    profile = profiled(machine, job)

    def cell(core: int) -> Cell:
        return Cell(tenants=(limited(job, core),), seconds=seconds, lead=LEAD)

    cells = [cell(OPEN)]
    for share in SHARES:
        cells += [cell(share), cell(OPEN)]
    row: dict[str, Any] = {"job": job, "b": {}, "got": {}, "law": {}}
    with Fleet(machine) as fleet:
        runs = measure(fleet, cells)
        (before,) = rates(next(runs))
        for share in SHARES:
            (limited_rate,), (after,) = rates(next(runs)), rates(next(runs))
            rate = (before + after) / 2
            b = None if profile is None else min(profile["busy_ms"] / 1000 * rate, 1.0)
            got, law = 100 * limited_rate / rate, 100.0 if b is None else min(100.0, share / b)
            row["b"][share], row["got"][share], row["law"][share] = b, got, law
            about = "not known" if b is None else f"{100 * b:.1f}"
            say(f"{job} alone at {share}: {got:.1f} of {law:.1f} (b {about}, {rate:.1f} steps/s)")
            before = after
    return row


def online(
    machine: Machine, requests: str, batch: str, seconds: float, sharing: str
) -> dict[str, Any]:
    """Return the p99 of requests beside a program that stands still and that runs, in turn."""
    profile = profiled(machine, batch)
    high = Tenant(job=requests, share=Share(core=50, priority=Priority.HIGH))
    low, free = limited(batch, 50, Policy.ELASTIC), limited(batch, OPEN, Policy.ELASTIC)
    idle = Tenant(job=batch, share=low.share, idle=True)
    phases = [(high, idle), (high, low)] * PHASES
    cells = [
        Cell(tenants=tenants, seconds=seconds, lead=LEAD) for tenants in ((free,), *phases, (free,))
    ]
    with Fleet(machine, sharing=sharing) as fleet:
        runs = []
        for tenants, paces in zip(((free,), *phases, (free,)), measure(fleet, cells), strict=True):
            runs.append(paces)
            say(f"online {sharing}: {' beside '.join(map(str, tenants))}: {_phase(paces)}")
    first, *between, last = runs
    still, running = between[::2], between[1::2]
    p99 = {
        name: [each[0].p99 * 1000 for each in chosen if each[0] is not None]
        for name, chosen in (("still", still), ("runs", running))
    }
    # What requests keep the card busy for: their rate, times what one takes that meets nobody.
    busy = sum(each[0].rate * each[0].p50 for each in still if each[0] is not None) / PHASES
    whole = (rates(first)[0] + rates(last)[0]) / 2
    rate = sum(each[1].rate for each in running if each[1] is not None) / PHASES
    row: dict[str, Any] = {
        "batch": batch,
        "sharing": sharing,
        "p99_ms": p99,
        "still_ms": median(p99["still"]),
        "runs_ms": median(p99["runs"]),
        "longest_ms": None if profile is None else profile["longest_ms"],
        "busy": busy,
        "left": rate / (whole * (1 - busy)),
    }
    longest = "" if profile is None else f", its longest kernel {profile['longest_ms']:.2f} ms"
    say(
        f"online {sharing} beside {batch}: p99 {row['still_ms']:.2f} ms while it stands still, "
        f"{row['runs_ms']:.2f} ms while it runs ({row['runs_ms'] / row['still_ms']:.2f} times"
        f"{longest}); it has {100 * row['left']:.1f} % of what is left of {100 * busy:.1f} % busy"
    )
    return row


def _phase(paces: Sequence[Pace | None]) -> str:
    return ", ".join(
        f"{pace.rate:.2f} steps/s, p50 {1000 * pace.p50:.2f}, p99 {1000 * pace.p99:.2f} ms"
        for pace in paces
        if pace is not None
    )


def median(values: Sequence[float]) -> float:
    """Return the middle value; the mean of the two in the middle of an even number."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def job(machine: Machine, name: str, seconds: float, sharing: str) -> dict[str, Any]:
    """Return what a job gets alone at each share, in percent of the same process without."""
    shares = SHARES if sharing == "time" else (ON_MPS_SHARE,)
    cores = (OPEN, *shares, OPEN)
    cells = [Cell(tenants=(limited(name, core),), seconds=seconds, lead=LEAD) for core in cores]
    with Fleet(machine, sharing=sharing) as fleet:
        first, *between, last = [rates(paces)[0] for paces in measure(fleet, cells)]
    got = {share: 200 * rate / (first + last) for share, rate in zip(shares, between, strict=True)}
    figures = ", ".join(f"{share} %: {got[share]:.1f}" for share in shares)
    say(f"{name} {sharing}: {figures} ({first:.2f} and {last:.2f} steps/s without a limit)")
    return {"job": name, "sharing": sharing, "got": got}


#: What is run for a step: what it is called, and what gives its row.
Runs = Iterator[tuple[str, Callable[[], dict[str, Any]]]]


def _mixes(machine: Machine, asked: argparse.Namespace) -> Runs:
    for text in asked.mix or MIXES:
        rest = (asked.seconds, asked.configurations, asked.hami_core)
        yield text, partial(mix, machine, text, *rest)


def _each_alone(machine: Machine, asked: argparse.Namespace) -> Runs:
    for name in asked.alone:
        yield f"{name} alone", partial(alone, machine, name, asked.seconds)


def _each_online(machine: Machine, asked: argparse.Namespace) -> Runs:
    for sharing in asked.sharing:
        rest = (asked.online, asked.batch, asked.phase)
        yield f"online {sharing}", partial(online, machine, *rest, sharing)


def _each_job(machine: Machine, asked: argparse.Namespace) -> Runs:
    for sharing in asked.sharing:
        for name in asked.jobs:
            if sharing == "time" or name in ON_MPS:
                yield f"{name} {sharing}", partial(job, machine, name, asked.seconds, sharing)


def _faults(machine: Machine, asked: argparse.Namespace) -> Runs:
    for event in asked.events if "mps" in asked.sharing else ():
        yield event, partial(faults.measure, machine, event, say)


STEPS: dict[str, Callable[[Machine, argparse.Namespace], Runs]] = {
    "mixes": _mixes,
    "alone": _each_alone,
    "online": _each_online,
    "jobs": _each_job,
    "faults": _faults,
}


def the_mix(text: str) -> str:
    """Check one mix."""
    for each in text.split(","):
        name, _, share = each.partition(":")
        if name not in JOBS or not share.isdigit() or not 1 <= int(share) <= 99:
            raise argparse.ArgumentTypeError(f"{each!r} is not JOB:SHARE")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Measures whether anybody waits for nothing.")
    jobs = some_of(tuple(JOBS))
    parser.add_argument("steps", nargs="?", type=some_of(tuple(STEPS)), default=",".join(STEPS))
    parser.add_argument("--mix", type=the_mix, action="append", help="JOB:SHARE,…; again for more")
    parser.add_argument("--alone", type=jobs, default="light,halves")
    parser.add_argument("--online", default="online", choices=tuple(JOBS))
    parser.add_argument("--batch", default="vit", choices=tuple(JOBS))
    parser.add_argument("--jobs", type=jobs, default=EIGHT)
    parser.add_argument("--sharing", type=some_of(("time", "mps")), default="time,mps")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each figure")
    parser.add_argument("--phase", type=float, default=PHASE, help="seconds of a phase of online")
    parser.add_argument(
        "--configurations", type=some_of(CONFIGURATIONS), default=",".join(CONFIGURATIONS)
    )
    events = tuple(faults.EVENTS)
    parser.add_argument("--events", type=some_of(events), default=",".join(events))
    parser.add_argument("--hami-core", type=Path, metavar="LIBRARY")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    machine = find_machine()
    report: dict[str, Any] = {
        "machine": {"card": machine.card, "driver": machine.driver, "date": machine.date},
        **{step: [] for step in STEPS},
    }
    say(f"{machine.card}, driver {machine.driver}, {machine.date}")
    for step in STEPS:
        for what, run in STEPS[step](machine, asked) if step in asked.steps else ():
            with skipping(what):
                report[step].append(run())
            if asked.json:
                asked.json.write_text(json.dumps(report, indent=2) + "\n")
    lines = missed(report)
    for line in lines:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeteroError as error:
        print(f"full.py: {error}", file=sys.stderr)
        sys.exit(error.code)
