"""Services go on whatever a watch tells them of: an odd object harms itself alone."""

import asyncio
import json
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from hetero.kube.client.api import Access, Api
from hetero.kube.objects.kinds import NodeObject, Object, Pod
from hetero.kube.scheduler.extender import Scheduler
from hetero.kube.words.annotations import INVENTORY, inventory_text
from tests.kube import api_server
from tests.kube.conftest import card
from tests.kube.test_objects import KINDS, METADATA, OBJECTS, ODD, changed
from tests.kube.test_pod_request import WORDS, pod
from tests.kube.test_scheduler import KEY
from tests.kube.world import until, world

Plain = dict[str, Any]


@KINDS
async def test_a_watch_goes_on_whatever_it_tells_of(kind: type[Object]) -> None:
    well = {"metadata": {"name": "well", "uid": "u", "resourceVersion": "7"}}
    unnamed = {"metadata": {"resourceVersion": "8"}, "spec": {"containers": None}}
    odd = [plain for _, plain in changed(OBJECTS[kind])]
    events = [
        *({"type": "MODIFIED", "object": one} for one in odd),
        *({"type": "ADDED", "object": one} for one in ODD),
        {"type": "BOOKMARK", "object": unnamed},
        {"type": "DELETED", "object": well},
    ]

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            items = [well, *odd, *ODD]
            return web.json_response({"metadata": {"resourceVersion": "6"}, "items": items})
        asked.append(request.query["resourceVersion"])
        made = web.StreamResponse()
        await made.prepare(request)
        if len(asked) == 1:
            await made.write(b"".join(json.dumps(one).encode() + b"\n" for one in events))
            return made
        await asyncio.sleep(60)
        return made

    asked: list[str] = []
    app, queue, lost = web.Application(), asyncio.Queue[Any](), list[Exception]()
    app.router.add_get("/things", answer)
    async with TestServer(app) as server:
        access = Access(server=f"http://127.0.0.1:{server.port}")
        async with Api(access).open() as api:
            following = asyncio.ensure_future(
                api.follow(
                    "/things",
                    kind,
                    listed=queue.put_nowait,
                    changed=lambda *change: queue.put_nowait(change),
                    lost=lost.append,
                )
            )
            listed = await queue.get()
            assert "well" == listed[0].metadata.name
            assert len(odd) // 2 < len(listed) <= 1 + len(odd)
            while (change := await queue.get())[0] != "DELETED":
                assert change[1].metadata.name in ("one", "odd")
            assert "u" == change[1].metadata.uid
            await until(lambda: len(asked) > 1)
            assert ["6", "7"] == asked
            following.cancel()
    assert [] == lost


def odd_objects(kind: type[Object], *kept: str) -> list[Plain]:
    """Return objects that are odd in one field of their spec or status, but for those to be kept.

    No two have the same name.
    """
    made: list[Plain] = []
    for place, plain in changed(OBJECTS[kind]):
        if place[0] != "metadata" and not {*place} & {*kept}:
            about = {"name": f"odd-{len(made)}", "uid": f"uid-odd-{len(made)}"}
            gone = {"deletionTimestamp": None}
            made.append({**plain, "metadata": {**METADATA, **about, **gone}})
    return made


async def test_a_scheduler_goes_on_whatever_the_api_tells_it_of() -> None:
    notes = {INVENTORY: inventory_text((card("GPU-1"),))}

    api = api_server.FakeApi()
    api.put("nodes", {"metadata": {"name": "n1", "uid": "uid-n1", "annotations": notes}})
    for plain in odd_objects(NodeObject):
        plain["metadata"]["annotations"] = notes
        api.put("nodes", plain)
    async with api.serve() as url, Api(Access(server=url)).open() as client:
        made = Scheduler(client, WORDS, KEY)
        follows = (made.nodes.follow(), made.pods.follow(), made.quotas.follow())
        tasks = [asyncio.ensure_future(one) for one in follows]
        await until(lambda: made.readiness.is_ready() and api.watched("pods"))
        for plain in odd_objects(Pod):
            api.put("pods", plain)
        last = pod({"cpu": "1"})
        last["spec"]["nodeName"] = "n1"
        last["metadata"] |= {"name": "last", "uid": "last"}
        api.put("pods", last)
        await until(lambda: "last" in made.cache.standing)
        assert len(odd_objects(NodeObject)) < len(made.cache.inventory.nodes)
        assert not [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()


async def test_an_agent_goes_on_whatever_the_api_tells_it_of() -> None:
    async with world() as at:
        for plain in odd_objects(Pod, "nodeName"):
            at.api.put("pods", plain, event="ADDED")
        await at.kubelet.admit(at.bind("well"))
        assert ["default/well/main"] == [*at.standing()]
