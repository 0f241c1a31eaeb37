"""Reads which grants lost their work because the service of their device failed."""

from __future__ import annotations

from contextlib import suppress

from hetero.model.frozen import frozen
from hetero.node.node import Node

#: In a grant's directory: what ended its programs on their device.
HURT_FILE = "hurt"


@frozen(kw_only=True)
class Hurt:
    """A grant whose programs lost their device since its service failed, and why."""

    grant: str
    device: str
    why: str

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the finding."""
        return "hurt", self.grant, self.device

    @property
    def subject(self) -> str:
        """The name of the grant in the log."""
        return f"grant {self.grant}"

    def __str__(self) -> str:
        return f"grant {self.grant} lost its work on {self.device[:12]}: {self.why}"


def hurt(node: Node, grant_id: str) -> str | None:
    """Return what ended a grant's programs on their device, by the watcher's note."""
    with suppress(OSError):
        return (node.directory(grant_id) / HURT_FILE).read_text().strip() or None
    return None
