"""Runs the tasks of a service until its process is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

_AGAIN_S = 10.0  # what still runs after so long is cancelled again; what a task closes takes less


async def until_stopped(*endless: Coroutine[Any, Any, None]) -> None:
    """Run these concurrently until SIGTERM or SIGINT, or until one fails; then cancel them all.

    The exception of the one that failed is raised.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    tasks = [asyncio.ensure_future(coroutine) for coroutine in (*endless, stop.wait())]
    try:
        ended_tasks, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended_tasks:
            task.result()
    finally:
        pending = set(tasks)
        while pending:  # Python 3.11's `wait_for` swallows a cancellation that comes as it ends
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
        await asyncio.gather(*tasks, return_exceptions=True)
