"""The programs whose speed is measured: they stay up, and run whenever they are told until when.

A job says {"ready": true}, and then for each line of input, a moment of the monotonic clock and a
rest between steps in seconds, it runs until that moment. It keeps the times at which steps were
complete and prints them when all is over, [[when, steps, seconds they took], ...], so that
measuring costs it one reading of the clock a step. hetero-job-cuda speaks the same by itself.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING, cast

import hetero_simulator
from attrs import frozen

if TYPE_CHECKING:
    from hetero_benchmarks.torch_jobs import Steps

#: For how many seconds a job of PyTorch runs before it is ready: autotuners, allocators settle.
WARM_UP = 3.0

#: How many processes the job of that name has.
PROCESSES = 4


@frozen(kw_only=True)
class Job:
    """One kind of work: what a step of it is, and the memory its grant asks for.

    `driver` are options of hetero-job-cuda, for a job that needs nothing but a driver, and so runs
    on simulated cards too. Without them it is the function of that name in torch_jobs. A step of a
    job with `arrivals` is a request: so many come in a second, at random moments (Poisson), and one
    takes from its arrival to its answer.
    """

    memory: str
    step: str
    driver: tuple[str, ...] | None = None
    processes: int = 1
    arrivals: float | None = None


JOBS: Mapping[str, Job] = {
    "resnet18": Job(memory="16Gi", step="one batch of 256 images"),
    "infer": Job(memory="1Gi", step="one image through resnet18"),
    "gemm": Job(memory="2Gi", step="one product of 8192x8192 bf16"),
    "gemm16384": Job(memory="3Gi", step="one product of 16384x16384 bf16"),
    "small": Job(memory="1Gi", step="1000 kernels and a synchronize"),
    "graph": Job(memory="1Gi", step="one replay of 200 kernels"),
    "copy": Job(memory="3Gi", step="one GiB copied on the card"),
    "decode": Job(memory="22Gi", step="one token for 64 sequences"),
    "light": Job(memory="6Gi", step="one token for one sequence, bound by its thread"),
    "prefill": Job(memory="6Gi", step="a prompt of 2048 tokens"),
    "vit": Job(memory="12Gi", step="one batch of 32 images"),
    "halves": Job(memory="2Gi", step="25 ms of products, and 25 ms of rest"),
    "lstm": Job(memory="4Gi", step="one batch of 64 sequences of 35 words"),
    "mlp": Job(memory="4Gi", step="1024 rows through a compiled network, in graphs"),
    "gather": Job(memory="8Gi", step="a million rows of 1 KiB gathered"),
    "softmax": Job(memory="4Gi", step="a kernel of Triton's, 16384 rows of 8192"),
    "host_copies": Job(memory="2Gi", step="256 MiB to the card and back"),
    "jax_training": Job(memory="8Gi", step="one batch of 2048 rows with JAX"),
    "streams": Job(memory="1Gi", step="32 products on 4 streams"),
    "online": Job(memory="2Gi", step="a request of some 5 ms", arrivals=40),
    "processes": Job(
        memory="1Gi",
        step=f"one kernel of 500 us of one of {PROCESSES} processes",
        driver=(),
        processes=PROCESSES,
    ),
    "cooperative": Job(
        memory="1Gi", step="one cooperative kernel of 500 us", driver=("--cooperative",)
    ),
    "tiny": Job(
        memory="1Gi",
        step="one kernel of 10 us",
        driver=("--kernel-us", "10", "--in-flight", "64"),
    ),
    "simulated": Job(memory="1Gi", step="one kernel of 500 us", driver=()),
    "tick": Job(
        memory="1Gi",
        step="one kernel of 100 us, waited for",
        driver=("--kernel-us", "100", "--in-flight", "1"),
    ),
}


def command(name: str, *options: str) -> tuple[str, ...]:
    """Return the command that serves the job `name`, with options for hetero-job-cuda."""
    job = JOBS[name]
    if job.driver is None or job.processes > 1:
        return (sys.executable, "-m", "hetero_benchmarks.job", name, *options)
    return (*of_driver(job), "--cued", *options)


def of_driver(job: Job) -> tuple[str, ...]:
    """Return the command of a job that needs nothing but a driver, not served."""
    return (str(hetero_simulator.job("cuda")), *(job.driver or ()))


def main(name: str, *options: str) -> None:
    """Serve the job `name` until the input ends."""
    if JOBS[name].driver is not None:
        _serve_processes((*of_driver(JOBS[name]), "--cued", *options), JOBS[name].processes)
        return
    try:
        from hetero_benchmarks import torch_jobs

        steps: Steps = getattr(torch_jobs, name)()
        next(steps)
    except ImportError as error:
        raise SystemExit(f"{name} needs PyTorch and torchvision here ({error})") from None
    _run(steps, until=time.monotonic() + WARM_UP, rest=0)
    print(json.dumps({"ready": True}), flush=True)
    arrivals = JOBS[name].arrivals
    for cue in sys.stdin:
        until, rest = map(float, cue.split())
        if arrivals is None:
            marks = _run(steps, until=until, rest=rest)
        else:
            marks = answer(steps, until=until, arrivals=arrivals)
        print(json.dumps(marks), flush=True)


def answer(steps: Steps, *, until: float, arrivals: float) -> list[tuple[float, int, float]]:
    """Answer requests, so many a second, one after the other; return when each was and its wait."""
    chance = random.Random(1)
    came = time.monotonic()
    marks = [(came, 0, 0.0)]
    while marks[-1][0] < until:
        came += chance.expovariate(arrivals)
        time.sleep(max(came - time.monotonic(), 0))
        count = next(steps)
        at = time.monotonic()
        marks.append((at, count, at - came))
    return marks


def _run(steps: Steps, *, until: float, rest: float) -> list[tuple[float, int, float]]:
    begun = time.monotonic()
    marks = [(begun, 0, 0.0)]
    while marks[-1][0] < until:
        count = next(steps)
        at = time.monotonic()
        marks.append((at, count, at - begun))
        if rest:
            time.sleep(rest)
            at = time.monotonic()
        begun = at
    return marks


def _serve_processes(words: tuple[str, ...], count: int) -> None:
    """Pass each line on to `count` programs at once, and print all their steps in order."""
    with ExitStack() as stack:
        programs = [
            stack.enter_context(
                subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(count)
        ]
        outputs = [cast(IO[str], program.stdout) for program in programs]
        _expect(outputs)
        print(json.dumps({"ready": True}), flush=True)
        for cue in sys.stdin:
            for program in programs:
                print(cue, end="", file=program.stdin, flush=True)
            marks = [mark for line in _expect(outputs) for mark in json.loads(line)]
            print(json.dumps(sorted(marks)), flush=True)
        for program in programs:
            cast(IO[str], program.stdin).close()


def _expect(outputs: Iterable[IO[str]]) -> list[str]:
    lines = [output.readline() for output in outputs]
    if not all(lines):
        raise SystemExit("one of the processes ended")
    return lines


if __name__ == "__main__":
    main(*sys.argv[1:])
