"""Pods on a real cluster, each in its share of a simulated card."""

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hetero_simulator import job

from hetero.model.units import MiB
from tests.cluster.conftest import AI_BENCHMARK_2, CARD, ended, run_all, share
from tests.cluster.lab import Lab, documents
from tests.cluster.release import Release
from tests.kube.binaries import minor
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

JOB = Path(job("cuda"))


def test_a_pod_runs_within_its_share(lab: Lab) -> None:
    tries = f"{JOB} --alloc 2400MiB; {JOB} --alloc 3001MiB; {JOB} --seconds 2"
    lab.add("pod", share(memory=3000, core=30), "sh", "-c", tries)
    ended(lab, "pod")

    fits, over, *_, rate = map(json.loads, documents(lab.output("pod")))
    assert {"allocated": 2400 * MiB} == fits
    assert "CUDA_ERROR_OUT_OF_MEMORY" == over["error"]
    assert rate["rate"] < 2000 * 0.45  # a step is 500 us of the card


def test_the_limit_holds_in_an_empty_environment(lab: Lab) -> None:
    lab.add("pod", share(), "sh", "-c", f"env -u LD_PRELOAD {JOB} --alloc 2001MiB")
    ended(lab, "pod")

    assert "CUDA_ERROR_OUT_OF_MEMORY" in lab.output("pod")


def test_hamis_ai_benchmark_2_runs_with_the_size_that_it_says(either: Release) -> None:
    """In the classic way; by claims in test_claims.py and test_claims_alone.py."""
    lab = either.lab
    lab.add("named", AI_BENCHMARK_2, "sh", "-c", f"{JOB} --alloc 2400MiB; {JOB} --alloc 3001MiB")
    ended(lab, "named")

    fits, over = map(json.loads, documents(lab.output("named")))
    assert {"allocated": 2400 * MiB} == fits
    assert "CUDA_ERROR_OUT_OF_MEMORY" == over["error"]


def test_what_does_not_fit_waits_with_its_reason_and_runs_when_there_is_room(lab: Lab) -> None:
    lab.add("whole", share(memory=10000, core=100, count=5))
    run_all(lab, "whole")
    lab.add("waits", share())
    assert wait_for(lambda: any("lack" in said for said in lab.messages("waits")))
    lab.call("DELETE", "/api/v1/namespaces/default/pods/whole?gracePeriodSeconds=1")
    run_all(lab, "waits")


def test_a_card_of_each_vendor_is_given_where_it_is(lab: Lab) -> None:
    places = {
        "huawei.com/Ascend910B3": "n2",
        "cambricon.com/vmlu": "n2",
        "hygon.com/dcunum": "n3",
        "iluvatar.ai/BI-V150-vgpu": "n3",
        "mthreads.com/vgpu": "n3",
        "metax-tech.com/gpu": "n3",
    }
    names = {resource: resource.partition(".")[0] for resource in places}
    for resource, name in names.items():
        lab.add(name, {resource: "1"})
    run_all(lab, *names.values())

    pods = lab.pods()
    assert places == {resource: pods[name]["spec"]["nodeName"] for resource, name in names.items()}
    assert {
        node: sorted(f"default/{names[r]}/main" for r, n in places.items() if n == node)
        for node in ("n2", "n3")
    } == {node: sorted(entry["label"] for entry in lab.standing(node)) for node in ("n2", "n3")}


def test_shares_outlive_the_agent_and_end_with_their_pods(lab: Lab, release: Release) -> None:
    for name in ("stays", "goes"):
        lab.add(name, share())
    run_all(lab, "stays", "goes")
    release.stop_agent("n1")
    lab.call("DELETE", "/api/v1/namespaces/default/pods/goes")
    assert 2 == len(lab.standing("n1"))
    wait_for(lambda: CARD not in lab.allocatable("n1"))
    lab.add("meanwhile", share())
    assert wait_for(lambda: lab.messages("meanwhile"))
    assert "Pending" == lab.phases()["meanwhile"]
    release.start_agent("n1")
    wait_for(
        lambda: (
            {"default/stays/main", "default/meanwhile/main"}
            == {entry["label"] for entry in lab.standing("n1")}
        ),
        seconds=100,  # from 1.32 on kube-scheduler looks again every 30 s
    )
    run_all(lab, "stays", "meanwhile")


def test_a_kubelet_restart_disturbs_nothing(lab: Lab, release: Release) -> None:
    lab.add("before", share())
    run_all(lab, "before")
    registered = release.agent_log("n1").count("registered with the kubelet")
    lab.restart_kubelet("n1")

    # A pod bound in between would be rejected, by every device plugin (kubernetes#125579).
    def again() -> bool:
        with suppress(OSError):
            count = release.agent_log("n1").count("registered with the kubelet")
            return count >= registered + 2 and release.serves("n1")
        return False

    wait_for(again)
    lab.add("after", share())
    run_all(lab, "before", "after")

    assert 2 == len(lab.standing("n1"))
    assert Counter({"Running": 2}) == Counter(lab.phases().values())


def test_metrics_tell_each_containers_share(lab: Lab, release: Release) -> None:
    lab.add("pod", share(memory=2000, core=20), str(JOB), "--memory", "1000MiB", "--seconds", "60")
    run_all(lab, "pod")
    # It has a context, too.
    wait_for(lambda: 1000 * MiB < (used(release.metrics("n1")) or 0) < 1540 * MiB)


def used(metrics: str) -> float | None:
    for line in metrics.splitlines():
        if line.startswith("hetero_share_memory_used_bytes{") and 'pod="pod"' in line:
            return float(line.rpartition(" ")[2])
    return None


def test_a_lost_node_comes_back_with_its_shares(lab: Lab) -> None:
    over = f"while :; do {JOB} --alloc 2001MiB; sleep 1; done"
    lab.add("pod", share(), "sh", "-c", over, restartPolicy="Always")
    run_all(lab, "pod")
    lab.kill_node("n1")
    lab.start_node("n1")
    if minor(lab.binaries) >= 28:
        # Since then a kubelet that comes up before a device plugin rejects its pods, whosever they
        # are (kubernetes#125579): a controller makes another pod, and the share goes with the old.
        wait_for(lambda: lab.phases()["pod"] == "Failed", seconds=120)
        wait_for(lambda: not lab.standing("n1"))
        lab.add("other", share())
        run_all(lab, "other")
        return

    def held() -> bool:
        """Whether a container that started since holds its program to the share."""
        (status,) = lab.pods()["pod"]["status"]["containerStatuses"]
        with suppress(OSError):  # it is between two containers
            return bool(status["restartCount"]) and "OUT_OF_MEMORY" in lab.output("pod")
        return False

    wait_for(held, seconds=120)
    assert ["default/pod/main"] == [entry["label"] for entry in lab.standing("n1")]
