"""No pod is ended by its kubelet because the API server is away, or was."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import grpc
import pytest

from hetero.kube.client.api import LONGEST_RETRY_S, Access, Api
from hetero.kube.objects.kinds import Pod
from hetero.kube.scheduler import kubelet_watches
from hetero.kube.scheduler.agents import AWAY
from hetero.kube.scheduler.kubelet_watches import KubeletWatches
from hetero.kube.scheduler.waker import AGAIN
from tests.kube.api_server import FakeApi as ApiServer
from tests.kube.fake_api import PODS
from tests.kube.test_agents import agent, put, scenario
from tests.kube.test_scheduler import Running
from tests.kube.world import CARD, pod_named, refusal, until, world

BEGAN = "2026-11-27T00:00:00Z"
#: Seconds within which a kubelet is answered that waits a second for the API server: beside other
#: tests a process is late.
_MOST_S = 4.0


@asynccontextmanager
async def after_an_outage(**words: Any) -> AsyncIterator[tuple[Running, Any]]:
    """Have one pod bound to n1 after the API server was away, and one that is to be."""
    async with scenario(**words) as it:
        it.api.lose()
        it.pod("first")
        it.pod("second")
        assert {} == await it.bind("first", "n1")
        binding = asyncio.ensure_future(it.bind("second", "n1"))
        await asyncio.sleep(0.1)
        yield it, binding


def take_up(it: Running, name: str, **status: Any) -> None:
    """Have a kubelet say of a pod what it says first."""
    pod = it.api.objects[f"{PODS}/{name}"]
    it.api.put_now(f"{PODS}/{name}", {**pod, "status": {"startTime": BEGAN, **status}})


async def test_a_pod_is_bound_when_the_kubelet_took_up_the_one_before_it() -> None:
    async with after_an_outage() as (it, binding):
        assert not binding.done()
        assert it.given("second") is None
        it.pod("other")
        assert {} == await it.bind("other", "n2")  # another kubelet's
        take_up(it, "first")
        assert {} == await asyncio.wait_for(binding, 5)
        assert it.given("second") is not None


async def test_a_pod_waits_for_one_that_another_scheduler_bound_before_it_led() -> None:
    async with scenario() as it:
        it.api.lose()
        others = it.pod("others")
        it.api.put_now(f"{PODS}/others", {**others, "spec": {**others["spec"], "nodeName": "n1"}})
        it.pod("mine")
        binding = asyncio.ensure_future(it.bind("mine", "n1"))
        await asyncio.sleep(0.1)
        assert not binding.done()
        take_up(it, "others")
        assert {} == await asyncio.wait_for(binding, 5)


async def test_a_pod_that_waits_for_a_kubelet_is_not_sent_where_the_agent_ended_meanwhile() -> None:
    async with after_an_outage() as (it, binding):
        put(it.api, agent("n1", ready=False))
        take_up(it, "first", phase="Failed", reason="UnexpectedAdmissionError")
        assert f"node n1: {AWAY}" == (await binding)["Error"]
        assert "nodeName" not in it.api.objects[f"{PODS}/second"]["spec"]
        assert 0 == it.held("GPU-1")
        await until(lambda: AGAIN in str(it.api.objects[f"{PODS}/second"]))

    assert f"node n1: {AWAY}" in it.api.events


async def test_a_pod_that_is_offered_another_node_while_it_waits_is_bound_there_alone() -> None:
    """kube-scheduler asks again after 10 s, and the call that it gave up goes on."""
    async with after_an_outage(choose="one") as (it, binding):
        second = it.api.objects[f"{PODS}/second"]
        await it.call("filter", Pod=second, NodeNames=["n2"])
        assert 8192 == it.held("GPU-1")
        take_up(it, "first")
        assert "its place was given anew meanwhile" in (await binding)["Error"]
        assert "nodeName" not in it.api.objects[f"{PODS}/second"]["spec"]
        assert {} == await it.bind("second", "n2")
        assert [8192, 8192] == [it.held("GPU-1"), it.held("GPU-2")]


async def test_a_pod_that_is_deleted_while_it_waits_is_pass_on() -> None:
    async with after_an_outage() as (it, binding):
        it.api.delete(f"{PODS}/second")
        it.pod("second")  # its successor
        take_up(it, "first")
        assert "its place was given anew meanwhile" in (await binding)["Error"]
        assert not [call for call in it.api.calls if "second/binding" in call]


async def test_who_waits_goes_on_waiting_for_the_same_pod_when_the_api_is_away_again() -> None:
    async with after_an_outage() as (it, binding):
        it.api.lose()
        take_up(it, "first")
        assert {} == await asyncio.wait_for(binding, 3)


async def test_a_kubelet_that_takes_up_nothing_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubelet_watches, "KUBELET_WAIT_S", 0.3)

    async with after_an_outage() as (it, binding):
        assert not binding.done()
        assert {} == await binding
        monkeypatch.setattr(kubelet_watches, "KUBELET_WAIT_S", 60.0)
        it.api.delete(f"{PODS}/second")  # its half of the card
        it.pod("third")
        assert {} == await asyncio.wait_for(it.bind("third", "n1"), 5)


async def test_the_next_pod_goes_first_where_the_binding_of_the_first_one_failed() -> None:
    async with scenario() as it:
        it.api.lose()
        it.api.fail.add("first/binding")
        for name in ("first", "second", "third"):
            it.pod(name)
        assert "told to fail" in (await it.bind("first", "n1"))["Error"]
        assert {} == await asyncio.wait_for(it.bind("second", "n1"), 3)
        third = asyncio.ensure_future(it.bind("third", "n1"))
        await asyncio.sleep(0.1)
        assert not third.done()
        take_up(it, "second")
        assert {} == await asyncio.wait_for(third, 3)


async def test_one_of_those_that_wait_goes_first_where_the_first_one_was_deleted_by_force() -> None:
    async with scenario() as it:
        it.api.lose()
        for name in ("first", "second", "third"):
            it.pod(name, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"})
        assert {} == await it.bind("first", "n1")
        others = [asyncio.ensure_future(it.bind(name, "n1")) for name in ("second", "third")]
        await asyncio.sleep(0.1)
        it.api.delete(f"{PODS}/first")
        await asyncio.sleep(0.1)
        assert [True, False] == [one.done() for one in others]
        take_up(it, "second")
        assert {} == await asyncio.wait_for(others[1], 3)


@pytest.mark.parametrize("first", ["taken up", "deleted"])
async def test_one_of_those_that_wait_goes_first_where_a_list_says_of_the_first_one_that_it_is_over(
    first: str,
) -> None:
    """Nobody knows whether its kubelet took it up before the API server was away or after."""
    async with scenario() as it:
        it.api.lose()
        for name in ("first", "second", "third"):
            it.pod(name, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"})
        assert {} == await it.bind("first", "n1")
        others = [asyncio.ensure_future(it.bind(name, "n1")) for name in ("second", "third")]
        await asyncio.sleep(0.1)
        it.api.lose()
        if first == "deleted":
            del it.api.objects[f"{PODS}/first"]
        else:
            it.api.objects[f"{PODS}/first"]["status"] = {"startTime": BEGAN}
        it.api.list_again()
        await asyncio.sleep(0.1)
        assert [True, False] == [one.done() for one in others]
        take_up(it, "second")
        assert {} == await asyncio.wait_for(others[1], 3)


async def test_a_pod_waits_no_longer_where_the_first_one_fails_and_another_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubelet_watches, "KUBELET_WAIT_S", 2.0)

    watches = KubeletWatches(is_away=True)
    watches.api_back()
    await watches.until_watched("n1", "first")
    began = monotonic()
    others = [
        asyncio.ensure_future(watches.until_watched("n1", name)) for name in ("second", "third")
    ]
    await asyncio.sleep(1.8)
    watches.pass_on("n1", "first")
    await asyncio.gather(*others)
    assert monotonic() - began < 3.2


async def test_no_pod_waits_once_every_kubelet_watches_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubelet_watches, "REWATCH_S", 0.0)

    async with after_an_outage() as (_, binding):
        assert {} == await asyncio.wait_for(binding, 5)


async def test_who_follows_tries_again_as_often_as_it_said_however_long_the_api_is_away() -> None:
    api, lost, listed = ApiServer(away=True), list[Exception](), asyncio.Event()
    async with api.serve() as url, Api(Access(server=url)).open() as client:
        following = asyncio.ensure_future(
            client.follow(
                "/api/v1/pods",
                Pod,
                listed=lambda _: listed.set(),
                changed=lambda *_: None,
                lost=lost.append,
                retry_s=0.1,
            )
        )
        await asyncio.sleep(2)
        assert len(lost) > 6
        api.away = False
        await asyncio.wait_for(listed.wait(), 1)
        following.cancel()


async def test_a_scheduler_tries_to_follow_pods_more_often_than_what_may_be_absent() -> None:
    async with scenario() as it:
        pods = it.api.retries.pop("/api/v1/pods")
        assert 2.0 == pods
        assert {"/api/v1/nodes", "/api/v1/resourcequotas"} <= it.api.retries.keys()
        assert {LONGEST_RETRY_S} == {*it.api.retries.values()}


@pytest.mark.parametrize("outage", ["away", "silent"])
async def test_an_agent_goes_by_what_it_knows_a_second_after_the_api_server_went(
    outage: str,
) -> None:
    """The kubelet still lists a pod that was deleted by force: only the API says whose it is.

    No other pod is admitted meanwhile, so the kubelet is answered soon.
    """
    async with world() as at:
        pod = at.bind("pod")
        await until(lambda: "uid-pod" in at.agent.allocator.pods.by_uid)
        at.kubelet.known.append(pod_named("gone", "main"))
        setattr(at.api, outage, True)
        began_s = monotonic()
        await at.kubelet.admit(pod)
        assert 0.8 < monotonic() - began_s < _MOST_S
        assert ["default/pod/main"] == at.given()


@pytest.mark.parametrize("outage", ["away", "silent"])
async def test_an_agent_refuses_a_pod_that_it_was_not_told_of_a_second_after_the_api_server_went(
    outage: str,
) -> None:
    async with world() as at:
        pod = pod_named("pod", "main")
        at.kubelet.known.append(pod)
        setattr(at.api, outage, True)
        began_s = monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await at.kubelet.allocate(CARD, ["memory-0::0"])
        assert 0.8 < monotonic() - began_s < _MOST_S
        reasons = {"away": "503 away", "silent": "the API server does not answer"}
        assert reasons[outage] in refusal(caught)


async def test_an_agent_waits_for_an_api_server_that_is_back_within_a_second() -> None:
    async with world() as at:
        pod = at.bind("pod")
        await until(lambda: "uid-pod" in at.agent.allocator.pods.by_uid)
        at.kubelet.known.append(pod_named("gone", "main"))
        at.api.away = True
        admitted = asyncio.ensure_future(at.kubelet.admit(pod))
        await asyncio.sleep(0.3)
        assert not admitted.done()
        at.api.away = False
        await admitted
        assert ["default/pod/main"] == at.given()
