"""hetero bench: runs a benchmark that is installed beside the core."""

from __future__ import annotations

from importlib.metadata import entry_points

import click

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
    if benchmark is None:
        for benchmark_name in sorted(commands):
            click.echo(benchmark_name)
        return 0
    if benchmark not in commands:
        available_list = (
            ", ".join(sorted(commands)) or "none: in hetero's sources, pip install ./benchmarks"
        )
        raise NotFound(f"no benchmark {benchmark!r} is installed (installed: {available_list})")
    return int(commands[benchmark].load()(list(arguments)))
