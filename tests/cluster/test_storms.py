"""A Deployment whose pods no share was given to makes no storm of failed pods, on both clusters.

A kubelet fails a pod that it refuses, and a ReplicaSet makes another at once: ten each second.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from hetero.kube.words.annotations import ALLOCATION, SIGNATURE
from tests.cluster.conftest import run_all, share, usually_on, waits
from tests.cluster.lab import UNWATCHED, Lab, Plain, program
from tests.cluster.release import NAMESPACE, Release
from tests.cluster.test_permissions import rolled
from tests.kube.control_plane import wait_for
from tests.kube.test_chart import VALUES

pytestmark = pytest.mark.cluster

#: How long pods may fail, and how many may.
STORM_S = float(os.environ.get("STORM_S", "1"))
MOST_FAILED = 3
#: A namespace of `webhook.ignoredNamespaces`, without a label.
IGNORED = "kube-public"
#: A card and no size of it.
ONE = {"exporter": {"nvidia.com/gpu": "1"}}


@contextmanager
def deployed(
    lab: Lab,
    namespace: str,
    limits_by_name: Mapping[str, Mapping[str, str]],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Iterator[Callable[[], list[Plain]]]:
    """Have Deployments of one pod each meanwhile, and give what returns the pods of theirs."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    for name, limits in limits_by_name.items():
        selected = {"storm": name}
        about = {"labels": {**selected, **(labels or {})}, "annotations": annotations or {}}
        template = {"metadata": about, "spec": {**program(limits), **spec}}
        body = {"replicas": 1, "selector": {"matchLabels": selected}, "template": template}
        lab.call("POST", path, {"metadata": {"name": name}, "spec": body})
    try:
        yield lambda: [
            pod
            for pod in lab.pods(namespace).values()
            if "storm" in pod["metadata"].get("labels", {})
        ]
    finally:
        for name in limits_by_name:
            lab.call("DELETE", f"{path}/{name}?propagationPolicy=Background")
        wait_for(lambda: not left(lab, namespace))


def left(lab: Lab, namespace: str) -> list[str]:
    """Delete the pods of a namespace at once, and return which there were.

    A ReplicaSet may make another before it goes, and a kubelet of 1.20 says after a minute that it
    is done with a pod that never started.
    """
    names = [*lab.pods(namespace)]
    for name in names:
        with suppress(OSError):  # it has gone
            lab.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")
    return names


def expect_calm(lab: Lab, title: str, pods: Callable[[], list[Plain]]) -> None:
    """Expect few failed pods of Deployments after a while; print how many there are."""
    time.sleep(STORM_S)
    created = pods()
    failed = sum(pod["status"]["phase"] == "Failed" for pod in created)
    print(f"{lab.name}: {title}: {failed} failed pods in {STORM_S:.0f} s, {len(created)} created")
    assert failed <= MOST_FAILED


def hiding(limits: Mapping[str, str]) -> Plain:
    """Return the containers and volumes of a pod that mounts its own over what limits its cards."""
    spec = program(limits)
    spec["volumes"].append({"name": "own", "emptyDir": {}})
    spec["containers"][0]["volumeMounts"].append({"name": "own", "mountPath": "/etc"})
    return {key: spec[key] for key in ("containers", "volumes")}


def events(lab: Lab, pod: Plain) -> list[str]:
    """Return what the events of a pod say."""
    namespace, uid = (pod["metadata"][name] for name in ("namespace", "uid"))
    query = f"?fieldSelector=involvedObject.uid={uid}"
    items = lab.call("GET", f"/api/v1/namespaces/{namespace}/events{query}")["items"]
    return [str(item["message"]) for item in items]


def offered(lab: Lab) -> list[str]:
    """Return the resources that some node has cards of."""
    allocatable = [lab.allocatable(node) for node in lab.racks]
    return [
        resource
        for resource in VALUES["resources"]["cards"]
        if any(int(amounts.get(resource, 0)) for amounts in allocatable)
    ]


def test_pods_that_another_scheduler_binds_stay_where_they_are_and_say_why(
    either: Release,
) -> None:
    """Of every resource that a node has, in a namespace that the webhook leaves alone."""
    lab, before = either.lab, [*map(either.lab.standing, either.lab.racks)]
    limits = {f"storm-{n}": {resource: "1"} for n, resource in enumerate(offered(lab))}
    with deployed(lab, UNWATCHED, limits) as pods:
        wait_for(lambda: len(pods()) >= len(limits) and all(map(waits, pods())))

        expect_calm(lab, f"each of {len(limits)} resources, a namespace with the label", pods)
        assert len(limits) == len(pods())
        assert all("gave container main no share" in waits(pod) for pod in pods())
        assert before == [*map(lab.standing, lab.racks)]


def test_a_pod_that_names_its_node_and_a_scheduler_makes_no_storm(either: Release) -> None:
    """Any tenant can write both, in any namespace: the webhook leaves it to that scheduler."""
    lab = either.lab
    named: Plain = {"nodeName": "n1", "schedulerName": "tenants-own"}
    with deployed(lab, "default", {"named": ONE["exporter"]}, **named) as pods:
        wait_for(lambda: pods() and all(map(waits, pods())))

        expect_calm(lab, "a node and a scheduler of its own", pods)

    with deployed(lab, "default", {"named": {}}, **named, **hiding(ONE["exporter"])) as pods:
        wait_for(lambda: pods() and all("at /etc, where what limits" in waits(p) for p in pods()))

        expect_calm(lab, "a node and a scheduler of its own, and a volume at /etc", pods)


def test_a_deployment_in_kube_system_makes_no_storm(either: Release) -> None:
    """Its namespace has the label by which the webhook leaves it alone."""
    with deployed(either.lab, "kube-system", ONE) as pods:
        wait_for(lambda: pods() and all(map(waits, pods())))

        expect_calm(either.lab, "kube-system", pods)


def test_pods_of_unwatched_namespaces_that_mount_over_their_limits_stay_and_say_why(
    either: Release,
) -> None:
    """By the cluster's own scheduler on a node; by hetero's on none."""
    lab, sentence = either.lab, "mounts its own at /etc, where what limits its cards is"
    with deployed(lab, UNWATCHED, {"hides": {}}, **hiding(ONE["exporter"])) as pods:
        wait_for(lambda: pods() and all(sentence in waits(pod) for pod in pods()))
        (pod,) = pods()
        wait_for(lambda: any(sentence in message for message in events(lab, pod)))

        expect_calm(lab, "a namespace with the label, and a volume at /etc", pods)

    spec: Plain = {"schedulerName": "hetero-scheduler", **hiding(ONE["exporter"])}
    with deployed(lab, "kube-system", {"hides": {}}, **spec) as pods:
        (pod,) = wait_for(pods)
        wait_for(lambda: any(sentence in message for message in events(lab, pod)))

        expect_calm(lab, "kube-system, hetero's scheduler, and a volume at /etc", pods)
        assert ["Pending"] == [pod["status"]["phase"] for pod in pods()]
        assert "nodeName" not in pods()[0]["spec"]


def test_a_template_with_another_pods_allocation_makes_no_storm(either: Release) -> None:
    """As YAML has it that was copied from a running pod. Where the webhook looks, it refuses."""
    lab, path = either.lab, "/apis/apps/v1/namespaces/default/replicasets"
    lab.add("copied", ONE["exporter"])
    run_all(lab, "copied")
    notes = lab.pods()["copied"]["metadata"]["annotations"]
    copied = {name: notes[name] for name in (ALLOCATION, SIGNATURE)}
    with deployed(lab, UNWATCHED, ONE, annotations=copied) as pods:
        wait_for(lambda: pods() and all("is not signed by this" in waits(p) for p in pods()))

        expect_calm(lab, "a namespace with the label, and a copied allocation", pods)

    with deployed(lab, "default", ONE, annotations=copied) as pods:
        wait_for(lambda: "is written by the scheduler alone" in not_created(lab, path))

        expect_calm(lab, "a copied allocation", pods)
        assert [] == pods()


def test_a_label_of_a_pod_hides_it_from_no_webhook(either: Release) -> None:
    with deployed(either.lab, "default", ONE, labels={"hetero.io/webhook": "ignore"}) as pods:
        wait_for(lambda: [pod["status"]["phase"] for pod in pods()] == ["Running"])

        expect_calm(either.lab, "the label of a pod", pods)
        assert ["Running"] == [pod["status"]["phase"] for pod in pods()]


@contextmanager
def without_webhook(release: Release) -> Iterator[None]:
    """Have no replica of the webhook, and an API server that does without, as the docs have it.

    One that is being ended still answers, so all of them have ended when this is entered.
    """
    lab = release.lab
    configured = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hetero"
    scale = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/hetero-webhook"
    replicas = lab.call("GET", scale)["spec"]["replicas"]
    webhooks = lab.call("GET", configured)["webhooks"]
    ignoring = [{**webhook, "failurePolicy": "Ignore"} for webhook in webhooks]
    lab.patch(configured, {"webhooks": ignoring})
    pods = release.pods("hetero-webhook").values()
    lab.patch(scale, {"spec": {"replicas": 0}})
    for pod in pods:
        lab.end(pod)
    try:
        yield
    finally:
        lab.patch(scale, {"spec": {"replicas": replicas}})
        wait_for(release.admits)
        lab.patch(configured, {"webhooks": webhooks})


def test_while_no_webhook_answers_there_is_no_storm_nor_after_that(either: Release) -> None:
    """The API server refuses to create the pods where it has policies; elsewhere they wait."""
    lab, path = either.lab, "/apis/apps/v1/namespaces/default/replicasets"

    def held() -> bool:
        created = pods()
        return all(map(waits, created)) if created else bool(not_created(lab, path))

    with ExitStack() as away:
        away.enter_context(without_webhook(either))
        with deployed(lab, "default", ONE) as pods:
            wait_for(held)
            expect_calm(lab, "while no webhook answers", pods)
            assert lab.name == "kube" or [] == pods()

            away.close()
            expect_calm(lab, "after no webhook answered", pods)


def test_pods_that_the_webhook_did_not_see_are_not_created(late: Release) -> None:
    """Its controller makes them ever more rarely then."""
    lab = late.lab
    named: Plain = {"nodeName": "n1", "schedulerName": "hetero-scheduler"}
    for spec in ({}, named):
        with deployed(lab, IGNORED, {"unseen": {"nvidia.com/gpu": "1"}}, **spec) as pods:
            path = f"/apis/apps/v1/namespaces/{IGNORED}/replicasets"
            sentence = wait_for(lambda path=path: not_created(lab, path))

            expect_calm(lab, "webhook.ignoredNamespaces", pods)
            assert [] == pods()
            assert "hetero's webhook did not see it" in sentence


@contextmanager
def autoscaled(release: Release) -> Iterator[None]:
    """Have nodes state sizes meanwhile. By itself no node takes them back, as the docs say."""
    lab, parts = release.lab, VALUES["resources"]["parts"]
    other = Release(lab, allocation=release.allocation, more={"autoscaler": True})
    release.replace_by(other)
    try:
        wait_for(lambda: rolled(release, other), seconds=180)
        wait_for(lambda: "nvidia.com/gpumem" in lab.allocatable("n1"))
        yield
    finally:
        other.replace_by(release)
        wait_for(lambda: rolled(other, release), seconds=180)
        none = dict.fromkeys(parts)
        for node in lab.racks:
            status = {"status": {"capacity": none, "allocatable": none}}
            lab.patch(f"/api/v1/nodes/{node}/status", status)


def test_where_nodes_state_sizes_no_tenant_makes_a_storm_by_holding_them(late: Release) -> None:
    """A pod that no webhook sees as one with cards runs without any, and a kubelet counts it."""
    lab = late.lab
    with autoscaled(late):
        with deployed(lab, IGNORED, {"unseen": {"nvidia.com/gpumem": "5000"}}) as pods:
            path = f"/apis/apps/v1/namespaces/{IGNORED}/replicasets"
            assert "webhook did not see it" in wait_for(lambda: not_created(lab, path))
            assert [] == pods()

        named = {"nodeName": "n1", "schedulerName": "tenants-own"}
        stated = lab.allocatable("n1")["nvidia.com/gpumem"]
        spec = {**program({"nvidia.com/gpumem": stated}), **named}
        body = {"metadata": {"name": "holds"}, "spec": spec}
        lab.call("POST", "/api/v1/namespaces/default/pods", body)
        run_all(lab, "holds")
        chosen: Plain = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
        with deployed(lab, "default", {"storm": share(4000, 20)}, **chosen) as pods:
            (pod,) = wait_for(pods)
            lacking = "Insufficient nvidia.com/gpumem"
            wait_for(lambda: any(lacking in message for message in events(lab, pod)))

            expect_calm(lab, "where another pod holds the sizes that a node states", pods)
            assert ["Pending"] == [one["status"]["phase"] for one in pods()]
            lab.call("DELETE", "/api/v1/namespaces/default/pods/holds?gracePeriodSeconds=0")
            wait_for(lambda: ["Running"] == [one["status"]["phase"] for one in pods()])


def not_created(lab: Lab, path: str) -> str:
    conditions = [
        condition
        for made in lab.call("GET", path)["items"]
        for condition in made["status"].get("conditions", ())
    ]
    return next((str(one["message"]) for one in conditions if one["reason"] == "FailedCreate"), "")


def test_what_asks_for_no_card_or_names_our_scheduler_is_created_unseen(late: Release) -> None:
    lab, path = late.lab, f"/api/v1/namespaces/{IGNORED}/pods?dryRun=All"
    for limits, spec in (
        ({"cpu": "1"}, {}),
        ({"nvidia.com/gpu": "0"}, {}),
        (share(), {"schedulerName": "hetero-scheduler"}),
        ({"nvidia.com/gpu": "1"}, {"schedulerName": "volcano"}),
    ):
        body = {"metadata": {"name": "unseen"}, "spec": {**program(limits), **spec}}
        lab.call("POST", path, body)
    in_init = program({"cpu": "1"})
    in_init["initContainers"] = [{**in_init["containers"][0], "name": "init"}]
    in_init["initContainers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    with pytest.raises(OSError, match="webhook did not see it"):
        lab.call("POST", path, {"metadata": {"name": "unseen"}, "spec": in_init})


@usually_on("kube136")
def test_a_node_that_can_give_no_share_makes_no_storm_and_gives_them_later(
    either: Release,
) -> None:
    """Its cards rest, which the next pods' events and the node's say; its own pods are the same."""
    lab, spec = either.lab, {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
    with deployed(lab, "default", {"unserved": share()}, **spec) as pods:
        with lab.without_limiters("n1"):
            wait_for(lambda: any(pod["status"]["phase"] == "Failed" for pod in pods()))
            expect_calm(lab, "a node on which no limiter can be copied", pods)
            wait_for(
                lambda: any("rests until" in one for pod in pods() for one in events(lab, pod))
            )

        wait_for(lambda: any(pod["status"]["phase"] == "Running" for pod in pods()), seconds=150)
