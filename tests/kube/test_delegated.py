"""Metrics are for whom the API server lets in."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry, Gauge

from hetero.kube.server.answers import MOST_REFUSALS
from hetero.kube.server.delegated import Gate, metrics_handler
from tests.kube.fake_api import FakeApi


def statuses(api: FakeApi, *tokens: str | None, header: str = "Authorization") -> list[int]:
    """Return what each token's owner is answered, one after the other."""
    registry = CollectorRegistry()
    Gauge("said", "once", registry=registry).set(1)

    async def play() -> list[int]:
        app, statuses = web.Application(), []
        app.router.add_get("/metrics", Gate(api).guard(metrics_handler(registry)))
        async with TestClient(TestServer(app)) as client:
            for token in tokens:
                value = f"Bearer {token}" if header == "Authorization" else str(token)
                headers = {} if token is None else {header: value}
                async with client.get("/metrics", headers=headers) as answer:
                    statuses.append(answer.status)
                    assert ("said 1.0" in await answer.text()) == (answer.status == 200)
        return statuses

    return asyncio.run(play())


def test_metrics_are_for_who_may_get_them() -> None:
    api = FakeApi(tokens={"a": "prometheus", "b": "tenant"}, readers={"prometheus"})

    assert [200, 403, 401, 401] == statuses(api, "a", "b", "nobody's", None)


def test_who_asks_through_the_api_has_a_token_for_this_alone() -> None:
    api = FakeApi(
        tokens={"a": "prometheus"}, lent={"t": "reader"}, readers={"prometheus", "reader"}
    )

    assert [200, 401] == statuses(api, "t", "a", header="Hetero-Token")
    assert [401] == statuses(api, "t")  # it is not meant for the API itself


def test_an_answer_holds_for_a_while_so_that_asking_again_costs_the_api_nothing() -> None:
    api = FakeApi(tokens={"a": "prometheus"}, readers={"prometheus"})

    assert [200, 200, 401, 401] == statuses(api, "a", "a", "x", "x")
    assert 3 == len(api.calls)


@pytest.mark.parametrize("call", ["tokenreviews", "subjectaccessreviews"])
def test_nobody_is_let_in_while_the_api_does_not_answer(call: str) -> None:
    api = FakeApi(tokens={"a": "prometheus"}, readers={"prometheus"}, fail={call})

    assert [503] == statuses(api, "a")


def test_who_brings_many_tokens_that_are_refused_does_not_load_the_api() -> None:
    api = FakeApi(tokens={f"t{n}": "tenant" for n in range(40)})

    assert [403] * MOST_REFUSALS + [429] * (40 - MOST_REFUSALS) == statuses(api, *api.tokens)
    assert 2 * MOST_REFUSALS == len(api.calls)
