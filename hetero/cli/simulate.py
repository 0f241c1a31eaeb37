"""hetero simulate: what placement makes of a recorded workload, or of a cluster as it stands."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hetero.cli import _json
from hetero.cli._render import UNKNOWN, Table, table
from hetero.cli._request import size_options
from hetero.cli._show import json_option, show
from hetero.cli._terminal import note
from hetero.cli._what_if import LIVE, what_if
from hetero.model import MEMORY
from hetero.model.errors import BadInput

if TYPE_CHECKING:
    from rich.progress import Progress

#: The literature's ten seeds are 42 to 51.
_FIRST_SEED = 42
_MOST_SHOWN_REASONS = 2  # reasons of refusals in a row
_OWN_PLACEMENT = "fragmentation"
_PLACEMENTS = f"{_OWN_PLACEMENT},fgd,bestfit"
#: The options that say what is different from the cluster as it stands.
_CLUSTER_OPTIONS = ("add", "replicas", "memory", "core", "count", "vendor", "model", "without")


@click.command()
@click.option(
    "--trace",
    "path",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A folder of openb's CSV files, or a JSON file of nodes and pods.",
)
@click.option("--pods", metavar="NAME", help="Which of the folder's lists of pods.  [default]")
@click.option(
    "--placement",
    metavar="NAMES",
    help="Placement policies; one with --cluster.  [fragmentation,fgd,bestfit; the cluster's own]",
)
@click.option("--seeds", type=click.IntRange(1, 1000), help="How many samples of pods.  [1]")
@click.option(
    "--arrival",
    type=click.Choice(["drawn", "file"]),
    help="Pods are drawn, or come once each as they stand in the file.  [drawn]",
)
@click.option("--jobs", type=click.IntRange(1), help="Processes at a time.  [one per processor]")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw it.")
@click.option(
    "--lifetimes",
    type=click.Choice(["exponential", "trace"]),
    help="Let pods end, too: after lives of one mean, or after those of the trace.",
)
@click.option("--load", metavar="PERCENTS", help="Loads, with --lifetimes.  [90,100,115]")
@click.option(
    "--mode", type=click.Choice(["loss", "queue"]), help="A pod that fits nowhere.  [loss]"
)
@click.option(
    "--cluster",
    type=click.Path(),
    is_flag=False,
    flag_value=LIVE,
    metavar="[FILE]",
    help="A cluster as it stands: that of $KUBECONFIG, or one saved by kubectl.",
)
@click.option(
    "--add",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The pods of manifests (Pod, Deployment, Job, ...) more.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="So many pods more, of the size that these flags say:",
)
@size_options
@click.option("--vendor", metavar="NAME", help="Whose devices.  [the one that the cluster has]")
@click.option("--model", metavar="NAME", help="Models with this in their name.")
@click.option("--without", multiple=True, metavar="NODE", help="This node less.")
@json_option
def command(
    *, path: Path | None, cluster: str | None, placement: str | None, as_json: bool, **options: Any
) -> int:
    """Replay a workload under placement policies, or ask what a cluster would do.

    PATH is a folder of openb CSV files or a JSON file of nodes and pods. Pods are drawn with
    replacement until they ask for 130 % of all cards: each seed draws others, the same seed the
    same again. With --arrival file nothing is drawn.

    With --lifetimes pods also end. The load is the rate of arrivals times the mean of cards times
    life. A pod that fits nowhere is refused (loss) or waits and is tried again whenever another
    ends (queue). One that no empty node serves is refused in both. Measured are 20,000 arrivals
    after 10,000.

    With --cluster nothing is replayed: the cluster's own scheduler runs on a
    copy of what the API says, with these pods more, that node less or another
    placement policy. Shown are where each pod would go or what its event would
    say, and the cluster before and after. Nothing is changed in the cluster.
    Exits 3 if a pod is refused, but for those that wait already. Evictions are
    not simulated.

    \b
    Ours:      fragmentation, binpack, spread, node-binpack-device-spread,
               node-spread-device-binpack, first, or weights: fragmentation=2,host=1
    Published: fgd, bestfit, packing, clustering, dotproduct, random

    \b
      hetero simulate --trace openb --pods default --placement fragmentation,fgd --seeds 10
      hetero simulate --trace cluster.json --placement fragmentation --plot curves.png
      hetero simulate --trace openb --lifetimes exponential --load 90,100,115 --mode loss

    \b
      hetero simulate --cluster --replicas 40 --memory 24Gi --core 50
      hetero simulate --cluster --add job.yaml --placement binpack
      K=nodes,pods,resourcequotas,configmaps,priorityclasses,resourceslices,resourceclaims
      kubectl get $K -A -o json > saved.json
      hetero simulate --cluster saved.json --without n3 --json

    Where the API has no claims, leave out ,resourceslices,resourceclaims.
    """
    cluster_options = {option_name: options.pop(option_name) for option_name in _CLUSTER_OPTIONS}
    if cluster is not None and path is None:
        _expect_none(options, "--trace")
        return what_if(cluster, **cluster_options, placement=placement, as_json=as_json)
    if path is not None and cluster is None:
        _expect_none(cluster_options, "--cluster")
        return _replay(path, **options, placement=placement, as_json=as_json)
    raise BadInput("give either --trace, a recorded workload, or --cluster")


def _expect_none(options: Mapping[str, Any], needed_option: str) -> None:
    """Raise `BadInput` if one of the options is given, which all need another."""
    for option_name, option_value in options.items():
        if option_value:
            raise BadInput(f"--{option_name} needs {needed_option}")


def _replay(
    path: Path,
    *,
    pods: str | None,
    placement: str | None,
    seeds: int | None,
    arrival: str | None,
    jobs: int | None,
    plot: Path | None,
    lifetimes: str | None,
    load: str | None,
    mode: str | None,
    as_json: bool,
) -> int:
    """Show what placement policies make of a recorded workload."""
    from hetero.simulate import replay, report
    from hetero.simulate.trace import read

    trace = read(path, pods=pods)  # what cannot be read is said before work is shared
    trace_name, default_names = trace.name, _PLACEMENTS
    if len({device.capacity[MEMORY] for node in trace.nodes for device in node.devices}) > 1:
        default_names = _OWN_PLACEMENT
        if placement is None:
            note("hetero: fgd and bestfit know cards of one size only: left out")
    placements = replay.placements(placement or default_names)
    if plot is not None and plot.suffix != ".png":
        raise BadInput(f"--plot {plot}: name a file that ends in .png")
    if arrival == "file" and ((seeds or 1) > 1 or lifetimes is not None):
        raise BadInput("--arrival file draws nothing: leave out --seeds and --lifetimes")
    seeds_range = range(_FIRST_SEED, _FIRST_SEED + (seeds or 1))
    processes = jobs or os.cpu_count() or 1
    if lifetimes is None and (load or mode):
        raise BadInput("--load and --mode need --lifetimes exponential or --lifetimes trace")
    if lifetimes is not None:
        summaries = _live(path, pods, placements, seeds_range, lifetimes, load, mode, processes)
        if plot is not None:
            report.draw_lives(summaries, plot, title=f"{trace_name}, mean of {len(seeds_range)}")
        show(lambda: summaries, render_lives, _json.listing("simulation"), as_json=as_json)
        return 0
    runs = []
    with _progress() as progress:
        task = progress.add_task("replaying", total=len(placements) * len(seeds_range))
        for run in replay.replay_all(
            path, pods, placements, seeds_range, processes=processes, arrival=arrival or "drawn"
        ):
            runs.append(run)
            progress.advance(task)
    summaries = report.summarise(runs, placements)
    if plot is not None:
        report.draw(summaries, plot, title=f"{trace_name}, mean of {len(seeds_range)}")
    show(lambda: summaries, render, _json.listing("simulation"), as_json=as_json)
    return 0


def _live(
    path: Path,
    pods: str | None,
    placements: list[str],
    seeds: range,
    lifetimes: str,
    load: str | None,
    mode: str | None,
    processes: int,
) -> tuple:  # type: ignore[type-arg]
    from hetero.simulate import departures, report

    protocols = [
        departures.Protocol(lifetimes=lifetimes, mode=mode or "loss", load_percent=load_percent)
        for load_percent in departures.loads(load or "90,100,115")
    ]
    lives = []
    with _progress() as progress:
        task = progress.add_task("replaying", total=len(placements) * len(seeds) * len(protocols))
        for life in departures.live_all(
            path, pods, placements, seeds, protocols, processes=processes
        ):
            lives.append(life)
            progress.advance(task)
    return report.summarise_lives(lives, placements)


def render_lives(summaries: tuple) -> Table:  # type: ignore[type-arg]
    """Return one row per load and placement policy."""
    lives_table = table(
        "load", "placement", "allocated", "whole nodes", "refused by cards", "waited, p99 (s)",
        folds=("refused by cards", "waited, p99 (s)"),
        right=("load", "allocated", "whole nodes"),
    )  # fmt: skip
    for summary in summaries:
        lives_table.add_row(
            f"{summary.load_percent} %",
            summary.placement,
            f"{summary.allocated_percent:.2f} %",
            f"{summary.whole_node_count:.1f}",
            ", ".join(
                f"{size.card_count}: {size.refused_count} of {size.arrived_count}"
                for size in summary.sizes
            ),
            ", ".join(
                f"{size.card_count}: {size.mean_wait_s:.0f}, {size.wait_p99_s:.0f}"
                for size in summary.sizes
                if size.wait_p99_s
            ),
        )
    return lives_table


def render(summaries: tuple) -> Table:  # type: ignore[type-arg]
    """Return one row per placement policy."""
    runs_table = table(
        "placement", "allocated", "from–to", "fragmented", "placed", "refused", "decisions/s",
        folds=("refused",),
        right=("allocated", "fragmented", "placed", "decisions/s"),
        drops=("refused", "decisions/s", "from–to"),
    )  # fmt: skip
    for summary in summaries:
        common_reasons = sorted(
            summary.refused_count_by_reason.items(),
            key=lambda reason_and_count: -reason_and_count[1],
        )[:_MOST_SHOWN_REASONS]
        runs_table.add_row(
            summary.placement,
            f"{summary.allocated_percent:.2f} %",
            f"{summary.lowest_allocated_percent:.2f}–{summary.highest_allocated_percent:.2f}",
            UNKNOWN
            if summary.fragmented_percent is None
            else f"{summary.fragmented_percent:.2f} %",
            f"{summary.placed_count:.0f}",
            ", ".join(f"{count:.0f} {reason}" for reason, count in common_reasons),
            f"{summary.decisions_per_second:.0f}",
        )
    return runs_table


def _progress() -> Progress:
    """Return a bar on standard error, shown only where somebody looks."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from hetero.cli._draw import terminal_of

    console = terminal_of(sys.stderr)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
