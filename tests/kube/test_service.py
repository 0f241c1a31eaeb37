"""The services over HTTPS, with certificates made as a cluster's are."""

import asyncio
import base64
import gzip
import json
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.request import urlopen

import aiohttp
import pytest
from aiohttp import web
from attrs import evolve
from cryptography import x509
from prometheus_client import CollectorRegistry

from hetero.kube.server import key_pair
from hetero.kube.server.key_pair import Pair
from hetero.kube.service import https, keys
from hetero.kube.service.certificates import Names, renew
from hetero.kube.service.https import Certificates, proved
from hetero.kube.words.signing import PublicKeys, SigningKey
from hetero.model.errors import BadInput
from tests.kube.control_plane import Authority, free_port, wait_for
from tests.kube.fake_api import FakeApi


def caller(authority: Authority, pair: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


@asynccontextmanager
async def serving(
    certificates: Certificates, add: Callable[[web.Application], None] = lambda _: None
) -> AsyncIterator[str]:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app, port = web.Application(), free_port()
    app.router.add_get("/", hello)
    add(app)
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


async def test_only_callers_with_a_certificate_of_ours_get_in(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    authority, other_authority = (
        Authority(tmp_path / "ours"),
        Authority(tmp_path / "theirs", "other-ca"),
    )
    cert, key = authority.issue("extender")
    certificates = Certificates(cert=cert, key=key, client_ca=authority.path)
    # Else a client may have us shake hands again with each message.
    assert ssl.OP_NO_RENEGOTIATION & certificates.context().options

    async with serving(certificates) as url:
        assert "hello" == await ask(url, caller(authority, authority.issue("kube-scheduler")))
        for stranger in (None, other_authority.issue("kube-scheduler")):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await ask(url, caller(authority, stranger))


async def test_a_body_that_is_said_to_be_compressed_is_not_unpacked(tmp_path: Path) -> None:
    """Half a megabyte may hold six hundred, and keep the service from everybody for seconds."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("webhook")

    async def length(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    def add(app: web.Application) -> None:
        app.router.add_post("/length", length)

    body, headers = gzip.compress(b"x" * 100_000), {"Content-Encoding": "gzip"}
    certificates = Certificates(cert=cert, key=key)
    async with (
        serving(certificates, add) as url,
        aiohttp.ClientSession() as session,
        session.post(
            f"{url}length", data=body, headers=headers, ssl=caller(authority, None)
        ) as answer,
    ):
        assert str(len(body)) == await answer.text()


async def test_where_certificates_are_optional_who_must_be_known_has_one_of_ours(
    tmp_path: Path,
) -> None:
    (tmp_path / "theirs").mkdir()
    authority, other_authority = Authority(tmp_path), Authority(tmp_path / "theirs", "other-ca")
    cert, key = authority.issue("webhook")
    server, kubelet = authority.issue("apiserver"), authority.issue("kubelet")
    optional = Certificates(cert=cert, key=key, client_ca=authority.path, optional=True)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="admitted")

    def add(app: web.Application) -> None:
        app.router.add_get("/any", proved(answer, ()))
        app.router.add_get("/named", proved(answer, ("apiserver",)))

    async with serving(optional, add) as url:
        for pair, path, expected in (
            (None, "", "hello"),
            (None, "any", "this is for the API server: no certificate of its own"),
            (kubelet, "any", "admitted"),
            (kubelet, "named", "this is for the API server: no certificate of its own"),
            (server, "named", "admitted"),
        ):
            assert expected == await ask(url + path, caller(authority, pair))
        with pytest.raises((aiohttp.ClientError, OSError)):
            await ask(url + "any", caller(authority, other_authority.issue("apiserver")))


async def test_a_renewed_certificate_is_served_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(https, "POLL_PERIOD_S", 0.05)
    authority = Authority(tmp_path)
    cert, key = authority.issue("extender")

    async def serial(url: str) -> str:
        port = int(url.split(":")[-1].strip("/"))
        tls = caller(authority, None)
        _, allocation_writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        number: str = allocation_writer.get_extra_info("peercert")["serialNumber"]
        allocation_writer.close()
        return number

    async with serving(Certificates(cert=cert, key=key)) as url:
        before = await serial(url)
        authority.issue("extender")  # onto the same paths
        for _ in range(100):
            await asyncio.sleep(0.02)
            if await serial(url) != before:
                break
        else:
            raise AssertionError("the old certificate is still served")


async def test_a_service_whose_certificate_ended_lives_and_is_not_ready(tmp_path: Path) -> None:
    """It is not to be started anew, and callers are to go to another."""
    authority = Authority(tmp_path)
    cert, key = authority.issue("webhook")
    anybody = ssl._create_unverified_context()

    async def probed(url: str) -> list[int]:
        async with aiohttp.ClientSession() as session:
            statuses = []
            for path in ("livez", "readyz"):
                async with session.get(url + path, ssl=anybody) as answer:
                    statuses.append(answer.status)
            return statuses

    async with serving(Certificates(cert=cert, key=key)) as url:
        assert [200, 200] == await probed(url)
        authority.issue("webhook", lasts=timedelta(days=-1))
        assert [200, 503] == await probed(url)


def test_an_expired_certificate_is_refused_in_a_sentence(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path).issue("extender", lasts=timedelta(days=-1))

    with pytest.raises(BadInput, match=r"extender\.crt: expired at .* UTC: renew it"):
        Certificates(cert=cert, key=key).context()


SECRETS = "/api/v1/namespaces/ns/secrets/hetero"
DEPLOYMENT = "/apis/apps/v1/namespaces/ns/deployments/hetero-scheduler"


def release() -> FakeApi:
    """Return the API of a cluster in which the release has just been installed."""
    api = FakeApi()
    hook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hetero"
    api.put_now(hook, {"metadata": {"name": "hetero"}, "webhooks": [{"clientConfig": {}}]})
    api.put_now(DEPLOYMENT, {"metadata": {"name": "hetero-scheduler"}, "spec": {}})
    return api


def renewed(api: FakeApi) -> FakeApi:
    names = Names(namespace="ns", name="hetero", webhook="hetero")
    asyncio.run(renew(api, names))  # type: ignore[arg-type]
    return api


def texts(api: FakeApi, part: str) -> dict[str, bytes]:
    data = api.objects[f"{SECRETS}-{part}"]["data"]
    return {name: base64.b64decode(text) for name, text in data.items()}


def certificate(api: FakeApi, part: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(texts(api, part)["tls.crt"])


@pytest.mark.parametrize("part", ["ca", "scheduler-tls", "webhook-tls", "caller-tls"])
def test_a_certificate_is_good_where_a_clock_is_an_hour_slow(part: str) -> None:
    begins = certificate(renewed(release()), part).not_valid_before_utc

    assert begins < datetime.now(timezone.utc) - timedelta(hours=1)


@pytest.mark.parametrize(("days", "stays"), [(46, True), (44, False)])
def test_a_certificate_is_renewed_two_weeks_before_anybody_is_told(days: int, stays: bool) -> None:
    api = renewed(release())
    now, authority = datetime.now(timezone.utc), Pair.read(texts(api, "ca"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_pair, "_CERTIFICATE_LIFE", timedelta(days=days))
        old = key_pair.issue("hetero-webhook", issuer=authority, hosts=["hetero-webhook.ns.svc"])
    data = {name: base64.b64encode(text).decode() for name, text in old.texts().items()}
    api.objects[f"{SECRETS}-webhook-tls"]["data"] |= data
    api.calls.clear()

    left = certificate(renewed(api), "webhook-tls").not_valid_after_utc - now

    assert stays == (left < timedelta(days=60))
    assert [f"PATCH {SECRETS}-webhook-tls"] * (not stays) == [
        c for c in api.calls if "GET" not in c
    ]


def test_kube_scheduler_starts_anew_when_the_certificate_it_calls_with_is_renewed() -> None:
    api = renewed(release())
    assert {} == api.objects[DEPLOYMENT]["spec"]
    expired = key_pair.issue("other-ca", issuer=None)  # it is not our authority's, so it is renewed
    data = {name: base64.b64encode(text).decode() for name, text in expired.texts().items()}
    api.objects[f"{SECRETS}-caller-tls"]["data"] |= data

    serial = str(certificate(renewed(api), "caller-tls").serial_number)

    notes = api.objects[DEPLOYMENT]["spec"]["template"]["metadata"]["annotations"]
    assert {"hetero.io/caller": serial} == notes


def test_a_new_authority_signs_everybody_anew() -> None:
    api = renewed(release())
    before = {part: certificate(api, part) for part in ("webhook-tls", "caller-tls")}
    api.delete(f"{SECRETS}-ca")

    renewed(api)

    assert [] == [part for part, old in before.items() if certificate(api, part) == old]
    for part in before:
        certificate(api, part).verify_directly_issued_by(certificate(api, "ca"))


@pytest.mark.parametrize(("days", "times"), [(31, 0), (29, 1), (-1, 1)])
async def test_people_are_told_once_a_day_of_a_certificate_that_ends_within_thirty_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, times: int
) -> None:
    monkeypatch.setattr(https, "POLL_PERIOD_S", 0.01)
    cert, key = Authority(tmp_path).issue("webhook", lasts=timedelta(days=days))
    sentences = []

    async def tell(sentence: str) -> None:
        sentences.append(sentence)

    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(Certificates(cert=cert, key=key).warn(tell), 0.2)

    own = [one for one in sentences if "ca.crt" not in one]  # whose authority lasts a day
    assert (times, 1) == (len(own), len(sentences) - len(own))
    assert all("webhook.crt: ends at" in one and "UTC: renew it" in one for one in own)


def test_metrics_say_when_certificates_end(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("webhook", lasts=timedelta(days=29))
    caller, _ = authority.issue("caller", lasts=timedelta(days=9))
    certificates = Certificates(cert=cert, key=key, client_ca=authority.path, caller=caller)
    registry = CollectorRegistry()
    registry.register(https.ExpiryMetric(certificates=certificates))

    def ends(certificate: str) -> float | None:
        name = "hetero_certificate_expiration_timestamp_seconds"
        return registry.get_sample_value(name, {"certificate": certificate})

    now = datetime.now(timezone.utc)
    assert ends("server") == pytest.approx((now + timedelta(days=29)).timestamp(), abs=60)
    assert ends("caller") == pytest.approx((now + timedelta(days=9)).timestamp(), abs=60)
    of_authority = x509.load_pem_x509_certificate(authority.path.read_bytes()).not_valid_after_utc
    assert of_authority.timestamp() == ends("authority")
    assert ends("clients") is None  # they have the same
    elsewhere = authority.path.rename(tmp_path / "clients.crt")
    elsewhere_certificates = evolve(certificates, client_ca=elsewhere)
    registry = CollectorRegistry()
    registry.register(https.ExpiryMetric(certificates=elsewhere_certificates))
    assert (None, of_authority.timestamp()) == (ends("authority"), ends("clients"))


async def test_certificates_are_made_once_and_prove_the_services_to_each_other(
    tmp_path: Path,
) -> None:
    api = release()
    hook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hetero"
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

    await renew(api, names)  # type: ignore[arg-type]
    first = {path: made["metadata"]["resourceVersion"] for path, made in api.objects.items()}
    await renew(api, names)  # type: ignore[arg-type]
    assert first == {p: made["metadata"]["resourceVersion"] for p, made in api.objects.items()}
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
    bundle = api.objects[hook]["webhooks"][0]["clientConfig"]["caBundle"]
    assert text("ca", "tls.crt") == base64.b64decode(bundle)


# --- the signing key ------------------------------------------------------------------------------

KEY, KEYS = f"{SECRETS}-key", "/api/v1/namespaces/ns/configmaps/hetero-keys"


def held(api: FakeApi) -> tuple[SigningKey, PublicKeys]:
    """Return the key that the scheduler signs with, and those that agents know."""
    key = SigningKey.of(base64.b64decode(api.objects[KEY]["data"]["key.pem"]))
    return key, PublicKeys.of(api.objects[KEYS]["data"]["keys.pem"])


def provided(api: FakeApi) -> tuple[SigningKey, PublicKeys]:
    asyncio.run(keys.provide(api, "ns", "hetero"))  # type: ignore[arg-type]
    return held(api)


def stepped(api: FakeApi, *, later: int = 301) -> tuple[SigningKey, PublicKeys]:
    """Rotate the key one step, so many seconds after the one before."""
    since = api.objects[KEY]["data"]["since"]
    before = int(base64.b64decode(since)) - later
    api.objects[KEY]["data"]["since"] = base64.b64encode(str(before).encode()).decode()
    asyncio.run(keys.rotate(api, "ns", "hetero"))  # type: ignore[arg-type]
    return held(api)


def test_the_signing_key_is_made_once_and_agents_are_told_its_public_half() -> None:
    api = FakeApi()
    key, public = provided(api)

    assert key.public == public
    assert "PRIVATE" not in api.objects[KEYS]["data"]["keys.pem"]
    assert (key.public, public) == (provided(api)[0].public, public)


def test_agents_know_the_next_key_before_it_signs_and_the_former_one_after() -> None:
    api = FakeApi()
    first, _ = provided(api)
    announced, both = stepped(api)
    second, after = stepped(api)
    _, last = stepped(api)

    assert (first.public, 2) == (announced.public, len(both.raw))
    assert second.public + first.public == after
    assert set(both.raw) == set(after.raw)
    assert (2, False) == (len(last.raw), first.public.raw[0] in last.raw)
    del api.objects[KEYS]
    assert last == provided(api)[1]  # a step that ended half-way is finished


def test_a_step_that_pods_may_not_know_of_yet_is_refused() -> None:
    api = FakeApi()
    provided(api)

    with pytest.raises(BadInput, match=r"pods may not know its keys yet: wait \d+ s"):
        stepped(api, later=200)


def test_a_scheduler_that_starts_while_the_api_server_is_away_answers_its_kubelet(
    tmp_path: Path,
) -> None:
    """Else its container is ended, however long the API server stays away."""
    port, metrics, nobody = (free_port() for _ in range(3))
    (tmp_path / "key.pem").write_bytes(SigningKey.new().text())
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{nobody}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": ""}}
    config = {"clusters": [cluster], "contexts": [context], "current-context": "x", "users": []}
    (tmp_path / "config").write_text(json.dumps(config))
    env = {"HETERO_KEY_FILE": str(tmp_path / "key.pem"), "KUBECONFIG": str(tmp_path / "config")}
    where = ("--insecure", "--mix=a/b", f"--port={port}", f"--metrics={metrics}")
    argv = (sys.executable, "-m", "hetero.cli", "scheduler", *where)

    def lives() -> bool:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{metrics}/livez") as answer:
            return bool(answer.status == 200)
        return False

    with subprocess.Popen(argv, env={**os.environ, **env}) as process:
        try:
            wait_for(lives, seconds=30)
        finally:
            process.kill()
