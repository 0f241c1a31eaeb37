"""What tests of the Kubernetes side share."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hetero.kube.what_if.snapshot import MIX
from hetero.kube.words.signing import SigningKey
from hetero.model import Device, Enforcement, Fractional
from hetero.model.units import GiB
from hetero.plugin.vendor import Model, Vendor
from tests.kube.binaries import supervisor
from tests.kube.control_plane import Authority, ControlPlane, control_plane, free_port, wait_for

ROOT = Path(__file__).parents[2]
CARDS = Vendor(
    api=2,
    name="nvidia",
    title="NVIDIA",
    models=(Model(match="*", granularity=Fractional(), slots=10),),
)


def card(uuid: str, *, memory: int = 16 * GiB, model: str = "V100", **rest: Any) -> Device:
    """Return a card of the vendor whose words most tests speak."""
    return CARDS.device(
        uuid=uuid, model=model, index=0, memory=memory, enforcement=Enforcement.PRELOAD, **rest
    )


def extender_settings(url: str, authority: Authority, caller: tuple[Path, Path]) -> dict[str, Any]:
    """Return the extender's part of a KubeSchedulerConfiguration."""
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": 1,
        "enableHTTPS": True,
        "nodeCacheCapable": True,
        "httpTimeout": "10s",
        "tlsConfig": {
            "caFile": str(authority.path),
            "certFile": str(caller[0]),
            "keyFile": str(caller[1]),
        },
        "managedResources": [
            {"name": name, "ignoredByScheduler": True}
            for name in (
                "nvidia.com/gpu",
                "nvidia.com/gpumem",
                "nvidia.com/gpumem-percentage",
                "nvidia.com/gpucores",
                "nvidia.com/priority",
            )
        ],
    }


@pytest.fixture
def plane(tmp_path: Path, kubernetes: Path) -> Iterator[ControlPlane]:
    with control_plane(tmp_path, binaries=kubernetes) as made:
        yield made


@pytest.fixture(scope="module")
def with_settings(
    tmp_path_factory: pytest.TempPathFactory, kubernetes: Path
) -> Iterator[ControlPlane]:
    """A control plane, with what kube-scheduler and our extender are started by."""
    with control_plane(tmp_path_factory.mktemp("plane"), binaries=kubernetes) as plane:
        authority, port = Authority(plane.folder), free_port()
        caller = authority.issue("kube-scheduler")
        authority.issue("extender")
        (plane.folder / "port").write_text(str(port))
        (plane.folder / "signing-key").write_bytes(SigningKey.new().text())
        version = "v1" if plane.minor >= 25 else "v1beta2" if plane.minor >= 22 else "v1beta1"
        extenders = [extender_settings(f"https://127.0.0.1:{port}", authority, caller)]
        config = {
            "apiVersion": f"kubescheduler.config.k8s.io/{version}",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
            "leaderElection": {"leaderElect": False},
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 2,
            "profiles": [{"schedulerName": "hetero-scheduler"}],
            "extenders": extenders,
        }
        (plane.folder / "scheduler.yaml").write_text(json.dumps(config))
        yield plane


@pytest.fixture
def without_kubelets(with_settings: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane with kube-scheduler and our extender, which call each other by mutual TLS.

    Both are new for each test, and nothing is there of the tests before.
    """
    plane = with_settings
    folder = plane.folder
    plane.start(
        "extender", sys.executable, "-m", "hetero.cli", "scheduler",
        "--host", "127.0.0.1", "--port", (folder / "port").read_text(),
        "--lease", "kube-system/hetero-scheduler", "--supervisor", str(folder / "socket"),
        "--cert", str(folder / "extender.crt"), "--key", str(folder / "extender.key"),
        "--client-ca", str(folder / "ca.crt"),
        env={
            "KUBECONFIG": str(plane.kubeconfig),
            "HETERO_KEY_FILE": str(folder / "signing-key"),
            "PATH": os.environ["PATH"],
        },
    )  # fmt: skip
    plane.start(
        "scheduler", str(supervisor()), str(folder / "socket"),
        str(plane.binaries / "kube-scheduler"), f"--config={folder / 'scheduler.yaml'}",
        "--bind-address=127.0.0.1", f"--secure-port={free_port()}", "--v=3",
        *(["--port=0"] if plane.minor < 24 else []),
        f"--cert-dir={folder / 'scheduler'}",
    )  # fmt: skip
    wait_for(lambda: "serving on" in plane.log("extender"))
    yield plane
    for part in ("scheduler", "extender"):
        plane.stop(part)
    clear(plane)


@pytest.fixture
def scheduled(without_kubelets: ControlPlane) -> Iterator[ControlPlane]:
    """The same, with what a kubelet says first of each pod that is bound."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.1):
            with suppress(OSError):  # a pod is gone, or the API server does not answer
                for pod in without_kubelets.pods():
                    if "nodeName" in pod["spec"] and "startTime" not in pod["status"]:
                        take_up(without_kubelets, pod["metadata"]["name"])

    thread = threading.Thread(target=run)
    thread.start()
    yield without_kubelets
    over.set()
    thread.join()


def take_up(plane: ControlPlane, name: str) -> None:
    """Say of a pod what its kubelet says first."""
    path = f"/api/v1/namespaces/default/pods/{name}/status"
    began = {"status": {"startTime": "2026-11-27T00:00:00Z"}}
    plane.call("PATCH", path, began, kind="application/merge-patch+json")


def clear(plane: ControlPlane) -> None:
    """Remove all that tests made, and what a scheduler keeps for the next one."""
    policy = "policy/v1" if plane.minor >= 21 else "policy/v1beta1"
    every = (
        "/api/v1/namespaces/default/pods?gracePeriodSeconds=0",
        "/api/v1/namespaces/default/events",
        f"/apis/{policy}/namespaces/default/poddisruptionbudgets",
        "/api/v1/nodes",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    )
    for path in every:
        plane.call("DELETE", path)
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    mixes = "/api/v1/namespaces/kube-system/configmaps"
    for path, kept in ((classes, None), (leases, "hetero-scheduler"), (mixes, MIX)):
        for name in [one["metadata"]["name"] for one in plane.call("GET", path)["items"]]:
            if name == kept or not (kept or name.startswith("system-")):
                plane.call("DELETE", f"{path}/{name}")
    assert [] == plane.pods()
