"""Reads a ledger every few seconds, and sweeps it only where there is something to sweep."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from attrs import define, field

from hetero.node.ledger.grant_dir import TENANT
from hetero.node.ledger.ledger import ALIVE, Ledger, Snapshot

#: Seconds after which it is swept in any case: what a killed writer left half done is seen then.
SWEEP_PERIOD_S = 30.0


@define
class WatchedLedger:
    """Remembers the last snapshot: a look at an unchanged ledger takes few system calls."""

    ledger: Ledger
    _swept_marks: tuple[object, ...] | None = field(init=False, default=None)
    _snapshot: Snapshot = field(init=False, factory=Snapshot)
    _swept_at_s: float = field(init=False, default=0.0)

    def snapshot(self) -> Snapshot:
        """Return what stands now, as `Ledger.snapshot` does."""
        change_marks, now_s = tuple(self._marks()), time.monotonic()
        if change_marks != self._swept_marks or now_s - self._swept_at_s > SWEEP_PERIOD_S:
            self._snapshot = self.ledger.snapshot()
            self._swept_marks, self._swept_at_s = tuple(self._marks()), now_s
        return self._snapshot

    def _marks(self) -> Iterator[object]:
        """Yield values that change when a grant comes, goes or changes, or a file is resized."""
        if self.ledger.persistent:
            with suppress(OSError):
                yield os.stat(self.ledger.persistent / "shares").st_mtime_ns
        grants_path = self.ledger.path / "grants"
        grant_names: list[str] = []
        with suppress(OSError):
            grant_names = sorted(os.listdir(grants_path))
        for grant_name in grant_names:
            yield grant_name, self.ledger.stands(grant_name)
            with suppress(OSError):  # it ended; or its files are another user's
                # Entries are replaced, which the directory's time says.
                yield os.stat(f"{grants_path}/{grant_name}").st_mtime_ns
                yield os.stat(f"{grants_path}/{grant_name}/{ALIVE}").st_size
                with os.scandir(f"{grants_path}/{grant_name}/{TENANT}") as files:
                    for file in files:
                        yield file.name, file.stat(follow_symlinks=False).st_size
