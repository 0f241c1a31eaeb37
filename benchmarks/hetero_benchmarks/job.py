"""The programs whose speed is measured, each run as `python -m hetero_benchmarks.job NAME`.

A job keeps the times at which its steps were complete and prints them at the end, one JSON object
`{"at": …, "steps": …}` a line, so that measuring costs it one reading of the clock a step.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import IO, TYPE_CHECKING, cast

import click
import hetero_limiters
from attrs import frozen

if TYPE_CHECKING:
    import torch


Steps = Generator[int, None, None]


@frozen(kw_only=True)
class Job:
    """A job yields how many steps it has completed since it last did, each time it has some.

    `memory` is what its grant asks for. Frameworks are imported when the job starts. `warm_up` is
    for how many seconds it runs before it is ready: autotuners, allocators and clocks settle.
    """

    start: Callable[[], Steps]
    memory: str
    step: str
    warm_up: float = 3.0


def resnet18() -> Steps:
    """Train resnet18 as PyTorch's imagenet example does with dummy data: fp32, batches of 256.

    The example's data loader is left out, because its speed is the host's: the images are made
    once, and copied to the card at every step as the example copies them.
    """
    import torch
    import torchvision

    card = torch.device("cuda")
    model = torchvision.models.resnet18().to(card).train()
    criterion = torch.nn.CrossEntropyLoss().to(card)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(256, 3, 224, 224).pin_memory()
    target = torch.randint(1000, (256,)).pin_memory()
    while True:
        here = target.to(card, non_blocking=True)
        loss = criterion(model(images.to(card, non_blocking=True)), here)
        loss.item()  # where the example waits for the card, to show the loss
        yield 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def gemm() -> Steps:
    """Multiply 8192x8192 bf16 matrices of random numbers (zeros would draw less power)."""
    import torch

    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    out = torch.empty_like(left)
    return _in_flight(lambda: torch.mm(left, right, out=out), 8)


def small() -> Steps:
    """Launch 1000 kernels of a few microseconds, then wait for them."""
    import torch

    numbers = torch.zeros(1 << 20, device="cuda")
    while True:
        for _ in range(1000):
            numbers.add_(1.0)
        torch.cuda.synchronize()
        yield 1


def graph() -> Steps:
    """Replay a CUDA graph of 200 kernels."""
    import torch

    numbers = torch.zeros(1 << 22, device="cuda")
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for _ in range(200):
            numbers.add_(1.0)
    return _in_flight(recorded.replay, 4)


def _in_flight(launch: Callable[[], object], depth: int) -> Steps:
    """Keep `depth` launches queued and yield as each completes."""
    import torch

    queued: deque[torch.cuda.Event] = deque()
    while True:
        launch()
        event = torch.cuda.Event()
        event.record()
        queued.append(event)
        if len(queued) == depth:
            queued.popleft().synchronize()
            yield 1


def simulated() -> Steps:
    """Launch kernels of 500 us through the driver API, which simulated cards have too."""
    command = [str(hetero_limiters.job("cuda")), "--seconds", "86400"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in cast(IO[str], process.stdout):
                yield json.loads(line)["steps"]
        finally:
            process.kill()


JOBS: Mapping[str, Job] = {
    "resnet18": Job(start=resnet18, memory="24Gi", step="one batch of 256 images"),
    "gemm": Job(start=gemm, memory="4Gi", step="one product"),
    "small": Job(start=small, memory="4Gi", step="1000 kernels and a synchronize"),
    "graph": Job(start=graph, memory="4Gi", step="one replay of 200 kernels"),
    "simulated": Job(start=simulated, memory="1Gi", step="one kernel", warm_up=0),
}


@click.command()
@click.argument("name", type=click.Choice(list(JOBS)))
@click.option("--seconds", type=float, help="Run this long after the warm-up, then report.")
def main(name: str, seconds: float | None) -> None:
    """Run the job NAME and print when its steps were complete.

    Without --seconds it says {"ready": true} after the warm-up and waits for a line holding the
    moment of the monotonic clock at which to stop: so two jobs can be measured over the same time.
    """
    try:
        steps = JOBS[name].start()
        next(steps)
        begun = time.monotonic()
        while time.monotonic() < begun + JOBS[name].warm_up:
            next(steps)
    except ImportError as error:
        raise SystemExit(f"{name} needs PyTorch and torchvision here ({error})") from None
    if seconds is None:
        print(json.dumps({"ready": True}), flush=True)
        until = float(sys.stdin.readline())
    else:
        until = time.monotonic() + seconds
    marks = [(time.monotonic(), 0)]
    with closing(steps):
        while marks[-1][0] < until:
            count = next(steps)
            marks.append((time.monotonic(), count))
    for at, count in marks:
        print(json.dumps({"at": at, "steps": count}))


if __name__ == "__main__":
    main()
