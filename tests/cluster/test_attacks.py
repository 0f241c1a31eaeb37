"""What a tenant with the ClusterRole `edit` in its namespace tries, and a kubelet's own identity.

On the real API server, scheduler and kubelet, oldest and late. What is written of claims is in
test_claim_rights.py, what is done to signed allocations in test_security.py; docs/security.md has
the table.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from hetero.container.preload import PLACE, TARGET
from hetero.kube.dra.templates import ASKED
from hetero.kube.words.annotations import ALLOCATION, INVENTORY, SIGNATURE
from tests.cluster.conftest import run_all, share, waits
from tests.cluster.lab import TOKEN, Lab, Plain, processes, program
from tests.cluster.release import NAMESPACE, Release
from tests.cluster.stand_in import given, runtime_of_nvidia
from tests.cluster.test_ports import restarts
from tests.cluster.test_security import _caller
from tests.cluster.users import MERGE, PODS, RBAC, ask_with, bound, pod
from tests.kube.binaries import minor
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

SPACE = "/api/v1/namespaces/default"
EDITOR = "system:serviceaccount:default:editor"
OFF = {"hetero.io/policy": "off"}
DENIED = "may use policy off in namespace default"
HERE = {"kubernetes.io/hostname": "n1"}


@define(eq=False)
class Tenant:
    """Who has a token, and what the API answers it."""

    lab: Lab
    headers: Mapping[str, str]

    def ask(self, method: str, path: str, body: Any = None, *, kind: str = "") -> str:
        """Return why the API refuses, "" where it does what is asked."""
        usual = MERGE if method == "PATCH" else "application/json"
        try:
            ask_with(self.lab, self.headers, method, path, body, kind or usual)
        except OSError as error:
            return str(error)
        return ""

    def disguised(self, **who: str) -> Tenant:
        """Return the tenant as it says that it is somebody else."""
        named = {f"Impersonate-{name}": text for name, text in who.items()}
        return Tenant(self.lab, {**self.headers, **named})


#: Of what the oldest Kubernetes does not have.
LATE = pytest.mark.parametrize("either", ["kube136"], indirect=True)


@pytest.fixture
def tenant(either: Release) -> Iterator[Tenant]:
    lab = either.lab
    lab.call("POST", f"{SPACE}/serviceaccounts", {"metadata": {"name": "editor"}})
    made = lab.call("POST", f"{SPACE}/serviceaccounts/editor/token", {"spec": {}})
    with bound(lab, "edit", EDITOR):
        made_tenant = Tenant(lab, {"Authorization": f"Bearer {made['status']['token']}"})
        wait_for(lambda: not made_tenant.ask("GET", PODS))
        yield made_tenant
    lab.call("DELETE", f"{SPACE}/serviceaccounts/editor")


@contextmanager
def more(lab: Lab, *resources: str, verbs: tuple[str, ...]) -> Iterator[None]:
    """Give the tenant more than `edit` meanwhile."""
    rule = {"apiGroups": [""], "resources": list(resources), "verbs": list(verbs)}
    lab.call("POST", f"{RBAC}/clusterroles", {"metadata": {"name": "lab-more"}, "rules": [rule]})
    try:
        with bound(lab, "lab-more", EDITOR):
            yield
    finally:
        lab.call("DELETE", f"{RBAC}/clusterroles/lab-more")


# --- what a container mounts ----------------------------------------------------------------------

#: Where a container's own mount would hide what limits it.
PLACES = (
    *(TARGET, f"{PLACE}/grant", PLACE, f"//{PLACE}/", f"/etc/../{PLACE}/usage", "/etc"),
    *(f"/proc/{link}/root{PLACE}" for link in ("self", "thread-self", "1", "self/task/1")),
)


def test_a_container_with_a_share_mounts_nothing_over_what_limits_it(
    either: Release, tenant: Tenant
) -> None:
    """A volume, what a container says as it ends, and a device of a volume, all without a right."""
    volume = {"name": "own", "emptyDir": {}}

    def hiding(limits: Mapping[str, str], **container: Any) -> Plain:
        made = pod("hides", limits, {})
        made["spec"]["volumes"].append(volume)
        (main,) = made["spec"]["containers"]
        main["volumeMounts"] += container.pop("volumeMounts", [])
        main |= container
        return made

    for place in PLACES:
        mounts = [{"name": "own", "mountPath": place, "subPathExpr": "a"}]
        refusal = tenant.ask("POST", PODS, hiding(share(), volumeMounts=mounts))
        assert "container main: mounts its own" in refusal, place
        refusal = tenant.ask("POST", PODS, hiding(share(), terminationMessagePath=place))
        assert "container main: mounts its own" in refusal, place
    mounts = [{"name": "own", "mountPath": f"{PLACE}-of-mine"}]
    assert "" == tenant.ask("POST", f"{PODS}?dryRun=All", hiding(share(), volumeMounts=mounts))
    assert "" == tenant.ask("POST", f"{PODS}?dryRun=All", hiding({}, terminationMessagePath=TARGET))


# --- containers that are added, pods that are resized ---------------------------------------------


@LATE
def test_a_container_that_is_added_to_a_pod_with_a_share_gets_no_card(
    either: Release, tenant: Tenant
) -> None:
    """Not by what its image says either, which the stand-in for a runtime takes for all cards."""
    lab = either.lab
    (debug,) = program({}, "sleep", "1000")["containers"]

    def added(name: str, **container: Any) -> str:
        body = {"spec": {"ephemeralContainers": [{**debug, "name": name, **container}]}}
        kind = "application/strategic-merge-patch+json"
        return tenant.ask("PATCH", f"{PODS}/held/ephemeralcontainers", body, kind=kind)

    lab.add("held", share(), nodeSelector=HERE)
    run_all(lab, "held")
    before = lab.standing("n1")
    with (
        more(lab, "pods/ephemeralcontainers", verbs=("patch",)),
        runtime_of_nvidia(lab, "n1") as log,
    ):
        sees_all = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
        assert "may use policy visible-devices" in added("debug", env=sees_all)
        mount = {"name": "host-0", "mountPath": "//var/run/nvidia-container-devices/all"}
        refusal = added("debug", volumeMounts=[*debug["volumeMounts"], mount])
        assert "may use policy visible-devices" in refusal
        assert "" == added("debug", env=[{"name": "A", "value": "b"}])
        assert "" == added("more")

        wait_for(lambda: {("held", "debug"), ("held", "more")} <= given(log).keys())
        assert {"void"} == {one.by_variable for one in given(log).values()}
    assert before == lab.standing("n1")


@LATE
def test_a_pod_that_is_resized_keeps_its_share_as_it_is(either: Release, tenant: Tenant) -> None:
    lab = either.lab
    lab.add("held", share(), nodeSelector=HERE)
    run_all(lab, "held")
    before, notes = lab.standing("n1"), lab.pods()["held"]["metadata"]["annotations"]

    def resized(resources: Plain, **about: Any) -> str:
        body = {"spec": {"containers": [{"name": "main", "resources": resources}]}, **about}
        kind = "application/strategic-merge-patch+json"
        return tenant.ask("PATCH", f"{PODS}/held/resize", body, kind=kind)

    with more(lab, "pods/resize", verbs=("patch",)):
        larger = {**share(memory=9000), "cpu": "100m"}
        assert "only cpu and memory resources are mutable" in resized(
            {"limits": larger, "requests": larger}
        )
        resized({}, metadata={"annotations": OFF})
    assert notes == lab.pods()["held"]["metadata"]["annotations"]
    assert before == lab.standing("n1")


@LATE
def test_what_later_kubernetes_lets_a_pod_say_gives_it_no_more(
    either: Release, tenant: Tenant
) -> None:
    """Amounts of the whole pod, volumes of images, and a program that is started after the start.

    User namespaces (`hostUsers: false`) are not to be had by these nodes' runtime.
    """
    lab, shows = either.lab, "cat /etc/ld.so.preload; head -c 8 /etc/hetero/grant | wc -c"
    for amounts in ({"limits": share()}, {"requests": {"nvidia.com/gpu": "1"}}):
        refusal = tenant.ask("POST", PODS, pod("whole", {}, {}, resources=amounts))
        assert "422" in refusal
        assert 'nvidia.com/gpu": supported values: "cpu"' in refusal
    image = pod("image", share(), {})
    image["spec"]["volumes"].append({"name": "own", "image": {"reference": "lab.local/any:1"}})
    (main,) = image["spec"]["containers"]
    main["volumeMounts"].append({"name": "own", "mountPath": PLACE})
    assert "container main: mounts its own at" in tenant.ask("POST", PODS, image)

    started = pod("started", share(), {}, nodeSelector=HERE)
    (main,) = started["spec"]["containers"]
    after = f"({shows}; echo end) >/tmp/part 2>&1; mv /tmp/part /tmp/said"
    main["lifecycle"] = {"postStart": {"exec": {"command": ["sh", "-c", after]}}}
    until = "until [ -e /tmp/said ]; do sleep 0.1; done"
    main["command"] = ["sh", "-c", f"{until}; cat /tmp/said; sleep 1000"]
    assert "" == tenant.ask("POST", PODS, started)
    run_all(lab, "started")
    wait_for(lambda: lab.output("started").endswith("end\n"))
    *preloaded, read, _ = lab.output("started").splitlines()
    assert "8" == read
    assert any("libhetero" in one for one in preloaded)


@LATE  # before 1.30 it passes: docs/security.md
def test_no_pod_is_too_large_for_what_its_status_says_to_be_looked_at(
    either: Release, tenant: Tenant
) -> None:
    """By a right that no role for people has; who makes a larger one is refused."""
    lab, gates = either.lab, [{"name": "example.com/later"}]
    with more(lab, "pods/status", verbs=("patch",)):
        made = pod("large", share(), {}, schedulingGates=gates)
        made["spec"]["containers"][0]["env"] = [{"name": "A", "value": "<" * 300_000}]
        assert "it could not be changed any more" in tenant.ask("POST", PODS, made)
        made["spec"]["containers"][0]["env"] = [{"name": "A", "value": "<" * 200_000}]
        assert "" == tenant.ask("POST", PODS, made)
        word, path = {"metadata": {"annotations": OFF}}, f"{PODS}/large/status"
        wait_for(lambda: "cannot patch" not in tenant.ask("PATCH", path, word))
        assert DENIED in tenant.ask("PATCH", path, word)
        # What a kubelet says of a pod changes none of its annotations.
        assert "" == tenant.ask("PATCH", path, {"status": {"message": "seen"}})
        assert "hetero.io/policy" not in lab.pods()["large"]["metadata"].get("annotations", {})


# --- past the scheduler ---------------------------------------------------------------------------


def test_a_pod_that_its_maker_binds_gets_nothing(either: Release, tenant: Tenant) -> None:
    """By its node's name, by a scheduler of its own, and by a binding with another's allocation."""
    lab = either.lab
    lab.add("mine", share(), nodeSelector=HERE)
    run_all(lab, "mine")
    notes = lab.pods()["mine"]["metadata"]["annotations"]
    stolen = {name: notes[name] for name in (ALLOCATION, SIGNATURE)}
    past = {"nodeName": "n1"}
    own = {"schedulerName": "tenants-own"}

    refusal = tenant.ask("POST", PODS, pod("named", share(), {}, **past))
    assert "nodeName is set, which passes the scheduler by" in refusal
    for where in ({}, own, {**own, **past}):
        refusal = tenant.ask("POST", PODS, pod("stolen", share(), stolen, **where))
        assert "written by the scheduler alone: leave it out" in refusal
    assert "" == tenant.ask("POST", PODS, pod("past", share(), {}, **own, **past))
    assert "" == tenant.ask("POST", PODS, pod("bound", share(), {}, **own))
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    binding = {"metadata": {"name": "bound", "annotations": stolen}, "target": target}
    assert "403" in tenant.ask("POST", f"{PODS}/bound/binding", binding)
    with more(lab, "pods/binding", verbs=("create",)):
        wait_for(lambda: not tenant.ask("POST", f"{PODS}/bound/binding", binding))

    sentence = wait_for(lambda: waits(lab.pods()["past"]))
    assert "gave container main no share" in sentence
    assert "not signed by this" in wait_for(lambda: waits(lab.pods()["bound"]))
    assert ["default/mine/main"] == [one["label"] for one in lab.standing("n1")]


@LATE
def test_a_pod_that_is_held_back_is_bound_by_nobody_and_gets_what_it_asked(
    either: Release, tenant: Tenant
) -> None:
    """By a scheduling gate: what it says meanwhile needs the same rights as ever."""
    lab, gates = either.lab, [{"name": "example.com/later"}]
    whole = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
    assert "422" in tenant.ask("POST", PODS, pod("whole", share(), {}, **whole))
    held = pod("held", share(), {}, nodeSelector=HERE, schedulingGates=gates)
    assert "" == tenant.ask("POST", PODS, held)
    for word, why in (
        (OFF, DENIED),
        ({ALLOCATION: "{}"}, "alone: leave it out"),
        ({"main.visible.hetero.io/NVIDIA_VISIBLE_DEVICES": "all"}, "alone: leave it out"),
        ({"cdi.k8s.io/a": "nvidia.com/gpu=all"}, "may use policy visible-devices"),
    ):
        assert why in tenant.ask("PATCH", f"{PODS}/held", {"metadata": {"annotations": word}})
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    with more(lab, "pods/binding", verbs=("create",)):
        binding = {"metadata": {"name": "held"}, "target": target}
        wait_for(lambda: "schedulingGates" in tenant.ask("POST", f"{PODS}/held/binding", binding))

    assert "" == tenant.ask("PATCH", f"{PODS}/held", {"spec": {"schedulingGates": None}})
    run_all(lab, "held")
    (standing,) = lab.standing("n1")
    assert 2000 * 2**20 == standing["allocation"]["pieces"][0]["takes"]["memory"]


#: What makes pods, by where it is made: the rest of its spec beside the pod's template.
MAKERS: Mapping[str, Plain] = {
    "/api/v1/namespaces/default/replicationcontrollers": {},
    "/apis/apps/v1/namespaces/default/replicasets": {},
    "/apis/apps/v1/namespaces/default/deployments": {},
    "/apis/apps/v1/namespaces/default/statefulsets": {"serviceName": "off"},
    "/apis/apps/v1/namespaces/default/daemonsets": {},
    "/apis/batch/v1/namespaces/default/jobs": {},
}


def test_no_controller_makes_what_its_maker_may_not(either: Release, tenant: Tenant) -> None:
    lab, labels = either.lab, {"app": "off"}
    of = minor(lab.binaries)
    crons = f"/apis/batch/{'v1' if of > 20 else 'v1beta1'}/namespaces/default/cronjobs"
    template = pod("", *(share(), OFF))
    template["metadata"] = {"labels": labels, "annotations": OFF}
    templates = f"{SPACE}/podtemplates"
    stored = {"metadata": {"name": "off"}, "template": template}
    refusal = tenant.ask("POST", templates, stored)
    assert "403 podtemplates is forbidden" in refusal  # which nothing makes pods from
    ending = {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}
    cron = {"schedule": "@every 2s", "jobTemplate": {"spec": {"template": ending}}}
    assert "" == tenant.ask("POST", crons, {"metadata": {"name": "cron-off"}, "spec": cron})
    for path, spec in MAKERS.items():
        kind = path.rpartition("/")[2].removesuffix("s")
        body = {"template": ending if kind == "job" else template, **spec}
        if kind == "replicationcontroller":
            body["selector"] = labels
        elif kind != "job":
            body["selector"] = {"matchLabels": labels}
        refusal = tenant.ask("POST", path, {"metadata": {"name": f"{kind}-off"}, "spec": body})
        assert "" == refusal, kind

    def refused() -> set[str]:
        items = lab.call("GET", f"{SPACE}/events?fieldSelector=reason=FailedCreate")["items"]
        return {
            one["involvedObject"]["kind"].lower() + "/" + one["involvedObject"]["name"]
            for one in items
            if "default:default may not use policy off" in one["message"]
        }

    def all_are() -> bool:
        kinds = {one.partition("/")[0] for one in refused()}
        return {
            *("replicationcontroller", "replicaset", "statefulset", "daemonset", "job"),
        } <= kinds and any(one.startswith("job/cron-off-") for one in refused())

    wait_for(all_are, seconds=60)
    assert {} == lab.pods()
    for path in (*MAKERS, crons):
        query = "propagationPolicy=Background"
        for event in lab.call("GET", path)["items"]:
            lab.call("DELETE", f"{path}/{event['metadata']['name']}?{query}")


# --- what a pod says ------------------------------------------------------------------------------


def test_what_is_written_twice_or_oddly_is_read_as_the_api_server_keeps_it(
    either: Release, tenant: Tenant
) -> None:
    lab, marks = either.lab, '"TWICE": "TWICE"'

    def twice(first: str, second: str) -> str:
        text = json.dumps(pod("odd", share(), {"TWICE": "TWICE"}))
        assert marks in text
        annotations = [f'"hetero.io/policy": "{one}"' for one in (first, second)]
        return tenant.ask("POST", f"{PODS}?dryRun=All", text.replace(marks, ", ".join(annotations)))

    assert DENIED in twice("fixed", "off")
    assert "" == twice("off", "fixed")

    def asked(notes: Mapping[str, str]) -> str:
        return tenant.ask("POST", f"{PODS}?dryRun=All", pod("odd", share(), notes))

    for odd in ("OFF", "off ", "off\x00", "\uff4f\uff46\uff46", "\u202eoff", ""):
        assert "is not fixed, elastic or off" in asked({"hetero.io/policy": odd}), odd
    for note in ("Hetero.io/policy", "hetero.io/Policy", "HETERO.IO/POLICY"):
        assert "" == asked({note: "off"}), note  # which nobody reads
    taken = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1,1:;"}
    assert "alone: leave it out" in asked(taken)
    for name in (ALLOCATION, SIGNATURE, ASKED, "nvidia.com/use-gpuuuid", "hetero.io/init-parts"):
        refusal = asked({name: "x" * 256 * 1024})
        assert refusal, name
        assert "timed out" not in refusal
    many = pod("many", {}, {})
    (main,) = program(share(memory=1, core=1))["containers"]
    many["spec"]["containers"] = [{**main, "name": f"c{n}"} for n in range(200)]
    refusal = tenant.ask("POST", PODS, many)
    assert "200 containers ask for cards: at most 32 of a pod may" in refusal
    assert {} == lab.pods()


def test_no_way_of_writing_a_pod_passes_the_webhook_by(either: Release, tenant: Tenant) -> None:
    """Server-side apply, patches of each kind, names that the API server makes or that are long.

    Nor does one take the allocation away.
    """
    lab, apply = either.lab, "application/apply-patch+yaml"
    long = f"{'x' * 60}." * 3 + "y"
    assert "" == tenant.ask("POST", PODS, pod(long, share(), {}, nodeSelector=HERE))
    run_all(lab, long)
    kinds: Mapping[str, Any] = {
        apply: {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": long}},
        "application/strategic-merge-patch+json": {"metadata": {}},
        MERGE: {"metadata": {}},
    }
    for word, why in ((OFF, DENIED), ({ALLOCATION: "{}"}, "alone: leave it out")):
        for kind, body in kinds.items():
            query = "?fieldManager=mine&force=true" if kind == apply else ""
            annotated = {**body, "metadata": {**body["metadata"], "annotations": word}}
            assert why in tenant.ask("PATCH", f"{PODS}/{long}{query}", annotated, kind=kind), kind
        ((name, value),) = word.items()
        where = f"/metadata/annotations/{name.replace('/', '~1')}"
        patch = json.dumps([{"op": "add", "path": where, "value": value}])
        by = "application/json-patch+json"
        assert why in tenant.ask("PATCH", f"{PODS}/{long}", patch, kind=by)
        made = {"apiVersion": "v1", "kind": "Pod", **pod("applied", share(), word)}
        query = "?fieldManager=mine&force=true"
        assert why in tenant.ask("PATCH", f"{PODS}/applied{query}", made, kind=apply)
        named = pod("", share(), word)
        named["metadata"] = {"generateName": "made-", "annotations": word}
        assert why in tenant.ask("POST", PODS, named)
    assert "" == tenant.ask(
        "POST", f"{PODS}?dryRun=All", {**named, "metadata": {"generateName": "a-"}}
    )
    away = f"/metadata/annotations/{ALLOCATION.replace('/', '~1')}"
    for kind, gone in (
        ("application/strategic-merge-patch+json", {"$patch": "delete"}),
        ("application/strategic-merge-patch+json", {"$patch": "replace", "a": "b"}),
        ("application/strategic-merge-patch+json", {"$retainKeys": ["a"], "a": "b"}),
        (MERGE, None),
        (by, [{"op": "remove", "path": "/metadata/annotations"}]),
        (by, [{"op": "move", "from": away, "path": "/metadata/annotations/a"}]),
    ):
        patched: Any = gone if kind == by else {"metadata": {"annotations": gone}}
        answer = tenant.ask("PATCH", f"{PODS}/{long}", patched, kind=kind)
        assert "alone: leave it out" in answer, gone
    current = lab.call("GET", f"{PODS}/{long}")
    bare = {**current, "metadata": {**current["metadata"], "annotations": {}}}
    assert "alone: leave it out" in tenant.ask("PUT", f"{PODS}/{long}", bare)


def test_what_a_running_pod_says_later_changes_nothing_of_its_share(
    either: Release, tenant: Tenant
) -> None:
    """Its own words, among them those of what a kubelet is not to count; and its labels."""
    lab = either.lab
    assert "" == tenant.ask("POST", PODS, pod("held", share(), {}, nodeSelector=HERE))
    run_all(lab, "held")
    before = lab.standing("n1")
    parts = json.dumps({"main": {"nvidia.com/gpumem": "20000"}})
    changes: Mapping[str, str] = {
        "hetero.io/policy": "elastic",
        "hetero.io/init-parts": parts,
        "nvidia.com/use-gpuuuid": "GPU-another",
        ASKED: parts,
    }
    for name, value in changes.items():
        body = {"metadata": {"annotations": {name: value}}}
        assert "" == tenant.ask("PATCH", f"{PODS}/held", body), name
    labels = {"hetero.io/webhook": "ignore", "app": "hetero-agent"}
    assert "" == tenant.ask("PATCH", f"{PODS}/held", {"metadata": {"labels": labels}})
    for word, policy in ((OFF, "off"), ({"nvidia.com/vgpu-mode": "mps"}, "mps")):
        refusal = tenant.ask("PATCH", f"{PODS}/held", {"metadata": {"annotations": word}})
        assert f"may use policy {policy} in namespace default" in refusal
    assert before == lab.standing("n1")
    assert either.works()


@pytest.mark.parametrize("either", ["kube"], indirect=True)  # later kubelets end such a pod
def test_a_card_is_not_given_again_because_a_pod_is_said_to_have_ended(
    either: Release, tenant: Tenant
) -> None:
    """By a right that no role for people has. An old kubelet ends it, or says that it runs."""
    lab, l4 = either.lab, {"nvidia.com/use-gputype": "L4"}
    whole = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"}
    lab.add("held", whole, notes=l4)
    run_all(lab, "held")
    held = lab.pods()["held"]
    with more(lab, "pods/status", verbs=("patch",)):
        ended = {"status": {"phase": "Succeeded"}}
        assert "" == tenant.ask("PATCH", f"{PODS}/held/status", ended)
    lab.add("next", whole, notes=l4)

    def settled() -> bool:
        phase = lab.phases()["next"]
        assert phase != "Running" or not lab.lives(held)
        return phase in ("Running", "Failed")

    wait_for(settled)


@LATE  # the oldest kubelet ends such a pod at once, whatever it said
def test_a_card_is_not_given_again_while_a_pod_that_was_deleted_by_force_runs(
    either: Release, tenant: Tenant
) -> None:
    """Its kubelet mostly ends it when the pod itself said so, who is gone for all by then."""
    lab, l4 = either.lab, {"nvidia.com/use-gputype": "L4"}
    whole = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"}
    body = pod("held", whole, l4, terminationGracePeriodSeconds=3600)
    stays = "trap : TERM; while :; do sleep 0.1; done"
    body["spec"]["containers"][0]["command"] = ["sh", "-c", stays]
    assert "" == tenant.ask("POST", PODS, body)
    run_all(lab, "held")
    held = lab.pods()["held"]
    assert "" == tenant.ask("DELETE", f"{PODS}/held")
    wait_for(lambda: any("Stopping container" in said for said in lab.messages("held")))
    assert "" == tenant.ask("DELETE", f"{PODS}/held", {"gracePeriodSeconds": 0})
    wait_for(lambda: not lab.pods())
    following: list[str] = []

    def waits() -> bool:
        phases = lab.phases()
        assert "Running" not in phases.values() or not lab.lives(held)
        # One that is bound before its node has said what runs on is not admitted there.
        if not following or phases[following[-1]] == "Failed":
            following.append(f"next-{len(following)}")
            lab.add(following[-1], whole, notes=l4)
        return any("lack" in said for said in lab.messages(following[-1])) or not lab.lives(held)

    try:
        wait_for(waits)
    finally:
        for process in processes(held["status"]["containerStatuses"][0]):
            with suppress(ProcessLookupError):  # a sleep of its shell's, and all with the first
                os.kill(process, signal.SIGKILL)
    run_all(lab, following[-1])  # its node says that the card is free
    assert not lab.lives(held)


# --- accounts, and what is the cluster's ----------------------------------------------------------


def test_a_tenant_is_nobody_else_and_changes_nothing_of_the_clusters(
    either: Release, tenant: Tenant
) -> None:
    lab = either.lab
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    for name in ("agent", "scheduler", "webhook", "certificates"):
        account = f"{accounts}/hetero-{name}"
        assert tenant.ask("POST", f"{account}/token", {"spec": {}}).startswith("403")
        made = tenant.disguised(User=f"system:serviceaccount:{NAMESPACE}:hetero-{name}")
        assert made.ask("GET", PODS).startswith("403")
    masters = {"User": "editor", "Group": "system:masters"}
    for who in ({"User": "admin"}, masters):
        assert tenant.disguised(**who).ask("GET", PODS).startswith("403")
    # Which `edit` allows of accounts of its own namespace: whose rights are those of its pods, too.
    own = tenant.disguised(User="system:serviceaccount:default:default")
    with bound(lab, "edit", "system:serviceaccount:default:default"):
        wait_for(lambda: not own.ask("GET", PODS))
        assert "default:default may not use policy off" in own.ask(
            "POST", f"{PODS}?dryRun=All", pod("off", share(), OFF)
        )

    service = {"namespace": "default", "name": "mine"}
    hook = {
        "name": "mine.example.com",
        "clientConfig": {"service": service},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    group = "/apis/admissionregistration.k8s.io/v1"
    api = {"service": service, "group": "hetero.io", "version": "v1"}
    wholes: Mapping[str, Plain] = {
        f"{group}/mutatingwebhookconfigurations": {"webhooks": [hook]},
        f"{group}/validatingwebhookconfigurations": {"webhooks": [hook]},
        "/apis/apiregistration.k8s.io/v1/apiservices": {"spec": api},
        "/apis/scheduling.k8s.io/v1/priorityclasses": {"value": 10**9},
        "/apis/node.k8s.io/v1/runtimeclasses": {"handler": "nvidia"},
        "/api/v1/nodes": {},
    }
    for path, body in wholes.items():
        named = {"metadata": {"name": "v1.hetero.io"}, **body}
        assert tenant.ask("POST", path, named).startswith("403"), path
    others = f"/api/v1/namespaces/{NAMESPACE}/pods/{next(iter(either.pods('hetero-webhook')))}"
    assert tenant.ask("POST", f"{others}/eviction", {}).startswith("403")
    assert tenant.ask("POST", f"{PODS}/any/status", pod("any", share(), OFF)).startswith("403")
    extra = pod("extra", share(), {}, overhead={"nvidia.com/gpu": "1"})
    assert "without corresponding RuntimeClass" in tenant.ask("POST", PODS, extra)
    for path in (f"{group}/mutatingwebhookconfigurations/hetero", SPACE, "/api/v1/nodes/n1"):
        body = {"metadata": {"labels": {"hetero.io/webhook": "ignore"}}}
        assert tenant.ask("PATCH", path, body).startswith("403"), path
        assert tenant.ask("DELETE", path).startswith("403"), path


def test_a_kubelets_identity_speaks_for_its_own_node_alone(either: Release) -> None:
    """What the kubelets here authenticate by may do everything: so one of theirs is put on."""
    lab = either.lab
    lab.add("there", share(), nodeSelector=HERE)
    run_all(lab, "there")
    headers = {"Authorization": TOKEN, "Impersonate-User": "system:node:n2"}
    node = Tenant(lab, {**headers, "Impersonate-Group": "system:nodes"})
    note = {"metadata": {"annotations": {INVENTORY: "{}"}}}
    mirror = {"kubernetes.io/config.mirror": "a", "kubernetes.io/config.source": "file"}

    assert "403" in node.ask("PATCH", "/api/v1/nodes/n1", note)
    assert "403" in node.ask("PATCH", "/api/v1/nodes/n1/status", note)
    assert "403" in node.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n9"}})
    assert "403" in node.ask("PATCH", f"{PODS}/there/status", note)
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/hetero-scheduler/token"
    assert "403" in node.ask("POST", account, {"spec": {}})
    for name, scheduler in either.pods("hetero-scheduler").items():
        of_pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": name,
            "uid": scheduler["metadata"]["uid"],
        }
        answered = node.ask("POST", account, {"spec": {"boundObjectRef": of_pod}})
        # Who is root where a scheduler runs has what it has: its account, and its key.
        assert scheduler["spec"]["nodeName"] == "n2" or "403" in answered
    for name, limits, notes, why in (
        ("mirror", {}, mirror, ""),
        ("asks", share(), mirror, "nodeName is set, which passes the scheduler by"),
        ("off", share(), {**mirror, **OFF}, "default:default may not use policy off"),
        ("brings", {}, {**mirror, ALLOCATION: "{}"}, "written by the scheduler alone"),
    ):
        made = pod(name, limits, notes, nodeName="n2")
        made["spec"]["volumes"] = [{"name": one["name"]} for one in made["spec"]["volumes"]]
        made["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "name": "n2",
                "uid": lab.call("GET", "/api/v1/nodes/n2")["metadata"]["uid"],
                "controller": True,
            }
        ]
        answered = node.ask("POST", f"{PODS}?dryRun=All", made)
        assert (why in answered) if why else not answered, name
        made["spec"]["nodeName"] = "n1"
        assert "403" in node.ask("POST", f"{PODS}?dryRun=All", made)


# --- the node's own files -------------------------------------------------------------------------

#: What of a node only who is root there may change: ledger, libraries, sockets, CDI specs.
OF_NODE = (
    "/run/hetero",
    "/var/lib/hetero",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/pod-resources",
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/etc/cdi",
    "/var/run/cdi",
)
#: Tries to write below each directory, and to connect to each socket that it finds there.
TRIES = """
import os, socket, sys
def tried(act):
    try:
        act()
    except OSError:
        return False
    return True
def connects(path):
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
for top in sys.argv[1:]:
    for where, folders, files in os.walk(top):
        if os.access(where, os.W_OK):
            print("may write", where)
        for name in files:
            path = os.path.join(where, name)
            if tried(lambda: connects(path)) or os.access(path, os.W_OK):
                print("may write", path)
print("tried", os.getuid(), flush=True)
"""


def test_who_is_not_root_changes_nothing_of_a_node_through_a_hostpath(
    either: Release, tenant: Tenant
) -> None:
    """Where Pod Security lets it have one. Who is root there is root on the node."""
    lab = either.lab
    lab.add("mine", share(), nodeSelector=HERE)
    run_all(lab, "mine")
    made = pod("tries", {}, {}, nodeSelector=HERE, restartPolicy="Never")
    (main,) = made["spec"]["containers"]
    names = [f"node-{number}" for number in range(len(OF_NODE))]
    for name, path in zip(names, OF_NODE, strict=True):
        made["spec"]["volumes"].append({"name": name, "hostPath": {"path": path}})
        main["volumeMounts"].append({"name": name, "mountPath": f"/of-node{path}"})
    main["command"] = [
        *("/usr/bin/python3", "-c", TRIES),
        *(f"/of-node{path}" for path in OF_NODE),
    ]
    main["securityContext"] = {"runAsUser": 65534, "runAsGroup": 65534}
    assert "" == tenant.ask("POST", PODS, made)
    wait_for(lambda: lab.phases()["tries"] in ("Succeeded", "Failed"))

    assert ["tried 65534"] == lab.output("tries").splitlines()


@LATE
def test_pod_security_keeps_tenants_from_the_nodes_files(either: Release) -> None:
    lab, space = either.lab, "baseline-tenant"
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    lab.call("POST", "/api/v1/namespaces", {"metadata": {"name": space, "labels": labels}})
    accounts = f"/api/v1/namespaces/{space}/serviceaccounts"
    wait_for(lambda: lab.call("GET", accounts)["items"])

    def asked(spec: Plain, name: str = "reads") -> str:
        container = {"name": "main", "image": "lab.local/hostusr:1", **spec.pop("container", {})}
        body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
        try:
            lab.call("POST", f"/api/v1/namespaces/{space}/pods?dryRun=All", body)
        except OSError as error:
            return str(error)
        return ""

    for path in (*OF_NODE, "/", "/dev", "/var"):
        volume = {"name": "node", "hostPath": {"path": path}}
        assert "hostPath volumes" in asked({"volumes": [volume]}), path
    for shared in ({"hostPID": True}, {"hostIPC": True}, {"hostNetwork": True}):
        assert "host namespaces" in asked({**shared})
    assert "privileged" in asked({"container": {"securityContext": {"privileged": True}}})
    asks = {"resources": {"limits": share()}}
    assert "" == asked({"container": asks})  # a share needs nothing of this
    lab.call("DELETE", f"/api/v1/namespaces/{space}")


# --- what is posted to webhook and extender -------------------------------------------------------

_POD: Plain = {"metadata": {"name": "a"}, "spec": {"containers": []}}
#: What is no admission request, or one of no pod.
_OBJECTS: tuple[Plain, ...] = (
    {},
    {"object": None},
    {"object": []},
    {"object": {"metadata": 1, "spec": 2}},
    {"object": {**_POD, "spec": {"containers": 1}}},
    {"object": {**_POD, "spec": {"containers": [1]}}},
    {"object": {**_POD, "metadata": {"labels": [1]}}},
    {"userInfo": [1], "object": {**_POD, "metadata": {"annotations": [1]}}},
)
_ADDED = {**_POD, "spec": {"ephemeralContainers": [1]}}
_REQUESTS: tuple[Any, ...] = (
    *(None, 1, "a", [], {}),
    {"uid": "u"},
    *({"uid": "u", "operation": "CREATE", **one} for one in _OBJECTS),
    {"uid": "u", "operation": "UPDATE", "object": _POD},
    {"uid": "u", "operation": "UPDATE", "object": _POD, "oldObject": [1]},
    {
        "uid": "u",
        "operation": "UPDATE",
        "subResource": "ephemeralcontainers",
        "object": _ADDED,
        "oldObject": _POD,
    },
)
MALFORMED: tuple[str, ...] = (
    *("", "{", "null", "[]", "1", '"a"', "{}", "[" * 100_000, '{"request":' * 20_000),
    *(json.dumps({"request": one}) for one in _REQUESTS),
)


def test_who_posts_nonsense_to_webhook_and_extender_is_told_so(
    either: Release, tmp_path: Path
) -> None:
    """With and without a certificate; a scheduler's own answers nobody else (test_security.py)."""
    lab, before = either.lab, restarts(either)
    assert 2 == len(either.pods("hetero-webhook")) == len(either.pods("hetero-scheduler"))
    faults = []
    for webhook in either.pods("hetero-webhook").values():
        server = f"https://{webhook['status']['podIP']}:8444"
        for path in ("/admit", "/inventory"):
            for body in MALFORMED:
                try:
                    lab.ask(server, "POST", path, body)
                except OSError as error:
                    if " 400 " not in str(error):
                        faults.append((path, body[:80], str(error)[-200:]))
                else:
                    faults.append((path, body[:80], "answered"))
    assert [] == faults
    leader = either.leading()
    tls = _caller(either, tmp_path)
    outcome = lab.inside(partial(_all_of, leader["status"]["podIP"], tls))
    assert {} == json.loads(outcome)
    assert before == restarts(either)
    assert leader["metadata"]["name"] == either.leading()["metadata"]["name"]
    assert either.admits()


def _all_of(host: str, tls: Any) -> bytes:
    """Return what an extender answers to nonsense but that it is nonsense."""
    from contextlib import closing
    from http.client import HTTPSConnection

    odd: dict[str, str] = {}
    for verb in ("filter", "prioritize", "bind", "preempt"):
        for body in MALFORMED:
            with closing(HTTPSConnection(host, 8443, context=tls, timeout=10)) as connection:
                connection.request("POST", f"/{verb}", body)
                answer = connection.getresponse()
                text = answer.read().decode()
            if answer.status not in (200, 400) or (answer.status == 200 and "rror" not in text):
                odd[f"{verb} {body[:80]}"] = f"{answer.status} {text[:200]}"
    return json.dumps(odd).encode()
