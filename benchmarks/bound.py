"""How much of a cluster could be allocated at best: an upper bound beside what policies reach.

    python benchmarks/bound.py PATH [--pods default,cpu250] [--seeds 10]        (needs scipy)

Two figures for each list of pods, for the arrivals of the same seeds as `hetero simulate`:

`any choice` is a linear relaxation: all arrivals are known, any may be refused, pods may be split
between nodes of a kind, processors and memory are pooled over them. Shares are packed by whole
patterns of a card (column generation), which is what keeps the bound below 100 %. Nothing that
places pods, knowing the future or not, gets past it.

`none refused` is what a perfect packing reaches that has to take every share as it comes, as an
admission in order has to until the cluster is full: the cards all arrivals ask for against the
cards they fill when shares are packed as well as a linear relaxation allows, host aside. Being
full it may still refuse what does not fit and fill up with what does, so it can be passed, a bit.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from hetero.placement.cluster import PlacedNode, PlacedPod
from hetero.placement.state import Cluster
from hetero.simulate.baselines import WHOLE_MILLI, BaselinePod, Room, demand
from hetero.simulate.replay import arrivals
from hetero.simulate.trace import read

Pattern = tuple[tuple[int, int], ...]  # how many of which size go on one card


def best_pattern(value: dict[int, float], grain: int) -> tuple[float, Pattern]:
    """Return the most valuable pattern of a card and its value (a knapsack)."""
    sizes = [(size // grain, size, worth) for size, worth in value.items() if worth > 1e-12]
    room = WHOLE_MILLI // grain
    best, last = [0.0] * (room + 1), [0] * (room + 1)
    for left in range(1, room + 1):
        best[left] = best[left - 1]
        for steps, size, worth in sizes:
            if steps <= left and best[left - steps] + worth > best[left] + 1e-12:
                best[left], last[left] = best[left - steps] + worth, size
    used: Counter[int] = Counter()
    left = room
    while left:
        if last[left]:
            used[last[left]] += 1
        left -= last[left] // grain or 1
    return best[room], tuple(sorted(used.items()))


def none_refused(wants: list[BaselinePod]) -> float:
    """Return percent: thousandths asked for, of those a perfect packing of all pods opens."""
    shares = Counter(
        want.share_milli for want in wants if want.card_count and want.share_milli < WHOLE_MILLI
    )
    whole = sum(want.card_count for want in wants if want.share_milli == WHOLE_MILLI)
    sizes = sorted(shares)
    patterns: list[Pattern] = [((size, WHOLE_MILLI // size),) for size in sizes]
    while True:
        matrix = np.array([[-dict(p).get(size, 0) for p in patterns] for size in sizes])
        solved = linprog(
            np.ones(len(patterns)), A_ub=matrix, b_ub=[-shares[size] for size in sizes]
        )
        prices = dict(zip(sizes, -solved.ineqlin.marginals, strict=True))
        worth, pattern = best_pattern(prices, int(np.gcd.reduce([*sizes, WHOLE_MILLI])))
        if worth <= 1 + 1e-9:
            break
        patterns.append(pattern)
    asked = sum(want.card_count * want.share_milli for want in wants)
    return 100 * asked / (WHOLE_MILLI * (whole + float(solved.fun)))


def any_choice(nodes: list[PlacedNode], wants: list[BaselinePod], models: dict[str, int]) -> float:
    """Return percent of all cards: the best any choice among the arrivals could allocate."""
    kinds = Counter(
        (models[n.devices[0].model], len(n.devices), n.host["cpu"], n.host["memory"])
        for n in nodes
        if n.devices
    )
    shapes = Counter(want for want in wants if want.card_count)
    pairs = [
        (shape, kind)
        for shape in shapes
        for kind in kinds
        if shape.card_count <= kind[1]
        and shape.cpu_milli <= kind[2]
        and shape.host_memory_bytes <= kind[3]
        if not shape.models or kind[0] in {models[m] for m in shape.models if m in models}
    ]
    sizes = sorted({shape.share_milli for shape in shapes})
    rows: dict[object, int] = {("pods", shape): row for row, shape in enumerate(shapes)}
    for kind in kinds:
        for of in ("cards", "cpu", "memory", *sizes):
            rows[of, kind] = len(rows)
    limits = np.zeros(len(rows))
    for shape, times in shapes.items():
        limits[rows["pods", shape]] = times
    for kind, times in kinds.items():
        limits[rows["cards", kind]] = times * kind[1]
        limits[rows["cpu", kind]] = times * kind[2]
        limits[rows["memory", kind]] = times * kind[3] / 2**30
    entries: list[tuple[int, int, float]] = []
    gains: list[float] = []
    for column, (shape, kind) in enumerate(pairs):
        entries += [
            (rows["pods", shape], column, 1),
            (rows["cpu", kind], column, shape.cpu_milli),
            (rows["memory", kind], column, shape.host_memory_bytes / 2**30),
            (rows[shape.share_milli, kind], column, shape.card_count),
        ]
        gains.append(shape.card_count * shape.share_milli)
    grain = int(np.gcd.reduce([*sizes, WHOLE_MILLI]))
    patterns: list[tuple[tuple[int, int, int, int], Pattern]] = [
        (kind, ((size, WHOLE_MILLI // size),)) for kind in kinds for size in sizes
    ]
    while True:
        more = [
            entry
            for column, (kind, pattern) in enumerate(patterns, start=len(pairs))
            for entry in (
                (rows["cards", kind], column, 1.0),
                *((rows[size, kind], column, -float(many)) for size, many in pattern),
            )
        ]
        down, across, value = zip(*(entries + more), strict=True)
        matrix = coo_matrix((value, (down, across)), (len(rows), len(pairs) + len(patterns)))
        cost = -np.array(gains + [0.0] * len(patterns))
        solved = linprog(cost, A_ub=matrix.tocsr(), b_ub=limits, method="highs")
        prices = -solved.ineqlin.marginals
        patterns_of_kind = []
        for kind in kinds:
            worth = {size: float(prices[rows[size, kind]]) for size in sizes}
            most, pattern = best_pattern(worth, grain)
            if most > prices[rows["cards", kind]] + 1e-6:
                patterns_of_kind.append((kind, pattern))
        if not patterns_of_kind:
            total = sum(len(node.devices) for node in nodes) * WHOLE_MILLI
            return float(-100 * solved.fun / total)
        patterns += patterns_of_kind


def main() -> None:
    """Print one row per list of pods."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--pods", default="default")
    parser.add_argument("--seeds", type=int, default=10)
    flags = parser.parse_args()
    print(f"{'pods':12}  any choice  none refused")
    for name in flags.pods.split(","):
        trace = read(flags.path, pods=name)
        room = Room(Cluster(trace.nodes))
        above, ordered = [], []
        for seed in range(42, 42 + flags.seeds):
            nodes, pods = arrivals(trace, seed)
            wants = _demands(pods, room.card_bytes)
            above.append(any_choice(nodes, wants, room.model_number_by_name))
            ordered.append(none_refused(wants))
        print(f"{name:12}  {fmean(above):8.2f} %  {fmean(ordered):10.2f} %", flush=True)


def _demands(pods: list[PlacedPod], card: int) -> list[BaselinePod]:
    return [demand(pod, card_bytes=card) for pod in pods]


if __name__ == "__main__":
    main()
