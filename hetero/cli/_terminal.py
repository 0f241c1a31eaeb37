"""The one way to a terminal or pipe: escaped, in its encoding, as wide as it is."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TextIO

from attrs import evolve

from hetero.model.frozen import frozen
from hetero.model.visible import visible

#: A line in pieces: the text of each and its style.
Line = list[tuple[str, str]]

_CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "alarm": "1;31",
    "reverse": "7",
}
#: What our own signs become where the locale has no others than ASCII's.
_ASCII = str.maketrans(
    {"–": "-", "…": "...", "·": ".", "°": "", "µ": "u", "×": "x", **dict.fromkeys("█▉▊▋▌▍▎▏", "#")}
)


class _Escaping(io.TextIOWrapper):
    """A standard stream on which nothing but `Terminal.write` sends a code to the terminal."""

    def __init__(self, stream: TextIO, *, line_buffering: bool) -> None:
        plain = has_ascii_alone(stream, os.environ)
        encoding = stream.encoding
        super().__init__(
            stream.detach(),  # type: ignore[attr-defined] # a TextIOWrapper of ours or Python's
            encoding=encoding,
            errors="backslashreplace",
            line_buffering=line_buffering,
        )
        self._plain = plain

    def write(self, text: str) -> int:
        """Write a text of any origin."""
        text = visible(text, keep="\n\t")
        return super().write(to_ascii(text) if self._plain else text)

    def write_codes(self, text: str) -> None:
        """Write what was escaped already, between codes of ours."""
        super().write(text)


def guard_streams() -> None:
    """Let nothing reach standard output and standard error but by `_Escaping`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _Escaping(sys.stdout, line_buffering=sys.stdout.isatty())
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Escaping(sys.stderr, line_buffering=True)


def has_ascii_alone(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether what the locale names can show no more than ASCII for certain.

    Python turns the locale C into UTF-8, by itself (PEP 540) or as LC_CTYPE=C.UTF-8 (PEP 538).
    """
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    chosen = environ.get("LC_CTYPE", "")
    named = environ.get("LC_ALL") or ("" if chosen == "C.UTF-8" else chosen) or environ.get("LANG")
    return not encoding.startswith("utf") or named in ("C", "POSIX")


def to_ascii(text: str) -> str:
    """Return a text with our signs spelt in ASCII, and every other one escaped."""
    if text.isascii():
        return text
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


@frozen(kw_only=True)
class Terminal:
    """Where text goes: `width` in columns is None where nothing limits it, as in a pipe.

    `colour`: styles are shown. `plain`: ASCII alone. `live`: somebody looks on, so that sentences
    are folded at `width`. `moves`: the cursor can be moved, so that a frame replaces the last one.
    """

    stream: TextIO
    width: int | None = None
    colour: bool = False
    plain: bool = False
    live: bool = False
    moves: bool = False

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> Terminal:
        """Return what standard output is."""
        live = sys.stdout.isatty()
        smart = live and environ.get("TERM", "") not in ("", "dumb")
        known = live or environ.get("COLUMNS", "").isdecimal()
        return cls(
            stream=sys.stdout,
            width=_size(sys.stdout, environ)[0] if known else None,
            colour=smart and not environ.get("NO_COLOR"),
            plain=has_ascii_alone(sys.stdout, environ),
            live=live,
            moves=smart,
        )

    @property
    def height(self) -> int:
        """How many lines are shown at once."""
        return _size(self.stream, os.environ)[1]

    def unlimited(self) -> Terminal:
        """Return this terminal with lines as long as they get."""
        return evolve(self, width=None)

    def text(self, text: str) -> str:
        """Return a text as it can be shown here; its width does not change any more."""
        shown = visible(text)
        return to_ascii(shown) if self.plain else shown

    def styled(self, line: Line) -> str:
        """Return a line with its codes, if this terminal is to have any."""
        return "".join(
            f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and self.colour else text
            for text, style in line
        ).rstrip(" ")

    def write(self, lines: Iterable[Line]) -> None:
        """Write lines whose texts went through `text`."""
        self.send("".join(f"{self.styled(line)}\n" for line in lines))

    def send(self, text: str) -> None:
        """Write what is made of `styled` lines and codes of ours."""
        if isinstance(self.stream, _Escaping):
            self.stream.write_codes(text)
        else:
            self.stream.write(text)
        self.stream.flush()


def unescaped(stream: TextIO) -> TextIO:
    """Return a standard stream for who draws by itself, as progress bars do: unescaped."""
    if not isinstance(stream, _Escaping):
        return stream
    return open(  # it ends with the process
        stream.fileno(), "w", encoding=stream.encoding, errors="backslashreplace", closefd=False
    )


def _size(stream: TextIO, environ: Mapping[str, str]) -> tuple[int, int]:
    """Return columns and lines: $COLUMNS, else what the kernel says, else 80 and 24."""
    said = environ.get("COLUMNS", "")
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, lines = 0, 0
    return int(said) if said.isdecimal() and int(said) else columns or 80, lines or 24


def columns_of(text: str) -> int:
    """Return how many columns a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    wide = sum(east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(category(each) in ("Mn", "Me") for each in text)
