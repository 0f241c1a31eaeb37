"""Whatever can end an Allocate: a pod that gets no share as it is stays, and never starts.

A kubelet fails a pod that is refused, and a ReplicaSet makes ten more each second. So the agent
refuses only where the next pod may fare better. docs/decisions/storms.md has the same two lists.
"""

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from hetero.kube.agent import allocator
from hetero.kube.agent.node_pods import NodePods
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.words.annotations import ALLOCATION, SIGNATURE, Assignment, signed_assignment
from hetero.model.units import GiB
from tests.kube.world import CARD, KEY, World, never_starts, pod_named, refusal, world

Plain = dict[str, Any]
MOUNT = "where what limits its cards is or may be: mount it elsewhere"
FORGED = "hetero.io/allocation is not signed by this cluster's scheduler for this pod on node n1"


def without_allocation(at: World) -> Plain:
    return pod_named("pod", "main")


def with_anothers(at: World) -> Plain:
    """Its YAML is a copy of another pod's."""
    pod = pod_named("pod", "main")
    pod["metadata"]["annotations"] = at.bind("other")["metadata"]["annotations"]
    at.api.put("pods", at.api.pods["default", "other"], event="DELETED")
    return pod


def with_nonsense(at: World) -> Plain:
    pod = pod_named("pod", "main")
    pod["metadata"]["annotations"] = {ALLOCATION: '{"node":"n1"', SIGNATURE: "0" * 128}
    return pod


def of_another_node(at: World) -> Plain:
    pod = pod_named("pod", "main")
    assignment = Assignment(node="n2", uid="uid-pod", containers=(("main", at.fit()),))
    pod["metadata"]["annotations"] = signed_assignment(assignment, KEY)
    return pod


def of_another_container(at: World) -> Plain:
    pod = at.bind("pod", "first")
    pod["spec"]["containers"][0]["name"] = "main"
    return pod


def of_other_cards(at: World) -> Plain:
    """Cards come in modules, and no webhook wrote out of how many."""
    pod = at.bind("pod", count=2)
    pod["spec"]["containers"][0]["resources"] = {"limits": {CARD: "1"}}
    return pod


def of_too_many_cards(at: World) -> Plain:
    return at.bind("pod", count=17)


def mounting(**fields: Any) -> Callable[[World], Plain]:
    def made(at: World) -> Plain:
        pod = at.bind("pod")
        pod["spec"]["containers"][0] |= fields
        return pod

    return made


def at_path(path: str) -> Callable[[World], Plain]:
    return mounting(volumeMounts=[{"name": "own", "mountPath": path}])


def only_in_an_init_container(at: World) -> Plain:
    """Which no kubelet before 1.29 lists."""
    pod = pod_named("pod", "main")
    pod["spec"]["initContainers"] = [{"name": "first", **pod["spec"]["containers"][0]}]
    pod["spec"]["initContainers"][0]["name"] = "first"
    pod["spec"]["containers"][0]["resources"] = {}
    return pod


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (without_allocation, "the scheduler gave container main no share"),
        (only_in_an_init_container, "the scheduler gave container first no share"),
        (of_another_container, "the scheduler gave container main no share"),
        (with_anothers, FORGED),
        (with_nonsense, FORGED),
        (of_another_node, FORGED),
        (of_other_cards, f"asks for 1 {CARD}, and the scheduler gave it 2"),
        (of_too_many_cards, f"asks for 17 {CARD}, and a container has at most 16 cards"),
        (at_path("/etc"), f"mounts its own at /etc, {MOUNT}"),
        (at_path("/"), f"mounts its own at /, {MOUNT}"),
        (at_path("/etc/hetero/usage"), MOUNT),
        (at_path("/proc/self/root/etc"), MOUNT),
        (at_path("/srv/../etc"), "`..` may lead to what limits its cards"),
        (mounting(volumeDevices=[{"name": "own", "devicePath": "/etc/hetero"}]), MOUNT),
        (mounting(terminationMessagePath="/etc/ld.so.preload"), MOUNT),
    ],
)
async def test_a_pod_that_gets_no_share_as_it_is_stays_and_says_why(
    make: Callable[[World], Plain], sentence: str
) -> None:
    async with world(*(17 if make is of_too_many_cards else 2) * [16 * GiB]) as at:
        pod = make(at)
        at.api.put("pods", pod, event="ADDED")

        assert sentence in await never_starts(at, pod)
        assert [] == at.given()
        assert not rests(at)

        other = at.bind("next")
        await at.kubelet.admit(other)
        await at.kubelet.start_container(other, "main")
        assert ["default/next/main"] == at.given()


def rests(at: World) -> bool:
    """Whether the scheduler is told of cards that rest."""
    devices = at.agent.cards.discovery.devices
    return at.agent.cards.resting.published(devices) != devices


def whose_kubelet_lists_nothing(at: World) -> None:
    at.kubelet.known = None  # type: ignore[assignment]


def while_the_api_is_away(at: World) -> None:
    at.agent.allocator.pods.by_uid.clear()
    at.api.away = True


def without_public_keys(at: World) -> None:
    (at.path / "keys.pem").unlink()


def that_went_meanwhile(at: World) -> None:
    at.api.put("pods", at.api.pods["default", "pod"], event="DELETED")
    at.agent.allocator.remove_pod("uid-pod")


def whose_card_is_full(at: World) -> None:
    at.fitted.clear()
    at.bind("other", memory=15 * GiB, core=95)
    at.agent.allocator.update_pod(read(Pod, at.api.pods["default", "other"]))


def that_goes_while_its_card_is_full(at: World) -> None:
    """It is deleted once the agent has asked for it, before its share is found not to fit."""
    whose_card_is_full(at)


async def asked_for_and_deleted(
    at: World, pods: NodePods, deadline_s: float, namespace: str, name: str
) -> Pod | None:
    pod = await pods.named(namespace, name)
    at.api.put("pods", at.api.pods[namespace, name], event="DELETED")
    return pod


def whose_card_is_gone(at: World) -> None:
    at.vendor.devices.clear()
    at.agent.cards.discovery = at.node.discover()


def whose_limiter_cannot_be_copied(at: World) -> None:
    (at.path / "lib").write_text("")


@pytest.mark.parametrize(
    ("become", "sentence", "is_cards"),
    [
        (whose_kubelet_lists_nothing, "pod-resources/kubelet.sock: unknown", True),
        (while_the_api_is_away, "away", False),
        (without_public_keys, "is the ConfigMap mounted?", True),
        (that_went_meanwhile, "the scheduler gave none on this node what it asks", False),
        (whose_card_is_full, "device memory-0 has not enough", True),
        (that_goes_while_its_card_is_full, "device memory-0 has not enough", False),
        (whose_card_is_gone, "device memory-0 is not on this node (any more)", False),
        (whose_limiter_cannot_be_copied, "limiters for containers", True),
    ],
)
async def test_a_pod_whose_node_cannot_serve_it_now_is_refused(
    become: Callable[[World], None],
    sentence: str,
    is_cards: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its controller's next one is placed anew, or comes when that is over.

    The card rests meanwhile where it could give the pod no share.
    """
    monkeypatch.setattr(allocator, "_API_WAIT_S", 0.5)
    monkeypatch.setattr(allocator, "_SHARE_WAIT_S", 0.5)
    async with world() as at:
        pod = pod_named("pod", "main")
        assignment = Assignment(node="n1", uid="uid-pod", containers=(("main", at.fit()),))
        pod["metadata"]["annotations"] = signed_assignment(assignment, KEY)
        at.kubelet.known.append(pod)
        if become is not whose_kubelet_lists_nothing:
            pod["metadata"]["resourceVersion"] = "9"
            at.api.pods["default", "pod"] = pod  # the agent has to ask for it
        become(at)
        if become is that_goes_while_its_card_is_full:
            monkeypatch.setattr(
                NodePods, "named_by", lambda *asked: asked_for_and_deleted(at, *asked)
            )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await at.kubelet.allocate(CARD, ["memory-0::0"])

        assert sentence in refusal(caught)
        assert "default/pod/main" not in at.given()
        assert is_cards == rests(at)
