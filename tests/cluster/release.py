"""Installs hetero on the lab from its rendered manifests, as somebody without Helm does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from attrs import field, frozen

from hetero.kube.words.annotations import INVENTORY
from tests.cluster.lab import IMAGE, PCI, RACK, UNWATCHED, Lab, Plain, host_volumes, processes
from tests.kube.binaries import ROOT, supervisor
from tests.kube.control_plane import wait_for

sys.path.insert(0, str(ROOT / "deploy"))
import render  # type: ignore[import-not-found]

NAMESPACE = "hetero-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DAEMONS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/hetero-agent"
METRICS = 9397
#: On nodes that run the agent.
LABEL = "lab/agent"


def values(lab: Lab, allocation: str) -> Plain:
    """Return the chart's values for this cluster: its image is empty."""
    volumes, mounts = host_volumes()
    paths = {"shm": "/dev/shm", "pci": PCI}
    return {
        "allocation": allocation,
        # Elsewhere a vendor's runtime is no node's default one, but a runtime class.
        "settings": "hide-unasked = true" if lab.name == "kube" else "",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "kubeScheduler": {
            "image": IMAGE,
            "command": str(lab.binaries / "kube-scheduler"),
            "supervisor": str(supervisor()),
        },
        "agent": {
            "nodeSelector": {LABEL: "on"},
            "env": [{"name": "HETERO_RACK", "value": RACK}],
            "volumes": [{"name": one, "hostPath": {"path": at}} for one, at in paths.items()],
            "volumeMounts": [
                {"name": "shm", "mountPath": "/dev/shm"},
                {"name": "pci", "mountPath": "/host/sys/bus/pci/devices"},
            ],
        },
        "command": [sys.executable, "-m", "hetero.cli"],
        "podVolumes": [*volumes, {"name": "kubernetes", "hostPath": {"path": str(lab.binaries)}}],
        "podVolumeMounts": [
            *mounts,
            {"name": "kubernetes", "mountPath": str(lab.binaries), "readOnly": True},
        ],
    }


@frozen(eq=False)
class Release:
    """Hetero on a cluster; `allocation` is the chart's value, `more` are others of its values."""

    lab: Lab
    allocation: str = "classic"
    more: Mapping[str, Any] = field(factory=dict)

    def install(self) -> None:
        """Apply the manifests and wait until everything they make is there and works."""
        # Kubernetes 1.20 does not write namespaces' names on them, which the webhook would see.
        ignored = {"labels": {"hetero.io/webhook": "ignore"}}
        for name in (NAMESPACE, UNWATCHED):
            body = {"metadata": {"name": name, **ignored}}
            self.lab.call("POST", "/api/v1/namespaces", body)
        self.lab.patch("/api/v1/namespaces/kube-system", {"metadata": ignored})
        for node in self.lab.racks:
            self.start_agent(node)
        for made in self.manifests():
            self.apply(made)
        wait_for(self.works, seconds=120)

    def replace_by(self, other: Release) -> None:
        """Do what `helm upgrade` does with other values, on all nodes at once."""
        at_once = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}}
        self.lab.patch(DAEMONS, {"spec": {"updateStrategy": at_once}})
        wanted = other.manifests()
        for made in wanted:
            other.apply(made)
        names = {_path(made) for made in wanted}
        for made in self.manifests():
            if _path(made) not in names:
                query = "?propagationPolicy=Background"
                with suppress(OSError):  # a Job goes by itself
                    self.lab.call("DELETE", f"{_path(made)}{query}")

    def uninstall(self) -> None:
        """Do what `kubectl delete` does with the manifests, and wait until its pods have ended.

        The API may have a pod for a minute more (1.20).
        """
        apps = ("hetero-agent", "hetero-scheduler", "hetero-webhook")
        pods = [pod for app in apps for pod in self.pods(app).values()]
        started = [
            one
            for pod in pods
            for one in pod["status"]["containerStatuses"]
            if one.get("containerID")
        ]
        for made in reversed(self.manifests()):
            with suppress(OSError):  # a Job goes by itself
                self.lab.call("DELETE", f"{_path(made)}?propagationPolicy=Background")
        wait_for(lambda: not any(map(self.pods, apps)))
        wait_for(lambda: not any(map(processes, started)), seconds=150)

    def manifests(self) -> list[Plain]:
        """Return the chart's manifests for this cluster."""
        version = self.lab.call("GET", "/version")["gitVersion"]
        text = render.render(
            namespace=NAMESPACE,
            values={**values(self.lab, self.allocation), **self.more},
            kubernetes=version,
        )
        return list(yaml.safe_load_all(text))

    def renew_certificates(self) -> None:
        """Run the job anew that makes them."""
        (job,) = [made for made in self.manifests() if made["kind"] == "Job"]
        jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
        path = f"{jobs}/{job['metadata']['name']}"
        self.lab.call("DELETE", f"{path}?propagationPolicy=Background")
        self.lab.call("POST", jobs, job)
        wait_for(lambda: self.lab.call("GET", path)["status"].get("succeeded"))

    def apply(self, made: Plain) -> None:
        """Do what `kubectl apply` does."""
        self.lab.call(
            "PATCH",
            f"{_path(made)}?fieldManager=lab&force=true",
            made,
            kind="application/apply-patch+yaml",
        )

    def works(self) -> bool:
        """Whether every agent gives out its cards, somebody leads, and pods are admitted.

        With claims alone the cluster's own scheduler does.
        """
        if self.allocation == "dra":
            nodes = self.lab.racks
            given = all(self.devices(one) and not self.lab.allocatable(one) for one in nodes)
            return given and self.admits()
        return (
            all(self.serves(node) for node in self.lab.racks)
            and self.leader() is not None
            and self.admits()
        )

    def admits(self) -> bool:
        """Whether the webhook answers: a pod is completed, and goes no further."""
        path = "/api/v1/namespaces/default/pods?dryRun=All"
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
        container = {"name": "main", "image": IMAGE, "resources": {"limits": limits}}
        pod = {"metadata": {"name": "probe"}, "spec": {"containers": [container]}}
        with suppress(OSError):
            spec = self.lab.call("POST", path, pod)["spec"]
            if self.allocation == "dra":
                return "resourceClaims" in spec
            return bool(spec["schedulerName"] == "hetero-scheduler")
        return False

    def serves(self, node: str) -> bool:
        """Whether a node and its agent are ready, and its devices are offered and published."""
        with suppress(OSError, StopIteration):
            notes = self.lab.call("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
            ready = all(one["ready"] for one in self.agent(node)["status"]["containerStatuses"])
            offered = self.lab.ready(node) and bool(self.lab.allocatable(node))
            return ready and offered and INVENTORY in notes
        return False

    def devices(self, node: str) -> dict[str, Plain]:
        """Return the devices of a node that claims may get, by name."""
        query = f"?fieldSelector=spec.nodeName={node}"
        with suppress(OSError):
            items = self.lab.call("GET", f"/apis/resource.k8s.io/v1/resourceslices{query}")["items"]
            return {one["name"]: one for item in items for one in item["spec"].get("devices", ())}
        return {}

    def gives_by_claims(self, *nodes: str, now: bool) -> None:
        """Have nodes' devices given by claims, or in the classic way."""
        label = {"hetero.io/by-claims": "true" if now else None}
        for node in nodes:
            self.lab.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": label}})
        wait_for(
            lambda: all(
                bool(self.devices(node)) == now and bool(self.lab.allocatable(node)) != now
                for node in nodes
            )
        )

    # --- its pods -----------------------------------------------------------------------------

    def pods(self, app: str) -> dict[str, Plain]:
        """Return the pods of a workload that run, by name."""
        query = f"?labelSelector=app={app}&fieldSelector=status.phase=Running"
        items = self.lab.call("GET", PODS + query)["items"]
        return {p["metadata"]["name"]: p for p in items if "deletionTimestamp" not in p["metadata"]}

    def agent(self, node: str) -> Plain:
        """Return the pod of a node's agent."""
        agents = self.pods("hetero-agent").values()
        return next(pod for pod in agents if pod["spec"]["nodeName"] == node)

    def leader(self) -> Plain | None:
        """Return the scheduler's pod that leads: the one that renews the Lease, and knows it."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/hetero-scheduler"
        with suppress(OSError):
            held = self.lab.call("GET", path)["spec"].get("holderIdentity", "")  # none: given up
            holder, _, _ = held.rpartition("_")
            log = self.lab.output(holder, "container=extender", namespace=NAMESPACE)
            return self.pods("hetero-scheduler").get(holder) if "leading" in log else None
        return None

    def leading(self) -> Plain:
        """Return the scheduler's pod that leads, once one does."""
        holder: Plain = wait_for(self.leader)
        return holder

    def agent_log(self, node: str) -> str:
        name = self.agent(node)["metadata"]["name"]
        return self.lab.output(name, namespace=NAMESPACE)

    def prepares(self, node: str) -> bool:
        """Whether the kubelet knows that a node's agent prepares claims.

        One that was asked before fails, and has a pod tried again some seconds later.
        """
        with suppress(OSError, StopIteration):
            return "claims: registered with the kubelet" in self.agent_log(node)
        return False

    def metrics(self, node: str) -> str:
        """Return what the agent of a node tells Prometheus."""
        server = f"https://{self.agent(node)['status']['podIP']}:{METRICS}"
        return self.lab.ask(server, "GET", "/metrics").decode()

    def calls(self, node: str, call: str) -> Counter[float]:
        """Return how often the kubelet called a node's agent so, by the seconds it took at most."""
        begins = f'hetero_agent_call_seconds_bucket{{call="{call}",le="'
        upto: Counter[float] = Counter()
        for line in self.metrics(node).splitlines():
            if line.startswith(begins):
                most, count = line.removeprefix(begins).split('"} ')
                upto[float(most)] = int(float(count))
        ranked = sorted(upto)
        return Counter({one: upto[one] - upto[less] for less, one in pairwise([0.0, *ranked])})

    def resident(self, node: str) -> int:
        """Return the bytes of memory that the agent of a node and its vendors' processes occupy.

        What several of them share counts once.
        """
        total = 0
        for pid in processes(self.agent(node)["status"]["containerStatuses"][0]):
            with suppress(OSError):  # a vendor's has ended at this moment
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        return total

    def kill(self, pod: Plain) -> None:
        """End all processes of a pod by kill -9."""
        for container in pod["status"]["containerStatuses"]:
            for pid in processes(container):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def replace(self, pod: Plain) -> None:
        """End a pod by kill -9 and have another in its place.

        A kubelet would start it again, later each time: up to five minutes later.
        """
        self.kill(pod)
        self.lab.call("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")

    def wait_for_files(self, probe: Callable[[], Any], *, seconds: float = 120) -> None:
        """Wait until pods see what became of their Secrets and ConfigMaps.

        A kubelet looks at each pod once a minute, and whenever the pod changes: it is changed.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            apps = ("hetero-agent", "hetero-scheduler", "hetero-webhook")
            for name in [name for app in apps for name in self.pods(app)]:
                about = {"annotations": {"lab/looked-at": str(time.monotonic())}}
                self.lab.patch(f"{PODS}/{name}", {"metadata": about})
            with suppress(AssertionError):
                wait_for(probe, seconds=5)
                return
        wait_for(probe, seconds=1)

    def stop_agent(self, node: str) -> None:
        """Have no agent on a node, from now on."""
        agent = self.agent(node)
        self._label(node, None)
        self.lab.end(agent)
        wait_for(partial(self._without_agent, node))

    def _without_agent(self, node: str) -> bool:
        return node not in {pod["spec"]["nodeName"] for pod in self._agents()}

    def start_agent(self, node: str) -> None:
        """Have an agent on a node again."""
        self._label(node, "on")

    def _agents(self) -> list[Plain]:
        pods: list[Plain] = self.lab.call("GET", f"{PODS}?labelSelector=app=hetero-agent")["items"]
        return pods

    def _label(self, node: str, value: Any) -> None:
        self.lab.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {LABEL: value}}})


def _path(made: Plain) -> str:
    """Return where the API has an object."""
    version, kind = made["apiVersion"], made["kind"].lower()
    group = f"/apis/{version}" if "/" in version else f"/api/{version}"
    space = made["metadata"].get("namespace")
    where = f"/namespaces/{space}" if space else ""
    return f"{group}{where}/{_plural(kind)}/{made['metadata']['name']}"


def _plural(kind: str) -> str:
    """Return what the API calls the objects of a kind."""
    if kind.endswith("y"):
        return f"{kind[:-1]}ies"
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"
