"""What lets the chart's pods run where a cluster demands leave for each kind of pod."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.control_plane import TOKEN, ControlPlane, control_plane, wait_for
from tests.kube.test_chart import PODS, chart, of

SPACE = "hetero-system"
#: May make pods, and use no policy by itself, as controllers.
MAKER = "maker"
PATHS = {
    "PodSecurityPolicy": "/apis/policy/v1beta1/podsecuritypolicies",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SPACE}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SPACE}/rolebindings",
}


def pods(**values: Any) -> dict[str, dict[str, Any]]:
    """Return a pod of each template of the chart, by the name of what makes it."""
    made: dict[str, dict[str, Any]] = {}
    for manifest in chart(kubernetes="1.20", **values):
        if manifest["kind"] in PODS:
            spec = manifest["spec"]
            template = spec.get("jobTemplate", {}).get("spec", spec)["template"]
            name = manifest["metadata"]["name"]
            metadata = {**template.get("metadata", {}), "name": f"{name}-{len(made)}"}
            made[f"{manifest['kind']} {name}"] = {"metadata": metadata, "spec": template["spec"]}
    return made


def test_policies_are_made_where_a_cluster_may_demand_them() -> None:
    def kinds(**values: Any) -> set[str]:
        return {manifest["kind"] for manifest in chart(**values)}

    assert "PodSecurityPolicy" in kinds(kubernetes="1.24", podSecurityPolicy=True)
    assert "PodSecurityPolicy" not in kinds(kubernetes="1.25", podSecurityPolicy=True)
    assert not {"PodSecurityPolicy", "SecurityContextConstraints"} & kinds(kubernetes="1.20")


def test_openshift_lets_the_agent_be_what_its_values_say() -> None:
    made = of("SecurityContextConstraints", "hetero-agent", openshift=True)
    other = of("SecurityContextConstraints", "hetero", openshift=True)
    whole = of(
        "SecurityContextConstraints", "hetero-agent", openshift=True, agent={"privileged": True}
    )

    assert [f"system:serviceaccount:{SPACE}:hetero-agent"] == made["users"]
    assert ["KILL", "SYS_PTRACE", "DAC_READ_SEARCH"] == made["allowedCapabilities"]
    assert (False, True) == (made["allowPrivilegedContainer"], whole["allowPrivilegedContainer"])
    assert (True, False) == (made["allowHostPID"], other["allowHostPID"])
    accounts = {
        f"system:serviceaccount:{SPACE}:{pod['spec']['serviceAccountName']}"
        for pod in pods().values()
    }
    assert accounts == {*made["users"], *other["users"]}


@pytest.fixture(scope="module")
def strict_plane(
    tmp_path_factory: pytest.TempPathFactory, kubernetes: Path
) -> Iterator[ControlPlane]:
    """A control plane that admits no pod without a policy for it."""
    folder = tmp_path_factory.mktemp("strict")
    more = "--enable-admission-plugins=PodSecurityPolicy"
    with control_plane(folder, binaries=kubernetes, more=(more,)) as plane:
        if plane.minor >= 25:
            pytest.skip("Kubernetes 1.25 has no PodSecurityPolicy")
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
        rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
        plane.call("POST", PATHS["Role"], {"metadata": {"name": MAKER}, "rules": [rule]})
        group = "rbac.authorization.k8s.io"
        binding = {
            "metadata": {"name": MAKER},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": MAKER},
            "subjects": [{"apiGroup": group, "kind": "User", "name": MAKER}],
        }
        plane.call("POST", PATHS["RoleBinding"], binding)
        yield plane


def attempt(plane: ControlPlane, pod: dict[str, Any]) -> str:
    """Return why a controller may not make a pod, "" if it may: nothing is made."""
    request = urllib.request.Request(
        f"https://127.0.0.1:{plane.port}/api/v1/namespaces/{SPACE}/pods?dryRun=All",
        data=json.dumps(pod).encode(),
        headers={
            "Authorization": f"Bearer {TOKEN}",
            "Impersonate-User": MAKER,
            "Content-Type": "application/json",
        },
    )
    tls = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, context=tls, timeout=10):
            return ""
    except urllib.error.HTTPError as error:
        return str(json.load(error)["message"])


@pytest.mark.cluster
def test_with_its_policies_every_pod_of_the_chart_is_admitted(strict_plane: ControlPlane) -> None:
    for name, pod in pods().items():
        refusal = attempt(strict_plane, pod)
        assert "PodSecurityPolicy: no providers available" in refusal, (name, refusal)

    for manifest in chart(kubernetes="1.20", podSecurityPolicy=True):
        if manifest["kind"] == "PodSecurityPolicy" or manifest["metadata"]["name"].endswith(
            "-security"
        ):
            strict_plane.call("POST", PATHS[manifest["kind"]], manifest)
    wait_for(lambda: not any(attempt(strict_plane, pod) for pod in pods().values()), seconds=20)
    worse = pods()["Deployment hetero-webhook"]
    worse["spec"]["hostPID"] = True
    assert "Host PID is not allowed" in attempt(strict_plane, worse)
