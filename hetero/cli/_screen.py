"""Takes over a terminal for frames, drawn in place and asked by keys, and gives it back whole."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from attrs import define, evolve, field

from hetero.cli._terminal import Line, Terminal

#: The other screen, without a cursor; a line that is too long ends at the edge.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _NO_LINE, _NO_MORE = "\x1b[H", "\x1b[2K", "\x1b[J"
#: Seconds within which a new size of the window is met.
_GLANCE = 0.25
#: What terminals send for keys without a letter (ECMA-48 and the VT220's; `application` mode, too).
_KEYS = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "k": "up",
    "j": "down",
    " ": "page down",
    "q": "quit",
    "\x03": "quit",
    "\x04": "quit",
}


@define
class Screen:
    """A context in which standard output shows frames and standard input gives keys, unechoed.

    Left by whatever way, the terminal is as it was, and shows what it showed.
    """

    terminal: Terminal
    _offset: int = field(init=False, default=0)
    _typed: str = field(init=False, default="")
    _before: dict[int, Any] = field(init=False, factory=dict)
    _modes: list[Any] | None = field(init=False, default=None)

    def __enter__(self) -> Screen:
        if sys.stdin is not None and sys.stdin.isatty():
            self._modes = termios.tcgetattr(sys.stdin)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._before[number] = signal.signal(number, _end)
        self._take()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self.terminal.send(_LEAVE)
        if self._modes is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        return kind is KeyboardInterrupt  # the way a watch ends

    def show(self, lines: Sequence[Line], *, wait: float, head: int = 1) -> str:
        """Show a frame for up to `wait` seconds; its first `head` lines do not scroll.

        Return the key that ended the wait: a character, or "again" for none and for those that
        were about the frame itself; empty when it is to end.
        """
        until = time.monotonic() + wait
        while True:
            self._draw(lines, head)
            key = self._key(until)
            if key == "quit":
                return ""
            if key == "again" or not self._scroll(key, len(lines) - head):
                return key

    def _take(self) -> None:
        if self._modes is not None:
            tty.setcbreak(sys.stdin)
        self.terminal.send(_ENTER)

    def _draw(self, lines: Sequence[Line], head: int) -> None:
        room = max(self.terminal.height - head, 1)
        self._offset = max(0, min(self._offset, len(lines) - head - room))
        body = lines[head + self._offset :][:room]
        shown = [_NO_LINE + self.terminal.styled(line) for line in [*lines[:head], *body]]
        rest = f"\r\n{_NO_MORE}" if len(shown) < self.terminal.height else ""
        self.terminal.send(_HOME + "\r\n".join(shown) + rest)

    def _key(self, until: float) -> str:
        """Return the next key, or "again" when the time is up or the window has another size."""
        while True:
            if self._typed:
                return self._first_key()
            left = until - time.monotonic()
            width = Terminal.here().width if self.terminal.width else None
            if width != self.terminal.width or left <= 0:
                self.terminal = evolve(self.terminal, width=width)
                return "again"
            if self._modes is None:
                time.sleep(min(left, _GLANCE))
            elif select.select([sys.stdin], [], [], min(left, _GLANCE))[0]:
                self._typed = os.read(sys.stdin.fileno(), 64).decode("ascii", "replace")
                if not self._typed:
                    return "quit"  # nobody is there any more

    def _first_key(self) -> str:
        """Return what was typed first, and keep the rest."""
        known = [key for key in _KEYS if self._typed.startswith(key)]
        first = max(known, key=len, default=self._typed[0])
        self._typed = self._typed[len(first) :]
        return _KEYS.get(first, first)

    def _scroll(self, key: str, lines: int) -> bool:
        """Whether the key was one that scrolls."""
        page = max(self.terminal.height - 2, 1)
        by = {
            "up": -1,
            "down": 1,
            "page up": -page,
            "page down": page,
            "home": -lines,
            "end": lines,
        }
        if key not in by:
            return False
        self._offset = max(0, self._offset + by[key])
        return True


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what signal calls
    sys.exit(128 + number)
