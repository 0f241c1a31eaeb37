"""The guides of a cluster, typed from the first line to the last on a real one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from attrs import define

from tests.cluster.claims import JOB
from tests.cluster.conftest import ended
from tests.cluster.lab import IMAGE, Lab, Plain, documents, host_volumes
from tests.cluster.release import Release, values
from tests.docs.blocks import Block, read
from tests.kube.binaries import ROOT
from tests.kube.control_plane import wait_for

pytestmark = pytest.mark.cluster

GUIDES = ROOT / "docs/guides"
#: What a reader writes in place of a page's words. The namespace is there by then: the page has it
#: labelled before, where Pod Security is enforced.
WORDS = {
    # The lab has one image
    "image=REGISTRY/hetero:0.1.0": f"image={IMAGE} --set kubeScheduler.image={IMAGE}",
    "REGISTRY/hetero:NEW": IMAGE,
    " --create-namespace": "",
    "NODE": "n1",
}
#: Objects in no namespace, of which none is left in the end.
KINDS = (
    "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingadmissionpolicies,"
    "validatingadmissionpolicybindings,deviceclasses"
)


def block(page: str, part: str) -> Block:
    """Return the one block of a page that has a text."""
    (only_block,) = (one for one in read(GUIDES / f"{page}.md") if part in one.text)
    return only_block


@define
class Reader:
    """Somebody with kubectl, Helm and hetero in a clone, who types what the guides say."""

    lab: Lab
    home: Path  # has `bin`, and the clone's `deploy`

    def types(self, text: str, *, but: str = "", node: str = "") -> str:
        """Return what commands print, all but lines with a word, typed on a node if one is named.

        Fails where one exits with anything but 0.
        """
        for word, written in WORDS.items():
            text = text.replace(word, written)
        lines = text.replace("\\\n", " ").splitlines()
        script = "\n".join(line for line in lines if not but or but not in line)
        if node:
            path = f"PATH={sys.prefix}/bin:{os.environ['PATH']}"
            return self.lab.run_on(node, "env", path, "bash", "-ec", script)
        path = f"{self.home}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=self.home,
            env={"PATH": path, "HOME": str(self.home), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert 0 == done.returncode, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def removes(self) -> None:
        """Remove hetero as the page says, and expect that nothing of it is left."""
        self.types(block("kubernetes", "helm uninstall").text)
        left = self.types(f"kubectl get {KINDS} -o name").split()
        assert [] == [one for one in left if "hetero" in one or "nvidia.com" in one]


@pytest.fixture
def reader(late_lab: Lab, tmp_path: Path) -> Iterator[Reader]:
    """A reader on a cluster without hetero."""
    pytest.importorskip("helm_sdkpy", reason="needs Helm: make helm")
    lab, programs = late_lab, tmp_path / "bin"
    own = values(lab, "classic")
    for name in ("allocation", "settings", "image"):
        del own[name]
    own["agent"] = {**own["agent"], "driver": "files", "nodeSelector": {}}
    (tmp_path / "values").write_text(json.dumps(own))
    python = f"LAB_VALUES={tmp_path}/values PYTHONPATH={ROOT} {sys.executable} -m"
    commands = {
        "kubectl": f"{lab.binaries}/kubectl",
        "helm": python + " tests.cluster.helm",
        "hetero": python + " hetero.cli",
    }
    programs.mkdir()
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    for name, command in commands.items():
        network = f"nsenter --net=/run/netns/{lab.group('cp')} --"
        text = f'#!/bin/sh\nKUBECONFIG={lab._kubeconfig} exec {network} env {command} "$@"\n'
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    made = Reader(lab, tmp_path)
    made.types(block("install-by-node", "pod-security").text)
    yield made
    lab.calm()


def runs_a_job(plain: Plain, *arguments: str) -> Plain:
    """Return a page's pod that runs a job on its cards: there is no torch, and no image."""
    (container,) = plain["spec"]["containers"]
    volumes, mounts = host_volumes()
    container |= {"image": IMAGE, "imagePullPolicy": "Never", "volumeMounts": mounts}
    container["command"] = [str(JOB), *arguments]
    plain["spec"] |= {"volumes": volumes, "dnsPolicy": "Default"}
    return plain


def memory_of(lab: Lab, pod: str) -> Any:
    """Return what a pod's job printed of the memory that it tried to allocate."""
    (document,) = map(json.loads, documents(lab.output(pod)))
    return document


def may_use(lab: Lab, policy: str, *, user: str, namespace: str) -> bool:
    """Return whether a user has the right to a policy, which kubectl auth can-i cannot ask."""
    right = {"verb": "use", "group": "hetero.io", "resource": "policies", "name": policy}
    spec = {"user": user, "resourceAttributes": {**right, "namespace": namespace}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(lab.call("POST", path, {"spec": spec})["status"]["allowed"])


def test_a_reader_installs_hetero_operates_it_and_removes_it(reader: Reader) -> None:
    lab, release = reader.lab, Release(reader.lab)
    installed = reader.types(block("kubernetes", "docker build").text, but="docker")
    assert "deployed" in installed
    wait_for(release.works, seconds=120)
    seen = reader.types(block("install-by-node", "get pods").text)
    assert all(node in seen for node in lab.racks)

    share = runs_a_job(
        yaml.safe_load(block("kubernetes", "  name: share").text), "--alloc", "3001MiB"
    )
    lab.call("POST", "/api/v1/namespaces/default/pods", runs_a_job(share, "--alloc", "3001MiB"))
    ended(lab, "share")
    assert "CUDA_ERROR_OUT_OF_MEMORY" == memory_of(lab, "share")["error"]
    seen = reader.types(block("kubernetes", "kubectl describe pod share").text)
    assert "hetero.io/allocation" in seen
    assert all(node in seen for node in lab.racks)

    reader.types("kubectl create namespace team")
    reader.types(block("kubernetes", "create rolebinding").text)
    assert may_use(lab, "off", user="system:serviceaccount:team:trainer", namespace="team")
    reader.types("kubectl delete namespace team")

    diagnosed = reader.types(block("operating", "hetero doctor       ").text, node="n1")
    assert "limiter" in diagnosed
    upgraded = reader.types(block("operating", "rollout status").text)
    assert "successfully rolled out" in upgraded
    (reader.home / "settings.toml").write_text(block("cluster-settings", "node-placement").text)
    reader.types(block("cluster-settings", "--set-file settings").text)
    reader.types("kubectl -n hetero-system rollout status daemonset/hetero-agent")
    wait_for(release.works, seconds=120)
    cordoned = reader.types(block("operating", "as root").text, node="n1")
    assert "cordoned (loud fan)" in cordoned
    assert "cordoned" in reader.types(block("operating", "hetero cordon NODE").text)
    reader.types("kubectl drain NODE --ignore-daemonsets")
    reader.types("kubectl uncordon NODE")
    reader.types("kubectl delete pods --all")
    reader.removes()


def test_a_reader_installs_claims_alone_and_removes_them(reader: Reader) -> None:
    lab, release = reader.lab, Release(reader.lab, allocation="dra")
    reader.types(block("install-by-node", "--set allocation=dra").text)
    wait_for(release.works, seconds=120)

    template, pod = yaml.safe_load_all(block("claims", "kind: ResourceClaimTemplate").text)
    templates = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
    lab.call("POST", templates, template)
    lab.call("POST", "/api/v1/namespaces/default/pods", runs_a_job(pod, "--alloc", "3001MiB"))
    (reader.home / "large.yaml").write_text(json.dumps(template))
    assert "memory 3000Mi" in reader.types("hetero explain claim large.yaml")
    ended(lab, "share")
    assert "CUDA_ERROR_OUT_OF_MEMORY" == memory_of(lab, "share")["error"]
    assert "H200" in reader.types("hetero inventory --cluster")
    assert "cordoned" in reader.types(block("operating", "hetero cordon NODE").text)
    reader.types("kubectl drain NODE --ignore-daemonsets")
    reader.types("kubectl uncordon NODE")
    reader.types("kubectl delete pods,resourceclaimtemplates --all")
    reader.removes()
