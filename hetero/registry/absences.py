"""Remembers between commands which vendors have no driver here: most have none on any machine.

To ask one costs a process, which is two fifths of what a short command computes where eight vendors
are installed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hetero.model.errors import HeteroError
from hetero.model.frozen import frozen

#: Seconds after which a vendor is asked again: a driver that is installed meanwhile is seen then,
#: and at once where it makes a device node or tells the loader of its library.
_TRUSTED_S = 10.0
#: Seconds for which a command waits for another that asks, and between two looks at that.
_WAITED_S, _PAUSE_S = 5.0, 0.1
#: What changes when a driver comes: the loader's list of libraries, and the device nodes.
_SIGNS = ("/etc/ld.so.cache", "/dev")
#: Where drivers are looked for depends on these variables, and on ours.
_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONPATH")


@frozen
class Absence:
    """Why a vendor has no driver here, and its title."""

    reason: str
    title: str | None


@frozen
class Absences:
    """The notes of one user, in a file of its state directory, which `prepare` makes.

    Notes that cannot be read or written are lost. `environ` is what drivers are looked for by.
    """

    path: Path
    prepare: Callable[[], None]
    environ: Mapping[str, str]

    @contextmanager
    def one_by_one(self) -> Iterator[dict[str, Absence]]:
        """Return what is noted; without a note one command asks, and others wait for its note.

        Who asks for long is not waited for.
        """
        if (noted := self.noted()) is not None:
            yield noted
            return
        with suppress(OSError, HeteroError):
            self.prepare()
        try:
            path = self.path.with_suffix(".lock")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield {}
            return
        try:
            if not _try_lock(descriptor):
                _wait_for_lock(descriptor)
                noted = self.noted()
            yield noted or {}
        finally:
            os.close(descriptor)

    def noted(self) -> dict[str, Absence] | None:
        """Return the absences by the sources of plugins; None: there is no note to be trusted."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            notes = json.loads(self.path.read_text())
            is_new = 0 < notes["until"] - _now_s() <= _TRUSTED_S
            if is_new and notes["circumstances"] == self._circumstances():
                return {source: Absence(*texts) for source, texts in notes["vendors"].items()}
        return None

    def note(self, absence_by_source: Mapping[str, Absence]) -> None:
        """Note all that are absent now."""
        notes = {
            "until": _now_s() + _TRUSTED_S,
            "circumstances": self._circumstances(),
            "vendors": {
                source: (absence.reason, absence.title)
                for source, absence in absence_by_source.items()
            },
        }
        draft_path = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(OSError):
            draft_path.write_text(json.dumps(notes))
            draft_path.replace(self.path)

    def _circumstances(self) -> str:
        """Return what a driver that comes changes, and where drivers are looked for."""
        variables = (
            f"{name}={value}"
            for name, value in sorted(self.environ.items())
            if name in _VARIABLES or name.startswith("HETERO_")
        )
        paths = (*_SIGNS, self.environ.get("HETERO_RACK", ""))
        return "\n".join((*variables, *(f"{path} {_changed_ns(path)}" for path in paths)))


def _try_lock(descriptor: int) -> bool:
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _wait_for_lock(descriptor: int) -> None:
    """Wait until who asks is done, for a while."""
    from random import random  # here: most commands wait for nobody

    deadline_s = time.monotonic() + _WAITED_S
    while not _try_lock(descriptor) and time.monotonic() < deadline_s:
        time.sleep(_PAUSE_S * (0.5 + random()))
    with suppress(OSError):  # the others need not wait for this one
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _changed_ns(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_mtime_ns
    return 0


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
