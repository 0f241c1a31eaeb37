"""Remembers between commands which vendors gave no reply in time, and which failed to enforce.

Only the first command waits for a reply that does not come; a long-lived program remembers that
itself (`supervisor`). `hetero doctor` shows the message of a failed enforce.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hetero.model.errors import HeteroError
from hetero.model.frozen import frozen
from hetero.registry.respondent import Plugin

#: Seconds for which later commands do not ask a vendor after the first time; doubled by each that
#: follows.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 60.0


@frozen
class Pauses:
    """The notes of one user, in a file of its state directory, which `prepare` makes.

    Notes that cannot be read or written are lost.
    """

    path: Path
    prepare: Callable[[], None]

    def why_not(self, plugin: Plugin, hook: str) -> str | None:
        """Return why a vendor is not to be asked this yet, None if it may be."""
        pause_note = self._read().get(_key(plugin, hook), {})
        left_s = pause_note.get("until", 0.0) - _now()
        if not 0 < left_s <= LONGEST_PAUSE_S:  # another boot's clock says nothing
            return None
        return f"{pause_note['why']}: not asked again for {left_s:.0f} s"

    def failure(self, plugin: Plugin, hook: str) -> str | None:
        """Return the last noted failure of a vendor."""
        reason = self._read().get(_key(plugin, hook), {}).get("why")
        return None if reason is None else str(reason)

    def fail(self, plugin: Plugin, hook: str, reason: str) -> None:
        """Note a failure after which a vendor may be asked at any time."""
        self._write({**self._read(), _key(plugin, hook): {"why": reason}})

    def add(self, plugin: Plugin, hook: str, reason: str) -> None:
        """Note that a vendor gave no reply."""
        note_by_key, note_key = self._read(), _key(plugin, hook)
        failure_count = note_by_key.get(note_key, {}).get("times", 0)
        until_s = _now() + doubled(FIRST_PAUSE_S, failure_count, most_s=LONGEST_PAUSE_S)
        self._write(
            {**note_by_key, note_key: {"until": until_s, "why": reason, "times": failure_count + 1}}
        )

    def remove(self, plugin: Plugin, hook: str) -> None:
        """Note that it replied."""
        note_by_key = self._read()
        if note_by_key.pop(_key(plugin, hook), None):
            self._write(note_by_key)

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def _write(self, note_by_key: dict[str, Any]) -> None:
        draft_path = self.path.with_name(f".{self.path.name}.{threading.get_native_id()}")
        with suppress(OSError, HeteroError):
            self.prepare()
            draft_path.write_text(json.dumps(note_by_key))
            draft_path.replace(self.path)


def doubled(first_s: float, doublings: int, *, most_s: float) -> float:
    """Return `first_s`, doubled so many times, and at most `most_s`."""
    # After 1024 failures, a day of them, the product alone would be too large for a float.
    return min(first_s * 2.0 ** min(doublings, 64), most_s)


def _key(plugin: Plugin, hook: str) -> str:
    return f"{plugin.name} of {plugin.source}: {hook}"


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
