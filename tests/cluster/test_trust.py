"""What tenants and stolen parts of the release try at the cluster's trust boundary, in each row.

docs/security.md names the boundaries and these tests. Each sentence that holds, by number, with
what tries it, here where no file is named:

1 privileged words need the right, on CREATE: `a_tenant_takes_nothing`, each policy; on UPDATE and
by status, ours and HAMi's: the same, and test_attacks.py `what_a_running_pod_says_later`. The user
or the account suffices: `a_tenant_takes_nothing` gives it to the one, `a_controller_lends` to the
other; controllers have none: `a_controller_lends`, and each kind of them in test_attacks.py. By
default nobody, denied with a sentence, counted: `a_tenant_takes_nothing`. Asked by
SubjectAccessReview: test_permissions.py, by the audit log.
2 agents have the public key alone, an inventory is of the agent's own node, nothing is forged:
`a_stolen_agent`; two keys while they change: `two_keys`; a kubelet's identity: test_attacks.py.
3 mutual TLS of webhook and extender: `pods_are_admitted_for_the_api_server_alone`,
test_security.py; elsewhere no pod is answered: `a_pod_is_not_answered`; a huge pod, a deadline, a
slow client, no restart: `who_is_slow_or_greedy`; limits of size and number:
tests/kube/test_sources.py; two probes: tests/kube/test_service.py; two replicas, and nonsense:
test_attacks.py.
4 within 6 s of the last answer, and nobody anew for 30 s without the API server: test_failover.py,
which prints whether 6 s were kept and fails at 18, since two clusters share two cores.
5 init containers, sidecars and containers at their most: `a_pod_is_admitted_at_the_most`; a sidecar
on 1.20: `a_sidecar_that_kubernetes_does_not_know`.
6 ports: `no_port_of_the_release`, `what_agents_tell`; insecure by name: tests/kube/test_chart.py.
7 no permission unused, none that the table lacks: test_permissions.py, over all tests, with
upgrade, rotation, eviction and uninstallation.
8 an hour back, metric of each certificate, event, no restart: `certificates_begin_an_hour_back`.
9 what kubelets refuse, for any reason, events, orphans within 60 s: test_orphans.py; kills: below.
10 capabilities and devices: `an_agent_has_three`; what they hold: `who_takes_over_an_agent`; Pod
Security: `pod_security_finds`; values for SELinux and AppArmor: test_permissions.py, where no
policy is enforced.
11 keys of each writer: `a_tenant_says_of_no_devices`, test_security.py; status of claims:
test_claim_rights.py.
12 cards, void, denial, by the node's runtime and by a runtime class: `a_runtime_gives_a_container`
(an old image, a ConfigMap beside a share and without, other vendors' variables, CDI annotations); a
ConfigMap beside a claim: test_claim_rights.py; each way, by the final environment:
test_runtimes.py; MIG instances, and what an image says of further devices:
tests/kube/test_driver_injection.py.
What runs on a cluster runs on 1.20 and on 1.36, but for these. What Kubernetes' version does not
decide is on one of them, on the other in `make soak` (`usually_on`, conftest.py). On 1.20 alone a
sidecar is refused: 1.28 and later know them. On 1.36 alone, since 1.20 has no such thing: Pod
Security, containers that are added (there alpha, and of another form), resizes, scheduling gates,
statuses that are refused, CDI among the ways of bringing drivers, and claims. Killed are extender,
kube-scheduler, their pod and the API server (test_failover.py); an agent while a pod goes, and a
container with its kubelet (test_orphans.py); agent, scheduler, API server, kubelet and node while
pods come and go, on 1.20 (test_kills.py); agent, kubelet and containerd within the steps of a
claim, on 1.36 (test_claim_kills.py).
No log says a secret: `no_log_says_a_secret`, test_permissions.py.

Over 400 lines because each boundary is tried by whoever would cross it, on two versions.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from attrs import evolve
from cryptography import x509

from hetero.kube.api import key_pair
from hetero.kube.api.annotations import ALLOCATION, INVENTORY, SIGNATURE, published_devices
from hetero.kube.api.client import Access, Api
from hetero.kube.api.key_pair import Pair, issue
from hetero.kube.api.pod import POD_GROUP
from hetero.kube.api.pod_request import INIT_PARTS
from hetero.kube.api.signing import PublicKeys, SigningKey
from hetero.kube.cluster_view import ClusterView, snapshot
from hetero.kube.webhook.rights import POLICIES
from hetero.model import Device
from tests.cluster.conftest import CARD, ended, run_all, share, usually_on
from tests.cluster.lab import CALLER, TOKEN, Lab, Plain, processes, program
from tests.cluster.release import NAMESPACE, Release
from tests.cluster.secrets import CANARY, SECRETS, leaks, note_secrets, root_of
from tests.cluster.stand_in import given, runtime_of_nvidia
from tests.kube.control_plane import wait_for
from tests.kube.test_chart import chart

pytestmark = pytest.mark.cluster

RBAC = "/apis/rbac.authorization.k8s.io/v1"
BINDINGS = f"{RBAC}/namespaces/default/rolebindings"
PODS = "/api/v1/namespaces/default/pods"
#: Makes pods in its namespace; nothing else.
TENANT = {
    "apiGroups": [""],
    "resources": ["pods", "pods/status"],
    "verbs": ["create", "get", "patch", "update"],
}
MERGE = "application/merge-patch+json"


def as_user(lab: Lab, user: str, method: str, path: str, body: Any, *, kind: str = "") -> Plain:
    """Return what the API answers a user. Raises `OSError` when that is an error."""
    who = {"Authorization": TOKEN, "Impersonate-User": user}
    return _said(lab, who, method, path, body, kind or "application/json")


def as_bearer(lab: Lab, token: str, method: str, path: str, body: Any = None) -> Plain:
    """Return what the API answers who has a token. Raises `OSError` when that is an error."""
    kind = MERGE if method == "PATCH" else "application/json"
    return _said(lab, {"Authorization": f"Bearer {token}"}, method, path, body, kind)


def _said(lab: Lab, who: Mapping[str, str], method: str, path: str, body: Any, kind: str) -> Plain:
    def act() -> bytes:
        host = lab.api.partition("://")[2]
        tls = ssl._create_unverified_context()
        with closing(HTTPSConnection(host, context=tls, timeout=10)) as connection:
            headers = {**who, "Content-Type": kind}
            text = body if isinstance(body, str) else json.dumps(body)
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            said = answer.read()
        if answer.status >= 400:
            with suppress(ValueError):
                said = json.loads(said)["message"].encode()
            raise OSError(f"{answer.status} {said.decode()}")
        return said

    made: Plain = json.loads(lab.inside(act))
    return made


@contextmanager
def bound(lab: Lab, role: str, user: str) -> Iterator[None]:
    """Give a user a ClusterRole in the default namespace meanwhile, once the API server knows."""
    name = f"{role}-{user.rpartition(':')[2]}"
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    }
    lab.call("POST", BINDINGS, body)
    try:
        wait_for(lambda: may(lab, user, lab.call("GET", f"{RBAC}/clusterroles/{role}")["rules"][0]))
        yield
    finally:
        lab.call("DELETE", f"{BINDINGS}/{name}")


def may(lab: Lab, user: str, rule: Plain) -> bool:
    """Whether the API server lets a user do in the default namespace what a rule begins with."""
    resource, _, part = rule["resources"][0].partition("/")
    asked = {
        "namespace": "default",
        "verb": rule["verbs"][0],
        "group": rule["apiGroups"][0],
        "resource": resource,
        "subresource": part,
        "name": rule.get("resourceNames", [""])[0],
    }
    body = {"spec": {"user": user, "resourceAttributes": asked}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(lab.call("POST", path, body)["status"]["allowed"])


@pytest.fixture(autouse=True)
def noted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep the secrets of before and after all tests: some renew keys and certificates."""
    name = next((n for n in ("either", "release", "late") if n in request.fixturenames), None)
    if name is None:
        yield
        return
    found: Release = request.getfixturevalue(name)
    if not found.lab.secrets:
        note_secrets(found)
    yield
    note_secrets(found)


@pytest.fixture
def tenant(either: Release) -> Iterator[str]:
    """A user who may make pods in the default namespace."""
    role = {"metadata": {"name": "lab-tenant"}, "rules": [TENANT]}
    either.lab.call("POST", f"{RBAC}/clusterroles", role)
    with bound(either.lab, "lab-tenant", "tenant"):
        yield "tenant"
    either.lab.call("DELETE", f"{RBAC}/clusterroles/lab-tenant")


def pod(name: str, limits: Mapping[str, str], notes: Mapping[str, str], **spec: Any) -> Plain:
    metadata = {"name": name, "annotations": dict(notes)}
    return {"metadata": metadata, "spec": {**program(limits), **spec}}


# --- who may use the words that take something from neighbours ------------------------------------

#: How a pod uses each policy: by its resources, or by its annotations.
USES: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "off": (share(), {"hetero.io/policy": "off"}),
    "priority-0": ({**share(), "nvidia.com/priority": "0"}, {}),
    "mps": (share(), {"nvidia.com/vgpu-mode": "mps"}),
    "on-excess-report": (share(), {"hetero.io/on-excess": "report"}),
    "on-bypass-report": (share(), {"hetero.io/on-bypass": "report"}),
    # By a variable of the container's: what a vendor's own runtime gives is tried below.
    "visible-devices": ({}, {}),
}
VISIBLE, OTHERS = "NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"
SEES_ALL = [{"name": VISIBLE, "value": "all"}]
OFF = USES["off"]


def denied(release: Release) -> float:
    """Return how many pods the webhooks say that they refused for want of a right."""
    found = 0.0
    for one in release.pods("hetero-webhook").values():
        server = f"https://{one['status']['podIP']}:8444"
        for line in release.lab.ask(server, "GET", "/metrics").decode().splitlines():
            if line.startswith("hetero_webhook_denied_total{"):
                found += float(line.rpartition(" ")[2])
    return found


def test_a_tenant_takes_nothing_from_neighbours_without_the_right(
    either: Release, tenant: str
) -> None:
    lab, before = either.lab, denied(either)
    assert POLICIES.keys() == USES.keys()

    for policy, use in USES.items():
        made = pod(policy, *use)
        if policy == "visible-devices":
            made["spec"]["containers"][0]["env"] = SEES_ALL
        with pytest.raises(OSError, match=f"neither tenant nor .*:default may use policy {policy}"):
            as_user(lab, tenant, "POST", PODS, made)
    theirs = pod("theirs", share(), {})
    theirs["spec"]["containers"][0]["env"] = [
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}
    ]
    with pytest.raises(OSError, match="may use policy off"):
        as_user(lab, tenant, "POST", PODS, theirs)
    opted_out = pod("out", *OFF, schedulerName="hetero-scheduler")
    opted_out["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    with pytest.raises(OSError, match="may use policy off"):
        as_user(lab, tenant, "POST", PODS, opted_out)
    as_user(lab, tenant, "POST", PODS, pod("later", share(), {}))
    change = {"metadata": {"annotations": OFF[1]}}
    for part in ("later", "later/status"):
        with pytest.raises(OSError, match="may use policy off"):
            as_user(lab, tenant, "PATCH", f"{PODS}/{part}", change, kind=MERGE)

    # A patch is admitted again where somebody else wrote meanwhile.
    assert len(USES) + 4 <= denied(either) - before
    with bound(lab, "hetero-use-off", tenant):
        as_user(lab, tenant, "POST", PODS, pod("given", *OFF))
    wait_for(lambda: lab.phases()["given"] == "Running")


def test_a_controller_lends_nobody_its_right(either: Release) -> None:
    lab, controller = either.lab, "system:serviceaccount:kube-system:replicaset-controller"
    sets = "/apis/apps/v1/namespaces/default/replicasets"
    template = pod("", *OFF)
    template["metadata"] = {"labels": {"app": "off"}, "annotations": OFF[1]}
    labels = {"matchLabels": {"app": "off"}}
    made = {"metadata": {"name": "off"}, "spec": {"selector": labels, "template": template}}

    with bound(lab, "hetero-use-off", controller):
        lab.call("POST", sets, made)
        said = wait_for(lambda: lab.messages("off"))
        assert {} == lab.pods()
    assert "default:default may not use policy off in namespace default" in said[0]

    with bound(lab, "hetero-use-off", "system:serviceaccount:default:default"):
        wait_for(lambda: list(lab.phases().values()) == ["Running"])
    lab.call("DELETE", f"{sets}/off?propagationPolicy=Background")


def test_an_administrator_of_a_namespace_gives_nobody_a_right(either: Release) -> None:
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "default"}
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "hetero-use-off",
    }
    made = {"metadata": {"name": "mine"}, "roleRef": role, "subjects": [subject]}

    with (
        bound(either.lab, "admin", "team-admin"),
        pytest.raises(OSError, match="attempting to grant RBAC permissions not currently held"),
    ):
        as_user(either.lab, "team-admin", "POST", BINDINGS, made)


# --- who says which devices a pod has -------------------------------------------------------------


def test_a_tenant_says_of_no_devices_that_they_are_taken(either: Release, tenant: str) -> None:
    lab = either.lab
    notes = lab.call("GET", "/api/v1/nodes/n1")["metadata"]["annotations"]
    device = published_devices(notes[INVENTORY], node="n1")[0]
    taken = {"hami.io/vgpu-devices-allocated": f"{device.uuid},NVIDIA,1,100:;"}
    asks = {"nvidia.com/gpumem": "1000"}  # which no kubelet counts: nobody asks the agent
    past = {"schedulerName": "tenants-own", "nodeName": "n1"}
    with pytest.raises(OSError, match="is written by HAMi alone: leave it out"):
        as_user(lab, tenant, "POST", PODS, pod("liar", asks, taken, **past))
    as_user(lab, tenant, "POST", PODS, pod("liar", asks, {}, **past))
    wait_for(lambda: lab.phases()["liar"] == "Running")
    for change in (taken, {ALLOCATION: "{}"}, {SIGNATURE: "00"}):
        body = {"metadata": {"annotations": change}}
        with pytest.raises(OSError, match="alone: leave it out"):
            as_user(lab, tenant, "PATCH", f"{PODS}/liar", body, kind=MERGE)

    long = {INIT_PARTS: json.dumps({"first": {"nvidia.com/gpumem": "0" * 250_000 + "1"}})}
    first = {**program({CARD: "1"})["containers"][0], "name": "first"}
    with pytest.raises(OSError, match="250001 characters are no amount: at most 64 are"):
        as_user(lab, tenant, "POST", PODS, pod("long", {}, long, initContainers=[first]))

    whole = {CARD: "1", "nvidia.com/gpumem-percentage": "100"}
    lab.add("whole", whole, notes={"nvidia.com/use-gpuuuid": device.uuid})
    run_all(lab, "whole")
    joins = {"metadata": {"labels": {POD_GROUP: "others"}}}
    with pytest.raises(OSError, match=f"label {POD_GROUP} stays as it is once a pod is bound"):
        as_user(lab, tenant, "PATCH", f"{PODS}/whole", joins, kind=MERGE)


# --- which cards a vendor's own runtime gives -----------------------------------------------------


def test_a_runtime_gives_a_container_the_cards_that_the_scheduler_gave_it_and_no_others(
    either: Release, tenant: str
) -> None:
    """The stand-in takes a container that is told nothing for one of an image that is given all."""
    lab, here = either.lab, {"kubernetes.io/hostname": "n1"}
    of_share = program(share())["containers"]
    plain = program({})["containers"][0]
    beside = {**plain, "name": "beside"}
    for limits in ({}, share()):
        made = pod("sees-all", limits, {}, nodeSelector=here)
        for named in (*SEES_ALL, {"name": "ASCEND_VISIBLE_DEVICES", "value": "0-7"}):
            made["spec"]["containers"][0]["env"] = [named]
            with pytest.raises(OSError, match="may use policy visible-devices"):
                as_user(lab, tenant, "POST", PODS, made)
    with pytest.raises(OSError, match="may use policy visible-devices"):
        as_user(lab, tenant, "POST", PODS, pod("cdi", {}, {"cdi.k8s.io/a": "nvidia.com/gpu=all"}))

    space = "/api/v1/namespaces/default/configmaps"
    lab.call(
        "POST",
        space,
        {"metadata": {"name": "all"}, "data": dict.fromkeys((VISIBLE, OTHERS), "all")},
    )
    from_all = {"envFrom": [{"configMapRef": {"name": "all"}}]}
    brings = {**plain, **from_all}
    also = {**of_share[0], **from_all, "name": "also"}
    old = {**plain, "env": [{"name": "CUDA_VERSION", "value": "10.0"}]}
    with runtime_class(lab, "nvidia"), runtime_of_nvidia(lab, "n1") as log:
        lab.add("shares", {}, nodeSelector=here, containers=[*of_share, beside, also])
        lab.add("plain", {}, nodeSelector=here)
        for name, container in (("by-class", plain), ("brings", brings), ("old", old)):
            by = "nvidia"
            lab.add(name, {}, nodeSelector=here, runtimeClassName=by, containers=[container])
        run_all(lab, "shares", "plain", "by-class", "brings", "old")
        found = given(log)
        served = pod("served", {"nvidia.com/another": "1"}, {}, runtimeClassName="nvidia")
        (alone,) = lab.call("POST", f"{PODS}?dryRun=All", served)["spec"]["containers"]
    lab.call("DELETE", f"{space}/all")
    seen = {name: one.by_variable for name, one in found.items()}

    allocation = lab.pods()["shares"]["metadata"]["annotations"][ALLOCATION]
    hidden = [("shares", "beside"), *((name, "main") for name in ("by-class", "brings", "old"))]
    assert {"void"} == {seen[one] for one in hidden}
    # Where the cluster is set to hide cards from all pods that ask for none: on 1.20 here.
    assert seen["plain", "main"] == ("void" if lab.name == "kube" else "all")
    # By no variable that another vendor's runtime reads, and of cards of another plugin nothing.
    told = [("shares", "also"), *((name, "main") for name in ("by-class", "brings", "old"))]
    assert {""} == {found[one].env.get(OTHERS) for one in told}
    of_another = {one["name"] for one in alone["env"]}
    assert (True, False) == (OTHERS in of_another, VISIBLE in of_another)
    for container in ("main", "also"):
        assert seen["shares", container].startswith("GPU-"), container
        assert f'"{seen["shares", container]}"' in allocation


@contextmanager
def runtime_class(lab: Lab, name: str) -> Iterator[None]:
    """Have a runtime class that nodes run as any other."""
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    lab.call("POST", classes, {"metadata": {"name": name}, "handler": "runc"})
    try:
        yield
    finally:
        lab.call("DELETE", f"{classes}/{name}")


# --- what a pod holds at most ---------------------------------------------------------------------

#: Percent of a card that init containers, sidecars and containers ask, in their order.
MOST: Mapping[str, tuple[Sequence[int], Sequence[int], Sequence[int]]] = {
    "first-more": ((70, 20), (), (10, 20)),
    "later-more": ((20,), (), (30, 40)),
    "none-later": ((70,), (), ()),
    "beside": ((40,), (30,), (40,)),
}
#: The card of n1 that these pods share, and MiB of it that count as a percent.
L4, PERCENT = {"nvidia.com/use-gputype": "L4"}, 230


def part(percent: int, name: str = "main") -> Plain:
    """Return a container that asks for so much of a card."""
    (made,) = program(share(percent * PERCENT, percent) if percent else {})["containers"]
    return {**made, "name": name}


def test_a_pod_is_admitted_at_the_most_that_it_holds_at_any_time(either: Release) -> None:
    lab = either.lab
    known = {name: of for name, of in MOST.items() if lab.name != "kube" or not of[1]}
    for name, (first, beside, later) in known.items():
        inits = [{**part(p, f"first-{n}"), "command": ["true"]} for n, p in enumerate(first)]
        inits += [{**part(p, f"beside-{p}"), "restartPolicy": "Always"} for p in beside]
        mains = [part(p, f"later-{n}") for n, p in enumerate(later or (0,))]
        lab.add(name, {}, notes=L4, initContainers=inits, containers=mains)
        most = max([*first, sum(later)]) + sum(beside)
        for other, percent in (("rest", 100 - most), ("more", 1)):
            lab.add(f"{name}-{other}", {}, notes=L4, containers=[part(percent)])
            if other == "rest":
                wait_for(lambda: {"Running"} == set(lab.phases().values()), seconds=60)
        wait_for(lambda n=name: any("lack" in said for said in lab.messages(f"{n}-more")))
        lab.clear()


def test_a_sidecar_that_kubernetes_does_not_know_is_refused(release: Release) -> None:
    spec = {**program(share()), "initContainers": [{**part(10, "side"), "restartPolicy": "Always"}]}
    said = json.dumps({"spec": {"initContainers": spec["initContainers"]}})
    notes = {"kubectl.kubernetes.io/last-applied-configuration": said}

    with pytest.raises(OSError, match="container side: with restartPolicy Always it is a sidecar"):
        release.lab.call(
            "POST", PODS, {"metadata": {"name": "a", "annotations": notes}, "spec": spec}
        )


# --- certificates ---------------------------------------------------------------------------------


def pair(lab: Lab, part: str) -> Pair:
    """Return a certificate of the release's, with its key."""
    data = lab.call("GET", f"{SECRETS}/hetero-{part}")["data"]
    return Pair.read({name: base64.b64decode(text) for name, text in data.items()})


def served(release: Release) -> dict[str, x509.Certificate]:
    """Return what each webhook proves itself by now."""

    def act(host: str) -> bytes:
        tls = ssl._create_unverified_context()
        with socket.create_connection((host, 8444), 10) as plain, tls.wrap_socket(plain) as made:
            found = made.getpeercert(binary_form=True)
            assert found is not None
            return found

    return {
        name: x509.load_der_x509_certificate(
            release.lab.inside(partial(act, one["status"]["podIP"]))
        )
        for name, one in release.pods("hetero-webhook").items()
    }


def ending_soon(lab: Lab, part: str = "webhook") -> x509.Certificate:
    """Give a part a certificate of the release's authority that ends within thirty days."""
    authority = pair(lab, "ca")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_pair, "_LASTS", timedelta(days=29))
        hosts = [f"hetero-webhook.{NAMESPACE}.svc"] if part == "webhook" else []
        made = issue(f"hetero-{part}", by=authority, hosts=hosts)
    data = {name: base64.b64encode(text).decode() for name, text in made.texts().items()}
    lab.patch(f"{SECRETS}/hetero-{part}-tls", {"data": data})
    return made.cert


def ends_of(lab: Lab, one: Plain, port: int) -> dict[str, float]:
    """Return when a pod of the release says that each certificate ends."""
    said = lab.ask(f"https://{one['status']['podIP']}:{port}", "GET", "/metrics").decode()
    name = "hetero_certificate_expiration_timestamp_seconds"
    found = re.findall(rf'^{name}{{certificate="(\w+)"}} (.+)$', said, re.M)
    return {certificate: float(ends) for certificate, ends in found}


@usually_on("kube136")
def test_certificates_begin_an_hour_back_are_told_of_and_renewed_without_a_restart(
    either: Release,
) -> None:
    lab, now = either.lab, datetime.now(timezone.utc)
    for part in ("ca", "webhook-tls", "scheduler-tls", "caller-tls"):
        begins = pair(lab, part).cert.not_valid_before_utc
        assert begins < now - timedelta(hours=1)

    old = ending_soon(lab)
    either.wait_for_files(lambda: {old} == set(served(either).values()))
    events = f"/api/v1/namespaces/{NAMESPACE}/events?fieldSelector=reason=CertificateEnds"

    def told() -> set[str]:
        items = lab.call("GET", events)["items"]
        return {one["involvedObject"]["name"] for one in items if "UTC: renew it" in one["message"]}

    wait_for(lambda: either.pods("hetero-webhook").keys() <= told())
    name, one = next(iter(either.pods("hetero-webhook").items()))
    assert {"server", "authority"} == ends_of(lab, one, 8444).keys()
    said = ends_of(lab, one, 8444)["server"]
    assert said == pytest.approx(old.not_valid_after_utc.timestamp(), abs=1)
    found = ends_of(lab, either.leading(), 9396)
    for part, certificate in (
        ("ca", "authority"),
        ("scheduler-tls", "server"),
        ("caller-tls", "caller"),
    ):
        ends = pair(lab, part).cert.not_valid_after_utc.timestamp()
        assert found[certificate] == pytest.approx(ends, abs=1)
    assert either.admits()

    started = one["status"]["containerStatuses"][0]["state"]
    either.renew_certificates()
    either.wait_for_files(lambda: old not in served(either).values())
    assert either.admits()
    assert started == either.pods("hetero-webhook")[name]["status"]["containerStatuses"][0]["state"]


# --- keys -----------------------------------------------------------------------------------------


def test_a_stolen_agent_forges_nothing(either: Release) -> None:
    lab, root = either.lab, root_of(either, "n1")
    lab.add("mine", share())
    run_all(lab, "mine")
    api = (root / "var/run/secrets/kubernetes.io/serviceaccount/token").read_text()
    own = (root / "var/run/secrets/hetero/token").read_text()
    held = [path.read_bytes() for path in root.glob("etc/hetero-*/*") if path.is_file()]

    def inventory(node: str) -> str:
        notes = lab.call("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
        return str(notes[INVENTORY])

    others = inventory("n2")
    notes = {"metadata": {"annotations": {INVENTORY: others, ALLOCATION: "{}"}}}
    for path in ("/api/v1/nodes/n2", "/api/v1/nodes/n1", f"{PODS}/mine"):
        with pytest.raises(OSError, match=r"403 .* cannot patch resource"):
            as_bearer(lab, api, "PATCH", path, notes)
    with pytest.raises(OSError, match=r"403 .* cannot get resource"):
        as_bearer(lab, api, "GET", f"{SECRETS}/hetero-key")
    assert any(b"BEGIN PUBLIC KEY" in text for text in held)
    assert not [text for text in held if b"PRIVATE" in text]

    publish = f"/api/v1/namespaces/{NAMESPACE}/services/https:hetero-webhook:https/proxy/inventory"
    with pytest.raises(OSError, match="403 the token is of no pod of the agent"):
        as_bearer(lab, api, "POST", publish, {"token": api, "inventory": others})

    def devices(node: str) -> tuple[Device, ...]:
        """Without what runs on for pods that are over, which ends meanwhile."""
        return published_devices(inventory(node), node=node)

    mine, theirs = devices("n1"), devices("n2")
    said = as_bearer(lab, api, "POST", publish, {"token": own, "inventory": others, "node": "n2"})
    assert {"node": "n1"} == said
    wait_for(lambda: mine == devices("n1"))  # its agent mends it
    assert theirs == devices("n2")


def step(release: Release, name: str) -> SigningKey:
    """Rotate the signing key one step, and return the key that signs after it."""
    (cron,) = [m for m in release.manifests() if m["metadata"]["name"] == "hetero-rotate-key"]
    spec = cron["spec"]["jobTemplate"]["spec"]
    secret, long_ago = f"{SECRETS}/hetero-key", base64.b64encode(b"1000").decode()
    release.lab.patch(secret, {"data": {"since": long_ago}})
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    release.lab.call("POST", jobs, {"metadata": {"name": name}, "spec": spec})
    wait_for(lambda: release.lab.call("GET", f"{jobs}/{name}")["status"].get("succeeded"))
    return SigningKey.of(base64.b64decode(release.lab.call("GET", secret)["data"]["key.pem"]))


@usually_on("kube")
def test_two_keys_are_good_while_one_takes_the_others_place(either: Release) -> None:
    lab = either.lab
    lab.add("before", share())
    run_all(lab, "before")

    def known(node: str) -> PublicKeys:
        return PublicKeys.read(str(root_of(either, node) / "etc/hetero-keys/keys.pem"))

    def signed(key: SigningKey, name: str) -> bool:
        found = lab.pods()[name]
        about, node = found["metadata"], found["spec"]["nodeName"]
        text, signature = (about["annotations"][one] for one in (ALLOCATION, SIGNATURE))
        return key.public.signed(text, signature, uid=about["uid"], node=node)

    former = step(either, "announce")
    assert signed(former, "before")
    either.wait_for_files(lambda: all(len(known(node).raw) == 2 for node in lab.racks))
    key = step(either, "sign")

    assert key.public != former.public
    either.wait_for_files(lambda: signed(key, "before"))
    lab.add("after", share())
    run_all(lab, "after")
    assert signed(key, "after")

    step(either, "end")  # which ends the former one, had it been stolen
    either.wait_for_files(
        lambda: not any({*former.public.raw} & {*known(node).raw} for node in lab.racks)
    )
    assert all({*key.public.raw} < {*known(node).raw} for node in lab.racks)
    assert {"Running"} == set(lab.phases().values())


# --- ports ----------------------------------------------------------------------------------------

APPS = ("hetero-agent", "hetero-scheduler", "hetero-webhook")


def sockets(container: Plain) -> list[str]:
    """Return the lines of a container's TCP sockets, as /proc/net has them.

    Each of its processes sees the same; one may end while it is read, as a vendor's process does.
    """
    for pid in processes(container):
        with suppress(OSError):
            tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
            return [line for table in tables for line in table.splitlines()[1:]]
    return []  # it is being started again


def listening(release: Release) -> set[tuple[str, int]]:
    """Return the addresses and ports that pods of the release listen on for others."""
    found = set()
    for pod in (pod for app in APPS for pod in release.pods(app).values()):
        for line in sockets(pod["status"]["containerStatuses"][0]):
            (host, port), state = line.split()[1].split(":"), line.split()[3]
            if state == "0A" and not host.endswith("0100007F"):
                found.add((pod["status"]["podIP"], int(port, 16)))
    return found


def test_no_port_of_the_release_answers_who_may_not_ask(either: Release) -> None:
    lab = either.lab
    wait_for(lambda: {8443, 8444, 9396, 9397} == {port for _, port in listening(either)})
    ports = listening(either)
    accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    made = lab.call("POST", f"{accounts}/default/token", {"spec": {}})
    stranger = f"Bearer {made['status']['token']}"

    for host, port in ports:
        with pytest.raises(OSError, match=r"400|closed|reset|RemoteDisconnected|BadStatusLine"):
            lab.ask(f"http://{host}:{port}", "GET", "/metrics")
        server = f"https://{host}:{port}"
        if port == 8443:
            with pytest.raises(OSError, match=r"ALERT|alert|closed|reset|EOF"):
                lab.ask(server, "GET", "/metrics")
            continue
        for token, answer in (("", "401"), ("Bearer nobodys", "401"), (stranger, "403")):
            with pytest.raises(OSError, match=answer):
                lab.ask(server, "GET", "/metrics", token=token)
        assert b"hetero_" in lab.ask(server, "GET", "/metrics")


def test_what_agents_tell_is_read_through_the_api_by_who_may_have_a_token_for_it(
    either: Release,
) -> None:
    """An agent gets no token that is good for anything else."""
    assert [None] * len(either.lab.racks) == silent_agents(either.lab)


def silent_agents(lab: Lab) -> list[str | None]:
    """Return for each node why its agent's metrics are not known, as `hetero top` reads them."""

    async def seen() -> ClusterView:
        tls = ssl._create_unverified_context()
        access = Access(server=lab.api, tls=tls, token=TOKEN.removeprefix("Bearer "))
        async with Api(access).open() as api:
            return await snapshot(api, seconds=0.01)

    def silent() -> bytes:
        return json.dumps([node.silent for node in asyncio.run(seen()).nodes]).encode()

    found: list[str | None] = json.loads(lab.inside(silent))
    return found


# --- the agent's own rights on its node -----------------------------------------------------------

#: The bits of CAP_DAC_READ_SEARCH, CAP_KILL and CAP_SYS_PTRACE.
CAPABILITIES = 1 << 2 | 1 << 5 | 1 << 19


def test_an_agent_has_three_capabilities_and_no_device_of_its_node(either: Release) -> None:
    lab, root = either.lab, root_of(either, "n1")
    lab.add("mine", share(), nodeSelector={"kubernetes.io/hostname": "n1"})
    run_all(lab, "mine")  # which the agent gave its share
    (status,) = either.agent("n1")["status"]["containerStatuses"]
    found = []
    for pid in processes(status):
        with suppress(OSError):  # a vendor's has ended at this moment
            found.append(Path(f"/proc/{pid}/status").read_text())
    assert found
    for said in found:
        held = re.findall(r"^Cap(?:Prm|Eff|Bnd):\s+(\w+)$", said, re.M)
        assert {CAPABILITIES} == {int(one, 16) for one in held}
        assert "Seccomp:\t2" in said  # the runtime's filter
    nodes = {one.name for one in (root / "dev").iterdir() if one.lstat().st_rdev}
    assert nodes <= {"full", "null", "ptmx", "random", "tty", "urandom", "zero", "console"}
    assert not (root / "host/etc/shadow").exists()
    assert not (root / "host/root").exists()


def test_who_takes_over_an_agent_has_its_nodes_files_as_root_there_has(either: Release) -> None:
    """By /proc/1/root, which CAP_SYS_PTRACE opens: what its container mounts is no bound.

    docs/security.md says so. Where AppArmor's or SELinux's usual policy holds it may not.
    """
    lab, (status,) = either.lab, either.agent("n1")["status"]["containerStatuses"]
    secret, made = lab.folder / "secret", lab.folder / "made"
    secret.write_text("of the node")
    secret.chmod(0)
    os.chown(secret, 1234, 1234)
    socket_of = lab.folder / "run/nodes/n1/ctrd/containerd.sock"
    container = status["containerID"].partition("://")[2]
    call = ("ctr", f"--address={socket_of}", "--namespace=k8s.io", "tasks", "exec")
    ctr = (*call, "--exec-id=tries", f"--fifo-dir={lab.folder}", container)

    def run(*argv: str) -> str:
        done = subprocess.run([*ctr, *argv], capture_output=True, text=True, timeout=30)
        return done.stdout + done.stderr

    assert "No such file" in run("/usr/bin/cat", str(secret))
    assert "of the node" == run("/usr/bin/cat", f"/proc/1/root{secret}")
    assert "" == run("/usr/bin/touch", f"/proc/1/root{made}")
    assert made.exists()


def test_pod_security_finds_of_the_agent_what_is_documented_and_of_others_nothing(
    late: Release,
) -> None:
    lab, space = late.lab, "baseline"
    labels = {"pod-security.kubernetes.io/enforce": "baseline", "hetero.io/webhook": "ignore"}
    lab.call("POST", "/api/v1/namespaces", {"metadata": {"name": space, "labels": labels}})
    accounts = f"/api/v1/namespaces/{space}/serviceaccounts"
    wait_for(lambda: lab.call("GET", accounts)["items"])
    said = {}
    for name, spec in shipped(lab):
        body = {"metadata": {"name": name}, "spec": {**spec, "serviceAccountName": "default"}}
        try:
            lab.call("POST", f"/api/v1/namespaces/{space}/pods?dryRun=All", body)
        except OSError as error:
            said[name] = str(error)
    lab.call("DELETE", f"/api/v1/namespaces/{space}")

    assert {"hetero-agent"} == said.keys()
    reasons = {"host namespaces", "hostPath volumes", "non-default capabilities"}
    assert reasons == set(re.findall(r"(\w[\w -]*) \(", said["hetero-agent"]))
    assert "SYS_PTRACE" in said["hetero-agent"]  # KILL is in the baseline


def shipped(lab: Lab) -> Iterator[tuple[str, Plain]]:
    """Yield the pods of the chart with its own values, by the name of what makes them."""
    version = lab.call("GET", "/version")["gitVersion"]
    for made in chart(kubernetes=version):
        if made["kind"] in ("DaemonSet", "Deployment", "Job"):
            spec = made["spec"]["template"]["spec"]
            yield made["metadata"]["name"], {**spec, "restartPolicy": "Never"}


# --- clients that are slow, or greedy -------------------------------------------------------------

#: Connects without a word, says half, and says as much as is read, to each of the hosts.
GREEDY = """
import socket, ssl, sys, threading, time
tls, held, refused = ssl._create_unverified_context(), [], []
def said(host, length, body):
    made = tls.wrap_socket(socket.create_connection((host, 8444), 5))
    head = f"POST /admit HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: {length}\\r\\n\\r\\n"
    made.sendall(head.encode() + body)
    return made
def slow(host):
    while True:
        for half in (False, True):
            try:
                plain = socket.create_connection
                held.append(said(host, 99, b"{") if half else plain((host, 8444), 5))
            except OSError:
                refused.append(host)
                time.sleep(0.01)
        del held[:-600]
def greedy(host):
    while True:
        try:
            said(host, 3000000, b"x" * 3000000).recv(1)
        except OSError:
            time.sleep(0.01)
for host in sys.argv[1:]:
    for act in (slow, greedy, greedy):
        threading.Thread(target=act, args=(host,), daemon=True).start()
for _ in range(60):
    time.sleep(1)
    print(len(refused), flush=True)
"""


#: Keeps all processors of its node busy, by more programs than there are.
BUSY = "for one in $(seq $(($(nproc) * 2))); do while :; do :; done & done; wait"


#: Says once to each of the hosts what the API server would say, and prints what it is answered.
POSTS = """
import http.client, json, ssl, sys, time
review = {"request": {"uid": "u", "operation": "CREATE", "namespace": "default", "object": {}}}
said = []
time.sleep(float(sys.argv[1]))
for host in sys.argv[2:]:
    for method, path, body in (
        ("POST", "/admit", json.dumps(review)),
        ("POST", "/inventory", json.dumps({"token": "a", "inventory": "[]"})),
        ("GET", "/readyz", None),
    ):
        tls = ssl._create_unverified_context()
        made = http.client.HTTPSConnection(host, 8444, context=tls, timeout=10)
        made.request(method, path, body, {})
        said.append(made.getresponse().status)
print(json.dumps(said), flush=True)
"""


@usually_on("kube136")
def test_a_pod_is_not_answered_by_the_webhook_nor_who_has_the_api_server_ask(
    either: Release,
) -> None:
    """Who is stolen may have the API server ask: an agent, which sends its inventory so."""
    lab = either.lab
    hosts = [one["status"]["podIP"] for one in either.pods("hetero-webhook").values()]
    for name, after in (("at-once", "0"), ("later", "3")):
        lab.add(name, {}, sys.executable, "-c", POSTS, after, *hosts)
    ended(lab, "at-once", "later")
    for name in ("at-once", "later"):  # its address is not known yet, and is
        assert [403, 403, 200] * len(hosts) == json.loads(lab.output(name)), name

    agent = (
        root_of(either, "n1") / "var/run/secrets/kubernetes.io/serviceaccount/token"
    ).read_text()
    path = f"/api/v1/namespaces/{NAMESPACE}/services/https:hetero-webhook:https/proxy/admit"
    for headers in ({}, {"Connection": "Upgrade", "Upgrade": "any"}):
        who = {"Authorization": f"Bearer {agent}", **headers}
        with pytest.raises(OSError, match="403 this is for the API server"):
            _said(lab, who, "POST", path, {"request": {}}, "application/json")


def half_a_request(host: str) -> bytes:
    """Return what is answered to who never says the rest."""
    tls = ssl._create_unverified_context()
    with socket.create_connection((host, 8444), 10) as plain, tls.wrap_socket(plain) as made:
        made.sendall(b"POST /admit HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        return made.recv(100)


def restarts(release: Release) -> list[int]:
    found = (one["status"]["containerStatuses"] for one in release.pods("hetero-webhook").values())
    return sorted(status["restartCount"] for (status,) in found)


@usually_on("kube136")
def test_who_is_slow_or_greedy_at_the_webhook_harms_itself_only(
    either: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    lab, before = either.lab, restarts(either)
    hosts = [one["status"]["podIP"] for one in either.pods("hetero-webhook").values()]

    def admitted() -> list[float]:
        """Return the seconds that ten pods waited for the webhook's answer."""
        took = []
        for _ in range(10):
            began = monotonic()
            assert either.admits()
            took.append(monotonic() - began)
        return sorted(took)

    pool = ThreadPoolExecutor()
    half = pool.submit(lab.inside, partial(half_a_request, hosts[0]))
    alone = admitted()
    lab.add("greedy", {}, sys.executable, "-c", GREEDY, *hosts)
    wait_for(lambda: lab.phases()["greedy"] == "Running")
    wait_for(lambda: len(lab.output("greedy").split()) > 2)
    # All that is left of each node's processors, which is more than webhook and scheduler ask for.
    (busy,) = program({}, "sh", "-c", BUSY)["containers"]
    busy["resources"] = {"requests": {"cpu": f"{(os.cpu_count() or 1) * 1000 - 800}m"}}
    for node in lab.racks:
        here = {"kubernetes.io/hostname": node}
        lab.add(f"busy-{node}", {}, nodeSelector=here, containers=[busy])
    wait_for(lambda: {"Running"} == set(lab.phases().values()))
    beside, began = admitted(), monotonic()
    lab.add("beside", share())
    wait_for(lambda: "nodeName" in lab.pods()["beside"]["spec"])
    bound = monotonic() - began
    refused = int(lab.output("greedy").split()[-1])
    for name in lab.pods():
        lab.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    with capsys.disabled():
        print(
            f"\n{lab.name}: the API server is answered after p50 {beside[5]:.3f}, at most "
            f"{beside[-1]:.3f} s, {alone[5]:.3f} and {alone[-1]:.3f} alone; a pod is bound "
            f"after {bound:.1f} s; the greedy client was hung up on {refused} times",
            end="",
        )
    assert refused > 0
    assert beside[5] < 1 + 3 * alone[5], (alone, beside)
    assert beside[-1] < 3, beside  # the API server waits for 5 s
    huge = pod("huge", share(), {})
    huge["spec"]["containers"][0]["env"] = [{"name": "A", "value": "x" * 1_200_000}]
    lab.call("POST", f"{PODS}?dryRun=All", huge)
    assert before == restarts(either)
    assert half.result(timeout=30).startswith(b"HTTP/1.1 408")


# --- the API server's own certificate -------------------------------------------------------------


@usually_on("kube136")
def test_pods_are_admitted_for_the_api_server_alone_where_it_proves_itself(
    either: Release,
) -> None:
    """The lab's API server shows who it is to a webhook that asks; others show another name."""
    lab = either.lab
    other = lab.callers.issue("somebody")
    space = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    data = {"ca.crt": lab.callers.path.read_text()}
    lab.call("POST", space, {"metadata": {"name": "callers"}, "data": data})
    names = {"clientCA": "callers", "clientNames": [CALLER]}
    asking = evolve(either, more={"webhook": names})
    at_once = {"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/hetero-webhook"
    lab.patch(path, {"spec": {"strategy": at_once}})
    replace_webhooks(asking)
    try:
        wait_for(lambda: webhooks_ask(asking) == [True] * 2 and asking.admits(), seconds=120)
        for one in asking.pods("hetero-webhook").values():
            shown = (None, other, lab.caller)
            answers = [
                lab.inside(partial(answered, one["status"]["podIP"], pair)) for pair in shown
            ]
            assert [b"403", b"403", b"400"] == answers
    finally:
        replace_webhooks(either)
        wait_for(lambda: webhooks_ask(either) == [False] * 2 and either.admits(), seconds=120)
        lab.call("DELETE", f"{space}/callers")


def replace_webhooks(release: Release) -> None:
    """Have the webhooks of a release's values in place of those that run."""
    (made,) = [
        made
        for made in release.manifests()
        if (made["kind"], made["metadata"]["name"]) == ("Deployment", "hetero-webhook")
    ]
    release.apply(made)


def answered(host: str, pair: tuple[Path, Path] | None) -> bytes:
    """Return what a webhook answers to nonsense from who proves itself so."""
    tls = ssl._create_unverified_context()
    if pair:
        tls.load_cert_chain(*pair)
    with closing(HTTPSConnection(host, 8444, context=tls, timeout=10)) as connection:
        connection.request("POST", "/admit", "{}")
        return str(connection.getresponse().status).encode()


def webhooks_ask(release: Release) -> list[bool]:
    """Return whether each webhook that is to stay asks who brings it pods for a certificate.

    A kubelet of 1.20 may take a minute until the API no longer has one that went.
    """
    return [
        "--client-ca=/etc/hetero-clients/ca.crt" in one["spec"]["containers"][0]["args"]
        for one in release.pods("hetero-webhook").values()
    ]


# --- secrets --------------------------------------------------------------------------------------


def test_no_log_says_a_secret(either: Release) -> None:
    """Those of all tests are looked through when all have run: test_permissions.py."""
    canary = {"token": CANARY, "inventory": "{}"}
    for one in either.pods("hetero-webhook").values():
        server = f"https://{one['status']['podIP']}:8444"
        with pytest.raises(OSError, match="403"):
            either.lab.ask(server, "POST", "/inventory", canary)
        with pytest.raises(OSError, match="401"):
            either.lab.ask(server, "GET", "/metrics", token=f"Bearer {CANARY}")

    written = [path.read_text() for path in either.lab.logs()]
    assert any("inventory: refused to nobody's token" in text for text in written)
    assert len([text for text in written if "serving on" in text]) >= len(either.lab.racks)
    assert len(note_secrets(either)) > 4 * len(either.lab.racks)
    assert [] == [*leaks(either.lab)]
