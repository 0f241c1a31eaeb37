"""What several runs of a placement policy come to: one row of the table, one curve of the plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from attrs import frozen

from hetero.model.errors import BadInput
from hetero.simulate.departures import Life, Size
from hetero.simulate.replay import Point, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@frozen(kw_only=True)
class Summary:
    """The mean over all seeds of one placement policy; percentages are of all cards."""

    placement: str
    seeds: int
    allocated: float
    lowest: float  # allocated, of all seeds
    highest: float
    fragmented: float | None  # None where cards differ in size
    arrived: float  # pods
    placed: float
    refused: Mapping[str, float]  # pods, by what most nodes lacked
    decisions_per_second: float
    curve: tuple[Point, ...]


def summarise(runs: Iterable[Run], placements: Sequence[str]) -> tuple[Summary, ...]:
    """Return one summary per placement, in the order given."""
    by_placement: dict[str, list[Run]] = {placement: [] for placement in placements}
    for run in sorted(runs, key=lambda run: run.seed):
        by_placement[run.placement].append(run)
    return tuple(_summary(placement, some) for placement, some in by_placement.items())


def _summary(placement: str, runs: list[Run]) -> Summary:
    reasons = dict.fromkeys(reason for run in runs for reason in run.refused)
    return Summary(
        placement=placement,
        seeds=len(runs),
        allocated=fmean(run.allocated for run in runs),
        lowest=min(run.allocated for run in runs),
        highest=max(run.allocated for run in runs),
        fragmented=_mean(run.fragmented for run in runs),
        arrived=fmean(run.arrived for run in runs),
        placed=fmean(run.placed for run in runs),
        refused={r: fmean(run.refused.get(r, 0) for run in runs) for r in sorted(reasons)},
        decisions_per_second=sum(r.arrived for r in runs) / sum(r.seconds for r in runs),
        curve=_mean_curve(runs),
    )


def _mean_curve(runs: list[Run]) -> tuple[Point, ...]:
    at: dict[int, list[Point]] = {}
    for run in runs:
        for point in run.curve:
            at.setdefault(point.arrived, []).append(point)
    return tuple(
        Point(
            arrived=arrived,
            allocated=fmean(point.allocated for point in points),
            fragmented=_mean(point.fragmented for point in points),
        )
        for arrived, points in sorted(at.items())
    )


def _mean(some: Iterable[float | None]) -> float | None:
    known = [one for one in some if one is not None]
    return fmean(known) if known else None


@frozen(kw_only=True)
class LifeSummary:
    """The mean over all seeds of one placement policy at one load."""

    placement: str
    load: int  # percent
    seeds: int
    allocated: float  # percent of all cards, mean over time
    whole_nodes: float  # nodes of which no card is used
    sizes: tuple[Size, ...]  # sums of pods over the seeds, means of waiting


def summarise_lives(lives: Iterable[Life], placements: Sequence[str]) -> tuple[LifeSummary, ...]:
    """Return one summary per load and placement, in the order given."""
    lives_of: dict[tuple[int, str], list[Life]] = {}
    for life in sorted(lives, key=lambda life: (life.load, placements.index(life.placement))):
        lives_of.setdefault((life.load, life.placement), []).append(life)
    return tuple(
        LifeSummary(
            placement=placement,
            load=load,
            seeds=len(some),
            allocated=fmean(life.allocated for life in some),
            whole_nodes=fmean(life.whole_nodes for life in some),
            sizes=_sizes(size for life in some for size in life.sizes),
        )
        for (load, placement), some in lives_of.items()
    )


def _sizes(all_of_them: Iterable[Size]) -> tuple[Size, ...]:
    by_cards: dict[int, list[Size]] = {}
    for size in all_of_them:
        by_cards.setdefault(size.cards, []).append(size)
    return tuple(
        Size(
            cards=cards,
            arrived=sum(one.arrived for one in some),
            refused=sum(one.refused for one in some),
            waited=fmean(one.waited for one in some),
            waited_p99=fmean(one.waited_p99 for one in some),
        )
        for cards, some in sorted(by_cards.items())
    )


def draw(summaries: Iterable[Summary], file: Path, *, title: str) -> None:
    """Draw what was allocated against what had arrived. Raises `BadInput` without matplotlib."""
    figure = _figure(9, 4)
    whole, end = figure.subplots(1, 2)
    for summary in summaries:
        arrived = [point.arrived for point in summary.curve]
        allocated = [point.allocated for point in summary.curve]
        for axes in (whole, end):
            axes.plot(arrived, allocated, label=summary.placement, linewidth=1.2)
    last = [summary.curve[-1] for summary in summaries]
    end.set_xlim(85, max(point.arrived for point in last))
    end.set_ylim(min(point.allocated for point in last) - 5, 100)
    whole.set_ylabel("cards allocated, %")
    whole.set_title(title)
    end.set_title("the end of it")
    for axes in (whole, end):
        axes.set_xlabel("cards asked for so far, % of all")
        axes.grid(visible=True, linewidth=0.3)
    whole.legend(loc="lower right", fontsize="small")
    _save(figure, file)


def draw_lives(summaries: Iterable[LifeSummary], file: Path, *, title: str) -> None:
    """Draw what was allocated and what stayed whole by load, refusals and waiting by pods' size.

    Raises `BadInput` without matplotlib.
    """
    figure = _figure(10, 7)
    (allocated, whole), (refused, waited) = figure.subplots(2, 2)
    by_placement: dict[str, list[LifeSummary]] = {}
    for summary in summaries:
        by_placement.setdefault(summary.placement, []).append(summary)
    for number, (placement, some) in enumerate(by_placement.items()):
        style = {"color": f"C{number}", "linewidth": 1.2, "marker": "o", "markersize": 3}
        load = [str(summary.load) for summary in some]
        allocated.plot(load, [summary.allocated for summary in some], label=placement, **style)
        whole.plot(load, [summary.whole_nodes for summary in some], **style)
        for summary, line in zip(some, cycle(("-", "--", ":"))):
            cards = [str(size.cards or "share") for size in summary.sizes]
            lost = [100 * size.refused / max(size.arrived, 1) for size in summary.sizes]
            label = f"{placement}, {summary.load} %"
            refused.plot(cards, lost, linestyle=line, label=label, **style)
            waited.plot(cards, [size.waited_p99 for size in summary.sizes], linestyle=line, **style)
    allocated.set_title(title)
    for axes, what in (
        (allocated, "cards allocated, %"),
        (whole, "whole nodes free"),
        (refused, "pods refused, %"),
        (waited, "waited, 99th percentile, s"),
    ):
        axes.set_ylabel(what)
        axes.set_xlabel("load, %" if axes in (allocated, whole) else "cards of a pod")
        axes.grid(visible=True, linewidth=0.3)
    for axes in (allocated, refused):
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
