"""Measures serving engines that share a card: tokens a second, TTFT and TPOT.

    benchmarks/engines.py [none,hetero,mps,hami-core] [--engine vllm]
                          [--cells alone,pair,trainer,cost] [--loads saturated,20] [--clients 32]
                          [--seconds 8] [--lead 2] [--memory 24Gi] [--together hetero]
                          [--priority high] [--within 540] [--detail] [--hami-core LIBRARY]
                          [--json FILE] [--log FOLDER]

Each manager's engines and trainer are started once, and shares change in place between the cells:

none       the card's driver alone
mps        NVIDIA MPS without hetero
hami-core  HAMi-core, whose library --hami-core names: 50 % each, as it cannot change them
hetero     `hetero run`, and `hetero resize` between cells: fixed and elastic shares; the first
           engine's priority is --priority

alone    one engine; under hetero at 30, 50, 70, and at 99 for what the limiter costs
pair     two engines; under hetero at 50 + 50 fixed and elastic, 60 + 40, 30 + 60, and unlimited
trainer  an engine and the training of ResNet-18 (fp32, batches of 256)
cost     under hetero: an engine without it and one that has the whole card, six times in turn

Rates are also in percent of those of a program alone and without a limit: under none, and in the
same processes ("own"). Two starts of an engine differ by up to a fifth.

Requests are 256 token ids, and are answered with 128. A number in --loads is requests a second
(Poisson); saturated, --clients send one after the other. TTFT and TPOT are of those that came while
it was measured. Each engine may take --memory of the card, 90 % of it by itself.

It expects an environment in which `vllm` (or `transformers` and `torch`) can be imported, and
torchvision for the trainer; it fetches nothing, and weights are made up. --engine simulated needs
no card: it answers at known times, beside a trainer that needs nothing but a driver.

A start of vLLM takes one to two minutes. The programs of a manager start one after the other, or,
with --together, all at once. Engines that see each other's memory, as without hetero, then take
what others allocate meanwhile for their own: they have less KV cache, or do not start. What fails
to start is told with its log's reason, and tried once more. A cell is not begun when --within
seconds are over. --detail adds what was seen from outside: hetero's accounts (`hetero ps`), time
slices that began a second, NVML's utilisation of the processes.

--json appends a row for each cell and each start to FILE, one JSON document a line. What was
measured alone by an earlier call with the same FILE is 100 % for later ones.
Exit status 1: a start failed or a cell was not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import field, frozen
from hetero_benchmarks import engine_detail, job
from hetero_benchmarks.engine import ENGINES as SERVERS
from hetero_benchmarks.engine import Setup, command
from hetero_benchmarks.engine_cells import (
    BARE,
    COLUMNS,
    ENGINES,
    FIRST,
    HALF,
    HALVES,
    KINDS,
    OF_MEMORY,
    OPEN,
    SHARES,
    TRAINER,
    Cell,
    Part,
    accounts,
    cost,
    earlier_rows,
    lines,
    reason,
)
from hetero_benchmarks.options import folder, library, number, some_of, writable
from hetero_benchmarks.rates import Batch, Window, pace
from hetero_benchmarks.serving import Load
from hetero_benchmarks.trial import (
    HETERO,
    DeviceAllocation,
    Machine,
    Program,
    find_machine,
    run_hetero,
)
from hetero_benchmarks.ways import Settings, driver, hami_core, mps

from hetero.model import Priority
from hetero.model.errors import HeteroError
from hetero.model.units import MiB, parse_memory
from hetero.node.simulation import enter

HAMI_CORE = "hami-core"
MANAGERS = ("none", "hetero", "mps", HAMI_CORE)
SATURATED = "saturated"
#: Seconds for a start, and for what is under way after a measurement.
START, OVERRUN = 180.0, 45.0
#: Seconds for the driver to free what processes held that were ended.
ENDED = 20.0
STARTS = 2
#: More programs stand than the card's core would let in at once, but not all of them run.
_SETTINGS = "[scale]\ncore = 100\n"


@frozen(kw_only=True)
class Manager:
    """How programs share a card: what surrounds them, and whether they have grants of hetero's."""

    name: str
    around: Callable[[Machine], AbstractContextManager[Settings]]
    cells: Sequence[Cell]
    grants: bool = False


@frozen
class Bench:
    """What is measured on, and with what; all rows so far."""

    machine: Machine
    asked: argparse.Namespace
    ends: float
    logs: Path
    rows: list[dict[str, Any]] = field(factory=list)
    misses: list[str] = field(factory=list)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.ends - time.monotonic()

    def record(self, row: dict[str, Any]) -> None:
        """Keep a row, with what its programs have of those alone, and append it to the file."""
        self.rows.append(row)
        for got in row.get("programs", ()):
            for name, manager in (("of_none", "none"), ("of_own", row["manager"])):
                alone = self.alone(manager, got["program"], row["load"])
                got[name] = 100 * got["rate"] / alone if alone else None
        if self.asked.json:
            where = {"card": self.machine.card, "driver": self.machine.driver}
            asked = {"engine": self.asked.engine, "priority": self.asked.priority}
            about = {**where, "began": self.machine.date, **asked}
            with self.asked.json.open("a") as file:
                print(json.dumps(about | row), file=file)

    def miss(self, line: str) -> None:
        """Keep and show what could not be had."""
        self.misses.append(line)
        print(line, flush=True)

    def alone(self, manager: str, program: str, load: str) -> float | None:
        """Return the rate that a program has alone and without a limit; None: not measured."""
        name, load = (FIRST, load) if program in ENGINES else (program, SATURATED)
        for row in reversed(self.rows):
            if (row["manager"], row.get("load")) == (manager, load) and row["cell"] in KINDS:
                programs: list[dict[str, Any]] = row["programs"]
                if [name] == [got["program"] for got in programs]:
                    return float(programs[0]["rate"])
        return None


@frozen
class ManagedPrograms:
    """The programs of one manager, which stay up; they end with the block."""

    bench: Bench
    manager: Manager
    settings: Settings
    environment: Mapping[str, str] = MappingProxyType({})
    _programs: dict[str, Program] = field(factory=dict, init=False)
    _shares: dict[str, Part] = field(factory=dict, init=False)
    _stack: ExitStack = field(factory=ExitStack, init=False)

    def __enter__(self) -> ManagedPrograms:
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.clear()
        self._stack.close()

    def start(self, names: Sequence[str]) -> None:
        """Start programs at once, those that fail once more one after the other."""
        missing = list(names)
        for attempt in range(1, STARTS + 1):
            groups = [missing] if attempt == 1 else [[name] for name in missing]
            missing = [name for group in groups for name in self._start(group, attempt)]

    def _start(self, names: Sequence[str], attempt: int) -> list[str]:
        """Return those that failed."""
        began = time.monotonic()
        failed = []
        started = [(name, *self._begin(name, attempt)) for name in names]
        for name, program, log in started:
            row: dict[str, Any] = {"manager": self.manager.name, "start": name, "attempt": attempt}
            try:
                ready = json.loads(program.line())
                program.bear(None)
                self._programs[name] = program
                row |= {"cache_tokens": ready.get("cache_tokens"), "failed": None}
                cache = f", KV cache {row['cache_tokens']} tokens" if row["cache_tokens"] else ""
                took = time.monotonic() - began
                print(f"{self.manager.name}: {name} serves after {took:.1f} s{cache}", flush=True)
            except HeteroError as error:
                program.__exit__()
                why = reason(log.read_text(errors="replace"))
                row["failed"] = f"{error}" if why in str(error) else f"{error} ({why})"
                failed.append(name)
                self.bench.miss(f"{self.manager.name}: {name}, start {attempt}: {row['failed']}")
            self.bench.record(row | {"seconds": round(time.monotonic() - began, 1)})
        return failed

    def _begin(self, name: str, attempt: int) -> tuple[Program, Path]:
        machine, asked = self.bench.machine, self.bench.asked
        memory = _memory(name, asked)
        words = (
            job.command(_trainer(asked))
            if name == TRAINER
            else command(asked.engine, Setup(memory=int(OF_MEMORY * parse_memory(memory))))
        )
        log = self.bench.logs / f"{self.manager.name}-{name}-{attempt}.log".replace(" ", "-")
        environment = {**self.settings(HALF), **self.environment}
        if self.manager.name == HAMI_CORE:  # a container has its own limit, and file for its usage
            environment |= {
                "CUDA_DEVICE_MEMORY_LIMIT": f"{parse_memory(memory) // MiB}m",
                "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(log.with_suffix(".cache")),
            }
        grant = None
        if self.manager.grants and name != BARE:
            priority = Priority(asked.priority) if name == FIRST else Priority.LOW
            grant = DeviceAllocation(memory=memory, label=_label(name), priority=priority)
        program = Program(
            words,
            machine,
            grant,
            name=name,
            environment=environment,
            patience=min(START, max(self.bench.left(), 1)),
            log=log,
        )
        self._stack.callback(program.__exit__)
        return program, log

    def measure(self, cell: Cell, load: Load) -> None:
        """Measure the programs of a cell, if all of them run, and show what they got."""
        title = f"{self.manager.name}: {cell}, {load}"
        seconds = self.bench.asked.seconds
        absent = [name for name in cell.programs if name not in self._programs]
        if absent or self.bench.left() < self.bench.asked.lead + seconds:
            why = f"{', '.join(absent)} does not run" if absent else "no time is left"
            self.bench.miss(f"{title}: not run ({why})")
            return
        try:
            got = self._measure(cell, load, seconds)
        except HeteroError as error:
            self.bench.miss(f"{title}: {error}")
            return
        row = {
            "manager": self.manager.name,
            "cell": str(cell),
            "load": str(load),
            "seconds": seconds,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "programs": got,
        }
        self.bench.record(row)
        print("\n".join((*lines(row), *accounts(row))), flush=True)

    def _measure(self, cell: Cell, load: Load, seconds: float) -> list[dict[str, Any]]:
        grants = self._grants(self._programs) if self.manager.grants else {}
        # Beside one that rests with a share, those without a limit would have what that leaves.
        parts = {name: Part(name) for name in grants} | {part.program: part for part in cell.parts}
        for name in grants:
            self._resize(grants[name], parts[name])
        grants = {name: grants[name] for name in cell.programs if name in grants}
        start = time.monotonic() + self.bench.asked.lead
        window = Window(start, start + seconds)
        pids = {name: self._programs[name].pid for name in cell.programs}
        seen = None
        if self.bench.asked.detail:
            seen = engine_detail.during(self.bench.machine, window, pids, grants)
        cue = {"per_second": load.per_second, "clients": load.clients}
        cue |= {"start": window.start, "end": window.end}
        seeds = {name: seed for seed, name in enumerate(cell.programs, start=1)}
        errors: list[HeteroError] = []
        got = []
        for name in cell.programs:
            with self._failing(name, errors) as program:
                program.bear(window.end - time.monotonic() + OVERRUN)
                program.tell(
                    f"{window.end!r} 0"
                    if name == TRAINER
                    else json.dumps(cue | {"seed": seeds[name]})
                )
        for name in [name for name in cell.programs if name in self._programs]:
            with self._failing(name, errors) as program:
                answer = json.loads(program.line())
                program.bear(None)
                got.append({"program": name, **_rates(name, answer, window)})
        details = seen() if seen else {}
        if errors:
            raise errors[0]
        for each in got:
            each["detail"] = details.get(each["program"], {})
        return got

    @contextmanager
    def _failing(self, name: str, errors: list[HeteroError]) -> Iterator[Program]:
        """Give a program; if it fails, note that in `errors` and go on without it."""
        try:
            yield self._programs[name]
        except HeteroError as error:
            self._programs.pop(name).__exit__()
            errors.append(error)

    def _grants(self, names: Iterable[str]) -> dict[str, str]:
        listed = json.loads(self._hetero("ps", "--json"))["items"]
        ids = {grant["label"]: grant["id"] for grant in listed}
        return {name: ids[_label(name)] for name in names if name != BARE}

    def _resize(self, grant: str, part: Part) -> None:
        if self._shares.get(part.program) != part:
            core = "open" if part.core is None else str(part.core)
            self._hetero("resize", grant, "--core", core, "--policy", part.policy.value)
            self._shares[part.program] = part

    def _hetero(self, *words: str) -> str:
        return run_hetero(words, self.environment)


def _rates(name: str, answer: Any, window: Window) -> dict[str, Any]:
    """Return what a program says of a measurement: tokens, or the trainer's steps, a second."""
    if name != TRAINER:
        return {"rate": answer["tokens_per_s"], **answer}
    try:
        return {"rate": pace([Batch(*mark) for mark in answer], window).rate}
    except ValueError as error:
        raise HeteroError(f"{name}: {error}") from None


def _label(name: str) -> str:
    return f"engines-{os.getpid()}-{name.replace(' ', '-')}"


def _trainer(asked: argparse.Namespace) -> str:
    return "simulated" if asked.engine == "simulated" else "resnet18"


def _memory(name: str, asked: argparse.Namespace) -> str:
    return job.JOBS[_trainer(asked)].memory if name == TRAINER else str(asked.memory)


def run(bench: Bench, manager: Manager) -> None:
    """Measure all cells of a manager."""
    asked = bench.asked
    cells = [cell for cell in manager.cells if cell.kind in asked.cells]
    names = list(dict.fromkeys(name for cell in cells for name in cell.programs))
    before = len(bench.rows)
    with ExitStack() as stack:
        try:
            settings = stack.enter_context(manager.around(bench.machine))
        except HeteroError as error:
            bench.miss(f"{manager.name}: not run ({error})")
            return
        config = stack.enter_context(tempfile.TemporaryDirectory(prefix="hetero-engines-"))
        Path(config, "node.toml").write_text(_SETTINGS)
        environment = {"HETERO_CONFIG": f"{config}/node.toml"} if manager.grants else {}
        programs = stack.enter_context(ManagedPrograms(bench, manager, settings, environment))
        together = manager.name in asked.together
        for group in [names] if together else [[name] for name in names]:
            programs.start(group)
        for cell in cells:
            for load in asked.loads:
                if load is None or not cell.saturated:
                    programs.measure(cell, Load(per_second=load, clients=asked.clients))
    for line in cost(bench.rows[before:]):
        print(line, flush=True)


def managers(asked: argparse.Namespace) -> Iterator[Manager]:
    """Yield those that were asked for, first the one that the others are compared with."""
    made = {
        "none": Manager(name="none", around=driver, cells=OPEN),
        "hetero": Manager(name="hetero", around=driver, cells=SHARES, grants=True),
        "mps": Manager(name="mps", around=mps, cells=OPEN),
        HAMI_CORE: Manager(name=HAMI_CORE, around=hami_core(asked.hami_core), cells=HALVES),
    }
    yield from (manager for name, manager in made.items() if name in asked.managers)


@contextmanager
def logs_in(asked: Path | None) -> Iterator[Path]:
    """Give a folder for the programs' logs, which is removed unless it was asked for."""
    if asked is not None:
        yield asked
        return
    with tempfile.TemporaryDirectory(prefix="hetero-engines-") as made:
        yield Path(made)


def wait_until_free(machine: Machine) -> None:
    """Wait until the card's memory is free again, at most ENDED seconds."""
    until = time.monotonic() + ENDED
    while time.monotonic() < until:
        listed = subprocess.run(
            (*HETERO, "inventory", "--json"), capture_output=True, text=True, check=False
        )
        (card,) = (
            each for each in json.loads(listed.stdout)["items"] if each["uuid"] == machine.uuid
        )
        if (card["memory_used"] or 0) < machine.memory / 20:
            return
        time.sleep(0.5)


def memory(text: str) -> str:
    """Check a size of memory."""
    try:
        parse_memory(text)
    except HeteroError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def loads(text: str) -> list[float | None]:
    """Return requests a second; None: as many as an engine answers."""
    rate = number(0.1, 10_000, "0.1 to 10000 requests a second")
    return [None if each == SATURATED else rate(each) for each in text.split(",")]


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        prog="engines.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage=argparse.SUPPRESS,
    )
    seconds = number(0.5, 3600, "0.5 to 3600 s")
    add = made.add_argument
    add("managers", nargs="?", type=some_of(MANAGERS), default="none,hetero")
    add("--engine", choices=tuple(SERVERS), default="vllm")
    add("--cells", type=some_of(KINDS), default=",".join(KINDS))
    add("--loads", type=loads, default=f"{SATURATED},20", help=f"{SATURATED}, or requests a second")
    add("--clients", type=_clients, default=32, help="of a saturated engine")
    add("--seconds", type=seconds, default=8.0, help="of each measurement")
    add("--lead", type=seconds, default=2.0, help="before each, with the same load")
    add("--memory", type=memory, default="24Gi", help="of the card, for each engine")
    add("--together", type=some_of(MANAGERS), default="hetero", help="start all programs at once")
    add("--priority", choices=[each.value for each in Priority], default=Priority.LOW.value)
    add("--within", type=seconds, default=540.0, help="seconds of the whole call")
    add("--detail", action="store_true", help="what was seen from outside")
    add("--hami-core", type=library, metavar="LIBRARY")
    add("--json", type=writable, metavar="FILE", help="to append rows to")
    add("--log", type=folder, metavar="FOLDER", help="for what programs say")
    return made


def _clients(text: str) -> int:
    return int(number(1, 10_000, "1 to 10000 clients")(text))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    asked = parser().parse_args(arguments)
    enter(os.environ)
    machine = find_machine()
    ends = time.monotonic() + asked.within
    print(f"{machine.card}, driver {machine.driver}, {machine.date}\n{COLUMNS}", flush=True)
    with logs_in(asked.log) as logs:
        bench = Bench(
            machine, asked, ends, logs, earlier_rows(asked.json, machine.card, asked.engine)
        )
        for manager in managers(asked):
            wait_until_free(machine)
            run(bench, manager)
    return 1 if bench.misses else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HeteroError as error:
        print(f"engines.py: {error}", file=sys.stderr)
        sys.exit(error.code)
