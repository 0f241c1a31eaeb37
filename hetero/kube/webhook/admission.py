"""Admission of pods: what is missing is filled in, and nonsense is refused in one sentence.

Allocations are for the scheduler to write: nobody else may bring one along or change it later.
"""

from __future__ import annotations

import base64
import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from attrs import field, frozen

from hetero.kube.api.annotations import ALLOCATION, SIGNATURE
from hetero.kube.api.client import Api, ApiError
from hetero.kube.api.pod_request import Asked, Vocabulary
from hetero.kube.api.quantity import quantity
from hetero.kube.api.quota import Quotas, limits
from hetero.model.errors import BadInput, HeteroError

log = logging.getLogger(__name__)

Plain = dict[str, Any]

#: Labels by which a namespace or a pod opts out; the second is for those who come from HAMi.
IGNORE = ("hetero.io/webhook", "hami.io/webhook")
#: Admission reviews of the largest pods stay below this.
_MOST_BYTES = 8 * 2**20
_SIGNED = (ALLOCATION, SIGNATURE)
_RESERVED = "default-scheduler"


@frozen(kw_only=True)
class Webhook:
    """Answers admission reviews. `scheduler` is the name pods get.

    `allocation_writer` is the user who may sign them. Pods that name one of `adopt_schedulers` are
    moved to ours.
    """

    vocabulary: Vocabulary
    scheduler: str
    allocation_writer: str
    adopt_schedulers: frozenset[str] = frozenset()
    api: Api | None = None  # asked for quotas
    runtime_classes: Mapping[str, str] = field(factory=dict)  # by vendor

    def app(self) -> web.Application:
        """Return the HTTP service."""
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post("/admit", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            review = await request.json()
            asked = review["request"]
            answer = {"uid": asked["uid"], **await self.admit(asked)}
        except (KeyError, TypeError, ValueError) as error:
            raise web.HTTPBadRequest(text=f"not an AdmissionReview: {error!r}") from None
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        )

    async def admit(self, asked: Plain) -> Plain:
        """Return the response to an admission request for a pod."""
        try:
            if asked["operation"] == "UPDATE":
                self._unchanged(asked)
                return {"allowed": True}
            patches = await self._create(asked["object"], asked.get("namespace", "default"))
        except HeteroError as error:
            return {"allowed": False, "status": {"code": 403, "message": f"hetero: {error}"}}
        if not patches:
            return {"allowed": True}
        patch = base64.b64encode(json.dumps(patches).encode()).decode()
        return {"allowed": True, "patchType": "JSONPatch", "patch": patch}

    def _unchanged(self, asked: Plain) -> None:
        old, new = (_notes(asked[which]) for which in ("oldObject", "object"))
        user = (asked.get("userInfo") or {}).get("username")
        if (
            any(old.get(name) != new.get(name) for name in _SIGNED)
            and user != self.allocation_writer
        ):
            raise BadInput(f"{ALLOCATION} is written by the scheduler alone")

    async def _create(self, pod: Plain, namespace: str) -> list[Plain]:
        labels = pod["metadata"].get("labels") or {}
        if any(name in _notes(pod) for name in _SIGNED):
            raise BadInput(f"{ALLOCATION} is written by the scheduler alone: leave it out")
        if any(labels.get(name) == "ignore" for name in IGNORE):
            return []
        every = self.vocabulary.asked(pod)
        if not every:
            return []
        spec = pod["spec"]
        if spec.get("nodeName"):
            raise BadInput(
                "nodeName is set, which passes the scheduler by: use a nodeSelector with "
                f"kubernetes.io/hostname: {spec['nodeName']} instead"
            )
        named = spec.get("schedulerName") or _RESERVED
        if named not in (_RESERVED, self.scheduler, *self.adopt_schedulers):
            return []  # another scheduler's pod, chosen on purpose
        for asked in every:
            _refuse_privileged(asked, _container(spec, asked.container))
        if self.api is not None:
            await _within_quota(self.api, self.vocabulary, namespace, spec, every)
        return [*self._defaults(spec, every), *self._names(spec, every)]

    def _names(self, spec: Plain, every: tuple[Asked, ...]) -> list[Plain]:
        """Name the scheduler, and the runtime class where the vendors agree on one."""
        patches = [{"op": "add", "path": "/spec/schedulerName", "value": self.scheduler}]
        vendors = {vendor for asked in every for vendor in asked.request.vendor.include}
        classes = {self.runtime_classes.get(vendor, "") for vendor in vendors}
        value = classes.pop() if len(classes) == 1 else ""
        if value and not spec.get("runtimeClassName"):
            patches.append({"op": "add", "path": "/spec/runtimeClassName", "value": value})
        return patches

    def _defaults(self, spec: Plain, every: tuple[Asked, ...]) -> list[Plain]:
        """Write out how many cards are meant, where that was not said or is a part of a module."""
        patches = []
        for asked in every:
            where, container = _container(spec, asked.container)
            resources, name = container.get("resources") or {}, asked.resource_names.count
            limits = resources.get("limits") or {}
            if quantity(limits, name) == asked.count:
                continue
            meant = {"limits": {**limits, name: str(asked.count)}}
            if name in (resources.get("requests") or {}):
                meant["requests"] = {**resources["requests"], name: str(asked.count)}
            value = {**resources, **meant}
            patches.append({"op": "add", "path": f"{where}/resources", "value": value})
        return patches


def _notes(pod: Plain) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}


def _container(spec: Plain, name: str) -> tuple[str, Plain]:
    """Return a container's path in the pod, and the container."""
    return next(
        (f"/spec/{kind}/{number}", container)
        for kind in ("containers", "initContainers")
        for number, container in enumerate(spec.get(kind) or ())
        if container["name"] == name
    )


def _refuse_privileged(asked: Asked, found: tuple[str, Plain]) -> None:
    if (found[1].get("securityContext") or {}).get("privileged"):
        raise BadInput(
            f"container {asked.container}: is privileged, so it sees every card and no share "
            f"can hold it: drop privileged, or {asked.resource_names.count}"
        )


async def _within_quota(
    api: Api, vocabulary: Vocabulary, namespace: str, spec: Plain, every: tuple[Asked, ...]
) -> None:
    """Refuse what passes a quota all by itself; what others hold is counted when a pod is bound."""
    try:
        listed = await api.get(f"/api/v1/namespaces/{namespace}/resourcequotas")
    except ApiError as error:
        raise BadInput(f"the quotas of namespace {namespace} cannot be read: {error}") from None
    quotas = Quotas(vocabulary)
    for quota in listed["items"]:
        hard = quota["spec"].get("hard") or {}
        quotas.allow(namespace, quota["metadata"]["name"], limits(hard, vocabulary.resources))
    over = quotas.over(namespace, _charge(spec, every))
    if over:
        raise BadInput(over)


def _charge(spec: Plain, every: tuple[Asked, ...]) -> Counter[str]:
    """Return what the pod asks of memory and core in so many words, over all its cards."""
    charges = {asked.container: _charge_of(asked) for asked in every}

    def of(kind: str) -> list[Counter[str]]:
        return [charges.get(one["name"], Counter()) for one in spec.get(kind) or ()]

    held = sum(of("containers"), Counter[str]())
    for one in of("initContainers"):
        held |= one  # name by name the larger
    return held


def _charge_of(asked: Asked) -> Counter[str]:
    resource_names, ask, made = asked.resource_names, asked.request.asks[0], Counter[str]()
    for name in resource_names.memory if ask.memory is not None else ():
        made[name] = -(-(ask.memory or 0) // resource_names.memory_unit) * asked.count
    for name in resource_names.core if ask.core is not None else ():
        made[name] = -(-(ask.core or 0) * resource_names.core_whole // 100) * asked.count
    return made
