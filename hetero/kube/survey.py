"""A cluster as its API tells it: the devices of every node, and the pods that hold of them."""

from __future__ import annotations

import asyncio

from attrs import evolve, frozen

from hetero import codec
from hetero.errors import BadInput
from hetero.kube import wire
from hetero.kube.api import Access, Api, Plain
from hetero.model import Allocation, Device, Inventory, Usage
from hetero.node.observe import DeviceView


@frozen(kw_only=True)
class PodView:
    """A container that holds devices, as the scheduler noted; `phase` is its pod's."""

    namespace: str
    pod: str
    container: str
    node: str
    phase: str
    allocation: Allocation


@frozen(kw_only=True)
class MemberView:
    """One node of a cluster; `fault` says why its inventory cannot be read."""

    name: str
    devices: tuple[DeviceView, ...]
    fault: str | None = None


@frozen(kw_only=True)
class ClusterView:
    """All nodes that published devices, and all pods that hold some."""

    nodes: tuple[MemberView, ...]
    pods: tuple[PodView, ...]


def survey() -> ClusterView:
    """Return the cluster of this pod or of $KUBECONFIG. Raises `HeteroError` without one."""
    return asyncio.run(_survey())


async def _survey() -> ClusterView:
    async with Api(Access.here()).open() as api:
        nodes, pods = await asyncio.gather(api.get("/api/v1/nodes"), api.get("/api/v1/pods"))
    holding = tuple(view for pod in pods["items"] for view in _holding(pod))
    return ClusterView(
        nodes=tuple(
            _member(node, holding)
            for node in nodes["items"]
            if wire.INVENTORY in (node["metadata"].get("annotations") or {})
        ),
        pods=holding,
    )


def _member(node: Plain, holding: tuple[PodView, ...]) -> MemberView:
    name = node["metadata"]["name"]
    try:
        devices = wire.devices(node["metadata"]["annotations"][wire.INVENTORY], node=name)
    except BadInput as error:
        return MemberView(name=name, devices=(), fault=str(error))
    here = tuple(view for view in holding if view.node == name)
    free = Inventory(devices, tuple(view.allocation for view in here)).free()

    def held(device: Device) -> dict[str, int]:
        return {name: all_ - free[device.uuid][name] for name, all_ in device.capacity.items()}

    return MemberView(
        name=name,
        devices=tuple(
            DeviceView(
                number=number,
                device=device,
                held=held(device),
                usage=Usage(),
                grants=tuple(
                    f"{view.namespace}/{view.pod}/{view.container}"
                    for view in here
                    if any(grant.device == device.uuid for grant in view.allocation.grants)
                ),
            )
            for number, device in enumerate(devices)
        ),
    )


def _holding(pod: Plain) -> tuple[PodView, ...]:
    """Return what the pod's containers hold; nothing when it ended or is not bound."""
    about, phase = pod["metadata"], pod["status"].get("phase", "Unknown")
    text = (about.get("annotations") or {}).get(wire.ALLOCATION)
    node = pod["spec"].get("nodeName")
    if text is None or node is None or phase in ("Succeeded", "Failed"):
        return ()
    view = PodView(
        namespace=about["namespace"],
        pod=about["name"],
        container="",
        node=node,
        phase=phase,
        allocation=Allocation(grants=()),
    )
    try:
        # Not verified here, where there is no key: what is shown decides nothing.
        given = codec.loads(text, wire.Assignment, source=f"pod {about['name']}")
    except BadInput:
        return ()
    return tuple(
        evolve(view, container=container, allocation=allocation)
        for container, allocation in given.containers
    )
