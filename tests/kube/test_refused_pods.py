"""A pod that its node refused keeps no allocation, and hears what becomes of it."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from hetero.kube.client.api import ApiError
from hetero.kube.client.events import Events
from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler.refused_pods import RefusedPods
from hetero.kube.words.annotations import ALLOCATION, SIGNATURE
from tests.kube.fake_api import PODS, FakeApi

REFUSED = {
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "message": "Allocate failed due to no agent",
}


def pod(name: str, status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    notes = {ALLOCATION: "{}", SIGNATURE: "00", "mine": "stays"}
    about = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": notes}
    return {"metadata": {**about, **metadata}, "spec": {"nodeName": "n1"}, "status": status}


async def follow(api: FakeApi, *pods: dict[str, Any], leads: bool = True) -> RefusedPods:
    made = RefusedPods(api, Events(api), lambda: leads)
    for pod in pods:
        api.put_now(f"{PODS}/{pod['metadata']['name']}", pod)
        made.pod_changed("MODIFIED", read(Pod, pod))
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(made.follow(), 0.1)
    return made


def notes(api: FakeApi, name: str) -> dict[str, str]:
    annotations: dict[str, str] = api.objects[f"{PODS}/{name}"]["metadata"]["annotations"]
    return annotations


def test_a_pod_of_nobodys_is_told_to_be_made_anew_and_keeps_no_allocation() -> None:
    api = FakeApi()
    asyncio.run(follow(api, pod("bare", REFUSED)))

    assert {"mine": "stays"} == notes(api, "bare")
    assert [
        "node n1 did not admit it (Allocate failed due to no agent); its share is given back; "
        "create it anew: nothing else will"
    ] == api.events


def test_a_pod_of_a_controllers_is_told_that_another_comes() -> None:
    api = FakeApi()
    asyncio.run(follow(api, pod("owned", REFUSED, ownerReferences=[{"controller": True}])))

    assert api.events[0].endswith("its share is given back; its controller makes another")


def test_a_pod_that_ran_and_one_that_waits_keep_what_they_have() -> None:
    api = FakeApi()
    ran = {"phase": "Failed", "reason": "Error", "containerStatuses": [{}]}
    asyncio.run(follow(api, pod("ran", ran), pod("evicted", {**REFUSED, "reason": "Evicted"})))

    assert [] == api.events
    assert ALLOCATION in notes(api, "ran")
    assert ALLOCATION in notes(api, "evicted")


@pytest.mark.parametrize(
    "reason", ["SysctlForbidden", "OutOfcpu", "NodeShutdown", "PodOSNotSupported"]
)
def test_a_pod_keeps_nothing_whatever_its_node_refused_it_for(reason: str) -> None:
    api = FakeApi()
    pressure = {**REFUSED, "reason": "Evicted", "message": "Pod The node had condition: [x]. "}
    asyncio.run(follow(api, pod("a", {**REFUSED, "reason": reason}), pod("b", pressure)))

    assert [{"mine": "stays"}] * 2 == [notes(api, name) for name in ("a", "b")]


async def test_who_stands_by_takes_nothing_back_and_what_fails_is_tried_again() -> None:
    api = FakeApi()
    standing_by = await follow(api, pod("a", REFUSED), leads=False)
    assert ALLOCATION in notes(api, "a")
    standing_by.ready = lambda: True
    api.fail.add("/a")
    following = asyncio.ensure_future(standing_by.follow())
    await asyncio.sleep(0.1)
    assert ALLOCATION in notes(api, "a")
    api.fail.clear()
    await asyncio.sleep(1.1)
    following.cancel()
    assert {"mine": "stays"} == notes(api, "a")


def test_one_that_cannot_be_taken_back_keeps_nobody_else_waiting() -> None:
    """As one whose update the API answers with an error for as long as it is there."""

    class Refusing(FakeApi):
        async def patch(self, path: str, *rest: Any, **more: Any) -> Any:
            if path.endswith("/huge"):
                raise ApiError(path, 413, "too large")
            return await super().patch(path, *rest, **more)

    api = Refusing()
    asyncio.run(follow(api, *(pod(name, REFUSED) for name in ("one", "huge", "two"))))

    assert [{"mine": "stays"}] * 2 == [notes(api, name) for name in ("one", "two")]
    assert ALLOCATION in notes(api, "huge")
