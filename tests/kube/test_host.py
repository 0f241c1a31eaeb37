"""Processors and memory of nodes, less what all pods request, as kube-scheduler counts them."""

from typing import Any

import pytest

from hetero.kube.objects.kinds import NodeObject, Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler import verbs
from hetero.kube.words.annotations import INVENTORY, inventory_text
from hetero.kube.words.host import node_host, pod_host
from hetero.model.errors import BadInput
from hetero.model.units import GiB, MiB
from tests.kube.conftest import card
from tests.kube.fake_api import PODS, FakeApi
from tests.kube.test_scheduler import SHARE, scenario


def asking(cpu: str, memory: str | None = None, **rest: Any) -> dict[str, Any]:
    amounts = {"cpu": cpu, **({"memory": memory} if memory else {})}
    return {"resources": {"requests": amounts}, **rest}


def with_host(api: FakeApi, name: str, cpu: str, cards: int = 2) -> None:
    devices = tuple(card(f"{name}-{index}") for index in range(cards))
    metadata = {"name": name, "annotations": {INVENTORY: inventory_text(devices)}}
    status = {"allocatable": {"cpu": cpu, "memory": "64Gi"}}
    api.put_now(f"/api/v1/nodes/{name}", {"metadata": metadata, "status": status})


def test_a_pod_requests_the_most_that_it_needs_at_any_time() -> None:
    spec = {
        "initContainers": [
            asking("3", "1Gi"),
            asking("500m", restartPolicy="Always"),
            asking("4", "100"),
        ],
        "containers": [asking("1", "512Mi"), asking("0.5", "0.5Gi"), {}],
        "overhead": {"cpu": "10m"},
    }

    assert {"cpu": 4510, "memory": GiB} == pod_host(read(Pod, {"spec": spec}))
    assert {"cpu": 1510, "memory": GiB} == pod_host(
        read(Pod, {"spec": {**spec, "initContainers": None}})
    )
    whole = {**spec, "resources": {"requests": {"cpu": "8"}}}
    assert {"cpu": 8010, "memory": GiB} == pod_host(read(Pod, {"spec": whole}))


def test_parts_of_a_unit_are_rounded_up() -> None:
    allocatable = {"cpu": "1500001u", "memory": "1073741824100m", "pods": "110"}

    assert {"cpu": 1501, "memory": GiB + 1} == node_host(
        read(NodeObject, {"status": {"allocatable": allocatable}})
    )
    assert {} == node_host(read(NodeObject, {}))
    with pytest.raises(BadInput, match="cpu 'many' is not a number"):
        pod_host(read(Pod, {"spec": {"containers": [asking("many")]}}))


async def test_a_pod_without_devices_that_stands_takes_processors_until_it_ends() -> None:
    async with scenario("one") as it:
        with_host(it.api, "n1", "4")
        web = it.pod("web", {}, nodeName="n1")
        web["spec"]["containers"][0] |= asking("3")
        it.api.put_now(f"{PODS}/web", web)
        needs = it.pod("p", SHARE)
        needs["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}

        answer = await it.call("filter", Pod=needs, NodeNames=["n1"])
        assert {"NodeNames": [], "FailedNodes": {"n1": "lack host cpu"}} == answer
        it.api.delete(f"{PODS}/web")
        answer = await it.call("filter", Pod=needs, NodeNames=["n1"])
        assert ["n1"] == answer["NodeNames"]


async def test_cards_that_are_short_of_processors_go_to_pods_that_need_few() -> None:
    async with scenario("one") as it:
        for name, cpu in (("large", "128"), ("small", "20")):
            with_host(it.api, name, cpu, cards=32)
        chosen = []
        for number in range(20):  # the first lesson is drawn after sixteen
            pod = it.pod(f"p{number}", {"nvidia.com/gpu": "1"})
            requests = {"cpu": "2" if number < 16 else "500m"}
            pod["spec"]["containers"][0]["resources"]["requests"] = requests
            answer = await it.call("filter", Pod=pod, NodeNames=["large", "small"])
            if number > 16:
                chosen += answer["NodeNames"]

        assert {"small"} == set(chosen)


async def test_a_pod_that_counts_no_device_goes_where_it_takes_least_from_devices() -> None:
    async with scenario("one") as it:
        for name, cards in (("cards", 4), ("one", 1)):
            with_host(it.api, name, "16", cards)
        pod = it.pod("web", {"nvidia.com/gpu": "0"})
        pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "15"}
        for number in range(16):
            share = it.pod(f"p{number}", {"nvidia.com/gpu": "1"})
            share["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "4"}
            await it.call("filter", Pod=share, NodeNames=[])

        answer = await it.call("filter", Pod=pod, NodeNames=["cards", "one", "plain"])
        assert {"NodeNames": ["plain"], "FailedNodes": {}} == answer
        answer = await it.call("filter", Pod=pod, NodeNames=["cards", "one"])
        assert {"NodeNames": ["one"], "FailedNodes": {}} == answer
        assert {} == await it.bind("web", "one")
        assert "annotations" not in it.api.objects[f"{PODS}/web"]["metadata"]
        again = await it.call(
            "filter", Pod={**pod, "metadata": {**pod["metadata"], "uid": "u"}}, NodeNames=["one"]
        )
        assert {"NodeNames": ["one"], "FailedNodes": {}} == again, "kube-scheduler knows better"


async def test_what_filter_chose_is_taken_until_the_pod_is_bound_or_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(verbs, "monotonic", lambda: clock[0])

    async with scenario("one", n1=(card("GPU-1"),), n2=(card("GPU-2"),)) as it:
        offered, whole = ["n1", "n2"], {"nvidia.com/gpu": "1"}
        for name, node in (("a", "n1"), ("b", "n2"), ("a", "n1")):
            answer = await it.call("filter", Pod=it.pod(name, whole), NodeNames=offered)
            assert [node] == answer["NodeNames"]
        refused = await it.call("filter", Pod=it.pod("c", whole), NodeNames=offered)
        assert [] == refused["NodeNames"]
        assert {} == await it.bind("a", "n1")
        clock[0] += 31
        answer = await it.call("filter", Pod=it.pod("c", whole), NodeNames=offered)
        assert ["n2"] == answer["NodeNames"], "b was never bound, a was"


async def test_hami_pods_are_counted_on_a_node_without_processors_left() -> None:
    async with scenario() as it:
        with_host(it.api, "n1", "1")
        old = it.pod("old", SHARE, nodeName="n1")
        old["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}
        old["metadata"]["annotations"] = {
            "hami.io/vgpu-devices-allocated": "n1-1,NVIDIA-V100,8192,50:;"
        }
        it.api.put_now(f"{PODS}/old", old | {"status": {"phase": "Running"}})

        assert 8192 * MiB == it.held("n1-1") * MiB
