"""How fast the scheduler's cache answers, how that grows, and what it takes to hold and to start.

    python benchmarks/fit.py [--nodes 1000,5000,15000] [--placements 20000] [--processor] [--json]

Nodes of eight cards are filled to 70 % with pods like those of the openb trace: how many cards and
which share of one, how many processors and how much memory come as often as in its default list,
drawn independently, in 151 different combinations. Then one pod leaves and one arrives, again and
again. Each arrival is timed; the rate counts both. With --processor the clock is the processor time
of this process: on a machine shared with others it is the one that can be compared.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

from hetero.model import CORE, MEMORY, SLOTS, Ask, Device, Fractional, Request, Step
from hetero.model.units import GiB, MiB
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedContainer, PlacedNode, PlacedPod, Placement

#: Cards, thousandths of each, and how often.
CARDS = (
    (0, 0, 1088), (1, 1000, 3911), (1, 810, 1078), (1, 470, 750), (1, 320, 328), (1, 650, 253),
    (1, 230, 140), (1, 460, 128), (1, 590, 75), (1, 160, 74), (1, 550, 72), (1, 220, 62),
    (1, 370, 47), (1, 110, 24), (1, 480, 19), (1, 50, 7), (8, 1000, 44), (2, 1000, 16),
    (4, 1000, 15),
)  # fmt: skip
#: Thousandths of a processor and GiB of host memory per card (or per pod without one).
HOSTS = (
    (3152, 5, 1592), (11300, 48, 857), (11908, 46, 778), (11400, 47, 534), (8000, 29, 486),
    (18708, 63, 255), (9810, 40, 195), (4000, 22, 189), (4000, 14, 182), (12000, 24, 158),
    (15700, 57, 158), (4152, 10, 152),
)  # fmt: skip
SHAPES = 151
CARD = 80 * GiB
FULL = 70  # percent
Clock = Callable[[], float]


def rack(nodes: int) -> list[PlacedNode]:
    """Return nodes of eight equal cards, 128 processors and 1 TiB."""
    capacity, granularity = {CORE: 100, MEMORY: CARD, SLOTS: 20}, Fractional(memory=Step(MiB))
    return [
        PlacedNode(
            name=f"node-{number}",
            devices=tuple(
                Device(
                    uuid=f"{number}/{index}",
                    vendor="bench",
                    model="C80",
                    index=index,
                    capacity=capacity,
                    granularity=granularity,
                )
                for index in range(8)
            ),
            host={"cpu": 128_000, "memory": 1024 * GiB},
        )
        for number in range(nodes)
    ]


def workload(rng: random.Random) -> tuple[list[PlacedPod], list[int]]:
    """Return the pods that arrive, and how often each."""
    seen: dict[tuple[int, int, int, int], int] = {}
    while len(seen) < SHAPES:
        cards, share, _ = rng.choices(CARDS, [often for *_, often in CARDS])[0]
        cpu, memory, _ = rng.choices(HOSTS, [often for *_, often in HOSTS])[0]
        times = max(cards, 1)
        key = (cards, share, cpu * times, memory * times)
        seen[key] = seen.get(key, 0) + 1
    pods = []
    for cards, share, cpu, memory in seen:
        ask = Ask(memory=CARD * share // 1000) if 0 < share < 1000 else Ask()
        request = Request(asks=(ask,) * cards) if cards else None
        host = {"cpu": cpu, "memory": memory * GiB}
        pods.append(PlacedPod(containers=(PlacedContainer(request=request, host=host),)))
    return pods, list(seen.values())


def cache_of(machines: list[PlacedNode]) -> SchedulerCache:
    """Return a cache of these nodes."""
    cache = SchedulerCache()
    for node in machines:
        cache.update_node(node)
    return cache


def place(cache: SchedulerCache, uid: str, pod: PlacedPod, names: frozenset[str]) -> bool:
    """Do as filter and bind do; return whether the pod has a place."""
    cache.arrive(uid, pod, 0.0)
    node = cache.best(pod, names)
    return node is not None and isinstance(cache.reserve(uid, pod, node), Placement)


def measure(nodes: int, placements: int, *, clock: Clock) -> dict[str, Any]:
    """Return the figures of one size."""
    rng = random.Random(42)
    machines = rack(nodes)
    names = frozenset(node.name for node in machines)
    pods, times = workload(rng)
    held = _held(machines, pods, names)
    cache = cache_of(machines)
    cluster = cache.rows().cluster
    room = sum(cluster.free_milli)
    standing: list[str] = []
    numbers = itertools.count()
    while sum(cluster.free_milli) * 100 > room * (100 - FULL):
        for pod in rng.choices(pods, times, k=100):
            uid = str(next(numbers))
            if place(cache, uid, pod, names):
                standing.append(uid)
    gc.collect()
    taken: list[float] = []
    refused = 0
    arriving = rng.choices(pods, times, k=placements)
    began = clock()
    for pod in arriving:
        last = rng.randrange(len(standing))
        standing[last], standing[-1] = standing[-1], standing[last]
        cache.forget(standing.pop())
        uid = str(next(numbers))
        before = clock()
        placed = place(cache, uid, pod, names)
        taken.append(clock() - before)
        if placed:
            standing.append(uid)
        else:
            refused += 1
    steady = clock() - began
    taken.sort()
    start = _start(machines, cache.standing, pods[0], names, clock=clock)
    scan = _scan(machines, pods[:5], names, clock)
    return {
        "nodes": nodes,
        "full_%": round(100 - 100 * sum(cluster.free_milli) / room, 1),
        "refused": refused,
        "placements/s": round(placements / steady),
        "p50_us": round(taken[placements // 2] * 1e6),
        "p99_us": round(taken[placements * 99 // 100] * 1e6),
        "max_us": round(taken[-1] * 1e6),
        "start_s": round(start, 2),
        "bytes/device": round(held / (8 * nodes)),
        "scan_us": round(scan * 1e6),
        "scan/placement": round(scan / statistics.fmean(taken)),
    }


def _start(
    machines: list[PlacedNode],
    standing: Mapping[str, Placement],
    first: PlacedPod,
    names: frozenset[str],
    *,
    clock: Clock,
) -> float:
    """Return the seconds from a full list of nodes and what stands on them to the first answer."""
    began = clock()
    cache = cache_of(machines)
    for uid, placement in standing.items():
        cache.restore(uid, placement)
    cache.best(first, names)
    return clock() - began


def _held(machines: list[PlacedNode], pods: list[PlacedPod], names: frozenset[str]) -> int:
    """Return the bytes a cache holds once every pod was asked for."""
    gc.collect()
    tracemalloc.start()
    cache = cache_of(machines)
    for pod in pods:
        cache.best(pod, names)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held


def _scan(
    machines: list[PlacedNode], pods: list[PlacedPod], names: frozenset[str], clock: Clock
) -> float:
    """Return the seconds that the first question about a shape takes, which prices every node."""
    cache = cache_of(machines)
    cache.rows()
    began = clock()
    for pod in pods:
        cache.best(pod, names)
    return (clock() - began) / len(pods)


def main() -> None:
    """Print one row per size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", default="1000,5000,15000")
    parser.add_argument("--placements", type=int, default=20_000)
    parser.add_argument("--processor", action="store_true", help="time by processor, not by wall")
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    clock = time.process_time if flags.processor else time.perf_counter
    rows = []
    for nodes in map(int, flags.nodes.split(",")):
        row = measure(nodes, flags.placements, clock=clock)
        rows.append(row)
        if not flags.json:
            if len(rows) == 1:
                print("  ".join(f"{name:>7}" for name in row))
            cells = (f"{value:>{max(len(name), 7)}}" for name, value in row.items())
            print("  ".join(cells), flush=True)
    if flags.json:
        print(json.dumps({"version": 1, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
