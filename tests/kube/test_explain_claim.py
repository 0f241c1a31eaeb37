"""`hetero explain claim` asks an API server for what its account may read."""

import asyncio
import json
from functools import partial
from pathlib import Path

import jsonschema
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from hetero.cli import hetero
from hetero.kube.client.api import Access
from hetero.kube.dra.offers import slices
from hetero.model.units import GiB
from tests.kube.test_dra_explanation import CLASS, capacity, request, shared
from tests.kube.test_what_if import SCHEMAS

VERSION = {"resourceVersion": "1"}


@pytest.mark.parametrize("status", [200, 403, 404])
async def test_who_may_not_list_rules_is_answered_without_them_and_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The API server says 403 to them whether it has such rules or not."""
    (device,) = shared(16 * GiB)
    spec = {**slices((device,), node_name="n1", resources={}, roots={})[0]}
    spec["pool"] = {**spec["pool"], "generation": 1}
    taint = {"key": "out", "effect": "NoSchedule"}
    rule = {"metadata": {"name": "repair"}, "spec": {"taint": taint, "deviceSelector": {}}}
    kinds = {"resourceslices": [{"spec": spec}], "deviceclasses": [CLASS], "resourceclaims": []}
    claim = {"devices": {"requests": [request(capacity=capacity("2Gi"))]}}
    path = tmp_path / "claim.yaml"
    named = {"kind": "ResourceClaim", "metadata": {"name": "mine"}, "spec": claim}
    path.write_text(json.dumps(named))

    async def of(asked: web.Request) -> web.Response:
        return web.json_response({"metadata": VERSION, "items": kinds[asked.match_info["kind"]]})

    async def rules(_: web.Request) -> web.Response:
        return web.json_response({"metadata": VERSION, "items": [rule]}, status=status)

    app = web.Application()
    app.router.add_get("/apis/resource.k8s.io/v1/{kind}", of)
    app.router.add_get("/apis/resource.k8s.io/v1beta2/devicetaintrules", rules)
    async with TestServer(app) as server:
        access = Access(server=str(server.make_url("")).rstrip("/"))
        monkeypatch.setattr(Access, "here", lambda: access)
        words = ["explain", "claim", str(path)]
        options = [[], ["--json"]]
        call = partial(CliRunner().invoke, standalone_mode=False)
        outputs = [await asyncio.to_thread(call, hetero, [*words, *more]) for more in options]
    text, document = outputs[0], json.loads(outputs[1].output)
    jsonschema.validate(document, {**SCHEMAS, "oneOf": [{"$ref": "#/$defs/claims"}]})
    (item,) = document["items"]

    assert (3 if status == 200 else 0) == text.return_value
    assert ("tainted out by" in text.output) is (status == 200)
    assert [] == item["devices"] if status == 200 else item["devices"]
    assert ("DeviceTaintRules were not read" in text.output) is (status == 403)
    assert (document["unread"] is not None) is (status == 403)
