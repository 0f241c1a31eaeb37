"""Places pods through a real API server and kube-scheduler 1.36, and prints how well and how fast.

    python -m benchmarks.cluster packing TRACE [--pods default] [--kill-at 4000]
    python -m benchmarks.cluster speed [--nodes 500]

`packing` places the pods of an openb list in the order of the file and compares with what
`hetero simulate --arrival file` does; `--kill-at` kills the extender once that many pods are bound.
`speed` binds 2,000 pods by one KubeSchedulerConfiguration with the extender and without it. The
binaries are those of the tests (tests/kube/binaries.py); no kubelet runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attrs import evolve

from hetero.kube.client.api import Access, Api
from hetero.kube.objects.kinds import Plain, Pod
from hetero.kube.scheduler.kubelet_watches import REWATCH_S
from hetero.kube.words.annotations import ALLOCATION, INVENTORY, inventory_text
from hetero.kube.words.signing import SigningKey
from hetero.model.units import GiB, MiB
from hetero.placement.cluster import PlacedNode, PlacedPod
from hetero.registry.registry import Registry
from hetero.simulate.player import Player
from hetero.simulate.replay import demands
from hetero.simulate.trace import Trace, read
from tests.kube.binaries import LABS, binaries
from tests.kube.conftest import extender_settings
from tests.kube.control_plane import (
    TOKEN,
    Authority,
    ControlPlane,
    control_plane,
    free_port,
    wait_for,
)
from tests.kube.eight_cards import eight_cards, node_name

PODS = "/api/v1/namespaces/default/pods"
#: The pods that are compared one by one, and those whose binding is timed.
FIRST, TIMED = 500, 2000
#: Seconds without news after which all that can be placed has been.
QUIET = 20.0
#: The settings: arrivals of one run all count alike, as in a replay without times.
SETTINGS = "half-life-days = 3650\n"


def main() -> None:
    """Place a trace, or time bindings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    chosen = parser.add_subparsers(required=True)
    packing = chosen.add_parser("packing")
    packing.add_argument("trace", type=Path)
    packing.add_argument("--pods", default="default")
    packing.add_argument("--kill-at", type=int, default=0)
    packing.set_defaults(act=lambda it: pack(it.trace, it.pods, kill_at=it.kill_at))
    speed = chosen.add_parser("speed")
    speed.add_argument("--nodes", type=int, default=500)
    speed.set_defaults(act=lambda it: compare_speed(it.nodes))
    options = parser.parse_args()
    options.act(options)


# --- packing --------------------------------------------------------------------------------------


def pack(path: Path, pods: str, *, kill_at: int) -> None:
    """Print what a cluster and a simulation make of the same pods in the same order."""
    trace = read(path, pods=pods)
    asked, cards = demands(trace), sum(len(node.devices) for node in trace.nodes)
    expected = simulated(trace)
    with tempfile.TemporaryDirectory() as name, cluster(Path(name), LABS[-1]) as plane:
        started = time.monotonic()
        watched = asyncio.run(place_all(plane, trace, kill_at=kill_at))
        took = time.monotonic() - started - QUIET
        used = processor_seconds(plane)
    placed_by_cluster = {name: node for name, node in watched.nodes.items() if node}
    for what, placed in (("simulate", expected), ("cluster", placed_by_cluster)):
        sizes = sum(
            size for pod, size in zip(trace.pods, asked, strict=True) if placed.get(pod.name)
        )
        print(f"{what:9} {sizes / cards / 10:6.2f} % of {cards} cards, {len(placed)} pods placed")
    first = [pod.name for pod in trace.pods[:FIRST]]
    same = sum(expected.get(one) == placed_by_cluster.get(one) for one in first)
    alike = sum(expected.get(pod.name) == placed_by_cluster.get(pod.name) for pod in trace.pods)
    print(f"on the same nodes: {same} of the first {len(first)}, {alike} of {len(trace.pods)}")
    print(f"cards over capacity: {over_capacity(trace, watched.pods.values())}")
    print(f"{took:.0f} s; processor seconds: {used}")


def simulated(trace: Trace) -> dict[str, str]:
    """Return the node of each pod that `hetero simulate --arrival file` places, by names."""
    player = Player("fragmentation", trace.nodes, trace.pods, 42)
    for pod in trace.pods:
        player.place(pod.name, pod, 0.0)
    return {name: placement.node for name, placement in player.cache.standing.items()}


def over_capacity(trace: Trace, pods: Iterable[Pod]) -> int:
    """Return how many cards have given more memory than they have, by the pods' allocations."""
    given = Counter[str]()
    for pod in pods:
        text = pod.metadata.annotations.get(ALLOCATION)
        for _, allocation in json.loads(text)["containers"] if text else ():
            for piece in allocation["pieces"]:
                given[piece["device"]] += piece["takes"]["memory"]
    have = {device.uuid: device.capacity["memory"] for n in trace.nodes for device in n.devices}
    return sum(amount > have[uuid] for uuid, amount in given.items())


class Watched:
    """What the API says of the pods, by name; `nodes` is "" for one that nothing serves."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}
        self.pods: dict[str, Pod] = {}
        self.bound: list[float] = []  # when each was heard to be bound
        self.news = time.monotonic()

    def listed(self, pods: list[Pod]) -> None:
        """Note all pods there are."""
        for pod in pods:
            self.changed("ADDED", pod)

    def changed(self, _: str, pod: Pod) -> None:
        """Note what became of a pod."""
        name, node = pod.metadata.name, pod.spec.node_name
        if node is None and not any(one.status == "False" for one in pod.status.conditions):
            return
        if node and not self.nodes.get(name):
            self.bound.append(time.monotonic())
        if self.nodes.get(name) != (node or ""):
            self.news = time.monotonic()
        self.nodes[name], self.pods[name] = node or "", pod


async def place_all(plane: ControlPlane, trace: Trace, *, kill_at: int) -> Watched:
    """Make the nodes, then the pods one after the other, and wait until nothing changes."""
    async with session(plane) as (api, watched):
        await api.post("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "mix"}})
        await add_nodes(api, trace.nodes)
        start_extender(plane, SETTINGS)
        start_scheduler(plane, extender=True)
        for number, pod in enumerate(trace.pods):
            await api.post(PODS, pod_of(pod))
            if number + 1 == kill_at:
                plane.kill_and_restart("extender")
        while len(watched.nodes) < len(trace.pods) or time.monotonic() < watched.news + QUIET:
            if time.monotonic() > watched.news + 10 * QUIET:
                sys.exit(f"only {len(watched.nodes)} of {len(trace.pods)} pods were decided")
            await asyncio.sleep(0.5)
    return watched


def pod_of(pod: PlacedPod) -> Plain:
    """Return a pod of a trace as the API takes it; one without cards asks for 0 of them."""
    container, notes = pod.containers[0], {}
    request, resources = container.request, {"nvidia.com/gpu": "0"}
    if request is not None:
        resources["nvidia.com/gpu"] = str(len(request.asks))
        if request.asks[0].memory is not None:
            resources["nvidia.com/gpumem"] = str(request.asks[0].memory // MiB)
        if request.model.include:
            notes["nvidia.com/use-gputype"] = ",".join(request.model.include)
    resources["cpu"] = f"{container.host['cpu']}m"
    resources["memory"] = str(container.host["memory"])
    return plain_pod(pod.name, resources, notes)


# --- speed ----------------------------------------------------------------------------------------


def compare_speed(nodes: int) -> None:
    """Print how fast pods are bound with the extender and without it."""
    rates = {}
    for extender in (False, True):
        with tempfile.TemporaryDirectory() as name, cluster(Path(name), LABS[-1]) as plane:
            rates[extender], used = asyncio.run(bind_all(plane, nodes, extender=extender))
        what = "with the extender" if extender else "without"
        print(
            f"{nodes} nodes, {what}: {rates[extender]:.0f} pods/s; processor seconds: {used}",
            flush=True,
        )
    print(f"{nodes} nodes: ratio {rates[True] / rates[False]:.2f}")


async def bind_all(plane: ControlPlane, nodes: int, *, extender: bool) -> tuple[float, str]:
    """Return the pods bound a second, from the first to the last, and what processes used."""
    vendor = Registry().vendor("nvidia")

    def made(number: int) -> PlacedNode:
        host = {"cpu": 64_000, "memory": 1024 * GiB}
        return PlacedNode(name=node_name(number), devices=eight_cards(vendor, number), host=host)

    async with session(plane) as (api, watched):
        await add_nodes(api, map(made, range(nodes)))
        if extender:  # before the pods: it touches those that waited for it
            start_extender(plane, "")
        share = {"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192"}
        await each(
            (plain_pod(f"p{number}", share, {}) for number in range(TIMED)),
            lambda body: api.post(PODS, body),
        )
        before = plane.processor_seconds()
        start_scheduler(plane, extender=extender)
        while len(watched.bound) < TIMED:
            if time.monotonic() > watched.news + 10 * QUIET:
                sys.exit(f"only {len(watched.bound)} of {TIMED} pods were bound")
            await asyncio.sleep(0.2)
    used = processor_seconds(plane, before)
    return (TIMED - 1) / (watched.bound[-1] - watched.bound[0]), used


# --- a cluster without kubelets -------------------------------------------------------------------


@contextmanager
def cluster(folder: Path, lab: str) -> Iterator[ControlPlane]:
    """Run etcd and kube-apiserver of a lab."""
    programs = folder / "programs"
    programs.mkdir()
    with control_plane(folder, binaries=binaries(programs, lab)) as plane:
        yield plane


def start_extender(plane: ControlPlane, settings: str) -> None:
    """Run the extender, and wait until it knows the cluster and takes all kubelets to watch."""
    authority, port = Authority(plane.folder), free_port()
    (cert, key), caller = authority.issue("extender"), authority.issue("kube-scheduler")
    url = f"https://127.0.0.1:{port}"
    (plane.folder / "signing-key").write_bytes(SigningKey.new().text())
    (plane.folder / "settings.toml").write_text(settings)
    (plane.folder / "extender.json").write_text(
        json.dumps(extender_settings(url, authority, caller))
    )
    environ = {
        "KUBECONFIG": str(plane.kubeconfig),
        "HETERO_KEY_FILE": str(plane.folder / "signing-key"),
    }
    plane.start(
        "extender", sys.executable, "-m", "hetero.cli", "scheduler",
        "--host", "127.0.0.1", "--port", str(port), "--mix", "default/mix",
        "--config", str(plane.folder / "settings.toml"),
        "--cert", str(cert), "--key", str(key), "--client-ca", str(authority.path), env=environ,
    )  # fmt: skip
    tls = ssl.create_default_context(cafile=str(authority.path))
    tls.load_cert_chain(*caller)
    asked = {"Pod": {"metadata": {"uid": ""}, "spec": {"containers": []}}, "NodeNames": []}
    wait_for(lambda: "Error" not in (answer(f"{url}/prioritize", tls, asked) or "Error"))
    time.sleep(REWATCH_S)


def answer(url: str, tls: ssl.SSLContext, body: Plain | None = None) -> str | None:
    """Return what is answered, None where nobody answers."""
    payload = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(url, payload, context=tls, timeout=10) as heard:  # noqa: S310
            text: str = heard.read().decode()
            return text
    except OSError:
        return None


def start_scheduler(plane: ControlPlane, *, extender: bool) -> None:
    """Run kube-scheduler, with the extender that runs or without any."""
    config, port = plane.folder / "scheduler.json", free_port()
    extenders = [json.loads((plane.folder / "extender.json").read_text())] if extender else []
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.kubeconfig), "qps": 5000, "burst": 5000},
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": "hetero-scheduler"}],
        "extenders": extenders,
    }
    config.write_text(json.dumps(document))
    plane.start(
        "scheduler", str(plane.binaries / "kube-scheduler"), f"--config={config}",
        "--bind-address=127.0.0.1", f"--secure-port={port}",
        f"--cert-dir={plane.folder / 'scheduler'}",
    )  # fmt: skip
    tls = ssl._create_unverified_context()  # noqa: S323 - its certificate is its own
    wait_for(lambda: answer(f"https://127.0.0.1:{port}/readyz", tls))


class session:  # noqa: N801 - used as a context manager
    """The API of a control plane, and its pods followed meanwhile."""

    def __init__(self, plane: ControlPlane) -> None:
        tls = ssl._create_unverified_context()  # noqa: S323 - its certificate is its own
        access = Access(server=f"https://127.0.0.1:{plane.port}", tls=tls, token=TOKEN)
        self.opened = Api(access).open()
        self.watched = Watched()

    async def __aenter__(self) -> tuple[Api, Watched]:
        api = await self.opened.__aenter__()
        seen = self.watched
        self.following = asyncio.ensure_future(
            api.follow(PODS, Pod, listed=seen.listed, changed=seen.changed, lost=print)
        )
        return api, seen

    async def __aexit__(self, *_: object) -> None:
        self.following.cancel()
        with suppress(asyncio.CancelledError):
            await self.following
        await self.opened.__aexit__(None, None, None)


async def each(bodies: Iterable[Any], act: Callable[[Any], Awaitable[Any]]) -> None:
    """Act on each of the bodies, sixteen at a time."""
    left = iter(bodies)

    async def work() -> None:
        for body in left:
            await act(body)

    await asyncio.gather(*(work() for _ in range(16)))


async def add_nodes(api: Api, nodes: Iterable[PlacedNode]) -> None:
    """Make Nodes that look ready to schedulers, with their cards as agents publish them."""

    async def add(node: PlacedNode) -> None:
        cards = tuple(evolve(device, vendor="nvidia") for device in node.devices)
        notes = {INVENTORY: inventory_text(cards)}
        path = f"/api/v1/nodes/{node.name}"
        await api.post("/api/v1/nodes", {"metadata": {"name": node.name, "annotations": notes}})
        amounts = {
            "cpu": f"{node.host['cpu']}m",
            "memory": str(node.host["memory"]),
            "pods": "1000",
            # Counted by kube-scheduler where no extender has it ignore them.
            "nvidia.com/gpu": "1000",
            "nvidia.com/gpumem": "10000000",
        }
        ready = [{"type": "Ready", "status": "True"}]
        status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
        await api.patch(f"{path}/status", {"status": status})
        await api.patch(path, {"spec": {"taints": None}})

    await each(nodes, add)


def plain_pod(name: str, resources: dict[str, str], notes: dict[str, str]) -> Plain:
    """Return a pod of one container, for the scheduler that is measured."""
    container = {"name": "main", "image": "none", "resources": {"limits": resources}}
    return {
        "metadata": {"name": name, "annotations": notes},
        "spec": {"schedulerName": "hetero-scheduler", "containers": [container]},
    }


def processor_seconds(plane: ControlPlane, before: dict[str, float] | None = None) -> str:
    """Return what each process has used since, in words."""
    since = before or {}
    return ", ".join(
        f"{name} {used - since.get(name, 0.0):.1f}"
        for name, used in plane.processor_seconds().items()
    )


if __name__ == "__main__":
    main()
