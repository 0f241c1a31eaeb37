import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from attrs import evolve, frozen

from hetero.kube.scheduler.agents import Agents
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.words.annotations import (
    INVENTORY,
    Assignment,
    Held,
    NodeGrants,
    inventory_text,
    read_assignment,
)
from hetero.kube.words.settings import Settings
from hetero.kube.words.signing import SigningKey
from hetero.model import CORE, Device, Fractional, Step, Whole
from hetero.model.units import GiB, MiB
from tests.kube.conftest import card
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_pod_request import WORDS

KEY = SigningKey.new()
SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192", "nvidia.com/gpucores": "50"}


@frozen
class Running:
    """A scheduler over a fake API, called as kube-scheduler does."""

    api: FakeApi
    scheduler: Scheduler
    client: Any

    async def call(self, verb: str, **args: Any) -> Any:
        answer = await self.client.post(f"/{verb}", json=args)
        return await answer.json()

    def pod(self, name: str, limits: Mapping[str, str] = SHARE, **spec: Any) -> dict[str, Any]:
        container = {"name": "main", "resources": {"limits": dict(limits)}}
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        return self.api.put_now(
            f"{PODS}/{name}", {"metadata": metadata, "spec": {"containers": [container], **spec}}
        )

    async def bind(self, name: str, node: str) -> Any:
        return await self.call(
            "bind", PodName=name, PodNamespace="default", PodUID=f"uid-{name}", Node=node
        )

    def publish(self, node: str, *devices: Device, running_on: Held | None = None) -> None:
        """Have a node say what it has."""
        notes = {INVENTORY: inventory_text(devices, NodeGrants(ended_pods=running_on or {}))}
        metadata = {"name": node, "uid": f"uid-{node}", "annotations": notes}
        self.api.put_now(f"/api/v1/nodes/{node}", {"metadata": metadata})

    async def bind_all(self, node: str, *, count: int) -> None:
        for number in range(count):
            self.pod(f"{node}-{number}")
            assert {} == await self.bind(f"{node}-{number}", node)

    def given(self, name: str) -> Assignment | None:
        pod = self.api.objects[f"{PODS}/{name}"]
        notes = pod["metadata"].get("annotations", {})
        node = pod["spec"].get("nodeName", "")
        return read_assignment(notes, KEY.public, pod=name, uid=f"uid-{name}", node=node)

    def held(self, device: str) -> int:
        holds = [h for p in self.scheduler.cache.standing.values() for h in p.holds]
        return sum(handle.takes["memory"] for handle in holds if handle.device == device) // 2**20


@asynccontextmanager
async def running(
    api: FakeApi,
    choose: str = "score",
    mix: str | None = None,
    agents: Agents | None = None,
    /,
    **nodes: tuple[Device, ...],
) -> AsyncIterator[Running]:
    for name, devices in nodes.items():
        notes = {INVENTORY: inventory_text(devices)}
        metadata = {"name": name, "uid": f"uid-{name}", "annotations": notes}
        api.put_now(f"/api/v1/nodes/{name}", {"metadata": metadata})
    settings = Settings(choose=choose)
    scheduler = Scheduler(api, WORDS, KEY, settings=settings, agents=agents, mix_in=mix)
    if scheduler.mix is not None:
        await scheduler.mix.read()
    informers = (scheduler.nodes, scheduler.pods, scheduler.quotas, scheduler.claims)
    tasks = [asyncio.ensure_future(informer.follow()) for informer in informers]
    async with TestClient(TestServer(scheduler.calls.app())) as client:
        yield Running(api, scheduler, client)
    for task in tasks:
        task.cancel()


def scenario(
    choose: str = "score", /, **nodes: tuple[Device, ...]
) -> AbstractAsyncContextManager[Running]:
    """Run a scheduler of nodes with these cards, over an API of its own."""
    return running(FakeApi(), choose, **nodes)


async def test_filter_gives_names_and_says_why_the_others_do_not_serve() -> None:
    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2", memory=2**32),)) as it:
        answer = await it.call("filter", Pod=it.pod("p"), NodeNames=["n1", "n2", "n3"])

        assert ["n1"] == answer["NodeNames"]
        assert {"n2": "too small", "n3": "have no device"} == answer["FailedNodes"]


async def test_filter_takes_nothing() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        for _ in range(3):
            await it.call("filter", Pod=it.pod("p"), NodeNames=["n1"])

        assert 0 == it.held("GPU-1")
        assert [] == [call for call in it.api.calls if not call.startswith("GET")]


async def test_a_pod_that_fits_nowhere_is_told_once_in_one_sentence() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        pod = it.pod("p", {"nvidia.com/gpu": "2"})
        for _ in range(3):
            await it.call("filter", Pod=pod, NodeNames=["n1"])
        await asyncio.sleep(0)
    assert ["0 of 1 node: 1 have too few devices (2 wanted, most on a node 1)"] == it.api.events


async def test_less_than_a_context_stays_pending_and_says_the_figure() -> None:
    """Bound it would never be given, and its controller might make another without end."""
    attributes = {"context": 518 * MiB}
    uncounted = {**attributes, "context_counts": "for claims"}
    share = {**SHARE, "nvidia.com/gpumem": "518"}
    sentence = "too little for a context (518 MiB wanted, the driver's context alone takes 518 MiB)"
    async with scenario(n1=(card("GPU-1", attributes=attributes),)) as it:
        small = it.pod("small", share)
        large = it.pod("large", {**share, "nvidia.com/gpumem": "519"})

        refused = await it.call("filter", Pod=small, NodeNames=["n1"])
        served = await it.call("filter", Pod=large, NodeNames=["n1"])
        await asyncio.sleep(0)
        bound = await it.bind("small", "n1")

        assert [{"n1": sentence}, ["n1"]] == [refused["FailedNodes"], served["NodeNames"]]
        assert [f"0 of 1 node: 1 {sentence}"] == it.api.events[:1]
        assert sentence in bound["Error"]
        it.publish("n1", card("GPU-1", attributes=uncounted))
        assert ["n1"] == (await it.call("filter", Pod=small, NodeNames=["n1"]))["NodeNames"]


async def test_bind_signs_the_allocation_and_binds_the_pod() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        it.pod("p")
        assert {} == await it.bind("p", "n1")

        given = it.given("p")
        assert given is not None
        ((name, allocation),) = given.containers
        (grant,) = allocation.pieces
        assert ("n1", "main", "GPU-1", 50) == (given.node, name, grant.device, grant.core)


async def test_a_pod_that_has_a_whole_card_for_a_part_has_an_event_that_says_why() -> None:
    async with scenario(n1=(card("GPU-1", granularity=Whole()),)) as it:
        it.pod("p")
        assert {} == await it.bind("p", "n1")
        await asyncio.sleep(0)

        (sentence,) = it.api.events
        assert "V100 is given whole for a part of it: it has no parts" == sentence


async def test_of_many_pods_bound_at_once_no_more_than_fit_get_a_share() -> None:
    async with scenario(n1=(card("GPU-1"), card("GPU-2"))) as it:
        names = [f"p{number}" for number in range(40)]
        for name in names:
            it.pod(name)
        answers = await asyncio.gather(*(it.bind(name, "n1") for name in names))

        assert 4 == answers.count({})
        assert [16384, 16384] == [it.held("GPU-1"), it.held("GPU-2")]
        assert {
            "Error": "node n1: 0 of 2 devices: 2 lack memory (8 GiB wanted, largest free 0)"
        } in answers


async def test_a_binding_that_fails_gives_the_share_back() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        it.pod("p")
        it.api.fail = {"/binding"}
        assert "told to fail" in (await it.bind("p", "n1"))["Error"]
        assert 0 == it.held("GPU-1")


async def test_a_pod_that_ends_or_is_deleted_gives_its_share_back() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        for name in ("ends", "goes"):
            it.pod(name)
            await it.bind(name, "n1")
        assert 16384 == it.held("GPU-1")

        ended = it.api.objects[f"{PODS}/ends"] | {"status": {"phase": "Succeeded"}}
        it.api.put_now(f"{PODS}/ends", ended)
        it.api.delete(f"{PODS}/goes")
        assert 0 == it.held("GPU-1")


async def test_a_scheduler_that_starts_anew_knows_what_stands() -> None:
    cards = (card("GPU-1"),)

    api = FakeApi()
    async with running(api, n1=cards) as first:
        first.pod("p")
        await first.bind("p", "n1")
    async with running(api, n1=cards) as second:
        await second.call("filter", Pod=second.pod("q"), NodeNames=["n1"])
        assert 8192 == second.held("GPU-1")


async def test_what_hami_gave_is_counted_where_it_is_until_its_pod_ends() -> None:
    async with scenario(n1=tuple(card(f"GPU-{n}", model="V100") for n in (1, 2, 3))) as it:
        old = it.pod("old", {**SHARE, "nvidia.com/gpu": "2"}, nodeName="n1")
        old["status"] = {"phase": "Running"}
        given = "GPU-2,NVIDIA-V100,8192,50:GPU-3,NVIDIA-V100,8192,50:;"
        old["metadata"]["annotations"] = {"hami.io/vgpu-devices-allocated": given}
        it.api.put_now(f"{PODS}/old", old)
        held = [it.held(f"GPU-{n}") for n in (1, 2, 3)]
        assert [0, 8192, 8192] == held
        old["status"]["phase"] = "Succeeded"
        it.api.put_now(f"{PODS}/old", old)
        assert 0 == it.held("GPU-2")


async def test_who_says_that_hami_gave_it_a_card_and_does_not_run_takes_nothing() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        notes = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA-V100,8192,50:;"}
        for name, limits, phase in (("a", SHARE, "Pending"), ("b", {"cpu": "1"}, "Running")):
            pod = it.pod(name, limits, nodeName="n1")
            pod["status"], pod["metadata"]["annotations"] = {"phase": phase}, notes
            it.api.put_now(f"{PODS}/{name}", pod)

        assert 0 == it.held("GPU-1")


async def test_a_forged_or_replayed_allocation_takes_nothing() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        it.pod("victim")
        await it.bind("victim", "n1")
        notes = it.api.objects[f"{PODS}/victim"]["metadata"]["annotations"]
        thief = it.pod("thief", nodeName="n1")
        thief["metadata"]["annotations"] = notes
        it.api.put_now(f"{PODS}/thief", thief)

        assert 8192 == it.held("GPU-1")


async def test_nodes_are_packed_by_default_and_spread_on_request() -> None:
    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2"),)) as it:
        it.pod("first")
        await it.bind("first", "n1")
        packed = await it.call("prioritize", Pod=it.pod("a"), NodeNames=["n1", "n2"])
        spreading = it.pod("b")
        spreading["metadata"]["annotations"] = {"hami.io/node-scheduler-policy": "spread"}
        spread = await it.call("prioritize", Pod=spreading, NodeNames=["n1", "n2"])

        assert [{"Host": "n1", "Score": 10}] == packed
        assert [{"Host": "n2", "Score": 10}] == spread


async def test_nodes_are_packed_also_where_one_would_give_a_larger_shape() -> None:
    coarse = card("GPU-3", memory=24 * GiB, granularity=Fractional(memory=Step(10 * GiB)))
    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2"),), n3=(coarse,)) as it:
        it.pod("first")
        await it.bind("first", "n1")
        scores = await it.call("prioritize", Pod=it.pod("a"), NodeNames=["n1", "n2", "n3"])
        of_two = await it.call("prioritize", Pod=it.pod("b"), NodeNames=["n2", "n3"])

        assert [{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 5}] == scores
        assert [{"Host": "n2", "Score": 10}] == of_two


async def test_cards_of_a_node_are_compared_as_a_pod_says_in_hamis_words() -> None:
    tight = {"hami.io/gpu-scheduler-policy": "binpack"}
    weighed = {"hami.io/device-scoring-weights": "slot=1,core=0,memory=0"}
    async with scenario(n1=(card("GPU-1"), card("GPU-2"))) as it:

        async def card_of(name: str, notes: dict[str, str]) -> str:
            it.pod(name)
            it.api.objects[f"{PODS}/{name}"]["metadata"]["annotations"] = notes
            it.api.put_now(f"{PODS}/{name}", it.api.objects[f"{PODS}/{name}"])
            await it.bind(name, "n1")
            given = it.given(name)
            assert given is not None
            return given.containers[0][1].pieces[0].device

        first = await card_of("a", tight)
        assert first == await card_of("b", tight)
        assert first != await card_of("c", weighed)  # the cluster's own placement spreads


async def test_preemption_names_as_many_victims_as_the_cards_need() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        for name, priority in (("low", 1), ("mid", 5)):
            it.pod(name, priority=priority)
            await it.bind(name, "n1")
        pod = it.pod("high", priority=10)
        offered = {"n1": {"pods": [], "numPDBViolations": 0}}
        answer = await it.call("preempt", Pod=pod, NodeNameToMetaVictims=offered)
        greater = it.pod("all", {"nvidia.com/gpu": "1"}, priority=10)
        both = await it.call("preempt", Pod=greater, NodeNameToMetaVictims=offered)

        def victims(answer: Any) -> list[str]:
            return [p["UID"] for p in answer["NodeNameToMetaVictims"]["n1"]["Pods"]]

        assert ["uid-low"] == victims(answer)
        assert ["uid-low", "uid-mid"] == sorted(victims(both))


async def test_a_node_whose_inventory_cannot_be_read_is_told_so_and_others_serve() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        broken = {"metadata": {"name": "n2", "annotations": {INVENTORY: "{"}}}
        it.api.put_now("/api/v1/nodes/n2", broken)
        answer = await it.call("filter", Pod=it.pod("p"), NodeNames=["n1", "n2"])

        assert ["n1"] == answer["NodeNames"]
        assert {"n2": "publish an inventory that this version cannot read"} == answer["FailedNodes"]


async def test_a_card_that_two_nodes_publish_is_given_by_the_first_alone() -> None:
    async with scenario(
        n1=(card("GPU-1"),), n2=(card("GPU-1"),), n3=(card("GPU-1"), card("GPU-2"))
    ) as it:
        answer = await it.call("filter", Pod=it.pod("p"), NodeNames=["n1", "n2", "n3"])

        assert ["n1", "n3"] == answer["NodeNames"]  # n3 by its other card
        assert {"n2": "publish device GPU-1, which node n1 has"} == answer["FailedNodes"]
        pair = {"nvidia.com/gpu": "2"}
        answer = await it.call("filter", Pod=it.pod("pair", pair), NodeNames=["n1", "n3"])
        assert [] == answer["NodeNames"]
        message = "this node publish device GPU-1, which node n1 has"
        assert 2 == sum(message in one for one in it.api.events)
        it.publish("n3", card("GPU-2"), card("GPU-1"))
        it.publish("n1", card("GPU-3"))
        assert 2 == sum(message in one for one in it.api.events)
        it.publish("n3", card("GPU-2"), card("GPU-1"))  # as a node says again and again
        answer = await it.call("filter", Pod=it.pod("pair", pair), NodeNames=["n1", "n3"])
        assert ["n3"] == answer["NodeNames"]


async def test_prometheus_is_told_of_decisions_refusals_and_what_is_given_out() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        await it.call("filter", Pod=it.pod("p"), NodeNames=["n1", "n2"])
        await it.bind("p", "n1")
        read = it.scheduler.calls.metrics.registry.get_sample_value

        assert 1 == read("hetero_scheduler_decisions_total", {"verb": "bind", "result": "ok"})
        assert 1 == read("hetero_scheduler_refusals_total", {"reason": "have no device"})
        where = {"Hostname": "n1", "vendor": "nvidia"}
        assert 8 * 2**30 == read("hetero_node_memory_allocated_bytes", where)
        assert 0.5 == read("hetero_node_core_allocated_cards", where)


async def test_core_that_is_given_out_is_in_cards_where_a_node_gives_more_than_its_cards() -> None:
    plain = card("GPU-1")
    scaled = evolve(plain, capacity={**plain.capacity, CORE: 200}, card=plain.capacity)
    async with scenario(n1=(scaled,)) as it:
        await it.call("filter", Pod=it.pod("p"), NodeNames=["n1"])
        await it.bind("p", "n1")
        read = it.scheduler.calls.metrics.registry.get_sample_value
        where = {"Hostname": "n1", "vendor": "nvidia"}

        assert 0.5 == read("hetero_node_core_allocated_cards", where)


async def test_nodes_are_scored_as_asked_whatever_was_filtered_last() -> None:
    async with scenario(
        n1=(card("GPU-1"),), n2=(card("GPU-2"), card("GPU-3")), n3=(card("GPU-4"),)
    ) as it:
        it.pod("first")
        await it.bind("first", "n1")
        await it.bind_all("n2", count=4)
        pod, every = it.pod("p"), ["n1", "n2", "n3"]
        scores = [{"Host": "n1", "Score": 10}]

        assert ["n1", "n3"] == (await it.call("filter", Pod=pod, NodeNames=every))["NodeNames"]
        assert scores == await it.call("prioritize", Pod=pod, NodeNames=["n1", "n3"])
        assert scores == await it.call("prioritize", Pod=it.pod("q"), NodeNames=["n1", "n3"])
        assert [] == await it.call("prioritize", Pod=pod, NodeNames=["n3"])
        assert ["n1", "n3"] == (await it.call("filter", Pod=pod, NodeNames=every))["NodeNames"]


async def test_a_pod_that_changed_since_it_was_filtered_is_read_anew() -> None:
    async with scenario(n1=(card("GPU-1"),), n2=(card("GPU-2"),)) as it:
        it.pod("first")
        await it.bind("first", "n1")
        pod, nodes = it.pod("p"), ["n1", "n2"]
        await it.call("filter", Pod=pod, NodeNames=nodes)
        pod["metadata"]["annotations"] = {"hami.io/node-scheduler-policy": "spread"}

        spread = [{"Host": "n2", "Score": 10}]
        assert spread == await it.call("prioritize", Pod=pod, NodeNames=nodes)


async def test_a_pod_that_hides_what_would_limit_it_is_sent_to_no_node_and_evicts_nobody() -> None:
    """No webhook saw it: its namespace has the label. A node would never start it."""
    mount = {"name": "own", "mountPath": "/etc"}
    main = {"name": "main", "volumeMounts": [mount], "resources": {"limits": SHARE}}
    helper = {"name": "helper", "volumeMounts": [mount]}
    async with scenario(n1=(card("GPU-1"),)) as it:
        pod = it.pod("hides", containers=[main])
        for nodes in ({"NodeNames": ["n1"]}, {"Nodes": {"items": [{"metadata": {"name": "n1"}}]}}):
            answer = await it.call("filter", Pod=pod, **nodes)
            assert "container main: mounts its own at /etc, where what limits" in answer["Error"]
            assert {"Error"} == answer.keys()

        main["volumeMounts"] = []
        pod = it.pod("helped", containers=[main, helper])
        assert ["n1"] == (await it.call("filter", Pod=pod, NodeNames=["n1"]))["NodeNames"]


async def test_a_call_that_names_no_nodes_and_sends_none_is_an_error() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        for absent in ({}, {"NodeNames": None}, {"NodeNames": None, "Nodes": None}):
            answer = await it.call("filter", Pod=it.pod("p"), **absent)
            assert "hetero: the call has neither NodeNames nor Nodes" == answer["Error"]


async def test_nonsense_from_a_caller_is_an_error_and_no_outage() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        assert "not what kube-scheduler sends" in (await it.call("filter"))["Error"]
        for body in (b"", b"{", b"[]", b'{"Pod": {}, "NodeNames": [1]}', b'{"Pod": "\xff"}'):
            answer = await it.client.post("/filter", data=body)
            assert "not what kube-scheduler sends" in (await answer.json())["Error"]
        assert ["n1"] == (await it.call("filter", Pod=it.pod("p"), NodeNames=["n1"]))["NodeNames"]
