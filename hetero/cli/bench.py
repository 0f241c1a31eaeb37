"""hetero bench: runs a benchmark that is installed beside the core."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

import click

from hetero.cli._render import table
from hetero.cli._show import put
from hetero.model.errors import NotFound


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@click.argument("benchmark", metavar="[NAME]", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(benchmark: str | None, arguments: tuple[str, ...]) -> int:
    """Run the benchmark NAME with its own ARGUMENTS; without NAME, list what there is.

    \b
      hetero bench
      hetero bench isolation --help
    """
    commands = {entry_point.name: entry_point for entry_point in entry_points(group="hetero.bench")}
    none_text = "none: in hetero's sources, pip install ./benchmarks"
    if benchmark is None and not commands:
        raise NotFound(f"no benchmarks are installed ({none_text})")
    if benchmark is None:
        benchmarks_table = table("benchmark", "what it measures", folds=("what it measures",))
        for benchmark_name in sorted(commands):
            module = import_module(commands[benchmark_name].module)
            # A docstring begins with how it is called.
            sentence = (module.__doc__ or "").partition("\n")[0].rpartition("`: ")[2]
            benchmarks_table.add_row(benchmark_name, sentence)
        put(benchmarks_table)
        return 0
    if benchmark not in commands:
        available_list = ", ".join(sorted(commands)) or none_text
        raise NotFound(f"no benchmark {benchmark!r} is installed (installed: {available_list})")
    return int(commands[benchmark].load()(list(arguments)))
