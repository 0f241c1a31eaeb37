"""Nodes without containers: Node objects, real agents, and what calls them as kubelets do.

Each is an object of the lab's API with cards of its own and a ledger of its own. Its agent is the
program that pods run, with the token of the pod that the DaemonSet makes for the node. A stand-in
for its kubelet (tests/kube/kubelet.py) admits the pods that are bound to it, and writes what became
of them.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc
from attrs import define, field

from hetero.kube.client.api import Api, ApiError
from hetero.kube.objects.kinds import Plain
from hetero.kube.words.annotations import AUDIENCE, INVENTORY
from tests.cluster.lab import Lab
from tests.cluster.release import LABEL, NAMESPACE
from tests.kube.control_plane import wait_for
from tests.kube.kubelet import FakeKubelet

#: By which pods are sent to such nodes.
HOLLOW = "lab/hollow"
CARDS = 8
CARD = """[device]
vendor = nvidia
model = NVIDIA A100-SXM4-80GB
memory = 81920 MiB
compute = 8.0
"""
#: Seconds between two signs of life; the lab's control plane waits for 20.
BEAT = 5.0


@define(eq=False)
class HollowNode:
    """One of them; its files lie where the lab has a node's own."""

    lab: Lab
    api: Api
    name: str
    kubelet: FakeKubelet = field(init=False)
    _pods: asyncio.Queue[Plain] = field(factory=asyncio.Queue)
    _seen: set[str] = field(factory=set)  # UIDs of pods that were admitted or refused
    _agent: subprocess.Popen[bytes] | None = None
    _ready: bool | None = None  # what the API was told of the agent

    def __attrs_post_init__(self) -> None:
        self.kubelet = FakeKubelet(self.own("/var/lib/kubelet"))

    def own(self, path: str) -> Path:
        return self.lab.own(self.name, path)

    async def join(self) -> None:
        """Become a ready node of the cluster."""
        labels = {"kubernetes.io/hostname": self.name, HOLLOW: "on", LABEL: "on"}
        node = {"metadata": {"name": self.name, "labels": labels}}
        await self.api.post("/api/v1/nodes", node)
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "250", "nvidia.com/gpu": "80"}
        await self._say({"capacity": amounts, "allocatable": amounts, **alive()})

    async def furnish(self) -> None:
        """Write what the agent reads: its cards, and what its pod would have mounted."""
        for path in ("/run/hetero", "/var/lib/kubelet", "/var/lib/hetero/lib", "/token"):
            self.own(path).mkdir(parents=True, exist_ok=True)
        self.own("/cards.rack").write_text(CARD * CARDS)
        keys = await self.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/hetero-keys")
        self.own("/keys.pem").write_text(keys["data"]["keys.pem"])
        self.own("/token/webhook").write_text(await self._token(AUDIENCE))
        cluster = {"server": self.lab.api, "insecure-skip-tls-verify": True}
        kubeconfig = {
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": "agent", "user": {"token": await self._token()}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "agent"}}],
            "current-context": "lab",
        }
        self.own("/kubeconfig").write_text(json.dumps(kubeconfig))

    async def _token(self, *audiences: str) -> str:
        """Return the token that a kubelet would mount into the pod of the node's agent."""
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        about = (await self._pod())["metadata"]
        of = {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}
        spec = {"audiences": list(audiences), "expirationSeconds": 7200, "boundObjectRef": of}
        made = await self.api.post(f"{accounts}/hetero-agent/token", {"spec": spec})
        return str(made["status"]["token"])

    async def _pod(self) -> Plain:
        query = {"labelSelector": "app=hetero-agent", "fieldSelector": f"spec.nodeName={self.name}"}
        while not (pods := await self.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", query)):
            await asyncio.sleep(0.5)
        return pods[0]

    def replace_agent(self) -> None:
        """End the agent by kill -9, and have the kubelet know another in its place."""
        self.stop_agent()
        wait_for(lambda: not self.kubelet.watches())
        self.start_agent()
        wait_for(self.kubelet.watches)

    def start_agent(self) -> None:
        """Run the agent."""
        program = [sys.executable, "-m", "hetero.cli", "agent", "--node", self.name]
        where = {
            "kubelet": "/var/lib/kubelet",
            "libraries": "/var/lib/hetero/lib",
            "public-keys": "/keys.pem",
            "token-file": "/token/webhook",
        }
        options = [f"--{name}={self.own(path)}" for name, path in where.items()]
        env = {
            "HETERO_RACK": str(self.own("/cards.rack")),
            "HETERO_STATE": str(self.own("/run/hetero")),
            "KUBECONFIG": str(self.own("/kubeconfig")),
        }
        with self.own("/agent.log").open("ab") as log:
            self._agent = subprocess.Popen([*program, *options], env=env, stdout=log, stderr=log)

    def stop_agent(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()

    async def serves(self) -> bool:
        """Whether its cards are offered to the kubelet and published."""
        notes = (await self.api.get(f"/api/v1/nodes/{self.name}"))["metadata"]["annotations"]
        offered = {one for of in self.kubelet.devices.values() for one in of}
        return bool(offered) and INVENTORY in notes

    # --- what a kubelet does --------------------------------------------------------------------

    async def beat(self) -> None:
        """Say for ever that the node lives."""
        while True:
            await asyncio.sleep(BEAT)
            with suppress(ApiError):
                await self._say(alive())

    async def watch_agent(self) -> None:
        """Say for ever whether the agent's pod is ready."""
        name = (await self._pod())["metadata"]["name"]
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/status"
        while True:
            ready = self.kubelet.watches()
            if ready != self._ready:
                with suppress(ApiError):
                    await self.api.patch(path, {"status": serving(ready=ready)})
                    self._ready = ready
            await asyncio.sleep(0.2)

    async def _say(self, status: Plain) -> None:
        await self.api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})

    def bound(self, pod: Plain) -> None:
        """Note a pod of this node."""
        uid = pod["metadata"]["uid"]
        if uid not in self._seen and pod["status"]["phase"] == "Pending":
            self._seen.add(uid)
            self._pods.put_nowait(pod)

    async def admit(self) -> None:
        """Admit the pods that are bound to the node for ever, one after the other."""
        while True:
            pod = await self._pods.get()
            containers = pod["spec"]["containers"]
            try:
                given = await self.kubelet.admit(pod)
                if len(given) != len(containers):
                    raise ValueError("no device plugin is registered")
                for container in containers:
                    await self.kubelet.start_container(pod, container["name"])
            except (grpc.aio.AioRpcError, ValueError) as error:
                self.kubelet.forget(pod)
                why = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
                status = {
                    "phase": "Failed",
                    "reason": "UnexpectedAdmissionError",
                    "message": f"Allocate failed due to {why}, which is unexpected",
                }
            else:
                status = {"phase": "Running"}
            await self._write(pod, status)

    async def _write(self, pod: Plain, status: Plain) -> None:
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}/status"
        written = {**status, "startTime": now()}
        await insist(lambda: self.api.patch(path, {"status": written}))


def serving(*, ready: bool) -> Plain:
    """Return what a kubelet says of the pod of an agent."""
    container = {"name": "agent", "ready": ready, "restartCount": 0, "image": "", "imageID": ""}
    return {"containerStatuses": [container], "startTime": now()}


def alive() -> Plain:
    """Return a kubelet's sign of life."""
    return {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": now()}]}


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


async def insist(act: Any) -> Any:
    """Return what a call of the API answers, once it is there to answer."""
    while True:
        try:
            return await act()
        except ApiError as error:
            if 400 <= error.status < 500:
                raise
            await asyncio.sleep(0.5)


@asynccontextmanager
async def hollow_nodes(lab: Lab, api: Api, names: Iterable[str]) -> AsyncIterator[list[HollowNode]]:
    """Have such nodes meanwhile; they end with the lab."""
    nodes = [HollowNode(lab, api, name) for name in names]
    await asyncio.gather(*(node.join() for node in nodes))
    tasks = [asyncio.ensure_future(act()) for one in nodes for act in (one.beat, one.watch_agent)]
    try:
        for node in nodes:
            await node.furnish()
            await node.kubelet.start()
            node.start_agent()
            await asyncio.sleep(0.5)  # a program that starts keeps a processor busy for longer
        for node in nodes:
            while not await node.serves():
                await asyncio.sleep(1)
        tasks += [asyncio.ensure_future(node.admit()) for node in nodes]
        yield nodes
    finally:
        for node in nodes:
            node.stop_agent()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in nodes:
            await node.kubelet.stop()
