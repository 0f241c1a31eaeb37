"""The event log of containers and shares: their requests, and the outcome of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone

from attrs import asdict

from hetero.model import codec
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.node.ledger.state import make
from hetero.node.node import Node

#: Two files of this size are kept.
_MOST = 1 << 20


@frozen(kw_only=True)
class Event:
    """An event (time in UTC) of a container or share."""

    at: str
    subject: str
    says: str


def tell(node: Node, subject: str, message: str) -> None:
    """Append an event; a failure to write it is ignored."""
    persistent = node.ledger.persistent
    if persistent is None:
        return
    now_iso = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    # As the codec writes it, in a line; a container that starts waits for no codec here.
    event = asdict(Event(at=now_iso, subject=subject, says=message))
    line = json.dumps({"version": codec.VERSION, **event}) + "\n"
    with suppress(OSError):
        persistent.parent.mkdir(parents=True, exist_ok=True)
        make(persistent, mode=0o755)
        path = persistent / "log"
        with suppress(FileNotFoundError):
            if path.stat().st_size > _MOST:
                path.rename(persistent / "log.1")
        # One write to a file opened for appending: lines of several writers do not mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def events(node: Node, *, subject: str | None = None) -> tuple[Event, ...]:
    """Return the events, oldest first; only of subjects with the prefix `subject`, if given."""
    return tuple(
        event for event in _events(node) if subject is None or event.subject.startswith(subject)
    )


def _events(node: Node) -> Iterator[Event]:
    for file_name in ("log.1", "log"):
        path = node.ledger.persistent / file_name if node.ledger.persistent else None
        if path is None or not path.exists():
            continue
        for line in path.read_text(errors="replace").splitlines():
            with suppress(BadInput):  # the end of a line that a power cut left
                yield codec.loads(line, Event, source=str(path))
