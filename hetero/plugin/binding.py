"""Calls a vendor's own Python binding with the interface of `plugin.Library`.

It fits bindings whose exception carries the library's error code as `value`. The meaning of the
codes is declared here.
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

    `start` and `stop` are its functions for that, `error` is its exception. Codes in `absent` mean
    that there is no library or no driver. Codes in `unsupported` mean that this card or this
    version has no answer. `hint` is added to errors, to tell people where to look.
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
        """Start the library for the context. Raises `DriverAbsent` without library or driver."""
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
        """Return the result of one of the binding's functions. Raises `DriverError`."""
        try:
            return function(*arguments)
        except self.error as error:
            error_code = getattr(error, "value", None)
            message = f"{function.__name__}: error {error_code} ({error}; {self.hint})"
            raise DriverError(message, error_code) from None

    def find(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of `get`, or None where this driver or card has no answer."""
        try:
            return self.get(function, *arguments)
        except DriverError as error:
            if error.code in self.unsupported:
                return None
            raise
