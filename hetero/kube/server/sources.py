"""Limits the connections and requests of each client: a slow or busy client harms itself only.

A client is an address. Its connections count from the moment that they are accepted, before any
handshake, until they are closed. The API server's own calls come from few addresses, and by the
hundred: so a client may have that many connections, and its requests wait for each other. An
attacker may have many addresses: all that were not admitted yet have so many together, and each a
few in any case.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import Any

from aiohttp import web
from attrs import define, field

log = logging.getLogger(__name__)

#: Seconds from a connection to the first byte of its request, the handshake included, from there to
#: the end of its head, and for the rest of it: fewer than the API server waits for an answer.
STEP_TIMEOUT_S = 4.0
#: How many that are too many are hung up on at once, before others are looked after.
_MOST_HANGUPS = 100
#: What one client may have at a time: connections, more of them once it was let in, and requests.
MOST_CONNECTIONS, MOST_LET_IN, MOST_REQUESTS = 256, 1024, 32
#: Connections of all clients that were not let in, each of which takes 0.3 MiB of memory, and what
#: one of them may have where there are so many.
MOST_IN_ALL, MOST_WHERE_MANY = 1024, 8
#: Seconds from one line of the log about connections that are refused to the next.
_LOG_PERIOD_S = 10.0
#: Addresses that are remembered for having been let in.
_MOST_REMEMBERED = 64
#: What the API server adds to what it passes on for others, which does not count as its own.
FORWARDED = "X-Forwarded-For"
#: Requests at a time that one of its addresses passes on for all others, and for one of them: the
#: rest of its connections are left for what it asks itself.
PASSED_ON, FOR_ONE = 128, 16

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def opened(
    app: web.Application, *, host: str, port: int, tls_context: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """Have a service answer meanwhile, each client within its bounds; no host: on all addresses."""
    sources = Sources()
    app.middlewares.insert(0, sources.first)
    app.middlewares.append(sources.middleware)
    # Nobody sends us compressed bodies, and a small one may take seconds to unpack.
    runner = web.AppRunner(app, access_log=None, auto_decompress=False)
    await runner.setup()
    assert runner.server is not None  # noqa: S101 - it is set up
    try:
        server = await asyncio.get_running_loop().create_server(
            partial(sources.protocol, runner.server),
            sock=sources.listen(host, port),
            ssl=tls_context,
            ssl_handshake_timeout=STEP_TIMEOUT_S if tls_context else None,
        )
        try:
            yield
        finally:
            server.close()
    finally:
        await runner.cleanup()


@define(eq=False)
class Sources:
    """The connections and requests of the clients of one service."""

    connections: Counter[str] = field(init=False, factory=Counter)
    _accepted: dict[tuple[Any, ...], float] = field(init=False, factory=dict)  # when, by address
    _requests: defaultdict[tuple[str, bool], asyncio.Semaphore] = field(
        init=False, factory=lambda: defaultdict(partial(asyncio.Semaphore, MOST_REQUESTS))
    )
    _let_in: dict[str, None] = field(init=False, factory=dict)
    _waiting_connections: dict[asyncio.BaseTransport, _Connection] = field(init=False, factory=dict)
    # What is passed on at this moment, by client, and by client and for whom.
    _passed_on: Counter[tuple[str, ...]] = field(init=False, factory=Counter)
    _logged_at_s: float = field(init=False, default=float("-inf"))

    def listen(self, host: str, port: int) -> socket.socket:
        """Return a listening socket that accepts no connection of a client with too many."""
        host = host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104 - as told
        family, socket_type, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        listener = _Listener(family, socket_type, proto)
        listener.sources = self
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
        return listener

    def protocol(self, make_protocol: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """Return the protocol that serves one connection."""
        return _Connection(self._waiting_connections, self.left, make_protocol())

    @property
    def first(self) -> Any:
        """What a request passes before anything else: its head is there by then."""

        @web.middleware
        async def heard(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.transport and self._waiting_connections.get(request.transport)
            if connection:
                connection.heard()
            if FORWARDED not in request.headers:
                return await handler(request)
            return await self._pass_on(request, handler)

        return heard

    async def _pass_on(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer what a client passes on, unless that is too much: then hang up at once.

        A client of the API server may have it hold a connection for each request.
        """
        client_host = request.remote or ""
        limit_by_key = {(client_host,): PASSED_ON, (client_host, passed_on_by(request)): FOR_ONE}
        if any(self._passed_on[client_key] >= limit for client_key, limit in limit_by_key.items()):
            if request.transport:
                request.transport.abort()
            raise web.HTTPServiceUnavailable(text="too much is passed on at this moment")
        self._passed_on.update(limit_by_key.keys())
        try:
            return await handler(request)
        finally:
            self._passed_on.subtract(limit_by_key.keys())
            self._passed_on = +self._passed_on

    @property
    def middleware(self) -> Any:
        """What a request passes before it is answered: all of it is there by then."""

        @web.middleware
        async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
            client_host, is_forwarded = request.remote or "", FORWARDED in request.headers
            async with self._requests[client_host, is_forwarded]:
                try:
                    await asyncio.wait_for(request.read(), STEP_TIMEOUT_S)
                except asyncio.TimeoutError:
                    raise web.HTTPRequestTimeout from None
                response = await handler(request)
            if request.method == "POST" and response.status < 400 and not is_forwarded:
                self._remember(client_host)
            return response

        return bounded

    def _remember(self, client_host: str) -> None:
        self._let_in.pop(client_host, None)
        self._let_in[client_host] = None
        if len(self._let_in) > _MOST_REMEMBERED:
            del self._let_in[next(iter(self._let_in))]

    def count_in(self, address: tuple[Any, ...]) -> bool:
        """Count a connection; return whether its client may have it."""
        client_host, now_s = address[0], monotonic()
        limit = self._most(client_host)
        self.connections[client_host] += 1
        self._accepted[address] = now_s
        if self.connections[client_host] <= limit:
            return True
        if now_s - self._logged_at_s >= _LOG_PERIOD_S:
            self._logged_at_s = now_s
            log.warning("%s has %d connections: more are refused", client_host, limit)
        return False

    def _most(self, client_host: str) -> int:
        """Return how many connections a client may have now."""
        if client_host in self._let_in:
            return MOST_LET_IN
        known_connections = sum(self.connections[known_host] for known_host in self._let_in)
        return (
            MOST_CONNECTIONS
            if self.connections.total() - known_connections < MOST_IN_ALL
            else MOST_WHERE_MANY
        )

    def leave(self, address: tuple[Any, ...]) -> None:
        """Count the end of a connection."""
        client_host = address[0]
        self._accepted.pop(address, None)
        self.connections[client_host] -= 1
        if not self.connections[client_host]:
            del self.connections[client_host]
            for is_forwarded in (False, True):
                self._requests.pop((client_host, is_forwarded), None)

    def left(self, address: tuple[Any, ...]) -> float:
        """Return how many seconds a connection has until the first byte of its request."""
        return STEP_TIMEOUT_S - (monotonic() - self._accepted.get(address, monotonic()))


def passed_on_by(request: web.Request) -> str:
    """Return the user for whom the API server passes this on, else the client."""
    return request.headers.get(FORWARDED, request.remote or "").rpartition(",")[2].strip()


class _Listener(socket.socket):
    """Accepts connections and counts them, and closes those that are too many."""

    sources: Sources

    def accept(self) -> tuple[socket.socket, Any]:
        for _ in range(_MOST_HANGUPS):
            descriptor, address = self._accept()  # type: ignore[attr-defined] # as socket.socket's
            accepted = _Accepted(self.family, self.type, self.proto, descriptor)
            accepted.leave = partial(self.sources.leave, address)
            if self.sources.count_in(address):
                return accepted, address
            accepted.close()
        raise BlockingIOError


class _Accepted(socket.socket):
    """A connection that reports when it is closed."""

    leave: Callable[[], None] | None = None

    def close(self) -> None:
        super().close()
        leave, self.leave = self.leave, None
        if leave is not None:
            leave()


@define(eq=False)
class _Connection(asyncio.Protocol):
    """Hands a connection to its protocol, and closes one whose request does not arrive in time."""

    unheard: dict[asyncio.BaseTransport, _Connection]  # those whose first request is not there yet
    left: Callable[[tuple[Any, ...]], float]
    inner: asyncio.Protocol
    _transport: asyncio.Transport | None = field(init=False, default=None)
    _ends: asyncio.TimerHandle | None = field(init=False, default=None)
    _has_begun: bool = field(init=False, default=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a TCP server
        self._transport = transport
        self.unheard[transport] = self
        self._end_in(self.left(transport.get_extra_info("peername") or ()))
        self.inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard()
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._end_in(STEP_TIMEOUT_S)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def _end_in(self, timeout_s: float) -> None:
        assert self._transport is not None  # noqa: S101 - it is made
        if self._ends is not None:
            self._ends.cancel()
        loop = asyncio.get_running_loop()
        self._ends = loop.call_later(max(0.0, timeout_s), self._transport.abort)

    def heard(self) -> None:
        """Have it go on: the head of its first request is there, or it is over."""
        if self._ends is not None:
            self._ends.cancel()
        if self._transport is not None:
            self.unheard.pop(self._transport, None)
