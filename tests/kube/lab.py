"""A real cluster on this machine, with hetero on it: three kubelets, each with its own agent.

Nodes, networks and images are made by a script, `lab.py` in the folder $HETERO_LAB names. Agents
run in the namespaces of their nodes, each on a simulated rack of its own.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from hetero_limiters import job, rack

from hetero.kube import wire
from hetero.registry import Registry
from tests.kube.control_plane import Authority, wait_for

ROOT = Path(__file__).parents[2]
SCRIPT = Path(os.environ.get("HETERO_LAB", ROOT.parent / "shared/kube")) / "lab.py"
JOB = Path(job("cuda"))
API = "https://10.77.0.1:6443"
METRICS = 9394
VENDORS = ("ascend", "cambricon", "hygon", "iluvatar", "metax", "mthreads", "nvidia")
#: What a pod needs of this machine to run its programs: they are the host's.
_HOST = tuple(dict.fromkeys(("/usr", sys.prefix, sys.base_prefix, str(ROOT))))

Plain = dict[str, Any]


@define(eq=False)
class Lab:
    """Where the running cluster is."""

    folder: Path
    racks: Mapping[str, str]  # by node
    agents: dict[str, subprocess.Popen[bytes]] = field(factory=dict)
    services: list[subprocess.Popen[bytes]] = field(factory=list)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    # --- its parts ----------------------------------------------------------------------------

    def start_agent(self, node: str) -> None:
        """Start the agent in the namespaces of its node."""
        home = self.folder / node
        home.mkdir(exist_ok=True)
        (home / "cards.rack").write_text(self.racks[node])
        pid = json.loads((self.run / "pids.json").read_text())[node]
        argv = ("nsenter", f"--target={pid}", "--mount", "--net", "--", sys.executable)
        options = ("--libraries", str(home / "lib"), "--metrics", str(METRICS))
        self.agents[node] = self._start(
            f"agent-{node}",
            (*argv, "-m", "hetero", "agent", *options),
            NODE_NAME=node,
            HETERO_RACK=str(home / "cards.rack"),
            HETERO_STATE=str(home / "state"),
        )

    def kill_agent(self, node: str) -> None:
        """End an agent by kill -9."""
        process = self.agents.pop(node)
        process.kill()
        process.wait()

    def kill_node(self, node: str) -> None:
        """Lose a node: its one process tree ends, and all its containers with it."""
        self.kill_agent(node)
        pid = json.loads((self.run / "pids.json").read_text())[node]
        os.killpg(pid, signal.SIGKILL)

    def start_node(self, node: str) -> None:
        """Start a node again after it was lost."""
        script = f"import lab; lab.node({int(node[1:])})"
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=SCRIPT.parent,
            env={**os.environ, "LAB": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"},
            check=True,
        )

    def restart_kubelet(self, node: str) -> None:
        """End the kubelet of a node by kill -9 and start it again; its containers run on."""
        pid = json.loads((self.run / "pids.json").read_text())[node]
        (first,) = _children(pid)  # the node's script; it ends the node when its kubelet ends
        os.kill(first, signal.SIGSTOP)
        kubelet = next(one for one in _children(first) if "kubelet" in _command(one)[0])
        argv = _command(kubelet)
        os.kill(kubelet, signal.SIGKILL)
        enter = ("nsenter", f"--target={first}", "--mount", "--pid", "--net", "--")
        with (self.run / "log" / f"kubelet-{node}.log").open("ab") as log:
            process = subprocess.Popen([*enter, *argv], stdout=log, stderr=log)
        self.services.append(process)

    def start_scheduler(self) -> None:
        """Start our extender and the stock kube-scheduler that calls it by mutual TLS."""
        authority = Authority(self.folder)
        server, caller = authority.issue("extender"), authority.issue("kube-scheduler")
        enter = ("nsenter", "--net=/run/netns/kl-cp", "--")
        self.services.append(
            self._start(
                "extender",
                (
                    *(*enter, sys.executable, "-m", "hetero", "scheduler"),
                    *("--host", "127.0.0.1", "--port", "7443"),
                    *("--callers", str(authority.path)),
                    *("--cert", str(server[0]), "--key", str(server[1])),
                ),
            )
        )
        from tests.kube.conftest import extender_settings  # pytest's own module: not at import

        settings = extender_settings("https://127.0.0.1:7443", authority, caller)
        words = [w for vendor in map(Registry.installed().vendor, VENDORS) for w in vendor.words]
        counts = {one.count for one in words}
        # kube-scheduler counts slots itself: a node whose agent is down has none.
        settings["managedResources"] = [
            {"name": name, "ignoredByScheduler": name not in counts}
            for name in sorted({name for one in words for name in one.resources})
        ]
        config = self.folder / "hetero-scheduler.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {"kubeconfig": str(self.run / "kubeconfig")},
                    "leaderElection": {"leaderElect": False},
                    # The cluster's own scheduler has the usual port.
                    "healthzBindAddress": "127.0.0.1:11251",
                    "metricsBindAddress": "127.0.0.1:11251",
                    "podInitialBackoffSeconds": 1,
                    "podMaxBackoffSeconds": 2,
                    "profiles": [{"schedulerName": "hetero-scheduler"}],
                    "extenders": [settings],
                }
            )
        )
        binary = Path(os.environ.get("KUBE_ASSETS", self.folder / "bin")) / "kube-scheduler"
        ports = ("--secure-port=11259", "--bind-address=127.0.0.1")
        folder = f"--cert-dir={self.folder / 'scheduler'}"
        self.services.append(
            self._start("scheduler", (*enter, str(binary), f"--config={config}", *ports, folder))
        )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _start(self, name: str, argv: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as out:
            return subprocess.Popen(
                argv,
                stdout=out,
                stderr=out,
                env={
                    **os.environ,
                    "KUBECONFIG": str(self.run / "kubeconfig"),
                    "HETERO_KEY_FILE": str(self.folder / "key"),
                    **env,
                },
            )

    # --- its API ------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "") -> Any:
        """Return what the API answers. Raises `OSError` when that is an error."""
        answer = self.inside(lambda: _ask(API, method, path, body, kind))
        return json.loads(answer)

    def metrics(self, node: str) -> str:
        """Return what the agent of a node tells Prometheus."""
        server = f"http://10.77.0.{10 + int(node[1:])}:{METRICS}"
        return self.inside(lambda: _ask(server, "GET", "/metrics")).decode()

    def inside(self, act: Callable[[], bytes]) -> bytes:
        """Act within the network of the cluster: in a thread, since threads have their own."""
        answer: list[bytes | Exception] = []

        def run() -> None:
            try:
                with open("/run/netns/kl-cp") as network:
                    _enter(network.fileno())
                answer.append(act())
            except Exception as error:
                answer.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    # --- pods ---------------------------------------------------------------------------------

    def add(self, name: str, limits: Mapping[str, str], *command: str, **spec: Any) -> Plain:
        """Make a pod that runs a command of this machine with a share."""
        names = [f"host-{position}" for position in range(len(_HOST))]
        container = {
            "name": "main",
            "image": "lab.local/hostusr:1",
            "imagePullPolicy": "Never",
            "command": list(command) or ["sleep", "1000"],
            "resources": {"limits": dict(limits)},
            "volumeMounts": [
                {"name": one, "mountPath": path, "readOnly": True}
                for one, path in zip(names, _HOST, strict=True)
            ],
        }
        body = {
            "metadata": {"name": name},
            "spec": {
                "schedulerName": "hetero-scheduler",
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "dnsPolicy": "Default",
                "containers": [container],
                "volumes": [
                    {"name": one, "hostPath": {"path": path}}
                    for one, path in zip(names, _HOST, strict=True)
                ],
                **spec,
            },
        }
        made: Plain = self.call("POST", "/api/v1/namespaces/default/pods", body)
        return made

    def pods(self) -> dict[str, Plain]:
        items = self.call("GET", "/api/v1/namespaces/default/pods")["items"]
        return {item["metadata"]["name"]: item for item in items}

    def phases(self) -> dict[str, str]:
        return {name: pod["status"]["phase"] for name, pod in self.pods().items()}

    def output(self, name: str) -> str:
        path = f"/api/v1/namespaces/default/pods/{name}/log"
        return self.inside(lambda: _ask(API, "GET", path)).decode()

    def messages(self, name: str) -> list[str]:
        query = f"?fieldSelector=involvedObject.name={name}"
        items = self.call("GET", f"/api/v1/namespaces/default/events{query}")["items"]
        return [item["message"] for item in items]

    def clear(self) -> None:
        """Delete all pods and wait until nothing stands anywhere."""
        self.call("DELETE", "/api/v1/namespaces/default/pods")
        wait_for(lambda: not self.pods())
        wait_for(lambda: not any(self.standing(node) for node in self.racks))

    def standing(self, node: str) -> list[Plain]:
        """Return the grants that stand in a node's ledger, as their files say."""
        found = []
        for path in (self.folder / node / "state").glob("**/grants/[!.]*/allocation.json"):
            with suppress(FileNotFoundError):
                found.append(json.loads(path.read_text()))
        return found

    def over_capacity(self) -> list[str]:
        """Return a line for every counter of a card of which more stands than the card has."""
        lines = []
        for node in self.racks:
            text = self.call("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
            capacity = {d.uuid: d.capacity for d in wire.devices(text[wire.INVENTORY], node=node)}
            held: dict[tuple[str, str], int] = {}
            for entry in self.standing(node):
                for grant in entry["allocation"]["grants"]:
                    for counter, amount in grant["takes"].items():
                        key = (grant["device"], counter)
                        held[key] = held.get(key, 0) + amount
            lines += [
                f"{node} {device} {counter}: {amount} of {capacity[device][counter]}"
                for (device, counter), amount in held.items()
                if amount > capacity[device][counter]
            ]
        return lines


def _enter(descriptor: int) -> None:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0):
        raise OSError(ctypes.get_errno(), "setns")


def _ask(server: str, method: str, path: str, body: Any = None, kind: str = "") -> bytes:
    """Return what a server answers. Raises `OSError` when that is an error."""
    scheme, _, host = server.partition("://")
    if scheme == "https":
        tls = ssl._create_unverified_context()
        connection: HTTPConnection = HTTPSConnection(host, context=tls, timeout=10)
    else:
        connection = HTTPConnection(host, timeout=10)
    with closing(connection):
        connection.request(
            method,
            path,
            None if body is None else json.dumps(body),
            {
                "Authorization": "Bearer lab-admin-token",
                "Content-Type": kind or "application/json",
            },
        )
        answer = connection.getresponse()
        found = answer.read()
    if answer.status >= 400:
        raise OSError(f"{method} {path}: {answer.status} {found.decode()}")
    return found


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def of_vendors(*names: str) -> str:
    """Return the cards of some vendors of the shipped rack that has seven."""
    driver, *cards = Path(rack("seven")).read_text().split("[device]")
    chosen = [card for card in cards if any(f"vendor = {name}\n" in card for name in names)]
    return "[device]".join([driver, *chosen])


@contextmanager
def running(folder: Path) -> Iterator[Lab]:
    """Bring the cluster up with hetero on it, and take it down; skip where that cannot be."""
    if os.geteuid() or not SCRIPT.exists() or not shutil.which("etcd"):
        pytest.skip(
            "needs root, the lab (HETERO_LAB names the folder of lab.py) and Debian's etcd-server "
            "containerd runc containernetworking-plugins iptables iproute2 busybox-static openssl"
        )
    racks = {
        "n1": Path(rack("mixed")).read_text(),
        "n2": of_vendors("ascend", "cambricon"),
        "n3": of_vendors("hygon", "iluvatar", "mthreads", "metax"),
    }
    lab = Lab(folder=folder, racks=racks)
    (folder / "key").write_text(secrets.token_hex(32))

    def script(*argv: str) -> None:
        env = {**os.environ, "LAB": str(folder)}
        subprocess.run([sys.executable, str(SCRIPT), *argv], env=env, check=True)

    try:
        script("up", str(len(racks)))
        for node in racks:
            lab.start_agent(node)
        lab.start_scheduler()
        wait_for(lambda: all(_published(lab, node) for node in racks))
        yield lab
    finally:
        for process in (*lab.agents.values(), *lab.services):
            process.terminate()
            process.wait()
        script("down")


def _published(lab: Lab, node: str) -> bool:
    try:
        found = lab.call("GET", f"/api/v1/nodes/{node}")
    except OSError:
        return False
    ready = any(
        one["type"] == "Ready" and one["status"] == "True" for one in found["status"]["conditions"]
    )
    counted = [
        name
        for name, amount in found["status"].get("allocatable", {}).items()
        if "/" in name and amount != "0"
    ]
    return ready and bool(counted) and wire.INVENTORY in found["metadata"].get("annotations", {})
