"""Makes the C libraries that a vendor opens misbehave, in its own process, for the contract."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from hetero.model.frozen import frozen
from hetero.plugin.respondent import Plugin

#: No driver's code for anything that it can do without.
_CODE = 999


@frozen
class Injected:
    """A plugin before whose loading something is done to its process."""

    plugin: Plugin
    inject: Callable[[], None]

    @property
    def name(self) -> str:
        """The plugin's own."""
        return self.plugin.name

    @property
    def source(self) -> str:
        """The plugin's own."""
        return self.plugin.source

    @property
    def file(self) -> str | None:
        """The plugin's own."""
        return self.plugin.file

    def load(self) -> object:
        """Do it, and return the plugin."""
        self.inject()
        return self.plugin.load()


class Calls:
    """Counts the calls that a vendor makes of C libraries, in all of its processes."""

    def __init__(self) -> None:
        self._count = mmap.mmap(-1, 8)

    @property
    def count(self) -> int:
        """How many there were."""
        return int.from_bytes(self._count[:8], "little")

    def inject(self, at: int = 0, does: Callable[[], int | None] = lambda: None) -> None:
        """Count from now on, and do something at the nth step; a call has one before and one after.

        What is done may return the code that the call answers with in place of the library.
        """

        def step() -> int | None:
            count = self.count + 1
            self._count[:8] = count.to_bytes(8, "little")
            return does() if count == at else None

        _interpose(step)


def without_library() -> None:
    """Have no library be found from now on."""

    def absent(_: ctypes.CDLL, name: str | None, *__: object, **___: object) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    ctypes.CDLL.__init__ = absent  # type: ignore[method-assign, assignment]


def die() -> None:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    """Read where nothing is."""
    ctypes.string_at(0)


def leave() -> None:
    """End the process without a word, as a library that calls exit(0)."""
    os._exit(0)


def hang() -> None:
    """Never answer."""
    while True:
        time.sleep(3600)


def chatter() -> None:
    """Write to the standard output."""
    os.write(1, b"a library that talks\n")


def fail() -> int:
    """Answer with an error."""
    return _CODE


def _interpose(step: Callable[[], int | None]) -> None:
    found = ctypes.CDLL.__getitem__

    def function_of(self: ctypes.CDLL, name: Any) -> Any:
        return _Function(found(self, name), step)

    ctypes.CDLL.__getitem__ = function_of  # type: ignore[method-assign]


class _Function:
    """A function of a library with a step before and after it; the rest is the function's own."""

    def __init__(self, function: Any, step: Callable[[], int | None]) -> None:
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_step", step)

    def __call__(self, *arguments: Any) -> Any:
        instead = self._step()
        answer = self._function(*arguments) if instead is None else instead
        instead = self._step()
        return answer if instead is None else instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._function, name, value)
