"""Objects of the API are read field by field: one that is odd harms itself alone."""

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from hetero.kube.objects.kinds import (
    ConfigMap,
    DisruptionBudget,
    Lease,
    NodeObject,
    Object,
    Pod,
    PodGroup,
    ResourceClaim,
    ResourceQuota,
    ResourceSlice,
)
from hetero.kube.objects.reading import expect, read, read_all, reader

Plain = dict[str, Any]

#: What may stand in a field's place.
ODD: tuple[Any, ...] = (
    None,
    True,
    7,
    -1.5,
    "",
    "odd",
    [],
    [None],
    ["odd"],
    [{}],
    {},
    {"odd": None},
    {"odd": [{}]},
)

CONTAINER: Plain = {
    "name": "main",
    "restartPolicy": "Always",
    "resources": {
        "limits": {"cpu": "1"},
        "requests": {"cpu": 1, "memory": 0.5},
        "claims": [{"name": "claim", "request": "card"}],
    },
    "env": [
        {"name": "a", "value": "b"},
        {"name": "c", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
    "envFrom": [{"configMapRef": {"name": "map"}}],
    "ports": [{"name": "http", "containerPort": 80}],
    "volumeMounts": [{"mountPath": "/data", "name": "data"}],
    "volumeDevices": [{"devicePath": "/dev/data"}],
    "terminationMessagePath": "/dev/termination-log",
    "securityContext": {"privileged": True},
}
METADATA: Plain = {
    "name": "one",
    "namespace": "default",
    "uid": "uid",
    "resourceVersion": "5",
    "creationTimestamp": "2026-11-28T10:00:00Z",
    "deletionTimestamp": "2026-11-28T11:00:00Z",
    "labels": {"app": "x"},
    "annotations": {"note": "said"},
    "ownerReferences": [{"kind": "Job", "controller": True}],
    "managedFields": [{"manager": "kubectl"}],
}
#: An object of each kind that has all fields which are read.
OBJECTS: dict[type[Object], Plain] = {
    Pod: {
        "metadata": METADATA,
        "spec": {
            "containers": [CONTAINER],
            "initContainers": [CONTAINER],
            "ephemeralContainers": [{"name": "shell"}],
            "resources": {"requests": {"cpu": "1"}},
            "overhead": {"cpu": "10m"},
            "nodeName": "n1",
            "schedulerName": "hetero-scheduler",
            "serviceAccountName": "own",
            "runtimeClassName": "nvidia",
            "hostNetwork": True,
            "priority": 3,
            "preemptionPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "resourceClaims": [{"name": "claim", "resourceClaimTemplateName": "hetero-x"}],
            "schedulingGates": [{"name": "later"}],
            "schedulingGroup": {"podGroupName": "group"},
            "workloadRef": {"name": "work"},
        },
        "status": {
            "phase": "Running",
            "reason": "Evicted",
            "message": "why",
            "startTime": "2026-11-28T10:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"ready": True, "state": {"running": {"startedAt": "now"}}}],
            "initContainerStatuses": [{"ready": True, "state": {}}],
            "resourceClaimStatuses": [{"name": "claim", "resourceClaimName": "claim-x"}],
            "extendedResourceClaimStatus": {
                "resourceClaimName": "extended",
                "requestMappings": [{"containerName": "main"}],
            },
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
        },
    },
    NodeObject: {
        "metadata": METADATA,
        "status": {"allocatable": {"cpu": "8"}, "nodeInfo": {"kubeletVersion": "v1.34.1"}},
    },
    ResourceQuota: {"metadata": METADATA, "spec": {"hard": {"limits.cpu": 5}}},
    PodGroup: {
        "metadata": METADATA,
        "spec": {"minMember": 2, "schedulingPolicy": {"gang": {"minCount": 3}}},
    },
    DisruptionBudget: {
        "metadata": METADATA,
        "spec": {
            "selector": {
                "matchLabels": {"app": "x"},
                "matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}],
            }
        },
        "status": {"disruptionsAllowed": 1},
    },
    ConfigMap: {"metadata": METADATA, "data": {"mix": "{}"}},
    Lease: {
        "metadata": METADATA,
        "spec": {
            "holderIdentity": "one",
            "renewTime": "2026-11-28T10:00:00.000000Z",
            "leaseDurationSeconds": 4,
            "leaseTransitions": 2,
        },
    },
    ResourceSlice: {"metadata": METADATA, "spec": {"driver": "hetero.io", "pool": {"name": "n1"}}},
    ResourceClaim: {
        "metadata": METADATA,
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": "card",
                            "driver": "hetero.io",
                            "pool": "n1",
                            "device": "gpu-0",
                            "shareID": "share",
                            "adminAccess": True,
                            "consumedCapacity": {"memory": "1Gi"},
                        }
                    ],
                    "config": [
                        {
                            "source": "FromClass",
                            "requests": ["card"],
                            "opaque": {"driver": "hetero.io", "parameters": {"policy": "fixed"}},
                        }
                    ],
                }
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            "devices": [{"driver": "hetero.io", "pool": "n1", "device": "gpu-0"}],
        },
    },
}
KINDS = pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)


def changed(plain: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield what differs from JSON in one place, by each odd value there, and the place."""
    if not isinstance(plain, dict | list):
        return
    for key, child in plain.items() if isinstance(plain, dict) else enumerate(plain):
        for place, made in (*(((), odd) for odd in ODD), *changed(child)):
            copied = plain.copy()
            copied[key] = made
            yield (key, *place), copied


@KINDS
def test_an_object_has_its_fields(kind: type[Object]) -> None:
    parsed = read(kind, OBJECTS[kind])

    assert parsed == expect(kind, OBJECTS[kind]) == reader(kind).object(json.dumps(OBJECTS[kind]))
    assert ("default", "one") == parsed.full_name
    assert datetime(2026, 11, 28, 10, tzinfo=timezone.utc) == parsed.metadata.creation_timestamp
    empty = kind()
    assert all(getattr(parsed, name) != getattr(empty, name) for name in kind.__struct_fields__)


@KINDS
def test_whatever_stands_in_a_field_the_others_are_read(kind: type[Object]) -> None:
    whole = read(kind, OBJECTS[kind])
    for place, plain in changed(OBJECTS[kind]):
        parsed = read(kind, plain)
        assert parsed == reader(kind).object(json.dumps(plain)) or not parsed.is_named
        for name in kind.__struct_fields__:
            if not place or place[0] != name:
                assert getattr(whole, name) == getattr(parsed, name), place
        if place[0] == "metadata" and place[1:2] not in ((), ("name",)):
            assert "one" == parsed.metadata.name, place


def test_an_odd_field_is_one_that_is_not_there() -> None:
    plain = json.loads(json.dumps(OBJECTS[Pod]))
    without = json.loads(json.dumps(plain))
    del without["spec"]["containers"][0]["env"]
    del without["spec"]["overhead"]
    del without["metadata"]["creationTimestamp"]
    plain["spec"]["containers"][0]["env"] = None
    plain["spec"]["overhead"] = ["cpu"]
    plain["metadata"]["creationTimestamp"] = "yesterday"
    plain["metadata"]["annotations"] = {"note": "said", "odd": 1, "other": None}
    plain["spec"]["priority"] = "3"  # a number, if a text
    plain["spec"]["unknown"] = plain["spec"]["resourceClaims"][0]["unknown"] = {"a": [1]}

    assert read(Pod, without) == read(Pod, plain)


@pytest.mark.parametrize("odd", [None, 3, "odd", [], [{}]])
def test_what_is_no_object_is_none_of_a_list(odd: Any) -> None:
    assert Pod() == read(Pod, odd)
    assert ["one"] == [one.metadata.name for one in read_all(Pod, [odd, OBJECTS[Pod]])]
    assert [] == read_all(Pod, None)


def test_a_field_of_another_type_is_refused_where_that_is_asked() -> None:
    with pytest.raises(ValueError, match="Expected `str`"):
        expect(Pod, {"metadata": {"name": 3}})
    assert Pod() == expect(Pod, {"metadata": {"labels": None}, "spec": {"containers": None}})
