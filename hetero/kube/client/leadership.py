"""The messages between the extender and the process that holds the Lease.

They are a child and its parent with a socket between them. The child reports several times a second
that it answers; the parent sends until when the child leads.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic

from attrs import define, field

from hetero.model.errors import HeteroError

#: In the child's environment: the descriptor of its end.
DESCRIPTOR = "HETERO_LEADERSHIP"
#: The child's messages: it does not know the cluster yet, it can lead, it reads long lists, and
#: kube-scheduler tries none of the waiting pods.
STARTING, READY, BUSY, UNTRIED = b"starting", b"ready", b"busy", b"untried"
#: Seconds between two messages.
HEARTBEAT_PERIOD_S = 0.25
#: The longest message of either, in bytes.
MOST_MESSAGE_BYTES = 64


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the parent's end and the child's; each message is whole."""
    parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent_end.setblocking(False)
    return parent_end, child_end


@define(eq=False)
class Leadership:
    """The child's end; `_leads_until_s` is of CLOCK_MONOTONIC, the same in all processes."""

    connection: socket.socket
    led: bool = field(default=False, init=False)  # one that led leads until its process ends
    _leads_until_s: float = field(default=0.0, init=False)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Leadership | None:
        """Return the end that this process was started with, None where it stands alone."""
        descriptor = environ.get(DESCRIPTOR)
        return cls(socket.socket(fileno=int(descriptor))) if descriptor else None

    @property
    def held(self) -> bool:
        """Whether this process certainly leads at this moment."""
        return monotonic() < self._leads_until_s

    def busy(self) -> None:
        """Have the parent wait longer: thousands of objects are about to be read at once."""
        self._say(BUSY)

    async def follow(
        self, is_ready: Callable[[], bool], take_scheduler_stall: Callable[[], bool]
    ) -> None:
        """Report that this process is alive and read whether it leads, until the parent ends.

        Raises `HeteroError` when the parent ends. `take_scheduler_stall` returns True once for each
        stall of kube-scheduler, which is then to be restarted.
        """
        self.connection.setblocking(False)
        beat_task = asyncio.ensure_future(self._beat(is_ready, take_scheduler_stall))
        try:
            while message := await self._hear():
                self._leads_until_s = float(message)
                self.led = self.led or self._leads_until_s > 0
        finally:
            beat_task.cancel()
            self._leads_until_s = 0.0
        raise HeteroError("the process that holds the lease has ended")

    async def _hear(self) -> bytes:
        with suppress(ConnectionError):
            return await asyncio.get_running_loop().sock_recv(self.connection, MOST_MESSAGE_BYTES)
        return b""

    async def _beat(
        self, is_ready: Callable[[], bool], take_scheduler_stall: Callable[[], bool]
    ) -> None:
        while True:
            self._say(READY if is_ready() else STARTING)
            if take_scheduler_stall():
                self._say(UNTRIED)
            await asyncio.sleep(HEARTBEAT_PERIOD_S)

    def _say(self, word: bytes) -> None:
        with suppress(OSError):  # the parent has not read for a while, or has ended
            self.connection.send(word)
