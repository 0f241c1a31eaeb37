"""`hetero bench overhead`: what a driver call costs behind the limiter, against the bare driver."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import click
import hetero_limiters
import hetero_simulator
from attrs import frozen
from rich.table import Table

from hetero.model.errors import HeteroError, NotFound
from hetero_benchmarks import peers, report
from hetero_benchmarks.trial import DeviceAllocation, Machine, Program, find_machine

#: Calls by name, each with its "median" and "p99" in nanoseconds; what is called once has no "p99".
Timed = Mapping[str, Mapping[str, float]]
#: How many launches two processes make of which the instructions are counted. With the first ones
#: the limiter learns how long they take, and holds the stream more often than later.
_COUNTED = (8192, 16384)

NATIVE = "native"
#: The ways a program meets the driver: its grant, and whether the limiter is preloaded without one.
_VARIANTS: Mapping[str, tuple[DeviceAllocation | None, bool]] = {
    NATIVE: (None, False),
    "limiter, no grant": (None, True),
    "memory only": (DeviceAllocation(memory="4Gi"), False),
    "core 100": (DeviceAllocation(memory="4Gi", core=100), False),
    # Half of the time the gate is open: the median launch and a row of launches meet it so.
    "core 50": (DeviceAllocation(memory="4Gi", core=50), False),
}


@frozen(kw_only=True)
class Cost:
    """What one call took under one variant, in nanoseconds: medians over the rounds.

    `added` and `added_p99` are medians of what each round's process took beyond the same round's
    native one. The figures of the 99th percentile are None for a call that a process makes once.
    """

    call: str
    variant: str
    median: float
    p99: float | None
    added: float
    added_p99: float | None


@frozen(kw_only=True)
class Count:
    """How many instructions a launch is under one variant, all of the driver's included.

    Counted by a clock that moves only while all threads wait: how often a launcher looks whether
    the device has gone on, and how far fences are apart, does not depend on the machine's speed.
    """

    variant: str
    instructions: float
    added: float


@frozen(kw_only=True)
class Overhead:
    """The whole report."""

    command: str
    machine: Machine
    rounds: int
    costs: tuple[Cost, ...]
    counts: tuple[Count, ...]


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    help="How many processes are timed for each variant, the variants alternating.",
)
@click.option(
    "--calls",
    type=click.IntRange(1, 1_000_000),
    default=2000,
    show_default=True,
    help="How many calls of each kind a process times.",
)
@click.option(
    "--at-once",
    type=click.IntRange(0, 1000),
    default=0,
    help="Also time so many processes that start at once; each makes a context on the card.",
)
@click.option(
    "--count",
    is_flag=True,
    help="Also count a launch's instructions, with valgrind; simulated cards only.",
)
@report.uuid_option
@report.json_option
@click.pass_obj
def overhead(
    command: str,
    rounds: int,
    calls: int,
    at_once: int,
    count: bool,
    uuid: str | None,
    file: Path | None,
) -> None:
    """Time launches, allocations, memory queries and starts natively and behind the limiter.

    The variants alternate, one process each a round, so that a machine that slows down slows all
    of them. A call's median and 99th percentile are taken in each process; shown is the median of
    those over the rounds.
    """
    machine = find_machine(uuid)
    if count and (not machine.simulated or not shutil.which("valgrind")):
        raise NotFound("--count needs valgrind and a simulated card (HETERO_RACK)")
    samples: dict[str, list[Timed]] = {name: [] for name in _VARIANTS}
    for number in range(1, rounds + 1):
        report.progress(f"round {number} of {rounds}")
        for name in _VARIANTS:
            samples[name].append(_sample(name, machine, calls, at_once))
    result = Overhead(
        command=command,
        machine=machine,
        rounds=rounds,
        costs=costs(samples),
        counts=tuple(_counts(machine)) if count else (),
    )
    report.save(result, file)
    _show(result)


main = report.entry(overhead)


def _sample(name: str, machine: Machine, calls: int, at_once: int) -> Timed:
    timed = dict(_run(name, machine, "--calls", str(calls)))
    for count in (1, at_once) if at_once else (1,):
        start = "start" if count == 1 else f"start, {count} at once"
        timed[start] = _run(name, machine, "--starts", str(count))["start"]
    return timed


def _run(name: str, machine: Machine, *arguments: str, before: Sequence[str] = ()) -> Timed:
    grant, preloaded = _VARIANTS[name]
    preload = ("env", f"LD_PRELOAD={hetero_limiters.library('cuda')}") if preloaded else ()
    words = (*preload, *before, hetero_simulator.timing("cuda"), *arguments)
    with Program(words, machine, grant, name=name) as program:
        timed: Timed = json.loads("".join(program.lines()))
        return timed


def _counts(machine: Machine) -> Iterator[Count]:
    """Count what `launch` in the timing program runs, on its thread alone."""
    native = 0.0
    for name in _VARIANTS:
        report.progress(f"counting {name}")
        few, many = (_instructions(name, machine, launches) for launches in _COUNTED)
        instructions = (many - few) / (_COUNTED[1] - _COUNTED[0])  # what only the first do is gone
        native = native or instructions
        yield Count(variant=name, instructions=instructions, added=instructions - native)


def _instructions(name: str, machine: Machine, launches: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile"
        before = (
            *("env", f"VIRTUAL_CLOCK=1:{folder}/clock"),
            *("valgrind", "--quiet", "--tool=callgrind", "--toggle-collect=launch"),
            f"--callgrind-out-file={out}",
            # By the loader, because valgrind's own launcher is not to have that clock.
            *(_loader(), "--preload", str(hetero_simulator.clock())),
        )
        _run(name, machine, "--launches", str(launches), before=before)
        counts = instructions(out.read_text(), without=hetero_simulator.clock().name)
    if not counts:
        raise HeteroError(f"valgrind counted nothing for {name}")
    return counts


def _loader() -> str:
    """Return the path of the loader that started this program."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split()[-1]
        if Path(path).name.startswith("ld-linux"):
            return path
    raise NotFound("--count needs a Python that glibc's loader has started")


def instructions(profile: str, *, without: str) -> int:
    """Return how many instructions callgrind counted outside of the library of that name.

    A line of costs is a position and a number; behind `calls=` it is what was called, and counted
    there. `ob=` names the object of the lines that follow, once in full: `(7) path`, then `(7)`.
    """
    names: dict[str, str] = {}
    total, counts, called = 0, True, False
    for line in profile.splitlines():
        if named := re.match(r"(c?ob)=(\(\d+\))(?: (.*))?$", line):
            kind, number, path = named.groups()
            names.setdefault(number, path or "")
            if kind == "ob":
                counts = Path(names[number]).name != without
        elif line.startswith("calls="):
            called = True
        elif cost := re.match(r"[-+*\d]\d* (\d+)$", line):
            total += int(cost[1]) if counts and not called else 0
            called = False
    return total


def costs(samples: Mapping[str, Sequence[Timed]]) -> tuple[Cost, ...]:
    """Return each call's cost under each variant, from what every process of it timed."""
    return tuple(
        Cost(
            call=call,
            variant=variant,
            median=median(timed[call]["median"] for timed in rounds),
            p99=median(timed[call]["p99"] for timed in rounds) if repeated else None,
            added=_added(rounds, samples[NATIVE], call, "median"),
            added_p99=_added(rounds, samples[NATIVE], call, "p99") if repeated else None,
        )
        for call, first in samples[NATIVE][0].items()
        for repeated in ["p99" in first]
        for variant, rounds in samples.items()
    )


def _added(rounds: Sequence[Timed], natives: Sequence[Timed], call: str, figure: str) -> float:
    pairs = zip(rounds, natives, strict=True)
    return median(timed[call][figure] - native[call][figure] for timed, native in pairs)


def _show(result: Overhead) -> None:
    compared = not result.machine.simulated
    title = f"Microseconds a call: medians of {result.rounds} rounds, added to native in pairs"
    table = Table(title=title, title_justify="left")
    table.add_column("call")
    table.add_column("variant")
    for heading in ("median", "added", "p99", "added"):
        table.add_column(heading, justify="right")
    if compared:
        table.add_column(f"{peers.NAMES[0]}, native → limited", justify="right", style="dim")
    for cost in result.costs:
        native = cost.variant == NATIVE
        table.add_row(
            cost.call,
            cost.variant,
            _microseconds(cost.median),
            "" if native else _microseconds(cost.added, sign="+"),
            _microseconds(cost.p99),
            "" if native else _microseconds(cost.added_p99, sign="+"),
            *([peers.CALLS.get(cost.call, "") if native else ""] if compared else []),
            end_section=cost.variant == list(_VARIANTS)[-1],
        )
    counts = Table(title="Instructions of a launch, the driver's included", title_justify="left")
    for heading in ("variant", "instructions", "added"):
        counts.add_column(heading)
    for each in result.counts:
        counts.add_row(each.variant, f"{each.instructions:.1f}", f"{each.added:+.1f}")
    tables = [table, counts] if result.counts else [table]
    report.show(result.machine, *tables, notes=[peers.SOURCE] if compared else [])


def _microseconds(nanoseconds: float | None, *, sign: str = "") -> str:
    return "" if nanoseconds is None else f"{nanoseconds / 1000:{sign}.3f}"
