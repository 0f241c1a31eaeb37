"""For how long a step of a job keeps the card busy, by PyTorch's profiler.

    python -m hetero_benchmarks.busy JOB

It prints one line of JSON: the steps that were profiled, `activities` (kernels and copies a step),
`busy_ms` (the union of their times, a step) and `longest_ms` (the longest of all). The profiler
slows what is bound by its processor thread; the union is of the card's own times, and is not.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable

#: Seconds before the profiler looks, and for which it does: it keeps every activity in memory.
WARM_UP, LOOKS = 2.0, 0.5


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long the time is that is inside at least one of `spans` (from, to)."""
    length, upto = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(end - max(begin, upto), 0)
        upto = max(upto, end)
    return length


def main(name: str) -> None:
    """Profile the job of that name."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from hetero_benchmarks import torch_jobs

    steps: torch_jobs.Steps = getattr(torch_jobs, name)()
    until = time.monotonic() + WARM_UP
    while time.monotonic() < until:
        next(steps)
    count = 0
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        until = time.monotonic() + LOOKS
        while time.monotonic() < until:
            count += next(steps)
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in seen.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    told = {
        "steps": count,
        "activities": len(spans) / count,
        "busy_ms": union(spans) / count / 1000,
        "longest_ms": max((end - begin for begin, end in spans), default=0) / 1000,
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
