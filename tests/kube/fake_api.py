"""The API's objects in memory, behind the transport the services use."""

import asyncio
import copy
from collections.abc import Callable
from itertools import count
from typing import Any

from attrs import define, field

from hetero.kube.client.api import LONGEST_RETRY_S, ApiError
from hetero.kube.objects.reading import read
from hetero.kube.server.delegated import AUDIENCE as METRICS
from hetero.kube.words.annotations import AUDIENCE

Plain = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = tuple(f"/apis/policy/{version}/poddisruptionbudgets" for version in ("v1", "v1beta1"))


@define(eq=False)
class FakeApi:
    """Objects by their paths. `fail` names calls that are answered by an error."""

    objects: dict[str, Plain] = field(factory=dict)
    events: list[str] = field(factory=list)
    fail: set[str] = field(factory=set)
    calls: list[str] = field(factory=list)
    protected: set[str] = field(factory=set)  # names of pods that may not be evicted
    evicted: list[str] = field(factory=list)
    budgets: list[Plain] = field(factory=list)
    rights: set[tuple[str, str, str]] = field(factory=set)  # user, namespace, policy to use
    tokens: dict[str, str] = field(factory=dict)  # whose they are
    bound: dict[str, tuple[str, str, str]] = field(factory=dict)  # users, pods and UIDs by token
    lent: dict[str, str] = field(factory=dict)  # tokens that are meant for metrics alone
    servers: set[str] = field(factory=set)  # addresses that API servers publish
    readers: set[str] = field(factory=set)  # users who may get /metrics
    retries: dict[str, float] = field(factory=dict)  # as who follows said, by path
    _watchers: list[tuple[str, Callable[[str, Plain], None]]] = field(factory=list)
    _lists: list[Callable[[], None]] = field(factory=list)
    _lost: list[Callable[[Exception], None]] = field(factory=list)
    _numbers: Any = field(factory=count)

    async def get(self, path: str, query: Any = None) -> Plain:
        self._note("GET", path)
        selector = (query or {}).get("fieldSelector", "")
        if path.endswith("/pods") and selector.startswith("metadata.name="):
            stored = self.objects.get(f"{path}/{selector.partition('=')[2]}")
            return {"items": [copy.deepcopy(stored)] if stored else []}
        if selector.startswith("status.podIP="):
            address = selector.partition("=")[2]
            pods = (one for where, one in self.objects.items() if "/pods/" in where)
            found_at = [one for one in pods if one["status"].get("podIP") == address]
            return {"items": copy.deepcopy(found_at)}
        if path == "/api/v1/pods" and not selector:
            pods = (one for where, one in self.objects.items() if "/pods/" in where)
            return {"items": copy.deepcopy([*pods])}
        if path == "/api/v1":
            return {"resources": [{"name": "pods/eviction", "version": "v1"}]}
        if path in BUDGETS:
            return {"items": copy.deepcopy(self.budgets)}
        if path not in self.objects and path.endswith("/resourcequotas"):
            return {"items": []}
        if path.endswith("/endpoints/kubernetes"):
            return {"subsets": [{"addresses": [{"ip": one} for one in self.servers]}]}
        if path not in self.objects:
            raise ApiError(f"GET {path}", 404, "not found")
        return copy.deepcopy(self.objects[path])

    async def post(self, path: str, body: Plain) -> Plain:
        self._note("POST", path)
        if path.endswith("/subjectaccessreviews"):
            return {**body, "status": {"allowed": self._may(body["spec"])}}
        if path.endswith("/tokenreviews"):
            return {**body, "status": self._whose(**body["spec"])}
        if path.endswith("/events"):
            self.events.append(body["message"])
        elif path.endswith("/eviction"):
            self._evict(path.removesuffix("/eviction"), body)
        elif path.endswith("/binding"):
            self._bind(path.removesuffix("/binding"), body)
        else:
            self.put_now(f"{path}/{body['metadata']['name']}", body)
        return body

    async def put(self, path: str, body: Plain) -> Plain:
        self._note("PUT", path)
        if path not in self.objects:
            raise ApiError(f"PUT {path}", 404, "not found")
        if (
            body["metadata"].get("resourceVersion")
            != self.objects[path]["metadata"]["resourceVersion"]
        ):
            raise ApiError(f"PUT {path}", 409, "changed meanwhile")
        return self.put_now(path, body)

    async def patch(self, path: str, body: Plain) -> Plain:
        self._note("PATCH", path)
        if path.removesuffix("/status") not in self.objects:
            raise ApiError(f"PATCH {path}", 404, "not found")
        if path.endswith("/status"):
            self._set(path.removesuffix("/status"), lambda o: _merge(o, {"status": body["status"]}))
            return body
        if path.split("/")[-2] in ("configmaps", "deployments", "secrets"):
            self._set(path, lambda o: _merge(o, body))
            return body
        metadata = body["metadata"]
        if metadata.get("uid") not in (None, self.objects[path]["metadata"]["uid"]):
            raise ApiError(f"PATCH {path}", 409, "another uid")
        notes = metadata["annotations"]
        self._set(path, lambda o: _merge(o["metadata"].setdefault("annotations", {}), notes))
        return self.objects[path]

    async def follow(
        self,
        path: str,
        kind: type[Any],
        *,
        query: Any = None,
        metadata_only: bool = False,
        listed: Any,
        changed: Any,
        lost: Any,
        retry_s: float = LONGEST_RETRY_S,
    ) -> None:
        self.retries[path] = retry_s

        def seen(item: Plain) -> Any:
            return read(kind, {"metadata": item["metadata"]} if metadata_only else item)

        name = path.rpartition("/")[2]

        def relist() -> None:
            listed([seen(o) for p, o in self.objects.items() if p.split("/")[-2] == name])

        relist()
        self._lists.append(relist)
        self._watchers.append((name, lambda event, item: changed(event, seen(item))))
        self._lost.append(lost)
        await asyncio.Event().wait()

    def list_again(self) -> None:
        """Tell all who follow what there is, as once the API server is back."""
        for relist in self._lists:
            relist()

    def lose(self) -> None:
        """Tell all who follow that the API server is away."""
        for lost in self._lost:
            lost(ConnectionResetError("away"))

    def _may(self, spec: Plain) -> bool:
        """Do what RBAC does with a SubjectAccessReview."""
        if path := spec.get("nonResourceAttributes"):
            wanted = {"path": "/metrics", "verb": "get"}
            return bool(path == wanted and spec["user"] in self.readers)
        asked = spec["resourceAttributes"]
        policy = (asked["verb"], asked["group"], asked["resource"]) == (
            *("use", "hetero.io", "policies"),
        )
        return policy and (spec["user"], asked["namespace"], asked["name"]) in self.rights

    def _whose(self, token: str, audiences: Any = ()) -> Plain:
        """Do what the API does with a TokenReview: a bound token is meant for agents' webhook."""
        if token in self.bound and AUDIENCE in audiences:
            user, pod, uid = self.bound[token]
            about = "authentication.kubernetes.io/pod-"
            extra = {f"{about}name": [pod], f"{about}uid": [uid]}
            known = {"username": user, "extra": extra}
            return {"authenticated": True, "audiences": [AUDIENCE], "user": known}
        if token in self.lent and METRICS in audiences:
            lent = {"username": self.lent[token]}
            return {"authenticated": True, "audiences": [METRICS], "user": lent}
        if audiences or token not in self.tokens:
            return {"authenticated": False}
        return {"authenticated": True, "user": {"username": self.tokens[token]}}

    def _bind(self, path: str, body: Plain) -> None:
        """Do what the API (from 1.21 on) does with a Binding: pod, node and annotations at once."""
        if path not in self.objects:
            raise ApiError(f"POST {path}/binding", 404, "not found")
        pod = copy.deepcopy(self.objects[path])
        if body["metadata"]["uid"] != pod["metadata"]["uid"] or pod["spec"].get("nodeName"):
            raise ApiError(f"POST {path}/binding", 409, "another uid, or assigned already")
        pod["spec"]["nodeName"] = body["target"]["name"]
        if notes := body["metadata"]["annotations"]:
            pod["metadata"].setdefault("annotations", {}).update(notes)
        self.put_now(path, pod)

    def _evict(self, path: str, body: Plain) -> None:
        """Do what the API does with an Eviction: a pod has its grace period, and may be spared."""
        if path.rpartition("/")[2] in self.protected:
            raise ApiError(f"POST {path}/eviction", 429, "would violate a disruption budget")
        labels = (self.objects[path]["metadata"].get("labels") or {}).items()
        for budget in self.budgets:
            if budget["spec"]["selector"]["matchLabels"].items() <= labels:
                if budget["status"]["disruptionsAllowed"] < 1:
                    raise ApiError(
                        f"POST {path}/eviction", 429, "would violate a disruption budget"
                    )
                budget["status"]["disruptionsAllowed"] -= not body["deleteOptions"].get("dryRun")
        if body["deleteOptions"].get("dryRun"):
            return
        self.evicted.append(path.rpartition("/")[2])
        if self.objects[path]["spec"].get("terminationGracePeriodSeconds") == 0:
            self.delete(path)
        else:
            self._set(path, lambda o: o["metadata"].update(deletionTimestamp="now"))

    def put_now(self, path: str, body: Plain) -> Plain:
        made = copy.deepcopy(body)
        made["metadata"]["resourceVersion"] = str(next(self._numbers))
        event = "MODIFIED" if path in self.objects else "ADDED"
        self.objects[path] = made
        self._say(event, path)
        return made

    def delete(self, path: str) -> None:
        self._say("DELETED", path)
        del self.objects[path]

    def _set(self, path: str, change: Callable[[Plain], None]) -> None:
        made = copy.deepcopy(self.objects[path])
        change(made)
        self.put_now(path, made)

    def _note(self, verb: str, path: str) -> None:
        self.calls.append(f"{verb} {path}")
        if any(f"{verb} {path}".endswith(end) for end in self.fail):
            raise ApiError(f"{verb} {path}", 500, "told to fail")

    def _say(self, event: str, path: str) -> None:
        for kind, changed in self._watchers:
            if path.split("/")[-2] == kind:
                changed(event, copy.deepcopy(self.objects[path]))


def _merge(into: Plain, body: Plain) -> None:
    for name, value in body.items():
        if isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value
        if value is None:
            del into[name]
