"""Nodes without an agent that serves take no pods, and take them again when it does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hetero.kube.scheduler.agents import AWAY, Agents
from hetero.kube.scheduler.waker import AGAIN
from tests.kube.conftest import card
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_scheduler import Running, running
from tests.kube.world import until

SPACE = "/api/v1/namespaces/hetero-system/pods"
ACCOUNT = "system:serviceaccount:hetero-system:hetero-agent"


def agent(node: str, *, ready: bool = True, space: str = "hetero-system", **more: Any) -> Any:
    """Return the pod of a node's agent."""
    about = {"name": f"agent-{node}", "namespace": space, "uid": f"uid-agent-{node}", **more}
    return {
        "metadata": about,
        "spec": {"containers": [], "nodeName": node, "serviceAccountName": "hetero-agent"},
        "status": {"phase": "Running", "containerStatuses": [{"ready": ready}]},
    }


def put(api: FakeApi, pod: Any) -> None:
    about = pod["metadata"]
    api.put_now(f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}", pod)


@asynccontextmanager
async def scenario(*, choose: str = "score") -> AsyncIterator[Running]:
    """Run a scheduler of two nodes, the agents of which serve."""
    api, agents = FakeApi(), Agents(ACCOUNT)
    put(api, agent("n1"))
    put(api, agent("n2"))
    cards = {"n1": (card("GPU-1"),), "n2": (card("GPU-2"),)}
    async with running(api, choose, None, agents, **cards) as made:
        yield made


async def offered(it: Running, name: str = "p") -> Any:
    pod = it.api.objects.get(f"{PODS}/{name}") or it.pod(name)
    return await it.call("filter", Pod=pod, NodeNames=["n1", "n2"])


@pytest.mark.parametrize(
    "change",
    [{"ready": False}, {"deletionTimestamp": "2026-11-24T00:00:00Z"}],
    ids=["not ready", "being ended"],
)
async def test_a_node_whose_agent_does_not_serve_takes_nobody_until_it_does(
    change: dict[str, Any],
) -> None:
    async with scenario() as it:
        assert ["n1", "n2"] == (await offered(it))["NodeNames"]
        put(it.api, agent("n2", **change))
        answer = await offered(it)
        assert (["n1"], {"n2": AWAY}) == (answer["NodeNames"], answer["FailedNodes"])
        put(it.api, agent("n2"))
        assert ["n1", "n2"] == (await offered(it))["NodeNames"]


async def test_nobody_is_evicted_where_no_agent_serves() -> None:
    async with scenario() as it:
        for node in ("n1", "n2"):
            await it.bind_all(node, count=1)
        put(it.api, agent("n2", ready=False))
        pod = it.pod("more", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16000"}, priority=9)
        offers: dict[str, Any] = {node: {"Pods": []} for node in ("n1", "n2")}
        answer = await it.call("preempt", Pod=pod, NodeNameToMetaVictims=offers)
        assert ["n1"] == list(answer["NodeNameToMetaVictims"])


async def test_what_hami_gave_where_no_agent_serves_is_counted_when_one_does() -> None:
    async with scenario() as it:
        put(it.api, agent("n2", ready=False))
        old = it.pod("old", nodeName="n2")
        old["status"] = {"phase": "Running"}
        given = {"hami.io/vgpu-devices-allocated": "GPU-2,NVIDIA-L4,8192,50:;"}
        old["metadata"]["annotations"] = given
        it.api.put_now(f"{PODS}/old", old)
        put(it.api, agent("n2"))
        assert 8192 == it.held("GPU-2")


async def test_what_stands_on_a_node_stays_counted_while_its_agent_is_away() -> None:
    async with scenario() as it:
        await it.bind_all("n2", count=2)
        held = it.held("GPU-2")
        it.api.delete(f"{SPACE}/agent-n2")
        assert {"n2": AWAY} == (await offered(it))["FailedNodes"]
        assert held == it.held("GPU-2")
        put(it.api, agent("n2"))
        assert held == it.held("GPU-2")
        assert ["n1"] == (await offered(it))["NodeNames"]  # two halves of the card are taken


async def test_a_place_that_filter_took_is_lost_with_the_agent() -> None:
    async with scenario(choose="one") as it:
        (node,) = (await offered(it))["NodeNames"]
        put(it.api, agent(node, ready=False))
        answer = await it.bind("p", node)
        assert f"node {node}: {AWAY}" in answer["Error"]
        assert 0 == it.held("GPU-1") + it.held("GPU-2")


async def test_a_pod_that_waits_for_an_agent_is_tried_again_when_it_serves() -> None:
    async with scenario() as it:
        for node in ("n1", "n2"):
            put(it.api, agent(node, ready=False))
        assert [] == (await offered(it))["NodeNames"]
        put(it.api, agent("n1"))
        await until(lambda: AGAIN in str(it.api.objects[f"{PODS}/p"]))
    assert f"0 of 2 nodes: 2 {AWAY}" in it.api.events


async def test_what_the_node_controller_takes_for_true_shuts_no_node() -> None:
    """It says so of all pods when the API server is back, before it heard of their nodes."""
    async with scenario() as it:
        for node in ("n1", "n2"):
            unheard = agent(node)
            unheard["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
            put(it.api, unheard)
        assert ["n1", "n2"] == (await offered(it))["NodeNames"]


async def test_who_calls_itself_an_agent_elsewhere_is_none() -> None:
    async with scenario() as it:
        it.api.delete(f"{SPACE}/agent-n2")
        put(it.api, agent("n2", space="default"))
        assert ["n1"] == (await offered(it))["NodeNames"]
