"""Standard streams that pass no code: whatever anybody prints is escaped and can be encoded."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from hetero.model.visible import visible

#: What our own signs become where the locale has no others than ASCII's.
_ASCII = str.maketrans(
    {"–": "-", "…": "...", "·": ".", "°": "", "µ": "u", "×": "x", "├": "|", "└": "`"}
    | {"▓": "=", "▒": "%", **dict.fromkeys("█▉▊▋▌▍▎▏", "#")}
    | dict(zip("▁▂▃▄▅▆▇", "_.,-~=*", strict=True))
)


class _Escaping(io.TextIOWrapper):
    """A standard stream by which no code gets to the terminal."""

    def __init__(self, stream: TextIO, *, line_buffering: bool) -> None:
        is_ascii = has_ascii_alone(stream, os.environ)
        encoding = stream.encoding
        super().__init__(
            stream.detach(),  # type: ignore[attr-defined] # a TextIOWrapper of ours or Python's
            encoding=encoding,
            errors="backslashreplace",
            line_buffering=line_buffering,
        )
        self.plain = is_ascii

    def write(self, text: str) -> int:
        """Write a text of any origin."""
        text = visible(text, keep="\n\t")
        return super().write(to_ascii(text) if self.plain else text)


def guard_streams() -> None:
    """Let nothing reach standard output and standard error but by `_Escaping`.

    One that is closed takes everything; a program that we become still finds it closed.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _Escaping(sys.stdout, line_buffering=sys.stdout.isatty())
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Escaping(sys.stderr, line_buffering=True)


def note(text: str) -> None:
    """Write a line to standard error. No result depends on whether it can be written."""
    try:
        print(text, file=sys.stderr)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def has_ascii_alone(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether what the locale names can show no more than ASCII for certain.

    Python turns the locale C into UTF-8, by itself (PEP 540) or as LC_CTYPE=C.UTF-8 (PEP 538).
    """
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    ctype_locale = environ.get("LC_CTYPE", "")
    locale_name = (
        environ.get("LC_ALL")
        or ("" if ctype_locale == "C.UTF-8" else ctype_locale)
        or environ.get("LANG")
    )
    return not encoding.startswith("utf") or locale_name in ("C", "POSIX")


def to_ascii(text: str) -> str:
    """Return a text with our signs spelt in ASCII, and every other one escaped."""
    if text.isascii():
        return text
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def unescaped(stream: TextIO) -> TextIO:
    """Return a standard stream for who escapes by itself and sends codes: rich."""
    if not isinstance(stream, _Escaping):
        return stream
    stream.flush()
    encoding = "ascii" if stream.plain else stream.encoding
    return open(  # it ends with the process
        stream.fileno(), "w", encoding=encoding, errors="backslashreplace", closefd=False
    )
