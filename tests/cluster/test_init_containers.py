"""Rollouts of Deployments whose pods have init containers, at cards that are full."""

from collections.abc import Callable

import pytest

from hetero.kube.words.annotations import INVENTORY, published_devices
from hetero.model import Whole
from tests.cluster.conftest import run_all
from tests.cluster.lab import Lab, Plain, program
from tests.cluster.release import Release
from tests.kube.binaries import minor
from tests.kube.control_plane import wait_for
from tests.kube.site_cards import CUT

pytestmark = pytest.mark.cluster

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
#: A sidecar is a kind of its own from here on.
SIDECARS = 28
#: The vendors whose cards the lab's nodes have, and that are cut.
VENDORS = ("ascend", "cambricon", "hygon", "metax", "mthreads")


def template(lab: Lab, part: Callable[[int], dict[str, str]], labels: Plain) -> Plain:
    """Return the pods of a Deployment: the init container takes as much as the main one."""
    spec = program(part(4))
    init = {**program(part(4), "sleep", "0.1")["containers"][0], "name": "init"}
    sidecar = {**program(part(1))["containers"][0], "name": "sidecar", "restartPolicy": "Always"}
    sidecars = [sidecar] if minor(lab.binaries) >= SIDECARS else []
    return {"metadata": {"labels": labels}, "spec": {**spec, "initContainers": [*sidecars, init]}}


def cards(lab: Lab, vendor: str) -> int:
    """Return how many cards of a vendor the cluster has that can be shared."""
    nodes = lab.call("GET", "/api/v1/nodes")["items"]
    texts = (node["metadata"].get("annotations", {}).get(INVENTORY) for node in nodes)
    devices = [device for text in texts if text for device in published_devices(text, node="n")]
    return sum(
        device.vendor == vendor and not isinstance(device.granularity, Whole) for device in devices
    )


def newest(lab: Lab, vendor: str, round_number: int) -> str | None:
    """Return the phase of the pod that a rollout made; no pod may have failed but by its end."""
    pods = [
        pod
        for pod in lab.pods().values()
        if pod["metadata"].get("labels", {}).get("vendor") == vendor
    ]
    failed = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
    assert [] == [
        pod["status"]
        for pod in failed
        if "reason" in pod["status"] or "deletionTimestamp" not in pod["metadata"]
    ]
    rounds = {pod["metadata"]["labels"]["round"]: pod["status"]["phase"] for pod in pods}
    return rounds.get(str(round_number))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_none_of_twenty_rollouts_at_a_full_card_is_refused_by_a_kubelet(either: Release) -> None:
    lab = either.lab
    for vendor in VENDORS:
        part = CUT[vendor].part
        for number in range(cards(lab, vendor) - 1):  # one card stays
            lab.add(f"whole-{vendor}-{number}", {next(iter(part(1))): "1"})
            run_all(lab, f"whole-{vendor}-{number}")
        lab.add(f"neighbour-{vendor}", part(2))
    run_all(lab, *(f"neighbour-{vendor}" for vendor in VENDORS))
    try:
        for round_number in range(20):
            for vendor in VENDORS:
                labels = {"vendor": vendor, "round": str(round_number)}
                made = template(lab, CUT[vendor].part, labels)
                if round_number:
                    lab.patch(f"{DEPLOYMENTS}/{vendor}", {"spec": {"template": made}})
                    continue
                selector = {"matchLabels": {"vendor": vendor}}
                spec = {"strategy": {"type": "Recreate"}, "selector": selector, "template": made}
                lab.call("POST", DEPLOYMENTS, {"metadata": {"name": vendor}, "spec": spec})
            for vendor in VENDORS:
                wait_for(
                    lambda: newest(lab, vendor, round_number) == "Running",  # noqa: B023 - at once
                    seconds=90,
                )
    finally:
        for vendor in VENDORS:
            lab.call("DELETE", f"{DEPLOYMENTS}/{vendor}?propagationPolicy=Background")
