"""Takes over a terminal for frames that rich draws in place, asked by keys, and gives it back."""

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

from attrs import define, field
from rich.console import Console, ConsoleDimensions
from rich.live import Live

from hetero.cli._draw import Heading, Line, joined, layout
from hetero.cli._render import Text

#: Seconds within which a new size of the window, and Ctrl-Z, are met.
_POLL_PERIOD_S = 0.25
#: Lines up to which a window has none for headings that stay, and for where one is.
_LOW_WINDOW_LINES = 6
#: What terminals send for keys without a letter (ECMA-48 and the VT220's; `application` mode, too).
_KEY_BY_SEQUENCE = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~", "g"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~", "G"), "end"),
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

    Left by whatever way, the terminal is as it was, and shows what it showed. So it is while the
    shell has stopped us (Ctrl-Z).
    """

    console: Console
    _live: Live = field(init=False)
    _size: ConsoleDimensions = field(init=False)
    _lines: Sequence[Line] = field(init=False, default=())
    _head_lines: int = field(init=False, default=1)
    _first_line: int = field(init=False, default=0)
    _typed_keys: str = field(init=False, default="")
    _is_stopping: bool = field(init=False, default=False)
    _handlers_before: dict[int, Any] = field(init=False, factory=dict)
    _terminal_modes: list[Any] | None = field(init=False, default=None)

    def __enter__(self) -> Screen:
        self._size = self.console.size  # before the first frame is laid out
        self._live = Live(
            console=self.console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        if sys.stdin is not None and sys.stdin.isatty():
            self._terminal_modes = termios.tcgetattr(sys.stdin)
        for signal_number, handler in (
            (signal.SIGTERM, _end),
            (signal.SIGHUP, _end),
            (signal.SIGTSTP, self._stop),
        ):
            self._handlers_before[signal_number] = signal.signal(signal_number, handler)
        self._enter()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._leave()
        for signal_number, handler in self._handlers_before.items():
            signal.signal(signal_number, handler)
        return error_type is KeyboardInterrupt  # the way a watch ends

    def show(self, lines: Sequence[Line], *, wait_s: float, head_lines: int = 1) -> str:
        """Show a frame for up to `wait_s` seconds; its first `head_lines` lines do not scroll.

        Return the key that ended the wait: a character, or "again" for none and for those that
        were about the frame itself; empty when it is to end.
        """
        until_s = time.monotonic() + wait_s
        while True:
            self._draw(lines, head_lines)
            pressed_key = self._key(until_s)
            if pressed_key == "quit":
                return ""
            if pressed_key == "again" or not self._scroll(pressed_key, len(lines) - head_lines):
                return pressed_key

    def _enter(self) -> None:
        if self._terminal_modes is not None:
            tty.setcbreak(sys.stdin)
        self._live.start()

    def _leave(self) -> None:
        self._live.stop()
        if self._terminal_modes is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._terminal_modes)

    def ask(self, question: str) -> str | None:
        """Ask in the last line of the frame, and return the answer; None for Esc and Ctrl-C."""
        answer = ""
        while True:
            self._draw(self._lines, self._head_lines, bottom=f"{question} {answer}")
            character = self._character()
            if character in ("", "\x1b", "\x03", "\x04"):
                self._typed_keys = ""
                return None
            if character in "\r\n":
                return answer.strip()
            if character in "\x7f\b":
                answer = answer[:-1]
            elif character.isprintable():
                answer += character

    def _draw(self, lines: Sequence[Line], head_lines: int, *, bottom: str = "") -> None:
        """Draw the lines that fit, under the headings of their table; `bottom` is the last line."""
        self._lines, self._head_lines = lines, head_lines
        body_lines = max(self.console.height - head_lines, 1)
        is_cut = len(lines) - head_lines > body_lines and body_lines > _LOW_WINDOW_LINES
        if is_cut or bottom:
            body_lines -= 1
        most = max(0, len(lines) - head_lines - body_lines)
        if is_cut:
            most += len(_pinned(lines, head_lines, head_lines + most))
        self._first_line = max(0, min(self._first_line, most))
        top = head_lines + self._first_line
        pinned = _pinned(lines, head_lines, top) if is_cut else []
        body = lines[top : top + body_lines - len(pinned)]
        if is_cut and not bottom:
            last = self._first_line + len(body)
            bottom = f"{self._first_line + 1} to {last} of {len(lines) - head_lines}"
        shown = [*lines[:head_lines], *pinned, *body]
        if bottom:
            blank = self.console.height - len(shown) - 1
            shown += [*([[]] * blank), *layout(Text(bottom, "reverse"), self.console, wide=True)]
        self._live.update(joined(shown, self.console), refresh=True)

    def _character(self) -> str:
        """Return the next character that is typed; empty when nobody is there any more."""
        while not self._typed_keys:
            if self._is_stopping:
                self._rest()
            if self._terminal_modes is None:
                return ""
            if select.select([sys.stdin], [], [], _POLL_PERIOD_S)[0]:
                self._typed_keys = os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace")
                if not self._typed_keys:
                    return ""
        character, self._typed_keys = self._typed_keys[0], self._typed_keys[1:]
        return character

    def _key(self, until_s: float) -> str:
        """Return the next key, or "again" when the time is up or the frame is out of date."""
        while not self._typed_keys:
            left_s = until_s - time.monotonic()
            if self._is_stopping:
                self._rest()
                return "again"
            if self.console.size != self._size or left_s <= 0:
                self._size = self.console.size
                return "again"
            if self._terminal_modes is None:
                time.sleep(min(left_s, _POLL_PERIOD_S))
            elif select.select([sys.stdin], [], [], min(left_s, _POLL_PERIOD_S))[0]:
                self._typed_keys = os.read(sys.stdin.fileno(), 64).decode("ascii", "replace")
                if not self._typed_keys:
                    return "quit"  # nobody is there any more
        return self._first_key()

    def _first_key(self) -> str:
        """Return what was typed first, and keep the rest."""
        matching_keys = [
            known_key for known_key in _KEY_BY_SEQUENCE if self._typed_keys.startswith(known_key)
        ]
        first_key = max(matching_keys, key=len, default=self._typed_keys[0])
        self._typed_keys = self._typed_keys[len(first_key) :]
        return _KEY_BY_SEQUENCE.get(first_key, first_key)

    def _stop(self, signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - what signal calls
        # Not here: a frame may be half drawn.
        self._is_stopping = True

    def _rest(self) -> None:
        """Be stopped until the shell goes on with us; the terminal is the shell's meanwhile."""
        self._leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._is_stopping = False
        self._enter()

    def _scroll(self, pressed_key: str, body_lines: int) -> bool:
        """Scroll if the key is a scroll key; return whether it is."""
        page_lines = max(self.console.height - 2, 1)
        lines_by_key = {
            "up": -1,
            "down": 1,
            "page up": -page_lines,
            "page down": page_lines,
            "home": -body_lines,
            "end": body_lines,
        }
        if pressed_key not in lines_by_key:
            return False
        self._first_line = max(0, self._first_line + lines_by_key[pressed_key])
        return True


def _pinned(lines: Sequence[Line], head_lines: int, top: int) -> list[Line]:
    """Return the headings above a line of a table, none where they are seen themselves."""
    pinned: list[Line] = []
    if top >= len(lines) or not lines[top] or isinstance(lines[top], Heading):
        return pinned
    for line in reversed(lines[head_lines:top]):
        if isinstance(line, Heading):
            pinned.insert(0, line)
        elif pinned or not line:
            break
    return pinned


def _end(signal_number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - what signal calls
    sys.exit(128 + signal_number)
