"""Whatever of a node is killed while it prepares claims: none is stuck, and no grant is left."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hetero.node.ledger import locks
from tests.cluster.claims import (
    CLAIMS,
    PODS,
    claim,
    cleared,
    given,
    pod_with,
    run_with,
    runs,
    specs,
)
from tests.cluster.lab import Lab, Plain
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

NODE = "n1"  # the one with cards of NVIDIA's
AGENT = "system:serviceaccount:hetero-system:hetero-agent"
#: What is killed, in turn.
PARTS = ("agent", "kubelet", "containerd")
#: Where prepare is killed: before its grant is made, and when all is made and nothing answered.
POINTS = ("before", "after")


@pytest.fixture
def release(by_claims: Release) -> Iterator[Release]:
    lab = by_claims.lab
    with cleared(by_claims):
        if not lock_files(lab):  # there is no ledger before a node's first grant
            claim(lab, "first", memory="2Gi", cores=10)
            run_with(lab, "first")
            runs(lab, "first", seconds=60)
            lab.call("DELETE", f"{PODS}/first?gracePeriodSeconds=0")
            lab.call("DELETE", f"{CLAIMS}/first")
            wait_for(lambda: not grants(lab) and not claims(lab))
        yield by_claims


def lock_files(lab: Lab) -> list[Path]:
    """Return what the node's ledger is locked by, once there is one."""
    return [*lab.own(NODE, "/run/hetero").glob("sim-*/lock")]


@contextmanager
def held_ledger(lab: Lab) -> Iterator[None]:
    """Hold the ledger of the node: whoever prepares or unprepares there waits for it."""
    (path,) = lock_files(lab)
    descriptor = os.open(path, os.O_RDWR)
    try:
        assert locks.lock(descriptor, within_s=30)
        yield
    finally:
        os.close(descriptor)


def kill(release: Release, part: str, agent: Plain) -> None:
    """End a part of the node by kill -9; another takes its place, of the agent when it is gone."""
    if part == "agent":
        release.kill(agent)
    elif part == "kubelet":
        release.lab.restart_kubelet(NODE)
    else:
        release.lab.restart_containerd(NODE)


def asked(lab: Lab, name: str) -> bool:
    """Whether the agent has read a claim from the API, which is the first that prepare does."""
    return any(
        event["verb"] == "get"
        and event["user"]["username"] == AGENT
        and event["objectRef"].get("name") == name
        for event in lab.audited(of=name)
    )


def waits_for(lab: Lab, uid: str) -> bool:
    """Whether the kubelet has a claim prepared and was not answered yet.

    It notes a claim before it asks, and its CDI device when it is answered.
    """
    log = kubelets(lab)
    return uid in log and f"claim-{uid}" not in log


def kubelets(lab: Lab) -> str:
    """Return what the kubelet notes of claims."""
    return (lab.kubelet(NODE) / "dra_manager_state").read_text()


def grants(lab: Lab) -> list[Path]:
    """Return what is in the node's ledger, standing or not."""
    return [*lab.own(NODE, "/run/hetero").glob("sim-*/grants/*")]


def labels(lab: Lab) -> list[str]:
    return [one["label"] for one in lab.standing(NODE)]


def kill_within_prepare(release: Release, name: str, *, point: str, part: str) -> None:
    """Start a pod with a claim, and end a part of its node while the claim is prepared."""
    lab, agent = release.lab, release.agent(NODE)
    uid = claim(lab, name, memory="2Gi", cores=10)["metadata"]["uid"]
    with ExitStack() as stopped:
        with held_ledger(lab):
            run_with(lab, name)
            wait_for(lambda: asked(lab, name))
            if point == "before":
                assert waits_for(lab, uid)
                assert ([], []) == (labels(lab), specs(lab, NODE))
                kill(release, part, agent)
            else:
                stopped.enter_context(lab.stopped_api_server())
        if point == "after":
            wait_for(lambda: specs(lab, NODE))
            assert [f"default/{name}"] == labels(lab)
            assert waits_for(lab, uid)
            kill(release, part, agent)
    if part == "agent":
        release.replace(agent)
    runs(lab, name, seconds=90)
    assert [f"default/{name}"] == labels(lab)


def kill_within_unprepare(release: Release, name: str, *, part: str) -> None:
    """Delete a pod with a claim, and end a part of its node while the claim is unprepared.

    By then nothing brings the grant and nobody keeps it, and it has not been swept.
    """
    lab, agent = release.lab, release.agent(NODE)
    with held_ledger(lab):
        lab.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=1")
        wait_for(lambda: not specs(lab, NODE) and not labels(lab))
        assert 1 == len(grants(lab))
        assert "claim-" in kubelets(lab)
        kill(release, part, agent)
    if part == "agent":
        release.replace(agent)
    wait_for(lambda: name not in lab.pods(), seconds=90)
    wait_for(lambda: not given(lab, name))
    wait_for(lambda: not lab.standing(NODE), seconds=60)


#: Rounds of two kills: twelve, and two hundred in pieces of a few minutes.
ROUNDS = [
    pytest.param(range(6), id="12"),
    *(
        pytest.param(
            range(start, start + 10),
            marks=[pytest.mark.soak, pytest.mark.timeout(900)],
            id=f"{2 * start}-to-{2 * start + 20}",
        )
        for start in range(0, 100, 10)
    ),
]


@pytest.mark.parametrize("numbers", ROUNDS)
def test_what_is_killed_within_prepare_and_unprepare_leaves_no_claim_stuck_and_no_grant(
    release: Release, lab: Lab, numbers: range
) -> None:
    """Two kills a round. The test sees each time that the kubelet waits and what was done."""
    for number in numbers:
        name = f"pod-{number}"
        kill_within_prepare(release, name, point=POINTS[number % 2], part=PARTS[number % 3])
        kill_within_unprepare(release, name, part=PARTS[(number + 1) % 3])
    lab.call("DELETE", CLAIMS)
    wait_for(lambda: not claims(lab))

    # What no longer stands is swept with the next look.
    wait_for(lambda: not grants(lab) and not specs(lab, NODE), seconds=60)


def test_a_node_that_boots_prepares_anew_what_stays_and_leaves_nothing_of_what_went(
    release: Release, lab: Lab
) -> None:
    """All of a node is lost at once, and with its memory the ledger and the CDI specs."""
    for name in ("stays", "goes"):
        claim(lab, name, memory="2Gi", cores=10)
        pod = pod_with(name, ())
        pod["spec"]["restartPolicy"] = "Always"
        lab.call("POST", PODS, pod)
        runs(lab, name, seconds=60)
    before = {one["label"]: one for one in lab.standing(NODE)}
    assert {"default/goes", "default/stays"} == before.keys()

    lab.kill_node(NODE)
    lab.call("DELETE", f"{PODS}/goes?gracePeriodSeconds=0")
    lab.call("DELETE", f"{CLAIMS}/goes")
    lab.start_node(NODE)
    wait_for(lambda: labels(lab) == ["default/stays"], seconds=120)
    wait_for(lambda: started_again(lab, "stays"), seconds=120)
    (after,) = lab.standing(NODE)
    assert before["default/stays"]["id"] == after["id"]
    assert before["default/stays"]["allocation"] == after["allocation"]
    assert 1 == len(specs(lab, NODE))
    wait_for(lambda: "goes" not in {one["metadata"]["name"] for one in claims(lab)})

    lab.call("DELETE", f"{PODS}/stays?gracePeriodSeconds=1")
    wait_for(lambda: not lab.standing(NODE) and not specs(lab, NODE), seconds=90)


def started_again(lab: Lab, name: str) -> bool:
    """Whether a pod runs whose container was started anew."""
    for status in lab.pods()[name]["status"].get("containerStatuses") or ():
        return bool(status["restartCount"] and status["ready"])
    return False


def claims(lab: Lab) -> list[Plain]:
    items: list[Plain] = lab.call("GET", CLAIMS)["items"]
    return items


def test_a_claim_that_goes_while_it_is_prepared_leaves_nothing(release: Release, lab: Lab) -> None:
    """Its pod is deleted by force, and the claim with it, before the agent has made the grant."""
    claim(lab, "brief", memory="2Gi", cores=10)
    with held_ledger(lab):
        run_with(lab, "brief")
        wait_for(lambda: asked(lab, "brief"))
        lab.call("DELETE", f"{PODS}/brief?gracePeriodSeconds=0")
        lab.call("DELETE", f"{CLAIMS}/brief")
        wait_for(lambda: not claims(lab))
    wait_for(lambda: "claim default/brief: prepared, grant" in release.agent_log(NODE))
    wait_for(lambda: not grants(lab) and not specs(lab, NODE), seconds=90)


def test_a_node_that_can_make_no_grant_fails_no_pod_and_starts_it_when_it_can(lab: Lab) -> None:
    """Its kubelet asks again, ever more rarely; so no card rests for it."""
    claim(lab, "waits", memory="2Gi", cores=10)
    with lab.without_limiters(NODE):
        run_with(lab, "waits")
        wait_for(lambda: any("limiters for containers" in one for one in lab.messages("waits")))
        time.sleep(float(os.environ.get("STORM_S", "1")))
        assert {"waits": "Pending"} == lab.phases()
    began_s = time.monotonic()
    runs(lab, "waits", seconds=150)
    print(f"it runs {time.monotonic() - began_s:.1f} s after its node can serve it")


def test_what_goes_while_there_is_no_agent_is_taken_back_by_the_next(
    release: Release, lab: Lab
) -> None:
    claim(lab, "left", memory="2Gi", cores=10)
    run_with(lab, "left")
    runs(lab, "left", seconds=60)
    release.stop_agent(NODE)
    try:
        lab.call("DELETE", f"{PODS}/left?gracePeriodSeconds=0")
        lab.call("DELETE", f"{CLAIMS}/left")
        wait_for(lambda: not claims(lab))
        assert ["default/left"] == labels(lab)
    finally:
        release.start_agent(NODE)
    wait_for(lambda: not grants(lab) and not specs(lab, NODE), seconds=90)


@pytest.mark.soak
def test_a_kubelet_that_starts_with_old_notes_of_claims_gives_nothing_twice(
    release: Release, lab: Lab
) -> None:
    """As a node restored from a backup: a claim of the same name is another by now.

    The kubelet takes a minute to forget the one before.
    """
    notes = lab.kubelet(NODE) / "dra_manager_state"
    first = claim(lab, "again", memory="2Gi", cores=10)
    run_with(lab, "again")
    runs(lab, "again", seconds=60)
    old = notes.read_text()
    lab.call("DELETE", f"{PODS}/again?gracePeriodSeconds=0")
    lab.call("DELETE", f"{CLAIMS}/again")
    wait_for(lambda: not claims(lab) and not labels(lab))
    notes.write_text(old)
    lab.restart_kubelet(NODE)
    second = claim(lab, "again", memory="3Gi", cores=10)
    run_with(lab, "again")
    runs(lab, "again", seconds=90)

    (grant,) = lab.standing(NODE)
    assert second["metadata"]["uid"] == grant["owner"]["claim-uid"]
    wait_for(lambda: first["metadata"]["uid"] not in notes.read_text())
    assert [grant["id"]] == [path.name for path in grants(lab)]
    assert 1 == len(specs(lab, NODE))
