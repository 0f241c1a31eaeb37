"""An agent publishes what its own node has, and nothing of another."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from hetero.kube.objects.kinds import NodeObject
from hetero.kube.objects.reading import read
from hetero.kube.webhook.inventory import Inventories
from hetero.kube.words.annotations import INVENTORY, inventory_text
from tests.kube.conftest import card
from tests.kube.fake_api import FakeApi
from tests.kube.test_scheduler import scenario

AGENT = "system:serviceaccount:hetero-system:hetero-agent"
TEXT = inventory_text((card("GPU-1"),))
SPACE = "/api/v1/namespaces/hetero-system/pods"


def cluster() -> FakeApi:
    """Return a cluster whose agents run on n1 and n2, each with a token of its pod."""
    api = FakeApi()
    for number in (1, 2):
        about = {"name": f"agent-{number}", "namespace": "hetero-system", "uid": f"uid-{number}"}
        api.put_now(
            f"{SPACE}/agent-{number}", {"metadata": about, "spec": {"nodeName": f"n{number}"}}
        )
        api.put_now(f"/api/v1/nodes/n{number}", {"metadata": {"name": f"n{number}", "uid": "n"}})
        api.bound[f"token-{number}"] = (AGENT, f"agent-{number}", f"uid-{number}")
    return api


def publish(api: FakeApi, body: Any) -> tuple[int, str]:
    """Return the status of an answer, and the node or the sentence that it names."""

    async def play() -> tuple[int, str]:
        app = web.Application()
        app.router.add_post("/inventory", Inventories(api=api, agent_user=AGENT).answer)
        async with (
            TestClient(TestServer(app)) as client,
            client.post("/inventory", json=body) as answer,
        ):
            document = await answer.json()
            return answer.status, document.get("node") or document["message"]

    return asyncio.run(play())


def published(api: FakeApi) -> dict[str, str]:
    paths = {name: f"/api/v1/nodes/{name}" for name in ("n1", "n2")}
    notes = {n: api.objects[p]["metadata"].get("annotations", {}) for n, p in paths.items()}
    return {name: found[INVENTORY] for name, found in notes.items() if INVENTORY in found}


@pytest.mark.parametrize("number", [1, 2])
def test_an_agent_publishes_on_the_node_that_its_pod_runs_on(number: int) -> None:
    api = cluster()
    body = {"token": f"token-{number}", "inventory": TEXT, "node": "n1"}

    assert (200, f"n{number}") == publish(api, body)
    assert {f"n{number}": TEXT} == published(api)


@pytest.mark.parametrize(
    "owner",
    [
        ("system:serviceaccount:team:default", "agent-1", "uid-1"),  # a tenant's account
        ("system:serviceaccount:team:hetero-agent", "agent-1", "uid-1"),
        ("system:serviceaccount:hetero-system:other", "agent-1", "uid-1"),
        (AGENT, "agent-1", "uid-2"),  # a pod that is gone
        (AGENT, "agent-3", "uid-3"),
        (AGENT, "", ""),  # a token that is bound to no pod
    ],
)
def test_who_runs_no_agent_publishes_nothing(owner: tuple[str, str, str]) -> None:
    api = cluster()
    api.bound = {"token": owner}

    assert 403 == publish(api, {"token": "token", "inventory": TEXT})[0]
    assert {} == published(api)


def test_a_token_that_is_meant_for_the_api_publishes_nothing() -> None:
    api = cluster()
    api.tokens = {"api": AGENT}

    assert 403 == publish(api, {"token": "api", "inventory": TEXT})[0]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"token": "token-1", "inventory": "[]"}, "node n1: hetero.io/inventory: not a valid"),
        ({"token": "token-1"}, "not an inventory: KeyError('inventory')"),
        ([], "not an inventory: TypeError"),
    ],
)
def test_what_is_no_inventory_is_refused_in_a_sentence(body: Any, why: str) -> None:
    api = cluster()
    status, sentence = publish(api, body)

    assert (400, True) == (status, why in sentence)
    assert {} == published(api)


@pytest.mark.parametrize("call", ["tokenreviews", "pods/agent-1", "nodes/n1"])
def test_an_agent_is_told_when_the_api_does_not_answer(call: str) -> None:
    api = cluster()
    api.fail = {call}

    assert 503 == publish(api, {"token": "token-1", "inventory": TEXT})[0]


async def test_a_scheduler_that_starts_takes_a_card_of_two_nodes_for_the_older_ones() -> None:
    """A node chooses its name, and not when the API made it."""
    async with scenario(**{"a-thief": (card("GPU-1"),), "n1": (card("GPU-1"),)}) as it:
        nodes = [it.api.objects[f"/api/v1/nodes/{name}"] for name in ("a-thief", "n1")]
        for node, hour in zip(nodes, (2, 1), strict=True):
            node["metadata"]["creationTimestamp"] = f"2026-11-27T0{hour}:00:00Z"
        for node in nodes:
            it.scheduler.cache.remove_node(node["metadata"]["name"])
        it.scheduler.nodes.listed([read(NodeObject, node) for node in nodes])
        answer = await it.call("filter", Pod=it.pod("p"), NodeNames=["a-thief", "n1"])

        assert ["n1"] == answer["NodeNames"]
        assert ["a-thief", "n1"] == [*it.scheduler.cache.inventory.nodes]
