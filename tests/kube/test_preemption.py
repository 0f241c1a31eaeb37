"""Room is made for a pod by evicting the fewest and least important, and is held for it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler import preemption
from hetero.kube.scheduler.disruption_budgets import DisruptionBudgets
from hetero.model.units import GiB
from tests.kube.conftest import card
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_scheduler import SHARE, Running, running, scenario

HALF = SHARE
WHOLE = {"nvidia.com/gpu": "1"}
AT_ONCE: dict[str, Any] = {"terminationGracePeriodSeconds": 0}


async def until(true: Callable[[], Any], seconds: float = 60) -> None:
    for _ in range(int(seconds / 0.02)):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


async def standing(it: Running, node: str, **priorities: int) -> None:
    """Bind a pod of half a card, for each name, by their priorities."""
    for name, priority in priorities.items():
        it.pod(name, HALF, priority=priority, **AT_ONCE)
        assert {} == await it.bind(name, node)


async def ask(it: Running, name: str, limits: Any = HALF, **spec: Any) -> Any:
    pod = it.api.objects.get(f"{PODS}/{name}") or it.pod(name, limits, **spec)
    return await it.call("filter", Pod=pod, NodeNames=["n1", "n2"])


def nominated(it: Running, name: str) -> str | None:
    status = it.api.objects[f"{PODS}/{name}"].get("status") or {}
    node: str | None = status.get("nominatedNodeName")
    return node


async def test_the_one_least_important_pod_goes_and_its_room_is_kept_for_the_other() -> None:
    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2"),)) as it:
        await standing(it, "n1", low=1, mid=5)
        await standing(it, "n2", other=3, another=3)
        assert [] == (await ask(it, "high", priority=10))["NodeNames"]
        await until(lambda: it.api.evicted == ["low"])

        assert "n1" == nominated(it, "high")
        assert [] == (await ask(it, "thief", priority=0))["NodeNames"]
        assert ["n1"] == (await ask(it, "high"))["NodeNames"]
        assert {} == await it.bind("high", "n1")
        assert ["low"] == it.api.evicted


async def test_one_victim_is_chosen_over_two_that_are_less_important() -> None:
    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2"),)) as it:
        await standing(it, "n1", small=1, little=1)
        it.pod("large", WHOLE, priority=7, **AT_ONCE)
        assert {} == await it.bind("large", "n2")
        await ask(it, "high", WHOLE, priority=10)
        await until(lambda: it.api.evicted)
        await asyncio.sleep(0.1)

        assert ["large"] == it.api.evicted


async def test_who_holds_other_cards_of_the_node_is_left_alone() -> None:
    async with scenario(n1=(card("GPU-1"), card("GPU-2"))) as it:
        await standing(it, "n1", a=1, b=9, c=9, d=9)
        card_of_a = it.given("a")
        assert card_of_a is not None
        await ask(it, "high", priority=10)
        await until(lambda: it.api.evicted)
        assert ["a"] == it.api.evicted
        await ask(it, "high")
        assert {} == await it.bind("high", "n1")

        given = it.given("high")
        assert given is not None
        assert (
            card_of_a.containers[0][1].pieces[0].device == given.containers[0][1].pieces[0].device
        )


async def test_nobody_is_evicted_for_who_is_no_more_important_or_may_not_preempt() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        await standing(it, "n1", a=5, b=5)
        await ask(it, "same", priority=5)
        await ask(it, "polite", priority=10, preemptionPolicy="Never")
        await ask(it, "huge", {"nvidia.com/gpu": "3"}, priority=10)
        await asyncio.sleep(0.2)

        assert [] == it.api.evicted
        assert not [call for call in it.api.calls if "eviction" in call]


async def test_while_victims_end_no_more_are_chosen_and_the_pod_hears_that_it_waits() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        it.pod("slow", HALF, priority=1, terminationGracePeriodSeconds=30)
        assert {} == await it.bind("slow", "n1")
        await standing(it, "n1", rest=2)
        await ask(it, "high", priority=10)
        await until(lambda: it.api.evicted)
        for _ in range(3):
            answer = await ask(it, "high")
            assert [] == answer["NodeNames"]
            waits = "waits for those that it preempts on node n1 to end"
            assert waits == answer["FailedNodes"]["n1"]
        assert ["slow"] == it.api.evicted
        it.api.delete(f"{PODS}/slow")

        assert ["n1"] == (await ask(it, "high"))["NodeNames"]


async def test_who_ends_already_is_waited_for_and_nobody_else_is_evicted() -> None:
    api, cards = FakeApi(), (card("GPU-1"),)
    async with running(api, n1=cards) as first:
        await standing(first, "n1", going=5, stays=1)
        ending = first.api.objects[f"{PODS}/going"]
        ending["metadata"]["deletionTimestamp"] = "now"
        api.put_now(f"{PODS}/going", ending)
    async with running(api, n1=cards) as second:  # a restart in mid-run
        await ask(second, "high", priority=10)
        await until(lambda: nominated(second, "high"))
        api.delete(f"{PODS}/going")

        await until(lambda: "again" in str(api.objects[f"{PODS}/high"]["metadata"]))
        assert ["n1"] == (await ask(second, "high"))["NodeNames"]
        assert [] == api.evicted


async def test_a_disruption_budget_sends_the_pod_to_the_next_best_node_or_nowhere() -> None:
    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2"),)) as it:
        await standing(it, "n1", a=1, b=9)
        await standing(it, "n2", c=2, d=9)
        it.api.protected = {"a", "b"}
        await ask(it, "high", priority=10)
        await until(lambda: it.api.evicted)
        assert ["c"] == it.api.evicted
        it.api.protected = {"a", "b", "d"}
        await ask(it, "higher", priority=20)
        message = "preemption: PodDisruptionBudgets protect 3 pods"
        await until(lambda: message in it.api.events)

        assert ["c"] == it.api.evicted


def budget(it: Running, allowed: int, *names: str) -> None:
    """Have a PodDisruptionBudget let so many of these pods go, which are ready."""
    for name in names:
        pod = it.api.objects[f"{PODS}/{name}"]
        pod["metadata"]["labels"] = {"app": "served"}
        pod["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        it.api.put_now(f"{PODS}/{name}", pod)
    it.api.budgets = [
        {
            "metadata": {"name": "served", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "served"}}},
            "status": {"disruptionsAllowed": allowed},
        }
    ]


async def test_nobody_is_evicted_in_vain_where_a_budget_lets_one_of_two_go() -> None:
    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2"),)) as it:
        await standing(it, "n1", a=1, b=1)
        budget(it, 1, "a", "b")
        high = it.pod("high", WHOLE, priority=10)
        await it.call("filter", Pod=high, NodeNames=["n1"])
        await until(lambda: "preemption: PodDisruptionBudgets protect 2 pods" in it.api.events)
        assert [] == it.api.evicted
        assert nominated(it, "high") is None
        await standing(it, "n2", c=5, d=5)
        await ask(it, "high")
        await until(lambda: len(it.api.evicted) == 2)

        assert ["c", "d"] == it.api.evicted


async def test_where_a_budget_lets_one_of_two_go_another_goes_in_the_place_of_the_second() -> None:
    async with scenario(n1=(card("GPU-1"), card("GPU-2"))) as it:
        await standing(it, "n1", a=1, b=2, c=5, d=6)
        cards = [it.given(name).containers[0][1].pieces[0].device for name in "abcd"]  # type: ignore[union-attr]
        assert (cards[0], cards[2]) == (cards[1], cards[3])
        budget(it, 1, "a", "c")
        two = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8192", "nvidia.com/gpucores": "50"}
        await ask(it, "high", two, priority=10)
        await until(lambda: len(it.api.evicted) == 2)

        assert ["b", "c"] == it.api.evicted


@pytest.mark.parametrize(
    ("selector", "status", "protected"),
    [
        ({"matchLabels": {"app": "x"}}, {"disruptionsAllowed": 1}, "ab"),
        ({"matchLabels": {"app": "x"}}, {"disruptionsAllowed": 2}, ""),
        ({"matchLabels": {"app": "x", "tier": "1"}}, {}, "a"),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, {}, "b"),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["y"]}]}, {}, ""),
        ({}, {"disruptionsAllowed": 0}, "ab"),
        (None, {"disruptionsAllowed": 0}, ""),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_budget_counts_the_ready_pods_of_its_namespace_that_its_selector_chooses(
    selector: Any, status: Any, protected: str, version: str
) -> None:
    def pod(name: str, namespace: str = "default", ready: str = "True", **labels: str) -> Any:
        metadata = {"name": name, "namespace": namespace, "uid": name, "labels": labels}
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        return read(Pod, {"metadata": metadata, "status": status})

    pods = [pod("a", app="x", tier="1"), pod("b", app="x")]
    pods += [pod("c", "other", app="x"), pod("d", ready="False", app="x")]
    metadata = {"name": "one", "namespace": "default"}
    api = FakeApi(
        budgets=[{"metadata": metadata, "spec": {"selector": selector}, "status": status}]
    )
    protected_pods = asyncio.run(DisruptionBudgets.read(api, version)).protected(pods)

    assert set(protected if selector != {} or version == "v1" else "") == protected_pods


async def test_an_eviction_that_fails_gives_the_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    evict = FakeApi._evict

    def refuse(api: FakeApi, path: str, body: Any) -> None:
        if not body["deleteOptions"].get("dryRun"):
            api.protected = {"a"}
        evict(api, path, body)

    monkeypatch.setattr(FakeApi, "_evict", refuse)

    async with scenario(n1=(card("GPU-1"),)) as it:
        await standing(it, "n1", a=1, b=9)
        await ask(it, "high", priority=10)
        await until(lambda: any("disruption budget" in said for said in it.api.events))
        high = read(Pod, it.api.objects[f"{PODS}/high"])
        await until(lambda: it.scheduler.verbs.preemption.wanted(high))

        assert nominated(it, "high") is None
        assert ["uid-a", "uid-b"] == sorted(it.scheduler.cache.standing)


async def test_room_that_nobody_comes_for_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "RESERVATION_S", 0.3)

    async with scenario(n1=(card("GPU-1"),)) as it:
        await standing(it, "n1", a=1, b=9)
        await ask(it, "high", priority=10)
        await until(lambda: it.api.evicted)
        assert [] == (await ask(it, "other", priority=0))["NodeNames"]
        await until(lambda: nominated(it, "high") is None)

        assert ["n1"] == (await ask(it, "other"))["NodeNames"]


async def test_a_preemptor_that_is_deleted_leaves_its_room() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        await standing(it, "n1", a=1, b=9)
        await ask(it, "high", priority=10)
        await until(lambda: it.api.evicted)
        it.api.delete(f"{PODS}/high")

        assert ["n1"] == (await ask(it, "other", priority=0))["NodeNames"]


async def test_the_preempt_verb_names_the_same_victims_and_only_where_room_is_being_made() -> None:
    async with scenario(n1=(card("GPU-1", memory=16 * GiB),), n2=(card("GPU-2"),)) as it:
        await standing(it, "n1", low=1, mid=5)
        await standing(it, "n2", other=3, another=3)
        offered = {name: {"pods": [], "numPDBViolations": 0} for name in ("n1", "n2")}
        pod = it.pod("high", priority=10)

        async def victims() -> dict[str, list[str]]:
            answer = await it.call("preempt", Pod=pod, NodeNameToMetaVictims=offered)
            meta_victims = answer["NodeNameToMetaVictims"].items()
            return {node: [one["UID"] for one in said["Pods"]] for node, said in meta_victims}

        assert {"n1": ["uid-low"], "n2": ["uid-another"]} == await victims()
        it.api.objects[f"{PODS}/low"]["spec"]["terminationGracePeriodSeconds"] = 30
        await ask(it, "high")
        await until(lambda: it.api.evicted == ["low"])
        assert {} == await victims()
