"""Follows the settings' [gangs] table for processes that outlive a change of it (heterod)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from attrs import define

from hetero.model.errors import BadInput
from hetero.node.ledger.rows import Periods
from hetero.node.settings import DEFAULT, load_settings


@define(eq=False, repr=False)
class CurrentPeriods:
    """Reads how the settings cut time for gangs at the moment.

    If they cannot be read, or are wrong, the last value stays: each command says which line to
    mend.
    """

    environ: Mapping[str, str]
    last_periods: Periods
    _file_version: tuple[int, int, int] | None = None

    def __call__(self) -> Periods:
        """Return the periods."""
        file_version = None
        with suppress(OSError, BadInput):
            status = Path(self.environ.get("HETERO_CONFIG") or DEFAULT).stat()
            file_version = (status.st_mtime_ns, status.st_ino, status.st_size)
            if file_version != self._file_version:
                self.last_periods = load_settings(self.environ).periods
        self._file_version = file_version
        return self.last_periods
