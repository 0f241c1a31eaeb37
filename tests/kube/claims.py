"""A node in this process whose devices are given by claims, and its kubelet."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from hetero.kube.dra.proto import dra_pb2
from hetero.kube.dra.proto.dra_pb2_grpc import DRAPluginStub
from hetero.kube.dra.proto.registration_pb2_grpc import RegistrationStub
from hetero.kube.dra.way import AllocationWay
from tests.kube.api_server import Plain
from tests.kube.world import World, pod_named, until, world


@asynccontextmanager
async def dra_world(
    *memory: int, allocation: AllocationWay = AllocationWay.DRA, context_bytes: int = 0
) -> AsyncIterator[World]:
    async with world(*memory, allocation=allocation, context_bytes=context_bytes) as at:
        if allocation is AllocationWay.DRA:
            await until(lambda: at.api.slices)
        yield at


def allocated(
    at: World, name: str, *, memory: str = "3000Mi", cores: str = "30", uid: str = "", **more: Any
) -> Plain:
    """Put a claim that is allocated a part of the first card, for the pod of its name."""
    at.api.put("pods", pod_named(name), event="ADDED")
    consumed = {"memory": memory, "cores": cores, "slots": "1"}
    result = {"driver": "hetero.io", "pool": "n1", "request": "card", "device": "memory-0"}
    results = [{**result, "consumedCapacity": consumed, "shareID": f"share-{name}", **more}]
    claim: Plain = {
        "metadata": {"name": name, "namespace": "default", "uid": uid or f"u-{name}"},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
        },
    }
    at.api.claims[name] = claim
    return claim


@asynccontextmanager
async def kubelet(at: World, *, plugin: bool = True) -> AsyncIterator[Any]:
    """Call what the agent serves to the kubelet of the node."""
    path = "plugins/hetero.io/dra.sock" if plugin else "plugins_registry/hetero.io-reg.sock"
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"unix://{at.kubelet.path / path}"
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield (DRAPluginStub if plugin else RegistrationStub)(channel)


async def prepare(at: World, name: str, *, uid: str = "") -> dra_pb2.NodePrepareResourceResponse:
    uid = uid or at.api.claims[name]["metadata"]["uid"]
    asked = dra_pb2.Claim(namespace="default", name=name, uid=uid)
    async with kubelet(at) as stub:
        answer = await stub.NodePrepareResources(
            dra_pb2.NodePrepareResourcesRequest(claims=[asked])
        )
    prepared: dra_pb2.NodePrepareResourceResponse = answer.claims[uid]
    return prepared


async def unprepare(at: World, name: str, *, uid: str = "") -> str:
    uid = uid or f"u-{name}"
    asked = dra_pb2.Claim(namespace="default", name=name, uid=uid)
    async with kubelet(at) as stub:
        answer = await stub.NodeUnprepareResources(
            dra_pb2.NodeUnprepareResourcesRequest(claims=[asked])
        )
    assert [uid] == [*answer.claims]
    return str(answer.claims[uid].error)


def specs(at: World) -> dict[str, Plain]:
    """Return what the CDI devices of claims bring into containers, by their names."""
    edits = {}
    for path in (at.path / "cdi").glob("*.json"):
        spec = json.loads(path.read_text())
        for device in spec["devices"]:
            edits[f"{spec['kind']}={device['name']}"] = device["containerEdits"]
    return edits
