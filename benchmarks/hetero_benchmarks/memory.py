"""`hetero bench memory`: do programs meet their memory limit as they would meet a smaller card?"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click
from attrs import frozen
from rich.table import Table

from hetero.model.errors import HeteroError
from hetero.model.units import MiB, format_memory, parse_memory
from hetero.node.inventory import devices_of
from hetero.node.node import Node
from hetero_benchmarks import report
from hetero_benchmarks.probe import PROBES
from hetero_benchmarks.trial import (
    PATIENCE,
    DeviceAllocation,
    Machine,
    Program,
    find_machines,
)

#: Milliseconds between two looks from outside, and seconds after which none is waited for.
_LOOK_MS, _LOOK_PATIENCE_S = 100, 30
#: What a process's context may cost on the card beyond the grant where contexts do not count (518
#: MiB on an H200), and where they do: pages of its tables.
CONTEXT, PAGES = 1024 * MiB, 2 * MiB


@frozen(kw_only=True)
class Check:
    """One truth: `passed` None means that what it needs is absent."""

    program: str
    check: str
    passed: bool | None
    saw: str

    @property
    def verdict(self) -> str:
        """The word for it."""
        return "ABSENT" if self.passed is None else "PASS" if self.passed else "FAIL"


@frozen(kw_only=True)
class Memory:
    """The whole report; `context`: what one takes of the limit, 0 where they do not count."""

    command: str
    machine: Machine
    limit: int
    context: int
    checks: tuple[Check, ...]


@click.command()
@click.option(
    "--limit",
    callback=lambda _context, _option, text: parse_memory(text),
    default="20000Mi",
    show_default=True,
    help="The grant's memory; at least 1000Mi.",
)
@click.option(
    "--programs",
    callback=lambda _context, _option, text: _named(text),
    default=",".join(PROBES),
    show_default=True,
    help="Only these.",
)
@click.option(
    "--seconds",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="For how long a program goes on that fills the grant again and again.",
)
@click.option("--strict", is_flag=True, help="As by hetero run --strict.")
@report.uuid_option
@report.json_option
@click.pass_obj
def memory(
    command: str,
    limit: int,
    programs: tuple[str, ...],
    seconds: int,
    strict: bool,
    uuid: str | None,
    file: Path | None,
) -> int:
    """Try a memory limit from inside: the driver API, nvidia-smi and libraries.

    Each is a program under `hetero run --memory LIMIT`, one after the other. What is not installed
    is ABSENT. Meanwhile nvidia-smi looks at the card from outside every 100 ms, and all that the
    card holds counts: nothing else may use it.
    """
    machine, *others = find_machines(uuid)
    context = _context_bytes(machine)
    report.progress(f"a context takes {format_memory(context)} of a grant")
    checks: list[Check] = []
    for name in programs:
        report.progress(f"{PROBES[name].says} within {format_memory(limit)}")
        checks += _probe(name, (machine, *others), limit, context, seconds, strict=strict)
        result = Memory(
            command=command, machine=machine, limit=limit, context=context, checks=tuple(checks)
        )
        report.save(result, file)
    table = Table(title=f"Within {format_memory(limit)}", title_justify="left")
    for heading in ("program", "check", "verdict", "saw"):
        table.add_column(heading)
    for check in checks:
        table.add_row(check.program, check.check, check.verdict, check.saw)
    report.show(machine, table)
    return int(any(check.passed is False for check in checks))


main = report.entry(memory)


def _named(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in PROBES:
            raise click.BadParameter(f"no program {name}: {', '.join(PROBES)}")
    return names


def _context_bytes(machine: Machine) -> int:
    """Return what the driver counts for a process with a context and a byte; 0: it is not counted.

    It is asked without a grant. Raises `HeteroError` where none can be made.
    """
    node = Node.here()
    if not node.settings.context:
        return 0
    device = devices_of(node.discover())[machine.uuid]
    return node.registry.measure(device) or 0


def _probe(
    name: str,
    machines: Sequence[Machine],
    limit: int,
    context: int,
    seconds: int,
    *,
    strict: bool,
) -> Iterator[Check]:
    """Run one probe and give what it found, from inside and from outside."""
    probe = PROBES[name]
    machine, cards = machines[0], [each.uuid for each in machines[: probe.cards]]
    if probe.cards > len(cards):
        saw = f"it needs {probe.cards} cards"
        yield Check(program=probe.says, check="it runs", passed=None, saw=saw)
        return
    words = [sys.executable, "-m", "hetero_benchmarks.probe", name]
    grant = DeviceAllocation(memory=f"{limit}B", strict=strict)
    try:
        numbers = [limit, context]
        if probe.native is not None:
            numbers.append(_taken(name, words, machine, cards[1:]))
        if probe.lasts:
            numbers.append(seconds)
        words += map(str, numbers)
        with (
            CardWatch(machine) as watch,
            Program(
                words,
                machine,
                grant,
                name=name,
                others=cards[1:],
                environment=probe.environment,
                patience=PATIENCE + seconds,
            ) as program,
        ):
            for line in program.lines():
                answer = json.loads(line)
                if "holding" in answer:
                    watch.wait_for_a_look()
                    program.tell("go on")
                elif "absent" in answer:
                    yield Check(
                        program=probe.says, check="it runs", passed=None, saw=answer["absent"]
                    )
                else:
                    yield Check(program=probe.says, **answer)
        if watch.looks:
            yield _outside(probe.says, watch, limit + (PAGES if context else CONTEXT))
    except HeteroError as error:
        yield Check(program=probe.says, check="it runs", passed=False, saw=str(error))


def _taken(name: str, words: Sequence[str], machine: Machine, others: Sequence[str]) -> int:
    """Return what a probe takes of a card without hetero; 0 where what it needs is absent."""
    environment = PROBES[name].environment
    with Program(
        words, machine, None, name=name, others=others, environment=environment
    ) as program:
        taken: int = json.loads(program.line()).get("taken", 0)
        return taken


def _outside(program: str, watch: CardWatch, most: int) -> Check:
    return Check(
        program=program,
        check=f"from outside, the card never holds more than {format_memory(most)}",
        passed=watch.is_whole and watch.more <= most,
        saw=f"{format_memory(max(watch.more, 0))} at most in {watch.looks} looks",
    )


class CardWatch:
    """Looks every 100 ms at what is in use of the card, outside any grant, within its block.

    `more` is the most in bytes beyond what was in use at the first look, `looks` how many there
    were: none where there is no nvidia-smi. After the block `is_whole` says whether it looked until
    the end.
    """

    def __init__(self, machine: Machine) -> None:
        self.more = self.looks = 0
        self.is_whole = False
        self._changed = threading.Condition()
        self._is_over = False
        query = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        self._process: subprocess.Popen[str] | None = None
        with suppress(FileNotFoundError):
            self._process = subprocess.Popen(
                (*query, "-i", machine.uuid, f"--loop-ms={_LOOK_MS}"),
                stdout=subprocess.PIPE,
                text=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> CardWatch:
        self.wait_for_a_look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self.is_whole = self._process.poll() is None and not self._is_over
            self._process.terminate()
            self._process.wait()
        self._reader.join()

    def wait_for_a_look(self) -> None:
        """Wait for a look that begins after now, if it looks at all: the next may have begun."""
        with self._changed:
            enough = self.looks + 2
            self._changed.wait_for(
                lambda: self.looks >= enough or self._is_over, timeout=_LOOK_PATIENCE_S
            )

    def _read(self) -> None:
        first = None
        for line in self._process.stdout or () if self._process else ():
            if not line.strip().isdigit():
                break  # a driver that does not say
            used = int(line) * MiB
            first = used if first is None else first
            with self._changed:
                self.more, self.looks = max(self.more, used - first), self.looks + 1
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
