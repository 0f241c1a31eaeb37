"""Programs that stay up between measurements, so that each costs its seconds and little more.

A program is started once, natively or under a grant, and then told again and again until when to
run. Its share is changed in place in between, by `hetero resize`, as a user would change it.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import evolve, field, frozen

from hetero.model import Policy
from hetero.model.errors import HeteroError
from hetero.model.units import MiB, parse_memory
from hetero_benchmarks import gang, report
from hetero_benchmarks.cells import FULL, OPEN, Cell, Key, Share, Tenant
from hetero_benchmarks.gang import GANGS
from hetero_benchmarks.job import JOBS, command, of_driver
from hetero_benchmarks.rates import Batch, Pace, Window, pace
from hetero_benchmarks.sweep import sweep
from hetero_benchmarks.trial import DeviceAllocation, Machine, Program, run_hetero

#: Seconds a program may take to start, or to end its last step, before it is taken to hang.
PATIENCE = 180.0
#: What is taken of the card's memory at a time, and how many programs stand at most.
ROOM, MOST = 0.9, 24
#: What a process's context costs on the card beyond its grant: 518 MiB on an H200.
CONTEXT = 600 * MiB

#: More programs stand than the card's core and slots would let in at once, but few of them run.
_SETTINGS = """[scale]
core = 100
[cards]
max_sharers = 1000
sharing = "{sharing}"
[gangs]
period = {period}
"""


def _with_room(cells: Iterable[Cell], room: float) -> list[Key]:
    """Return the programs of the first cell, and of those after it as long as all fit `room`."""
    chosen: dict[Key, None] = {}
    for cell in cells:
        wanted = chosen | dict.fromkeys(cell.programs)
        held = sum(_held(tenant) for tenant, _ in wanted)
        if chosen and (held > room or len(wanted) > MOST):
            break
        chosen = wanted
    return list(chosen)


def _memory(tenant: Tenant) -> str:
    """Return the memory that its grant asks for of each of its cards."""
    return (GANGS if len(tenant.cards) > 1 else JOBS)[tenant.job].memory


def _held(tenant: Tenant) -> int:
    """Return what a program takes of the memory of the card of which it takes most, in bytes."""
    processes = 1 if len(tenant.cards) > 1 else JOBS[tenant.job].processes
    return parse_memory(_memory(tenant)) + CONTEXT * processes


def _first_core(cells: Iterable[Cell], key: Key) -> int | None:
    """Return the core that a program starts with; None where it is set when it is measured.

    A gang has its share from the first, as a user would start it. To start at a share of 1 would
    take the programs of one card too long, and there are many.
    """
    program, _ = key
    core = None if program.share is None else program.share.core
    if core in (None, FULL) or len(program.cards) == 1:
        return core if core == FULL else None
    named = (pair for cell in cells for pair in zip(cell.programs, cell.tenants, strict=True))
    return next(tenant.share.core for each, tenant in named if each == key and tenant.share)


@frozen
class _Resident:
    """A program that runs, the id of its grant, and what that was last set to."""

    program: Program
    label: str
    grant: str | None = None
    share: Share | None = None


@frozen
class Fleet:
    """The programs that stand on one machine; they end with the block.

    Cards of tenants are the machine's and `others`, by their UUIDs. A program may take `patience`
    seconds to start, and `overrun` longer than it was told to run. Programs of several cards are
    started with `variables`, NAME=VALUE. `sharing` is how those with a grant share the card, as the
    node's settings say it, and `period` that of gangs in milliseconds. In the folder `logs`, each
    program has a file for what its limiters say.
    """

    machine: Machine
    others: tuple[str, ...] = ()
    patience: float = PATIENCE
    overrun: float = PATIENCE
    variables: tuple[str, ...] = ()
    sharing: str = "time"
    period: int = 100
    logs: Path | None = None
    _standing: dict[Key, _Resident] = field(factory=dict, init=False)
    _failed: dict[Key, str] = field(factory=dict, init=False)
    _iterations: dict[str, int] = field(factory=dict, init=False)
    _stack: ExitStack = field(factory=ExitStack, init=False)
    _folder: Path = field(init=False)

    @_folder.default
    def _make_folder(self) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hetero-bench-")))

    def __enter__(self) -> Fleet:
        settings = _SETTINGS.format(sharing=self.sharing, period=self.period)
        (self._folder / "node.toml").write_text(settings)
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._standing):
            self._end(key)
        if self.sharing == "mps":  # else the next to use the card meets its service
            apart = [path for path in self._folder.iterdir() if path.is_dir()]
            for state in ({}, *({"HETERO_STATE": str(path)} for path in apart)):
                sweep({**os.environ, **self._settings, **state})
        self._stack.close()

    def prepare(self, cells: Sequence[Cell]) -> None:
        """Start, all at once, what the first of `cells` needs and as many of the next have room.

        Nothing happens while the first has all it needs, so that nothing else runs beside it. One
        that fails to start is not tried again.
        """
        if all(self._ready(key) for key in cells[0].programs):
            return
        tenants = (each for cell in cells for each in cell.tenants if len(each.cards) == 1)
        for job in dict.fromkeys(tenant.job for tenant in tenants):
            if JOBS[job].driver is not None and job not in self._iterations:
                self._iterations[job] = self._measure_iterations(job)
        ahead = _with_room(cells, self.machine.memory * ROOM)
        for key in set(self._standing) - set(ahead):
            self._end(key)
        missing = [key for key in ahead if not self._ready(key)]
        names = Counter(tenant.job for tenant, _ in missing)
        report.progress(f"starting {', '.join(f'{count} {name}' for name, count in names.items())}")
        for key in missing:
            self._standing[key] = self._start(*key, core=_first_core(cells, key))
        for key in missing:
            errors: list[HeteroError] = []
            with self._failing(key, errors):
                self._standing[key].program.line()  # it is ready
                self._standing[key].program.bear(None)
            if errors:
                self._failed[key] = str(errors[0])
        grants = self._grants()
        for key, standing in self._standing.items():
            self._standing[key] = evolve(standing, grant=grants.get(standing.label))

    def _ready(self, key: Key) -> bool:
        return key in self._standing or key in self._failed

    def measure(self, cell: Cell) -> tuple[Pace | None, ...]:
        """Return how each tenant of `cell` ran, all over the same time, None for the idle ones.

        Raises `HeteroError` if one could not be started, failed or was late. All are `prepare`d.
        """
        for key in cell.programs:
            if key in self._failed:
                raise HeteroError(self._failed[key])
        self._set(cell)
        begun = time.monotonic() + cell.lead
        window = Window(begun, begun + cell.seconds)
        active = [
            (key, tenant)
            for key, tenant in zip(cell.programs, cell.tenants, strict=True)
            if not tenant.idle
        ]
        errors: list[HeteroError] = []
        batches: dict[Key, list[Batch]] = {}
        for key, tenant in active:
            self._standing[key].program.bear(cell.lead + cell.seconds + self.overrun)
            with self._failing(key, errors):
                if self.logs is not None:
                    self._standing[key].program.note(f"{tenant}: {cell.seconds:g} s")
                self._standing[key].program.tell(f"{window.end!r} {tenant.rest!r}")
        # All are heard, even when one failed: what it said would stand in the way of the next.
        for key in [key for key, _ in active if key in self._standing]:
            with self._failing(key, errors):
                line = self._standing[key].program.line()
                self._standing[key].program.bear(None)
                batches[key] = [Batch(*mark) for mark in json.loads(line)]
        if errors:
            raise errors[0]
        try:
            return tuple(
                pace(batches[key], window) if key in batches else None for key in cell.programs
            )
        except ValueError as error:  # on a machine so busy that a program slept through the lead
            raise HeteroError(str(error)) from None

    def ask(self, key: Key, words: str) -> str:
        """Tell a program something else than when to run, and return the line that it answers.

        Raises `HeteroError` if it could not be started or fails; it has ended then.
        """
        if key in self._failed:
            raise HeteroError(self._failed[key])
        errors: list[HeteroError] = []
        answer = ""
        with self._failing(key, errors):
            program = self._standing[key].program
            program.bear(self.overrun)
            program.tell(words)
            answer = program.line()
            program.bear(None)
        if errors:
            raise errors[0]
        return answer

    def _start(self, tenant: Tenant, number: int, *, core: int | None) -> _Resident:
        label = f"bench-{os.getpid()}-{tenant}-{number}"
        grant = None
        # Whoever has no limit runs alone, and is counted apart from those it would stand beside.
        apart: dict[str, str] = {}
        if tenant.share is not None:
            share = tenant.share
            grant = DeviceAllocation(
                memory=_memory(tenant),
                core=core,
                policy=share.policy,
                priority=share.priority,
                label=label,
            )
            if share.core in (None, FULL):
                apart = {"HETERO_STATE": tempfile.mkdtemp(dir=self._folder)}
        log, logged = None, dict[str, str]()
        if self.logs is not None:
            name = f"{len(list(self.logs.iterdir())):02}-{tenant.job}-{number}"
            log, logged = self.logs / f"{name}.log", {"HETERO_LOG": "debug"}
        first, *others = [(self.machine.uuid, *self.others)[card] for card in tenant.cards]
        program = Program(
            self._command(tenant),
            evolve(self.machine, uuid=first),
            grant,
            name=str(tenant) if grant is None or apart else f"{tenant.name} under a grant",
            others=others,
            environment=self._settings | apart | logged if grant else dict(tenant.settings),
            patience=self.patience,
            log=log,
        )
        return _Resident(program.__enter__(), label)

    def _command(self, tenant: Tenant) -> tuple[str, ...]:
        if len(tenant.cards) > 1:
            return gang.command(tenant.job, len(tenant.cards), *self.variables)
        known = self._iterations.get(tenant.job)
        iterations = ("--iterations", str(known)) if known is not None else ()
        return command(tenant.job, *iterations)

    def _measure_iterations(self, job: str) -> int:
        """Return how often the loop of a job's kernel turns in its time, while nothing else runs.

        Each program would find it out by itself, but not the same: their steps must be as long.
        """
        words = (*of_driver(JOBS[job]), "--seconds", "0.01")
        with Program(words, self.machine, None, name=job, patience=self.patience) as program:
            return int(json.loads(list(program.lines())[-1])["iterations"])

    @property
    def _settings(self) -> dict[str, str]:
        return {"HETERO_CONFIG": str(self._folder / "node.toml")}

    def _grants(self) -> dict[str, str]:
        listed = self._hetero("ps", "--seconds", "0.05", "--json")
        return {grant["label"]: grant["id"] for grant in json.loads(listed)["items"]}

    def _set(self, cell: Cell) -> None:
        """Change each tenant's core to what the cell says, where it is not that already."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(self._set_one, cell.programs, cell.tenants))

    def _set_one(self, key: Key, tenant: Tenant) -> None:
        share, standing = tenant.share, self._standing[key]
        if share is None or share.core in (None, FULL) or share == standing.share:
            return
        if standing.grant is None:
            raise HeteroError(f"{tenant}: hetero ps does not show its grant")
        core = "open" if share.core == OPEN else str(share.core)
        policy = () if share.policy is Policy.OFF else ("--policy", share.policy.value)
        self._hetero("resize", standing.grant, "--core", core, *policy)
        self._standing[key] = evolve(standing, share=share)

    def _hetero(self, *words: str) -> str:
        return run_hetero(words, self._settings)

    @contextmanager
    def _failing(self, key: Key, errors: list[HeteroError]) -> Iterator[None]:
        """Note in `errors` that a program failed, and go on without it."""
        try:
            yield
        except HeteroError as error:
            report.progress(str(error))
            self._end(key)
            errors.append(error)

    def _end(self, key: Key) -> None:
        self._standing.pop(key).program.__exit__()
