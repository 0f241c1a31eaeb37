"""What a service runs for ever ends as one: when it is told to, and when a part of it fails."""

import asyncio
import os
import signal
from contextlib import suppress

import pytest

from hetero.kube.service.until_stopped import until_stopped


async def runs_on(ended: list[str]) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)  # as who gives something up that is not here
        ended.append("gave up what it held")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_runs_for_ever_has_ended_once_it_was_told_to_stop(
    number: signal.Signals,
) -> None:
    ended: list[str] = []

    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), number)
    await asyncio.wait_for(until_stopped(runs_on(ended), runs_on(ended)), 30)
    assert 2 == len(ended)


async def test_a_part_that_fails_ends_the_rest_and_says_why() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0.1)
        raise OSError("no socket")

    with pytest.raises(OSError, match="no socket"):
        await asyncio.wait_for(until_stopped(runs_on(ended), fails()), 30)
    assert 1 == len(ended)


async def test_what_swallowed_the_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hetero.kube.service.until_stopped._AGAIN_S", 0.01)

    async def swallows_one() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    asyncio.get_running_loop().call_later(0.1, signal.raise_signal, signal.SIGTERM)
    await asyncio.wait_for(until_stopped(swallows_one()), 30)
