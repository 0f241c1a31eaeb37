"""Serves the machine's ledger on a Unix socket, so that no client delays another for long."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from attrs import define, evolve, field

from hetero.model.errors import HeteroError, Refused
from hetero.node.daemon.actions import Done, abort, carry_out, refusal
from hetero.node.daemon_client import LENGTH, MOST_REQUEST_BYTES, SOCKET, framed
from hetero.node.guard.monitor import Finding, watch
from hetero.node.ledger.grant_dir import create
from hetero.node.ledger.locks import try_lock
from hetero.node.mounts import show_boards
from hetero.node.node import Node

#: Seconds within which a request must arrive, and its reply must be read.
TRANSFER_TIMEOUT_S = 5.0
#: The most connections, of one user and of all.
MOST_CONNECTIONS_OF_USER, MOST_CONNECTIONS = 16, 256
#: struct ucred of socket(7): pid, uid, gid.
_CREDENTIALS = struct.Struct("iII")
#: The first descriptor that systemd passes, of sd_listen_fds(3).
_FIRST_PASSED_DESCRIPTOR = 3

#: The user of heterod's own work.
_ROOT_UID = 0


@define
class Server:
    """One heterod: requests are carried out one at a time, with users in rotation.

    A request that waits for a vendor to make or destroy slices gives up its turn, so others go on.
    """

    node: Node
    _waiting_by_uid: dict[int, deque[asyncio.Future[None]]] = field(factory=dict)
    _is_busy: bool = False
    _connections_by_uid: Counter[int] = field(factory=Counter)
    _tasks: set[asyncio.Task[None]] = field(factory=set)

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(
            ThreadPoolExecutor(MOST_CONNECTIONS)
        )  # a waiting one delays no other
        listener.setblocking(False)
        while True:
            connection, _ = await loop.sock_accept(listener)
            connection.setblocking(False)
            uid = peer(connection)
            if (
                self._connections_by_uid[uid] >= MOST_CONNECTIONS_OF_USER
                or self._connections_by_uid.total() >= MOST_CONNECTIONS
            ):
                _reject(connection)
                continue
            self._connections_by_uid[uid] += 1
            self._start(self._converse(connection, uid))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, connection: socket.socket, uid: int) -> None:
        """Read one request, have it carried out, and answer it."""
        try:
            with connection, suppress(OSError, asyncio.TimeoutError, ValueError):
                request_text = await asyncio.wait_for(_read(connection), TRANSFER_TIMEOUT_S)
                async with self._place(uid) as leave:
                    if _is_gone(connection):
                        return
                    request_node = evolve(self.node, aside=leave)
                    action = await asyncio.to_thread(carry_out, request_node, request_text, uid)
                await self._deliver(connection, action)
        finally:
            self._connections_by_uid[uid] -= 1
            if not self._connections_by_uid[uid]:
                del self._connections_by_uid[uid]

    async def _deliver(self, connection: socket.socket, action: Done) -> None:
        """Send the answer, with the descriptor of a new grant, or take the grant back."""
        handle = action.handle
        try:
            await asyncio.wait_for(_send(connection, action), TRANSFER_TIMEOUT_S)
        except (OSError, asyncio.TimeoutError):
            if handle:
                async with self._place(_ROOT_UID) as leave:
                    await asyncio.to_thread(abort, evolve(self.node, aside=leave), handle)
            elif action.descriptor is not None:
                os.close(action.descriptor)
            raise
        if action.descriptor is not None:
            os.close(action.descriptor)

    @asynccontextmanager
    async def _place(self, uid: int) -> AsyncIterator[Callable[[], object]]:
        """Wait for the turn to carry out a request; waiting users alternate.

        Yields a function that gives up the turn early, from any thread.
        """
        if self._is_busy:
            turn = asyncio.get_running_loop().create_future()
            self._waiting_by_uid.setdefault(uid, deque()).append(turn)
            await turn
        self._is_busy = True
        holds_turn = True

        def leave() -> None:
            nonlocal holds_turn
            if holds_turn:
                holds_turn = False
                self._is_busy = self._next()

        try:
            yield partial(asyncio.get_running_loop().call_soon_threadsafe, leave)
        finally:
            leave()

    def _next(self) -> bool:
        """Give the turn to the user who has waited longest; return whether any waits."""
        for uid, turns in [*self._waiting_by_uid.items()]:
            turn = turns.popleft()
            del self._waiting_by_uid[uid]
            if turns:
                self._waiting_by_uid[uid] = turns  # behind the others
            if not turn.cancelled():
                turn.set_result(None)
                return True
        return False


async def _read(connection: socket.socket) -> str:
    """Return the text of the one request that comes. Raises `ValueError` for what is none."""
    loop = asyncio.get_running_loop()
    contents, wanted_bytes = b"", LENGTH.size
    while len(contents) < wanted_bytes:
        chunk = await loop.sock_recv(connection, wanted_bytes - len(contents))
        if not chunk:
            raise ValueError("ended early")
        contents += chunk
        if wanted_bytes == LENGTH.size == len(contents):
            wanted_bytes += LENGTH.unpack(contents)[0]
            if wanted_bytes > MOST_REQUEST_BYTES:
                raise ValueError("too long")
    return contents[LENGTH.size :].decode()


async def _send(connection: socket.socket, result: Done) -> None:
    message = framed(result.answer)
    descriptors = [] if result.descriptor is None else [result.descriptor]
    unsent = message[socket.send_fds(connection, [message], descriptors) :]
    if unsent:  # a client that has it all may be gone
        await asyncio.get_running_loop().sock_sendall(connection, unsent)


def _is_gone(connection: socket.socket) -> bool:
    """Whether the client ended the connection while it waited."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False


def _reject(connection: socket.socket) -> None:
    """Refuse a connection at once, since there are too many."""
    too_many = Refused(
        "heterod is busy with too many connections: try again when others have ended"
    )
    with connection, suppress(OSError):
        connection.send(framed(refusal(too_many)))


def peer(connection: socket.socket) -> int:
    """Return the uid of the client."""
    credentials_size = _CREDENTIALS.size
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials_size)
    uid: int = _CREDENTIALS.unpack(credentials)[1]
    return uid


def listen(directory: Path) -> socket.socket:
    """Return the socket systemd passed, or else a new one in the ledger's directory."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=_FIRST_PASSED_DESCRIPTOR)
    listener = socket.socket(socket.AF_UNIX)
    draft_path, socket_path = directory / f".{SOCKET}", directory / SOCKET
    try:
        draft_path.unlink(missing_ok=True)
        listener.bind(str(draft_path))
        draft_path.chmod(0o666)  # anybody may connect: the kernel says who does
        listener.listen(MOST_CONNECTIONS)
        draft_path.rename(socket_path)  # visible only once it is served
    except OSError as error:
        listener.close()
        raise HeteroError(f"socket {socket_path}: {error.strerror or error}") from None
    return listener


def set_up(node: Node) -> Path:
    """Make the ledger's directory, and show all users its boards; return the directory.

    The boards are shown by a mount, so only in the mount namespace of this process.
    """
    if os.geteuid() != 0:
        raise HeteroError("heterod writes the ledger of all users: run it as root")
    directory = node.ledger.path
    show_boards(node.ledger)
    return directory


def serve(node: Node, *, ready: Callable[[Path], None], tell: Callable[[Finding], None]) -> None:
    """Be heterod until SIGTERM or SIGINT; `ready` is called when users are served.

    `tell` is called, from a thread, for each finding of the monitor, once.
    """
    directory = set_up(node)
    lock_descriptor = create(directory / "heterod.lock", mode=0o600)
    try:
        if not try_lock(lock_descriptor):
            raise Refused(f"heterod runs already for {directory}")
        with listen(directory) as listening_socket:
            # It removes ended grants, too. A thread of its own, since drivers take time.
            Thread(target=watch, args=(node, tell), daemon=True).start()
            ready(directory / SOCKET)
            asyncio.run(_until_stopped(Server(node).serve(listening_socket)))
    finally:
        os.close(lock_descriptor)


async def _until_stopped(serving: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(serving)
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task
