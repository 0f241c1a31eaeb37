"""The objects of a cluster in memory, read once, with the interface of the API client."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from attrs import define, field

from hetero.kube.client.api import LONGEST_RETRY_S, VIEW_CONNECT_S, Access, Api, ApiError
from hetero.kube.cluster_objects import unsaved_claims
from hetero.kube.dra.standing_claims import CLAIMS, SLICES
from hetero.kube.objects.kinds import Object, Plain, Pod
from hetero.kube.objects.reading import read_all
from hetero.kube.scheduler.pod_groups import APIS as GROUP_APIS
from hetero.kube.what_if.saved_objects import expect_list
from hetero.model.errors import BadInput

log = logging.getLogger(__name__)

NODES, PODS, QUOTAS = "/api/v1/nodes", "/api/v1/pods", "/api/v1/resourcequotas"
CONFIG_MAPS = "/api/v1/configmaps"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
#: The ConfigMaps of the chart: the settings that all services share, and the expected mix.
SETTINGS, MIX = "hetero", "hetero-mix"
_NEEDED = (NODES, PODS)
#: What is read, each with what the API is to leave out.
_READ: tuple[tuple[str, Mapping[str, str]], ...] = (
    *((path, {}) for path in (*_NEEDED, QUOTAS, PRIORITY_CLASSES)),
    *((f"/apis/{api}/podgroups", {}) for api in GROUP_APIS),
    *((path, {}) for path in (SLICES, CLAIMS)),
    *((CONFIG_MAPS, {"fieldSelector": f"metadata.name={name}"}) for name in (SETTINGS, MIX)),
)
#: What saves as much of a cluster as is read here, but for pod groups. An API server before claims
#: has no kinds of theirs.
SAVE = (
    "kubectl get nodes,pods,resourcequotas,configmaps,priorityclasses,resourceslices,resourceclaims"
    " -A -o json"
)
_PLURALS = {"PriorityClass": "priorityclasses"}

_Name = tuple[str, str]  # namespace (empty: none) and name
_Changed = Callable[[str, Plain], None]
_O = TypeVar("_O", bound=Object)


@define(eq=False)
class ClusterSnapshot:
    """Objects by the path of their list. What the scheduler writes is written here alone.

    `events` has the last event message of each pod, by UID.
    """

    objects: dict[str, dict[_Name, Plain]] = field(factory=dict)
    events: dict[str, str] = field(factory=dict)
    _followers: dict[str, _Changed] = field(factory=dict)

    def all(self, path: str) -> list[Plain]:
        """Return the objects of a list."""
        return list(self.objects.get(path, {}).values())

    def change(self, event_type: str, path: str, plain: Plain) -> None:
        """Put an object into its list, or remove it for DELETED; notify the followers.

        Raises `BadInput` for a new object whose name is taken.
        """
        full_name, objects = _full_name(plain), self.objects.setdefault(path, {})
        if event_type == "ADDED" and full_name in objects:
            raise BadInput(
                f"pod {'/'.join(full_name)} is there already: give the new one another name"
            )
        if event_type == "DELETED":
            del objects[full_name]
        else:
            objects[full_name] = plain
        if path in self._followers:
            self._followers[path](event_type, plain)

    # --- in the API's place -------------------------------------------------------------------

    async def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
    ) -> Plain:
        """Return an object or a list; of the field selectors, only `metadata.name` filters."""
        if path in self.objects:
            return {"items": self.all(path)}
        _, _, pod_name = (query or {}).get("fieldSelector", "").partition("metadata.name=")
        if pod_name:
            list_path, object_name = _parsed(f"{path}/{pod_name}")
            plain = self.objects.get(list_path, {}).get(object_name)
            return {"items": [plain] if plain else []}
        list_path, object_name = _parsed(path)
        plain = self.objects.get(list_path, {}).get(object_name)
        if plain is None:
            raise ApiError(f"GET {path}", 404, "not in the snapshot")
        return plain

    async def post(self, path: str, body: Plain) -> Plain:
        """Bind a pod, or record the message of an event."""
        if path.endswith("/events"):
            self.events[body["involvedObject"]["uid"]] = body["message"]
            return body
        pod = await self.get(path)
        spec = {**pod["spec"], "nodeName": body["target"]["name"]}
        self._annotate(PODS, {**pod, "spec": spec}, body)
        return body

    async def patch(self, path: str, body: Plain) -> Plain:
        """Merge annotations into a pod."""
        list_path, _ = _parsed(path)
        return self._annotate(list_path, await self.get(path), body)

    def _annotate(self, list_path: str, plain: Plain, body: Plain) -> Plain:
        metadata, added_annotations = plain["metadata"], body["metadata"]["annotations"]
        annotations = {**(metadata.get("annotations") or {}), **added_annotations}
        changed_object = {**plain, "metadata": {**metadata, "annotations": annotations}}
        self.change("MODIFIED", list_path, changed_object)
        return changed_object

    async def follow(
        self,
        path: str,
        kind: type[_O],
        *,
        query: Mapping[str, str] | None = None,  # noqa: ARG002
        listed: Callable[[list[_O]], None],
        changed: Callable[[str, _O], None],
        lost: Callable[[Exception], None],  # noqa: ARG002
        retry_s: float = LONGEST_RETRY_S,  # noqa: ARG002
    ) -> None:
        """List, and return; `changed` gets every later change."""

        def forward(event_type: str, plain: Plain) -> None:
            for changed_object in read_all(kind, (plain,)):
                changed(event_type, changed_object)

        self._followers[path] = forward
        listed(read_all(kind, self.all(path)))


async def read_api() -> ClusterSnapshot:
    """Return the objects in the API of this pod or of $KUBECONFIG. Raises `HeteroError`."""
    snapshot = ClusterSnapshot()
    async with Api(Access.here(), connect_timeout_s=VIEW_CONNECT_S).open() as api:
        for path, query in _READ:
            objects = snapshot.objects.setdefault(path, {})
            try:
                objects.update((_full_name(plain), plain) for plain in await api.items(path, query))
            except ApiError as error:
                if path in _NEEDED or error.status not in (403, 404):
                    raise
                if error.status == 403:
                    log.warning("not counted: %s", error)
    return snapshot


def read_file(path: Path) -> ClusterSnapshot:
    """Return what `SAVE` wrote; what is missing of claims is logged. Raises `BadInput`."""
    try:
        document = json.loads(path.read_bytes())
        expect_list(document)
    except OSError as error:
        raise BadInput(f"--cluster {path}: {error.strerror}") from None
    except ValueError:
        raise BadInput(f"--cluster {path}: not JSON: save it with `{SAVE}`") from None
    except BadInput as error:
        raise BadInput(f"--cluster {path}: {error}: save it with `{SAVE}`") from None
    snapshot = ClusterSnapshot({list_path: {} for list_path, _ in _READ})
    for plain in document["items"]:
        snapshot.objects.setdefault(_list_of(plain), {})[_full_name(plain)] = plain
    if not snapshot.objects[NODES]:
        raise BadInput(f"--cluster {path}: no node is in it: save it with `{SAVE}`")
    notes = unsaved_claims(
        read_all(Pod, snapshot.all(PODS)),
        has_slices=bool(snapshot.objects[SLICES]),
        has_claims=bool(snapshot.objects[CLAIMS]),
        save_command=SAVE,
    )
    for note in notes:
        log.warning("%s", note)
    return snapshot


def _list_of(plain: Plain) -> str:
    """Return the path of the list that an object is in."""
    api_version, kind = plain["apiVersion"], plain["kind"]
    api_root = "/apis" if "/" in api_version else "/api"
    return f"{api_root}/{api_version}/{_PLURALS.get(kind, f'{kind.lower()}s')}"


def _parsed(path: str) -> tuple[str, _Name]:
    """Return the list path and the name of a namespaced object, also from a subresource path."""
    api_root, _, namespaced_path = path.partition("/namespaces/")
    namespace, plural, object_name, *_ = namespaced_path.split("/")
    return f"{api_root}/{plural}", (namespace, object_name)


def _full_name(plain: Plain) -> _Name:
    return plain["metadata"].get("namespace") or "", plain["metadata"]["name"]
