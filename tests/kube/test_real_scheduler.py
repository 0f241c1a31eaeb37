"""The extender under the stock kube-scheduler of a real control plane."""

from __future__ import annotations

import json

import pytest

from hetero.kube import wire
from hetero.units import GiB
from tests.kube.conftest import card
from tests.kube.control_plane import ControlPlane, wait_for
from tests.kube.test_chart import chart

pytestmark = pytest.mark.cluster


#: The chart's values for the Kubernetes of these tests.
OLD = {
    "kubeScheduler": {"configVersion": "kubescheduler.config.k8s.io/v1beta1"},
    "certificates": {"cronJobVersion": "batch/v1beta1"},
}


def test_a_real_api_server_takes_every_manifest_of_the_chart(plane: ControlPlane) -> None:
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "hetero-system"}})
    wait_for(lambda: plane.call("GET", "/api/v1/namespaces/kube-system"))
    for made in chart(**OLD):
        version, kind = made["apiVersion"], made["kind"].lower()
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        space = made["metadata"].get("namespace")
        where = f"/namespaces/{space}" if space else ""
        answer = plane.call("POST", f"{group}{where}/{kind}s", made)

        assert made["metadata"]["name"] == answer["metadata"]["name"]


def node_of(plane: ControlPlane, name: str) -> str | None:
    found: str | None = plane.pod(name)["spec"].get("nodeName")
    return found


def held(plane: ControlPlane) -> dict[str, dict[str, int]]:
    """Return what all pods' allocations take of each card."""
    sums: dict[str, dict[str, int]] = {}
    for pod in plane.pods():
        text = pod["metadata"].get("annotations", {}).get(wire.ALLOCATION)
        for _, given in (
            json.loads(text)["containers"] if text and pod["spec"].get("nodeName") else ()
        ):
            for grant in given["grants"]:
                counters = sums.setdefault(grant["device"], {})
                for name, amount in grant["takes"].items():
                    counters[name] = counters.get(name, 0) + amount
    return sums


def test_a_pod_gets_the_share_it_asks_for_and_one_too_large_hears_why_not(
    scheduled: ControlPlane,
) -> None:
    scheduled.add_node("n1", {wire.INVENTORY: wire.inventory((card("GPU-1"),))})
    scheduled.add_node("n2", {})

    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    scheduled.add_pod("fits", share)
    scheduled.add_pod("large", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000"})

    assert "n1" == wait_for(lambda: node_of(scheduled, "fits"))
    assert {"GPU-1": {"core": 30, "memory": 3000 * 2**20, "slots": 1}} == held(scheduled)
    assert wait_for(
        lambda: "0 of 2 nodes fit: 1 have no device, 1 too small" in scheduled.events("large")
    )


def test_a_hundred_pods_at_once_fill_three_nodes_and_no_card_is_over_capacity(
    scheduled: ControlPlane,
) -> None:
    for number in range(3):
        cards = tuple(card(f"GPU-{number}-{place}", memory=16 * GiB) for place in range(2))
        scheduled.add_node(f"n{number}", {wire.INVENTORY: wire.inventory(cards)})
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "20"}
    for number in range(100):
        scheduled.add_pod(f"p{number}", share)

    def bound() -> int:
        return sum(1 for pod in scheduled.pods() if pod["spec"].get("nodeName"))

    wait_for(lambda: bound() >= 24)  # four shares of 4 GiB on each of six cards

    assert 24 == bound()
    assert [{"core": 80, "memory": 16 * GiB, "slots": 4}] * 6 == list(held(scheduled).values())
