"""Measures what programs of several cards get of them, alone and beside others.

    benchmarks/gangs.py [--cells alone,beside,hami,four] [--programs tp,ddp-gpt2 ...]
                        [--shares 30,50,70] [--seconds 10] [--starts 2] [--within 530]
                        [--period 100] [--hami /usr/local/vgpu/libvgpu.so] [--json FILE]
                        [--log FOLDER]

alone   each program on two cards without hetero and at each share, in percent of the former, beside
        what the law says: min(100, 100 share/b), where b is the part of the time for which it keeps
        the busier of its cards busy alone (PyTorch's profiler; 1 where that is not to be had).
beside  two gangs on the same cards, without hetero and under fixed and elastic shares; a gang and a
        program on each of its cards.
hami    two of the programs under HAMi-core at 50, of which the library's path is given.
four    programs on four cards, and a gang of four with two gangs of two.

The time of the cards is cut into periods of --period milliseconds, as the node's settings may say.
With --log, what the limiters of each program say at HETERO_LOG=debug is in a file of the folder,
which is made: a line for each row of a gang (docs/decisions/gangs.md).

A line is printed as soon as its run has ended, and the JSON file is written anew. A program that
hangs is killed, and the next start goes on. What cannot be had is "not run". Exit status 1: a
figure misses what the limiter promises, or a run failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from hetero_benchmarks.cells import Cell, Share, Tenant
from hetero_benchmarks.fleet import Fleet
from hetero_benchmarks.gang import GANGS
from hetero_benchmarks.gang_goals import (
    HALF,
    OF_FOUR,
    ON_FOUR,
    UNDER_HAMI,
    Together,
    against,
    groups,
    law,
    missed,
    natives,
)
from hetero_benchmarks.options import folder, library, number, some_of, writable
from hetero_benchmarks.rates import Pace, swing
from hetero_benchmarks.rates import share as percent_of
from hetero_benchmarks.trial import Machine, find_machines

from hetero.model.errors import HeteroError

CELLS = ("alone", "beside", "hami", "four")
SHARES = "30,50,70"
#: What is measured where no program is named: all but the one for simulated cards.
PROGRAMS = ",".join(name for name in GANGS if name != "simulated")
#: Seconds for a start and before each run, and those that a run may last beyond its own.
START, LEAD, OVERRUN = 40.0, 2.0, 30.0


@frozen
class Bench:
    """What is measured on, for how long, and what was found."""

    machines: Sequence[Machine]
    seconds: float
    starts: int
    patience: float
    ends: float
    file: Path | None
    report: dict[str, Any]
    logs: Path | None = None
    period: int = 100
    misses: list[str] = field(factory=list)

    def cell(self, *tenants: Tenant) -> Cell:
        """Return the cell of these."""
        return Cell(tenants=tenants, seconds=self.seconds, lead=LEAD)

    def attempt(
        self, title: str, runs: int, body: Callable[[Fleet], None], *, variables: Sequence[str] = ()
    ) -> None:
        """Measure with programs of their own, if time is left for their start and so many runs.

        An error of theirs, or that no time is left, is told as that of `title`.
        """
        left = self.ends - time.monotonic()
        needed = START + runs * (LEAD + self.seconds)
        try:
            if left < needed:
                raise HeteroError(f"not run: {max(left, 0):.0f} of {needed:.0f} s are left")
            with Fleet(
                self.machines[0],
                others=tuple(machine.uuid for machine in self.machines[1:]),
                patience=min(self.patience, left),
                overrun=min(OVERRUN, left),
                variables=tuple(variables),
                logs=self.logs,
                period=self.period,
            ) as fleet:
                body(fleet)
        except HeteroError as error:
            self.miss(f"{title}: {error}")

    def record(self, cell: str, row: dict[str, Any], line: str, *misses: str) -> None:
        """Keep and show what was found, and what of it misses its goal."""
        self.report[cell].append(row)
        print(line, flush=True)
        for miss in misses:
            self.miss(miss)
        self.save()

    def miss(self, line: str) -> None:
        """Keep and show what missed its goal."""
        self.misses.append(line)
        print(f"missed: {line}", flush=True)
        self.save()

    def save(self) -> None:
        """Write all that was found so far, whole or not at all."""
        if self.file is not None:
            part = self.file.with_name(f"{self.file.name}.part")
            part.write_text(json.dumps({**self.report, "missed": self.misses}, indent=2) + "\n")
            part.replace(self.file)


def run(fleet: Fleet, cell: Cell) -> list[Pace]:
    """Return how the tenants of a prepared cell ran, but for the idle ones."""
    fleet.prepare([cell])
    return [pace for pace in fleet.measure(cell) if pace is not None]


def busy_part(fleet: Fleet, tenant: Tenant, rate: float) -> float | None:
    """Return b of a program without hetero whose rate is known; None where no profiler tells."""
    if len(tenant.cards) == 1 or not GANGS[tenant.job].torch:
        return None
    try:
        profile = json.loads(fleet.ask((tenant.program, 0), "profile"))
    except HeteroError as error:
        print(f"{tenant}: no profile: {error}", flush=True)
        return None
    # Its own rate and that of the steps under the profiler are not of the same seconds.
    return min(1.0, float(profile["busy_ms"]) / 1000 * rate) or None


def about(b: float | None) -> str:
    """Say b in percent."""
    return "b taken as 100" if b is None else f"b {100 * b:.1f}"


def alone(bench: Bench, program: str, cards: int, shares: Sequence[int], where: str) -> None:
    """Measure a program, started `starts` times, at each share."""
    gang = Tenant(job=program, cards=tuple(range(cards)))
    for start in range(1, bench.starts + 1):
        title = f"{program} on {cards}, start {start}"
        bench.attempt(title, 1 + len(shares), partial(_alone, bench, gang, shares, where, title))


def _alone(
    bench: Bench, gang: Tenant, shares: Sequence[int], where: str, title: str, fleet: Fleet
) -> None:
    native = bench.cell(gang)
    limited = [bench.cell(evolve(gang, share=Share(core=share))) for share in shares]
    fleet.prepare([native, *limited])
    (first,) = run(fleet, native)
    b = busy_part(fleet, gang, first.rate)
    print(f"{title}: {first.rate:.4g} steps/s without hetero, {about(b)}", flush=True)
    points = GANGS[gang.job].points
    for share, cell in zip(shares, limited, strict=True):
        try:
            (pace,) = run(fleet, cell)
        except HeteroError as error:
            raise HeteroError(f"at {share}: {error}") from None
        got, expected = percent_of(pace.rate, first.rate), law(share, b)
        low, high = swing(pace, first.rate)
        row = {
            "title": title,
            "program": gang.job,
            "cards": len(gang.cards),
            "native": first.rate,
            "b": b,
            "share": share,
            "got": got,
            "law": expected,
            "seconds": [low, high],
        }
        line = f"{title} at {share}: {got:.1f} of {expected:.1f} ({got - expected:+.1f})"
        miss = f"{title} at {share}: {got:.1f} is not within {points:g} of {expected:.1f}"
        bench.record(
            where,
            row,
            f"{line}, by the second {low:.1f} to {high:.1f}",
            *([miss] if abs(got - expected) > points else []),
        )


def measure_together(bench: Bench, group: Sequence[Together], where: str) -> None:
    """Measure tenants beside each other, and what each of them has without hetero alone."""
    runs = len(natives(group[0].tenants)) + len(group)
    bench.attempt(group[0].name, runs, partial(_measure_together, bench, group, where))


def _measure_together(bench: Bench, group: Sequence[Together], where: str, fleet: Fleet) -> None:
    free = [bench.cell(*tenants) for tenants in natives(group[0].tenants)]
    cells = [bench.cell(*each.tenants) for each in group]
    fleet.prepare([*free, *cells])
    rates: dict[Tenant, float] = {}
    for cell in free:
        paces = run(fleet, cell)
        rates |= {tenant: pace.rate for tenant, pace in zip(cell.tenants, paces, strict=True)}
    # A program that was profiled is slower for good: none is that runs again.
    limited = all(each.share for together in group for each in together.tenants)
    parts = {
        tenant: busy_part(fleet, tenant, rate) if limited else None
        for tenant, rate in rates.items()
    }
    for together, cell in zip(group, cells, strict=True):
        row = against(together, iter(run(fleet, cell)), rates, parts)
        figures = " + ".join(
            "idle" if tenant.idle else f"{who['got']:.1f}"
            for who, tenant in zip(row["tenants"], together.tenants, strict=True)
        )
        seconds = ", ".join(
            f"{who['seconds'][0]:.1f} to {who['seconds'][1]:.1f}"
            for who, tenant in zip(row["tenants"], together.tenants, strict=True)
            if not tenant.idle
        )
        bench.record(
            where,
            row,
            f"{together.name}: {figures}, by the second {seconds}",
            *missed(together, row),
        )


def hami(bench: Bench, program: str, library: Path) -> None:
    """Measure a program under HAMi-core at 50; nothing of it is a goal."""
    cell = bench.cell(Tenant(job=program, cards=(0, 1)))
    paces: list[Pace] = []

    def measured(fleet: Fleet) -> None:
        paces.extend(run(fleet, cell))

    Path("/tmp/vgpulock").mkdir(exist_ok=True)  # noqa: S108 - HAMi-core's, which it does not make
    with tempfile.TemporaryDirectory(prefix="hetero-bench-") as folder:
        variables = (
            f"LD_PRELOAD={library}",
            f"CUDA_REDIRECT={library}",
            "GPU_CORE_UTILIZATION_POLICY=FORCE",
            f"CUDA_DEVICE_SM_LIMIT={HALF}",
            f"CUDA_DEVICE_MEMORY_LIMIT={GANGS[program].memory.removesuffix('Gi')}g",
            "LIBCUDA_LOG_LEVEL=0",
            f"CUDA_DEVICE_MEMORY_SHARED_CACHE={folder}/cache",
        )
        bench.attempt(f"{program} without HAMi-core", 1, measured)
        bench.attempt(f"{program} under HAMi-core", 1, measured, variables=variables)
    if len(paces) == 2:
        native, pace = paces
        low, high = swing(pace, native.rate)
        got = percent_of(pace.rate, native.rate)
        row = {"program": program, "share": HALF, "got": got, "seconds": [low, high]}
        line = f"{program} under HAMi-core at {HALF}: {got:.1f}, by the second"
        bench.record("hami", row, f"{line} {low:.1f} to {high:.1f}")


def four(bench: Bench, programs: Sequence[str]) -> None:
    """Measure what is measured on four cards."""
    for program in programs:
        if program in (*ON_FOUR, "simulated"):
            alone(bench, program, 4, [HALF], "four")
    for program in programs:
        if program in ("tp", "simulated"):
            share = Share(core=OF_FOUR)
            places = ((0, 1, 2, 3), (0, 1), (2, 3))
            tenants = tuple(Tenant(job=program, cards=where, share=share) for where in places)
            name = f"{program}: a gang of 4 at {OF_FOUR}, two of 2 at {OF_FOUR}"
            measure_together(bench, [Together(name=name, tenants=tenants)], "four")


def some_shares(text: str) -> list[int]:
    """Return shares in percent."""
    check = number(1, 99, "1 to 99 percent")
    return [int(check(each)) for each in text.split(",")]


def times(text: str) -> int:
    """Return how often a program starts."""
    return int(number(1, 9, "1 to 9 starts")(text))


def milliseconds(text: str) -> int:
    """Return a period that the node's settings may have."""
    return int(number(40, 400, "40 to 400 ms")(text))


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(description="Measures what programs of several cards get.")
    length = number(1, 3600, "1 to 3600 s")
    made.add_argument("--cells", type=some_of(CELLS), default=",".join(CELLS))
    made.add_argument("--programs", type=some_of(tuple(GANGS)), default=PROGRAMS)
    made.add_argument("--shares", type=some_shares, default=SHARES, help="in percent of the cards")
    made.add_argument("--seconds", type=length, default=10.0, help="of a run")
    made.add_argument("--starts", type=times, default=2, help="of each program alone")
    made.add_argument("--patience", type=length, default=120.0, help="seconds for a start")
    made.add_argument("--period", type=milliseconds, default=100, help="of gangs, in milliseconds")
    made.add_argument("--within", type=length, default=530.0, help="seconds for all")
    made.add_argument("--hami", type=library, help="libvgpu.so of HAMi-core")
    made.add_argument("--json", type=writable)
    made.add_argument("--log", type=folder, help="folder for what limiters say")
    return made


def measure(bench: Bench, cell: str, asked: argparse.Namespace) -> None:
    """Measure one of the cells, or say why not."""
    needed = 4 if cell == "four" else 2
    if len(bench.machines) < needed:
        print(f"{cell}: not run: {needed} cards are needed", flush=True)
    elif cell == "alone":
        for program in asked.programs:
            alone(bench, program, 2, asked.shares, "alone")
    elif cell == "beside":
        for group in groups(asked.programs):
            measure_together(bench, group, "beside")
    elif cell == "four":
        four(bench, asked.programs)
    elif asked.hami is None:
        print("hami: not run: no --hami", flush=True)
    else:
        for program in asked.programs:
            if program in UNDER_HAMI:
                hami(bench, program, asked.hami)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    begun = time.monotonic()
    asked = parser().parse_args(arguments)
    machines = find_machines()
    first = machines[0]
    report: dict[str, Any] = {
        "machine": {
            "card": first.card,
            "cards": len(machines),
            "driver": first.driver,
            "date": first.date,
            "versions": dict(first.versions),
        },
        "seconds": asked.seconds,
        **{name: [] for name in CELLS},
    }
    runs = (asked.seconds, asked.starts, asked.patience, begun + asked.within)
    bench = Bench(machines, *runs, asked.json, report, asked.log, asked.period)
    print(f"{len(machines)} of {first.card}, driver {first.driver}, {first.date}", flush=True)
    for cell in asked.cells:
        measure(bench, cell, asked)
    bench.save()
    print(f"{len(bench.misses)} missed, {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if bench.misses else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeteroError as error:
        print(f"gangs.py: {error}", file=sys.stderr)
        sys.exit(error.code)
