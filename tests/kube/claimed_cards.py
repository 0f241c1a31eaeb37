"""Cards of all vendors that their nodes give by claims, as the API has them."""

import json
from collections.abc import Iterable
from typing import Any

import hetero_amd

from hetero.kube.dra.offers import amount_of, device_name, offers, slices
from hetero.kube.words.annotations import INVENTORY, published_devices
from hetero.model import MEMORY, Device, Enforcement
from hetero.model.units import GiB
from tests.kube.api_server import Plain
from tests.kube.conftest import ROOT

SAVED = json.loads((ROOT / "tests" / "kube" / "clusters" / "saved.json").read_text())["items"]
#: The cards of n1 (NVIDIA), n2 (Ascend, Cambricon), n3 (Hygon, Iluvatar, MetaX, Moore Threads) and
#: n4 (AMD).
CARDS: dict[str, tuple[Device, ...]] = {
    item["metadata"]["name"]: published_devices(
        item["metadata"]["annotations"][INVENTORY], node=item["metadata"]["name"]
    )
    for item in SAVED
    if item["kind"] == "Node"
}
#: The eighth vendor's, which the saved cluster has none of.
CARDS["n4"] = tuple(
    hetero_amd.VENDOR.device(
        uuid=f"GPU-{index}f5a7e31c2d40b88",
        model="AMD Instinct MI300X",
        index=index,
        memory=192 * GiB,
        enforcement=Enforcement.PRELOAD,
        health="ok",
    )
    for index in (0, 1)
)


def slices_of(
    node: str, devices: Iterable[Device], *, generation: int = 1, **more: Any
) -> list[Plain]:
    """Return the slices of a node's pool, as its agent writes them."""
    specs = slices(devices, node_name=node, resources={}, roots={}, **more)
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-hetero.io-{position}", "uid": f"{node}-{position}"},
            "spec": {**spec, "pool": {**spec["pool"], "generation": generation}},
        }
        for position, spec in enumerate(specs)
    ]


def part_of(node: str, device: Device, *, memory: int = 16 * GiB, core: int = 30) -> Plain:
    """Return the result of an allocation: a share of a card, or its first template if it has any.

    `core` is in the card's own units.
    """
    name = device_name(device.uuid)
    if device.shapes:
        name = next(name for name, offer in offers([device]).items() if offer.template)
    result = {"driver": "hetero.io", "pool": node, "request": "card", "device": name}
    if device.shapes:
        return result
    consumed = {"memory": amount_of(MEMORY, memory), "cores": str(core), "slots": "1"}
    return {**result, "consumedCapacity": consumed, "shareID": "share"}


def claim_of(
    name: str, *results: Plain, pods: Iterable[str] = (), namespace: str = "default"
) -> Plain:
    """Return a claim that was allocated these, and is reserved for these pods."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": f"u-{name}"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": [*results]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods],
        },
    }


def user_of(name: str, claim: str, *, node: str = "n1", **status: Any) -> Plain:
    """Return a pod whose one container uses a claim."""
    container = {"name": "main", "resources": {"claims": [{"name": "card"}]}}
    claims = [{"name": "card", "resourceClaimName": claim}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"nodeName": node, "containers": [container], "resourceClaims": claims},
        "status": {"phase": "Running", **status},
    }


def agent_of(node: str, kubelet: str = "/var/lib/kubelet") -> Plain:
    """Return the pod of an agent that gives its node's cards by claims."""
    mounts = [{"name": "dra", "mountPath": f"{kubelet}/plugins/hetero.io"}]
    names = {"name": f"hetero-agent-{node}", "namespace": "hetero-system", "uid": f"agent-{node}"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**names, "labels": {"app": "hetero-agent"}},
        "spec": {"nodeName": node, "containers": [{"name": "agent", "volumeMounts": mounts}]},
        "status": {"phase": "Running"},
    }
