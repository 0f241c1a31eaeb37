"""The services over HTTPS, with certificates made as a cluster's are."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from hetero.kube.service import https
from hetero.kube.service.certificates import Names, renew
from hetero.kube.service.https import Certificates
from hetero.model.errors import BadInput
from tests.kube.control_plane import Authority, free_port
from tests.kube.fake_api import FakeApi


def caller(authority: Authority, pair: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


@asynccontextmanager
async def serving(certificates: Certificates) -> AsyncIterator[str]:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app, port = web.Application(), free_port()
    app.router.add_get("/", hello)
    task = asyncio.ensure_future(
        https.serve(app, host="127.0.0.1", port=port, certificates=certificates)
    )
    for _ in range(100):
        try:
            _, allocation_writer = await asyncio.open_connection("127.0.0.1", port)
            allocation_writer.close()
            break
        except OSError:
            await asyncio.sleep(0.02)
    try:
        yield f"https://127.0.0.1:{port}/"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask(url: str, tls: ssl.SSLContext) -> str:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=tls) as answer:
        return await answer.text()


def test_only_callers_with_a_certificate_of_ours_get_in(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "other-ca")
    cert, key = ours.issue("extender")

    async def play() -> None:
        async with serving(Certificates(cert=cert, key=key, client_ca=ours.path)) as url:
            assert "hello" == await ask(url, caller(ours, ours.issue("kube-scheduler")))
            for stranger in (None, theirs.issue("kube-scheduler")):
                with pytest.raises((aiohttp.ClientError, OSError)):
                    await ask(url, caller(ours, stranger))

    asyncio.run(play())


def test_a_renewed_certificate_is_served_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "PERIOD", 0.05)
    authority = Authority(tmp_path)
    cert, key = authority.issue("extender")

    async def serial(url: str) -> str:
        port = int(url.split(":")[-1].strip("/"))
        tls = caller(authority, None)
        _, allocation_writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        found: str = allocation_writer.get_extra_info("peercert")["serialNumber"]
        allocation_writer.close()
        return found

    async def play() -> None:
        async with serving(Certificates(cert=cert, key=key)) as url:
            before = await serial(url)
            authority.issue("extender")  # onto the same paths
            for _ in range(100):
                await asyncio.sleep(0.02)
                if await serial(url) != before:
                    return
            raise AssertionError("the old certificate is still served")

    asyncio.run(play())


def test_an_expired_certificate_is_refused_in_a_sentence(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue("extender", lasts=timedelta(days=-1))

    with pytest.raises(BadInput, match=r"extender\.crt: expired at .* UTC: renew it"):
        Certificates(cert=cert, key=key).context()


def test_certificates_are_made_once_and_prove_the_services_to_each_other(tmp_path: Path) -> None:
    api = FakeApi()
    hook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hetero"
    api.put_now(hook, {"metadata": {"name": "hetero"}, "webhooks": [{"clientConfig": {}}]})
    names = Names(namespace="ns", name="hetero", webhook="hetero")

    def text(secret: str, key: str) -> bytes:
        data = api.objects[f"/api/v1/namespaces/ns/secrets/hetero-{secret}"]["data"]
        return base64.b64decode(data[key])

    def context(secret: str, purpose: int) -> ssl.SSLContext:
        made = ssl.SSLContext(purpose)
        for key in ("tls.crt", "tls.key", "ca.crt"):
            (tmp_path / key).write_bytes(text(secret, key))
        made.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        made.load_verify_locations(tmp_path / "ca.crt")
        made.verify_mode = ssl.CERT_REQUIRED
        return made

    async def play() -> None:
        await renew(api, names)  # type: ignore[arg-type]
        first = {path: made["metadata"]["resourceVersion"] for path, made in api.objects.items()}
        await renew(api, names)  # type: ignore[arg-type]
        assert first == {p: made["metadata"]["resourceVersion"] for p, made in api.objects.items()}

    asyncio.run(play())
    server = context("scheduler-tls", ssl.PROTOCOL_TLS_SERVER)
    client = context("caller-tls", ssl.PROTOCOL_TLS_CLIENT)
    sides = [ssl.MemoryBIO() for _ in range(4)]
    ends = [
        server.wrap_bio(sides[0], sides[1], server_side=True),
        client.wrap_bio(sides[2], sides[3], server_hostname="localhost"),
    ]
    for _ in range(4):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
            sides[2].write(sides[1].read())
            sides[0].write(sides[3].read())

    assert "TLSv1.3" == ends[1].version()
    assert 64 == len(text("key", "key"))
    bundle = api.objects[hook]["webhooks"][0]["clientConfig"]["caBundle"]
    assert text("ca", "tls.crt") == base64.b64decode(bundle)
