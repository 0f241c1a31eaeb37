"""How every benchmark is called and speaks: its progress, its tables and its JSON."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from hetero.model import codec
from hetero.model.units import format_memory
from hetero_benchmarks.trial import Machine

#: The options that every benchmark has.
uuid_option = click.option("--uuid", help="The card, by the start of its UUID. Default: the first.")
json_option = click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the report here, anew whenever there is more of it.",
)


def entry(command: click.Command) -> Callable[[Sequence[str]], int]:
    """Return what runs a benchmark's command and returns its exit code.

    The command's `obj` is its command line. Errors are left to whoever called: `hetero` tells all
    of them in one way.
    """
    name = f"hetero bench {command.name}"

    def main(argv: Sequence[str]) -> int:
        line = shlex.join([*name.split(), *argv])
        return command.main(list(argv), prog_name=name, standalone_mode=False, obj=line) or 0

    return main


def progress(line: str) -> None:
    """Tell the person who waits what is going on."""
    print(line, file=sys.stderr, flush=True)


def show(machine: Machine, *tables: Table, notes: Sequence[str] = ()) -> None:
    """Print where it was measured, the tables and their notes."""
    # Without codes, which `hetero bench` escapes: names of cards and drivers are not ours.
    console = Console(
        width=None if sys.stdout.isatty() else 120,
        color_system=None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    simulated = " (SIMULATED card)" if machine.simulated else ""
    versions = ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    console.print(
        f"{machine.card}{simulated}, {format_memory(machine.memory)}, driver "
        f"{machine.driver or 'unknown'}; {versions}; {machine.processors} processors, Linux "
        f"{machine.kernel}; {machine.date}"
    )
    for table in tables:
        console.print(table)
    for note in notes:
        console.print(note)


def save(report: object, file: Path | None) -> None:
    """Write the report as JSON, whole or not at all, if a file was named."""
    if file is not None:
        part = file.with_name(f"{file.name}.part")
        part.write_text(codec.dumps(report) + "\n")
        part.replace(file)


def append(report: object, file: Path | None) -> None:
    """Add the report to a file of JSON lines, if one was named."""
    if file is not None:
        with file.open("a") as lines:
            print(json.dumps(codec.to_plain(report)), file=lines)
