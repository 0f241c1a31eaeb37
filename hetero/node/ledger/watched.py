"""Looks at a ledger every few seconds, and sweeps it only where there is something to sweep."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

from attrs import define, field

from hetero.node.ledger.grant_dir import TENANT
from hetero.node.ledger.ledger import ALIVE, Ledger, Snapshot

#: Seconds after which it is swept in any case: what a killed writer left half done is seen then.
ANYWAY = 30.0


@define
class WatchedLedger:
    """Remembers what stood at the last look: a look at an unchanged ledger takes few calls."""

    ledger: Ledger
    _seen: tuple[object, ...] | None = field(init=False, default=None)
    _snapshot: Snapshot = field(init=False, factory=Snapshot)
    _swept: float = field(init=False, default=0.0)

    def snapshot(self) -> Snapshot:
        """Return what stands now, as `Ledger.snapshot` does."""
        seen, now = tuple(self._marks()), time.monotonic()
        if seen != self._seen or now - self._swept > ANYWAY:
            self._snapshot = self.ledger.snapshot()
            self._seen, self._swept = tuple(self._marks()), now
        return self._snapshot

    def _marks(self) -> Iterator[object]:
        """Yield what changes when a grant comes, goes or changes, or a tenant resizes a file."""
        if self.ledger.persistent:
            with suppress(OSError):
                yield os.stat(self.ledger.persistent / "shares").st_mtime_ns
        grants = self.ledger.path / "grants"
        names: list[str] = []
        with suppress(OSError):
            names = sorted(os.listdir(grants))
        for name in names:
            yield name, self.ledger.stands(name)
            with suppress(OSError):  # it ended; or its files are another user's
                # Entries are replaced, which the directory's time says.
                yield os.stat(f"{grants}/{name}").st_mtime_ns
                yield os.stat(f"{grants}/{name}/{ALIVE}").st_size
                with os.scandir(f"{grants}/{name}/{TENANT}") as files:
                    for file in files:
                        yield file.name, file.stat(follow_symlinks=False).st_size
