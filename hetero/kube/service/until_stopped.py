"""Runs the tasks of a service until its process is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


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
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
