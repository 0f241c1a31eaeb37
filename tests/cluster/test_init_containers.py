"""Rollouts of Deployments whose pods have init containers, at cards that are full."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from hetero.kube.words.annotations import INVENTORY, published_devices
from hetero.model import Whole
from tests.cluster.conftest import run_all
from tests.cluster.lab import Lab, Plain, program
from tests.cluster.release import Release
from tests.cluster.test_reports import racks, restarting
from tests.kube.binaries import minor
from tests.kube.control_plane import wait_for
from tests.kube.site_cards import CUT

pytestmark = pytest.mark.cluster

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
#: A sidecar is a kind of its own from here on.
SIDECARS = 28
#: What cuts cards that the lab's nodes have; MIG instances are those of a card of NVIDIA's.
WAYS = ("ascend", "cambricon", "hygon", "metax", "mthreads", "mig")


def template(lab: Lab, part: Callable[[int], dict[str, str]], labels: Plain) -> Plain:
    """Return the pods of a Deployment: the init container takes as much as the main one."""
    spec = program(part(4))
    init = {**program(part(4), "sleep", "0.1")["containers"][0], "name": "init"}
    sidecar = {**program(part(2))["containers"][0], "name": "sidecar", "restartPolicy": "Always"}
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


def newest(lab: Lab, way: str, round_number: int) -> str | None:
    """Return the phase of the pod that a rollout made; no pod may have failed but by its end."""
    pods = [
        pod for pod in lab.pods().values() if pod["metadata"].get("labels", {}).get("way") == way
    ]
    failed = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
    assert [] == [
        pod["status"]
        for pod in failed
        if "reason" in pod["status"] or "deletionTimestamp" not in pod["metadata"]
    ]
    rounds = {pod["metadata"]["labels"]["round"]: pod["status"]["phase"] for pod in pods}
    return rounds.get(str(round_number))


@pytest.fixture
def full(either: Release) -> Iterator[Lab]:
    """A cluster of whose cards of each way one has room for one pod of a Deployment, and no more.

    There is a neighbour on it, and one more where there is no sidecar.
    """
    lab, instance = either.lab, next(iter(CUT["mig"].part(1)))
    with restarting(either, "n1") as restart, racks(lab) as change:
        change("n1", "model = NVIDIA H200\n", "mig = 1g.18gb x3\n")
        restart("")
        wait_for(lambda: instance in lab.allocatable("n1"))
        for way in WAYS:
            part = CUT[way].part
            for number in range(0 if way == "mig" else cards(lab, way) - 1):  # one card stays
                lab.add(f"whole-{way}-{number}", {next(iter(part(1))): "1"})
                run_all(lab, f"whole-{way}-{number}")
            for number in range(1 if minor(lab.binaries) >= SIDECARS else 2):
                lab.add(f"neighbour-{way}-{number}", part(2))
        run_all(lab, *(name for name in lab.pods() if name.startswith("neighbour")))
        try:
            yield lab
        finally:
            for way in WAYS:
                with suppress(OSError):  # it has not been made
                    lab.call("DELETE", f"{DEPLOYMENTS}/{way}?propagationPolicy=Background")
            lab.clear()


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_none_of_twenty_rollouts_at_a_full_card_is_refused_by_a_kubelet(full: Lab) -> None:
    lab = full
    for round_number in range(20):
        for way in WAYS:
            labels = {"way": way, "round": str(round_number)}
            made = template(lab, CUT[way].part, labels)
            if round_number:
                lab.patch(f"{DEPLOYMENTS}/{way}", {"spec": {"template": made}})
                continue
            selector = {"matchLabels": {"way": way}}
            spec = {"strategy": {"type": "Recreate"}, "selector": selector, "template": made}
            lab.call("POST", DEPLOYMENTS, {"metadata": {"name": way}, "spec": spec})
        for way in WAYS:
            wait_for(
                lambda: newest(lab, way, round_number) == "Running",  # noqa: B023 - at once
                seconds=90,
            )
