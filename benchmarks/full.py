"""Measures whether anybody waits while the card could work.

    benchmarks/full.py [mixes,alone,online] [--mix light:25,light:25 ...] [--alone light,halves]
                       [--batch vit] [--seconds 10] [--configurations ...] [--json FILE]

mixes   programs beside each other: without a limiter, under NVIDIA MPS without hetero, under fixed
        shares, under elastic ones. Each in percent of its speed alone, and the sum.
alone   one program at 10, 30 and 60 %, beside what the law says: min(100, 100 share/b), where b is
        the part of the time for which it keeps the card busy alone (PyTorch's profiler).
online  requests of high priority, 40 a second of 5 ms each (Poisson), beside a program of low
        priority that stands still and runs in turn, four times: p99, and what the other has of what
        is left.

A line is printed as soon as its run has ended. What cannot be had (MPS, PyTorch) is "not run". Exit
status 1: a figure misses what the limiter promises.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hetero_benchmarks.cells import Cell, Share, Tenant
from hetero_benchmarks.fleet import Fleet
from hetero_benchmarks.job import JOBS
from hetero_benchmarks.rates import Pace
from hetero_benchmarks.trial import Machine, Program, find_machine

from hetero.model import Policy, Priority
from hetero.model.errors import HeteroError

MIXES = ("light:25,light:25,light:25,light:25", "light:50,prefill:50")
SHARES = (10, 30, 60)
#: Of that without a limiter, what a decoder has under fixed shares, and all under elastic ones.
LEAST, DECODER = 0.97, "light"
#: Points that a program may be below min(100, 100 share/b) alone; below its share beside others.
ALONE_POINTS, BESIDE_POINTS = 3.0, 1.0
#: The p99 of requests, of that alone, and what the other has of what is left, of its speed alone.
ONLINE_TIMES, BATCH_LEAST, PHASES = 1.3, 0.9, 4
#: Requests keep the card busy for so much of the time: 40 a second of 5 ms.
ONLINE_BUSY = 0.2


@contextmanager
def mps() -> Iterator[None]:
    """Let programs that are started meanwhile share the card by NVIDIA MPS."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise HeteroError("there is no nvidia-cuda-mps-control here")
    with tempfile.TemporaryDirectory(prefix="hetero-mps-") as folder:
        names = {f"CUDA_MPS_{name}_DIRECTORY": folder for name in ("PIPE", "LOG")}
        os.environ.update(names)
        try:
            subprocess.run([control, "-d"], check=True)
            yield
        finally:
            subprocess.run([control], input="quit\n", text=True, check=False)
            for name in names:
                del os.environ[name]


@contextmanager
def nothing() -> Iterator[None]:
    """Let them share it as the driver does by itself."""
    yield


#: How programs share the card: what is around them, and the policy of their grants (None: none).
CONFIGURATIONS: dict[str, tuple[Callable[[], Any], Policy | None]] = {
    "none": (nothing, None),
    "mps": (mps, None),
    "fixed": (nothing, Policy.FIXED),
    "elastic": (nothing, Policy.ELASTIC),
}


def measure(machine: Machine, cells: Sequence[Cell]) -> list[tuple[Pace | None, ...]]:
    """Return how the tenants of each cell ran."""
    with Fleet(machine) as fleet:
        measured = []
        for number, cell in enumerate(cells):
            fleet.prepare(cells[number:])
            measured.append(fleet.measure(cell))
        return measured


def parts(text: str) -> list[tuple[str, int]]:
    """Return the jobs of a mix and their shares in percent."""
    split = (each.partition(":") for each in text.split(","))
    return [(job, int(share)) for job, _, share in split]


def rates(paces: Sequence[Pace | None]) -> list[float]:
    """Return the steps a second of those who ran."""
    return [pace.rate for pace in paces if pace is not None]


def mix(machine: Machine, text: str, seconds: float, names: Sequence[str]) -> dict[str, Any]:
    """Return what the programs of a mix get under each configuration, in percent of one alone."""
    wanted = parts(text)
    solo = {job: Cell(tenants=(Tenant(job=job),), seconds=seconds) for job, _ in wanted}
    natives = {
        job: rates(paces)[0]
        for job, paces in zip(solo, measure(machine, list(solo.values())), strict=True)
    }
    row: dict[str, Any] = {"mix": text, "alone": natives, "got": {}}
    for name in names:
        around, policy = CONFIGURATIONS[name]
        tenants = tuple(
            Tenant(job=job, share=None if policy is None else Share(core=share, policy=policy))
            for job, share in wanted
        )
        try:
            with around():
                found = rates(measure(machine, [Cell(tenants=tenants, seconds=seconds)])[0])
        except HeteroError as error:
            print(f"{text} {name}: not run ({error})", flush=True)
            continue
        got = [100 * rate / natives[job] for rate, (job, _) in zip(found, wanted, strict=True)]
        row["got"][name] = got
        figures = " + ".join(f"{each:.1f}" for each in got)
        print(f"{text} {name}: {figures} = {sum(got):.1f}", flush=True)
    return row


def busy(machine: Machine, job: str) -> dict[str, float] | None:
    """Return what the profiler says of a job; None for one that is none of PyTorch's."""
    if JOBS[job].driver is not None:
        return None
    words = (sys.executable, "-m", "hetero_benchmarks.busy", job)
    with Program(words, machine, None, name=job) as program:
        told: dict[str, float] = json.loads(list(program.lines())[-1])
    return told


def alone(machine: Machine, job: str, seconds: float) -> dict[str, Any]:
    """Return what a job gets alone, and b."""
    native = Cell(tenants=(Tenant(job=job),), seconds=seconds)
    limited = [
        Cell(tenants=(Tenant(job=job, share=Share(core=share)),), seconds=seconds)
        for share in SHARES
    ]
    told = busy(machine, job)
    before, *paces, after = measure(machine, [native, *limited, native])
    rate = (rates(before)[0] + rates(after)[0]) / 2
    b = None if told is None else told["busy_ms"] / 1000 * rate
    got = {share: 100 * rates(each)[0] / rate for share, each in zip(SHARES, paces, strict=True)}
    law = {share: 100.0 if b is None else min(100.0, share / b) for share in SHARES}
    about = "not known" if b is None else f"{100 * b:.1f}"
    figures = ", ".join(f"{share} %: {got[share]:.1f} of {law[share]:.1f}" for share in SHARES)
    print(f"{job} alone, b {about}: {figures}", flush=True)
    return {"job": job, "b": b, "got": got, "law": law}


def online(machine: Machine, batch: str, seconds: float) -> dict[str, Any]:
    """Return the p99 of requests beside a program that stands still and that runs, in turn."""
    high = Tenant(job="online", share=Share(core=50, priority=Priority.HIGH))
    low = Share(core=50, policy=Policy.ELASTIC)
    still = Cell(tenants=(high, Tenant(job=batch, share=low, idle=True)), seconds=seconds)
    runs = Cell(tenants=(high, Tenant(job=batch, share=low)), seconds=seconds)
    native = Cell(tenants=(Tenant(job=batch),), seconds=seconds)
    first, *paces = measure(machine, [native, *([still, runs] * PHASES)])
    p99 = {
        name: sorted(each[0].p99 * 1000 for each in chosen if each[0] is not None)
        for name, chosen in (("still", paces[::2]), ("runs", paces[1::2]))
    }
    rate = sum(rates(each)[1] for each in paces[1::2]) / PHASES
    left = rate / (rates(first)[0] * (1 - ONLINE_BUSY))
    told = {
        "batch": batch,
        "p99_ms": p99,
        "times": median(p99["runs"]) / median(p99["still"]),
        "left": left,
    }
    print(
        f"online beside {batch}: p99 {median(p99['still']):.2f} ms while it stands still, "
        f"{median(p99['runs']):.2f} ms while it runs ({told['times']:.2f} times); it has "
        f"{100 * left:.1f} % of what is left",
        flush=True,
    )
    return told


def median(values: Sequence[float]) -> float:
    """Return the mean of the two in the middle of an even number of sorted values."""
    half = len(values) // 2
    return (values[half - 1] + values[half]) / 2


def missed(report: dict[str, Any]) -> list[str]:
    """Return a line for each figure of a report that is not what the limiter promises."""
    lines = []
    for row in report["mixes"]:
        got, wanted = row["got"], parts(row["mix"])
        for name in sorted(got.keys() & {"fixed", "elastic"}):
            lines += [
                f"{row['mix']} {name}: {job} has {each:.1f} of its share of {share}"
                for each, (job, share) in zip(got[name], wanted, strict=True)
                if each < share - BESIDE_POINTS
            ]
        lines += [
            f"{row['mix']} fixed: {job} has {each:.1f}, and {free:.1f} without a limiter"
            for each, free, (job, _) in zip(
                got.get("fixed", ()), got.get("none", ()), wanted, strict=False
            )
            if job == DECODER and each < LEAST * free
        ]
        if {"none", "elastic"} <= got.keys() and sum(got["elastic"]) < LEAST * sum(got["none"]):
            lines.append(f"{row['mix']} elastic: less than {LEAST} of no limiter")
    for row in report["alone"]:
        lines += [
            f"{row['job']} alone at {share}: {row['got'][share]:.1f} of {row['law'][share]:.1f}"
            for share in row["got"]
            if row["b"] is not None and row["got"][share] < row["law"][share] - ALONE_POINTS
        ]
    for row in report["online"]:
        if row["times"] > ONLINE_TIMES:
            lines.append(f"online beside {row['batch']}: {row['times']:.2f} times as late")
        if row["left"] < BATCH_LEAST:
            lines.append(f"{row['batch']} beside online: {100 * row['left']:.1f} % of what is left")
    return lines


def the_mix(text: str) -> str:
    """Check one mix."""
    for each in text.split(","):
        job, _, share = each.partition(":")
        if job not in JOBS or not share.isdigit() or not 1 <= int(share) <= 100:
            raise argparse.ArgumentTypeError(f"{each!r} is not JOB:SHARE")
    return text


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what checks a list of some of these."""

    def check(text: str) -> list[str]:
        for each in text.split(","):
            if each not in known:
                raise argparse.ArgumentTypeError(f"{each!r} is none of {', '.join(known)}")
        return text.split(",")

    return check


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Measures whether anybody waits for nothing.")
    steps = ("mixes", "alone", "online")
    parser.add_argument("steps", nargs="?", type=names(steps), default=",".join(steps))
    parser.add_argument("--mix", type=the_mix, action="append", help="JOB:SHARE,…; again for more")
    parser.add_argument("--alone", type=names(tuple(JOBS)), default="light,halves")
    parser.add_argument("--batch", default="vit", choices=tuple(JOBS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--configurations",
        type=names(tuple(CONFIGURATIONS)),
        default=",".join(CONFIGURATIONS),
    )
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    machine = find_machine()
    report: dict[str, Any] = {
        "machine": {"card": machine.card, "driver": machine.driver, "date": machine.date},
        "mixes": [],
        "alone": [],
        "online": [],
    }
    if "mixes" in asked.steps:
        for text in asked.mix or MIXES:
            report["mixes"].append(mix(machine, text, asked.seconds, asked.configurations))
    if "alone" in asked.steps:
        report["alone"] = [alone(machine, job, asked.seconds) for job in asked.alone]
    if "online" in asked.steps:
        report["online"] = [online(machine, asked.batch, asked.seconds)]
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")
    misses = missed(report)
    for line in misses:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if misses else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeteroError as error:
        print(f"full.py: {error}", file=sys.stderr)
        sys.exit(error.code)
