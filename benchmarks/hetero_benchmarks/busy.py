"""For how long a step of a job keeps the card busy, by PyTorch's profiler.

    python -m hetero_benchmarks.busy JOB

It prints one line of JSON: the steps that were profiled, `activities` (kernels and copies a step),
`busy_ms` (the union of their times, a step) and `longest_ms` (the longest of all); and what lies
between them, a step: `idle_ms`, of which `short_ms` in gaps that no look of the limiter can see,
where work is queued. The profiler slows what is bound by its processor thread, so its gaps are
longer here; the union is of the card's own times, and is not.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetero_benchmarks import torch_jobs

#: Seconds before the profiler looks, and for which it does: it keeps every activity in memory.
WARM_UP, LOOKS = 2.0, 0.5

#: Microseconds: a kernel that was queued begins sooner after the one before it.
SHORT = 20.0


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long the time is that is inside at least one of `spans` (from, to)."""
    length, upto = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(end - max(begin, upto), 0)
        upto = max(upto, end)
    return length


def gaps(spans: Iterable[tuple[float, float]]) -> list[float]:
    """Return how long each time between `spans` (from, to) is that is inside none of them."""
    ordered = sorted(spans)
    idle_spans, upto = [], ordered[0][0] if ordered else 0.0
    for begin, end in ordered:
        if begin > upto:
            idle_spans.append(begin - upto)
        upto = max(upto, end)
    return idle_spans


def profiled(steps: Callable[[], int]) -> dict[str, float]:
    """Profile `steps`, which makes some and returns how many; the busiest card counts."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        count = steps()
        torch.cuda.synchronize()
    cards: dict[int, list[tuple[float, float]]] = {}
    for event in seen.events():
        on_card = event.device_type == torch.autograd.DeviceType.CUDA
        # The span of an annotation (of an optimizer's step, of a collective) holds idle time, too.
        if on_card and not getattr(event, "is_user_annotation", False):
            span = (event.time_range.start, event.time_range.end)
            cards.setdefault(event.device_index, []).append(span)
    busiest = max(cards.values(), key=union, default=[])
    between = gaps(busiest)
    return {
        "steps": count,
        "activities": len(busiest) / count,
        "busy_ms": union(busiest) / count / 1000,
        "longest_ms": max((end - begin for begin, end in busiest), default=0) / 1000,
        "idle_ms": sum(between) / count / 1000,
        "short_ms": sum(gap for gap in between if gap < SHORT) / count / 1000,
    }


def main(name: str) -> None:
    """Profile the job of that name."""
    from hetero_benchmarks import torch_jobs

    steps: torch_jobs.Steps = getattr(torch_jobs, name)()
    _run(steps, WARM_UP)
    print(json.dumps(profiled(lambda: _run(steps, LOOKS))), flush=True)


def _run(steps: torch_jobs.Steps, seconds: float) -> int:
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        count += next(steps)
    return count


if __name__ == "__main__":
    main(sys.argv[1])
