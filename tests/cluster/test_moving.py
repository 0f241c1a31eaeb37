"""HAMi is gone and its traces are there: what a cluster has when hetero takes its place.

Its own images are not run. What it leaves behind is written as its sources write it (Project-HAMi/
HAMi at 4707fb02: charts/hami, pkg/device, pkg/util).
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hetero.kube.words.annotations import INVENTORY, published_devices
from hetero.model import MEMORY, Device
from hetero.model.units import MiB
from tests.cluster.conftest import CARD, plain_plugins, run_all, share, waits
from tests.cluster.lab import UNWATCHED, Lab, Plain
from tests.cluster.release import Release
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

NODE = "n1"
BEFORE = f"/api/v1/namespaces/{UNWATCHED}/pods"  # where our webhook was not there yet
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
SCHEDULER = "hami-scheduler"
ON_NODE = ("node-handshake", "node-nvidia-register", "mutex.lock")


def test_every_pod_of_hamis_time_runs_or_runs_on(lab: Lab, release: Release) -> None:
    cards = inventory(lab)
    with left_behind(lab, cards):
        with hamis_time(lab, release, 10 * len(cards)):
            started_by_hami(lab, cards[0])
            # Its scheduler went before it looked at this one.
            lab.add("waits", share(), namespace=UNWATCHED, schedulerName=SCHEDULER)
        lab.add("new", share(), schedulerName=SCHEDULER, runtimeClassName="nvidia")
        run_all(lab, "new")
        wait_for(lambda: phases(lab) == {"old": "Running", "waits": "Running"})
        assert "hetero-scheduler" == lab.pods()["new"]["spec"]["schedulerName"]

        # What it gave is not given again as long as its pod runs.
        lab.call("DELETE", "/api/v1/namespaces/default/pods/new?gracePeriodSeconds=0")
        lab.call("DELETE", f"{BEFORE}/waits?gracePeriodSeconds=0")
        lab.add("every", {CARD: str(len(cards))}, schedulerName=SCHEDULER)
        assert wait_for(lambda: any("lack" in said for said in lab.messages("every")))
        assert "Pending" == lab.phases()["every"]
        lab.call("DELETE", f"{BEFORE}/old?gracePeriodSeconds=0")
        run_all(lab, "every")


@contextmanager
def hamis_time(lab: Lab, release: Release, count: int) -> Iterator[None]:
    """Have another device plugin on the node instead of ours meanwhile."""
    release.stop_agent(NODE)
    wait_for(lambda: CARD not in lab.allocatable(NODE))  # else ours would pass for the other's
    try:
        with plain_plugins(lab, CARD, {NODE: count}):
            yield
        # A kubelet that sees the other end after ours has come takes it for ours, and offers none.
        wait_for(lambda: CARD not in lab.allocatable(NODE))
    finally:
        release.start_agent(NODE)


def inventory(lab: Lab) -> tuple[Device, ...]:
    notes = lab.call("GET", f"/api/v1/nodes/{NODE}")["metadata"]["annotations"]
    return published_devices(notes[INVENTORY], node=NODE)


def phases(lab: Lab) -> dict[str, str]:
    return {name: pod["status"]["phase"] for name, pod in lab.pods(UNWATCHED).items()}


def started_by_hami(lab: Lab, card: Device) -> None:
    """Have a pod run that HAMi's scheduler bound and another device plugin started."""
    given = f"{card.uuid},NVIDIA-{card.model},2000,20:;"
    notes = {
        "hami.io/vgpu-node": NODE,
        "hami.io/vgpu-time": "1790000000",
        "hami.io/bind-time": "1790000000",
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/vgpu-devices-allocated": given,
    }
    lab.add("old", share(), namespace=UNWATCHED, notes=notes, schedulerName="gone")
    lab.patch(f"{BEFORE}/old", {"metadata": {"labels": {"hami.io/vgpu-node": NODE}}})
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    lab.call("POST", f"{BEFORE}/old/binding", {"metadata": {"name": "old"}, "target": target})
    wait_for(lambda: phases(lab)["old"] == "Running")


@contextmanager
def left_behind(lab: Lab, cards: tuple[Device, ...]) -> Iterator[None]:
    """Leave on the cluster what HAMi's chart and plugin leave, and a lock that nobody opens."""
    registered = [
        {
            "id": card.uuid,
            "index": card.index,
            "count": 10,
            "devmem": card.capacity[MEMORY] // MiB,
            "devcore": 100,
            "type": f"NVIDIA-{card.model}",
            "numa": card.numa or 0,
            "mode": "hami-core",
            "health": True,
        }
        for card in cards
    ]
    texts = (
        "Requesting_2026-11-01 10:00:00",
        json.dumps(registered),
        "2026-11-01T10:00:00Z,default,old",
    )
    notes = {f"hami.io/{name}": text for name, text in zip(ON_NODE, texts, strict=True)}
    about = {"annotations": notes, "labels": {"gpu": "on"}}
    lab.patch(f"/api/v1/nodes/{NODE}", {"metadata": about})
    runtime = {"metadata": {"name": "nvidia"}, "handler": "runc"}
    lab.call("POST", CLASSES, runtime)
    lab.call("POST", HOOKS, webhook())
    try:
        yield
    finally:
        lab.call("DELETE", f"{HOOKS}/hami-webhook")
        lab.call("DELETE", f"{CLASSES}/nvidia")
        none = {"annotations": dict.fromkeys(notes), "labels": {"gpu": None}}
        lab.patch(f"/api/v1/nodes/{NODE}", {"metadata": none})


def webhook() -> Plain:
    """Return HAMi's webhook, whose service is gone."""
    service = {"name": SCHEDULER, "namespace": "kube-system", "path": "/webhook", "port": 443}
    ignored = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    hook = {
        "name": "vgpu.hami.io",
        "admissionReviewVersions": ["v1beta1"],
        "clientConfig": {"service": service},
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "namespaceSelector": {"matchExpressions": [ignored]},
        "objectSelector": {"matchExpressions": [ignored]},
        "reinvocationPolicy": "Never",
        "rules": [{**rule, "resources": ["pods"], "scope": "*"}],
        "sideEffects": "None",
        "timeoutSeconds": 10,
    }
    return {"metadata": {"name": "hami-webhook"}, "webhooks": [hook]}


def test_a_node_of_another_plugin_serves_its_pods_until_it_is_moved(
    lab: Lab, release: Release
) -> None:
    """The steps of docs/guides/coming-from.md, with the least of device plugins for NVIDIA's."""
    node, plugins = f"/api/v1/nodes/{NODE}", {CARD: "1"}
    # Where the webhook does not look, pods are for the plugin: hetero's node has no share for them.
    lab.add("strays", plugins, namespace=UNWATCHED)
    wait_for(lambda: "gave container main no share" in waits(lab.pods(UNWATCHED)["strays"]))
    lab.call("DELETE", f"{BEFORE}/strays?gracePeriodSeconds=0")
    with hamis_time(lab, release, count=2):
        lab.add("plugins", plugins, namespace=UNWATCHED)
        wait_for(lambda: phases(lab)["plugins"] == "Running")
        # All others are hetero's from the installation on, which binds none to the plugin's node.
        lab.add("new", share())
        assert wait_for(lambda: any("no agent that serves" in one for one in lab.messages("new")))
        assert "Pending" == lab.phases()["new"]

        lab.patch(node, {"spec": {"unschedulable": True}})
        lab.call("DELETE", f"{BEFORE}/plugins?gracePeriodSeconds=0")
    lab.patch(node, {"spec": {"unschedulable": None}})
    run_all(lab, "new")
