"""Starts vendors' processes for programs with threads, in which a fork may copy a held lock.

A server of its own, with one thread, forks on request: a hundredth of what a new interpreter takes.
multiprocessing has one, too. It joins its children at exit, so that a driver call that does not end
would keep the agent from ending.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from hetero.model import codec
from hetero.registry.entry_points import Entry
from hetero.registry.message import Failure
from hetero.registry.process import Forks
from hetero.registry.respondent import Plugin

#: The most bytes of a request: an entry point is three texts.
_MOST_REQUEST_BYTES = 64 << 10
#: Seconds a fork takes at most, with the start of the server.
_FORK_TIMEOUT_S = 30.0
#: Seconds to wait for the server in `reap`; later the server's end reaps the process. The garbage
#: collector may call it, in the middle of a request of the same thread.
_REAP_WAIT_S = 1.0


@define(eq=False)
class ForkServer:
    """The client's side of the server, which is started with the first process it is asked for.

    `environ` is the environment of the vendors.
    """

    environ: Mapping[str, str] = field(factory=lambda: dict(os.environ), repr=False)
    _connection: socket.socket | None = field(default=None, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def start(self, plugin: Plugin, request_fd: int, reply_fd: int) -> int:
        """Start a process that answers what it reads; return its PID. Raises `Failure`."""
        if not isinstance(plugin, Entry):
            raise Failure(f"{plugin.name} is an object of this program: no other can load it")
        pid = self._asked({"start": codec.to_plain(plugin), "path": sys.path}, request_fd, reply_fd)
        if not isinstance(pid, int):
            raise Failure("the server that starts vendors' processes ended")
        return pid

    def reap(self, pid: int) -> int | None:
        """Return the wait status of a process that ended; None: not known, or it runs."""
        wait_status = self._asked({"reap": pid}, patience_s=_REAP_WAIT_S)
        return wait_status if isinstance(wait_status, int) else None

    def _asked(
        self, request: Mapping[str, object], *descriptors: int, patience_s: float = -1
    ) -> Any:
        """Return the server's answer, None where it ended; then the next request starts one.

        Also None where another request takes longer than `patience_s` seconds.
        """
        if not self._lock.acquire(timeout=patience_s):
            return None
        try:
            if self._connection is None:
                if not descriptors:
                    return None  # its processes ended with it
                self._connect()
            assert self._connection is not None  # noqa: S101 - just made
            try:
                socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)
                answer = self._connection.recv(_MOST_REQUEST_BYTES)
            except OSError:
                answer = b""
            if not answer:
                self._connection = None
                return None
            return json.loads(answer)
        finally:
            self._lock.release()

    def _connect(self) -> None:
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with child_end:
            server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(child_end.fileno())],
                env=dict(self.environ),
                cwd="/",  # where nothing can be that Python would import in place of ours
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[child_end.fileno()],
                start_new_session=True,
            )
        parent_end.settimeout(_FORK_TIMEOUT_S)
        self._connection = parent_end
        weakref.finalize(self, _dismiss, parent_end, server)


def _dismiss(connection: socket.socket, server: subprocess.Popen[bytes]) -> None:
    """End a server, which has nothing to finish."""
    connection.close()
    server.kill()
    server.wait()


def serve(connection: socket.socket) -> None:
    """Start and reap processes until the client is gone."""
    starter = Forks()
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _MOST_REQUEST_BYTES, 2)
        if not message:
            return
        request = json.loads(message)
        pid_or_status: int | None  # of the process that was started, or of one that was reaped
        if "start" in request:
            sys.path[:] = request["path"]
            pid_or_status = starter.start(Entry(**request["start"]), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            pid_or_status = starter.reap(request["reap"])
        connection.send(json.dumps(pid_or_status).encode())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as connected:
        serve(connected)
