"""The changes to simulate: pods that are added, that wait, or whose node is removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from attrs import field, frozen

from hetero.kube.client.events import timestamp
from hetero.kube.dra.templates import ASKED, with_words
from hetero.kube.dra.way import BY_CLAIMS
from hetero.kube.objects.kinds import Plain, Pod
from hetero.kube.objects.reading import read
from hetero.kube.what_if.manifests import Shape, pods_of_file, pods_of_shape
from hetero.kube.what_if.snapshot import NODES, PODS, PRIORITY_CLASSES, ClusterSnapshot
from hetero.kube.words.annotations import ALLOCATION, SIGNATURE
from hetero.kube.words.pod import active
from hetero.kube.words.pod_request import Vocabulary
from hetero.model import Device
from hetero.model.errors import BadInput
from hetero.model.names import did_you_mean

#: Where a pod that is to be placed comes from: it waits in the cluster, its node is taken away, or
#: it is one of those that are asked about.
WAITING, MOVED, ADDED = "waiting", "moved", "added"
_ORIGINS = (WAITING, MOVED, ADDED)


@frozen(kw_only=True)
class WhatIfRequest:
    """The changes to simulate.

    `saved` is a file of objects that is read instead of the API. `manifests` are files of pods to
    add. `without` are the names of nodes to remove. `placement` is a placement policy; None: the
    cluster's own.
    """

    saved: Path | None = None
    manifests: tuple[Path, ...] = ()
    shape: Shape | None = None
    without: tuple[str, ...] = ()
    placement: str | None = None


@frozen(kw_only=True, eq=False)
class Queued:
    """A pod to place, with the object it was read from, and its origin."""

    plain: Plain
    origin: str
    from_node: str | None = None
    pod: Pod = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "pod", read(Pod, self.plain))


def place_in_queue(queued: Queued) -> tuple[int, int, float]:
    """Return the sort key of a pod, as in kube-scheduler's queue: priority, then age."""
    created_at = queued.pod.metadata.creation_timestamp
    return (
        -queued.pod.spec.priority,
        _ORIGINS.index(queued.origin),
        created_at.timestamp() if created_at else 0.0,
    )


def waiting(snapshot: ClusterSnapshot, vocabulary: Vocabulary) -> Iterator[Queued]:
    """Yield the pods of the cluster that wait for devices."""
    for plain in snapshot.all(PODS):
        plain_asking = with_asked(plain)
        pod = read(Pod, plain_asking)
        if active(pod) and not pod.spec.node_name:
            with suppress(BadInput):
                if vocabulary.pod_request(pod) is None:
                    continue
            if plain_asking is not plain:
                snapshot.change("MODIFIED", PODS, plain_asking)
            yield Queued(plain=plain_asking, origin=WAITING)


def without(snapshot: ClusterSnapshot, node_name: str) -> Iterator[Queued]:
    """Remove a node, and yield its pods as their controllers would create them again.

    Raises `BadInput` if there is no such node.
    """
    if ("", node_name) not in snapshot.objects[NODES]:
        node_names = (node_name for _, node_name in snapshot.objects[NODES])
        raise BadInput(f"--without {node_name}: no such node{did_you_mean(node_name, node_names)}")
    for plain in snapshot.all(PODS):
        pod = read(Pod, plain)
        if pod.spec.node_name != node_name:
            continue
        snapshot.change("DELETED", PODS, plain)
        if active(pod) and not _of_node(pod):
            metadata, spec = plain["metadata"], dict(plain["spec"])
            annotations = {**(metadata.get("annotations") or {})}
            for annotation in (ALLOCATION, SIGNATURE):
                annotations.pop(annotation, None)
            del spec["nodeName"]
            recreated = with_asked(
                {
                    "metadata": {**metadata, "annotations": annotations},
                    "spec": spec,
                    "status": {"phase": "Pending"},
                }
            )
            snapshot.change("ADDED", PODS, recreated)
            yield Queued(plain=recreated, origin=MOVED, from_node=node_name)
    snapshot.change("DELETED", NODES, snapshot.objects[NODES]["", node_name])


def with_asked(plain: Plain) -> Plain:
    """Return a pod with the resource names that the webhook turned into claims; others as they are.

    It is as its controller would create it in the cluster, and says that it is served by claims.
    """
    annotations = plain["metadata"].get("annotations") or {}
    if ASKED not in annotations:
        return plain
    try:
        limits_by_container = {
            container.name: dict(container.resources.limits)
            for container in with_words(read(Pod, plain)).containers
        }
    except BadInput:  # somebody else wrote that
        return plain
    annotation_name, annotation_value = BY_CLAIMS
    spec = {
        field_name: value
        for field_name, value in plain["spec"].items()
        if field_name != "resourceClaims"
    }
    for field_name in ("containers", "initContainers"):
        spec[field_name] = [
            {**container, "resources": _asking(container, limits_by_container)}
            for container in spec.get(field_name) or ()
        ]
    metadata = {
        **plain["metadata"],
        "annotations": {**annotations, annotation_name: annotation_value},
    }
    return {**plain, "metadata": metadata, "spec": spec}


def _asking(container: Plain, limits_by_container: Mapping[str, Plain]) -> Plain:
    resources, limits = container.get("resources") or {}, limits_by_container[container["name"]]
    return {kind: {**(resources.get(kind) or {}), **limits} for kind in ("limits", "requests")}


def _of_node(pod: Pod) -> bool:
    """Return whether a pod ends with its node: one of a DaemonSet, or a static pod."""
    return any(owner.kind in ("DaemonSet", "Node") for owner in pod.metadata.owner_references)


def added(
    snapshot: ClusterSnapshot,
    what_if_request: WhatIfRequest,
    vocabulary: Vocabulary,
    devices: Mapping[str, Device],
) -> Iterator[Queued]:
    """Create the pods to add, and yield them. Raises `BadInput`."""
    pods = [pod for path in what_if_request.manifests for pod in pods_of_file(path)]
    if what_if_request.shape is not None:
        pods += pods_of_shape(what_if_request.shape, vocabulary, devices.values())
    class_by_name = {plain["metadata"]["name"]: plain for plain in snapshot.all(PRIORITY_CLASSES)}
    for position, plain in enumerate(pods):
        pod = read(Pod, plain)
        try:
            vocabulary.pod_request(pod)
            priority = _priority(plain["spec"], class_by_name)
        except BadInput as error:
            raise BadInput(f"pod {'/'.join(pod.full_name)}: {error}") from None
        new_pod = {
            "metadata": {
                **plain["metadata"],
                "uid": f"what-if-{position}",
                "creationTimestamp": timestamp(),
            },
            "spec": {**plain["spec"], "priority": priority},
            "status": {"phase": "Pending"},
        }
        snapshot.change("ADDED", PODS, new_pod)
        yield Queued(plain=new_pod, origin=ADDED)


def _priority(spec: Plain, class_by_name: Mapping[str, Plain]) -> int:
    """Return the priority that the API would give a pod by its class. Raises `BadInput`."""
    class_name = spec.get("priorityClassName")
    if class_name is None:
        default_values = (
            priority_class["value"]
            for priority_class in class_by_name.values()
            if priority_class.get("globalDefault")
        )
        return int(spec.get("priority") or next(default_values, 0))
    if class_name not in class_by_name:
        hint = did_you_mean(class_name, class_by_name)
        raise BadInput(f"no PriorityClass {class_name!r} in the cluster{hint}")
    return int(class_by_name[class_name]["value"])
