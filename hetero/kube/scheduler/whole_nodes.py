"""Reads nodes that are sent as whole objects, some of which the cluster may not have (yet).

kube-scheduler sends them with `nodeCacheCapable: false`. Who simulates a cluster may send copies of
a node that it would add.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import json

from hetero.kube.objects.kinds import NodeObject, Plain
from hetero.kube.objects.reading import read
from hetero.kube.words.annotations import INVENTORY, published_devices
from hetero.kube.words.host import node_host
from hetero.model.errors import BadInput
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedNode, PlacedPod


def names_of(node_list: Plain) -> list[str]:
    """Return the names of the nodes in a list."""
    return [node["metadata"]["name"] for node in node_list["items"]]


def decoded_names(answer: Plain) -> list[str]:
    """Return the names in filter's answer, which may be JSON already."""
    names: list[str] = json.decode(json.encode(answer["NodeNames"]))
    return names


def simulated_refusals(
    pod: PlacedPod, node_list: Plain, known_names: Collection[str]
) -> dict[str, str | None]:
    """Return why each node that the cluster does not know would not serve a pod; None: it would.

    What cards such a node has is in the annotation of an agent, as on a copy of a node. Nobody else
    is on it.
    """
    reason_by_name: dict[str, str | None] = {}
    for plain_node in node_list["items"]:
        node = read(NodeObject, plain_node)
        name, inventory_text = node.metadata.name, node.metadata.annotations.get(INVENTORY)
        if name in known_names:
            continue
        try:
            devices = published_devices(inventory_text, node=name) if inventory_text else ()
        except BadInput as error:
            reason_by_name[name] = str(error)
            continue
        cache = SchedulerCache()  # of its own, since copies of a node have the same cards
        cache.update_node(PlacedNode(name=name, devices=devices, host=node_host(node)))
        reason_by_name[name] = cache.serving(pod, [name])[1].get(name)
    return reason_by_name
