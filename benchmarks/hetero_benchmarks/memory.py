"""`hetero bench memory`: do programs meet their memory limit as they would meet a smaller card?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
from hetero_benchmarks.trial import DeviceAllocation, Machine, Program, find_machines

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
@click.option("--strict", is_flag=True, help="As by hetero run --strict.")
@report.uuid_option
@report.json_option
@click.pass_obj
def memory(
    command: str,
    limit: int,
    programs: tuple[str, ...],
    strict: bool,
    uuid: str | None,
    file: Path | None,
) -> int:
    """Try a memory limit from inside: the driver API, nvidia-smi, PyTorch, Triton, CuPy and JAX.

    Each is a program under `hetero run --memory LIMIT`. What is not installed is ABSENT. While a
    program holds all it can get, the card is also looked at from outside, with nvidia-smi.
    """
    machine, *others = find_machines(uuid)
    context = _context_bytes(machine)
    report.progress(f"a context takes {format_memory(context)} of a grant")
    checks: list[Check] = []
    for name in programs:
        report.progress(f"{PROBES[name].says} within {format_memory(limit)}")
        checks += _probe(name, (machine, *others), limit, context, strict=strict)
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
    name: str, machines: Sequence[Machine], limit: int, context: int, *, strict: bool
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
        words += map(str, numbers)
        before = _used(machine)
        with Program(
            words, machine, grant, name=name, others=cards[1:], environment=probe.environment
        ) as program:
            for line in program.lines():
                answer = json.loads(line)
                if "holding" in answer:
                    if before is not None:
                        yield _outside(
                            probe.says,
                            before,
                            _used(machine),
                            limit + (PAGES if context else CONTEXT),
                        )
                    program.tell("go on")
                elif "absent" in answer:
                    yield Check(
                        program=probe.says, check="it runs", passed=None, saw=answer["absent"]
                    )
                else:
                    yield Check(program=probe.says, **answer)
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


def _outside(program: str, before: int, now: int | None, most: int) -> Check:
    more = (now or 0) - before
    return Check(
        program=program,
        check=f"from outside, the card holds no more than {format_memory(most)}",
        passed=now is not None and more <= most,
        saw=format_memory(max(more, 0)),
    )


def _used(machine: Machine) -> int | None:
    """Return the bytes in use on the card as nvidia-smi says outside any grant, if it is there."""
    query = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    try:
        used = subprocess.check_output((*query, "-i", machine.uuid), text=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return int(used) * MiB
