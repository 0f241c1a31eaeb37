"""Puts one question to one vendor: nothing it raises and no time it takes harms anybody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from hetero.model.errors import DriverAbsent

T = TypeVar("T")


class Failure(Exception):
    """A vendor did not answer as it should; carries the sentence for its row."""


def guarded(name: str, stage: str, ask: Callable[[], T]) -> T:
    """Call into a vendor, and turn whatever it raises, even an exit, into a `Failure`."""
    try:
        return ask()
    except (DriverAbsent, Failure):
        raise
    except (Exception, SystemExit) as error:
        said = str(error) or type(error).__name__
        prefix = f"{name}: {stage}: "
        raise Failure(said if said.startswith(prefix) else prefix + said) from error


class GuardedCall(Generic[T]):
    """One question to a vendor, on a thread of its own: a C library cannot be interrupted.

    The thread is a daemon, so a driver that never returns does not keep the process from ending.
    """

    def __init__(self, name: str, stage: str, ask: Callable[[], T], within: float) -> None:
        self.name, self.stage = name, stage
        self.done = threading.Event()
        self._within = within
        self._deadline = time.monotonic() + within
        self._result: T
        self._error: Exception | None = None
        self._ask = ask
        threading.Thread(target=self._run, name=f"{name} {stage}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = guarded(self.name, self.stage, self._ask)
        except (DriverAbsent, Failure) as error:
            self._error = error
        finally:
            self.done.set()

    def over(self) -> bool:
        """Wait for as long as whoever asked would; return whether there is an answer by then."""
        return self.done.wait(max(self._deadline - time.monotonic(), 0))

    def answer(self) -> T:
        """Wait for the answer, or raise the `Failure` that there was none in time."""
        if not self.over():
            raise Failure(f"{self.name}: {self.stage}: no answer within {self._within:g} s")
        if self._error is not None:
            raise self._error
        return self._result
