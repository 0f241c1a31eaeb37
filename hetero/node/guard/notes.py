"""Writes down what only a monitor sees, for commands that sample once (`hetero ps`, `doctor`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from hetero.node.ledger.grant_dir import replace
from hetero.node.node import Node
from hetero.node.view.bypass import PAST_FILE, UNOWNED_FILE, Unowned
from hetero.node.view.device_time import Overuse


def note_time(node: Node, grant_id: str, overuse: Mapping[str, Iterable[Overuse]]) -> None:
    """Write down the device time that a grant took past its limiter, for `hetero ps`."""
    lines = [
        f"{device_overuse.pid} {device_overuse.part:.3f} {device}\n"
        for device, overuses in overuse.items()
        for device_overuse in overuses
        if device_overuse.grant == grant_id
    ]
    path = node.directory(grant_id) / PAST_FILE
    with suppress(OSError):  # it ended, or is another user's
        if lines:
            replace(path, "".join(lines).encode(), mode=0o644)
        else:
            path.unlink(missing_ok=True)


def note_unowned(node: Node, unowned: Iterable[Unowned]) -> None:
    """Write down the memory that is no process's, for commands that sample once."""
    path = node.ledger.path / UNOWNED_FILE
    lines = [f"{memory.memory} {memory.device}\n" for memory in unowned]
    with suppress(OSError):  # another user's ledger
        if lines:
            replace(path, "".join(lines).encode(), mode=0o644)
        else:
            path.unlink(missing_ok=True)
