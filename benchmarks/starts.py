"""Measures first starts of a serving engine: whether it serves, and after how many seconds.

    benchmarks/starts.py [none,hetero] [--engine vllm] [--cores 10,30,50,70,100] [--cards 1,2]
                         [--modes default,sleep] [--at-once 5] [--memory 24Gi] [--within 540]
                         [--json FILE] [--log FOLDER]

For each number of cards and each mode an engine is started at each core share, --at-once of them
side by side, on the cards in turn; one at 100 by itself, since its cards are its own. Under none
as many are started at the same time, without hetero; the longest of them is what a start is
compared with. The first start of each manager is one more, of one engine with empty caches of
compiled code.

sleep is vLLM's sleep mode: the engine gives its memory back and takes it again before it serves.
On two cards each layer is split over both (tensor parallelism).

It expects an environment in which `vllm` (or `transformers` and `torch`) can be imported; it
fetches nothing, and weights are made up. --engine simulated needs no card.

--json appends a row for each start to FILE, one JSON document a line. What an earlier call with the
same FILE has under none is compared with, too.
Exit status 1: a start failed, took more than three times as long as under none, or was not made.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from hetero_benchmarks.engine import ENGINES, Setup, command
from hetero_benchmarks.engine_cells import OF_MEMORY, earlier_rows, reason
from hetero_benchmarks.options import folder, number, some_of, writable
from hetero_benchmarks.trial import DeviceAllocation, Machine, Program, find_machines

from hetero.model.errors import HeteroError
from hetero.model.units import parse_memory
from hetero.node.simulation import enter

NONE, HETERO = "none", "hetero"
MANAGERS = (NONE, HETERO)
SLEEP = "sleep"
MODES = ("default", SLEEP)
#: A start that takes so many times as long as under none is a miss.
MOST_TIMES = 3.0
#: Seconds for a start; and for the driver to free what ended processes held.
START, ENDED = 300.0, 5.0
#: The core share of the start with empty caches.
EMPTY_CORE = 30
#: The core share that makes a card the program's alone.
WHOLE = 100
#: Where vLLM, PyTorch's compiler, Triton and the driver keep compiled code.
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
#: Shares of all starts at the same time may be more than a card has.
_SETTINGS = "[scale]\ncore = 5\n"


@frozen(kw_only=True)
class Start:
    """One start: under which manager, on how many cards, how, and with which core share."""

    manager: str
    cards: int
    mode: str
    core: int | None
    empty: bool = False

    def __str__(self) -> str:
        core = "" if self.core is None else f", core {self.core}"
        cards = "a card" if self.cards == 1 else f"{self.cards} cards"
        return f"{cards}, {self.mode}{core}{', empty caches' if self.empty else ''}"


@define
class Bench:
    """What is started on, with what, and all rows so far."""

    machines: Sequence[Machine]
    asked: argparse.Namespace
    ends: float
    logs: Path
    environment: Mapping[str, str]
    rows: list[dict[str, Any]] = field(factory=list)
    missed: bool = False

    def measure(self, starts: Sequence[Start]) -> None:
        """Start engines at the same time, and end them when each serves or has failed."""
        began = time.monotonic()
        with ExitStack() as stack:
            running = [
                (start, *self._begin(stack, start, at, self.machines[at % len(self.machines) :]))
                for at, start in enumerate(starts)
            ]
            for start, program, log in running:
                failed = None
                try:
                    program.line()
                except HeteroError as error:
                    program.__exit__()
                    why = reason(log.read_text(errors="replace"))
                    failed = str(error) if why in str(error) else f"{error} ({why})"
                self._record(start, len(starts), time.monotonic() - began, failed)
        time.sleep(0 if self.machines[0].simulated else ENDED)

    def _begin(
        self, stack: ExitStack, start: Start, at: int, machines: Sequence[Machine]
    ) -> tuple[Program, Path]:
        first, *others = (machines if start.cards == 1 else self.machines)[: start.cards]
        memory = self.asked.memory
        grant = None
        if start.manager == HETERO:
            grant = DeviceAllocation(memory=memory, core=start.core)
        environment = dict(self.environment) if grant else {}
        if start.empty:
            empty = stack.enter_context(tempfile.TemporaryDirectory(prefix="hetero-starts-"))
            environment |= {name: f"{empty}/{name}" for name in CACHES}
        name = f"{start.manager}-{start}-{at}".replace(" ", "-").replace(",", "")
        log = self.logs / f"{name}.log"
        setup = Setup(
            memory=int(OF_MEMORY * parse_memory(memory)),
            cards=start.cards,
            sleeps=start.mode == SLEEP,
        )
        program = Program(
            command(self.asked.engine, setup),
            first,
            grant,
            name=str(start),
            others=[each.uuid for each in others],
            environment=environment,
            patience=min(START, max(self.ends - time.monotonic(), 1)),
            log=log,
        )
        stack.callback(program.__exit__)
        return program, log

    def _record(self, start: Start, at_once: int, seconds: float, failed: str | None) -> None:
        none = self._none(start) if start.manager == HETERO else None
        times = seconds / none if none and failed is None else None
        row = {
            "card": self.machines[0].card,
            "driver": self.machines[0].driver,
            "began": self.machines[0].date,
            "engine": self.asked.engine,
            "manager": start.manager,
            "cards": start.cards,
            "mode": start.mode,
            "core": start.core,
            "empty": start.empty,
            "at_once": at_once,
            "seconds": round(seconds, 1),
            "times": None if times is None else round(times, 2),
            "failed": failed,
        }
        self.rows.append(row)
        if self.asked.json:
            with self.asked.json.open("a") as file:
                print(json.dumps(row), file=file)
        outcome = failed or f"{seconds:.1f} s" + ("" if times is None else f", {times:.2f} of none")
        print(f"{start.manager:7} {start}: {outcome}", flush=True)
        self.missed = self.missed or failed is not None or (times or 0) > MOST_TIMES

    def _none(self, start: Start) -> float | None:
        """Return the longest start without hetero that this one is compared with."""
        like = (NONE, start.cards, start.mode, start.empty)
        return max(
            (
                row["seconds"]
                for row in self.rows
                if (row["manager"], row["cards"], row["mode"], row["empty"]) == like
                and row["failed"] is None
            ),
            default=None,
        )


def plan(asked: argparse.Namespace) -> list[list[Start]]:
    """Return which engines are started at the same time, in order."""
    groups = []
    for manager in asked.managers:
        core = EMPTY_CORE if manager == HETERO else None
        groups.append([Start(manager=manager, cards=1, mode=MODES[0], core=core, empty=True)])
        for cards in asked.cards:
            for mode in asked.modes:
                cores = asked.cores if manager == HETERO else [None] * len(asked.cores)
                starts = [
                    Start(manager=manager, cards=cards, mode=mode, core=each) for each in cores
                ]
                shared = [start for start in starts if start.core != WHOLE]
                together = [
                    shared[at : at + asked.at_once] for at in range(0, len(shared), asked.at_once)
                ]
                together += [[start] for start in starts if start.core == WHOLE]
                groups += together if manager == HETERO else together[:1]
    return groups


def numbers(least: int, most: int, what: str) -> Any:
    """Return what checks a list of whole numbers."""
    check = number(least, most, what)
    return lambda text: [int(check(each)) for each in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        prog="starts.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    add = made.add_argument
    add("managers", nargs="?", type=some_of(MANAGERS), default="none,hetero")
    add("--engine", choices=tuple(ENGINES), default="vllm")
    add("--cores", type=numbers(1, 100, "1 to 100 %"), default="10,30,50,70,100")
    add("--cards", type=numbers(1, 8, "1 to 8 cards"), default="1,2")
    add("--modes", type=some_of(MODES), default=",".join(MODES))
    add("--at-once", type=lambda text: numbers(1, 16, "1 to 16")(text)[0], default="5")
    add("--memory", default="24Gi", help="of each card, for each engine")
    add("--within", type=number(1, 36000, "1 to 36000 s"), default=540.0, help="of the whole call")
    add("--json", type=writable, metavar="FILE", help="to append rows to")
    add("--log", type=folder, metavar="FOLDER", help="for what engines say")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Start, print and write."""
    asked = parser().parse_args(arguments)
    parse_memory(asked.memory)
    enter(os.environ)
    machines = find_machines()
    ends = time.monotonic() + asked.within
    if max(asked.cards) > len(machines):
        print(f"starts.py: --cards {max(asked.cards)}: {len(machines)} here", file=sys.stderr)
        return 2
    first = machines[0]
    print(f"{len(machines)} x {first.card}, driver {first.driver}, {first.date}", flush=True)
    with ExitStack() as stack:
        config = stack.enter_context(tempfile.TemporaryDirectory(prefix="hetero-starts-"))
        Path(config, "node.toml").write_text(_SETTINGS)
        logs = asked.log or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = {"HETERO_CONFIG": f"{config}/node.toml"}
        rows = earlier_rows(asked.json, first.card, asked.engine)
        bench = Bench(machines, asked, ends, logs, environment, rows)
        for starts in plan(asked):
            if time.monotonic() < ends:
                bench.measure(starts)
            else:
                print(f"not made, as no time is left: {'; '.join(map(str, starts))}")
                bench.missed = True
    return int(bench.missed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeteroError as error:
        print(f"starts.py: {error}", file=sys.stderr)
        sys.exit(error.code)
