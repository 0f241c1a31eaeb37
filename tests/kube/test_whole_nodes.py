"""Filter's answer about nodes that are sent whole, also of those that no cluster has."""

from typing import Any

from hetero.kube.objects.kinds import Plain
from hetero.kube.words.annotations import INVENTORY, inventory_text
from hetero.model import Device
from tests.kube.conftest import card
from tests.kube.test_scheduler import scenario


def whole(name: str, *cards: Device) -> Plain:
    """Return a node as kube-scheduler sends it with `nodeCacheCapable: false`."""
    notes = {INVENTORY: inventory_text(cards)} if cards else {}
    status = {"allocatable": {"cpu": "64", "memory": "256Gi"}}
    return {"metadata": {"name": name, "annotations": notes}, "status": status}


async def test_nodes_that_are_sent_whole_are_answered_whole() -> None:
    async with scenario(n1=(card("GPU-1"),), n2=()) as it:
        sent = [whole("n1", card("GPU-1")), whole("n2")]
        pod = it.pod("p")
        answer = await it.call("filter", Pod=pod, NodeNames=None, Nodes={"items": sent})

        assert {"items": sent[:1]} == answer["Nodes"]
        assert {"n2": "have no device"} == answer["FailedNodes"]
        assert [] == await it.call("prioritize", Pod=pod, NodeNames=None, Nodes=answer["Nodes"])
        bound = await it.call(
            "bind", PodName="p", PodNamespace="default", PodUID=pod["metadata"]["uid"], Node="n1"
        )
        assert {} == bound


async def test_a_node_that_the_cluster_does_not_have_is_answered_by_its_annotation() -> None:
    async with scenario("one", n1=(card("GPU-1"),)) as it:
        sent = [whole("would-be", card("GPU-1")), whole("plain"), whole("n1", card("GPU-1"))]
        sent[1]["metadata"]["annotations"] = {INVENTORY: "{"}
        pods = [it.pod(f"p{number}", {"nvidia.com/gpu": "1"}) for number in range(3)]
        answers = [
            await it.call("filter", Pod=pod, NodeNames=None, Nodes={"items": nodes})
            for pod, nodes in zip(pods, (sent[:2], sent[:2], sent), strict=True)
        ]
        # A simulation takes nothing: both of the first pods would have the whole card.
        for answer in answers[:2]:
            assert ["would-be"] == names(answer)
            assert "hetero.io/inventory" in answer["FailedNodes"]["plain"]
        assert ["would-be", "n1"] == names(answers[2])
        assert {"uid-p2"} == {*it.scheduler.cache.standing}


async def test_pods_without_cards_are_left_all_nodes_that_are_sent_whole() -> None:
    async with scenario(n1=(card("GPU-1"),)) as it:
        nodes = {"items": [whole("n1", card("GPU-1")), whole("other")]}
        pod = it.pod("p", {"cpu": "1"})
        assert nodes == (await it.call("filter", Pod=pod, Nodes=nodes))["Nodes"]


def names(answer: Any) -> list[str]:
    return [node["metadata"]["name"] for node in answer["Nodes"]["items"]]
