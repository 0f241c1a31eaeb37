"""What tests of the Kubernetes side share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hetero.kube.api.signing import SigningKey
from hetero.model import Device, Enforcement, Fractional
from hetero.model.units import GiB
from hetero.plugin.vendor import Model, Vendor
from tests.kube.binaries import supervisor
from tests.kube.control_plane import Authority, ControlPlane, control_plane, free_port, wait_for

ROOT = Path(__file__).parents[2]
CARDS = Vendor(
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


@pytest.fixture
def scheduled(plane: ControlPlane) -> ControlPlane:
    """A control plane with kube-scheduler and our extender, which call each other by mutual TLS."""
    authority, port = Authority(plane.folder), free_port()
    server, caller = authority.issue("extender"), authority.issue("kube-scheduler")
    key = plane.folder / "signing-key"
    key.write_bytes(SigningKey.new().text())
    plane.start(
        "extender", sys.executable, "-m", "hetero.cli", "scheduler",
        "--host", "127.0.0.1", "--port", str(port),
        "--lease", "kube-system/hetero-scheduler", "--supervisor", str(plane.folder / "socket"),
        "--cert", str(server[0]), "--key", str(server[1]), "--client-ca", str(authority.path),
        env={
            "KUBECONFIG": str(plane.kubeconfig),
            "HETERO_KEY_FILE": str(key),
            "PATH": os.environ["PATH"],
        },
    )  # fmt: skip
    config = plane.folder / "scheduler.yaml"
    version = "v1" if plane.minor >= 25 else "v1beta2" if plane.minor >= 22 else "v1beta1"
    config.write_text(
        json.dumps(
            {
                "apiVersion": f"kubescheduler.config.k8s.io/{version}",
                "kind": "KubeSchedulerConfiguration",
                "clientConnection": {"kubeconfig": str(plane.kubeconfig)},
                "leaderElection": {"leaderElect": False},
                "podInitialBackoffSeconds": 1,
                "podMaxBackoffSeconds": 2,
                "profiles": [{"schedulerName": "hetero-scheduler"}],
                "extenders": [extender_settings(f"https://127.0.0.1:{port}", authority, caller)],
            }
        )
    )
    plane.start(
        "scheduler", str(supervisor()), str(plane.folder / "socket"),
        str(plane.binaries / "kube-scheduler"), f"--config={config}",
        "--bind-address=127.0.0.1", f"--secure-port={free_port()}", "--v=3",
        *(["--port=0"] if plane.minor < 24 else []),
        f"--cert-dir={plane.folder / 'scheduler'}",
    )  # fmt: skip
    wait_for(lambda: "serving on" in plane.log("extender"))
    return plane
