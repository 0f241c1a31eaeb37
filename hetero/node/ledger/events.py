"""The log of who had what: grants that began and ended, and what containers and shares asked."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from attrs import asdict

from hetero.model import codec
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.node.ledger.state import make

#: Two files of this size are kept.
_MOST_FILE_BYTES = 1 << 20


@frozen(kw_only=True)
class Event:
    """An event (time in UTC) of a grant, a container or a share.

    `devices` are the numbers of the grant's devices in the inventory when it was made.
    """

    at: str
    subject: str
    says: str
    grant: str | None = None
    devices: tuple[int, ...] = ()


def record(
    directory: Path | None,
    subject: str,
    message: str,
    *,
    grant_id: str | None = None,
    numbers: tuple[int, ...] = (),
) -> None:
    """Append an event to the log in a directory; a failure to write it is ignored."""
    if directory is None:
        return
    now_iso = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    # As the codec writes it, in a line; a container that starts waits for no codec here.
    event = asdict(
        Event(at=now_iso, subject=subject, says=message, grant=grant_id, devices=numbers)
    )
    line = json.dumps({"version": codec.VERSION, **event}) + "\n"
    with suppress(OSError):
        directory.parent.mkdir(parents=True, exist_ok=True)
        make(directory, mode=0o755)
        path = directory / "log"
        with suppress(FileNotFoundError):
            if path.stat().st_size > _MOST_FILE_BYTES:
                path.rename(directory / "log.1")
        # One write to a file opened for appending: lines of several writers do not mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def events(directory: Path | None) -> Iterator[Event]:
    """Yield the events in the log of a directory, oldest first."""
    for file_name in ("log.1", "log"):
        path = directory / file_name if directory else None
        if path is None or not path.exists():
            continue
        for line in path.read_text(errors="replace").splitlines():
            with suppress(BadInput):  # the end of a line that a power cut left
                yield codec.loads(line, Event, source=str(path))
