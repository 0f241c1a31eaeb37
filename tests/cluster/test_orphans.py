"""What kills leave: it is admitted again, or told of, and what nobody holds is given back.

Nobody is sent to a node whose agent is away.

Row 9 of the table in test_trust.py.
"""

import os
import signal
import time
from contextlib import suppress

import pytest

from hetero.kube.words.annotations import ALLOCATION, SIGNATURE
from tests.cluster.conftest import run_all, share, usually_on
from tests.cluster.lab import UNWATCHED, Lab, Plain, processes
from tests.cluster.release import DAEMONS, NAMESPACE, PODS, Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

N1 = {"kubernetes.io/hostname": "n1"}
#: Seconds until nothing of what nobody holds is left.
PROMISED = 60.0


def events(lab: Lab, namespace: str, name: str) -> list[str]:
    """Return what was told of the pod that has this name now: a test may be run again."""
    uid = lab.pods(namespace)[name]["metadata"]["uid"]
    query = f"?fieldSelector=involvedObject.uid={uid}"
    items = lab.call("GET", f"/api/v1/namespaces/{namespace}/events{query}")["items"]
    return [one["message"] for one in items if one["reason"] == "NotAdmitted"]


def test_a_pod_that_its_node_refused_is_told_of_and_keeps_no_allocation(either: Release) -> None:
    lab = either.lab
    forged = {ALLOCATION: "{}", SIGNATURE: "00"}
    elsewhere: Plain = {"nodeSelector": {"kubernetes.io/hostname": "n2"}, "schedulerName": "none"}
    about = lab.add("bare", share(), namespace=UNWATCHED, notes=forged, **elsewhere)
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    named = {"name": "bare", "uid": about["metadata"]["uid"]}
    path = f"/api/v1/namespaces/{UNWATCHED}/pods/bare"
    lab.call("POST", f"{path}/binding", {"metadata": named, "target": target})

    wait_for(lambda: lab.pods(UNWATCHED)["bare"]["status"]["phase"] == "Failed")
    (message,) = wait_for(lambda: events(lab, UNWATCHED, "bare"), seconds=PROMISED)
    assert message.startswith("node n1 did not admit it (")
    assert message.endswith("its share is given back; create it anew: nothing else will")
    assert ALLOCATION not in (lab.pods(UNWATCHED)["bare"]["metadata"].get("annotations") or {})


def test_a_pod_that_its_node_refused_for_another_reason_keeps_nothing_either(
    either: Release,
) -> None:
    """Beside others of its size, whose devices it does not take."""
    lab = either.lab
    forbidden = {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}
    lab.add("forbidden", share(), nodeSelector=N1, securityContext=forbidden)
    for number in range(3):
        lab.add(f"beside-{number}", share(), nodeSelector=N1)
    run_all(lab, *(f"beside-{number}" for number in range(3)))

    (message,) = wait_for(lambda: events(lab, "default", "forbidden"), seconds=PROMISED)
    assert message.startswith("node n1 did not admit it (")
    failed = lab.pods()["forbidden"]
    assert ("Failed", "SysctlForbidden") == (failed["status"]["phase"], failed["status"]["reason"])
    assert ALLOCATION not in (failed["metadata"].get("annotations") or {})
    wait_for(lambda: len(lab.standing("n1")) == 3, seconds=PROMISED)


def test_what_a_kubelet_starts_again_has_its_share_again(either: Release) -> None:
    lab = either.lab
    lab.add("again", share(), nodeSelector=N1, restartPolicy="Always")
    run_all(lab, "again")
    before = lab.standing("n1")

    def container() -> Plain:
        status: Plain = lab.pods()["again"]["status"]["containerStatuses"][0]
        return status

    lab.restart_kubelet("n1")
    for pid in processes(container()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: container()["restartCount"] == 1 and container()["ready"])
    assert before == lab.standing("n1")
    assert [] == events(lab, "default", "again")


@usually_on("kube136")
def test_the_share_of_a_pod_that_went_while_the_agent_was_away_is_given_back(
    either: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = either.lab
    lab.add("goes", share(), nodeSelector=N1)
    run_all(lab, "goes")
    either.stop_agent("n1")
    lab.call("DELETE", "/api/v1/namespaces/default/pods/goes?gracePeriodSeconds=0")
    wait_for(lambda: "goes" not in lab.pods())
    assert lab.standing("n1")
    began = time.monotonic()
    either.start_agent("n1")
    wait_for(lambda: not lab.standing("n1"), seconds=PROMISED)
    with capsys.disabled():
        print(f"\n{lab.name}: given back {time.monotonic() - began:.1f} s after the agent came")


@pytest.mark.soak  # it takes up to a minute; tests/kube/test_agents.py has what the scheduler does
def test_no_pod_is_ended_because_an_agent_is_replaced(either: Release) -> None:
    """Bare pods come all the while, as fast as a node takes them."""
    lab, names = either.lab, list[str]()
    before = either.agent("n1")["metadata"]

    def another() -> None:
        names.append(f"comes-{len(names)}")
        lab.add(names[-1], share(600, 1), nodeSelector=N1)
        time.sleep(0.5)

    def replaced() -> bool:
        another()
        with suppress(StopIteration):
            agent = either.agent("n1")
            ready = all(one["ready"] for one in agent["status"]["containerStatuses"])
            return ready and agent["metadata"]["uid"] != before["uid"]
        return False

    another()
    lab.call("DELETE", f"{PODS}/{before['name']}")
    wait_for(replaced)
    run_all(lab, *names)


@usually_on("kube136")
def test_of_two_agents_of_a_node_the_later_one_serves_and_the_other_when_that_has_ended(
    either: Release,
) -> None:
    """As where an old one lives on, or somebody installs hetero twice."""
    lab, pods = either.lab, PODS
    spec = lab.call("GET", DAEMONS)["spec"]["template"]["spec"]
    spec.pop("nodeSelector")
    for container in spec["containers"]:  # the first one has the node's
        container["args"] = [one for one in container["args"] if "--metrics" not in one]
        container.pop("readinessProbe", None)
        container.pop("ports", None)
    body = {"metadata": {"name": "second-agent"}, "spec": {**spec, "nodeName": "n1"}}
    lab.call("POST", pods, body)
    try:
        wait_for(lambda: "another agent began to serve this node" in either.agent_log("n1"))
        wait_for(lambda: "gpu: registered" in lab.output("second-agent", namespace=NAMESPACE))
        wait_for(lambda: int(lab.allocatable("n1").get("nvidia.com/gpu", 0)))
        lab.add("beside", share(), nodeSelector=N1)
        run_all(lab, "beside")
        output = lab.output("second-agent", namespace=NAMESPACE)
        assert "default/beside, container main: given grant" in output
    finally:
        lab.call("DELETE", f"{pods}/second-agent?gracePeriodSeconds=0")
    wait_for(lambda: "this one does" in either.agent_log("n1"))
    wait_for(either.works)
    lab.add("after", share(), nodeSelector=N1)
    run_all(lab, "after")
