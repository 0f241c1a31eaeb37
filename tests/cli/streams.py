"""Standard streams of a test's own, and the consoles that write to them."""

import io
import os
from typing import Any
from unittest.mock import patch

from hetero.cli._draw import console_of


class Stream(io.StringIO):
    """A standard stream, of a terminal where it is `live`, in an encoding of that name."""

    def __init__(self, encoding: str = "utf-8", *, live: bool = False) -> None:
        super().__init__()
        self._named = encoding
        self._live = live

    @property
    def encoding(self) -> str:  # type: ignore[override] # a stream's is not None
        return self._named

    def isatty(self) -> bool:
        return self._live


def console(stream: Stream, **environ: str) -> Any:
    """Return the console of a stream where the environment says no more than this."""
    with patch.dict(os.environ, environ, clear=True):
        return console_of(stream)
