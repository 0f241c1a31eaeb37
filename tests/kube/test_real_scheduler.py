"""The extender under the stock kube-scheduler of a real control plane."""

import base64
import json
import os
import subprocess
import sys
import time
import urllib.error
from typing import Any

import pytest

from hetero.kube.words.annotations import ALLOCATION, INVENTORY, inventory_text
from hetero.model.units import GiB
from tests.kube.binaries import LABS
from tests.kube.conftest import card, take_up
from tests.kube.control_plane import Authority, ControlPlane, free_port, wait_for
from tests.kube.test_chart import chart

pytestmark = pytest.mark.cluster
everywhere = pytest.mark.parametrize("kubernetes", LABS, indirect=True)
oldest = pytest.mark.parametrize("kubernetes", LABS[:1], indirect=True)


def test_a_real_api_server_takes_every_manifest_of_the_chart(plane: ControlPlane) -> None:
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "hetero-system"}})
    wait_for(lambda: plane.call("GET", "/api/v1/namespaces/kube-system"))
    for made in chart(kubernetes=f"1.{plane.minor}"):
        version, kind = made["apiVersion"], made["kind"].lower()
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        space = made["metadata"].get("namespace")
        where = f"/namespaces/{space}" if space else ""
        answer = plane.call("POST", f"{group}{where}/{kind}s", made)

        assert made["metadata"]["name"] == answer["metadata"]["name"]


def node_of(plane: ControlPlane, name: str) -> str | None:
    node_name: str | None = plane.pod(name)["spec"].get("nodeName")
    return node_name


def held(plane: ControlPlane) -> dict[str, dict[str, int]]:
    """Return what all pods' allocations take of each card."""
    sums: dict[str, dict[str, int]] = {}
    for pod in plane.pods():
        text = pod["metadata"].get("annotations", {}).get(ALLOCATION)
        for _, given in (
            json.loads(text)["containers"] if text and pod["spec"].get("nodeName") else ()
        ):
            for grant in given["pieces"]:
                counters = sums.setdefault(grant["device"], {})
                for name, amount in grant["takes"].items():
                    counters[name] = counters.get(name, 0) + amount
    return sums


@oldest
def test_a_pod_gets_the_share_it_asks_for_and_one_too_large_hears_why_not(
    scheduled: ControlPlane,
) -> None:
    scheduled.add_node("n1", {INVENTORY: inventory_text((card("GPU-1"),))})
    scheduled.add_node("n2", {})

    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    scheduled.add_pod("fits", share)
    scheduled.add_pod("large", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000"})

    assert "n1" == wait_for(lambda: node_of(scheduled, "fits"))
    assert {"GPU-1": {"core": 30, "memory": 3000 * 2**20, "slots": 1}} == held(scheduled)
    assert wait_for(
        lambda: (
            "0 of 2 nodes: 1 too small (19.6 GiB wanted, largest 16), 1 have no device"
            in scheduled.events("large")
        )
    )


@oldest
def test_a_hundred_pods_at_once_fill_three_nodes_and_no_card_is_over_capacity(
    scheduled: ControlPlane,
) -> None:
    for number in range(3):
        cards = tuple(card(f"GPU-{number}-{place}", memory=16 * GiB) for place in range(2))
        scheduled.add_node(f"n{number}", {INVENTORY: inventory_text(cards)})
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "20"}
    for number in range(100):
        scheduled.add_pod(f"p{number}", share)

    def bound() -> int:
        return sum(1 for pod in scheduled.pods() if pod["spec"].get("nodeName"))

    wait_for(lambda: bound() >= 24)  # four shares of 4 GiB on each of six cards

    assert 24 == bound()
    assert [{"core": 80, "memory": 16 * GiB, "slots": 4}] * 6 == list(held(scheduled).values())


@oldest
def test_an_extender_that_just_started_sends_a_node_one_pod_until_its_kubelet_took_it_up(
    without_kubelets: ControlPlane,
) -> None:
    """The API server may have been away right before: kubelets may not watch pods again yet."""
    plane = without_kubelets
    plane.add_node("n1", {INVENTORY: inventory_text((card("GPU-1"),))})
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "20"}
    for number in range(3):
        plane.add_pod(f"p{number}", share)

    def bound() -> list[str]:
        return [pod["metadata"]["name"] for pod in plane.pods() if pod["spec"].get("nodeName")]

    (first,) = wait_for(bound)
    time.sleep(2)
    assert [first] == bound()
    take_up(plane, first)
    wait_for(lambda: len(bound()) == 3, seconds=3)  # who does not hear of it waits for 6 s


@oldest
def test_an_extender_killed_at_any_moment_knows_what_stands_when_it_is_back(
    scheduled: ControlPlane,
) -> None:
    cards = tuple(card(f"GPU-{place}", memory=16 * GiB) for place in range(4))
    scheduled.add_node("n1", {INVENTORY: inventory_text(cards)})
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "20"}
    for number in range(8):
        scheduled.add_pod(f"early{number}", share)
    wait_for(lambda: held(scheduled))
    scheduled.kill_and_restart("extender")
    for number in range(40):
        scheduled.add_pod(f"late{number}", share)

    def bound() -> int:
        for sums in held(scheduled).values():
            assert 16 * GiB >= sums["memory"]
        return sum(1 for pod in scheduled.pods() if pod["spec"].get("nodeName"))

    wait_for(lambda: bound() == 16, seconds=100)  # four shares on each card

    assert {16 * GiB} == {sums["memory"] for sums in held(scheduled).values()}


def test_the_webhook_completes_pods_and_refuses_nonsense(plane: ControlPlane) -> None:
    """Of claims, too, where nobody serves any: this API server is older than they are."""
    authority, port = Authority(plane.folder), free_port()
    server = authority.issue("webhook")
    plane.start(
        "webhook", sys.executable, "-m", "hetero.cli", "webhook",
        "--host", "127.0.0.1", "--port", str(port), "--allocation-writer", "the-scheduler",
        "--agent", "agent", "--allow-network", "127.0.0.0/8", "--allocation", "both",
        "--cert", str(server[0]), "--key", str(server[1]),
        env={"KUBECONFIG": str(plane.kubeconfig)},
    )  # fmt: skip
    wait_for(lambda: "serving on" in plane.log("webhook"))
    (hook,) = [made for made in chart() if made["kind"] == "MutatingWebhookConfiguration"]
    for webhook in hook["webhooks"]:
        webhook["clientConfig"] = {
            "url": f"https://127.0.0.1:{port}/admit",
            "caBundle": base64.b64encode(authority.path.read_bytes()).decode(),
        }
    kind = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    plane.call("POST", kind, hook)
    share = {"nvidia.com/gpumem": "3000"}
    plain = {"schedulerName": "default-scheduler"}

    def completed() -> Any:
        about = {"annotations": {"hetero.io/by-claims": "true"}}
        made = plane.add_pod(f"p{time.monotonic_ns()}", share, spec=plain, metadata=about)
        return made if made["spec"]["schedulerName"] == "hetero-scheduler" else None

    limits = wait_for(completed)["spec"]["containers"][0]["resources"]["limits"]
    assert {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"} == limits
    with pytest.raises(urllib.error.HTTPError, match="gpucores 130 is more than a card has"):
        plane.add_pod("nonsense", {"nvidia.com/gpucores": "130"}, spec=plain)
    notes = {ALLOCATION: "{}"}
    with pytest.raises(urllib.error.HTTPError, match="written by the scheduler alone"):
        plane.add_pod("forged", share, spec=plain, metadata={"annotations": notes})


@everywhere
def test_a_refusal_has_the_numbers_of_what_lacks_and_what_if_says_the_same(
    scheduled: ControlPlane,
) -> None:
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "12288"}
    for number in (1, 2):
        notes = {INVENTORY: inventory_text((card(f"GPU-{number}"),))}
        scheduled.add_node(f"n{number}", notes, **{"nvidia.com/gpu": "20"})
        scheduled.add_pod(f"p{number}", share)
    wait_for(lambda: node_of(scheduled, "p1") and node_of(scheduled, "p2"))
    scheduled.add_pod("late", share)

    refusal = "0 of 2 nodes: 2 lack memory on one device (12 GiB wanted, largest free 4)"
    assert wait_for(lambda: refusal in scheduled.events("late"))

    words = ("--cluster", "--replicas", "1", "--memory", "2Gi", "--core", "30", "--json")
    done = subprocess.run(
        [sys.executable, "-m", "hetero.cli", "simulate", *words],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(scheduled.kubeconfig)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    late, added = json.loads(done.stdout)["items"]
    assert ("late", "waiting", refusal) == (late["pod"], late["origin"], late["refusal"])
    like = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048", "nvidia.com/gpucores": "30"}
    scheduled.add_pod("added", like)
    assert added["node"] == wait_for(lambda: node_of(scheduled, "added"))


def important(plane: ControlPlane, name: str, value: int) -> None:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    plane.call("POST", path, {"metadata": {"name": name}, "value": value})


def protect(plane: ControlPlane, app: str, *, allowed: int) -> None:
    """Have a budget say how many of an app may be evicted, as its controller would."""
    version = "v1" if plane.minor >= 21 else "v1beta1"
    path = f"/apis/policy/{version}/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    made = plane.call("POST", path, {"metadata": {"name": app}, "spec": spec})
    counts = {"disruptionsAllowed": allowed, "currentHealthy": 1 + allowed, "desiredHealthy": 1}
    status = {**counts, "expectedPods": 1 + allowed, "observedGeneration": 1}
    plane.call("PUT", f"{path}/{app}/status", {**made, "status": status})


def make_ready(plane: ControlPlane, *names: str) -> None:
    """Have pods run: until one is ready it may be evicted whatever a budget says."""
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in names:
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        plane.call("PATCH", path, {"status": ready}, kind="application/merge-patch+json")


@everywhere
def test_the_least_important_that_no_budget_protects_is_evicted_and_its_room_is_kept(
    scheduled: ControlPlane,
) -> None:
    scheduled.add_node("n1", {INVENTORY: inventory_text((card("GPU-1"), card("GPU-2")))})
    for name, value in (("low", 10), ("middle", 20), ("high", 100)):
        important(scheduled, name, value)
    protect(scheduled, "kept", allowed=0)
    whole = {"nvidia.com/gpu": "1"}
    at_once = {"terminationGracePeriodSeconds": 0}
    for app, priority in (("kept", "low"), ("spare", "middle")):
        spec = {"priorityClassName": priority, **at_once}
        scheduled.add_pod(app, whole, spec=spec, metadata={"labels": {"app": app}})
    wait_for(lambda: node_of(scheduled, "kept") and node_of(scheduled, "spare"))
    make_ready(scheduled, "kept", "spare")
    scheduled.add_pod("urgent", whole, spec={"priorityClassName": "high"})

    assert "n1" == wait_for(lambda: node_of(scheduled, "urgent"))
    assert {"kept", "urgent"} == {pod["metadata"]["name"] for pod in scheduled.pods()}
    assert "preempted by pod default/urgent on node n1" in scheduled.events("spare")

    # A budget that lets one of two go: the API would evict the first, and the pod not fit.
    scheduled.add_node("n2", {INVENTORY: inventory_text((card("GPU-3"), card("GPU-4")))})
    protect(scheduled, "pair", allowed=1)
    for name in ("pair1", "pair2"):
        spec = {"priorityClassName": "low", **at_once}
        scheduled.add_pod(name, whole, spec=spec, metadata={"labels": {"app": "pair"}})
    wait_for(lambda: node_of(scheduled, "pair1") and node_of(scheduled, "pair2"))
    make_ready(scheduled, "pair1", "pair2")
    scheduled.add_pod("wide", {"nvidia.com/gpu": "2"}, spec={"priorityClassName": "high"})

    message = "preemption: PodDisruptionBudgets protect 2 pods"
    assert wait_for(lambda: message in scheduled.events("wide"))
    assert {"pair1", "pair2"} <= {pod["metadata"]["name"] for pod in scheduled.pods()}


POD_GROUPS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://sigs.k8s.io/scheduler-plugins"},
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@everywhere
def test_two_groups_that_both_want_most_of_a_cluster_are_placed_one_after_the_other(
    scheduled: ControlPlane,
) -> None:
    scheduled.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", POD_GROUPS)
    path = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
    for number in range(3):
        name = f"n{number}"
        scheduled.add_node(name, {INVENTORY: inventory_text((card(f"GPU-{number}"),))})

    def made(group: str) -> bool:
        body = {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": group},
            "spec": {"minMember": 2},
        }
        try:
            scheduled.call("POST", path, body)
        except urllib.error.HTTPError as error:  # the API is not served at once
            return error.code == 409
        return True

    for group in "ab":
        wait_for(lambda group=group: made(group))
    spec = {"terminationGracePeriodSeconds": 0}
    for number in (1, 2):
        for group in "ab":
            labels = {"labels": {"scheduling.x-k8s.io/pod-group": group}}
            half = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "50"}
            scheduled.add_pod(f"{group}{number}", half, spec=spec, metadata=labels)

    def placed() -> dict[str, int]:
        counts = {"a": 0, "b": 0}
        for pod in scheduled.pods():
            counts[pod["metadata"]["name"][0]] += bool(pod["spec"].get("nodeName"))
        return counts

    wait_for(lambda: 2 in placed().values(), seconds=100)
    assert [0, 2] == sorted(placed().values())
    (first,) = (group for group, count in placed().items() if count == 2)
    rows = set()
    for number in (1, 2):
        notes = scheduled.pod(f"{first}{number}")["metadata"]["annotations"]
        given = json.loads(notes[ALLOCATION])
        rows.add((given["row"], given["rows"]))
        scheduled.call("DELETE", f"/api/v1/namespaces/default/pods/{first}{number}")
    assert {(1, 2)} == rows
    wait_for(lambda: 2 in placed().values(), seconds=100)
