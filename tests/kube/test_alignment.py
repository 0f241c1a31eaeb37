"""A kubelet that aligns processors and cards by NUMA node: what starts, and what is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from attrs import evolve

from hetero.kube.agent import alignment
from hetero.kube.words.annotations import device_of
from hetero.model.units import GiB
from tests.kube.api_server import Plain
from tests.kube.kubelet import TopologyAffinityError
from tests.kube.world import CARD, World, refusal, until, world

LABEL = "hetero.io/numa-alignment"
#: Two NUMA nodes of eight processors, each with two cards.
PROCESSORS = {0: [*range(8)], 1: [*range(8, 16)]}


@pytest.fixture(autouse=True)
def _numa_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for node, processors in PROCESSORS.items():
        (tmp_path / f"node{node}").mkdir()
        cpulist = f"{processors[0]},{processors[1]}-{processors[-1]}\n"
        (tmp_path / f"node{node}/cpulist").write_text(cpulist)
    monkeypatch.setattr(alignment, "NUMA_NODES", tmp_path)


@asynccontextmanager
async def numa_world(label: str | None, policy: str = "single-numa-node") -> AsyncIterator[World]:
    """Run a node of two NUMA nodes whose label is as given."""
    async with world(*[16 * GiB] * 4) as at:
        at.vendor.devices[:] = [
            evolve(device, numa=number // 2) for number, device in enumerate(at.vendor.devices)
        ]
        at.kubelet.policy = policy
        at.kubelet.processors = {node: [*processors] for node, processors in PROCESSORS.items()}
        if label is not None:
            relabel(at, label)
        await until(lambda: {1} == at.kubelet.numa.get("memory-3::0"))
        await until(lambda: {0} == at.kubelet.numa.get("memory-0::0"))
        yield at


def relabel(at: World, label: str) -> None:
    node = at.api.nodes["n1"]
    at.api.put("nodes", {**node, "metadata": {**node["metadata"], "labels": {LABEL: label}}})


def bind(at: World, name: str, *, processors: str = "4", whole: bool = False) -> Plain:
    """Bind a pod whose kubelet keeps processors for it if there are any."""
    pod = at.bind(name, memory=16 * GiB if whole else GiB, core=100 if whole else 10)
    pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] = processors
    pod["status"]["qosClass"] = "Guaranteed" if processors != "0" else "Burstable"
    at.api.put("pods", pod)
    return pod


async def start(at: World, pod: Plain) -> str | None:
    """Admit a pod and start its container; return why it did not start."""
    await at.kubelet.admit(pod)
    try:
        await at.kubelet.start_container(pod, "main")
    except grpc.aio.AioRpcError as error:
        return str(error.details())
    return None


def told(at: World) -> list[str]:
    return [event["message"] for event in at.api.events if event["reason"] == "NotAligned"]


async def known(at: World) -> None:
    """Wait until the agent knows the node's label."""
    await until(lambda: at.agent.plugins.alignment.is_on)


@pytest.mark.parametrize("label", [None, "preferred", "required"])
async def test_a_container_whose_processors_are_beside_its_card_starts(label: str | None) -> None:
    async with numa_world(label) as at:
        assert await start(at, bind(at, "pod")) is None
        assert [0, 1, 2, 3] == at.kubelet.kept["default/pod", "main"]
        assert [] == told(at)


async def test_where_it_is_required_no_container_starts_beside_another_sockets_card() -> None:
    async with numa_world("required") as at:
        await known(at)
        at.kubelet.processors[0] = []  # others have them: the kubelet takes NUMA node 1
        pod = bind(at, "pod")
        why = await start(at, pod)
        assert (
            "pod default/pod, container main: the kubelet gave it processors of NUMA node 1, and "
            "its cards are on NUMA node 0: it is not started, since this node requires it "
            f"({LABEL}): delete the pod and create it anew, or ask for no whole processors"
        ) == why
        for _ in range(3):  # the kubelet tries again, ever more rarely
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await at.kubelet.start_container(pod, "main")
            assert why == refusal(caught)
        assert [why] == told(at)  # one event
        assert "Pending" == at.api.pods["default", "pod"]["status"]["phase"]


async def test_where_it_is_preferred_the_pod_is_told_and_starts() -> None:
    async with numa_world("preferred", "best-effort") as at:
        await known(at)
        at.kubelet.processors[0] = []
        assert await start(at, bind(at, "pod")) is None
        assert [
            "pod default/pod, container main: the kubelet gave it processors of NUMA node 1, and "
            "its cards are on NUMA node 0"
        ] == told(at)


async def test_without_the_label_nothing_is_compared() -> None:
    async with numa_world(None) as at:
        at.kubelet.processors[0] = []
        assert await start(at, bind(at, "pod")) is None
        assert [] == told(at)


async def test_containers_without_processors_of_their_own_run_beside_any_card() -> None:
    async with numa_world("required") as at:
        await known(at)
        at.kubelet.processors[0] = []
        assert await start(at, bind(at, "pod", processors="0")) is None
        assert [] == told(at)


async def test_a_label_with_another_value_means_none(caplog: pytest.LogCaptureFixture) -> None:
    async with numa_world("strict") as at:
        at.kubelet.processors[0] = []
        assert await start(at, bind(at, "pod")) is None
        assert "'strict' is neither preferred nor required" in caplog.text


async def test_whole_cards_are_taken_where_the_kubelet_aligns_processors() -> None:
    """It counts slots: without the label it takes NUMA node 0 for ten pods of each card there."""
    for label, aligned in (("required", 4), (None, 2)):
        async with numa_world(label) as at:
            if label:
                await known(at)
            for number in range(4):
                pod = bind(at, f"pod{number}", processors="2", whole=True)
                assert await start(at, pod) is None
                spare = 40 - 9 * (number + 1) if label else 40
                await until(partial(counted, at, spare))
            cards = at.vendor.devices
            is_aligned = [
                cards[number].numa == at.kubelet.kept[f"default/pod{number}", "main"][0] // 8
                for number in range(4)
            ]
            assert aligned == sum(is_aligned)
            assert [] == told(at)


async def test_the_slots_of_a_full_card_are_counted_again_when_its_pod_has_ended() -> None:
    async with numa_world("required") as at:
        await known(at)
        pod = bind(at, "pod", whole=True)
        assert await start(at, pod) is None
        await until(lambda: 1 == healthy_slots(at, "memory-0"))
        assert 31 == healthy_slots(at)

        at.kubelet.forget(pod)
        at.api.put("pods", {**pod, "status": {"phase": "Succeeded"}})
        await until(lambda: 10 == healthy_slots(at, "memory-0"))


async def test_a_card_with_something_left_keeps_all_its_slots() -> None:
    async with numa_world("required") as at:
        await known(at)
        assert await start(at, bind(at, "pod")) is None
        await asyncio.sleep(0.5)
        assert 10 == healthy_slots(at, "memory-0")


async def test_the_kubelets_own_refusal_comes_before_any_card_is_given() -> None:
    async with numa_world("required") as at:
        with pytest.raises(TopologyAffinityError):
            await at.kubelet.admit(bind(at, "pod", processors="9"))
        assert [] == at.given()


def counted(at: World, slots: int) -> bool:
    return slots == healthy_slots(at)


def healthy_slots(at: World, card: str = "") -> int:
    return sum(
        health == "Healthy" and card in ("", device_of(slot))
        for slot, health in at.kubelet.devices[CARD].items()
    )
