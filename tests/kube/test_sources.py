"""Clients that are slow, or ask much: each harms itself only."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
from aiohttp import web

from hetero.kube.server import sources
from hetero.kube.server.sources import Sources
from tests.kube.control_plane import Authority


def served(
    sources: Sources,
    act: Callable[[int], Awaitable[None]],
    *,
    most: int = 100,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve what echoes a body, by these limits, while somebody acts."""

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def play() -> None:
        between = [sources.first, sources.middleware]
        app = web.Application(middlewares=between, client_max_size=most)
        app.router.add_post("/", echo)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        assert runner.server is not None
        make = partial(sources.protocol, runner.server)
        listener = sources.listen("127.0.0.1", 0)
        server = await asyncio.get_running_loop().create_server(
            make, sock=listener, ssl=tls, ssl_handshake_timeout=1.0 if tls else None
        )
        await act(server.sockets[0].getsockname()[1])
        server.close()
        await runner.cleanup()

    asyncio.run(play())


async def answered(port: int, text: bytes = b"", *, host: str = "127.0.0.1") -> bytes:
    """Return the first line of what a client is answered who says so much; nothing: hung up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    try:
        writer.write(text)
        return await asyncio.wait_for(reader.readline(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def post(length: int, body: bytes = b"", more: str = "") -> bytes:
    head = f"POST / HTTP/1.1\r\nHost: a\r\n{more}Content-Length: {length}\r\n\r\n"
    return head.encode() + body


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have little time, and few connections and requests."""
    for name, value in {
        "STEP_TIMEOUT_S": 0.3,
        "MOST_CONNECTIONS": 3,
        "MOST_LET_IN": 5,
        "MOST_REQUESTS": 1,
    }.items():
        monkeypatch.setattr(sources, name, value)


@pytest.mark.usefixtures("soon")
def test_who_says_nothing_or_half_is_hung_up_on() -> None:
    async def act(port: int) -> None:
        assert b"" == await answered(port)
        assert b"" == await answered(port, b"POST / HTTP/1.1\r\nHost: a\r\n")
        assert b"408" in await answered(port, post(10, b"half"))
        assert b"413" in await answered(port, post(101, b"x" * 101))
        assert b"200" in await answered(port, post(4, b"body"))

    served(Sources(), act)


@pytest.mark.usefixtures("soon")
def test_a_client_with_too_many_connections_harms_itself_alone() -> None:
    async def act(port: int) -> None:
        held = [asyncio.ensure_future(answered(port, post(10, b"half"))) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert b"" == await answered(port, post(4, b"body"))
        assert b"200" in await answered(port, post(4, b"body"), host="127.0.0.2")
        await asyncio.gather(*held)
        assert b"200" in await answered(port, post(4, b"body"))

    tracker = Sources()
    served(tracker, act)
    assert {} == tracker.connections


@pytest.mark.usefixtures("soon")
def test_who_shakes_no_hands_has_no_more_connections_and_no_more_time(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority(tmp_path).issue("server"))

    async def shakes(port: int, host: str) -> bool:
        client, from_there = ssl._create_unverified_context(), (host, 0)
        try:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client, local_addr=from_there
            )
        except ConnectionError:
            return False
        writer.close()
        return True

    async def act(port: int) -> None:
        held = [asyncio.ensure_future(answered(port)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert not await shakes(port, "127.0.0.1")
        assert await shakes(port, "127.0.0.2")
        began = monotonic()
        await asyncio.gather(*held)
        assert monotonic() - began < 2
        assert await shakes(port, "127.0.0.1")

    tracker = Sources()
    served(tracker, act, tls=context)
    assert {} == tracker.connections


@pytest.mark.usefixtures("soon")
def test_what_the_api_server_passes_on_for_others_does_not_hold_up_its_own() -> None:
    passed_on = "X-Forwarded-For: 10.1.2.3\r\n"

    async def act(port: int) -> None:
        held = [
            asyncio.ensure_future(answered(port, post(9, b"half", passed_on))) for _ in range(2)
        ]
        await asyncio.sleep(0.1)
        began = monotonic()
        assert b"200" in await answered(port, post(4, b"body"))
        assert monotonic() - began < 0.15
        await asyncio.gather(*held)

    served(Sources(), act)


@pytest.mark.usefixtures("soon")
def test_who_has_many_addresses_has_few_connections_from_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sources, "MOST_IN_ALL", 6)
    monkeypatch.setattr(sources, "MOST_WHERE_MANY", 2)
    tracker = Sources()

    def so_many(host: str) -> int:
        return [tracker.count_in((host, port)) for port in range(3)].count(True)

    async def act(port: int) -> None:
        assert b"200" in await answered(port, post(4, b"body"))
        assert [3, 3, 2, 2] == [so_many(f"127.0.0.{number}") for number in range(2, 6)]
        assert 3 == so_many("127.0.0.1")  # which was let in
        tracker.connections.clear()

    served(tracker, act)
    assert 1 == caplog.text.count("more are refused")  # a line for each would fill a log


@pytest.mark.usefixtures("soon")
def test_who_was_let_in_may_have_more_connections() -> None:
    tracker = Sources()

    def so_many(host: str) -> int:
        return [tracker.count_in((host, port)) for port in range(9)].count(True)

    async def act(port: int) -> None:
        assert b"200" in await answered(port, post(4, b"body"))
        for _ in range(500):  # until the server has seen the end of it
            if tracker.connections:
                await asyncio.sleep(0.01)
        assert (5, 3) == (so_many("127.0.0.1"), so_many("127.0.0.2"))
        tracker.connections.clear()

    served(tracker, act)


@pytest.mark.usefixtures("soon")
def test_what_is_passed_on_takes_few_of_the_connections_of_who_passes_it_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who has an agent's token has the API server hold one for each of its requests."""
    for name, value in {
        "MOST_LET_IN": 100,
        "PASSED_ON": 5,
        "FOR_ONE": 2,
        "STEP_TIMEOUT_S": 2.0,
    }.items():
        monkeypatch.setattr(sources, name, value)
    monkeypatch.setattr(sources, "MOST_REQUESTS", 9)
    tracker = Sources()

    async def act(port: int) -> None:
        def slow(source: int) -> Awaitable[bytes]:
            passed_on = f"X-Forwarded-For: 10.9.9.9, 10.0.0.{source}\r\n"
            return answered(port, post(9, b"half", passed_on))

        assert b"200" in await answered(port, post(4, b"body"))
        answers = await asyncio.gather(*(slow(source // 4) for source in range(24)))
        waited = [sum(b"408" in one for one in answers[at : at + 4]) for at in range(0, 24, 4)]
        assert (5, 2, 19) == (sum(waited), max(waited), answers.count(b""))
        assert b"200" in await answered(port, post(4, b"body", "X-Forwarded-For: 10.0.0.1\r\n"))

    served(tracker, act)
    assert not tracker._passed_on
