"""Follows the settings' [gangs] table while a process lives: heterod outlives what it read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from attrs import define

from hetero.model.errors import BadInput
from hetero.node.ledger.rows import Periods
from hetero.node.settings import DEFAULT, load_settings


@define
class CurrentPeriods:
    """How time is cut for gangs by the settings as they are now: heterod lives longer than those.

    What cannot be read, or is wrong, leaves it as it was: each command says the line to mend.
    """

    environ: Mapping[str, str]
    last: Periods
    _stamp: tuple[int, int, int] | None = None

    def __call__(self) -> Periods:
        """Return it."""
        file_version = None
        with suppress(OSError, BadInput):
            status = Path(self.environ.get("HETERO_CONFIG") or DEFAULT).stat()
            file_version = (status.st_mtime_ns, status.st_ino, status.st_size)
            if file_version != self._stamp:
                self.last = load_settings(self.environ).periods
        self._stamp = file_version
        return self.last
