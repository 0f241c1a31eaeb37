"""Whether a node's devices are given by claims or in the classic way: never one device by both."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from attrs import frozen

from hetero.kube.client.api import Api, ApiError
from hetero.kube.dra.offers import DRIVER
from hetero.kube.dra.publisher import SLICES
from hetero.kube.objects.kinds import NodeObject, Plain, Pod
from hetero.model.errors import BadInput

log = logging.getLogger(__name__)

#: The label of a node whose devices are given by claims, where a cluster has both ways.
BY_CLAIMS = ("hetero.io/by-claims", "true")


class AllocationWay(str, Enum):
    """How pods are given the devices of a cluster."""

    CLASSIC = "classic"  # by the extender of kube-scheduler and device plugins
    DRA = "dra"  # by ResourceClaims
    BOTH = "both"  # by claims on nodes that are labelled so, on others in the classic way


def by_claims(allocation_way: AllocationWay, node: NodeObject | None) -> bool | None:
    """Return whether the devices of a node are given by claims; None if the node decides."""
    if allocation_way is not AllocationWay.BOTH:
        return allocation_way is AllocationWay.DRA
    label_name, label_value = BY_CLAIMS
    if node is None:
        return None
    return node.metadata.labels.get(label_name) == label_value


def asks_by_claims(allocation_way: AllocationWay, pod: Pod) -> bool:
    """Return whether a pod's resource names are to be turned into claims.

    Where a cluster has both ways, the pod decides, by an annotation that has the name and the
    value of the node label `BY_CLAIMS`.
    """
    if allocation_way is not AllocationWay.BOTH:
        return allocation_way is AllocationWay.DRA
    annotation_name, annotation_value = BY_CLAIMS
    return pod.metadata.annotations.get(annotation_name) == annotation_value


@frozen
class Probe:
    """An object that the API server is asked to accept in a dry run, and a check of its answer.

    A field whose feature is off is missing in the answer.
    """

    path: str
    body: Plain
    known: Callable[[Plain], bool]


def slice_probe(node_name: str) -> Probe:
    """Return what an agent may ask: a slice of its node with a device that many share."""
    device = {"name": "probe", "allowMultipleAllocations": True}
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"{node_name}-{DRIVER}-probe-"},
        "spec": {"driver": DRIVER, "nodeName": node_name, "pool": pool, "devices": [device]},
    }

    def is_known(created_object: Plain) -> bool:
        return "allowMultipleAllocations" in created_object["spec"]["devices"][0]

    return Probe(SLICES, body, is_known)


def template_probe(namespace: str) -> Probe:
    """Return what a webhook may ask: a template of a part of a device."""
    exact_request = {"deviceClassName": "probe", "capacity": {"requests": {"memory": "1Mi"}}}
    devices = {"requests": [{"name": "probe", "exactly": exact_request}]}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"generateName": "hetero-probe-"},
        "spec": {"spec": {"devices": devices}},
    }
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"

    def is_known(created_object: Plain) -> bool:
        return "capacity" in created_object["spec"]["spec"]["devices"]["requests"][0]["exactly"]

    return Probe(path, body, is_known)


async def served(api: Api, allocation_way: AllocationWay, probe: Probe) -> AllocationWay:
    """Return the way that the API server can serve: `both` may become classic, which is logged.

    Raises `BadInput` where only claims are wanted and the server lacks them.
    """
    lacking_feature = (
        None if allocation_way is AllocationWay.CLASSIC else await _lacking(api, probe)
    )
    if lacking_feature is None:
        return allocation_way
    if allocation_way is AllocationWay.DRA:
        raise BadInput(f"{lacking_feature}, or install with allocation classic")
    log.warning("allocation both is classic here: %s", lacking_feature)
    return AllocationWay.CLASSIC


async def _lacking(api: Api, probe: Probe) -> str | None:
    """Return what the API server lacks for devices that several claims consume."""
    try:
        created_object = await api.post(f"{probe.path}?dryRun=All", probe.body)
    except ApiError as error:
        if error.status != 404:
            raise
        return "the API server has no resource.k8s.io/v1: claims need Kubernetes 1.34 or later"
    if probe.known(created_object):
        return None
    return "the API server has DRAConsumableCapacity off: switch it on in all components"
