"""An API server in this process: pods and nodes, listed, watched, read and patched over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from attrs import define, field

Plain = dict[str, Any]


@define(eq=False)
class FakeApi:
    """Objects by path; `writes` counts what callers wrote, `methods` are those of all calls."""

    pods: dict[tuple[str, str], Plain] = field(factory=dict)
    nodes: dict[str, Plain] = field(factory=dict)
    metrics: dict[str, Callable[[], bytes]] = field(factory=dict)  # of pods, by name and port
    events: list[Plain] = field(factory=list)
    writes: int = 0
    methods: set[str] = field(factory=set)
    url: str = ""
    _version: int = 1
    _watchers: list[tuple[str, asyncio.Queue[Plain]]] = field(factory=list)

    def put(self, kind: str, item: Plain, *, event: str = "MODIFIED") -> None:
        """Store a pod or a node and tell who watches."""
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        about = item["metadata"]
        if kind == "pods":
            key = (about["namespace"], about["name"])
            if event == "DELETED":
                self.pods.pop(key, None)
            else:
                self.pods[key] = item
        else:
            self.nodes[about["name"]] = item
        for watched, queue in self._watchers:
            if watched == kind:
                queue.put_nowait({"type": event, "object": json.loads(json.dumps(item))})

    def watched(self, kind: str) -> bool:
        """Whether somebody is told of every change from now on."""
        return any(watched == kind for watched, _ in self._watchers)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve meanwhile; gives the URL."""
        app = web.Application()

        async def note(request: web.Request, _: web.StreamResponse) -> None:
            self.methods.add(request.method)

        app.on_response_prepare.append(note)
        app.router.add_get("/api/v1/{kind:pods|nodes|resourcequotas}", self._list)
        app.router.add_get("/api/v1/namespaces/{namespace}/{kind:resourcequotas}", self._list)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}", self._pod)
        app.router.add_get(
            "/api/v1/namespaces/{namespace}/pods/{name}/proxy/metrics", self._proxied
        )
        app.router.add_patch("/api/v1/nodes/{name}", self._patch)
        app.router.add_post("/api/v1/namespaces/{namespace}/events", self._event)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def _selected(self, kind: str, selector: str) -> list[Plain]:
        if kind == "resourcequotas":
            return []
        if not selector:
            return [*(self.nodes if kind == "nodes" else self.pods).values()]
        _, _, value = selector.partition("=")
        if kind == "nodes":
            return [node for name, node in self.nodes.items() if name == value]
        return [pod for pod in self.pods.values() if pod["spec"].get("nodeName") == value]

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind, selector = request.match_info["kind"], request.query.get("fieldSelector", "")
        if request.query.get("watch") != "true":
            items = self._selected(kind, selector)
            version = {"resourceVersion": str(self._version)}
            return web.json_response({"metadata": version, "items": items})
        queue: asyncio.Queue[Plain] = asyncio.Queue()
        self._watchers.append((kind, queue))
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            event = await queue.get()
            await answer.write(json.dumps(event).encode() + b"\n")

    async def _pod(self, request: web.Request) -> web.Response:
        pod = self.pods.get((request.match_info["namespace"], request.match_info["name"]))
        if pod is None:
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response(pod)

    async def _proxied(self, request: web.Request) -> web.Response:
        served = self.metrics.get(request.match_info["name"])
        if served is None:
            return web.json_response({"message": "no route to the pod"}, status=503)
        return web.Response(body=await asyncio.to_thread(served))

    async def _event(self, request: web.Request) -> web.Response:
        self.events.append(await request.json())
        return web.json_response(self.events[-1], status=201)

    async def _patch(self, request: web.Request) -> web.Response:
        node = self.nodes[request.match_info["name"]]
        body = await request.json()
        node["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        self.writes += 1
        self.put("nodes", node)
        return web.json_response(node)
