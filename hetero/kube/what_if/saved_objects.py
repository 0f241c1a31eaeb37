"""The types of saved objects: a file that was edited by hand is refused where it is wrong.

A field that Kubernetes omits when it is empty may be missing or null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert

from hetero.model.errors import BadInput

_Text = Annotated[str, Meta(min_length=1)]
_Time = Annotated[datetime, Meta(tz=True)]
_Texts = dict[str, str] | None
_Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


class _Read(Struct, rename="camel", kw_only=True):
    """Base of the types: an object may have fields that are not declared."""


class _Owner(_Read):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class _Metadata(_Read):
    name: _Text
    namespace: str | None = None
    uid: str | None = None
    creation_timestamp: _Time | None = None
    deletion_timestamp: _Time | None = None
    labels: _Texts = None
    annotations: _Texts = None
    owner_references: list[_Owner] | None = None


class _NamespacedMetadata(_Metadata):
    namespace: _Text


class _Object(_Read):
    api_version: _Text
    kind: _Text
    metadata: _Metadata


# --- nodes ----------------------------------------------------------------------------------------


class _Taint(_Read):
    key: str
    effect: str
    value: str | None = None


class _NodeSpec(_Read):
    taints: list[_Taint] | None = None
    unschedulable: bool | None = None


class _NodeStatus(_Read):
    allocatable: _Texts = None


class _Node(_Object):
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


# --- pods -----------------------------------------------------------------------------------------


class _Requirement(_Read):
    key: str
    operator: _Operator
    values: list[str] | None = None


class _Term(_Read):
    match_expressions: list[_Requirement] | None = None
    match_fields: list[_Requirement] | None = None


class _Terms(_Read):
    node_selector_terms: list[_Term]


class _NodeAffinity(_Read):
    required_during_scheduling_ignored_during_execution: _Terms | None = None


class _LabelSelector(_Read):
    match_labels: _Texts = None
    match_expressions: list[_Requirement] | None = None


class _PodAffinityTerm(_Read):
    topology_key: str
    label_selector: _LabelSelector | None = None


class _Preferred(_Read):
    weight: int
    pod_affinity_term: _PodAffinityTerm


class _PodAffinity(_Read):
    required_during_scheduling_ignored_during_execution: list[_PodAffinityTerm] | None = None
    preferred_during_scheduling_ignored_during_execution: list[_Preferred] | None = None


class _Affinity(_Read):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


class _Toleration(_Read):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    toleration_seconds: int | None = None


class _Resources(_Read):
    limits: _Texts = None
    requests: _Texts = None


class _Variable(_Read):
    name: str
    value: str | None = None


class _Port(_Read):
    host_port: int | None = None


class _Container(_Read):
    name: _Text
    restart_policy: str | None = None
    resources: _Resources | None = None
    env: list[_Variable] | None = None
    ports: list[_Port] | None = None


class _Group(_Read):
    pod_group_name: str | None = None


class _Spread(_Read):
    when_unsatisfiable: str | None = None


class _PodSpec(_Read):
    containers: Annotated[list[_Container], Meta(min_length=1)]
    init_containers: list[_Container] | None = None
    overhead: _Texts = None
    node_name: str | None = None
    node_selector: _Texts = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None
    topology_spread_constraints: list[_Spread] | None = None
    volumes: list[dict[str, Any]] | None = None
    resource_claims: list[Any] | None = None
    scheduling_gates: list[Any] | None = None
    scheduling_group: _Group | None = None
    scheduler_name: str | None = None
    runtime_class_name: str | None = None
    priority: int | None = None
    priority_class_name: str | None = None


class _PodStatus(_Read):
    phase: str | None = None


class _PodMetadata(_NamespacedMetadata):
    uid: _Text


class _Pod(_Object):
    metadata: _PodMetadata
    spec: _PodSpec
    status: _PodStatus | None = None


# --- the rest -------------------------------------------------------------------------------------


class _QuotaSpec(_Read):
    hard: _Texts = None


class _Quota(_Object):
    metadata: _NamespacedMetadata
    spec: _QuotaSpec


class _ConfigMap(_Object):
    metadata: _NamespacedMetadata
    data: _Texts = None


class _PriorityClass(_Object):
    value: int
    global_default: bool | None = None


class _Gang(_Read):
    min_count: int | None = None


class _SchedulingPolicy(_Read):
    gang: _Gang | None = None


class _PodGroupSpec(_Read):
    min_member: int | None = None
    scheduling_policy: _SchedulingPolicy | None = None


class _PodGroup(_Object):
    metadata: _NamespacedMetadata
    spec: _PodGroupSpec | None = None


class _List(_Read):
    kind: str
    api_version: str
    items: list[_Object]


_KINDS: Mapping[str, type[_Object]] = {
    "ConfigMap": _ConfigMap,
    "Node": _Node,
    "Pod": _Pod,
    "PodGroup": _PodGroup,
    "PriorityClass": _PriorityClass,
    "ResourceQuota": _Quota,
}
#: What JSON's types are called in a sentence.
_ENGLISH: Mapping[str, str] = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "datetime": "a time",
}


def expect_list(document: Any) -> None:
    """Raise `BadInput`, with the place in the document, unless it is a list as kubectl saves it."""
    _expect(document, _List, "")
    for item_number, plain in enumerate(document["items"]):
        metadata, kind = plain["metadata"], plain["kind"]
        full_name = "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))
        _expect(plain, _KINDS.get(kind, _Object), f"items[{item_number}] ({kind} {full_name}): ")


def _expect(plain: Any, kind: type[Struct], location: str) -> None:
    try:
        convert(plain, kind)
    except ValidationError as error:
        message, _, path = str(error).partition(" - at ")
        reason = re.sub(r"`([^`]*)`", lambda match: _in_english(match[1]), message)
        path_text = path.strip("`").removeprefix("$").removeprefix(".")
        raise BadInput(f"{location}{path_text}: {reason[0].lower()}{reason[1:]}") from None


def _in_english(types: str) -> str:
    return " or ".join(_ENGLISH.get(type_name, type_name) for type_name in types.split(" | "))
