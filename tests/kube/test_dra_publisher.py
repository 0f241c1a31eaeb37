"""What a node whose devices are given by claims says of them to the API, and when."""

import asyncio
from typing import Any

import pytest
from attrs import evolve

from hetero.kube.client.api import Access, Api
from hetero.kube.dra.way import AllocationWay, by_claims, served, slice_probe
from hetero.kube.words.annotations import INVENTORY
from hetero.model.errors import BadInput
from hetero.model.units import GiB
from hetero.node.settings import NodeSettings
from hetero.node.view.doctor import Diagnosis, examine
from tests.kube.api_server import FakeApi
from tests.kube.claims import dra_world
from tests.kube.world import CARD, DISCOVER, World, until

NODE = "hetero.io/by-claims"


async def test_a_nodes_devices_are_published_and_not_offered_to_the_kubelet() -> None:
    async with dra_world() as at:
        (published,) = at.api.slices.values()
        assert ["memory-0", "memory-1"] == [one["name"] for one in published["spec"]["devices"]]
        assert [CARD] * 2 == [
            one["attributes"]["resource"]["string"] for one in published["spec"]["devices"]
        ]
        assert ("Node", "uid-n1") == tuple(
            published["metadata"]["ownerReferences"][0][name] for name in ("kind", "uid")
        )
        assert {} == at.kubelet.devices
        assert INVENTORY not in at.api.nodes["n1"]["metadata"].get("annotations", {})


async def test_claims_alone_come_after_the_classic_way() -> None:
    """The node has an inventory from before, which an agent of claims alone may not write."""
    async with dra_world() as at:
        await at.crash()
        at.api.slices.clear()
        (at.path / "token").unlink()
        at.api.nodes["n1"]["metadata"]["annotations"] = {INVENTORY: "from before"}
        await at.start()
        await until(lambda: at.api.slices)
        assert "from before" == at.api.nodes["n1"]["metadata"]["annotations"][INVENTORY]


async def test_a_pool_is_written_once_and_again_when_a_device_changes() -> None:
    async with dra_world() as at:
        (first,) = at.api.slices.values()
        await asyncio.sleep(3 * DISCOVER)
        assert 1 == at.api.writes

        at.vendor.devices[1] = evolve(at.vendor.devices[1], health="XID 48")
        await until(lambda: at.api.writes == 2)
        (second,) = at.api.slices.values()
        assert [1, 2] == [one["spec"]["pool"]["generation"] for one in (first, second)]
        assert [False, True] == ["taints" in one for one in second["spec"]["devices"]]


async def test_slices_that_somebody_changed_or_removed_are_written_again() -> None:
    async with dra_world() as at:
        (first,) = at.api.slices.values()
        at.api.put("resourceslices", {**first, "spec": {**first["spec"], "devices": []}})
        await until(lambda: _devices(at) == 2)

        at.api.put("resourceslices", next(iter(at.api.slices.values())), event="DELETED")
        await until(lambda: _devices(at) == 2)


async def test_a_slice_too_many_is_removed() -> None:
    async with dra_world() as at:
        (first,) = at.api.slices.values()
        metadata = {**first["metadata"], "name": "n1-hetero.io-7"}
        at.api.put("resourceslices", {**first, "metadata": metadata}, event="ADDED")
        await until(lambda: [*at.api.slices] == ["n1-hetero.io-0"])


def _devices(at: World) -> int:
    return sum(len(one["spec"].get("devices", ())) for one in at.api.slices.values())


async def test_a_node_of_both_ways_gives_its_devices_by_one_of_them() -> None:
    async with dra_world(allocation=AllocationWay.BOTH) as at:
        await until(lambda: INVENTORY in at.api.nodes["n1"]["metadata"].get("annotations", {}))
        assert {} == at.api.slices
        assert 20 == len(at.kubelet.devices[CARD])

        node = at.api.nodes["n1"]
        at.api.put("nodes", {"metadata": {**node["metadata"], "labels": {NODE: "true"}}})
        await until(lambda: at.api.slices and not at.kubelet.devices[CARD])
        await until(
            lambda: "memory-0" not in at.api.nodes["n1"]["metadata"]["annotations"][INVENTORY]
        )

        node = at.api.nodes["n1"]
        at.api.put("nodes", {"metadata": {**node["metadata"], "labels": {}}})
        await until(lambda: not at.api.slices and len(at.kubelet.devices[CARD]) == 20)


@pytest.mark.parametrize(
    ("way", "consumable", "expected"),
    [
        (AllocationWay.CLASSIC, False, AllocationWay.CLASSIC),
        (AllocationWay.BOTH, True, AllocationWay.BOTH),
        (AllocationWay.BOTH, False, AllocationWay.CLASSIC),
        (AllocationWay.DRA, True, AllocationWay.DRA),
    ],
)
async def test_both_ways_are_one_where_the_api_server_knows_no_consumable_capacity(
    way: AllocationWay,
    expected: AllocationWay,
    caplog: pytest.LogCaptureFixture,
    *,
    consumable: bool,
) -> None:
    api = FakeApi(consumable=consumable)
    async with api.serve() as url, Api(Access(server=url)).open() as client:
        assert expected == await served(client, way, slice_probe("n1"))
    lines = [one.message for one in caplog.records]
    assert (way is not expected) == any("allocation both is classic here" in one for one in lines)


async def test_claims_alone_are_refused_where_the_api_server_knows_none() -> None:
    api = FakeApi(consumable=False)
    async with api.serve() as url, Api(Access(server=url)).open() as client:
        with pytest.raises(BadInput, match=r"DRAConsumableCapacity off.*allocation classic"):
            await served(client, AllocationWay.DRA, slice_probe("n1"))


async def test_a_device_that_another_driver_publishes_is_not_published_meanwhile() -> None:
    async with dra_world() as at:
        uuid = {"string": "MEMORY-1"}  # another driver may write it otherwise
        foreign: dict[str, Any] = {
            "metadata": {"name": "n1-other"},
            "spec": {
                "driver": "other.io",
                "nodeName": "n1",
                "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0", "attributes": {"uuid": uuid}}],
            },
        }
        at.api.put("resourceslices", foreign, event="ADDED")
        await until(lambda: ["memory-0"] == _ours(at))
        # The agent notes it for doctor once the API has answered.
        await until(lambda: _told(at))
        ((subject, verdict, says),) = _told(at)
        assert ("memory:1", Diagnosis.NOTE) == (subject, verdict)
        assert "claims get it from driver other.io, which publishes memory-1, too" in says
        at.api.put("resourceslices", foreign, event="DELETED")
        await until(lambda: ["memory-0", "memory-1"] == _ours(at))
        await until(lambda: not _told(at))


async def test_slices_are_written_again_when_only_the_numbers_of_their_devices_changed() -> None:
    def numbers() -> dict[str, int]:
        (resource_slice,) = at.api.slices.values()
        return {
            device["name"]: device["attributes"]["number"]["int"]
            for device in resource_slice["spec"]["devices"]
        }

    async with dra_world(*3 * [16 * GiB]) as at:
        await at.crash()
        at.node = evolve(at.node, settings=NodeSettings(exclude=("memory-0",)))
        await at.start()
        await until(lambda: numbers() == {"memory-1": 1, "memory-2": 2})
        at.vendor.devices.pop(0)
        await until(lambda: numbers() == {"memory-1": 0, "memory-2": 1})


def _told(at: World) -> list[tuple[str, Diagnosis, str]]:
    """Return what doctor says of the other driver."""
    findings = examine(at.node)
    return [(one.subject, one.verdict, one.says) for one in findings if "other.io" in one.says]


def _ours(at: World) -> list[str]:
    return [one["name"] for one in at.api.slices["n1-hetero.io-0"]["spec"]["devices"]]


@pytest.mark.parametrize(
    ("way", "known"),
    [(AllocationWay.CLASSIC, False), (AllocationWay.DRA, True), (AllocationWay.BOTH, None)],
)
def test_only_where_there_are_both_ways_a_node_is_waited_for(
    way: AllocationWay, *, known: bool | None
) -> None:
    """Else an API that does not answer would keep devices from the kubelet."""
    assert known is by_claims(way, None)
