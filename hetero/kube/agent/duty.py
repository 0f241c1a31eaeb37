"""Has one agent at a time serve its node: the one that began last.

An agent whose pod was deleted by force may live on beside the next one, and a second release may
have agents of its own. Two that serve take the kubelet's registration from each other, again and
again, and the node has no cards. So who begins puts a file of its own in place of the last one's
and keeps it locked. The other sees that, stops, and begins again when the lock is free.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from time import monotonic

from attrs import define, field

from hetero.model.errors import HeteroError
from hetero.node.ledger.grant_dir import create
from hetero.node.ledger.locks import is_held, try_lock
from hetero.node.ledger.state import prepare

log = logging.getLogger(__name__)

#: Seconds between two looks at who serves, and that the next agent waits until the last one has
#: stopped: that would else take its sockets away. One that hangs is not waited for.
_POLL_PERIOD_S, _HANDOVER_S = 0.5, 3.0


@define(eq=False)
class Duty:
    """One agent's turn to serve the node whose ledger is in `directory`."""

    directory: Path
    _descriptor: int = field(init=False, default=-1)

    async def keep(self, serve: Callable[[], Coroutine[None, None, None]]) -> None:
        """Serve from now on, but for as long as an agent that began later does.

        Raises `HeteroError` if the directory cannot be written, and what `serve` raises.
        """
        try:
            while True:
                await self._take()
                await self._serve(serve)
                self._close()
                log.warning(
                    "another agent began to serve this node: %s. This one waits until that has "
                    "ended: end one of the two",
                    self._holder(),
                )
                while self._is_served():
                    await asyncio.sleep(_POLL_PERIOD_S)
                log.info("no other agent serves this node any more: this one does")
        finally:
            self._close()

    async def _serve(self, serve: Callable[[], Coroutine[None, None, None]]) -> None:
        """Serve until another agent has the turn."""
        serving = asyncio.ensure_future(serve())
        try:
            while self._has_turn():
                if (await asyncio.wait({serving}, timeout=_POLL_PERIOD_S))[0]:
                    await serving
                    return
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

    async def _take(self) -> None:
        """Take the turn, and wait until the agent whose turn it was has stopped."""
        prepare(self.directory)
        draft_path = self.directory / f".agent.{os.getpid()}.{id(self)}"
        try:
            last_descriptor = create(self._path, mode=0o644)
            self._descriptor = create(draft_path, mode=0o644)
            try_lock(self._descriptor)
            draft_path.write_text(f"{socket.gethostname()}, process {os.getpid()}")
            draft_path.replace(self._path)
        except OSError as error:
            raise HeteroError(f"{self._path}: {error.strerror}") from None
        try:
            until_s = monotonic() + _HANDOVER_S
            while is_held(last_descriptor) and monotonic() < until_s:
                await asyncio.sleep(_POLL_PERIOD_S / 5)
        finally:
            os.close(last_descriptor)

    def _has_turn(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def _is_served(self) -> bool:
        """Whether the agent whose turn it is lives."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return is_held(descriptor)
        finally:
            os.close(descriptor)

    def _holder(self) -> str:
        with suppress(OSError):
            return self._path.read_text()
        return "which one is not known"

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    @property
    def _path(self) -> Path:
        return self.directory / "agent"
