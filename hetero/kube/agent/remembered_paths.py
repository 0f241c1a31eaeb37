"""Gives a kubelet paths by which it remembers a grant, and where nothing can be made before it.

A kubelet writes down our answer. One before 1.28 starts a container from that after a boot, often
before the agent runs. A container runtime makes a missing source of a mount as an empty directory,
and the container would keep that in place of its grant for as long as it runs. But a runtime makes
no directory below a link that leads nowhere. So each remembered path goes through a link on disk:
until the agent has made the grant anew no container is created, and the kubelet tries again by
itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from attrs import evolve, frozen

from hetero.container.preload import PLACE
from hetero.model import Mount
from hetero.model.errors import HeteroError
from hetero.node.ledger.grant_dir import TENANT
from hetero.node.ledger.ledger import Ledger
from hetero.node.ledger.state import make


@frozen
class RememberedPaths:
    """The links to the grants of a ledger, by their ids. They survive a reboot where shares do."""

    ledger: Ledger

    @property
    def _links(self) -> Path:
        return (self.ledger.persistent or self.ledger.path) / "remembered"

    def put(self, grant_id: str, mounts: Iterable[Mount]) -> tuple[Mount, ...]:
        """Create the link to a standing grant; return a container's mounts through it.

        It is not flushed: the kubelet flushes its record after our answer, and a journaling file
        system writes the link before that.
        """
        tenant_dir, link = self.ledger.directory(grant_id) / TENANT, self._links / grant_id
        try:
            if not link.is_symlink():
                self._links.parent.mkdir(parents=True, exist_ok=True)
                make(self._links, mode=0o755)
                _remove(link)
                link.symlink_to(tenant_dir)
        except OSError as error:
            raise HeteroError(f"{link}: {error.strerror}") from None
        source_by_target = {
            f"{PLACE}/{file_name}": str(link / file_name) for file_name in os.listdir(tenant_dir)
        }
        return tuple(
            evolve(mount, source=source_by_target.get(mount.target, mount.source))
            for mount in mounts
        )

    def names(self) -> set[str]:
        """Return the ids of the grants that have a link."""
        return set(os.listdir(self._links)) if self._links.exists() else set()

    def remove(self, grant_ids: Iterable[str]) -> None:
        """Remove the links of grants whose containers no kubelet will start again."""
        for grant_id in grant_ids:
            _remove(self._links / grant_id)


def _remove(path: Path) -> None:
    """Remove a link, or the directory that a runtime created where a link was missing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
