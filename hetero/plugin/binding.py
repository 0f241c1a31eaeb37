"""Asks a vendor's own Python binding as `plugin.Library` asks a C library: one clear line or none.

Bindings made after one pattern, an exception that carries the library's code as `value`, are used
as they are; what their codes mean is declared here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from hetero.model.errors import DriverAbsent
from hetero.model.frozen import frozen
from hetero.plugin.driver import DriverError


@frozen(kw_only=True)
class Binding:
    """A driver library behind a Python binding, as declared: nothing is opened before `open`.

    `start` and `stop` are its functions for that. `error` is its exception; codes in `absent` are
    its way to say that there is no library or no driver, those in `unsupported` mean that this
    card or this version cannot say. `hint` tells people where to look when a call fails.
    """

    library: str
    start: Callable[[], object]
    stop: Callable[[], object]
    error: type[Exception]
    absent: Collection[int]
    unsupported: Collection[int]
    hint: str = "see the kernel log"

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the library started. Raises `DriverAbsent` when it or the driver is not here."""
        try:
            self.get(self.start)
        except (OSError, DriverError) as error:
            if isinstance(error, DriverError) and error.code not in self.absent:
                raise
            advice = "is the driver loaded, and mounted if this is a container?"
            reason = str(error).splitlines()[0]
            raise DriverAbsent(f"{self.library}: {reason} ({advice})") from None
        try:
            yield
        finally:
            self.stop()

    def get(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer of one of the binding's functions. Raises `DriverError`."""
        try:
            return function(*arguments)
        except self.error as error:
            error_code = getattr(error, "value", None)
            message = f"{function.__name__}: error {error_code} ({error}; {self.hint})"
            raise DriverError(message, error_code) from None

    def find(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what `get` would, or None where this driver or card has no answer."""
        try:
            return self.get(function, *arguments)
        except DriverError as error:
            if error.code in self.unsupported:
                return None
            raise
