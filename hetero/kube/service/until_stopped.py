"""Runs what goes on for ever until this process is told to stop, for all that serve."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def until_stopped(*endless: Coroutine[Any, Any, None]) -> None:
    """Run these concurrently until SIGTERM or SIGINT, or until one fails; then end them all.

    What the one that failed raised is raised here.
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
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
