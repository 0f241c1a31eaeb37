"""A node is drained as any other: no pod of hetero's has data that kubectl would ask about."""

from pathlib import Path

import pytest

from tests.cluster.lab import Plain
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster


def replicas(release: Release, node: str) -> list[Plain]:
    """Return the pods of hetero on a node that a drain evicts."""
    apps = ("hetero-scheduler", "hetero-webhook")
    pods = [pod for app in apps for pod in release.pods(app).values()]
    return [pod for pod in pods if pod["spec"]["nodeName"] == node]


def test_a_drain_evicts_the_scheduler_that_leads_and_another_leads(
    either: Release, late_kubernetes: Path
) -> None:
    """Its pod ends at once, though one of its containers waits for an input that never comes."""
    lab, kubectl = either.lab, late_kubernetes / "kubectl"
    node = either.leading()["spec"]["nodeName"]
    agent = either.agent(node)["metadata"]["uid"]
    try:
        drained = lab.kubectl(kubectl, "drain", node, "--ignore-daemonsets", "--timeout=25s")
        assert 0 == drained.returncode, drained.stderr
        assert [] == replicas(either, node)
        assert node != either.leading()["spec"]["nodeName"]
        assert agent == either.agent(node)["metadata"]["uid"]
    finally:
        lab.kubectl(kubectl, "uncordon", node)
    wait_for(lambda: len(either.pods("hetero-scheduler")) == 2)
