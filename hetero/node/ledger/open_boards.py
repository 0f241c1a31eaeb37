"""Keeps boards open for writing, so that the kernel gives no tenant a lease on one (fcntl(2))."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock, Thread

from attrs import define, field

from hetero.node.ledger.board import BOARD


@define
class OpenBoards:
    """The boards that this process has open; they are closed with it."""

    _descriptors: dict[Path, int] = field(init=False, factory=dict)
    _pending: set[Path] = field(init=False, factory=set)
    _lock: Lock = field(init=False, factory=Lock)

    def look(self, boards_directory: Path) -> None:
        """Open the boards that are new in a directory, and close those that were removed.

        A board on which a tenant has a lease already is open once the kernel ended that: after 45 s
        (`/proc/sys/fs/lease-break-time`), in which no other is given. It is waited for in a thread.
        """
        with self._lock:
            self._close_removed()
            known_paths = self._descriptors.keys() | self._pending
            new_paths = [
                path for path in boards_directory.glob(f"*/{BOARD}") if path not in known_paths
            ]
            self._pending.update(new_paths)
        for path in new_paths:
            Thread(target=self._open, args=(path,), daemon=True).start()

    def _open(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # it was removed, or is another user's
            descriptor = None
        with self._lock:
            self._pending.discard(path)
            if descriptor is not None:
                self._descriptors[path] = descriptor

    def _close_removed(self) -> None:
        for path, descriptor in tuple(self._descriptors.items()):
            if os.fstat(descriptor).st_nlink == 0:
                os.close(descriptor)
                del self._descriptors[path]
