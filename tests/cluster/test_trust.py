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
test_keys.py `a_stolen_agent`; two keys while they change: there `two_keys`; a kubelet's identity:
test_attacks.py.
3 test_ports.py: mutual TLS of the webhook, `pods_are_admitted_for_the_api_server_alone`; elsewhere
no pod is answered: `a_pod_is_not_answered`; a huge pod, a deadline, a slow client, no restart:
`who_is_slow_or_greedy`. Mutual TLS of the extender: test_security.py; limits of size and number:
tests/kube/test_sources.py; two probes: tests/kube/test_service.py; two replicas, and nonsense:
test_attacks.py.
4 within 6 s of the last answer, and nobody anew for 30 s without the API server, after which pods
are bound within 20 s: test_failover.py, which prints whether 6 and 20 s were kept and fails at
three times as many, since two clusters share two cores.
5 init containers, sidecars and containers at their most: `a_pod_is_admitted_at_the_most`; a sidecar
on 1.20: `a_sidecar_that_kubernetes_does_not_know`.
6 ports: test_ports.py `no_port_of_the_release`, `what_agents_tell`; insecure by name:
tests/kube/test_chart.py.
7 no permission unused, none that the table lacks: test_permissions.py, over all tests, with
upgrade, rotation, eviction and uninstallation.
8 an hour back, metric of each certificate, event, no restart: test_keys.py
`certificates_begin_an_hour_back`.
9 what kubelets refuse, for any reason, events, orphans within 60 s: test_orphans.py; kills: below.
10 test_agent_rights.py: capabilities and devices, `an_agent_has_three`; what they hold:
`who_takes_over_an_agent`; Pod Security: `pod_security_finds`. Values for SELinux and AppArmor:
test_permissions.py, where no policy is enforced.
11 keys of each writer: `a_tenant_says_of_no_devices`, test_security.py; status of claims:
test_claim_rights.py.
12 cards, void, denial, by the node's runtime and by a runtime class: test_runtimes.py
`a_runtime_gives_a_container` (an old image, a ConfigMap beside a share and without, other vendors'
variables, CDI annotations); each way, by the final environment: there `each_way`; a ConfigMap
beside a claim: test_claim_rights.py; MIG instances, and what an image says of further devices:
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
No log says a secret: test_keys.py `no_log_says_a_secret`, test_permissions.py.
"""

import json
from collections.abc import Mapping, Sequence

import pytest

from hetero.kube.webhook.rights import POLICIES
from hetero.kube.words.annotations import ALLOCATION, INVENTORY, SIGNATURE, published_devices
from hetero.kube.words.pod import POD_GROUP
from hetero.kube.words.pod_request import INIT_PARTS
from tests.cluster.conftest import CARD, run_all, share
from tests.cluster.lab import Plain, program
from tests.cluster.release import Release
from tests.cluster.users import BINDINGS, MERGE, PODS, as_user, bound, pod
from tests.kube.control_plane import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("noted")]


# --- who may use the words that take something from neighbours ------------------------------------

#: How a pod uses each policy: by its resources, or by its annotations.
USES: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "off": (share(), {"hetero.io/policy": "off"}),
    "priority-0": ({**share(), "nvidia.com/priority": "0"}, {}),
    "mps": (share(), {"nvidia.com/vgpu-mode": "mps"}),
    "on-excess-report": (share(), {"hetero.io/on-excess": "report"}),
    "on-bypass-report": (share(), {"hetero.io/on-bypass": "report"}),
    # By a variable of the container's: what a vendor's own runtime gives is in test_runtimes.py.
    "visible-devices": ({}, {}),
}
OFF = USES["off"]


def denied(release: Release) -> float:
    """Return how many pods the webhooks say that they refused for want of a right."""
    total = 0.0
    for webhook in release.pods("hetero-webhook").values():
        server = f"https://{webhook['status']['podIP']}:8444"
        for line in release.lab.ask(server, "GET", "/metrics").decode().splitlines():
            if line.startswith("hetero_webhook_denied_total{"):
                total += float(line.rpartition(" ")[2])
    return total


def test_a_tenant_takes_nothing_from_neighbours_without_the_right(
    either: Release, tenant: str
) -> None:
    lab, before = either.lab, denied(either)
    assert POLICIES.keys() == USES.keys()

    for policy, use in USES.items():
        made = pod(policy, *use)
        if policy == "visible-devices":
            sees_all = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
            made["spec"]["containers"][0]["env"] = [sees_all]
        with pytest.raises(OSError, match=f"neither tenant nor .*:default may use policy {policy}"):
            as_user(lab, tenant, "POST", PODS, made)
    other = pod("theirs", share(), {})
    other["spec"]["containers"][0]["env"] = [
        {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}
    ]
    with pytest.raises(OSError, match="may use policy off"):
        as_user(lab, tenant, "POST", PODS, other)
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
        messages = wait_for(lambda: lab.messages("off"))
        assert {} == lab.pods()
    assert "default:default may not use policy off in namespace default" in messages[0]

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
#: Percent that are asked of a full card: more than a context takes, which is another refusal.
MORE_PERCENT = 3


def part(percent: int, name: str = "main") -> Plain:
    """Return a container that asks for so much of a card."""
    (made,) = program(share(percent * PERCENT, percent) if percent else {})["containers"]
    return {**made, "name": name}


def test_a_pod_is_admitted_at_the_most_that_it_holds_at_any_time(either: Release) -> None:
    lab = either.lab
    known = {name: of for name, of in MOST.items() if lab.name != "kube" or not of[1]}
    for name, (first, sidecars, later) in known.items():
        inits = [{**part(p, f"first-{n}"), "command": ["true"]} for n, p in enumerate(first)]
        inits += [{**part(p, f"beside-{p}"), "restartPolicy": "Always"} for p in sidecars]
        mains = [part(p, f"later-{n}") for n, p in enumerate(later or (0,))]
        lab.add(name, {}, notes=L4, initContainers=inits, containers=mains)
        most = max([*first, sum(later)]) + sum(sidecars)
        for other, percent in (("rest", 100 - most), ("more", MORE_PERCENT)):
            lab.add(f"{name}-{other}", {}, notes=L4, containers=[part(percent)])
            if other == "rest":
                wait_for(lambda: {"Running"} == set(lab.phases().values()), seconds=60)
        wait_for(lambda n=name: any("lack" in said for said in lab.messages(f"{n}-more")))
        lab.clear()


def test_a_sidecar_that_kubernetes_does_not_know_is_refused(release: Release) -> None:
    spec = {**program(share()), "initContainers": [{**part(10, "side"), "restartPolicy": "Always"}]}
    spec_json = json.dumps({"spec": {"initContainers": spec["initContainers"]}})
    notes = {"kubectl.kubernetes.io/last-applied-configuration": spec_json}

    with pytest.raises(OSError, match="container side: with restartPolicy Always it is a sidecar"):
        release.lab.call(
            "POST", PODS, {"metadata": {"name": "a", "annotations": notes}, "spec": spec}
        )
