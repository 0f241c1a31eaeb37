"""Remembers between commands which vendors have no driver here: most have none on any machine.

To ask one costs a process, which is two fifths of what a short command computes where eight vendors
are installed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from hetero.model.errors import HeteroError
from hetero.model.frozen import frozen

#: Seconds after which a vendor is asked again: a driver that is installed meanwhile is seen then,
#: and at once where it makes a device node or tells the loader of its library.
_TRUSTED_S = 10.0
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

    def noted(self) -> dict[str, Absence]:
        """Return the absences that may still be trusted, by the sources of plugins."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            notes = json.loads(self.path.read_text())
            is_new = 0 < notes["until"] - _now_s() <= _TRUSTED_S
            if is_new and notes["circumstances"] == self._circumstances():
                return {source: Absence(*texts) for source, texts in notes["vendors"].items()}
        return {}

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
        with suppress(OSError, HeteroError):
            self.prepare()
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


def _changed_ns(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_mtime_ns
    return 0


def _now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
