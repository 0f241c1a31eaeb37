"""Pods on a real cluster, each in its share of a simulated card."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from hetero.kube import wire
from hetero.units import MiB
from tests.kube.control_plane import wait_for
from tests.kube.lab import JOB, Lab, running

pytestmark = pytest.mark.cluster

CARD = "nvidia.com/gpu"


def share(memory: int = 2000, core: int = 20, count: int = 1) -> dict[str, str]:
    """Ask for MiB and percent of so many cards."""
    return {CARD: str(count), "nvidia.com/gpumem": str(memory), "nvidia.com/gpucores": str(core)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def lab(cluster: Lab) -> Iterator[Lab]:
    yield cluster
    cluster.clear()


def ended(lab: Lab, *names: str, seconds: float = 60) -> None:
    wait_for(
        lambda: all(lab.phases()[name] in ("Succeeded", "Failed") for name in names),
        seconds=seconds,
    )


def run_all(lab: Lab, *names: str, seconds: float = 90) -> None:
    def running() -> bool:
        assert [] == lab.over_capacity()
        return all(lab.phases()[name] == "Running" for name in names)

    wait_for(running, seconds=seconds)


def test_a_pod_runs_within_its_share(lab: Lab) -> None:
    tries = f"{JOB} --alloc 2900MiB; {JOB} --alloc 3001MiB; {JOB} --seconds 2"
    lab.add("pod", share(memory=3000, core=30), "sh", "-c", tries)
    ended(lab, "pod")

    fits, over, *_, rate = map(json.loads, lab.output("pod").splitlines())
    assert {"allocated": 2900 * MiB} == fits
    assert "CUDA_ERROR_OUT_OF_MEMORY" == over["error"]
    assert rate["rate"] < 2000 * 0.45  # a step is 500 us of the card


def test_the_limit_holds_in_an_empty_environment(lab: Lab) -> None:
    lab.add("pod", share(), "sh", "-c", f"env -u LD_PRELOAD {JOB} --alloc 2001MiB")
    ended(lab, "pod")

    assert "CUDA_ERROR_OUT_OF_MEMORY" in lab.output("pod")


def test_twenty_pods_at_once_all_run_and_none_gets_anothers_share(lab: Lab) -> None:
    names = [f"pod{number}" for number in range(20)]
    for number, name in enumerate(names):
        lab.add(name, share(memory=1000 + number, core=20))
    run_all(lab, *names)

    pods = lab.pods()
    for entry in lab.standing("n1"):
        pod = pods[entry["keeper"]["pod"]]
        (_, allocation), *_ = json.loads(pod["metadata"]["annotations"][wire.ALLOCATION])[
            "containers"
        ]
        assert allocation["grants"][0]["device"] == entry["allocation"]["grants"][0]["device"]
        assert (
            f"pod{entry['allocation']['grants'][0]['takes']['memory'] // MiB - 1000}"
            == (pod["metadata"]["name"])
        )


def test_what_does_not_fit_waits_with_its_reason_and_runs_when_there_is_room(lab: Lab) -> None:
    lab.add("whole", share(memory=10000, core=100, count=5))
    run_all(lab, "whole")
    lab.add("waits", share())
    assert wait_for(lambda: any("lack" in said for said in lab.messages("waits")))
    lab.call("DELETE", "/api/v1/namespaces/default/pods/whole")
    run_all(lab, "waits")


@pytest.mark.parametrize(
    ("resource", "node"),
    [
        ("huawei.com/Ascend910B3", "n2"),
        ("cambricon.com/vmlu", "n2"),
        ("hygon.com/dcunum", "n3"),
        ("iluvatar.ai/BI-V150-vgpu", "n3"),
        ("mthreads.com/vgpu", "n3"),
        ("metax-tech.com/gpu", "n3"),
    ],
)
def test_a_card_of_each_vendor_is_given_where_it_is(lab: Lab, resource: str, node: str) -> None:
    lab.add("pod", {resource: "1"}, "sh", "-c", "env; sleep 1000")
    run_all(lab, "pod")

    assert node == lab.pods()["pod"]["spec"]["nodeName"]
    assert ["default/pod/main"] == [entry["label"] for entry in lab.standing(node)]


def test_shares_outlive_the_agent_and_end_with_their_pods(lab: Lab) -> None:
    for name in ("stays", "goes"):
        lab.add(name, share())
    run_all(lab, "stays", "goes")
    lab.kill_agent("n1")
    lab.call("DELETE", "/api/v1/namespaces/default/pods/goes")
    assert 2 == len(lab.standing("n1"))
    wait_for(lambda: lab.call("GET", "/api/v1/nodes/n1")["status"]["allocatable"][CARD] == "0")
    lab.add("meanwhile", share())
    time.sleep(2)
    assert "Pending" == lab.phases()["meanwhile"]
    lab.start_agent("n1")
    wait_for(
        lambda: (
            {"default/stays/main", "default/meanwhile/main"}
            == {entry["label"] for entry in lab.standing("n1")}
        )
    )
    run_all(lab, "stays", "meanwhile")


def test_a_kubelet_restart_disturbs_nothing(lab: Lab) -> None:
    lab.add("before", share())
    run_all(lab, "before")
    began, registered = time.monotonic(), lab.log("agent-n1").count("registered with the kubelet")
    lab.restart_kubelet("n1")
    # A pod bound in between would be rejected, by every device plugin (kubernetes#125579).
    wait_for(lambda: lab.log("agent-n1").count("registered with the kubelet") == registered + 2)
    lab.add("after", share())
    run_all(lab, "before", "after")

    assert time.monotonic() - began < 60
    assert 2 == len(lab.standing("n1"))
    assert Counter({"Running": 2}) == Counter(lab.phases().values())


def test_a_pod_that_names_its_node_itself_gets_nothing(lab: Lab) -> None:
    lab.add("forger", share(), nodeName="n1")
    wait_for(lambda: lab.phases()["forger"] == "Failed")

    assert "gave container main no share" in lab.pods()["forger"]["status"]["message"]
    assert [] == lab.standing("n1")


def test_an_allocation_copied_from_another_pod_is_refused(lab: Lab) -> None:
    lab.add("mine", share())
    run_all(lab, "mine")
    notes = lab.pods()["mine"]["metadata"]["annotations"]
    body = lab.add("thief", share(), schedulerName="none")
    stolen = {name: notes[name] for name in (wire.ALLOCATION, wire.SIGNATURE)}
    path = "/api/v1/namespaces/default/pods/thief"
    patch = {"metadata": {"annotations": stolen}}
    lab.call("PATCH", path, patch, kind="application/merge-patch+json")
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    binding = {"metadata": {"name": "thief", "uid": body["metadata"]["uid"]}, "target": target}
    lab.call("POST", f"{path}/binding", binding)
    wait_for(lambda: lab.phases()["thief"] == "Failed")

    assert "not signed by this cluster's scheduler" in lab.pods()["thief"]["status"]["message"]
    assert ["default/mine/main"] == [entry["label"] for entry in lab.standing("n1")]


def test_an_agent_at_rest_writes_nothing(lab: Lab) -> None:
    def version() -> str:
        found = lab.call("GET", "/api/v1/nodes/n1")["metadata"]
        written = [m for m in found["managedFields"] if "hetero.io" in json.dumps(m)]
        return json.dumps(written)

    before = version()
    time.sleep(5)

    assert before == version()


def test_metrics_tell_each_containers_share(lab: Lab) -> None:
    lab.add("pod", share(memory=2000, core=20), str(JOB), "--memory", "1000MiB", "--seconds", "60")
    run_all(lab, "pod")
    wait_for(lambda: used(lab.metrics("n1")) == 1000 * MiB)


def used(metrics: str) -> float | None:
    for line in metrics.splitlines():
        if line.startswith("hetero_share_memory_used_bytes{") and 'pod="pod"' in line:
            return float(line.rpartition(" ")[2])
    return None


def test_a_lost_node_comes_back_with_its_shares(lab: Lab) -> None:
    lab.add("pod", share(), restartPolicy="Always")
    run_all(lab, "pod")
    lab.kill_node("n1")
    time.sleep(2)
    lab.start_node("n1")
    lab.start_agent("n1")

    def back() -> bool:
        statuses = lab.pods()["pod"]["status"].get("containerStatuses") or [{}]
        return bool(statuses[0].get("restartCount")) and "running" in statuses[0].get("state", {})

    wait_for(back, seconds=120)
    assert ["default/pod/main"] == [entry["label"] for entry in lab.standing("n1")]
