"""Asks heterod for what a plain user cannot write: the machine's ledger."""

from __future__ import annotations

import os
import struct
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from attrs import evolve, field

from hetero.model import Ask, Edits, Policy, Request, codec
from hetero.model.errors import BadInput, HeteroError, NoRoom, NotFound, Refused
from hetero.model.frozen import frozen
from hetero.node.ledger.ledger import ADMISSION_WAIT_S, Grant
from hetero.node.ledger.queue import Ticket, WaitingRequest
from hetero.node.quota import Held

# Every command imports this module, and few of them talk to heterod: those import socket.
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

#: The socket's name in the ledger's directory.
SOCKET = "heterod.sock"
#: A message is this length and then as many bytes of JSON.
LENGTH = struct.Struct("!I")
#: The most bytes of a request and of an answer. A grant's entry holds what its request said.
MOST_REQUEST_BYTES, MOST_REPLY_BYTES = 16 << 10, 4 << 20
#: How much of a command is recorded for people to read.
_LONGEST_COMMAND = 2048
#: Seconds that a client waits for a heterod that is being started again.
_RESTART_WAIT_S = 5.0
#: Seconds after which a client warns that it waits.
_WARN_AFTER_S = 5.0
#: Seconds that an answer may take: others may be at the ledger for as long as it is patient.
_ANSWER_TIMEOUT_S = 2 * ADMISSION_WAIT_S


class NoAnswer(HeteroError):
    """heterod is not running, or does not answer."""


_ERRORS: dict[str, type[HeteroError]] = {
    kind.__name__: kind for kind in (BadInput, HeteroError, NoRoom, NotFound, Refused)
}


@frozen(kw_only=True)
class DaemonRequest:
    """A request to heterod.

    `admit` (a request; `anyway` as in `Outlook`), `sweep`, or `resize` (a grant, by `ask`,
    `anyway` and, if its policy changes, `policy`). `detach` (a grant) has services end what it has
    on its devices. `quota` returns what the user holds of its quotas. `queue` (a request) has it
    wait: the answer has its place, which an `admit` names by `ticket`. The user is not in it: the
    kernel says who connects.
    """

    #: Its name in errors.
    TITLE: ClassVar[str] = "Question"
    do: str
    request: Request | None = None
    command: tuple[str, ...] = ()
    label: str | None = None
    grant: str | None = None
    ask: Ask | None = None
    policy: Policy | None = None
    anyway: bool = False
    ticket: int | None = None


@frozen(kw_only=True)
class DaemonReply:
    """What heterod did: the grant as it is now, or `error` (a kind of `HeteroError`) and why.

    An admission also has its edits, a place in the queue is `waiting`. The descriptor that keeps
    either standing comes with the message.
    """

    #: Its name in errors.
    TITLE: ClassVar[str] = "Answer"
    error: str | None = None
    says: str = ""
    grant: Grant | None = None
    edits: Edits = field(factory=Edits)
    sliced: bool = False
    faults: tuple[str, ...] = ()
    quotas: tuple[Held, ...] = ()
    waiting: WaitingRequest | None = None


def framed(message: DaemonRequest | DaemonReply) -> bytes:
    """Return a message as it goes over the socket."""
    payload = codec.dumps(message).encode()
    return LENGTH.pack(len(payload)) + payload


@frozen
class DaemonClient:
    """The heterod that serves the ledger in whose directory its socket, `path`, lies."""

    path: Path
    away_s: float = field(default=_RESTART_WAIT_S, kw_only=True)
    slow_s: float = field(default=_WARN_AFTER_S, kw_only=True)
    patience_s: float = field(default=_ANSWER_TIMEOUT_S, kw_only=True)

    @property
    def hurried(self) -> DaemonClient:
        """The same with a short wait, for questions that can do without an answer."""
        return evolve(self, away_s=0.0, patience_s=self.slow_s)

    def answers(self) -> bool:
        """Return whether a process listens on the socket."""
        import socket

        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_RESTART_WAIT_S)
            connection.connect(str(self.path))
            return True
        return False

    def admit(
        self,
        request: Request,
        *,
        command: Sequence[str],
        label: str | None,
        anyway: bool = False,
        ticket: int | None = None,
    ) -> tuple[DaemonReply, int]:
        """Have a request admitted; return the reply and the descriptor that keeps the grant."""
        message = DaemonRequest(
            do="admit",
            request=request,
            command=_shown(command),
            label=label,
            anyway=anyway,
            ticket=ticket,
        )
        reply, descriptor = self._ask(message)
        if descriptor is None or reply.grant is None:
            raise HeteroError(f"heterod at {self.path}: an admission without a grant")
        return reply, descriptor

    def join(self, request: Request, *, command: Sequence[str], label: str | None) -> Ticket:
        """Have a request wait; return its place."""
        message = DaemonRequest(do="queue", request=request, command=_shown(command), label=label)
        reply, descriptor = self._ask(message)
        if descriptor is None or reply.waiting is None:
            raise HeteroError(f"heterod at {self.path}: a place in the queue without a number")
        return Ticket(reply.waiting, descriptor)

    def resize(
        self, grant_id: str, ask: Ask, *, policy: Policy | None = None, anyway: bool = False
    ) -> Grant:
        """Have a grant of this user changed; return it as it is then."""
        message = DaemonRequest(do="resize", grant=grant_id, ask=ask, policy=policy, anyway=anyway)
        grant = self._ask(message)[0].grant
        if grant is None:
            raise HeteroError(f"heterod at {self.path}: a change without a grant")
        return grant

    def sweep(self) -> tuple[str, ...]:
        """Have ended grants removed with their slices; return a sentence for each failure."""
        return self._ask(DaemonRequest(do="sweep"))[0].faults

    def detach(self, grant_id: str) -> None:
        """Have services end what a grant of this user has on its devices."""
        self._ask(DaemonRequest(do="detach", grant=grant_id))

    def quotas(self) -> tuple[Held, ...]:
        """Return what this user holds of what it may, by the settings that heterod has."""
        return self._ask(DaemonRequest(do="quota"))[0].quotas

    def _ask(self, daemon_request: DaemonRequest) -> tuple[DaemonReply, int | None]:
        """Return the reply and its descriptor. Raises the error that heterod reports."""
        message = framed(daemon_request)
        if len(message) > MOST_REQUEST_BYTES:
            raise BadInput(
                f"the request has {len(message)} bytes; heterod reads {MOST_REQUEST_BYTES}"
            )
        descriptors: list[int] = []
        try:
            with self._connected() as connection:
                with suppress(ConnectionError):  # it may have answered before it read all
                    connection.sendall(message)
                self._wait(connection)
                reply_text = _received(connection, descriptors)
            reply = codec.loads(reply_text, DaemonReply, source=f"heterod at {self.path}")
            if reply.error is not None:
                raise _ERRORS.get(reply.error, HeteroError)(reply.says)
            return reply, descriptors.pop() if descriptors else None
        except OSError as error:
            reason = error.strerror or f"not within {self.patience_s:g} s"
            raise NoAnswer(
                f"heterod does not answer at {self.path} ({reason}), and nothing was changed: "
                "restart it (systemctl restart heterod), or ask who runs this machine"
            ) from None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _wait(self, connection: socket.socket) -> None:
        """Return when there is a reply; warn if that takes long. Raises `TimeoutError`."""
        import select

        poller = select.poll()
        poller.register(connection, select.POLLIN)
        if poller.poll(1000 * self.slow_s):
            return
        left_s = self.patience_s - self.slow_s
        if left_s > 0:
            warning = f"heterod at {self.path} takes long: {left_s:g} s more at most"
            warnings.warn(warning, stacklevel=2)
        if left_s <= 0 or not poller.poll(1000 * left_s):
            raise TimeoutError

    def _connected(self) -> socket.socket:
        """Return a connection; waits for a heterod that is being restarted."""
        import socket

        deadline_s = time.monotonic() + self.away_s
        timeval = struct.pack("@ll", int(self.patience_s), int(self.patience_s % 1 * 1e6))
        while True:
            connection = socket.socket(socket.AF_UNIX)
            # Not `settimeout`: then connect would fail while others wait to connect.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            try:
                connection.connect(str(self.path))
                connection.settimeout(self.patience_s)
                return connection
            except OSError as error:
                connection.close()
                is_starting = isinstance(error, ConnectionRefusedError | FileNotFoundError)
                if not is_starting or time.monotonic() > deadline_s:
                    raise NoAnswer(
                        f"heterod does not answer at {self.path} ({error.strerror}): "
                        "start it (systemctl start heterod), or ask who runs this machine"
                    ) from None
            time.sleep(0.05)


def _received(connection: socket.socket, descriptors: list[int]) -> str:
    """Return the message that comes; its descriptors are added to the list."""
    import socket

    contents, wanted_bytes = b"", LENGTH.size
    while len(contents) < wanted_bytes:
        chunk, received, _, _ = socket.recv_fds(connection, 1 << 16, 1, socket.MSG_CMSG_CLOEXEC)
        descriptors += received
        if not chunk:
            raise HeteroError("heterod ended the connection without an answer: try again")
        contents += chunk
        if wanted_bytes == LENGTH.size and len(contents) >= wanted_bytes:
            wanted_bytes += LENGTH.unpack_from(contents)[0]
            if wanted_bytes > MOST_REPLY_BYTES:
                raise HeteroError(f"heterod answered with {wanted_bytes} bytes: is it heterod?")
    return contents[LENGTH.size : wanted_bytes].decode(errors="replace")


def _shown(command: Sequence[str]) -> tuple[str, ...]:
    """Return the part of a command that is recorded."""
    shown_words: list[str] = []
    left_characters = _LONGEST_COMMAND
    for word in command:
        if left_characters < len(word):
            shown_words.append(f"{word[:left_characters]}…")
            break
        shown_words.append(word)
        left_characters -= len(word) + 1
    return tuple(shown_words)


def client_of(ledger_dir: Path) -> DaemonClient | None:
    """Return the heterod of a ledger's directory, if it has one; it need not run just now."""
    path = ledger_dir / SOCKET
    return DaemonClient(path) if path.is_socket() else None
