"""Asks the API as others: users, who has a token, and what each may do."""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPSConnection
from typing import Any

from tests.cluster.lab import TOKEN, Lab, Plain, program
from tests.kube.control_plane import wait_for

RBAC = "/apis/rbac.authorization.k8s.io/v1"
BINDINGS = f"{RBAC}/namespaces/default/rolebindings"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"


def as_user(lab: Lab, user: str, method: str, path: str, body: Any, *, kind: str = "") -> Plain:
    """Return what the API answers a user. Raises `OSError` when that is an error."""
    who = {"Authorization": TOKEN, "Impersonate-User": user}
    return ask_with(lab, who, method, path, body, kind or "application/json")


def as_bearer(lab: Lab, token: str, method: str, path: str, body: Any = None) -> Plain:
    """Return what the API answers who has a token. Raises `OSError` when that is an error."""
    kind = MERGE if method == "PATCH" else "application/json"
    return ask_with(lab, {"Authorization": f"Bearer {token}"}, method, path, body, kind)


def ask_with(
    lab: Lab, who: Mapping[str, str], method: str, path: str, body: Any, kind: str
) -> Plain:
    """Return what the API answers who sends these headers. Raises `OSError` when it is an error."""

    def act() -> bytes:
        host = lab.api.partition("://")[2]
        tls = ssl._create_unverified_context()
        with closing(HTTPSConnection(host, context=tls, timeout=10)) as connection:
            headers = {**who, "Content-Type": kind}
            text = body if isinstance(body, str) else json.dumps(body)
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            data = answer.read()
        if answer.status >= 400:
            with suppress(ValueError):
                data = json.loads(data)["message"].encode()
            raise OSError(f"{answer.status} {data.decode()}")
        return data

    made: Plain = json.loads(lab.inside(act))
    return made


@contextmanager
def bound(lab: Lab, role: str, user: str) -> Iterator[None]:
    """Give a user a ClusterRole in the default namespace meanwhile, once the API server knows."""
    name = f"{role}-{user.rpartition(':')[2]}"
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    }
    lab.call("POST", BINDINGS, body)
    try:
        wait_for(lambda: may(lab, user, lab.call("GET", f"{RBAC}/clusterroles/{role}")["rules"][0]))
        yield
    finally:
        lab.call("DELETE", f"{BINDINGS}/{name}")


def may(lab: Lab, user: str, rule: Plain) -> bool:
    """Whether the API server lets a user do in the default namespace what a rule begins with."""
    resource, _, part = rule["resources"][0].partition("/")
    asked = {
        "namespace": "default",
        "verb": rule["verbs"][0],
        "group": rule["apiGroups"][0],
        "resource": resource,
        "subresource": part,
        "name": rule.get("resourceNames", [""])[0],
    }
    body = {"spec": {"user": user, "resourceAttributes": asked}}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(lab.call("POST", path, body)["status"]["allowed"])


def pod(name: str, limits: Mapping[str, str], notes: Mapping[str, str], **spec: Any) -> Plain:
    """Return a pod of one container with these limits and annotations."""
    metadata = {"name": name, "annotations": dict(notes)}
    return {"metadata": metadata, "spec": {**program(limits), **spec}}
