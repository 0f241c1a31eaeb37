"""How fast the scheduler extender decides, over HTTPS with mutual TLS, at 1,000 and 5,000 nodes.

    python benchmarks/extender.py

Nodes have eight cards; pods ask shares of four sizes. A decision is filter, prioritize and bind,
called one after the other as kube-scheduler does, each pod with the nodes in another order; the
API answers at once, so what is measured is the extender. What its caller does in between is told
apart, and so is the extender's processor time, since the clock on a busy machine also measures the
neighbours. Needs hetero[kube] and the NVIDIA vendor.
"""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import os
import random
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import json

from hetero.kube.api.annotations import INVENTORY, Key, inventory_text
from hetero.kube.api.settings import Settings
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.service.certificates import issue
from hetero.kube.service.https import Certificates, serve
from hetero.model import Enforcement
from hetero.model.units import GiB
from hetero.plugin.registry import Registry

PORT = 18443
SIZES = ((4096, 10), (8192, 20), (16384, 30), (32768, 60))


class InstantApi:
    """An API whose every call succeeds at once."""

    async def patch(self, path: str, body: Any) -> Any:  # noqa: ARG002 - the API's
        """Answer as if it was done."""
        return body

    post = patch


def served(nodes: int, folder: Path) -> None:
    """Serve an extender that knows so many nodes."""
    registry = Registry()
    vendor = registry.vendor("nvidia")
    key = Key(secret=b"benchmark" * 4)
    scheduler = Scheduler(InstantApi(), Settings().vocabulary(registry), key)  # type: ignore[arg-type]
    listed = []
    for node in range(nodes):
        cards = tuple(
            vendor.device(
                uuid=f"GPU-{node}-{index}",
                model="NVIDIA H200",
                index=index,
                memory=141 * GiB,
                enforcement=Enforcement.PRELOAD,
            )
            for index in range(8)
        )
        metadata = {
            "name": f"node-{node}",
            "annotations": {INVENTORY: inventory_text(cards)},
        }
        listed.append({"metadata": metadata})
    scheduler._nodes_listed(listed)
    scheduler._pods_listed([])
    scheduler._quotas_listed([])
    certificates = Certificates(
        cert=folder / "scheduler.crt", key=folder / "scheduler.key", client_ca=folder / "ca.crt"
    )
    asyncio.run(serve(scheduler.app(), host="127.0.0.1", port=PORT, certificates=certificates))


def pod(number: int) -> Any:
    """Return a pod, one of four sizes."""
    memory, core = SIZES[number % len(SIZES)]
    limits = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(memory),
        "nvidia.com/gpucores": str(core),
    }
    return {
        "metadata": {"name": f"p{number}", "namespace": "default", "uid": f"uid-{number}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


def measure(nodes: int, pods: int, folder: Path) -> None:
    """Print how long so many decisions took."""
    server = multiprocessing.Process(target=served, args=(nodes, folder), daemon=True)
    server.start()
    tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    tls.load_cert_chain(folder / "caller.crt", folder / "caller.key")
    connection = http.client.HTTPSConnection("localhost", PORT, context=tls)
    for _ in range(300):
        try:
            connection.connect()
            break
        except OSError:
            time.sleep(0.1)
    connection.sock.setsockopt(6, 1, 1)  # TCP_NODELAY, as Go has it

    def call(verb: str, **args: Any) -> Any:
        body = json.encode(args)  # compact, as Go has it
        head = f"POST /{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        started = time.perf_counter()
        connection.sock.sendall(head.encode() + body)
        response = http.client.HTTPResponse(connection.sock)
        response.begin()
        answer = response.read()
        seconds[verb].append(time.perf_counter() - started)
        return json.decode(answer)

    names = [f"node-{number}" for number in range(nodes)]
    seconds: dict[str, list[float]] = {"filter": [], "prioritize": [], "bind": []}
    chance = random.Random(nodes)
    started, busy = time.perf_counter(), processor(server.pid)
    for number in range(pods):
        plain = pod(number)
        first = chance.randrange(nodes)
        answer = call("filter", Pod=plain, NodeNames=names[first:] + names[:first])
        scores = call("prioritize", Pod=plain, NodeNames=answer["NodeNames"])
        best = (
            max(scores, key=lambda one: one["Score"])["Host"] if scores else answer["NodeNames"][0]
        )
        metadata = plain["metadata"]
        answer = call(
            "bind",
            PodName=metadata["name"],
            PodNamespace="default",
            PodUID=metadata["uid"],
            Node=best,
        )
        if answer:
            sys.exit(str(answer))
    total = time.perf_counter() - started
    busy = processor(server.pid) - busy
    server.terminate()
    server.join()
    for verb, values in seconds.items():
        ranked = sorted(values)
        p50, p99 = (ranked[int(len(ranked) * share)] * 1000 for share in (0.5, 0.99))
        print(f"{nodes:6} nodes  {verb:10}  p50 {p50:6.2f} ms  p99 {p99:6.2f} ms")
    waited = sum(map(sum, seconds.values()))
    print(
        f"{nodes:6} nodes  {pods} pods: {pods / waited:.0f} pods/s waited for, {pods / total:.0f} "
        f"pods/s with the caller's own work; {busy / pods * 1000:.2f} ms of processor time a pod"
    )


def processor(pid: int | None) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure at both sizes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = issue("ca", by=None)
        made = {
            "ca": authority,
            "scheduler": issue("scheduler", by=authority, hosts=("localhost",)),
            "caller": issue("caller", by=authority),
        }
        for file, pair in made.items():
            texts = pair.texts()
            (folder / f"{file}.crt").write_bytes(texts["tls.crt"])
            (folder / f"{file}.key").write_bytes(texts["tls.key"])
        for nodes in (1000, 5000):
            measure(nodes, 1000, folder)


if __name__ == "__main__":
    main()
