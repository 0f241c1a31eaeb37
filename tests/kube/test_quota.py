"""What a namespace may hold, counted over all cards and never passed, whoever asks at once."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.dra.way import AllocationWay
from hetero.model import CORE
from hetero.model.units import GiB
from tests.kube.conftest import card
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_pod_request import pod
from tests.kube.test_scheduler import Running, scenario
from tests.kube.test_webhook import webhook

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
GPUMEM, GPUCORES = "nvidia.com/gpumem", "nvidia.com/gpucores"


def allow(api: FakeApi, hard: Mapping[str, str], name: str = "team") -> None:
    metadata = {"name": name, "namespace": "default"}
    api.put_now(f"{QUOTAS}/{name}", {"metadata": metadata, "spec": {"hard": dict(hard)}})


def of(memory: int, core: int = 10, count: int = 1) -> dict[str, str]:
    return {"nvidia.com/gpu": str(count), GPUMEM: str(memory), GPUCORES: str(core)}


async def refused(it: Running, name: str, limits: Mapping[str, str], **spec: Any) -> str | None:
    """Return what node n1 says to a new pod, None if it serves."""
    answer = await it.call("filter", Pod=it.pod(name, limits, **spec), NodeNames=["n1"])
    reason: str | None = answer["FailedNodes"].get("n1")
    return reason


async def test_memory_counts_over_all_cards_and_all_pods_of_the_namespace() -> None:
    reason = (
        f"over quota team of namespace default ({GPUMEM}: 12000 allowed, 8000 used, 4001 asked)"
    )

    async with scenario(n1=(card("GPU-1"), card("GPU-2"))) as it:
        allow(it.api, {f"limits.{GPUMEM}": "12000"})
        assert None is await refused(it, "a", of(4000, count=2))
        assert {} == await it.bind("a", "n1")

        assert reason == await refused(it, "b", of(4001))
        assert None is await refused(it, "c", of(4000))
    assert [f"0 of 1 node: 1 {reason}"] == it.api.events


async def test_core_counts_and_none_of_it_is_free() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        allow(it.api, {f"limits.{GPUCORES}": "50"})
        await it.call("filter", Pod=it.pod("a", of(1000, core=40)), NodeNames=["n1"])
        await it.bind("a", "n1")

        assert f"({GPUCORES}: 50 allowed, 40 used, 20 asked)" in str(
            await refused(it, "b", of(1000, core=20))
        )
        assert None is await refused(it, "c", {"nvidia.com/gpu": "1", GPUMEM: "1000"})


async def test_a_card_that_counts_otherwise_by_now_gives_back_what_it_was_charged() -> None:
    """So it is after a change of `scale` in its node's settings, or of `soft`."""
    async with scenario(n1=(card("GPU-1"),)) as it:
        await it.call("filter", Pod=it.pod("a", of(1000, core=40)), NodeNames=["n1"])
        await it.bind("a", "n1")
        it.publish("n1", evolve(card("GPU-1"), card={CORE: 50}))
        await it.call("filter", Pod=it.pod("b", of(1000)), NodeNames=["n1"])
        used = it.scheduler.quotas.quotas.used
        assert 80 == used["default"][GPUCORES]
        it.api.delete(f"{PODS}/a")
        it.api.delete(f"{PODS}/b")

        assert not +used["default"]


async def test_of_many_pods_bound_at_once_no_more_get_a_share_than_the_quota_allows() -> None:
    async with scenario(n1=(card("GPU-1"), card("GPU-2"))) as it:
        allow(it.api, {f"limits.{GPUMEM}": "10000"})
        names = [f"p{number}" for number in range(20)]
        for name in names:  # each is told that it fits, before any is bound
            assert None is await refused(it, name, of(3000))
        answers = await asyncio.gather(*(it.bind(name, "n1") for name in names))

        assert 3 == answers.count({})
        assert 9000 == it.held("GPU-1") + it.held("GPU-2")
        reason = f"over quota team of namespace default ({GPUMEM}: 10000 allowed, 9000 used, "
        assert {"Error": f"node n1: {reason}3000 asked)"} in answers


async def test_a_card_without_a_size_counts_with_all_of_its_memory() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        allow(it.api, {f"limits.{GPUMEM}": "16383"})
        assert f"{GPUMEM}: 16383 allowed, 16384 asked" in str(
            await refused(it, "a", {"nvidia.com/gpu": "1"})
        )


async def test_other_words_for_the_same_cards_are_no_way_around() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        allow(it.api, {f"limits.{GPUMEM}": "1000"})
        volcano = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "2000"}
        assert f"{GPUMEM}: 1000 allowed, 2000 asked" in str(await refused(it, "a", volcano))


async def test_an_init_container_counts_only_where_it_takes_more_than_the_others() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        allow(it.api, {f"limits.{GPUMEM}": "5000"})
        first = [{"name": "first", "resources": {"limits": of(5000)}}]
        assert None is await refused(it, "a", of(4000), initContainers=first)
        assert {} == await it.bind("a", "n1")
        assert 5000 == it.scheduler.quotas.quotas.used["default"][GPUMEM]


async def test_an_init_container_counts_so_although_the_main_one_alone_would_fill_a_card() -> None:
    async with scenario(n1=(card("GPU-1"), card("GPU-2"))) as it:
        allow(it.api, {f"limits.{GPUMEM}": "17000"})
        assert None is await refused(it, "other", of(12000))
        assert {} == await it.bind("other", "n1")
        first = [{"name": "first", "resources": {"limits": of(5000)}}]
        pod = it.pod("a", of(4000), initContainers=first)
        pod["metadata"]["annotations"] = {"hetero.io/device-placement": "binpack"}
        it.api.put_now(f"{PODS}/a", pod)
        assert {} == await it.bind("a", "n1")
        assert 17000 == it.scheduler.quotas.quotas.used["default"][GPUMEM]


async def test_a_pod_waits_until_another_ends_or_the_quota_is_raised_or_gone() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        allow(it.api, {f"limits.{GPUMEM}": "4000"})
        await refused(it, "a", of(4000))
        await it.bind("a", "n1")
        assert await refused(it, "b", of(4000))

        allow(it.api, {f"limits.{GPUMEM}": "8000"})
        assert None is await refused(it, "b", of(4000))
        allow(it.api, {f"limits.{GPUMEM}": "4000"})
        it.api.delete("/api/v1/namespaces/default/pods/a")
        assert None is await refused(it, "b", of(4000))
        it.api.delete(f"{QUOTAS}/team")
        assert None is await refused(it, "c", of(9000))


async def test_a_pod_that_waits_for_a_quota_is_tried_again_when_that_changes() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        allow(it.api, {f"limits.{GPUMEM}": "0"})
        assert await refused(it, "a", of(4000))
        allow(it.api, {f"limits.{GPUMEM}": "4000"})
        await asyncio.sleep(1.1)

        notes = it.api.objects["/api/v1/namespaces/default/pods/a"]["metadata"]["annotations"]
        assert "hetero.io/tried-again" in notes


async def test_a_quota_of_other_things_or_of_another_namespace_limits_nothing() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        allow(it.api, {"limits.cpu": "1", f"requests.{GPUMEM}": "1"})
        elsewhere = {"metadata": {"name": "q", "namespace": "elsewhere"}}
        spec = {"spec": {"hard": {f"limits.{GPUMEM}": "1"}}}
        it.api.put_now("/api/v1/namespaces/elsewhere/resourcequotas/q", elsewhere | spec)
        assert None is await refused(it, "a", of(4000))


async def test_nobody_is_evicted_for_a_pod_that_its_quota_does_not_allow() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        await refused(it, "low", of(16000), priority=1)
        await it.bind("low", "n1")
        allow(it.api, {f"limits.{GPUMEM}": "1000"})
        high = it.pod("high", of(4000), priority=10)
        offered = {"n1": {"pods": [], "numPDBViolations": 0}}
        answer = await it.call("preempt", Pod=high, NodeNameToMetaVictims=offered)

        assert {"NodeNameToMetaVictims": {}} == answer


async def test_a_node_of_smaller_cards_may_still_serve_a_whole_one() -> None:
    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2", memory=8 * GiB),)) as it:
        allow(it.api, {f"limits.{GPUMEM}": "9000"})
        pod = it.pod("a", {"nvidia.com/gpu": "1"})
        answer = await it.call("filter", Pod=pod, NodeNames=["n1", "n2"])

        assert ["n2"] == answer["NodeNames"]


async def test_prometheus_is_told_what_a_quota_allows_and_what_is_used() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        allow(it.api, {f"limits.{GPUMEM}": "9000"})
        await refused(it, "a", of(4000))
        await it.bind("a", "n1")
        read = it.scheduler.calls.metrics.registry.get_sample_value
        which = {"namespace": "default", "quota": "team", "resource": GPUMEM}

        assert (9000, 4000) == (read("hetero_quota_limit", which), read("hetero_quota_used", which))


# --- at admission ---------------------------------------------------------------------------------


def admitted(
    plain: dict[str, Any],
    hard: Mapping[str, str],
    *,
    way: AllocationWay = AllocationWay.CLASSIC,
) -> Any:
    api = FakeApi()
    api.objects[QUOTAS] = {"items": [{"metadata": {"name": "team"}, "spec": {"hard": dict(hard)}}]}
    hook = evolve(webhook(api), allocation_way=way)
    asked = {"uid": "r", "operation": "CREATE", "namespace": "default", "object": plain}
    return asyncio.run(hook.admit(asked))


@pytest.mark.parametrize(
    ("hard", "sentence"),
    [
        (
            {f"limits.{GPUMEM}": "5999"},
            f"hetero: over quota team of namespace default ({GPUMEM}: 5999 allowed, 6000 asked)",
        ),
        (
            {f"limits.{GPUCORES}": "0"},
            f"hetero: over quota team of namespace default ({GPUCORES}: 0 allowed, 60 asked)",
        ),
        ({f"limits.{GPUMEM}": "6000", f"limits.{GPUCORES}": "60"}, None),
    ],
)
def test_a_pod_that_passes_a_quota_by_itself_is_not_admitted(
    hard: Mapping[str, str], sentence: str | None
) -> None:
    answer = admitted(pod(of(3000, core=30, count=2)), hard)

    assert (sentence is None, sentence) == (
        answer["allowed"],
        (answer.get("status") or {}).get("message"),
    )


def test_a_pod_passes_a_quota_by_what_it_takes_at_any_time() -> None:
    """A sidecar runs beside the main container, an init container before it."""
    plain = pod(of(3000, core=30))
    plain["spec"]["initContainers"] = [
        {"name": "beside", "restartPolicy": "Always", "resources": {"limits": of(1000, core=10)}},
        {"name": "before", "resources": {"limits": of(2500, core=50)}},
    ]
    allowed = {f"limits.{GPUMEM}": "4000", f"limits.{GPUCORES}": "60"}

    assert admitted(plain, allowed)["allowed"]
    for resource, amount in ((GPUMEM, 3999), (GPUCORES, 59)):
        refused = admitted(plain, {f"limits.{resource}": str(amount)})
        assert f"{amount} allowed, {amount + 1} asked" in refused["status"]["message"]


@pytest.mark.parametrize(("init_memory", "charged"), [(2500, 6500), (3000, 4000), (500, 4500)])
def test_by_claims_a_pod_passes_a_quota_by_the_sum_of_its_claims(
    init_memory: int, charged: int
) -> None:
    """They are held until it ends; an init container has the claim of a main one like it."""
    plain = pod(of(3000))
    plain["spec"]["initContainers"] = [
        {"name": "beside", "restartPolicy": "Always", "resources": {"limits": of(1000)}},
        {"name": "before", "resources": {"limits": of(init_memory)}},
    ]
    for allowed in (charged - 1, charged):
        hard = {f"limits.{GPUMEM}": str(allowed)}
        answer = admitted(plain, hard, way=AllocationWay.DRA)
        assert (charged == allowed) is answer["allowed"]


@pytest.mark.parametrize("seed", range(12))
async def test_webhook_and_scheduler_charge_a_random_pod_of_one_card_alike(seed: int) -> None:
    rng = random.Random(seed)

    def containers(kind: str, count: int, **more: str) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{kind}-{number}",
                "resources": {"limits": of(rng.randrange(500, 3000), rng.randrange(5, 20))},
                **more,
            }
            for number in range(count)
        ]

    plain = pod({})
    plain["spec"]["containers"] = containers("main", rng.randint(1, 3))
    init = containers("init", rng.randint(0, 3))
    init += containers("beside", rng.randint(0, 2), restartPolicy="Always")
    rng.shuffle(init)
    plain["spec"]["initContainers"] = init

    async with scenario(n1=(card("GPU-1", memory=80 * GiB),)) as it:
        asked = it.pod("a", {}, **plain["spec"])
        answer = await it.call("filter", Pod=asked, NodeNames=["n1"])
        assert ["n1"] == answer["NodeNames"]
        assert {} == await it.bind("a", "n1")
        used = it.scheduler.quotas.quotas.used["default"]
        charge = {name: used[name] for name in (GPUMEM, GPUCORES)}
        it.api.delete(f"{PODS}/a")
        for resource, amount in charge.items():
            enough, lacking = ({f"limits.{resource}": str(amount - less)} for less in (0, 1))
            assert (await asyncio.to_thread(admitted, plain, enough))["allowed"]
            refused = await asyncio.to_thread(admitted, plain, lacking)
            assert f"{amount - 1} allowed, {amount} asked" in refused["status"]["message"]
            allow(it.api, lacking)
            answer = await it.call("filter", Pod=it.pod("b", {}, **plain["spec"]), NodeNames=["n1"])
            assert f"{amount - 1} allowed, {amount} asked" in str(answer["FailedNodes"])
