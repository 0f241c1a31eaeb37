"""Grants made before the kubelet asks: handed out once, to their own pod, and never left behind."""

import grpc
import pytest

from hetero.kube.words.annotations import Assignment, signed_assignment
from hetero.model.units import GiB
from hetero.node.grants import grants_of, release
from tests.kube.world import CARD, KEY, pod_named, refusal, until, world

ONE = ["default/pod/main"]


async def test_a_share_stands_before_the_kubelet_asks_for_it_and_is_given_when_it_does() -> None:
    async with world() as at:
        pod = at.bind("pod")
        await until(lambda: ONE == list(at.standing()))
        assert [] == at.given()
        before = at.node.snapshot()
        await at.kubelet.admit(pod)
        await at.kubelet.start_container(pod, "main")

        assert ONE == at.given()
        assert before == at.node.snapshot()


@pytest.mark.parametrize("end", ["deleted", "Succeeded", "Failed"])
@pytest.mark.parametrize("made", [True, False])
async def test_a_share_nobody_asked_for_ends_with_its_pod(end: str, made: bool) -> None:
    """The pod is rejected or deleted when its share stands, or while it is being made."""
    async with world() as at:
        await until(lambda: at.api.watched("pods"))
        pod = at.bind("pod")
        if made:
            await until(at.standing)
        pod["status"]["phase"] = "Pending" if end == "deleted" else end
        at.api.put("pods", pod, event="DELETED" if end == "deleted" else "MODIFIED")
        stays = at.bind("stays")  # the events of both come in this order
        await until(lambda: ["default/stays/main"] == list(at.standing()))
        await at.kubelet.admit(stays)

        assert ["default/stays/main"] == list(at.standing()) == at.given()


async def test_a_share_that_found_no_room_is_given_when_another_pod_made_it() -> None:
    async with world(16 * GiB) as at:
        leaves = at.bind("leaves", memory=16 * GiB)
        await at.kubelet.admit(leaves)
        at.fitted.clear()
        comes = at.bind("comes", memory=16 * GiB)
        at.kubelet.forget(leaves)
        at.api.put("pods", leaves, event="DELETED")
        await at.kubelet.admit(comes)

        assert ["default/comes/main"] == list(at.standing()) == at.given()


async def test_a_share_made_ahead_outlives_the_agent_and_is_given_by_the_next() -> None:
    async with world() as at:
        pod = at.bind("pod")
        await until(at.standing)
        before = at.node.snapshot()
        await at.crash()
        await at.start()
        await at.kubelet.admit(pod)
        await at.kubelet.start_container(pod, "main")

        assert ONE == at.given()
        assert before == at.node.snapshot()


async def test_a_share_whose_pod_goes_while_the_agent_is_down_goes_when_it_is_back() -> None:
    async with world() as at:
        pod = at.bind("pod")
        await until(at.standing)
        await at.crash()
        at.api.put("pods", pod, event="DELETED")
        assert ONE == list(at.standing())
        await at.start()
        await until(lambda: not at.standing())


async def test_the_next_agent_knows_for_which_devices_a_share_was_given() -> None:
    """The kubelet mixes two pods up while the agent is killed: neither is started."""
    async with world() as at:
        pods = [at.bind("one"), at.bind("other")]
        for pod in pods:
            await at.kubelet.admit(pod)
        await at.crash()
        await at.start()
        await at.kubelet.start_container(pods[0], "main")
        held = at.kubelet.held
        first_key, other_key = ("default/one", "main"), ("default/other", "main")
        held[first_key], held[other_key] = held[other_key], held[first_key]
        for pod in pods:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await at.kubelet.start_container(pod, "main")
            assert "it is not started" in refusal(caught)


async def test_what_was_given_for_a_pod_that_was_taken_for_another_starts_neither_of_them() -> None:
    """A share is given for devices that go to another pod, and then given to its own."""
    async with world() as at:
        first, other = at.bind("one"), at.bind("other")
        at.kubelet.known.append(first)
        (ids,) = [await at.kubelet._choose(CARD, 1, [])]
        await at.kubelet.allocate(CARD, ids)  # of the pod one, as far as anybody can say
        at.kubelet.known.remove(first)
        at.kubelet.known.append(other)
        at.kubelet.held["default/other", "main"] = (CARD, ids)
        await at.kubelet.admit(first)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await at.kubelet.start_container(other, "main")

        assert "which was given for default/one/main: it is not started" in refusal(caught)
        await at.kubelet.start_container(first, "main")


async def test_a_share_that_somebody_released_is_made_again_when_it_is_asked_for() -> None:
    async with world() as at:
        pod = at.bind("pod")
        await until(at.standing)
        ((label, given),) = at.standing().items()
        (entry,) = at.node.snapshot().grants
        release(grants_of(at.node), entry.id, force=True)
        assert {} == at.standing()
        await at.kubelet.admit(pod)
        await at.kubelet.start_container(pod, "main")

        assert {label: given} == at.standing()


async def test_nothing_is_made_for_a_signature_that_is_anothers() -> None:
    async with world() as at:
        await until(lambda: at.api.watched("pods"))
        victim, thief = at.bind("mine"), pod_named("thief", "main")
        thief["metadata"]["annotations"] = victim["metadata"]["annotations"]
        elsewhere = pod_named("elsewhere", "main")
        elsewhere["metadata"]["annotations"] = signed_assignment(
            Assignment(node="n2", uid="uid-elsewhere", containers=(("main", at.fit()),)),
            KEY,
        )
        for pod in (thief, elsewhere):
            at.api.put("pods", pod, event="ADDED")
        at.bind("last")  # the agent hears of it after the others
        await until(lambda: "default/last/main" in at.standing())

        assert {"default/mine/main", "default/last/main"} == set(at.standing())
