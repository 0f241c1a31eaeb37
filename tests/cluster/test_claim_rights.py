"""Who may say what of claims on a real Kubernetes 1.36: tenants, agents, administrators."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from hetero.kube.dra.templates import ASKED
from hetero.model.units import GiB, MiB
from tests.cluster.claims import (
    CLAIMS,
    GROUP,
    JOB,
    NODES,
    PODS,
    TEMPLATES,
    claim,
    cleared,
    given,
    pod_with,
    run_with,
    same_card,
    token,
)
from tests.cluster.conftest import AI_BENCHMARK_2, share
from tests.cluster.lab import ENDS, TOKEN, Lab, Plain, program
from tests.cluster.release import Release
from tests.cluster.test_attacks import Tenant
from tests.cluster.users import MERGE, as_user, bound
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

AGENTS = {"kind": "ServiceAccount", "name": "hetero-agent", "namespace": "hetero-system"}


@pytest.fixture
def release(by_claims: Release) -> Iterator[Release]:
    with cleared(by_claims):
        yield by_claims


@pytest.fixture(scope="module")
def tenant(by_claims: Release) -> str:
    """The token of an account that may do all that there is with claims, their status included."""
    resources = ["resourceclaims", "resourceclaims/status", "resourceclaimtemplates"]
    return account(by_claims.lab, "tenant", *resources)


@pytest.fixture(scope="module")
def ruler(by_claims: Release) -> Iterator[str]:
    """The token of an account with a star for claims in the whole cluster: binding and driver, too.

    Kubernetes 1.36 asks for these two in the whole cluster, so no Role of a namespace gives them.
    """
    lab = by_claims.lab
    made = account(lab, "ruler", "resourceclaims")
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["*"], "verbs": ["*"]}
    subject = {"kind": "ServiceAccount", "name": "ruler", "namespace": "default"}
    with everywhere(lab, subject, "lab-ruler", rule):
        yield made


@contextmanager
def everywhere(lab: Lab, subject: Plain, role: str, *rules: Plain) -> Iterator[None]:
    """Give somebody a ClusterRole in all namespaces meanwhile, made of these rules if any.

    The API server hears of it by watching, so it counts a moment later.
    """
    rbac, binding = "/apis/rbac.authorization.k8s.io/v1", f"lab-binds-{role}"
    of = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    body = {"metadata": {"name": binding}, "roleRef": of, "subjects": [subject]}
    if rules:
        lab.call("POST", f"{rbac}/clusterroles", {"metadata": {"name": role}, "rules": [*rules]})
    lab.call("POST", f"{rbac}/clusterrolebindings", body)
    try:
        yield
    finally:
        lab.call("DELETE", f"{rbac}/clusterrolebindings/{binding}")
        if rules:
            lab.call("DELETE", f"{rbac}/clusterroles/{role}")


def account(lab: Lab, name: str, *resources: str) -> str:
    """Return the token of a new account of tenants that may do anything with these resources."""
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    rules = [{"apiGroups": ["resource.k8s.io"], "resources": [*resources], "verbs": ["*"]}]
    about = {"metadata": {"name": name}}
    lab.call("POST", "/api/v1/namespaces/default/serviceaccounts", about)
    lab.call("POST", f"{rbac}/roles", {**about, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    binding = {**about, "roleRef": role, "subjects": [subject]}
    lab.call("POST", f"{rbac}/rolebindings", binding)
    made = token(lab, f"default/{name}")
    wait_for(lambda: answer(lab, "GET", CLAIMS, None, token=made) == "done")
    return made


def test_an_agent_writes_the_slices_of_its_own_node_alone(
    release: Release, lab: Lab, tenant: str
) -> None:
    """Made, changed and removed: by its own agent, and by nobody else who is not of the cluster.

    A kubelet may write its node's, of any driver's name: of ours none that stands for another's.
    """
    own, other = NODES
    slices = f"{GROUP}/resourceslices"
    slices_of = {node: lab.call("GET", f"{slices}/{node}-hetero.io-0") for node in NODES}
    agent = token(lab, "hetero-system/hetero-agent", pod=release.agent(own))
    unbound = token(lab, "hetero-system/hetero-agent")

    def made(node: str, driver: str = "hetero.io", *, name: str = "", pool_of: str = "") -> Plain:
        pool = {"name": pool_of or node, "generation": 99, "resourceSliceCount": 1}
        device = {"name": "forged", "attributes": {"uuid": {"string": "forged"}}}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [device]}
        return {"metadata": {"name": name or f"{node}-hetero.io-9"}, "spec": spec}

    def answers(by: str, node: str) -> list[str]:
        path = f"{slices}/{node}-hetero.io-0?dryRun=All"
        return [
            answer(lab, "POST", f"{slices}?dryRun=All", made(node), token=by),
            answer(lab, "PUT", path, slices_of[node], token=by),
            answer(lab, "DELETE", path, None, token=by),
        ]

    assert ["done"] * 3 == answers(agent, own)
    sentence = "the agent of node '{}' writes slices of hetero.io on that node alone"
    for by, node, of in ((agent, other, own), (unbound, own, ""), (unbound, other, "")):
        assert all(sentence.format(of) in said for said in answers(by, node))
    for forged in (
        made(own, driver="other.example.com"),
        made(own, name=f"{other}-hetero.io-9"),  # before its agent makes one of that name
        made(own, pool_of=other),  # a later generation of a pool is all of it
    ):
        refusal = answer(lab, "POST", f"{slices}?dryRun=All", forged, token=agent)
        assert sentence.format(own) in refusal
    moved = {**slices_of[own], "spec": {**slices_of[own]["spec"], "nodeName": other}}
    path = f"{slices}/{own}-hetero.io-0?dryRun=All"
    assert "done" != answer(lab, "PUT", path, moved, token=agent)
    for node in NODES:
        assert all("403" in said for said in answers(tenant, node))
    kubelet = {"Authorization": TOKEN, "Impersonate-User": f"system:node:{own}"}
    by_kubelet = Tenant(lab, {**kubelet, "Impersonate-Group": "system:nodes"})
    assert "" == by_kubelet.ask("POST", f"{slices}?dryRun=All", made(own))
    assert "403" in by_kubelet.ask("POST", f"{slices}?dryRun=All", made(other))
    for forged in (made(own, pool_of=other), made(own, name=f"{other}-hetero.io-9")):
        assert sentence.format(own) in by_kubelet.ask("POST", f"{slices}?dryRun=All", forged)
    foreign = made(own, driver="other.example.com", pool_of=other)
    assert "" == by_kubelet.ask("POST", f"{slices}?dryRun=All", foreign)


def answer(
    lab: Lab, method: str, path: str, body: Plain | None, *, token: str, kind: str = ""
) -> str:
    """Return why the API refuses something, or that it is done."""
    try:
        lab.call(method, path, body, kind=kind, token=token)
    except OSError as error:
        return str(error)
    return "done"


def test_neither_a_tenant_nor_an_agent_says_what_a_claim_was_allocated(
    release: Release, lab: Lab, tenant: str
) -> None:
    """The tenant may do all that there is with claims but bind them, which is kube-scheduler's."""
    agent = token(lab, "hetero-system/hetero-agent", pod=release.agent("n1"))
    claim(lab, "forged", memory="2Gi", cores=20)
    made = lab.call("GET", f"{CLAIMS}/forged", token=tenant)
    device = next(iter(wait_for(lambda: release.devices("n1"))))
    result = {"driver": "hetero.io", "pool": "n1", "device": device, "request": "card"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "any", "uid": "any"}],
    }

    for who, why in ((tenant, "requires resource=.*resourceclaims/binding"), (agent, "403")):
        with pytest.raises(OSError, match=why):
            lab.call("PUT", f"{CLAIMS}/forged/status", {**made, "status": status}, token=who)


def test_who_has_a_star_for_claims_in_the_whole_cluster_says_nothing_of_a_claims_allocation(
    release: Release, lab: Lab, ruler: str
) -> None:
    """Kubernetes itself lets such a one, and before 1.36 whoever may write a claim's status."""
    for name in ("forged", "used"):
        claim(lab, name, memory="2Gi", cores=20)
    run_with(lab, "used")
    wait_for(lambda: lab.call("GET", f"{CLAIMS}/used")["status"].get("devices"))
    used, forged = (lab.call("GET", f"{CLAIMS}/{name}") for name in ("used", "forged"))
    reserved = [{"resource": "pods", "name": "any", "uid": "any"}]
    (own,) = used["status"]["devices"]
    reason = "and system:serviceaccount:default:ruler is none"

    def attempt(claim: Plain, **status: object) -> str:
        body = {**claim, "status": {**claim.get("status", {}), **status}}
        path = f"{CLAIMS}/{claim['metadata']['name']}/status?dryRun=All"
        return answer(lab, "PUT", path, body, token=ruler)

    # Its rights are heard of by then.
    wait_for(lambda: reason in attempt(used, reservedFor=reserved))
    given_away = {"allocation": used["status"]["allocation"], "reservedFor": reserved}
    for stored, status in (
        (forged, given_away),
        (used, {"reservedFor": [*used["status"]["reservedFor"], *reserved]}),
        (used, {"allocation": None, "reservedFor": None, "devices": None}),
        (used, {"devices": [{**own, "conditions": []}]}),
    ):
        assert reason in attempt(stored, **status)
    assert "done" == attempt(used)


def test_an_allocated_claim_goes_with_its_pods_and_no_sooner(
    release: Release, lab: Lab, tenant: str, ruler: str
) -> None:
    """Of one that is gone nobody counts the devices: others would be sent there, and wait.

    Who may do anything in the cluster may, should it be stuck; who may with claims alone may not.
    """
    claim(lab, "kept", memory="2Gi", cores=20)
    path = f"{CLAIMS}/kept"

    def changed(body: Any, kind: str = MERGE, *, to: str = path) -> str:
        return answer(lab, "PATCH", to, body, token=tenant, kind=kind)

    finalizer = {"metadata": {"finalizers": ["example.com/mine"]}}
    none = {"metadata": {"finalizers": None}}
    assert ["done"] * 2 == [changed(finalizer), changed(none)]  # before it is allocated
    run_with(lab, "kept")
    wait_for(lambda: lab.phases()["kept"] == "Running")
    refused = "an allocated claim keeps its finalizer until"
    removed = [{"op": "remove", "path": "/metadata/finalizers"}]
    assert refused in changed(none)
    assert refused in changed(finalizer)
    assert refused in changed(removed, "application/json-patch+json")
    assert refused in changed(none, to=path.replace("/v1/", "/v1beta1/"))
    finalizers = lab.call("GET", path)["metadata"]["finalizers"]
    assert "done" == changed({"metadata": {"finalizers": [*finalizers, "example.com/mine"]}})
    assert "done" == changed({"metadata": {"finalizers": finalizers}})
    assert "done" == answer(lab, "DELETE", path, None, token=tenant)
    assert refused in changed(none)
    tried = f"{path}?dryRun=All"
    assert "done" == answer(lab, "PATCH", tried, none, token=TOKEN, kind=MERGE)
    wait_for(lambda: refused in answer(lab, "PATCH", tried, none, token=ruler, kind=MERGE))

    agent = token(lab, "hetero-system/hetero-agent", pod=release.agent(NODES[0]))
    rule = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["patch"]}
    with everywhere(lab, AGENTS, "lab-patches", rule):
        wait_for(lambda: refused in answer(lab, "PATCH", tried, none, token=agent, kind=MERGE))

    boss = Tenant(lab, {"Authorization": TOKEN, "Impersonate-User": "lab-boss"})
    assert "403" in boss.ask("PATCH", tried, none)
    user = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "lab-boss"}
    with everywhere(lab, user, "cluster-admin"):
        wait_for(lambda: boss.ask("PATCH", tried, none) == "")

    lab.call("DELETE", f"{PODS}/kept?gracePeriodSeconds=0")
    wait_for(lambda: not lab.call("GET", CLAIMS)["items"])


def test_an_agent_says_what_a_claims_devices_are_and_of_its_own_node_alone(
    release: Release, lab: Lab
) -> None:
    claim(lab, "told", memory="2Gi", cores=20)
    run_with(lab, "told")
    (device_status,) = wait_for(lambda: lab.call("GET", f"{CLAIMS}/told")["status"].get("devices"))

    (grant,) = lab.standing(device_status["pool"])
    assert (given(lab, "told")[0]["shareID"], grant["id"]) == (
        device_status["shareID"],
        device_status["data"]["grant"],
    )
    assert {"Ready": "True", "Healthy": "True"} == {
        one["type"]: one["status"] for one in device_status["conditions"]
    }

    agents = {
        node: token(lab, "hetero-system/hetero-agent", pod=release.agent(node)) for node in NODES
    }
    stored = lab.call("GET", f"{CLAIMS}/told")
    (other,) = set(NODES) - {device_status["pool"]}

    def attempt(by: str, **status: object) -> str:
        about = {name: stored["metadata"][name] for name in ("name", "namespace", "uid")}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": about,
            "status": status,
        }
        path = f"{CLAIMS}/told/status?dryRun=All&fieldManager=tried&force=true"
        return answer(lab, "PATCH", path, body, kind=APPLY, token=agents[by])

    device_status["conditions"][0]["message"] = "still"
    reserved = [{"resource": "pods", "name": "any", "uid": "any"}]
    assert "done" == attempt(device_status["pool"], devices=[device_status])
    foreign = {**device_status, "driver": "other.example.com"}
    assert "resourceclaims/driver" in attempt(device_status["pool"], devices=[foreign])
    assert "resourceclaims/driver" in attempt(other, devices=[device_status])
    assert "resourceclaims/binding" in attempt(device_status["pool"], reservedFor=reserved)
    with more_for_agents(lab):
        sentence = f"the agent of node '{other}' says what"
        wait_for(lambda: sentence in attempt(other, devices=[device_status]))
        not_theirs = "not what they were allocated"
        wait_for(lambda: not_theirs in attempt(device_status["pool"], reservedFor=reserved))

    lab.call("DELETE", f"{PODS}/told?gracePeriodSeconds=0")
    wait_for(lambda: not lab.call("GET", f"{CLAIMS}/told")["status"].get("devices"))


def test_a_pod_that_copies_anothers_words_names_or_claim_gets_no_more_than_it_asks(
    lab: Lab, tenant: str
) -> None:
    """All in one namespace: others' claims and templates cannot even be named."""
    by_claims = {"hetero.io/by-claims": "true"}
    made = lab.add("first", AI_BENCHMARK_2, notes=by_claims)
    (named,) = made["spec"]["resourceClaims"]
    wait_for(lambda: lab.phases()["first"] == "Running")
    ((claim_name, uid),) = [
        (one["metadata"]["name"], one["metadata"]["uid"])
        for one in lab.call("GET", CLAIMS)["items"]
    ]
    (first,) = held(lab)

    def uses(name: str, claim: Mapping[str, str], notes: Mapping[str, str], *command: str) -> Plain:
        spec = program({}, *command)
        spec["containers"][0]["resources"] = {"claims": [{"name": "card"}]} if claim else {}
        spec["resourceClaims"] = [{"name": "card", **claim}] if claim else []
        return {"metadata": {"name": name, "annotations": dict(notes)}, "spec": spec}

    template = {"resourceClaimTemplateName": named["resourceClaimTemplateName"]}
    more = {ASKED: json.dumps({"main": {**AI_BENCHMARK_2, "nvidia.com/gpumem": "9000"}})}
    with pytest.raises(OSError, match="is made for pods whose own words come to it"):
        lab.call("POST", PODS, uses("copy", template, more))
    same = {ASKED: made["metadata"]["annotations"][ASKED]}
    lab.call("POST", PODS, uses("copy", template, same))
    lab.call("POST", PODS, uses("shares", {"resourceClaimName": claim_name}, {}))
    names = {f"cdi.k8s.io/mine_{one}": f"hetero.io/claim=claim-{uid}" for one in ("a", "b")}
    tries = "ls /etc/hetero /etc/ld.so.preload; echo done; sleep 1000"
    lab.call("POST", PODS, uses("names", {}, names, *ENDS, "sh", "-c", tries))
    wait_for(lambda: {"Running"} == {*lab.phases().values()} and len(lab.phases()) == 4)
    wait_for(lambda: "done" in lab.output("names"))

    assert {"done"} == {one for one in lab.output("names").splitlines() if "No such" not in one}
    (copy,) = [one for one in held(lab) if one["id"] != first["id"]]  # one grant for a claim of two
    assert {3000 * MiB} == {
        one["allocation"]["pieces"][0]["takes"]["memory"] for one in (first, copy)
    }
    privileged = {ASKED: json.dumps({"main": {**AI_BENCHMARK_2, "nvidia.com/priority": "0"}})}
    with bound(lab, "edit", "editor"), pytest.raises(OSError, match="may use policy priority-0"):
        as_user(lab, "editor", "POST", f"{PODS}?dryRun=All", uses("goes", template, privileged))

    stored = lab.call("GET", f"{CLAIMS}/{claim_name}")
    (result,) = stored["status"]["allocation"]["devices"]["results"]
    of = {name: result[name] for name in ("driver", "pool", "device", "shareID")}
    ill = [{"type": "Ready", "status": "False", "reason": "Mine", "message": "", **SINCE}]
    reserved = [{"resource": "pods", "name": "any", "uid": "any"}]
    changes = {"driver": {"devices": [{**of, "conditions": ill}]}}
    changes["binding"] = {"reservedFor": reserved}
    for verb, change in changes.items():
        body = {**stored, "status": {**stored["status"], **change}}
        with pytest.raises(OSError, match=f"requires resource=.*resourceclaims/{verb}"):
            lab.call("PUT", f"{CLAIMS}/{claim_name}/status", body, token=tenant)


APPLY = "application/apply-patch+yaml"
#: What a condition must have.
SINCE = {"lastTransitionTime": "2026-01-01T00:00:00Z"}


def held(lab: Lab) -> list[Plain]:
    """Return the grants that stand on any node."""
    return [one for node in NODES for one in lab.standing(node)]


@contextmanager
def more_for_agents(lab: Lab) -> Iterator[None]:
    """Give agents meanwhile what Kubernetes 1.34 would, which does not tell whose a status is."""
    verbs = ["update", "patch", "arbitrary-node:patch", "arbitrary-node:update"]
    resources = ["resourceclaims/binding", "resourceclaims/driver"]
    rule = {"apiGroups": ["resource.k8s.io"], "resources": resources, "verbs": verbs}
    with everywhere(lab, AGENTS, "lab-more", rule):
        yield


#: What each policy is in a claim's configuration.
WORDS = {
    "off": {"policy": "off"},
    "priority-0": {"priority": "high"},
    "on-excess-report": {"onExcess": "report"},
    "on-bypass-report": {"onBypass": "report"},
}

#: What of the claim's grant says so.
GRANTED = {
    "off": ("policy", "off"),
    "priority-0": ("priority", "high"),
    "on-excess-report": ("on_excess", "report"),
    "on-bypass-report": ("on_bypass", "report"),
}


def configured(words: Mapping[str, str]) -> Plain:
    """Return the spec of a claim of a card's part, with configuration."""
    parameters = {"apiVersion": "hetero.io/v1", "kind": "Share", **words}
    capacity = {"requests": {"memory": "2Gi", "cores": "20"}}
    exactly = {"deviceClassName": "nvidia.com-gpu", "capacity": capacity}
    return {
        "devices": {
            "requests": [{"name": "card", "exactly": exactly}],
            "config": [{"opaque": {"driver": "hetero.io", "parameters": parameters}}],
        }
    }


def test_a_configmap_names_no_card_to_a_runtime_beside_a_claim(lab: Lab) -> None:
    """Its variables are those of the claim's CDI spec, which no variable of a container undoes."""
    brought = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_NVSWITCH": "enabled"}
    maps = "/api/v1/namespaces/default/configmaps"
    lab.call("POST", maps, {"metadata": {"name": "all"}, "data": {**brought, "BROUGHT": "yes"}})
    claim(lab, "brings", memory="2Gi", cores=20)
    made = pod_with("brings", ["sh", "-c", "env; sleep 1000"])
    made["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "all"}}]
    lab.call("POST", PODS, made)
    wait_for(lambda: lab.phases()["brings"] == "Running")
    wait_for(lambda: "BROUGHT=yes" in lab.output("brings"))

    variables = dict(line.split("=", 1) for line in lab.output("brings").splitlines())
    (standing,) = held(lab)
    (piece,) = standing["allocation"]["pieces"]
    assert [piece["device"], ""] == [variables[one] for one in brought]
    lab.call("DELETE", f"{maps}/all")


def test_who_asks_by_a_claim_and_by_names_gets_nothing_twice(lab: Lab) -> None:
    """No node has devices of both kinds: such a pod waits, and holds nothing of either."""
    claim(lab, "both", memory="2Gi", cores=20)
    made = pod_with("both", [])
    made["spec"]["containers"][0]["resources"]["limits"] = share()
    lab.call("POST", PODS, made)
    wait_for(lambda: any("nodes are available" in said for said in lab.messages("both")))

    assert "nodeName" not in lab.pods()["both"]["spec"]
    assert [] == [entry for node in lab.racks for entry in lab.standing(node)]


@pytest.mark.parametrize("policy", WORDS)
def test_what_takes_from_neighbours_is_said_in_a_claim_by_who_may_use_it(
    lab: Lab, tenant: str, policy: str
) -> None:
    """Of a template's claims its maker was asked: they are made by Kubernetes' own controller."""
    spec = configured(WORDS[policy])
    template = {"metadata": {"name": "words"}, "spec": {"spec": spec}}
    named_claim = {"metadata": {"name": "words"}, "spec": spec}
    sentence = f"system:serviceaccount:default:tenant may not use policy {policy} in namespace def"
    for path, body in ((TEMPLATES, template), (CLAIMS, named_claim)):
        with pytest.raises(OSError, match=sentence):
            lab.call("POST", path, body, token=tenant)
    with bound(lab, f"hetero-use-{policy}", "system:serviceaccount:default:tenant"):
        lab.call("POST", f"{CLAIMS}?dryRun=All", named_claim, token=tenant)
        lab.call("POST", TEMPLATES, template, token=tenant)
    pod = program({})
    pod["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
    pod["resourceClaims"] = [{"name": "card", "resourceClaimTemplateName": "words"}]
    lab.call("POST", PODS, {"metadata": {"name": "words"}, "spec": pod})
    (grant,) = wait_for(lambda: [one for node in NODES for one in lab.standing(node)])
    lab.call("DELETE", f"{TEMPLATES}/words")

    name, value = GRANTED[policy]
    assert value == grant["allocation"][name]
    # Others may still annotate a claim that its maker was allowed to make.
    (made,) = lab.call("GET", CLAIMS)["items"]
    note = {"metadata": {"annotations": {"hetero.io/resize": "memory=1Gi"}}}
    path = f"{CLAIMS}/{made['metadata']['name']}"
    lab.call("PATCH", path, note, kind="application/merge-patch+json", token=tenant)


def test_configuration_that_no_policy_kept_out_is_refused_when_its_claim_is_prepared(
    release: Release, lab: Lab
) -> None:
    """As where a claim was made before the policy of the API server was there."""
    (bound,) = [
        made
        for made in release.manifests()
        if made["kind"] == "ValidatingAdmissionPolicyBinding"
        and made["metadata"]["name"] == "hetero-claims"
    ]
    bindings = f"/apis/{bound['apiVersion']}/validatingadmissionpolicybindings"
    spec = configured({"policy": "gentle"})

    def refused() -> bool:
        another = {"metadata": {"generateName": "gentle-"}, "spec": spec}
        answered = answer(lab, "POST", f"{CLAIMS}?dryRun=All", another, token=TOKEN)
        assert "done" == answered or "policy is fixed, elastic or off" in answered
        return answered != "done"

    assert refused()
    lab.call("DELETE", f"{bindings}/hetero-claims")
    try:
        wait_for(lambda: not refused())
        lab.call("POST", CLAIMS, {"metadata": {"name": "gentle"}, "spec": spec})
    finally:
        release.apply(bound)
    wait_for(refused)
    run_with(lab, "gentle")
    sentence = "Share: policy 'gentle' is none of fixed, elastic, off"
    wait_for(lambda: any(sentence in said for said in lab.messages("gentle")))
    assert "Pending" == lab.phases()["gentle"]
    assert [] == held(lab)

    lab.call("DELETE", f"{PODS}/gentle?gracePeriodSeconds=0")
    lab.call("DELETE", f"{CLAIMS}/gentle")
    wait_for(lambda: not lab.call("GET", CLAIMS)["items"])


def test_admin_access_is_of_namespaces_that_may_have_it_and_consumes_nothing(
    release: Release, lab: Lab
) -> None:
    """Kubernetes 1.36 looks for room for it, which a card of several has; the ledger does not."""
    card = next(iter(wait_for(lambda: release.devices("n1")).values()))
    selectors = same_card(card["attributes"]["uuid"]["string"])
    claim(lab, "held", memory="143171Mi", cores=100, selectors=selectors)
    run_with(lab, "held")
    wait_for(lambda: [one["label"] for one in lab.standing("n1")] == ["default/held"])
    standing = lab.standing("n1")
    exactly = {
        "deviceClassName": "nvidia.com-gpu",
        "selectors": selectors,
        "adminAccess": True,
        "capacity": {"requests": {"memory": "1Mi", "cores": "0"}},
    }
    spec = {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}
    body = {"metadata": {"name": "watch"}, "spec": spec}
    with pytest.raises(OSError, match=r"kubernetes\.io/admin-access"):
        lab.call("POST", CLAIMS, body)

    label = {"resource.kubernetes.io/admin-access": "true"}
    namespace = "/api/v1/namespaces/default"
    lab.patch(namespace, {"metadata": {"labels": label}})
    lab.call("POST", CLAIMS, body)
    run_with(lab, "watch", "sh", "-c", f"{JOB} --alloc 20GiB; sleep 60")
    wait_for(lambda: given(lab, "watch"))
    claim(lab, "last", memory="600Mi", cores=0, selectors=selectors)  # all that is left
    run_with(lab, "last")
    wait_for(lambda: given(lab, "last"))
    lab.patch(namespace, {"metadata": {"labels": dict.fromkeys(label)}})
    wait_for(lambda: lab.phases()["watch"] == "Running" and lab.output("watch"))

    assert {"allocated": 20 * GiB} == json.loads(lab.output("watch"))
    assert standing == [one for one in lab.standing("n1") if one["label"] == "default/held"]
    assert "default/watch" not in {one["label"] for one in lab.standing("n1")}
    specs = lab.cdi("n1")
    assert [*specs.glob("hetero.io-admin_*")]
    lab.call("DELETE", f"{PODS}/watch?gracePeriodSeconds=0")
    wait_for(lambda: not [*specs.glob("hetero.io-admin_*")])
