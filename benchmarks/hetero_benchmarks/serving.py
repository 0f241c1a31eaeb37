"""What clients ask of a serving engine, and what its answers say: rates, TTFT and TPOT.

TTFT is the time from a request's arrival to its first token, TPOT the mean time between tokens of a
request after that. Times are seconds on one monotonic clock.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from attrs import field, frozen

from hetero_benchmarks.rates import Window, percentile

#: Makes an engine answer a prompt with so many tokens; gives how many came, whenever some did.
Answer = Callable[[Sequence[int], int], AsyncIterator[int]]

#: Prompts are made of this many different tokens, no two prompts alike: no prefix is cached.
VOCABULARY = 32_000
#: Seconds that requests may take after the last one was sent.
PATIENCE = 30.0


@frozen(kw_only=True)
class Load:
    """How requests come: `per_second` at random moments (Poisson), however long answers take.

    With None, `clients` send the next as soon as the last was answered: the engine is saturated.
    Engines that are measured together have a `seed` each: their requests come at other moments.
    """

    per_second: float | None = None
    clients: int = 32
    prompt_tokens: int = 256
    answer_tokens: int = 128
    seed: int = 1

    def __str__(self) -> str:
        return "saturated" if self.per_second is None else f"{self.per_second:g}/s"


@frozen
class Request:
    """When a request came, and when how many tokens of its answer did; `done`: all of them."""

    arrived: float
    tokens: list[tuple[float, int]] = field(factory=list)
    done: list[float] = field(factory=list)


async def ask(
    answer: Answer, load: Load, until: float, *, patience: float = PATIENCE
) -> list[Request]:
    """Send requests until that moment, wait for what is under way, and return all of them."""
    chance = random.Random(load.seed)
    requests: list[Request] = []

    async def send(arrived: float) -> None:
        request = Request(arrived)
        requests.append(request)
        prompt = [chance.randrange(3, VOCABULARY) for _ in range(load.prompt_tokens)]
        async for count in answer(prompt, load.answer_tokens):
            request.tokens.append((time.monotonic(), count))
        request.done.append(time.monotonic())

    async def client() -> None:
        while (now := time.monotonic()) < until:
            await send(now)

    async def arrivals(per_second: float) -> None:
        running = set[asyncio.Task[None]]()
        at = time.monotonic() + chance.expovariate(per_second)
        while at < until:
            await asyncio.sleep(max(at - time.monotonic(), 0))
            running.add(asyncio.create_task(send(at)))
            at += chance.expovariate(per_second)
        try:
            await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()

    work = (
        [client() for _ in range(load.clients)]
        if load.per_second is None
        else [arrivals(load.per_second)]
    )
    with suppress(asyncio.TimeoutError):  # what is left then is counted as unfinished
        await asyncio.wait_for(asyncio.gather(*work), until - time.monotonic() + patience)
    return requests


def figures(requests: Sequence[Request], window: Window) -> dict[str, Any]:
    """Return what requests got in `window`.

    Tokens are those that came in it. Times are of the requests that arrived in it and were
    answered, in milliseconds; `gap` is between two outputs of a request.
    """
    length = window.end - window.start
    tokens = sum(
        count
        for request in requests
        for at, count in request.tokens
        if window.start <= at < window.end
    )
    inside = [each for each in requests if window.start <= each.arrived < window.end]
    answered = [each for each in inside if each.done and each.tokens]
    moments = [[at for at, _ in each.tokens] for each in answered]
    gaps = [after - before for times in moments for before, after in pairwise(times)]
    per_token = [
        (each.tokens[-1][0] - each.tokens[0][0]) / rest
        for each in answered
        if (rest := sum(count for _, count in each.tokens) - each.tokens[0][1])
    ]
    return {
        "tokens_per_s": tokens / length,
        "requests": len(inside),
        "unfinished": len(inside) - len(answered),
        "ttft_ms": _percentiles([each.tokens[0][0] - each.arrived for each in answered]),
        "tpot_ms": _percentiles(per_token),
        "gap_ms": _percentiles(gaps),
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return p50, p99 and the longest in milliseconds; None of nothing."""
    if not seconds:
        return None
    return {
        "p50": 1000 * percentile(seconds, 50),
        "p99": 1000 * percentile(seconds, 99),
        "longest": 1000 * max(seconds),
    }
