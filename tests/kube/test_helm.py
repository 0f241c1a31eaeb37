"""The chart in the hands of Helm itself, as a library, on a real API server."""

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.kube.binaries import ROOT
from tests.kube.control_plane import ControlPlane, wait_for
from tests.kube.test_chart import rendered
from tests.programs import completed

pytestmark = pytest.mark.cluster

CHART = str(ROOT / "deploy/chart")
SPACE = "hetero-system"
#: What the chart makes, and Helm's own notes, by where the API has them.
KINDS = (
    f"/api/v1/namespaces/{SPACE}/configmaps",
    f"/api/v1/namespaces/{SPACE}/secrets",
    f"/api/v1/namespaces/{SPACE}/services",
    f"/apis/apps/v1/namespaces/{SPACE}/daemonsets",
    f"/apis/apps/v1/namespaces/{SPACE}/deployments",
    f"/apis/batch/v1/namespaces/{SPACE}/jobs",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
)


#: Of how grave what it says about a chart may be, this is advice.
ADVICE = 1
NOWHERE = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: none, user: {}}]
"""


@pytest.fixture
def helm() -> Any:
    """Helm 4 as a library, which `make setup` leaves out: it is as large as all the rest."""
    return pytest.importorskip("helm_sdkpy", reason="needs Helm: make helm")


def done(asked: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    return asyncio.run(asked)


def configuration(helm: Any, kubeconfig: Path) -> Any:
    return helm.Configuration(namespace=SPACE, kubeconfig=str(kubeconfig))


def parts(text: str) -> set[str]:
    """Return the objects of a manifest, without the comment by which Helm says where they were."""
    every = ("\n".join(line for line in one.split("\n") if not line.startswith("# Source:"))
             for one in f"\n{text}".split("\n---\n"))  # fmt: skip
    return {one.strip("\n") for one in every} - {""}


def kubernetes_version(plane: ControlPlane) -> str:
    """Return the version that Helm, too, is told by the API server."""
    text: str = plane.call("GET", "/version")["gitVersion"]
    return text


def made(plane: ControlPlane) -> dict[str, list[str]]:
    listed = {kind: plane.call("GET", kind)["items"] for kind in KINDS}
    return {
        kind: sorted(
            one["metadata"]["name"] for one in items if "hetero" in one["metadata"]["name"]
        )
        for kind, items in listed.items()
    }


def test_helm_has_nothing_against_the_chart(helm: Any, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(NOWHERE)
    linted = done(helm.Lint(configuration(helm, tmp_path / "config")).run(CHART))

    assert (1, None) == (linted["TotalChartsLinted"], linted["Errors"])
    assert [] == [said for said in linted["Messages"] or () if said["Severity"] > ADVICE]


def test_helm_installs_byte_by_byte_what_we_render_upgrades_it_and_leaves_nothing(
    helm: Any, plane: ControlPlane
) -> None:
    config, before = configuration(helm, plane.kubeconfig), made(plane)
    installed = done(helm.Install(config).run("hetero", CHART, create_namespace=True, wait=False))
    manifest_text = rendered(kubernetes=kubernetes_version(plane))
    assert parts(manifest_text) == parts(installed["manifest"])

    settings = 'device-placement = "spread"\n[nodes."*".cards]\nmax_sharers = 4\n'
    values = {
        "image": "example.com/hetero:2",
        "imageRegistry": "mirror:5000/a",
        "settings": settings,
        "replicas": 3,
        "podSecurityPolicy": True,
        "scheduler": {"extraArgs": ["--host=0.0.0.0"]},
        "webhook": {"serviceLabels": {"team": "ai"}, "serviceAnnotations": {"note": "x"}},
        "agent": {"driverRoot": "/run/nvidia/driver", "selinuxType": "container_file_t"},
    }
    upgraded = done(helm.Upgrade(config).run("hetero", CHART, values=values, wait=False))
    manifest_text = rendered(kubernetes=kubernetes_version(plane), **values)
    assert parts(manifest_text) == parts(upgraded["manifest"])
    (job,) = made(plane)[f"/apis/batch/v1/namespaces/{SPACE}/jobs"]
    assert job in manifest_text

    done(helm.Uninstall(config).run("hetero", wait=False))
    assert before == made(plane)


def test_wrong_values_are_refused_by_name_and_change_nothing(
    helm: Any, plane: ControlPlane
) -> None:
    config, before = configuration(helm, plane.kubeconfig), made(plane)
    wrong = {"replicas": 0, "agent": {"driver": "magic"}, "shedulerName": "mine"}
    with pytest.raises(helm.InstallError) as refused:
        done(helm.Install(config).run("hetero", CHART, values=wrong, wait=False))

    for key in ("'/replicas'", "'/agent/driver'", "'shedulerName'"):
        assert key in str(refused.value)
    assert before == made(plane)


def test_a_key_alone_is_all_that_is_made_where_another_makes_certificates(
    plane: ControlPlane,
) -> None:
    plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    command = [sys.executable, "-m", "hetero.cli", "certificates", f"--namespace={SPACE}"]
    environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig)}
    completed([*command, "--key-alone"], env=environment, check=True)
    names_by_path = made(plane)

    assert ["hetero-key"] == names_by_path[f"/api/v1/namespaces/{SPACE}/secrets"]
    assert ["hetero-keys"] == names_by_path[f"/api/v1/namespaces/{SPACE}/configmaps"]


#: Kinds of other products that the chart makes objects of: group, kind, plural and scope.
FOREIGN_KINDS = (
    ("cert-manager.io", "Issuer", "issuers", "Namespaced"),
    ("cert-manager.io", "Certificate", "certificates", "Namespaced"),
    (
        "security.openshift.io",
        "SecurityContextConstraints",
        "securitycontextconstraints",
        "Cluster",
    ),
)


def test_helm_makes_the_objects_of_cert_manager_and_of_openshift(
    helm: Any, plane: ControlPlane
) -> None:
    """Their names alone are known here: nobody reads the objects."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    for group, kind, plural, scope in FOREIGN_KINDS:
        names = {"kind": kind, "plural": plural, "singular": kind.lower()}
        spec = {"group": group, "names": names, "scope": scope, "versions": [version]}
        plane.call("POST", crds, {"metadata": {"name": f"{plural}.{group}"}, "spec": spec})
    wait_for(
        lambda: all(
            any(one["type"] == "Established" for one in crd.get("status", {}).get("conditions", ()))
            for crd in plane.call("GET", crds)["items"]
        )
    )

    values = {"certificates": {"by": "cert-manager"}, "openshift": True}
    config = configuration(helm, plane.kubeconfig)
    installed = done(
        helm.Install(config).run("hetero", CHART, values=values, create_namespace=True, wait=False)
    )

    manifest_text = rendered(kubernetes=kubernetes_version(plane), **values)
    assert parts(manifest_text) == parts(installed["manifest"])
    listed = plane.call("GET", f"/apis/cert-manager.io/v1/namespaces/{SPACE}/certificates")
    certificates = {one["metadata"]["name"] for one in listed["items"]}
    assert {
        "hetero-ca",
        *(f"hetero-{name}-tls" for name in ("webhook", "scheduler", "caller")),
    } == (certificates)
