"""The objects of a cluster that say what cards it has and who holds them, live or saved.

A file is read without the API's client, whose import takes as long as many nodes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TypeVar

from attrs import evolve, frozen
from msgspec import MsgspecError, Raw, Struct, json

from hetero.kube.objects.kinds import NodeObject, Object, Pod, PoolSlice, ResourceClaim
from hetero.kube.objects.reading import reader
from hetero.model.errors import BadInput, NotFound
from hetero.model.names import did_you_mean

#: What saves a cluster as it is read here; an API server before claims has no kinds of theirs.
SAVE = "kubectl get nodes,pods,resourceslices,resourceclaims -A -o json"

#: How the agents' pods are known, and where those that give cards by claims have their socket.
AGENTS, _CLAIMS_SOCKET = {"app": "hetero-agent"}, "/plugins/hetero.io"
#: Nodes or pods that a sentence names.
_MOST_NAMES = 3

_O = TypeVar("_O", bound=Object)


@frozen(kw_only=True)
class ClusterObjects:
    """Nodes, pods, and what there is of claims; `notes` say what could not be read."""

    nodes: Sequence[NodeObject] = ()
    pods: Sequence[Pod] = ()
    slices: Sequence[PoolSlice] = ()
    claims: Sequence[ResourceClaim] = ()
    notes: tuple[str, ...] = ()

    def of_node(self, node_name: str) -> ClusterObjects:
        """Return those of one node, and the claims on it. Raises `NotFound` where there is none."""
        names = [node.metadata.name for node in self.nodes]
        if node_name not in names:
            raise NotFound(f"no node {node_name!r} in this cluster{did_you_mean(node_name, names)}")
        return self.of_nodes({node_name})

    def of_nodes(self, names: AbstractSet[str]) -> ClusterObjects:
        """Return those of some nodes, and the claims that were allocated their devices."""
        return evolve(
            self,
            nodes=[node for node in self.nodes if node.metadata.name in names],
            pods=[pod for pod in self.pods if pod.spec.node_name in names],
            slices=[each for each in self.slices if each.spec.node_name in names],
            claims=[claim for claim in self.claims if not names.isdisjoint(_pools(claim))],
        )


def _pools(claim: ResourceClaim) -> Iterator[str]:
    """Yield the pools of the devices that a claim was allocated: the nodes, as far as ours go."""
    return (result.pool for result in claim.status.allocation.devices.results)


class _List(Struct):
    """What kubectl saves."""

    kind: str
    items: list[Raw]


class _Item(Struct):
    """An object of any kind."""

    kind: str = ""


_KINDS: dict[str, type[Object]] = {
    "Node": NodeObject,
    "Pod": Pod,
    "ResourceSlice": PoolSlice,
    "ResourceClaim": ResourceClaim,
}


def read_saved(path: Path) -> ClusterObjects:
    """Return what `SAVE` wrote. Raises `BadInput`."""
    was_collecting = gc.isenabled()
    gc.disable()  # all that is read stays: to search it for garbage takes as long again
    try:
        objects = list(_read(json.decode(path.read_bytes(), type=_List).items))
    except OSError as error:
        raise BadInput(f"--cluster {path}: {error.strerror}") from None
    except MsgspecError as error:
        raise BadInput(f"--cluster {path}: {error}: save it with `{SAVE}`") from None
    finally:
        if was_collecting:
            gc.enable()
    nodes, pods = _of(objects, NodeObject), _of(objects, Pod)
    if not nodes:
        raise BadInput(f"--cluster {path}: no node is in it: save it with `{SAVE}`")
    slices, claims = _of(objects, PoolSlice), _of(objects, ResourceClaim)
    return ClusterObjects(
        nodes=nodes,
        pods=pods,
        slices=slices,
        claims=claims,
        notes=unsaved_claims(
            pods, has_slices=bool(slices), has_claims=bool(claims), save_command=SAVE
        ),
    )


def unsaved_claims(
    pods: Iterable[Pod], *, has_slices: bool, has_claims: bool, save_command: str
) -> tuple[str, ...]:
    """Return a sentence where a file has pods of cards that are given by claims, and not these."""
    if not has_slices:
        names = sorted(
            {pod.spec.node_name for pod in pods if pod.spec.node_name and _gives_claims(pod)}
        )
        missing, what = "ResourceSlice", "cards that are given by claims are"
    elif not has_claims:
        names = sorted({"/".join(pod.full_name) for pod in pods if pod.spec.resource_claims})
        missing, what = "ResourceClaim", "what pods hold by claims is"
    else:
        return ()
    if not names:
        return ()
    more_text = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    names_text = ", ".join(names[:_MOST_NAMES]) + more_text
    return (
        f"no {missing} is in the file: {what} not counted ({names_text}): save it with "
        f"`{save_command}`",
    )


def _gives_claims(pod: Pod) -> bool:
    return AGENTS.items() <= pod.metadata.labels.items() and any(
        mount.mount_path.endswith(_CLAIMS_SOCKET)
        for container in pod.spec.containers
        for mount in container.volume_mounts
    )


def _read(items: Iterable[Raw]) -> Iterator[Object]:
    """Yield the objects of the kinds that are read here. Raises `MsgspecError`."""
    kind_of = json.Decoder(_Item).decode
    for item in items:
        kind = _KINDS.get(kind_of(item).kind)
        if kind is not None and (read_object := reader(kind).object(item)) is not None:
            yield read_object


def _of(objects: Iterable[Object], kind: type[_O]) -> list[_O]:
    return [read_object for read_object in objects if isinstance(read_object, kind)]
