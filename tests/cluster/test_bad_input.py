"""What is wrong is said in one sentence where its author looks, and the cluster goes on."""

import base64
import json
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from hetero.kube.words.annotations import INVENTORY
from tests.cluster.conftest import CARD, run_all, share
from tests.cluster.lab import Lab
from tests.cluster.release import NAMESPACE, Release
from tests.kube.control_plane import Authority, wait_for

pytestmark = pytest.mark.cluster


def goes_on(lab: Lab) -> None:
    lab.add("after", share())
    run_all(lab, "after")


def hears(lab: Lab, name: str, *parts: str) -> None:
    """Wait until one of a pod's events has all these parts of a sentence."""
    wait_for(lambda: any(all(part in said for part in parts) for said in lab.messages(name)))


def test_a_resource_of_no_vendor(lab: Lab) -> None:
    lab.add("pod", {"huawei.com/Ascend999": "1"})
    hears(lab, "pod", "Insufficient huawei.com/Ascend999")
    goes_on(lab)


@pytest.mark.parametrize(
    ("limits", "notes", "sentence"),
    [
        (
            share(),
            {"nvidia.com/use-gpuuuid": "GPU-1", "nvidia.com/nouse-gpuuuid": "GPU-1"},
            "nvidia.com/use-gpuuuid and nvidia.com/nouse-gpuuuid both name GPU-1",
        ),
        (share(), {"hetero.io/policy": "often"}, "'often' is not fixed, elastic or off"),
        ({**share(), "hygon.com/dcunum": "1"}, {}, "a container has cards of one kind"),
        (share(core=130), {}, "nvidia.com/gpucores 130 is more than a card has"),
    ],
)
def test_contradictions_are_refused_at_admission(
    lab: Lab, limits: Mapping[str, str], notes: Mapping[str, str], sentence: str
) -> None:
    with pytest.raises(OSError, match=sentence):
        lab.add("pod", limits, notes=notes)


def test_a_share_larger_than_any_card(lab: Lab) -> None:
    lab.add("pod", share(memory=200_000))
    hears(lab, "pod", "0 of 1 node: 1 too small")
    goes_on(lab)


def test_a_share_over_the_namespaces_quota(lab: Lab) -> None:
    quotas = "/api/v1/namespaces/default/resourcequotas"
    hard = {"limits.nvidia.com/gpumem": "1500"}
    lab.call("POST", quotas, {"metadata": {"name": "small"}, "spec": {"hard": hard}})
    try:
        with pytest.raises(OSError, match="over quota small of namespace default"):
            lab.add("pod", share(memory=2000))
    finally:
        lab.call("DELETE", f"{quotas}/small")
    goes_on(lab)


def test_a_certificate_that_expired(lab: Lab, release: Release, tmp_path: Path) -> None:
    def logged(sentence: str) -> bool:
        return any(
            sentence in lab.output(name, namespace=NAMESPACE)
            for name in release.pods("hetero-webhook")
        )

    path = f"/api/v1/namespaces/{NAMESPACE}/secrets/hetero-webhook-tls"
    old = Authority(tmp_path, "hetero-ca").issue("webhook", lasts=timedelta(days=-1))
    data = dict(zip(("tls.crt", "tls.key"), (p.read_bytes() for p in old), strict=True))
    lab.patch(
        path, {"data": {name: base64.b64encode(text).decode() for name, text in data.items()}}
    )
    wait_for(lambda: logged("UTC: renew it"), seconds=120)
    goes_on(lab)  # with the one it had

    release.renew_certificates()
    wait_for(lambda: logged("renewed"), seconds=120)
    assert release.admits()


def test_agents_of_other_versions(lab: Lab) -> None:
    notes = lab.call("GET", "/api/v1/nodes/n1")["metadata"]["annotations"]
    text = json.loads(notes[INVENTORY])
    (card, *_), kinds = text["cards"], text["kinds"]
    older = {"cards": [{"uuid": "GPU-old", "kind": card["kind"], "index": 0}], "kinds": kinds}
    newer = {"version": 1000, "racks": []}
    try:
        for name, inventory in {"older": older, "newer": newer}.items():
            notes = {INVENTORY: json.dumps(inventory)}
            taints = [{"key": "lab/empty", "effect": "NoSchedule"}]  # nothing runs there
            node = {"metadata": {"name": name, "annotations": notes}, "spec": {"taints": taints}}
            lab.call("POST", "/api/v1/nodes", node)
            amounts = {"cpu": "4", "memory": "8Gi", "pods": "110", CARD: "10"}
            status = {"capacity": amounts, "allocatable": amounts}
            lab.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        # One that says less is understood; one that cannot be is said to be so.
        lab.add("pod", share(memory=200_000), tolerations=[{"operator": "Exists"}])
        hears(
            lab,
            "pod",
            "0 of 3 nodes: ",
            "1 publish an inventory that this version cannot read",
            "1 have no agent that serves",
            "1 too small",
        )
        goes_on(lab)
    finally:
        for name in ("older", "newer"):
            lab.call("DELETE", f"/api/v1/nodes/{name}")
