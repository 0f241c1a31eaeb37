"""How fast the scheduler extender decides, over HTTPS with mutual TLS, at 500 and 5,000 nodes.

    python -m benchmarks.extender

Nodes have eight cards; pods ask shares of four sizes. Filters come one after the other on one
connection and binds on others meanwhile, as kube-scheduler calls; each filter has the nodes in
another order. The API answers at once, so what is measured is the extender with its caller. The
extender's processor time is told apart, since the clock on a busy machine also measures the
neighbours. Beside it a service that decides nothing answers the same calls: what HTTPS costs here.
Needs hetero[kube] and the NVIDIA vendor.
"""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import os
import queue
import random
import ssl
import tempfile
import threading
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from aiohttp import web
from msgspec import json

from hetero.kube.objects.kinds import Metadata, NodeObject
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.server.key_pair import issue
from hetero.kube.service.https import Certificates, serve
from hetero.kube.words.annotations import INVENTORY, inventory_text
from hetero.kube.words.settings import Settings
from hetero.kube.words.signing import SigningKey
from hetero.registry.registry import Registry
from tests.kube.eight_cards import eight_cards, node_name

PORT = 18443
#: Orders that the nodes come in, and connections that bind.
ORDERS, BINDERS = 50, 4
SIZES = ((4096, 10), (8192, 20), (16384, 30), (32768, 60))


class InstantApi:
    """An API whose every call succeeds at once."""

    async def post(self, path: str, body: Any) -> Any:  # noqa: ARG002 - the API's
        """Answer as if it was done."""
        return body


def extender(nodes: int) -> web.Application:
    """Return an extender that knows so many nodes."""
    registry = Registry()
    vendor = registry.vendor("nvidia")
    key = SigningKey.new()
    scheduler = Scheduler(InstantApi(), Settings().vocabulary(registry), key)  # type: ignore[arg-type]
    listed = []
    for node in range(nodes):
        notes = {INVENTORY: inventory_text(eight_cards(vendor, node))}
        listed.append(NodeObject(metadata=Metadata(name=node_name(node), annotations=notes)))
    scheduler.nodes.listed(listed)
    scheduler.pods.listed([])
    scheduler.quotas.listed([])
    return scheduler.calls.app()


def nothing(nodes: int) -> web.Application:
    """Return a service that reads what it is asked, and answers the last node or success."""

    async def named(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b'{"NodeNames":["%b"]}' % node_name(nodes - 1).encode())

    async def bound(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"{}")

    app = web.Application(client_max_size=1 << 24)
    app.add_routes([web.post("/filter", named), web.post("/bind", bound)])
    return app


def served(app: web.Application, folder: Path) -> None:
    """Serve it until it is ended."""
    certificates = Certificates(
        cert=folder / "scheduler.crt", key=folder / "scheduler.key", client_ca=folder / "ca.crt"
    )
    asyncio.run(serve(app, host="127.0.0.1", port=PORT, certificates=certificates))


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


class Caller:
    """One connection of kube-scheduler's."""

    def __init__(self, folder: Path) -> None:
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        tls.load_cert_chain(folder / "caller.crt", folder / "caller.key")
        self.connection = http.client.HTTPSConnection("localhost", PORT, context=tls)
        for _ in range(300):
            try:
                self.connection.connect()
                break
            except OSError:
                time.sleep(0.1)
        self.connection.sock.setsockopt(6, 1, 1)  # TCP_NODELAY, as Go has it
        self.seconds: list[float] = []

    def call(self, verb: str, body: bytes) -> Any:
        """Return what is answered."""
        head = f"POST /{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        started = time.perf_counter()
        self.connection.sock.sendall(head.encode() + body)
        response = http.client.HTTPResponse(self.connection.sock)
        response.begin()
        answer = response.read()
        self.seconds.append(time.perf_counter() - started)
        return json.decode(answer)


def bind(caller: Caller, decided: queue.Queue[tuple[int, str] | None]) -> None:
    """Bind what was decided, one after the other."""
    while (decision := decided.get()) is not None:
        number, node = decision
        named = {"PodName": f"p{number}", "PodNamespace": "default", "PodUID": f"uid-{number}"}
        answer = caller.call("bind", json.encode({**named, "Node": node}))
        if answer:
            print(f"bind: {answer}", flush=True)
            os._exit(1)


def measure(what: str, app: web.Application, nodes: int, pods: int, folder: Path) -> None:
    """Print how long so many decisions took."""
    server = multiprocessing.Process(target=served, args=(app, folder), daemon=True)
    server.start()
    names, chance, orders = list(map(node_name, range(nodes))), random.Random(nodes), []
    for _ in range(ORDERS):
        chance.shuffle(names)
        orders.append(json.encode(names))
    filters, decided = Caller(folder), queue.Queue[Any]()
    binders = [Caller(folder) for _ in range(BINDERS)]
    threads = [threading.Thread(target=bind, args=(one, decided)) for one in binders]
    for thread in threads:
        thread.start()
    started, busy = time.perf_counter(), processor(server.pid)
    for number in range(pods):
        body = b'{"Pod":%b,"NodeNames":%b}' % (json.encode(pod(number)), orders[number % ORDERS])
        answer = filters.call("filter", body)
        decided.put((number, answer["NodeNames"][0]))
    for _ in threads:
        decided.put(None)
    for thread in threads:
        thread.join()
    total, busy = time.perf_counter() - started, processor(server.pid) - busy
    server.terminate()
    server.join()
    for verb, callers in (("filter", [filters]), ("bind", binders)):
        ranked = sorted(second for caller in callers for second in caller.seconds)
        mean, p50, p99 = (
            1000 * value
            for value in (fmean(ranked), ranked[len(ranked) // 2], ranked[len(ranked) * 99 // 100])
        )
        print(
            f"{what:8} {nodes:6} nodes  {verb:6} mean {mean:6.2f}  "
            f"p50 {p50:6.2f}  p99 {p99:6.2f} ms"
        )
    print(
        f"{what:8} {nodes:6} nodes  {pods} pods: {pods / total:.0f} pods/s with the caller on the "
        f"same processors; {busy / pods * 1000:.2f} ms of the service's processor time a pod",
        flush=True,
    )


def processor(pid: int | None) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure at both sizes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = issue("ca", issuer=None)
        made = {
            "ca": authority,
            "scheduler": issue("scheduler", issuer=authority, hosts=("localhost",)),
            "caller": issue("caller", issuer=authority),
        }
        for file, pair in made.items():
            texts = pair.texts()
            (folder / f"{file}.crt").write_bytes(texts["tls.crt"])
            (folder / f"{file}.key").write_bytes(texts["tls.key"])
        for nodes in (500, 5000):
            measure("extender", extender(nodes), nodes, 2000, folder)
            measure("nothing", nothing(nodes), nodes, 2000, folder)


if __name__ == "__main__":
    main()
