"""`hetero bench overhead`: what a driver call costs behind the limiter, against the bare driver."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import click
import hetero_limiters
from attrs import frozen
from rich.table import Table

from hetero_benchmarks import peers, report
from hetero_benchmarks.trial import Grant, Machine, Program, find_machine

NATIVE = "native"
#: The ways a program meets the driver: its grant, and whether the limiter is preloaded without one.
_VARIANTS: Mapping[str, tuple[Grant | None, bool]] = {
    NATIVE: (None, False),
    "limiter, no grant": (None, True),
    "memory only": (Grant(memory="4Gi", core=100), False),
    "core 60": (Grant(memory="4Gi", core=60), False),
}


@frozen(kw_only=True)
class Cost:
    """What one call took under one variant, in nanoseconds: medians over the rounds.

    `p99` is None for a call that a process makes once. `added` is the median beyond the native one.
    """

    call: str
    variant: str
    median: float
    p99: float | None
    added: float


@frozen(kw_only=True)
class Overhead:
    """The whole report."""

    command: str
    machine: Machine
    rounds: int
    costs: tuple[Cost, ...]


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    help="How many processes are timed for each variant, the variants taking turns.",
)
@click.option(
    "--calls",
    type=click.IntRange(1, 1_000_000),
    default=2000,
    show_default=True,
    help="How many calls of each kind a process times.",
)
@report.uuid_option
@report.json_option
@click.pass_obj
def overhead(command: str, rounds: int, calls: int, uuid: str | None, file: Path | None) -> None:
    """Time launches, allocations, memory queries and cuInit natively and behind the limiter.

    The variants take turns, one process each a round, so that a machine that slows down slows all
    of them. A call's median and 99th percentile are taken in each process; shown is the median of
    those over the rounds.
    """
    machine = find_machine(uuid)
    samples: dict[str, list[Mapping[str, Mapping[str, int]]]] = {name: [] for name in _VARIANTS}
    for number in range(1, rounds + 1):
        report.progress(f"round {number} of {rounds}")
        for name in _VARIANTS:
            samples[name].append(_sample(name, machine, calls))
    result = Overhead(command=command, machine=machine, rounds=rounds, costs=costs(samples))
    report.save(result, file)
    _show(result)


main = report.entry(overhead)


def _sample(name: str, machine: Machine, calls: int) -> Mapping[str, Mapping[str, int]]:
    grant, preloaded = _VARIANTS[name]
    preload = ("env", f"LD_PRELOAD={hetero_limiters.library('cuda')}") if preloaded else ()
    words = (*preload, hetero_limiters.timing("cuda"), str(calls))
    with Program(words, machine, grant, name=name) as program:
        timed: Mapping[str, Mapping[str, int]] = json.loads("".join(program.lines()))
        return timed


def costs(
    samples: Mapping[str, Sequence[Mapping[str, Mapping[str, int]]]],
) -> tuple[Cost, ...]:
    """Return each call's cost under each variant, from what every process of it timed."""
    natives = {call: _median(samples[NATIVE], call, "median") for call in samples[NATIVE][0]}
    return tuple(
        Cost(
            call=call,
            variant=variant,
            median=_median(rounds, call, "median"),
            p99=_median(rounds, call, "p99") if "p99" in rounds[0][call] else None,
            added=_median(rounds, call, "median") - native,
        )
        for call, native in natives.items()
        for variant, rounds in samples.items()
    )


def _median(rounds: Sequence[Mapping[str, Mapping[str, int]]], call: str, figure: str) -> float:
    return median(timed[call][figure] for timed in rounds)


def _show(result: Overhead) -> None:
    compared = not result.machine.simulated
    title = f"Microseconds a call, median and p99 of {result.rounds} rounds"
    table = Table(title=title, title_justify="left")
    table.add_column("call")
    table.add_column("variant")
    for heading in ("median", "p99", "added"):
        table.add_column(heading, justify="right")
    if compared:
        table.add_column(f"{peers.NAMES[0]}, native → limited", justify="right", style="dim")
    for cost in result.costs:
        native = cost.variant == NATIVE
        table.add_row(
            cost.call,
            cost.variant,
            f"{cost.median / 1000:.2f}",
            "" if cost.p99 is None else f"{cost.p99 / 1000:.2f}",
            "" if native else f"{cost.added / 1000:+.2f}",
            *([peers.CALLS.get(cost.call, "") if native else ""] if compared else []),
            end_section=cost.variant == list(_VARIANTS)[-1],
        )
    report.show(result.machine, table, notes=[peers.SOURCE] if compared else [])
