"""Summarises the runs of a placement policy: a row of the table, a curve of the plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from attrs import field, frozen

from hetero.model.errors import BadInput
from hetero.model.json_keys import json_key
from hetero.simulate.departures import Life, Size
from hetero.simulate.replay import Point, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@frozen(kw_only=True)
class Summary:
    """The mean over all seeds of one placement policy; percentages are of all cards."""

    placement: str
    seed_count: int = field(metadata=json_key("seeds"))
    allocated_percent: float = field(metadata=json_key("allocated"))
    lowest_allocated_percent: float = field(metadata=json_key("lowest"))  # allocated, of all seeds
    highest_allocated_percent: float = field(metadata=json_key("highest"))
    #: None where cards differ in size.
    fragmented_percent: float | None = field(metadata=json_key("fragmented"))
    arrived_count: float = field(metadata=json_key("arrived"))  # pods
    placed_count: float = field(metadata=json_key("placed"))
    #: Pods, by what most nodes lacked.
    refused_count_by_reason: Mapping[str, float] = field(metadata=json_key("refused"))
    decisions_per_second: float
    curve: tuple[Point, ...]


def summarise(runs: Iterable[Run], placements: Sequence[str]) -> tuple[Summary, ...]:
    """Return one summary per placement, in the order given."""
    runs_by_placement: dict[str, list[Run]] = {placement: [] for placement in placements}
    for run in sorted(runs, key=lambda run: run.seed):
        runs_by_placement[run.placement].append(run)
    return tuple(
        _mean_of_runs(placement, placement_runs)
        for placement, placement_runs in runs_by_placement.items()
    )


def _mean_of_runs(placement: str, runs: list[Run]) -> Summary:
    reasons = dict.fromkeys(reason for run in runs for reason in run.refused_count_by_reason)
    return Summary(
        placement=placement,
        seed_count=len(runs),
        allocated_percent=fmean(run.allocated_percent for run in runs),
        lowest_allocated_percent=min(run.allocated_percent for run in runs),
        highest_allocated_percent=max(run.allocated_percent for run in runs),
        fragmented_percent=_mean(run.fragmented_percent for run in runs),
        arrived_count=fmean(run.arrived_count for run in runs),
        placed_count=fmean(run.placed_count for run in runs),
        refused_count_by_reason={
            reason: fmean(run.refused_count_by_reason.get(reason, 0) for run in runs)
            for reason in sorted(reasons)
        },
        decisions_per_second=sum(run.arrived_count for run in runs)
        / sum(run.decision_s for run in runs),
        curve=_mean_curve(runs),
    )


def _mean_curve(runs: list[Run]) -> tuple[Point, ...]:
    points_by_arrived: dict[int, list[Point]] = {}
    for run in runs:
        for point in run.curve:
            points_by_arrived.setdefault(point.arrived_percent, []).append(point)
    return tuple(
        Point(
            arrived_percent=arrived,
            allocated_percent=fmean(point.allocated_percent for point in points),
            fragmented_percent=_mean(point.fragmented_percent for point in points),
        )
        for arrived, points in sorted(points_by_arrived.items())
    )


def _mean(figures: Iterable[float | None]) -> float | None:
    known_figures = [figure for figure in figures if figure is not None]
    return fmean(known_figures) if known_figures else None


@frozen(kw_only=True)
class LifeSummary:
    """The mean over all seeds of one placement policy at one load."""

    placement: str
    load_percent: int = field(metadata=json_key("load"))
    seed_count: int = field(metadata=json_key("seeds"))
    #: Percent of all cards, mean over time.
    allocated_percent: float = field(metadata=json_key("allocated"))
    #: Nodes of which no card is used.
    whole_node_count: float = field(metadata=json_key("whole_nodes"))
    sizes: tuple[Size, ...]  # sums of pods over the seeds, means of waiting


def summarise_lives(lives: Iterable[Life], placements: Sequence[str]) -> tuple[LifeSummary, ...]:
    """Return one summary per load and placement, in the order given."""
    lives_by_load: dict[tuple[int, str], list[Life]] = {}
    for life in sorted(
        lives, key=lambda life: (life.load_percent, placements.index(life.placement))
    ):
        lives_by_load.setdefault((life.load_percent, life.placement), []).append(life)
    return tuple(
        LifeSummary(
            placement=placement,
            load_percent=load,
            seed_count=len(group),
            allocated_percent=fmean(life.allocated_percent for life in group),
            whole_node_count=fmean(life.whole_node_count for life in group),
            sizes=_sizes(size for life in group for size in life.sizes),
        )
        for (load, placement), group in lives_by_load.items()
    )


def _sizes(sizes: Iterable[Size]) -> tuple[Size, ...]:
    sizes_by_cards: dict[int, list[Size]] = {}
    for size in sizes:
        sizes_by_cards.setdefault(size.card_count, []).append(size)
    return tuple(
        Size(
            card_count=cards,
            arrived_count=sum(size.arrived_count for size in sizes),
            refused_count=sum(size.refused_count for size in sizes),
            mean_wait_s=fmean(size.mean_wait_s for size in sizes),
            wait_p99_s=fmean(size.wait_p99_s for size in sizes),
        )
        for cards, sizes in sorted(sizes_by_cards.items())
    )


def draw(summaries: Iterable[Summary], file: Path, *, title: str) -> None:
    """Draw what was allocated against what had arrived. Raises `BadInput` without matplotlib."""
    figure = _figure(9, 4)
    full_axes, zoom_axes = figure.subplots(1, 2)
    for summary in summaries:
        arrived_percent = [point.arrived_percent for point in summary.curve]
        allocated_percent = [point.allocated_percent for point in summary.curve]
        for axes in (full_axes, zoom_axes):
            axes.plot(arrived_percent, allocated_percent, label=summary.placement, linewidth=1.2)
    last_points = [summary.curve[-1] for summary in summaries]
    zoom_axes.set_xlim(85, max(point.arrived_percent for point in last_points))
    zoom_axes.set_ylim(min(point.allocated_percent for point in last_points) - 5, 100)
    full_axes.set_ylabel("cards allocated, %")
    full_axes.set_title(title)
    zoom_axes.set_title("the end of it")
    for axes in (full_axes, zoom_axes):
        axes.set_xlabel("cards asked for so far, % of all")
        axes.grid(visible=True, linewidth=0.3)
    full_axes.legend(loc="lower right", fontsize="small")
    _save(figure, file)


def draw_lives(summaries: Iterable[LifeSummary], file: Path, *, title: str) -> None:
    """Draw what was allocated and what stayed whole by load, refusals and waiting by pods' size.

    Raises `BadInput` without matplotlib.
    """
    figure = _figure(10, 7)
    (allocated_axes, full_axes), (refused_axes, waited_axes) = figure.subplots(2, 2)
    summaries_by_placement: dict[str, list[LifeSummary]] = {}
    for summary in summaries:
        summaries_by_placement.setdefault(summary.placement, []).append(summary)
    for position, (placement, placement_summaries) in enumerate(summaries_by_placement.items()):
        style = {"color": f"C{position}", "linewidth": 1.2, "marker": "o", "markersize": 3}
        load_labels = [str(summary.load_percent) for summary in placement_summaries]
        allocated_axes.plot(
            load_labels,
            [summary.allocated_percent for summary in placement_summaries],
            label=placement,
            **style,
        )
        full_axes.plot(
            load_labels, [summary.whole_node_count for summary in placement_summaries], **style
        )
        for summary, line_style in zip(placement_summaries, cycle(("-", "--", ":"))):
            card_labels = [str(size.card_count or "share") for size in summary.sizes]
            lost_percent = [
                100 * size.refused_count / max(size.arrived_count, 1) for size in summary.sizes
            ]
            label = f"{placement}, {summary.load_percent} %"
            refused_axes.plot(card_labels, lost_percent, linestyle=line_style, label=label, **style)
            waited_axes.plot(
                card_labels,
                [size.wait_p99_s for size in summary.sizes],
                linestyle=line_style,
                **style,
            )
    allocated_axes.set_title(title)
    for axes, axis_label in (
        (allocated_axes, "cards allocated, %"),
        (full_axes, "whole nodes free"),
        (refused_axes, "pods refused, %"),
        (waited_axes, "waited, 99th percentile, s"),
    ):
        axes.set_ylabel(axis_label)
        axes.set_xlabel("load, %" if axes in (allocated_axes, full_axes) else "cards of a pod")
        axes.grid(visible=True, linewidth=0.3)
    for axes in (allocated_axes, refused_axes):
        axes.legend(fontsize="small")
    _save(figure, file)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("--plot needs matplotlib: pip install hetero[simulate]") from None
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, file: Path) -> None:
    try:
        figure.savefig(file, dpi=110)
    except OSError as error:
        raise BadInput(f"--plot {file}: {error.strerror}") from None
