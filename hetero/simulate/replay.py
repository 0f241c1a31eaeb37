"""Replays the arrivals of a trace under one placement policy and one seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from attrs import field, frozen

from hetero.model.errors import BadInput
from hetero.model.json_keys import json_key
from hetero.placement.cluster import PlacedNode, PlacedPod
from hetero.placement.placement_policy import WEIGHTS, weights
from hetero.placement.price import DemandStats, Prices
from hetero.placement.state import Cluster
from hetero.simulate.baselines import SCORES, WHOLE_MILLI
from hetero.simulate.player import Player
from hetero.simulate.trace import Trace, read

T = TypeVar("T")
R = TypeVar("R")

#: Pods arrive until they ask for this share of all cards, in percent.
ARRIVALS_PERCENT = 130


@frozen(kw_only=True)
class Point:
    """The state when `arrived_percent` of the cards had been asked for."""

    arrived_percent: int = field(metadata=json_key("arrived"))
    allocated_percent: float = field(metadata=json_key("allocated"))  # of all cards
    #: Percent of all cards, free but of no use to a typical pod.
    fragmented_percent: float | None = field(metadata=json_key("fragmented"))


@frozen(kw_only=True)
class Run:
    """The result of one placement policy for one sample of pods."""

    placement: str
    seed: int
    arrived_count: int  # pods
    placed_count: int
    refused_count_by_reason: Mapping[str, int]  # by what most nodes lacked
    decision_s: float  # spent deciding
    curve: tuple[Point, ...]

    @property
    def allocated_percent(self) -> float:
        """Percent of all cards that were given out in the end."""
        return self.curve[-1].allocated_percent

    @property
    def fragmented_percent(self) -> float | None:
        """Percent of all cards that are free but useless to a typical pod in the end."""
        return self.curve[-1].fragmented_percent


def arrivals(
    trace: Trace, seed: int, *, percent: int = ARRIVALS_PERCENT
) -> tuple[list[PlacedNode], list[PlacedPod]]:
    """Return the nodes in their order among equals, and the pods in their order of arrival.

    Pods are drawn with replacement until one more would pass `percent` of all cards.
    """
    rng = random.Random(seed)
    nodes = list(trace.nodes)
    rng.shuffle(nodes)
    demand_milli = demands(trace)
    if not any(demand_milli):
        raise BadInput(f"{trace.name}: no pod asks for a card that is there")
    left_milli = sum(len(node.devices) for node in nodes) * WHOLE_MILLI * percent // 100
    pods: list[PlacedPod] = []
    while True:
        pod_number = rng.randrange(len(trace.pods))
        left_milli -= demand_milli[pod_number]
        if left_milli < 0:
            return nodes, pods
        pods.append(trace.pods[pod_number])


def demands(trace: Trace) -> list[int]:
    """Return the thousandths of cards each pod asks for, averaged over those that may serve it."""
    prices = Prices(Cluster(trace.nodes), WEIGHTS["first"], DemandStats())
    return [prices.demand(pod) for pod in trace.pods]


def replay(
    trace: Trace,
    placement: str,
    seed: int,
    *,
    percent: int = ARRIVALS_PERCENT,
    arrival: str = "drawn",
) -> Run:
    """Return the result of a placement policy for the arrivals; a seed determines it.

    With `arrival` "file" nodes and pods come as they stand in the trace, each once.
    """
    nodes, pods = list(trace.nodes), list(trace.pods)
    if arrival == "drawn":
        nodes, pods = arrivals(trace, seed, percent=percent)
    player = Player(placement, nodes, trace.pods, seed)
    milli_by_pod = dict(zip(map(id, trace.pods), demands(trace), strict=True))
    total_milli = player.cluster.left()
    refused: dict[str, int] = {}
    curve: list[Point] = []
    arrived_milli, decision_s, next_percent = 0, 0.0, 0

    def point(percent: int) -> Point:
        useless_milli = player.useless()
        return Point(
            arrived_percent=percent,
            allocated_percent=100 * (total_milli - player.cluster.left()) / total_milli,
            fragmented_percent=None if useless_milli is None else 100 * useless_milli / total_milli,
        )

    for pod_number, pod in enumerate(pods):
        start_s = time.perf_counter()
        is_placed = player.place(str(pod_number), pod, 0.0)
        decision_s += time.perf_counter() - start_s
        if not is_placed:
            reason = player.reason(pod)
            refused[reason] = refused.get(reason, 0) + 1
        arrived_milli += milli_by_pod[id(pod)]
        if arrived_milli * 100 >= next_percent * total_milli:
            next_percent = arrived_milli * 100 // total_milli + 1
            curve.append(point(next_percent - 1))
    curve.append(point(percent if arrival == "drawn" else arrived_milli * 100 // total_milli))
    return Run(
        placement=placement,
        seed=seed,
        arrived_count=len(pods),
        placed_count=len(pods) - sum(refused.values()),
        refused_count_by_reason=refused,
        decision_s=decision_s,
        curve=tuple(curve),
    )


def replay_all(
    path: Path,
    pods: str | None,
    placements: Iterable[str],
    seeds: Iterable[int],
    *,
    processes: int,
    arrival: str = "drawn",
) -> Iterator[Run]:
    """Yield the run of every placement and seed as it ends; `processes` run at a time."""
    tasks = [(path, pods, placement, seed, arrival) for seed in seeds for placement in placements]
    yield from as_they_end(_replay_task, tasks, processes=processes)


def as_they_end(function: Callable[[T], R], tasks: Iterable[T], *, processes: int) -> Iterator[R]:
    """Yield the result of a module's function for each task; `processes` run at a time."""
    if processes == 1:
        yield from map(function, tasks)
        return
    with ProcessPoolExecutor(max_workers=processes) as pool:
        for future in as_completed([pool.submit(function, task) for task in tasks]):
            yield future.result()


def placements(list_text: str) -> list[str]:
    """Return the placement policies in a list, ours or published. Raises `BadInput`.

    The list is as `fragmentation,fgd` or `fragmentation=2,host=1`: a part with a weight continues
    the weights before it.
    """
    faults: list[str] = []
    for placement_name in filter(
        None, (placement_name.strip() for placement_name in list_text.split(","))
    ):
        if "=" in placement_name and faults and "=" in faults[-1]:
            faults[-1] += f",{placement_name}"
        else:
            faults.append(placement_name)
    for placement in faults:
        if placement not in SCORES:
            _known(placement)
    if not faults:
        raise BadInput("no placement is named")
    return list(dict.fromkeys(faults))


def _known(placement: str) -> None:
    if "=" not in placement and placement not in WEIGHTS:
        raise BadInput(f"placement {placement!r} is none of {', '.join((*WEIGHTS, *SCORES))}")
    weights(placement)


def _replay_task(task: tuple[Path, str | None, str, int, str]) -> Run:
    path, pods, placement, seed, arrival = task
    return replay(_read(path, pods), placement, seed, arrival=arrival)


@lru_cache(maxsize=2)
def _read(path: Path, pods: str | None) -> Trace:
    return read(path, pods=pods)
