"""Prints the processor time of `hetero inventory --cluster`, of a generated cluster.

    python benchmarks/cluster_inventory.py [--nodes 5000] [--pods 10000] [--rounds 5]

The cluster is saved as kubectl saves one, and served by a small API server, which is a process of
its own and not counted. Time is that of the command (user and system, wait4), in milliseconds: the
least, and the median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hetero.kube.dra.offers import CAPACITIES, DRIVER, amount_of, device_name, slices
from hetero.kube.words.annotations import (
    ALLOCATION,
    INVENTORY,
    Assignment,
    inventory_text,
    published_devices,
)
from hetero.model import CORE, MEMORY, SLOTS, Allocation, Device, DeviceAllocation, Enforcement
from hetero.model.codec import dumps
from hetero.model.granularity import Fractional
from hetero.model.units import GiB

CARDS = 8
#: Pools of nodes, each with the model of its cards and their memory.
POOLS = (("train", "H200", 141), ("serve", "L40S", 48), ("lab", "A100-SXM4-80GB", 80))
START = (sys.executable, "-c", "from hetero.start import main; main()")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hetero-") as folder:
        saved = Path(folder, "cluster.json")
        objects = generated(arguments.nodes, arguments.pods)
        saved.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
        print(f"{arguments.nodes} nodes, {arguments.pods} pods, {saved.stat().st_size >> 20} MiB")
        by_claims = Path(folder, "claims.json")
        items = list(given_by_claims(objects))
        by_claims.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
        last = node_name(arguments.nodes - 1)
        with served(objects, Path(folder)) as kubeconfig:
            for title, words in {
                "from a file": ("--cluster", str(saved)),
                "from a file, one node": ("--cluster", str(saved), "--node", last),
                "from a file, by claims": ("--cluster", str(by_claims)),
                "from the API": ("--cluster",),
                "from the API, one node": ("--cluster", "--node", last),
            }.items():
                spent = [spent_ms(words, kubeconfig) for _ in range(arguments.rounds)]
                print(f"{title:24} {min(spent):6.0f} {statistics.median(spent):6.0f} ms")


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"node-{number:05}"


def generated(nodes: int, pods: int) -> list[dict[str, Any]]:
    """Return nodes of eight cards in three pools, a few of which are sick, and pods that hold some.

    A pod holds 30 % of a card, and each third pod two whole cards.
    """
    return [*map(_node, range(nodes)), *(_pod(number, nodes) for number in range(pods))]


def _node(number: int) -> dict[str, Any]:
    pool, model, size_gib = POOLS[number % len(POOLS)]
    devices = tuple(
        Device(
            uuid=_uuid(number, index),
            vendor="nvidia",
            model=f"NVIDIA {model}",
            index=index,
            capacity={CORE: 100, MEMORY: size_gib * GiB, SLOTS: 10},
            granularity=Fractional(),
            enforcement=Enforcement.PRELOAD,
            health="ok" if (number, index) not in {(7, 3), (1000, 0)} else "fell off the bus",
            numa=index // 4,
            pci=f"0000:{24 + index:02x}:00.0",
            attributes={"driver": "580.159.04", "minor": str(index)},
        )
        for index in range(CARDS)
    )
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node_name(number),
            "uid": f"node-uid-{number}",
            "labels": {"karpenter.sh/nodepool": pool, "kubernetes.io/arch": "amd64"},
            "annotations": {INVENTORY: inventory_text(devices)},
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"cloud://zone/{number}"},
        "status": {"allocatable": {"cpu": "96", "memory": "1Ti"}, "capacity": {"cpu": "96"}},
    }


def _uuid(node: int, index: int) -> str:
    return f"GPU-{node:08x}-0000-4000-8000-{index:012x}"


def _pod(number: int, nodes: int) -> dict[str, Any]:
    node = number % nodes
    size_gib = POOLS[node % len(POOLS)][2]
    whole = number % 3 == 0
    takes = (
        {CORE: 100, MEMORY: size_gib * GiB, SLOTS: 10}
        if whole
        else {CORE: 30, MEMORY: 10 * GiB, SLOTS: 1}
    )
    first = number // nodes * 2
    pieces = tuple(
        DeviceAllocation(device=_uuid(node, index % CARDS), vendor="nvidia", takes=takes)
        for index in range(first, first + 1 + whole)
    )
    uid = f"pod-uid-{number}"
    assignment = Assignment(
        node=node_name(node), uid=uid, containers=(("main", Allocation(pieces=pieces)),)
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"job-{number}",
            "namespace": "research",
            "uid": uid,
            "labels": {"app": "job"},
            "annotations": {ALLOCATION: dumps(assignment, indent=None)},
        },
        "spec": {
            "nodeName": node_name(node),
            "containers": [{"name": "main", "image": "registry.example/job:1"}],
        },
        "status": {"phase": "Running"},
    }


def given_by_claims(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the same nodes with slices in place of inventories, and a claim for each pod."""
    for each in objects:
        metadata = each["metadata"]
        name = metadata["name"]
        if each["kind"] != "Node":
            yield _claim(name, metadata["uid"], json.loads(metadata["annotations"][ALLOCATION]))
            yield {**each, "metadata": {**metadata, "annotations": {}}}
            continue
        yield {**each, "metadata": {**metadata, "annotations": {}}}
        devices = published_devices(metadata["annotations"][INVENTORY], node=name)
        for position, spec in enumerate(slices(devices, node_name=name, resources={}, roots={})):
            yield {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{name}-{position}", "uid": f"{name}-{position}"},
                "spec": {**spec, "pool": {**spec["pool"], "generation": 1}},
            }


def _claim(name: str, uid: str, assignment: dict[str, Any]) -> dict[str, Any]:
    """Return a claim that holds what a pod was assigned, and is reserved for that pod."""
    results = [
        {
            "request": "card",
            "driver": DRIVER,
            "pool": assignment["node"],
            "device": device_name(piece["device"]),
            "shareID": f"share-{uid}",
            "consumedCapacity": {
                capacity: amount_of(counter, piece["takes"][counter])
                for capacity, counter in CAPACITIES.items()
            },
        }
        for _, allocation in assignment["containers"]
        for piece in allocation["pieces"]
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "research", "uid": f"claim-{uid}"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
        },
    }


# --- an API -----------------------------------------------------------------------------------


@contextmanager
def served(objects: list[dict[str, Any]], folder: Path) -> Iterator[Path]:
    """Serve the objects by a process of its own, and yield the kubeconfig that names it."""
    (folder / "objects.json").write_text(json.dumps(objects))
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", str(folder / "objects.json")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = server.stdout.readline().strip() if server.stdout else ""
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "clusters": [{"name": "here", "cluster": {"server": address}}],
            "users": [{"name": "me", "user": {}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        yield folder / "kubeconfig"
    finally:
        server.kill()
        server.communicate()


def serve(path: Path) -> None:
    """Answer lists of nodes and pods in pages, and 404 to all else."""
    kinds: dict[str, list[dict[str, Any]]] = {"nodes": [], "pods": []}
    for each in json.loads(path.read_text()):
        kinds[f"{each['kind'].lower()}s"].append(each)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            items = kinds.get(url.path.rpartition("/")[2])
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            status, answer = (404, {}) if items is None else (200, page(items, query))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def page(items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    """Return a part of a list as an API server does, perhaps of the pods of one node."""
    _, _, node = query.get("fieldSelector", "").partition("spec.nodeName=")
    chosen = [each for each in items if not node or each["spec"].get("nodeName") == node]
    begin, limit = int(query.get("continue", "0")), int(query.get("limit", "0")) or len(chosen)
    end = begin + limit
    metadata = {"resourceVersion": "1", "continue": str(end) if end < len(chosen) else ""}
    return {"metadata": metadata, "items": chosen[begin:end]}


def spent_ms(words: tuple[str, ...], kubeconfig: Path) -> float:
    """Return the milliseconds of processor time that the command takes."""
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = subprocess.Popen(
        [*START, "inventory", *words],
        env={**clean, "KUBECONFIG": str(kubeconfig)},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(command.pid, 0)
    command.returncode = os.waitstatus_to_exitcode(status)
    if command.returncode:
        raise SystemExit(f"hetero inventory {' '.join(words)} ended with {command.returncode}")
    return 1000 * (used.ru_utime + used.ru_stime)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]))
    else:
        main()
