"""An API server in this process: pods, nodes, claims and slices over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from attrs import define, field

from hetero.kube.words.annotations import INVENTORY

Plain = dict[str, Any]
PUBLISH = "/api/v1/namespaces/hetero-system/services/https:hetero-webhook:https/proxy/inventory"


@define(eq=False)
class FakeApi:
    """Objects by path; `writes` counts what callers wrote, `methods` are those of all calls."""

    pods: dict[tuple[str, str], Plain] = field(factory=dict)
    nodes: dict[str, Plain] = field(factory=dict)
    slices: dict[str, Plain] = field(factory=dict)
    claims: dict[str, Plain] = field(factory=dict)  # of the namespace default
    consumable: bool = True  # whether several claims may consume one device
    # The kinds that it answers otherwise, each with the HTTP status.
    refused: dict[str, int] = field(factory=dict)
    metrics: dict[str, Callable[[], bytes]] = field(factory=dict)  # of pods, by name and port
    events: list[Plain] = field(factory=list)
    away: bool = False  # whether it answers nobody who asks for a list
    silent: bool = False  # whether it takes such a question and never answers
    writes: int = 0
    methods: set[str] = field(factory=set)
    url: str = ""
    _version: int = 1
    _watchers: list[tuple[str, asyncio.Queue[Plain]]] = field(factory=list)
    # What was told: its version, of which kind, and the event.
    _told: list[tuple[int, str, Plain]] = field(factory=list)

    def put(self, kind: str, item: Plain, *, event: str = "MODIFIED") -> None:
        """Store an object and tell who watches."""
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        about = item["metadata"]
        if kind == "pods":
            key = (about["namespace"], about["name"])
            if event == "DELETED":
                self.pods.pop(key, None)
            else:
                self.pods[key] = item
        elif kind in ("resourceslices", "resourceclaims"):
            items = self.slices if kind == "resourceslices" else self.claims
            items[about["name"]] = item
            if event == "DELETED":
                del items[about["name"]]
        else:
            self.nodes[about["name"]] = item
        notice = {"type": event, "object": json.loads(json.dumps(item))}
        self._told.append((self._version, kind, notice))
        for watched, queue in self._watchers:
            if watched == kind:
                queue.put_nowait(notice)

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
        app.router.add_get("/api/v1/nodes/{name}", self._node)
        app.router.add_patch("/api/v1/nodes/{name}", self._annotate)
        resources = "/apis/resource.k8s.io/v1"
        app.router.add_get(f"{resources}/{{kind:resourceslices|resourceclaims}}", self._list)
        app.router.add_post(f"{resources}/resourceslices", self._add_slice)
        app.router.add_route("*", f"{resources}/resourceslices/{{name}}", self._change_slice)
        app.router.add_get(f"{resources}/namespaces/default/resourceclaims/{{name}}", self._claim)
        app.router.add_patch(
            f"{resources}/namespaces/default/resourceclaims/{{name}}/status", self._claim_status
        )
        app.router.add_get("/api/v1/namespaces/{namespace}/{kind:pods|resourcequotas}", self._list)
        app.router.add_get(
            "/api/v1/namespaces/{namespace}/pods/{name}/proxy/metrics", self._proxied
        )
        app.router.add_post(
            "/api/v1/namespaces/{namespace}/serviceaccounts/hetero-metrics/token", self._lend
        )
        app.router.add_post("/api/v1/namespaces/{namespace}/pods/{name}/binding", self._bind)
        app.router.add_post(PUBLISH, self._publish)
        app.router.add_post("/api/v1/namespaces/{namespace}/events", self._event)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def _selected(self, kind: str, selector: str, namespace: str = "") -> list[Plain]:
        if kind == "resourcequotas":
            return []
        if kind in ("resourceslices", "resourceclaims"):
            return [*(self.slices if kind == "resourceslices" else self.claims).values()]
        if not selector:
            return [*(self.nodes if kind == "nodes" else self.pods).values()]
        what, _, value = selector.partition("=")
        if kind == "nodes":
            return [node for name, node in self.nodes.items() if name == value]
        if what == "metadata.name":
            return [pod for key, pod in self.pods.items() if key == (namespace, value)]
        return [pod for pod in self.pods.values() if pod["spec"].get("nodeName") == value]

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind, selector = request.match_info["kind"], request.query.get("fieldSelector", "")
        if self.silent:
            await asyncio.Event().wait()
        if self.away:
            return web.json_response({"message": "away"}, status=503)
        if kind in self.refused:
            return web.json_response({"message": f"no {kind}"}, status=self.refused[kind])
        if request.query.get("watch") != "true":
            items = self._selected(kind, selector, request.match_info.get("namespace", ""))
            version = {"resourceVersion": str(self._version)}
            return web.json_response({"metadata": version, "items": items})
        queue: asyncio.Queue[Plain] = asyncio.Queue()
        since = int(request.query.get("resourceVersion") or self._version)
        for at, what, notice in self._told:  # between the list and this
            if what == kind and at > since:
                queue.put_nowait(notice)
        self._watchers.append((kind, queue))
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            event = await queue.get()
            await answer.write(json.dumps(event).encode() + b"\n")

    async def _node(self, request: web.Request) -> web.Response:
        node = self.nodes.get(request.match_info["name"])
        if node is None:
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response(node)

    async def _annotate(self, request: web.Request) -> web.Response:
        """Merge annotations into a node: null removes one."""
        node, metadata = self.nodes[request.match_info["name"]], (await request.json())["metadata"]
        changes, version = metadata["annotations"], node["metadata"]["resourceVersion"]
        if metadata.get("resourceVersion", version) != version:
            return web.json_response({"message": "it was changed meanwhile"}, status=409)
        merged = {**node["metadata"].get("annotations", {}), **changes}
        left = {name: text for name, text in merged.items() if text is not None}
        self.put("nodes", {**node, "metadata": {**node["metadata"], "annotations": left}})
        return web.json_response(self.nodes[request.match_info["name"]])

    async def _claim(self, request: web.Request) -> web.Response:
        claim = self.claims.get(request.match_info["name"])
        if claim is None:
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response(claim)

    async def _claim_status(self, request: web.Request) -> web.Response:
        """Take what is applied: entries that are of one device and share replace each other."""
        assert "application/apply-patch+yaml" == request.content_type
        claim, status = self.claims.get(request.match_info["name"]), await request.json()
        if claim is None or claim["metadata"]["uid"] != status["metadata"]["uid"]:
            return web.json_response({"message": "not found"}, status=404)
        names = ("driver", "pool", "device", "shareID")
        entries = (*claim["status"].get("devices", ()), *status["status"]["devices"])
        by_key = {tuple(one.get(name) for name in names): one for one in entries}
        claim["status"]["devices"] = [*by_key.values()]
        self.writes += 1
        return web.json_response(claim)

    async def _add_slice(self, request: web.Request) -> web.Response:
        made = await request.json()
        if request.query.get("dryRun") == "All":
            for device in made["spec"]["devices"] if not self.consumable else ():
                device.pop("allowMultipleAllocations")  # as with fields of a gate that is off
            return web.json_response(made, status=201)
        self.writes += 1
        self.put("resourceslices", made, event="ADDED")
        return web.json_response(made, status=201)

    async def _change_slice(self, request: web.Request) -> web.Response:
        stored = self.slices.get(request.match_info["name"])
        if stored is None:
            return web.json_response({"message": "not found"}, status=404)
        self.writes += 1
        if request.method == "DELETE":
            self.put("resourceslices", stored, event="DELETED")
            return web.json_response(stored)
        made = await request.json()
        if made["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
            return web.json_response({"message": "changed meanwhile"}, status=409)
        self.put("resourceslices", made)
        return web.json_response(made)

    async def _proxied(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        served = self.metrics.get(name)
        if name.startswith("https:") and request.headers.get("Hetero-Token") != "lent":
            return web.json_response({"message": "Unauthorized"}, status=401)
        if served is None:
            return web.json_response({"message": "no route to the pod"}, status=503)
        return web.Response(body=await asyncio.to_thread(served))

    async def _lend(self, request: web.Request) -> web.Response:
        assert ["hetero.io/metrics"] == (await request.json())["spec"]["audiences"]
        return web.json_response({"status": {"token": "lent"}}, status=201)

    async def _bind(self, request: web.Request) -> web.Response:
        """Bind a pod to a node; the annotations of a binding become the pod's."""
        binding = await request.json()
        pod = self.pods[request.match_info["namespace"], request.match_info["name"]]
        pod["spec"]["nodeName"] = binding["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(binding["metadata"]["annotations"])
        self.put("pods", pod)
        return web.json_response({}, status=201)

    async def _event(self, request: web.Request) -> web.Response:
        self.events.append(await request.json())
        return web.json_response(self.events[-1], status=201)

    async def _publish(self, request: web.Request) -> web.Response:
        """Do what the webhook does: a token here is the name of the node that it is good for."""
        publication = await request.json()
        node = self.nodes[publication["token"]]
        node["metadata"].setdefault("annotations", {})[INVENTORY] = publication["inventory"]
        status = node.setdefault("status", {})
        for amounts in ("capacity", "allocatable") if "sizes" in publication else ():
            sizes = {name: str(amount) for name, amount in publication["sizes"].items()}
            status[amounts] = {**status.get(amounts, {}), **sizes}
        self.writes += 1
        self.put("nodes", node)
        return web.json_response(node)
