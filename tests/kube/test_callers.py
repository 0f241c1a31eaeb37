"""Who is answered by the webhook where no certificate says who calls: hosts, and no pods."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from hetero.kube.server import answers
from hetero.kube.server.answers import Answers
from hetero.kube.server.sources import STEP_TIMEOUT_S, Sources
from hetero.kube.webhook import callers
from hetero.kube.webhook.callers import Callers, by_head, networks
from hetero.kube.webhook.inventory import Inventories
from hetero.model.errors import BadInput
from tests.kube.fake_api import FakeApi

#: Where the tests' client calls from.
HERE = "127.0.0.1"
PASSED_ON = {"X-Forwarded-For": "10.1.2.3"}


def cluster(address: str = HERE, *, namespace: str = "team", **spec: Any) -> FakeApi:
    """Return a cluster with a pod at an address."""
    api = FakeApi()
    add(api, "a", address, namespace=namespace, **spec)
    return api


def add(
    api: FakeApi, name: str, address: str, *, namespace: str, phase: str = "Running", **spec: Any
) -> None:
    made = {"metadata": {"name": name, "namespace": namespace, "uid": name}, "spec": spec}
    made["status"] = {"podIP": address, "phase": phase}
    api.put_now(f"/api/v1/namespaces/{namespace}/pods/{name}", made)


def statuses(by: Callers, *headers: dict[str, str], direct: bool = True) -> list[int]:
    """Return what each request is answered, one after the other."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def play() -> list[int]:
        app, statuses = web.Application(), []
        app.router.add_post("/", by.directly(hello) if direct else by.known(hello))
        async with TestClient(TestServer(app)) as client:
            for headers_sent in headers or ({},):
                async with client.post("/", headers=headers_sent) as answer:
                    statuses.append(answer.status)
        return statuses

    return asyncio.run(play())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that nobody publishes is at once a host's."""
    monkeypatch.setattr(callers, "UNKNOWN_S", 0.0)


def test_an_address_that_api_servers_publish_is_theirs() -> None:
    assert [200, 403] == statuses(Callers(FakeApi(servers={HERE})), {}, PASSED_ON)


def test_no_pod_is_said_to_have_the_address_that_api_servers_publish() -> None:
    """Root on a node says in its pods' status what it likes: admission would stop everywhere."""
    api = cluster()
    api.servers = {HERE}
    by = Callers(api)

    assert [200] == statuses(by)
    api.servers.clear()  # it starts anew
    by._servers = Answers(lambda _: False)
    assert [200] == statuses(by)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("namespace", ["team", "kube-system"])
def test_a_pods_second_address_is_its_own(namespace: str) -> None:
    api = cluster("fd00::7", namespace=namespace)
    api.servers = {"fd00::1"}
    api.objects[f"/api/v1/namespaces/{namespace}/pods/a"]["status"]["podIPs"] = [
        {"ip": "fd00::7"},
        {"ip": HERE},
    ]

    assert [403 if namespace == "team" else 200] == statuses(Callers(api))


@pytest.mark.usefixtures("at_once")
def test_pods_are_looked_through_for_addresses_of_another_family_than_the_servers() -> None:
    api = FakeApi(servers={"10.0.0.1"})

    assert [200] == statuses(Callers(api))
    assert 1 == api.calls.count("GET /api/v1/pods")
    api = FakeApi(servers={"fd00::1"})
    assert [200, 200] == statuses(Callers(api), {}, {})
    assert 2 == api.calls.count("GET /api/v1/pods")


def test_an_api_server_that_starts_anew_is_known_while_it_does_not_publish_itself() -> None:
    api = FakeApi(servers={HERE})
    by = Callers(api)

    assert [200] == statuses(by)
    api.servers.clear()
    by._servers = Answers(lambda _: False)  # what it held is over
    assert [200] == statuses(by)


def test_an_address_that_nobody_publishes_may_be_that_of_a_pod_that_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by = Callers(FakeApi())

    assert [403, 403] == statuses(by, {}, {})
    monkeypatch.setattr(callers, "UNKNOWN_S", 0.0)
    assert [200] == statuses(by)


@pytest.mark.usefixtures("at_once")
def test_who_calls_from_a_pod_is_not_answered() -> None:
    assert [403, 403] == statuses(Callers(cluster()), {}, PASSED_ON)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "api",
    [
        cluster("10.0.0.7"),
        cluster(hostNetwork=True),
        cluster(phase="Succeeded"),
        cluster(namespace="kube-system"),
    ],
    ids=["no pod's", "a host's", "a former pod's", "a pod's of kube-system"],
)
def test_who_calls_from_elsewhere_is(api: FakeApi) -> None:
    assert [200] == statuses(Callers(api))


@pytest.mark.parametrize("first", ["kube-system", "team"])
def test_an_address_of_two_pods_is_that_of_the_one_that_is_let_in(first: str) -> None:
    """Managed API servers call through pods, whose address another node may say to have."""
    api = cluster(namespace=first)
    add(api, "b", HERE, namespace="team" if first == "kube-system" else "kube-system")

    assert [200] == statuses(Callers(api))


def test_what_the_api_server_passes_on_for_somebody_is_no_call_of_its_own() -> None:
    by = Callers(FakeApi(servers={HERE}))

    assert [403, 200] == statuses(by, PASSED_ON, {})
    assert [200, 200] == statuses(by, PASSED_ON, {}, direct=False)  # agents have it do so


def test_where_networks_are_named_nobody_else_is_answered_and_nobody_asked() -> None:
    api = FakeApi()

    assert [200] == statuses(Callers(api, networks(["10.0.0.0/8", "127.0.0.0/8"])))
    assert [403] == statuses(Callers(api, networks(["10.0.0.0/8", "::1/128"])))
    assert [] == api.calls
    with pytest.raises(BadInput, match=r"10\.0\.0\.1/8 has host bits set"):
        networks(["10.0.0.1/8"])


@pytest.mark.usefixtures("at_once")
def test_an_address_is_asked_about_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi(servers={"127.0.0.2"})
    by = Callers(api)

    assert [200, 200] == statuses(by, {}, {})
    assert 2 == len(api.calls)
    monkeypatch.setattr(answers, "ANSWER_LIFE_S", -1.0)
    again = Callers(api)
    assert [200, 200] == statuses(again, {}, {})
    assert 5 == len(api.calls)
    api.fail = {"/api/v1/pods"}  # who was known is so while the API server does not answer
    assert [200] == statuses(again)
    assert [503] == statuses(Callers(api))


@pytest.mark.parametrize("path", ["/admit", "/%61dmit", "/admit?a=b"])
async def test_who_is_refused_is_so_before_it_says_what_it_asks(path: str) -> None:
    """What it says would be held until all of it is there: 3 MiB of each request."""
    api, sources = cluster(), Sources()

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application(middlewares=[by_head({"/admit": Callers(api).known})])
    app.middlewares.append(sources.middleware)
    app.router.add_post("/admit", echo)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(HERE, server.port)
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n"
        writer.write(head.encode() + b"{")
        try:
            answer = await asyncio.wait_for(reader.readline(), STEP_TIMEOUT_S / 2)
        finally:
            writer.close()
    assert b"HTTP/1.1 403 Forbidden\r\n" == answer


def inventories(api: FakeApi, *tokens: str, source: str = "10.1.2.3") -> list[int]:
    """Return what each token is answered that comes through the API server."""

    async def play() -> list[int]:
        app, statuses = web.Application(), []
        asked = Inventories(api=api, agent_user="agent")
        app.router.add_post("/inventory", asked.answer)
        async with TestClient(TestServer(app)) as client:
            for number, token in enumerate(tokens):
                address = source.format(number)
                body = {"token": token, "inventory": "[]"}
                headers = {"X-Forwarded-For": f"9.9.9.9, {address}"}
                async with client.post("/inventory", json=body, headers=headers) as answer:
                    statuses.append(answer.status)
        return statuses

    return asyncio.run(play())


def test_who_brings_bad_tokens_is_soon_not_asked_for() -> None:
    api = FakeApi()
    many = [f"bad-{n}" for n in range(answers.MOST_REFUSALS + 3)]

    assert [403] * answers.MOST_REFUSALS + [429] * 3 == inventories(api, *many)
    assert answers.MOST_REFUSALS == len(api.calls)
    assert {403} == {*inventories(FakeApi(), *many, source="10.1.2.{0}")}  # of as many agents


def test_a_bad_token_that_comes_again_is_not_asked_about_again() -> None:
    api = FakeApi()

    assert [403] * 40 == inventories(api, *["bad"] * 40)
    assert 1 == len(api.calls)
