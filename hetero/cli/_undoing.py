"""Has a signal that ends a command undo first what the command made."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What ends a program by default and leaves its folders: kill, and a terminal that is closed.
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def undoing() -> Iterator[None]:
    """Have these signals end the block as Ctrl-C does, and then this process as they always do."""
    received: list[int] = []

    def end(signal_number: int, _: FrameType | None) -> None:
        received.append(signal_number)
        for ending_signal in _ENDING_SIGNALS:
            signal.signal(ending_signal, signal.SIG_IGN)  # what is undone is undone to its end
        raise KeyboardInterrupt

    handlers_before = {
        signal_number: signal.getsignal(signal_number) for signal_number in _ENDING_SIGNALS
    }
    for signal_number, handler in handlers_before.items():
        if handler is not signal.SIG_IGN:  # as nohup has it
            signal.signal(signal_number, end)
    try:
        yield
    finally:
        for signal_number, handler in handlers_before.items():
            signal.signal(signal_number, handler)
        if received:
            signal.signal(received[0], signal.SIG_DFL)
            os.kill(os.getpid(), received[0])
