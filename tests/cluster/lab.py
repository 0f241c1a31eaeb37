"""A real cluster on this machine: a control plane and three nodes of mixed cards, and their ends.

Nodes, networks and images are made by the script of tests/kube/binaries.py. Here each node gets
directories and simulated cards of its own, Services get their addresses, and whatever runs may be
killed. What runs on it is release.py's.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar

import pytest
from attrs import define, field, frozen
from hetero_simulator import rack

from hetero.node.ledger.ledger import ALLOCATION, Ledger
from tests.kube.binaries import ROOT, script
from tests.kube.control_plane import Authority, wait_for
from tests.programs import completed

TOKEN = "Bearer lab-admin-token"
IMAGE = "lab.local/hostusr:1"
#: What a node has of its own instead of this machine's, besides what the script gives it. What is
#: in memory on a node is so here: on a disk, a ledger would wait for all that others write there.
MEMORY, DISK = ("/run/hetero", "/dev/shm"), ("/var/lib/hetero",)
IN_MEMORY = Path("/dev/shm")
#: Where a node's simulated cards are described.
RACK = "/var/lib/hetero/cards.rack"
#: Of a card of the first node its driver keeps some memory for itself.
RESERVES = "model = NVIDIA A100-SXM4-80GB\n"
#: Where a node's kernel says below which PCIe root each card is; /sys is this machine's.
PCI = "/var/lib/hetero/pci"
#: A card of the one vendor that the shipped rack of seven has none of.
AMD = """
[device]
vendor = amd
model = Instinct MI60
memory = 32 GiB
pci = 0000:a3:00.0
"""
#: What a pod needs of this machine to run its programs: they are the host's.
HOST = tuple(dict.fromkeys(("/usr", sys.prefix, sys.base_prefix, str(ROOT))))
#: Where groups of processes are given processor time, and the weight that each machine of the
#: cluster has: every process of this machine that is in no group has 1024.
CPU, WEIGHT = Path("/sys/fs/cgroup/cpu"), "16384"
#: A namespace that the webhook leaves alone.
UNWATCHED = "unwatched"
#: How a pod runs a command that SIGTERM is to end: it ends no program that is the first of its
#: container, and each pod that goes would take two seconds more.
ENDS = ("sh", "-c", 'trap exit TERM; "$@" & wait $!', "sh")
#: What a pod runs that only stays.
STAYS = (*ENDS, "sleep", "10000")
#: Whose every request the API server writes down: the accounts of a release.
ACCOUNTS = ("agent", "certificates", "metrics", "scheduler", "webhook")
USERS = [f"system:serviceaccount:hetero-system:hetero-{one}" for one in ACCOUNTS]
READS = ("get", "list", "watch")
#: What it writes down: who wrote what, when it was asked and when it was done.
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "RequestResponse",  # who was asked about, and whether that one may
            "users": USERS,
            "resources": [{"group": "authorization.k8s.io", "resources": ["subjectaccessreviews"]}],
        },
        {"level": "Metadata", "users": USERS},
        {"level": "None", "verbs": READS},
        {"level": "Metadata"},
    ],
}

#: By what name the API server proves itself to a webhook of the release that asks for it.
CALLER = "kube-apiserver"

Plain = dict[str, Any]
Answer = TypeVar("Answer")


@frozen(kw_only=True)
class Place:
    """What one lab has of this machine: what its names begin with, and its addresses."""

    prefix: str
    assets: str  # the variable by which the lab's script is told where Kubernetes' programs are
    nodes: str  # the network of API server and nodes
    pods: str
    services: str
    more: tuple[str, ...] = ()  # arguments of the API server
    # How often a kubelet looks at each pod; where a pod failed to start, it tries again as late.
    sync: str = "5s"


#: By the folder of the lab's script; both may be up at a time.
PLACES = {
    "kube": Place(
        prefix="kl",
        assets="KUBE_ASSETS",
        nodes="10.77.0",
        pods="10.78.0.0/16",
        services="10.96.0.0/24",
    ),
    "kube136": Place(
        prefix="k136",
        assets="KUBE136_ASSETS",
        nodes="10.87.0",
        pods="10.88.0.0/16",
        services="10.97.0.0/24",
        sync="1s",  # there are few pods on it
        # Kubernetes' own pod groups.
        more=(
            "--feature-gates=GenericWorkload=true",
            "--runtime-config=scheduling.k8s.io/v1alpha2=true",
        ),
    ),
}


@define(eq=False)
class Lab:
    """Where the running cluster is; `name` is one of `PLACES`."""

    folder: Path
    binaries: Path
    racks: Mapping[str, str]  # by node
    name: str = "kube"
    secrets: set[str] = field(factory=set)  # that it had at any time
    callers: Authority = field(init=False)
    caller: tuple[Path, Path] = field(init=False)  # what the API server proves itself by
    _over: threading.Event = field(factory=threading.Event)
    _connections: list[HTTPConnection] = field(factory=list)  # to the API server, for who reads

    @property
    def place(self) -> Place:
        """What it has of this machine."""
        return PLACES[self.name]

    @property
    def api(self) -> str:
        """Where its API server is, in its network."""
        return f"https://{self.place.nodes}.1:6443"

    def group(self, node: str) -> str:
        """Return the name of a machine's namespace and of its groups of processes."""
        return f"{self.place.prefix}-{node}"

    @property
    def _memory(self) -> Path:
        return IN_MEMORY / f"hetero-{self.place.prefix}"

    # --- its machines -------------------------------------------------------------------------

    def up(self) -> None:
        """Start the control plane and the nodes, and wait until they are ready."""
        shutil.rmtree(self._memory, ignore_errors=True)
        self._script("up", str(len(self.racks)))
        for node in self.racks:
            self._hasten(node)
        threading.Thread(target=self._keep_logs, daemon=True).start()
        policy = self.folder / "audit.yaml"
        policy.write_text(json.dumps(AUDIT))
        log = f"--audit-log-path={self._audited}"
        newer = {name: _command(self._pid(name)) for name in ("kcm", "scheduler")}
        proof = self._proof()
        self.restart_api_server(f"--audit-policy-file={policy}", log, proof, *self.place.more)
        options = (
            "--proxy-mode=iptables",
            f"--cluster-cidr={self.place.pods}",
            # The table of connections is this machine's: its size is left as it is.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
        )
        first, *_ = self.racks
        for name in ("cp", *self.racks):
            # It looks for a node of its name for 30 s before it serves, and "cp" is none.
            node = name if name in self.racks else first
            argv = (str(self.binaries / "kube-proxy"), f"--kubeconfig={self._kubeconfig}")
            self._start(f"proxy-{name}", (*argv, f"--hostname-override={node}", *options), name)
            _put(self._pid(f"proxy-{name}"), f"{self.group(name)}/system.slice/kube-proxy.service")
        # The API server calls Services too, and their addresses are on no network.
        route = ("route", "add", self.place.services, "dev", "br0")
        subprocess.run(["ip", "-n", self.group("cp"), *route], check=True)
        for node in self.racks:
            self._furnish(node)
        wait_for(lambda: all(self.ready(node) for node in self.racks))
        for part, again in newer.items():  # newer ones end when the API does while they start
            if not Path(f"/proc/{self._pid(part)}").exists():
                self._start(part, again, "cp")
        for name in ("etcd", "kcm", "scheduler"):
            _put(self._pid(name), self.group("cp"))

    def _proof(self) -> str:
        """Return the option by which the API server proves itself to the release's webhook.

        One that asks for no certificate is shown none.
        """
        folder = self.folder / "callers"
        folder.mkdir()
        self.callers = Authority(folder)
        cert, key = self.caller = self.callers.issue(CALLER)
        kubeconfig, path = folder / "kubeconfig", folder / "admission"
        user = {"client-certificate": str(cert), "client-key": str(key)}
        users = [{"name": "hetero-webhook.hetero-system.svc", "user": user}]
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": users}))
        group = "apiserver.config.k8s.io/v1"
        webhooks = {
            "apiVersion": group,
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": str(kubeconfig),
        }
        plugin = {"name": "MutatingAdmissionWebhook", "configuration": webhooks}
        configuration = {"apiVersion": group, "kind": "AdmissionConfiguration", "plugins": [plugin]}
        path.write_text(json.dumps(configuration))
        return f"--admission-control-config-file={path}"

    def down(self) -> None:
        """Stop everything."""
        self._over.set()
        for connection in self._connections:
            connection.close()
        self._script("down")
        shutil.rmtree(self._memory, ignore_errors=True)

    def _furnish(self, node: str) -> None:
        """Give a node directories of its own where this machine's would be shared by all."""
        init = self._pid(node)
        mounts = Path(f"/proc/{init}/mounts")
        wait_for(
            lambda: "/var/lib/kubelet" in mounts.read_text()
        )  # its namespace is its own by now
        for path in (*MEMORY, *DISK):
            own = self.own(node, path)
            own.mkdir(parents=True, exist_ok=True)
            Path(path).mkdir(parents=True, exist_ok=True)
            enter = ("nsenter", f"--target={init}", "--mount", "--")
            subprocess.run([*enter, "mount", "--bind", str(own), path], check=True)
        self.own(node, RACK).write_text(self.racks[node])
        self._wire(node)
        self._weigh(node)

    def _hasten(self, node: str) -> None:
        """Say how often a kubelet looks at its pods. It starts after its runtime, and reads it."""
        config = self.folder / f"run/nodes/{node}/kubelet.yaml"
        settings = json.loads(config.read_text())
        config.write_text(json.dumps({**settings, "syncFrequency": self.place.sync}))

    def _wire(self, node: str) -> None:
        """Have cards whose bus numbers begin alike below one PCIe root."""
        tree = self.own(node, PCI)
        shutil.rmtree(tree, ignore_errors=True)  # a lost node's
        tree.mkdir()
        for address in re.findall(r"^pci = (\S+)$", self.racks[node], re.MULTILINE):
            (tree / address).symlink_to(f"../../../devices/pci{address[:6]}0/{address}")

    def _weigh(self, node: str) -> None:
        """Divide a node's processor time as systemd does: its kubelet, its runtime, all its pods.

        The kubelet gives all pods together the weight of a service for each core, and those that
        ask for no CPU next to none of it. What starts them, shims and runc, is the runtime's.
        """
        for name in ("containerd", "kubelet"):
            pid: int = wait_for(partial(self._running, name, node))
            _put(pid, f"{self.group(node)}/system.slice/{name}.service")
        (CPU / self.group(node) / "cpu.shares").write_text(WEIGHT)

    def own(self, node: str, path: str) -> Path:
        """Return where something of a node's own is on this machine."""
        folder = self._memory if path.startswith(MEMORY) else self.folder
        return folder / node / path.lstrip("/")

    def cdi(self, node: str) -> Path:
        """Return where the CDI specs of a node are on this machine."""
        return self.folder / f"run/nodes/{node}/cdi"

    def kubelet(self, node: str) -> Path:
        """Return where the directory of a node's kubelet is on this machine."""
        return self.folder / f"run/nodes/{node}/kubelet"

    def kill_node(self, node: str) -> None:
        """Lose a node: its one process tree ends, and all its containers with it."""
        os.killpg(self._pid(node), signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{self._pid(node)}/ns/mnt").exists())

    def start_node(self, node: str) -> None:
        """Start a node again after it was lost."""
        # What a boot clears: all that is in memory, and so a node's ledger and its CDI specs.
        for folder in (*(self.own(node, path) for path in MEMORY), self.cdi(node)):
            for left in folder.iterdir() if folder.exists() else ():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        self._lab(f"node({int(node[1:])})")
        self._hasten(node)
        self._furnish(node)

    def put_over(self, node: str, path: str, own: Path) -> None:
        """Have a file of the test's where a node has this machine's, until the node ends."""
        enter = ("nsenter", f"--target={self._pid(node)}", "--mount", "--")
        subprocess.run([*enter, "mount", "--bind", str(own), path], check=True)

    def run_on(self, node: str, *argv: str) -> str:
        """Return what a program of this machine prints on a node, among the node's own files."""
        env = {"PATH": os.environ["PATH"], "HETERO_RACK": RACK}
        return completed([*self._within(node), *argv], env=env, timeout=60).stdout

    def _within(self, node: str) -> tuple[str, ...]:
        """Return what runs a command among a node's own files and processes."""
        (first,) = _children(self._pid(node))
        return ("nsenter", f"--target={first}", "--mount", "--pid", "--")

    @contextmanager
    def without_limiters(self, node: str) -> Iterator[None]:
        """Have a node meanwhile on which no limiter can be copied, as where its disk is full."""
        path = self.own(node, "/var/lib/hetero/lib")
        kept = path.with_name("lib.kept")
        path.mkdir(parents=True, exist_ok=True)
        path.rename(kept)
        path.write_text("")
        try:
            yield
        finally:
            path.unlink()
            kept.rename(path)

    def restart_kubelet(self, node: str) -> None:
        """End the kubelet of a node by kill -9 and start it again; its containers run on."""
        self._restart("kubelet", node)

    def restart_containerd(self, node: str) -> None:
        """End the container runtime of a node by kill -9 and start it again."""
        self._restart("containerd", node)

    def _restart(self, part: str, node: str) -> None:
        (first,) = _children(self._pid(node))  # it ends the node when its kubelet ends
        os.kill(first, signal.SIGSTOP)
        pid = self._running(part, node)
        assert pid is not None
        argv = _command(pid)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self._running(part, node))
        path = f"PATH={self.binaries}:{os.environ['PATH']}:/usr/sbin"
        self._start(f"{part}-{node}", (*self._within(node), "env", path, *argv), node)
        self._weigh(node)

    def restart_api_server(self, *more: str, away: float = 0) -> None:
        """End the API server by kill -9 and start it again, maybe with more arguments.

        It is away for so many seconds.
        """
        server = self._pid("apiserver")
        argv = _command(server)
        os.kill(server, signal.SIGKILL)
        wait_for(lambda: _ended(server))  # else its port is taken
        time.sleep(away)
        self._start("apiserver", (*argv, *more), "cp")
        _put(self._pid("apiserver"), self.group("cp"))
        (CPU / self.group("cp") / "cpu.shares").write_text(WEIGHT)

    @contextmanager
    def stopped_api_server(self) -> Iterator[None]:
        """Have the API server take calls and answer none meanwhile."""
        server = self._pid("apiserver")
        os.kill(server, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(server, signal.SIGCONT)

    def _running(self, name: str, node: str) -> int | None:
        """Return a program of a node, by its configuration: others may run labs beside this one."""
        folder = f"{self.folder}/run/nodes/{node}"
        configured = {f"--config={folder}/kubelet.yaml", f"{folder}/ctrd/config.toml"}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                program, *arguments = _command(int(path.name))
                if Path(program).name == name and not configured.isdisjoint(arguments):
                    return int(path.name)
        return None

    def _start(self, name: str, argv: Sequence[str], network: str) -> None:
        """Start a process that goes when the lab goes."""
        self._lab(f"start({name!r}, {list(argv)!r}, {self.group(network)!r})")

    def _lab(self, call: str) -> None:
        self._python("-c", f"import lab; lab.{call}")

    def _script(self, *argv: str) -> None:
        self._python("lab.py", *argv)

    def _python(self, *argv: str) -> None:
        path = script(self.name)
        assert path is not None
        own = {"LAB": str(self.folder), self.place.assets: str(self.binaries)}
        env = {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, *argv], cwd=path.parent, env=env, check=True)

    def _pid(self, name: str) -> int:
        pid: int = json.loads((self.folder / "run/pids.json").read_text())[name]
        return pid

    @property
    def _audited(self) -> Path:
        return self.folder / "audit.log"

    @property
    def _kubeconfig(self) -> Path:
        return self.folder / "run/kubeconfig"

    # --- its API ------------------------------------------------------------------------------

    def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "", token: str = TOKEN
    ) -> Any:
        """Return what the API answers. Raises `OSError` when that is an error."""
        return json.loads(self.ask(self.api, method, path, body, kind, token=token))

    def ask(
        self,
        server: str,
        method: str,
        path: str,
        body: Any = None,
        kind: str = "",
        *,
        token: str = TOKEN,
    ) -> bytes:
        """Return what a server in the cluster's network answers. Raises `OSError` on an error."""
        ask = partial(_ask, method=method, path=path, body=body, kind=kind, token=token)
        if method == "GET" and server == self.api:
            return self._ask_again(ask)
        with closing(self.inside(lambda: _connected(server))) as connection:
            return ask(connection)

    def _ask_again(self, ask: Callable[[HTTPConnection], bytes]) -> bytes:
        """Ask the API server what changes nothing, on a connection of an earlier question.

        Tests wait by asking, and a new connection costs both ends more than an answer does.
        """
        while True:
            try:
                connection, kept = self._connections.pop(), True
            except IndexError:
                connection, kept = self.inside(lambda: _connected(self.api)), False
            try:
                return ask(connection)
            except (ConnectionError, ssl.SSLError):
                if not kept:
                    raise
                connection.close()  # of an API server that has ended: ask the next one
            finally:
                if connection.sock is not None:
                    self._connections.append(connection)

    def inside(self, act: Callable[[], Answer]) -> Answer:
        """Act within the network of the cluster: in a thread, since threads have their own."""
        answer: list[Answer] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                self.enter()
                answer.append(act())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answer[0]

    def enter(self) -> None:
        """Take this thread into the network of the cluster."""
        with open(f"/run/netns/{self.group('cp')}") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")

    def kubectl(self, program: Path, *argv: str) -> subprocess.CompletedProcess[str]:
        """Do what an administrator does with kubectl."""
        enter = ("nsenter", f"--net=/run/netns/{self.group('cp')}", "--")
        return completed([*enter, program, f"--kubeconfig={self._kubeconfig}", *argv], timeout=180)

    def patch(self, path: str, body: Plain) -> Any:
        """Merge into an object."""
        return self.call("PATCH", path, body, kind="application/merge-patch+json")

    def writes(self, since: float) -> list[Plain]:
        """Return the writes that the API did since a time, as its audit log has them."""
        return [
            event
            for event in self.audited()
            if event["verb"] not in READS and moment(event["requestReceivedTimestamp"]) >= since
        ]

    def audited(self, of: str = "") -> Iterator[Plain]:
        """Yield all that the API server wrote down since the cluster came up, naming something."""
        for line in self._audited.read_text().splitlines():
            if of not in line:
                continue
            with suppress(json.JSONDecodeError):  # it is being written, or its writer was killed
                yield json.loads(line)

    def bindings(self, since: float) -> dict[str, float]:
        """Return when the API was asked to bind each pod: seconds since 1970."""
        return {
            event["objectRef"]["name"]: moment(event["requestReceivedTimestamp"])
            for event in self.writes(since)
            if event["objectRef"].get("subresource") == "binding"
        }

    def logs(self) -> list[Path]:
        """Return the logs of this cluster's machines, and of all pods of hetero that ever ran."""
        return [*(self.folder / "run/log").iterdir(), *(self.folder / "kept").iterdir()]

    def _keep_logs(self) -> None:
        """Keep, until the lab goes, what kubelets would remove with a pod."""
        kept = self.folder / "kept"
        kept.mkdir()
        while not self._over.wait(1):
            with suppress(OSError):  # a directory went at this moment: the rest in a second
                for path in self.folder.glob("run/nodes/*/varlogpods/hetero-system_*/*/*.log"):
                    pod, container = path.parts[-3:-1]
                    with suppress(OSError):  # it is there, or went at this moment
                        os.link(path, kept / f"{pod}_{container}_{path.name}")

    def ready(self, node: str) -> bool:
        with suppress(OSError):
            conditions = self.call("GET", f"/api/v1/nodes/{node}")["status"]["conditions"]
            return any((c["type"], c["status"]) == ("Ready", "True") for c in conditions)
        return False

    def allocatable(self, node: str) -> dict[str, str]:
        """Return how many of each resource the kubelet of a node offers."""
        amounts = self.call("GET", f"/api/v1/nodes/{node}")["status"].get("allocatable", {})
        return {name: amount for name, amount in amounts.items() if "/" in name and amount != "0"}

    # --- pods ---------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        limits: Mapping[str, str],
        *command: str,
        namespace: str = "default",
        notes: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> Plain:
        """Make a pod that runs a command of this machine with a share."""
        body = {
            "metadata": {"name": name, "annotations": dict(notes or {})},
            "spec": {**program(limits, *command), "restartPolicy": "Never", **spec},
        }
        made: Plain = self.call("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        return made

    def pods(self, namespace: str = "default") -> dict[str, Plain]:
        items = self.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {item["metadata"]["name"]: item for item in items}

    def phases(self) -> dict[str, str]:
        return {name: pod["status"]["phase"] for name, pod in self.pods().items()}

    def output(self, name: str, query: str = "", *, namespace: str = "default") -> str:
        """Return what a pod printed."""
        return self.ask(
            self.api, "GET", f"/api/v1/namespaces/{namespace}/pods/{name}/log?{query}"
        ).decode()

    def messages(self, name: str) -> list[str]:
        """Return what a pod's events say."""
        query = f"?fieldSelector=involvedObject.name={name}"
        items = self.call("GET", f"/api/v1/namespaces/default/events{query}")["items"]
        return [item.get("message", "") for item in items]  # of nodes some have none

    def clear(self) -> None:
        """Delete all pods of tests and wait until nothing stands anywhere."""
        for space in ("default", UNWATCHED):
            # At once: a kubelet takes some ten seconds until it says that it is done with a pod.
            self.call("DELETE", f"/api/v1/namespaces/{space}/pods?gracePeriodSeconds=0")
        wait_for(lambda: not self.pods() and not self.pods(UNWATCHED))
        wait_for(lambda: not any(self.standing(node) for node in self.racks))

    def end(self, pod: Plain) -> None:
        """Wait until a pod that is being deleted has ended, and have it gone.

        By itself a kubelet of 1.20 may leave it in the API for a minute and ten seconds more.
        """
        statuses = pod["status"].get("containerStatuses") or ()
        started = [one for one in statuses if one.get("containerID")]
        wait_for(lambda: not any(map(processes, started)), seconds=120)
        space, name = (pod["metadata"][part] for part in ("namespace", "name"))
        with suppress(OSError):  # it has gone
            self.call("DELETE", f"/api/v1/namespaces/{space}/pods/{name}?gracePeriodSeconds=0")

    def calm(self) -> None:
        """Wait until kubelets are done with pods that are gone."""

        def done() -> bool:
            pods = self.call("GET", "/api/v1/pods")["items"]
            known = {pod["metadata"]["uid"] for pod in pods}
            groups = CPU.glob(f"{self.group('*')}/kubepods/*/pod*-*")
            return {path.name.removeprefix("pod") for path in groups} <= known

        wait_for(done, seconds=120)

    def lives(self, pod: Plain) -> bool:
        """Whether the containers of a pod have processes: the API hears late of a lost node."""
        group = self.group(pod["spec"]["nodeName"])
        where = f"{group}/kubepods/*/pod{pod['metadata']['uid']}"
        for container in pod["status"]["containerStatuses"]:
            name = container.get("containerID", "").partition("://")[2]
            processes = list(Path("/sys/fs/cgroup/pids").glob(f"{where}/{name}/cgroup.procs"))
            with suppress(OSError):
                if name and processes and processes[0].read_text():
                    continue
            return False
        return True

    # --- what stands --------------------------------------------------------------------------

    def standing(self, node: str) -> list[Plain]:
        """Return the grants that stand in a node's ledger, as their files say."""
        grants = []
        for path in self.records(node):
            with suppress(FileNotFoundError):  # it went at this moment
                grants.append(json.loads(path.read_text()))
        return grants

    def records(self, node: str) -> list[Path]:
        """Return the files of the grants that stand on a node, each as old as its grant."""
        return [
            grants / name / ALLOCATION
            for grants in self.own(node, "/run/hetero").glob("sim-*/grants")  # made with the first
            for name in os.listdir(grants)
            if not name.startswith(".") and Ledger(grants.parent).stands(name)
        ]


def program(limits: Mapping[str, str], *command: str) -> Plain:
    """Return the spec of a pod that runs a command of this machine with a share."""
    volumes, mounts = host_volumes()
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command or STAYS),
        "resources": {"limits": dict(limits)},
        "volumeMounts": mounts,
    }
    return {
        "terminationGracePeriodSeconds": 1,
        "dnsPolicy": "Default",
        "containers": [container],
        "volumes": volumes,
    }


def host_volumes() -> tuple[list[Plain], list[Plain]]:
    """Return the volumes and the mounts by which a pod runs this machine's programs."""
    names = [f"host-{position}" for position in range(len(HOST))]
    volumes = [
        {"name": one, "hostPath": {"path": path}} for one, path in zip(names, HOST, strict=True)
    ]
    mounts = [
        {"name": one, "mountPath": path, "readOnly": True}
        for one, path in zip(names, HOST, strict=True)
    ]
    return volumes, mounts


def documents(output: str) -> list[str]:
    """Return the lines of a job's that are JSON; its limiter's are in the same log."""
    return [line for line in output.splitlines() if line.startswith("{")]


def moment(text: str) -> float:
    """Return a time that the API wrote: seconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def processes(container: Plain) -> list[int]:
    """Return the processes of a container, given its status in the API, without those that ended.

    One that ended and was not waited for has no program any more, and no namespaces.
    """
    name = container["containerID"].partition("://")[2]
    pids = []
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with suppress(OSError):
            if name in path.read_text() and (path.parent / "exe").readlink():
                pids.append(int(path.parent.name))
    return pids


def _connected(server: str) -> HTTPConnection:
    """Connect to a server. Never again by itself: that would be from another network."""
    scheme, _, host = server.partition("://")
    if scheme == "https":
        tls = ssl._create_unverified_context()
        connection: HTTPConnection = HTTPSConnection(host, context=tls, timeout=10)
    else:
        connection = HTTPConnection(host, timeout=10)
    try:
        connection.connect()
    except BaseException:
        connection.close()
        raise
    connection.auto_open = 0
    return connection


def _ask(
    connection: HTTPConnection, *, method: str, path: str, body: Any, kind: str, token: str
) -> bytes:
    """Return what a server answers, and close the connection unless it was read to its end.

    Raises `OSError` when that is an error.
    """
    payload = body if body is None or isinstance(body, str) else _text(body)
    headers = {"Authorization": token, "Content-Type": kind or "application/json"}
    try:
        connection.request(method, path, payload, headers)
        answer = connection.getresponse()
        data = answer.read()
    except BaseException as error:
        connection.close()
        if isinstance(error, HTTPException) and not isinstance(error, OSError):
            raise OSError(f"{method} {path}: {error!r}") from None
        raise
    if answer.status >= 400:
        raise OSError(f"{method} {path}: {answer.status} {data.decode()}")
    return data


def _text(body: Any) -> str:
    return json.dumps(body, separators=(",", ":"), sort_keys=True)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def _ended(pid: int) -> bool:
    """Whether the last thread of a process has ended, and so its sockets."""
    states = set()
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # it has gone at this moment
            states.add(thread.read_text().rpartition(")")[2].split()[0])
    return states <= {"X", "Z"}


def _put(pid: int, group: str) -> None:
    """Have a process, and all that it will start, share the processor time of a group."""
    (CPU / group).mkdir(parents=True, exist_ok=True)
    (CPU / group / "cgroup.procs").write_text(str(pid))


def of_vendors(*names: str) -> str:
    """Return the cards of some vendors of the shipped rack that has seven."""
    driver, *cards = Path(rack("seven")).read_text().split("[device]")
    chosen = [card for card in cards if any(f"vendor = {name}\n" in card for name in names)]
    return "[device]".join([driver, *chosen])


@contextmanager
def running(folder: Path, *, binaries: Path, name: str = "kube") -> Iterator[Lab]:
    """Bring the cluster up, and take it down; skip where that cannot be."""
    if os.geteuid():
        pytest.skip("needs root: nodes are namespaces, mounts and cgroups of this machine")
    if script(name) is None:
        pytest.skip("needs the lab: HETERO_LAB names the folder of its lab.py")
    missing = [
        path
        for path in ("/usr/bin/containerd", "/usr/sbin/runc", "/usr/lib/cni/bridge", "/bin/busybox")
        if not Path(path).exists()
    ]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: install the Debian packages that .ci/run names")
    if not Path("/sys/fs/cgroup/cpuset").is_dir():
        pytest.skip("needs cgroup v1: the lab's kubelets know no other")
    if Path(f"/run/netns/{PLACES[name].prefix}-cp").exists():
        pytest.fail("a lab is up on this machine already: end it with `lab.py down`")
    racks = {
        "n1": Path(rack("mixed")).read_text().replace(RESERVES, f"{RESERVES}reserved = 551 MiB\n"),
        "n2": of_vendors("ascend", "cambricon") + AMD,
        "n3": of_vendors("hygon", "iluvatar", "mthreads", "metax"),
    }
    lab = Lab(folder=folder, binaries=binaries, racks=racks, name=name)
    try:
        lab.up()
        yield lab
    finally:
        lab.down()
