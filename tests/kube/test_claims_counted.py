"""Claims count in the scheduler as pods do: in quotas, in metrics, and on the cards themselves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attrs import evolve
from prometheus_client import generate_latest

from hetero.kube.dra.standing_claims import CLAIMS, SLICES
from hetero.kube.words.annotations import INVENTORY, inventory_text
from hetero.model import MEMORY, Device
from hetero.model.units import GiB
from tests.kube.claimed_cards import CARDS, claim_of, part_of, slices_of
from tests.kube.conftest import card
from tests.kube.fake_api import FakeApi
from tests.kube.test_quota import GPUCORES, GPUMEM, allow, of, refused
from tests.kube.test_scheduler import Running, running
from tests.kube.world import until

BY_CLAIMS, CLASSIC = card("GPU-9"), card("GPU-1")
_CLAIMS = CLAIMS.replace("v1/", "v1/namespaces/default/")


def put_claim(
    api: FakeApi, name: str, *, node: str = "n9", device: Device = BY_CLAIMS, **size: Any
) -> None:
    api.put_now(f"{_CLAIMS}/{name}", claim_of(name, part_of(node, device, **size)))


def put_node(api: FakeApi, name: str, *devices: Device) -> None:
    """Put a node whose cards are given by claims."""
    api.put_now(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "uid": f"uid-{name}"}})
    for resource_slice in slices_of(name, devices):
        api.put_now(f"{SLICES}/{resource_slice['metadata']['name']}", resource_slice)


@asynccontextmanager
async def both_ways() -> AsyncIterator[Running]:
    """Run a scheduler of n1, of which it gives the card, and n9, which gives its own by claims."""
    api = FakeApi()
    put_node(api, "n9", BY_CLAIMS)
    async with running(api, n1=(CLASSIC,)) as it:
        await until(lambda: "n9" in it.scheduler.cache.inventory.nodes)
        yield it


def metric(it: Running, name: str) -> dict[str, float]:
    """Return the values of a metric of nodes, by node."""
    lines = generate_latest(it.scheduler.calls.metrics.registry).decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if line.startswith(f"{name}{{"))
    return {labels.split('"')[1]: float(value) for labels, _, value in samples}


async def test_a_quota_counts_what_claims_of_its_namespace_hold() -> None:
    async with both_ways() as it:
        allow(it.api, {f"limits.{GPUMEM}": "12000", f"limits.{GPUCORES}": "50"})
        put_claim(it.api, "claim", memory=8 * GiB, core=30)

        assert f"over quota team of namespace default ({GPUMEM}: 12000 allowed, 8192 used, " in str(
            await refused(it, "a", of(4000))
        )
        assert f"({GPUCORES}: 50 allowed, 30 used, 21 asked)" in str(
            await refused(it, "b", of(1000, core=21))
        )
        assert None is await refused(it, "c", of(3000, core=20))
        it.api.delete(f"{_CLAIMS}/claim")
        assert None is await refused(it, "a", of(4000))


async def test_a_pod_that_waits_for_its_quota_is_tried_again_when_a_claim_goes() -> None:
    async with both_ways() as it:
        allow(it.api, {f"limits.{GPUMEM}": "8192"})
        put_claim(it.api, "claim", memory=8 * GiB)
        assert await refused(it, "a", of(4000))
        it.api.delete(f"{_CLAIMS}/claim")
        await asyncio.sleep(1.2)

        pod = it.api.objects["/api/v1/namespaces/default/pods/a"]
        assert "hetero.io/tried-again" in pod["metadata"]["annotations"]


async def test_the_metrics_have_the_cards_that_claims_give_and_what_they_hold() -> None:
    async with both_ways() as it:
        put_claim(it.api, "claim", memory=8 * GiB, core=30)

        assert {"n1": 1, "n9": 1} == metric(it, "hetero_node_cards")
        assert {"n1": 0, "n9": 8 * GiB} == metric(it, "hetero_node_memory_allocated_bytes")
        assert {"n1": 0, "n9": 0.3} == metric(it, "hetero_node_core_allocated_cards")


async def test_no_pod_by_resource_names_is_sent_to_a_node_that_gives_its_cards_by_claims() -> None:
    async with both_ways() as it:
        answer = await it.call("filter", Pod=it.pod("p"), NodeNames=["n1", "n9"])
        assert (["n1"], {"n9": "give their cards by claims"}) == (
            answer["NodeNames"],
            answer["FailedNodes"],
        )


async def test_a_node_goes_from_one_way_to_the_other_and_back() -> None:
    async with both_ways() as it:

        async def says() -> str | None:
            answer = await it.call("filter", Pod=it.pod("p"), NodeNames=["n9"])
            reason: str | None = answer["FailedNodes"].get("n9")
            return reason

        it.publish("n9", BY_CLAIMS)
        assert None is await says()
        it.publish("n9")  # withdrawn, while the slices are there
        assert "give their cards by claims" == await says()
        it.publish("n9", BY_CLAIMS)
        it.api.delete(f"{SLICES}/n9-hetero.io-0")
        assert None is await says()
        put_node(it.api, "n9", BY_CLAIMS)
        assert "give their cards by claims" == await says()
        it.api.delete(f"{SLICES}/n9-hetero.io-0")
        assert "have no device" == await says()
        put_node(it.api, "n9", BY_CLAIMS)
        it.publish("n9")
        it.api.delete(f"{SLICES}/n9-hetero.io-0")
        assert "have no device" == await says()
        assert {"n1": 1} == metric(it, "hetero_node_cards")


async def test_a_node_whose_slices_are_being_written_anew_keeps_its_cards_meanwhile() -> None:
    """An agent writes one slice after the other, and the cards are in the last."""
    (ascend, *_) = CARDS["n2"]
    async with both_ways() as it:
        put_node(it.api, "n9", ascend)
        await until(lambda: (ascend.uuid,) == _uuids(it, "n9"))
        first, *others = slices_of("n9", [ascend], generation=2)
        it.api.put_now(f"{SLICES}/{first['metadata']['name']}", first)
        assert (ascend.uuid,) == _uuids(it, "n9")
        sick = evolve(ascend, cordon="loud fan")
        for resource_slice in slices_of("n9", [sick], generation=2)[1:]:
            it.api.put_now(f"{SLICES}/{resource_slice['metadata']['name']}", resource_slice)

        assert others
        (device,) = it.scheduler.cache.inventory.devices("n9")
        assert "loud fan" == device.cordon


def _uuids(it: Running, node: str) -> tuple[str, ...]:
    return tuple(device.uuid for device in it.scheduler.cache.inventory.devices(node))


async def test_what_a_claim_holds_from_before_of_a_card_is_given_to_no_pod() -> None:
    async with both_ways() as it:
        put_claim(it.api, "before", node="n1", device=CLASSIC, memory=12 * GiB, core=30)
        assert "lack memory on one device" in str(await refused(it, "a", of(8000)))
        it.publish("n1", CLASSIC, card("GPU-2"))
        assert None is await refused(it, "a", of(8000))
        assert [12 * GiB] == [
            hold.takes[MEMORY]
            for placement in it.scheduler.cache.standing.values()
            for hold in placement.holds
        ]


async def test_claims_are_counted_when_they_are_known_before_their_node() -> None:
    api = FakeApi()
    put_claim(api, "before", node="n1", device=CLASSIC, memory=12 * GiB)
    async with running(api) as it:
        it.publish("n1", CLASSIC)
        allow(it.api, {f"limits.{GPUMEM}": "13000"})
        assert "12288 used" in str(await refused(it, "a", of(1000)))


async def test_pods_that_are_listed_anew_leave_claims_counted() -> None:
    async with both_ways() as it:
        put_claim(it.api, "claim", memory=8 * GiB)
        it.api.list_again()
        assert {"n1": 0, "n9": 8 * GiB} == metric(it, "hetero_node_memory_allocated_bytes")
        it.api.objects.pop(f"{_CLAIMS}/claim")
        it.api.list_again()
        assert {"n1": 0, "n9": 0} == metric(it, "hetero_node_memory_allocated_bytes")


@pytest.mark.parametrize(
    "spec", [7, {}, {"driver": "hetero.io", "nodeName": ["n1"], "pool": {"name": 5}}]
)
async def test_odd_slices_and_claims_keep_nobody_from_being_scheduled(spec: Any) -> None:
    async with both_ways() as it:
        it.api.put_now(f"{SLICES}/odd", {"metadata": {"name": "odd"}, "spec": spec})
        odd = {**claim_of("odd"), "status": {"allocation": {"devices": {"results": [7, {}]}}}}
        it.api.put_now(f"{_CLAIMS}/odd", odd)
        foreign = claim_of("theirs", {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"})
        it.api.put_now(f"{_CLAIMS}/theirs", foreign)

        assert None is await refused(it, "a", of(8000))


async def test_a_scheduler_serves_where_there_are_no_claims() -> None:
    api = FakeApi()
    api.put_now(
        "/api/v1/nodes/n1",
        {
            "metadata": {
                "name": "n1",
                "uid": "uid-n1",
                "annotations": {INVENTORY: inventory_text((CLASSIC,))},
            }
        },
    )
    async with running(api) as it:
        it.api.lose()
        assert None is await refused(it, "a", of(8000))
