"""A terminal that a test looks at and types into."""

import codecs
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping


class Window:
    """A program in a terminal of so many columns and lines."""

    def __init__(
        self, words: tuple[str, ...], environ: Mapping[str, str], columns: int, lines: int
    ) -> None:
        self._controller, terminal = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(terminal)
        clean = {name: environ[name] for name in environ.keys() - {"COLUMNS", "LINES"}}
        self.program = subprocess.Popen(
            words,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={"TERM": "xterm-256color", **clean},
            start_new_session=True,
        )
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a sign may come in two parts
        self.shown = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._controller, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Forget what was shown, and press keys."""
        self.shown = ""
        os.write(self._controller, keys.encode())

    def read(self, until: Callable[[str], bool], *, within: float = 60.0) -> str:
        """Return what is shown once it is as wanted."""
        deadline = time.monotonic() + within
        while not until(self.shown):
            assert time.monotonic() < deadline, self.shown
            is_over = self.program.poll() is not None  # before the last look: it may say more
            if select.select([self._controller], [], [], 0.1)[0]:
                self.shown += self._decoder.decode(os.read(self._controller, 65536))
            elif is_over:
                break
        return self.shown

    def whole(self) -> str:
        """Return all that a program shows which ends by itself."""
        screen = self.read(lambda _: False)
        assert 0 == self.program.wait(60), screen
        return screen.replace("\r\n", "\n")

    def modes(self) -> list[object]:
        return termios.tcgetattr(self._terminal)

    def close(self) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._controller)
        os.close(self._terminal)
