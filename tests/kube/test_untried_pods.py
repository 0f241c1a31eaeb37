"""A kube-scheduler that answers and tries none of the pods that wait is noticed."""

from typing import Any

import pytest
from attrs import define, field

from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.scheduler.untried_pods import SILENCE_S, START_S, UntriedPods

OURS = "hetero-scheduler"


@define
class Scene:
    """A process that leads, what it knows of the pods, and what time it is."""

    now: float = 1000.0
    pods: UntriedPods = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pods = UntriedPods(frozenset({OURS}), clock=lambda: self.now)
        assert not self.pods.take_stall(held=True)

    def after(self, seconds: float, *, held: bool = True) -> bool:
        """Whether kube-scheduler is to be started anew so many seconds later."""
        self.now += seconds
        return self.pods.take_stall(held=held)

    def comes(self, name: str, **more: Any) -> None:
        self.pods.pod_changed("ADDED", pod(name, **more))


def pod(name: str, *, tried: bool = False, gone: bool = False, **spec: Any) -> Pod:
    conditions = [{"type": "PodScheduled", "status": "False"}] if tried else []
    made = {
        "metadata": {"uid": name, **({"deletionTimestamp": "now"} if gone else {})},
        "spec": {"schedulerName": OURS, **spec},
        "status": {"phase": "Pending", "conditions": conditions},
    }
    return read(Pod, made)


@pytest.fixture
def scene() -> Scene:
    """One whose kube-scheduler started long ago, when all pods were tried."""
    made = Scene()
    assert not made.after(2 * START_S)
    return made


def test_it_is_said_once_and_the_next_one_has_its_time_to_start(scene: Scene) -> None:
    scene.comes("a")
    assert not scene.after(SILENCE_S - 1)
    assert scene.after(2)
    assert [False, False, True] == [scene.after(s) for s in (1, START_S - 2, 2)]


@pytest.mark.parametrize(
    "more",
    [
        {"tried": True},
        {"gone": True},
        {"schedulerName": "default-scheduler"},
        {"nodeName": "n1"},
        {"schedulingGates": [{"name": "later"}]},
        {"resourceClaims": [{"name": "not-made-yet"}]},
        {"schedulingGroup": {"podGroupName": "not-whole"}},
    ],
)
def test_who_need_not_be_tried_is_not_waited_for(scene: Scene, more: dict[str, Any]) -> None:
    scene.comes("a", **more)
    assert not scene.after(10 * SILENCE_S)


def test_while_it_tries_others_it_may_take_its_time(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        scene.comes(name)
    for name in ("a", "b"):
        assert not scene.after(SILENCE_S - 1)
        scene.pods.pod_changed("MODIFIED", pod(name, tried=True))
    assert not scene.after(SILENCE_S - 1)
    scene.pods.heard()  # it asked which nodes serve one
    assert not scene.after(SILENCE_S - 1)
    assert scene.after(2)


@pytest.mark.parametrize("listed", [True, False])
def test_pods_that_are_gone_are_not_waited_for(scene: Scene, listed: bool) -> None:
    scene.comes("a")
    if listed:
        scene.pods.pods_listed(set())
    else:
        scene.pods.pod_changed("DELETED", pod("a"))
    assert not scene.after(10 * SILENCE_S)


def test_its_time_begins_when_the_api_server_is_back(scene: Scene) -> None:
    scene.comes("a")
    assert [False] * 3 == [scene.after(30, held=False) for _ in range(3)]
    assert not scene.after(1)
    assert not scene.after(SILENCE_S - 1)
    assert scene.after(2)


def test_one_that_was_just_started_has_its_time_to_start() -> None:
    scene = Scene()
    scene.comes("a")
    assert not scene.after(START_S - 1)
    assert scene.after(2)


def test_one_that_has_tried_a_pod_has_started() -> None:
    """An API server that is away soon after that is no reason to wait a minute."""
    scene = Scene()
    scene.comes("a")
    scene.pods.pod_changed("MODIFIED", pod("a", tried=True))
    assert not scene.after(30, held=False)
    scene.comes("b")
    assert not scene.after(1)
    assert not scene.after(SILENCE_S - 1)
    assert scene.after(2)


def test_a_pod_that_is_deleted_says_nothing_of_a_start() -> None:
    scene = Scene()
    scene.comes("a")
    scene.pods.pod_changed("DELETED", pod("a"))
    scene.comes("b")
    assert not scene.after(START_S - 1)
    assert scene.after(2)
