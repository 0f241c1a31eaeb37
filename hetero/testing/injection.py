"""Injects faults into the C libraries that a vendor opens, in its own process, for the contract."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from hetero.model.frozen import frozen
from hetero.plugin.driver import DriverError, Library
from hetero.registry.respondent import Plugin

#: No driver's code for anything that it can do without.
_ERROR_CODE = 999
#: Numbers of cards are below; handles are not.
_MOST_CARDS = 4096
#: What C functions take a card's number as: first, or behind what they fill in.
_NUMBERS = (ctypes.c_int, ctypes.c_uint, ctypes.c_long, ctypes.c_ulong)


@frozen
class Injected:
    """A plugin whose process runs an action before it loads the plugin."""

    plugin: Plugin
    inject: Callable[[], None]

    @property
    def name(self) -> str:
        """The name of the plugin."""
        return self.plugin.name

    @property
    def source(self) -> str:
        """The source of the plugin."""
        return self.plugin.source

    @property
    def file(self) -> str | None:
        """The file of the plugin."""
        return self.plugin.file

    def load(self) -> object:
        """Run the action, and return the plugin."""
        self.inject()
        return self.plugin.load()


class Calls:
    """Counts a vendor's calls of C libraries, in all of its processes."""

    def __init__(self) -> None:
        self._count = mmap.mmap(-1, 8)

    @property
    def count(self) -> int:
        """The number of calls."""
        return int.from_bytes(self._count[:8], "little")

    def inject(self, step_number: int = 0, deed: Callable[[], int | None] = lambda: None) -> None:
        """Count from now on, and run an action at the nth step. A call has a step before and after.

        An action may return a code, which replaces the library's own.
        """

        def step() -> int | None:
            return deed() if self._next() == step_number else None

        def call(function: Any, arguments: tuple[Any, ...]) -> Any:
            injected_code = step()
            return_code = function(*arguments) if injected_code is None else injected_code
            injected_code = step()
            return return_code if injected_code is None else injected_code

        _interpose(call)

    def keep_first(self) -> None:
        """Count destroy calls from now on. The first one fails as if a program used its slice."""
        destroyed = Library.destroy

        def destroy(library: Library, function: str, *arguments: Any) -> bool:
            if not library.driver.in_use:
                raise DriverError(f"{function}: no code says that a slice is in use (`in_use`)")
            return self._next() > 1 and destroyed(library, function, *arguments)

        Library.destroy = destroy  # type: ignore[assignment, method-assign]

    def _next(self) -> int:
        count = self.count + 1
        self._count[:8] = count.to_bytes(8, "little")
        return count


def renumber() -> None:
    """Remove the first card from now on: each other card takes the index before its own."""

    def following(argument: Any) -> Any:
        if isinstance(argument, int) and 0 <= argument < _MOST_CARDS:
            return argument + 1
        if isinstance(argument, _NUMBERS) and 0 <= argument.value < _MOST_CARDS:
            return type(argument)(argument.value + 1)
        return argument

    def call(function: Any, arguments: tuple[Any, ...]) -> Any:
        return function(*map(following, arguments[:2]), *arguments[2:])

    _interpose(call)


def without_library() -> None:
    """Make each library impossible to find from now on."""

    def absent(_: ctypes.CDLL, library_name: str | None, *__: object, **___: object) -> None:
        raise OSError(f"{library_name}: cannot open shared object file: No such file or directory")

    ctypes.CDLL.__init__ = absent  # type: ignore[method-assign, assignment]


def die() -> None:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    """Read from an address that is not mapped."""
    ctypes.string_at(0)


def leave() -> None:
    """End the process silently, as a library that calls exit(0)."""
    os._exit(0)


def hang() -> None:
    """Never return."""
    while True:
        time.sleep(3600)


def chatter() -> None:
    """Write to the standard output."""
    os.write(1, b"a library that talks\n")


def fail() -> int:
    """Return an error code."""
    return _ERROR_CODE


def _interpose(call: Callable[[Any, tuple[Any, ...]], Any]) -> None:
    original_lookup = ctypes.CDLL.__getitem__

    def function_of(self: ctypes.CDLL, function_name: Any) -> Any:
        return _Function(original_lookup(self, function_name), call)

    ctypes.CDLL.__getitem__ = function_of  # type: ignore[method-assign]


class _Function:
    """A library's function whose calls go through `call`. Its other attributes are its own."""

    def __init__(self, function: Any, call: Callable[[Any, tuple[Any, ...]], Any]) -> None:
        object.__setattr__(self, "_function", function)
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(self._function, arguments)

    def __getattr__(self, attribute_name: str) -> Any:
        return getattr(self._function, attribute_name)

    def __setattr__(self, attribute_name: str, attribute_value: object) -> None:
        setattr(self._function, attribute_name, attribute_value)
