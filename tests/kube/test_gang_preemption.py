"""A gang is evicted whole or not at all."""

import asyncio
from typing import Any

import pytest

from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler import preemption
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_pod_groups import NODES, WHOLE, ask, bound, grouped, member, schedule
from tests.kube.test_preemption import until
from tests.kube.test_scheduler import SHARE, Running


async def gang(it: Running, of: str, *priorities: int, limits: Any = WHOLE) -> None:
    """Place a group's pods, which end at once when they are evicted, by their priorities."""
    names = [f"{of}{number}" for number in range(1, len(priorities) + 1)]
    for name, priority in zip(names, priorities, strict=True):
        member(it, name, of, limits)
        pod = it.api.objects[f"{PODS}/{name}"]
        pod["spec"] |= {"priority": priority, "terminationGracePeriodSeconds": 0}
        it.api.put_now(f"{PODS}/{name}", pod)
    assert [{}] * len(names) == await schedule(it, *names)


async def single(it: Running, name: str, priority: int) -> str:
    """Bind a pod to the node that is left for it, and return that."""
    pod = it.pod(name, WHOLE, priority=priority, terminationGracePeriodSeconds=0)
    (node,) = (await it.call("filter", Pod=pod, NodeNames=NODES))["NodeNames"]
    assert {} == await it.bind(name, node)
    return str(node)


async def test_a_gang_is_one_victim_with_all_of_its_pods() -> None:
    async with grouped(a=2) as it:
        await gang(it, "a", 1, 1)
        await single(it, "c", 5)
        for name, evicted in (("high", ["c"]), ("higher", ["c", "a1", "a2"])):
            it.pod(name, WHOLE, priority=10)
            assert [] == (await ask(it, name))["NodeNames"]
            await until(lambda: len(it.api.evicted) >= len(evicted))  # noqa: B023
            await asyncio.sleep(0.1)
            assert evicted == it.api.evicted
            (node,) = (await ask(it, name))["NodeNames"]
            assert {} == await it.bind(name, node)


async def test_a_gang_stays_whole_if_one_of_its_pods_may_not_be_evicted() -> None:
    async with grouped(a=3) as it:
        await gang(it, "a", 1, 1, 1)
        it.api.protected = {"a2"}
        it.pod("high", WHOLE, priority=10)
        await ask(it, "high")
        message = "preemption: PodDisruptionBudgets protect 1 pods"
        await until(lambda: message in it.api.events)

        assert [] == it.api.evicted


def protect_once_evictions_begin(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Have the API protect a pod from the moment on at which another was evicted."""
    evict = FakeApi._evict

    def then_protect(api: FakeApi, path: str, body: Any) -> None:
        evict(api, path, body)
        if len(api.evicted) == 1:
            api.protected = {name}

    monkeypatch.setattr(FakeApi, "_evict", then_protect)


async def test_the_rest_of_a_gang_follows_as_soon_as_the_api_lets_it_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protect_once_evictions_begin(monkeypatch, "a2")
    monkeypatch.setattr(preemption, "EVICTION_RETRY_S", 0.05)

    async with grouped(a=3) as it:
        await gang(it, "a", 1, 1, 1)
        it.pod("high", WHOLE, priority=10)
        await ask(it, "high")
        await until(lambda: it.api.evicted)
        it.pod("other", WHOLE)
        refusals = it.api.calls.count(f"POST {PODS}/a2/eviction")
        await until(lambda: it.api.calls.count(f"POST {PODS}/a2/eviction") > refusals + 1)
        assert ["a1"] == it.api.evicted
        assert [] == (await ask(it, "other"))["NodeNames"]  # the room is held meanwhile
        it.api.protected = set()
        await until(lambda: len(it.api.evicted) == 3)

        (node,) = (await ask(it, "high"))["NodeNames"]
        assert {} == await it.bind("high", node)
        assert not [said for said in it.api.events if "budget" in said]


async def test_nobody_more_is_asked_to_go_for_a_pod_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protect_once_evictions_begin(monkeypatch, "a2")
    monkeypatch.setattr(preemption, "EVICTION_RETRY_S", 0.05)

    async with grouped(a=3) as it:
        await gang(it, "a", 1, 1, 1)
        high = it.pod("high", WHOLE, priority=10)
        await ask(it, "high")
        await until(lambda: it.api.evicted)
        it.api.delete(f"{PODS}/high")
        await until(lambda: it.scheduler.verbs.preemption.wanted(read(Pod, high)))
        it.api.protected = set()
        await asyncio.sleep(0.2)

        assert ["a1"] == it.api.evicted


async def test_a_gang_of_which_a_part_could_not_be_evicted_in_time_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protect_once_evictions_begin(monkeypatch, "a2")
    monkeypatch.setattr(preemption, "EVICTION_RETRY_S", 0.05)
    monkeypatch.setattr(preemption, "RESERVATION_S", 0.2)

    async with grouped(a=3) as it:
        await gang(it, "a", 1, 1, 1)
        it.pod("high", WHOLE, priority=10)
        await ask(it, "high")
        refused = f"POST {PODS}/a2/eviction: 429 would violate a disruption budget"
        message = f"preemption: 1 of 3 evicted: {refused}"
        await until(lambda: message in it.api.events)

        assert ["a1"] == it.api.evicted
        assert "uid-high" not in it.scheduler.cache.standing


async def test_a_gang_with_a_pod_as_important_as_the_one_that_wants_room_stays() -> None:
    async with grouped(a=3) as it:
        await gang(it, "a", 1, 1, 10)
        it.pod("high", WHOLE, priority=10)
        assert [] == (await ask(it, "high"))["NodeNames"]
        await asyncio.sleep(0.2)

        assert [] == it.api.evicted
        assert not [call for call in it.api.calls if "eviction" in call]


async def test_preempt_names_a_gang_whole_and_none_that_stands_on_other_nodes_too() -> None:
    async with grouped(a=2, b=2) as it:
        await gang(it, "a", 1, 1)
        await gang(it, "b", 1, 1, limits=SHARE)
        pod = it.pod("high", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9000"}, priority=10)
        offered = {name: {"pods": [], "numPDBViolations": 0} for name in NODES}
        answer = await it.call("preempt", Pod=pod, NodeNameToMetaVictims=offered)
        (third,), (elsewhere, _) = set(filter(None, bound(it, "b1", "b2"))), bound(it, "a1", "a2")
        named = {
            node: [one["UID"] for one in said["Pods"]]
            for node, said in answer["NodeNameToMetaVictims"].items()
        }
        assert {third: ["uid-b1", "uid-b2"]} == named
        # kube-scheduler's own victim takes its gang along, or its node is not named.
        offered = {
            str(node): {"pods": [{"uid": uid}], "numPDBViolations": 0}
            for node, uid in ((third, "uid-b2"), (elsewhere, "uid-a1"))
        }
        answer = await it.call("preempt", Pod=pod, NodeNameToMetaVictims=offered)
        assert [third] == list(answer["NodeNameToMetaVictims"])
        both = answer["NodeNameToMetaVictims"][third]["Pods"]
        assert {"uid-b1", "uid-b2"} == {one["UID"] for one in both}
