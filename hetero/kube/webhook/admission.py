"""Admission of pods: what is missing is filled in, and nonsense is refused in one sentence.

Allocations are for schedulers to write: nobody else may bring one along or change it later.
Words that take something from neighbours are for who has the right to them (`rights`).
"""

from __future__ import annotations

import base64
import fnmatch
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping

from aiohttp import web
from attrs import field, frozen

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.dra import templates
from hetero.kube.dra.way import AllocationWay, asks_by_claims
from hetero.kube.objects.kinds import Container, Plain, Pod, ResourceQuota
from hetero.kube.objects.reading import expect, read_all
from hetero.kube.webhook.pod_size import MOST_BYTES, too_large
from hetero.kube.webhook.request import AdmissionRequest
from hetero.kube.webhook.rights import Rights, used
from hetero.kube.webhook.visible import POLICY, VisibleDevices, containers
from hetero.kube.words.annotations import ALLOCATION, HAMI_ALLOCATION, SIGNATURE, read_note
from hetero.kube.words.pod import POD_GROUP, expect_unhidden
from hetero.kube.words.pod_request import INIT_PARTS, Asked, Vocabulary
from hetero.kube.words.quantity import quantity
from hetero.kube.words.quota import Quotas, limits
from hetero.kube.words.runtime_variables import VISIBLE, InjectionWay
from hetero.model.errors import BadInput, HeteroError

log = logging.getLogger(__name__)


#: Labels by which a namespace or a pod opts out; the second is for those who come from HAMi.
IGNORE = ("hetero.io/webhook", "hami.io/webhook")
#: Containers of a pod, whatever they ask: no node runs so many, and each may need its own patch.
_MOST_CONTAINERS = 1000
_SIGNED = (ALLOCATION, SIGNATURE)
#: Where kubectl notes what it was given.
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_RESERVED = "default-scheduler"


@frozen(kw_only=True)
class Webhook:
    """Answers admission reviews. `scheduler` is the name pods get.

    `allocation_writer` is the user who writes our allocations, `other_writers` are those who write
    HAMi's. Pods that name one of `adopt_schedulers` are moved to ours.
    """

    vocabulary: Vocabulary
    scheduler: str
    allocation_writer: str
    api: ApiCalls  # asked for quotas and rights
    other_writers: frozenset[str] = frozenset()
    adopt_schedulers: frozenset[str] = frozenset()
    runtime_classes: Mapping[str, str] = field(factory=dict)  # by vendor
    old_kubelets: bool = False  # they take what init containers ask of a card for their own
    vendor_runtimes: frozenset[str] = frozenset()  # runtime classes that bring cards by themselves
    hide_unasked: bool = False  # tell vendors' runtimes so where a pod asks for no cards
    way: AllocationWay = AllocationWay.CLASSIC
    driver: InjectionWay = InjectionWay.FILES  # how agents bring drivers
    rights: Rights = field(init=False)
    visible: VisibleDevices = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "rights", Rights(self.api))
        visible = VisibleDevices(
            vendors=self.vocabulary.vendors,
            hide=self.hide_unasked,
            runtime_classes=self.vendor_runtimes,
            way=self.driver,
        )
        object.__setattr__(self, "visible", visible)

    def app(self) -> web.Application:
        """Return the HTTP service, which answers everybody."""
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post("/admit", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            text = await request.read()
            review = json.loads(text)  # whatever encoding is said to be its own
            asked = review["request"]
            large = too_large(text)
            response = _denied(large) if large else await self.admit(asked)
            answer = {"uid": asked["uid"], **response}
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise web.HTTPBadRequest(text=f"not an AdmissionReview: {error!r}") from None
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        )

    async def admit(self, asked: Plain) -> Plain:
        """Return the response to an admission request for a pod."""
        try:
            _expect_few(asked["object"].get("spec") or {})
            request = expect(AdmissionRequest, asked)
            patches = []
            if request.operation == "CREATE":
                patches = await self._create(request, asked["object"]["spec"])
            elif request.sub_resource != "ephemeralcontainers":
                await self._update(request)
            elif "spec" in asked["object"]:  # before Kubernetes 1.22 it is another one, and alpha
                patches = await self._debugged(request)
        except HeteroError as error:
            return _denied(str(error))
        if not patches:
            return {"allowed": True}
        patch = base64.b64encode(json.dumps(patches).encode()).decode()
        return {"allowed": True, "patchType": "JSONPatch", "patch": patch}

    async def _update(self, request: AdmissionRequest) -> None:
        old, new = request.before, request.object
        was, notes = old.metadata.annotations, new.metadata.annotations
        self._expect_writer(
            request, {name for name in {*was, *notes} if was.get(name) != notes.get(name)}
        )
        before, now = self.visible.annotated(old), self.visible.annotated(new)
        if not now.items() <= before.items():
            await self.rights.expect(request, ((name, POLICY) for name in self.visible.named(new)))
        if self._put_aside(old) != self._put_aside(new):
            await self.rights.expect(request, used(self._put_aside(new), self.vocabulary.defaults))
        if self._named(new) not in (self.scheduler, *self.adopt_schedulers):
            return
        _expect_group(old, new)
        if self._understood(old) != self._understood(new):
            every = self.vocabulary.asked(new)
            _expect_limited(new, every)
            await self.rights.expect(request, used(every, self.vocabulary.defaults))

    async def _debugged(self, request: AdmissionRequest) -> list[Plain]:
        """Look at containers that somebody adds to a pod which runs, and hide its cards from them.

        The rest of the pod cannot be changed so.
        """
        pod = request.object
        before = [one.name for _, one in containers(request.before)]
        named = self.visible.named(pod, known=before)
        await self.rights.expect(request, ((name, POLICY) for name in named))
        every = self._understood(pod) or self._understood(templates.with_words(pod)) or ()
        return [*self.visible.patches(pod, every, known=before)]

    def _expect_writer(self, request: AdmissionRequest, changed: Iterable[str]) -> None:
        """Raise `BadInput` if an annotation that gives devices is not changed by who gives them."""
        user = request.user_info.get("username")
        own_notes = [*fnmatch.filter(changed, VISIBLE), *set(_SIGNED).intersection(changed)]
        if user != self.allocation_writer and own_notes:
            raise BadInput(f"{min(own_notes)} is written by the scheduler alone: leave it out")
        hami_notes = sorted(fnmatch.filter(changed, HAMI_ALLOCATION))
        if hami_notes and user not in self.other_writers:
            raise BadInput(
                f"{hami_notes[0]} says which devices HAMi gave, and is written by HAMi alone: "
                "leave it out"
            )

    def _understood(self, pod: Pod) -> tuple[Asked, ...] | None:
        """Return what a pod's containers ask, None if that is nonsense."""
        try:
            return self.vocabulary.asked(pod)
        except BadInput:
            return None

    def _put_aside(self, pod: Pod) -> tuple[Asked, ...]:
        """Return what a pod asks by words that are put aside, nothing if that is nonsense.

        Whoever schedules it, templates that it names are made of them, and none of nonsense.
        """
        if self.way is AllocationWay.CLASSIC:
            return ()
        try:
            return self.vocabulary.asked(templates.with_words(pod))
        except BadInput:
            return ()

    def _named(self, pod: Pod) -> str:
        return pod.spec.scheduler_name or _RESERVED

    async def _create(self, request: AdmissionRequest, spec: Plain) -> list[Plain]:
        pod, named = request.object, self._named(request.object)
        is_own = named in (self.scheduler, *self.adopt_schedulers)
        opted_out = any(pod.metadata.labels.get(name) == "ignore" for name in IGNORE)
        self._expect_writer(request, pod.metadata.annotations)
        # By a vendor's runtime a pod gets cards whoever schedules it.
        await self.rights.expect(request, ((name, POLICY) for name in self.visible.named(pod)))
        await self.rights.expect(request, used(self._put_aside(pod), self.vocabulary.defaults))
        if self.way is not AllocationWay.CLASSIC:
            templates.expect_own(self.vocabulary, pod)
        if not is_own and (opted_out or named != _RESERVED):
            return [*self.visible.patches(pod, ())]  # another scheduler's pod, chosen on purpose
        every = self.vocabulary.asked(pod)
        _expect_limited(pod, every)
        requested = every
        if not every and self.way is not AllocationWay.CLASSIC:  # claims say them by now
            requested = self.vocabulary.asked(templates.with_words(pod))
        await self.rights.expect(request, used(every, self.vocabulary.defaults))
        chosen = self._runtime_class(every)
        hidden = [*self.visible.patches(pod, requested, runtime_class=chosen)]
        if not every:
            return hidden
        if pod.spec.node_name:
            raise BadInput(
                "nodeName is set, which passes the scheduler by: use a nodeSelector with "
                f"kubernetes.io/hostname: {pod.spec.node_name} instead"
            )
        _expect_kept(pod)
        await _within_quota(self.api, self.vocabulary, request.namespace, pod, every)
        if opted_out:  # it says by itself who schedules it, which puts no rule aside
            return hidden
        if asks_by_claims(self.way, pod):
            return [*self._by_claims(pod, spec, named), *hidden]
        return [*self._resources(pod, spec, every), *self._names(pod, every), *hidden]

    def _by_claims(self, pod: Pod, spec: Plain, named: str) -> list[Plain]:
        """Say by claims what a pod asks; of whole cards kube-scheduler makes claims by itself."""
        made = templates.templates(self.vocabulary, pod)
        known = self.way is AllocationWay.DRA and all(one.whole for one in made)
        return [
            *([] if named == _RESERVED else [_scheduled_by(_RESERVED)]),
            *(() if known else templates.patches(self.vocabulary, pod, spec)),
        ]

    def _names(self, pod: Pod, every: tuple[Asked, ...]) -> list[Plain]:
        """Name the scheduler, and the runtime class."""
        patches, value = [_scheduled_by(self.scheduler)], self._runtime_class(every)
        if value and not pod.spec.runtime_class_name:
            patches.append({"op": "add", "path": "/spec/runtimeClassName", "value": value})
        return patches

    def _runtime_class(self, every: Iterable[Asked]) -> str | None:
        """Return the runtime class that the vendors which are asked agree on, None if none."""
        vendors = {vendor for asked in every for vendor in asked.request.vendor.include}
        classes = {self.runtime_classes.get(vendor) for vendor in vendors}
        return classes.pop() if len(classes) == 1 else None

    def _resources(self, pod: Pod, spec: Plain, every: tuple[Asked, ...]) -> list[Plain]:
        """Write out how many cards are meant, where that was not said or is a part of a module.

        What init containers ask of each card is noted beside, where kubelets would take it for
        their own to give.
        """
        patches, noted = [], {}
        for asked in every:
            where, resources = _resources_of(spec, asked.container)
            made = _with_count(resources, asked)
            if self.old_kubelets and where.startswith("/spec/initContainers"):
                parts = {*asked.resource_names.resources} - {asked.resource_names.count}
                limits = made["limits"]
                noted[asked.container] = {n: limits[n] for n in limits if n in parts}
                made = {
                    kind: {n: amount for n, amount in said.items() if n not in parts}
                    if kind in ("limits", "requests")
                    else said
                    for kind, said in made.items()
                }
            if made != resources:
                patches.append({"op": "add", "path": f"{where}/resources", "value": made})
        if any(noted.values()):
            notes = {**pod.metadata.annotations, INIT_PARTS: json.dumps(noted, sort_keys=True)}
            patches.append({"op": "add", "path": "/metadata/annotations", "value": notes})
        return patches


def _denied(why: str) -> Plain:
    return {"allowed": False, "status": {"code": 403, "message": f"hetero: {why}"}}


def _expect_few(spec: Plain) -> None:
    """Raise `BadInput` for a pod that nobody runs, and that would keep the webhook from others."""
    kinds = ("containers", "initContainers", "ephemeralContainers")
    count = sum(len(spec.get(kind) or ()) for kind in kinds)
    if count > _MOST_CONTAINERS:
        raise BadInput(f"{count} containers: a pod may have at most {_MOST_CONTAINERS}")


def _expect_group(old: Pod, new: Pod) -> None:
    """Raise `BadInput` if a pod that is bound says another group, by which its row is found."""
    former, group = (pod.metadata.labels.get(POD_GROUP) for pod in (old, new))
    if old.spec.node_name and former != group:
        raise BadInput(
            f"label {POD_GROUP} stays as it is once a pod is bound, since the pod runs in step "
            "with its group: delete the pod and create it anew"
        )


def _expect_limited(pod: Pod, every: tuple[Asked, ...]) -> None:
    """Raise `BadInput` if a container that asks, by names or claims, passes what limits it."""
    asking = {asked.container: asked for asked in every}
    started = (*pod.spec.containers, *pod.spec.init_containers)
    for container in started:
        if container.name in asking:
            _refuse_privileged(asking[container.name], container)
    for container in started:
        if container.name in asking or container.resources.claims:
            expect_unhidden(container)


def _with_count(resources: Plain, asked: Asked) -> Plain:
    """Return a container's resources with how many cards it means."""
    name, limits = asked.resource_names.count, resources.get("limits") or {}
    if quantity(limits, name) == asked.count:
        return resources
    meant = {"limits": {**limits, name: str(asked.count)}}
    if name in (resources.get("requests") or {}):
        meant["requests"] = {**resources["requests"], name: str(asked.count)}
    return {**resources, **meant}


def _expect_kept(pod: Pod) -> None:
    """Raise `BadInput` for a sidecar that this Kubernetes took for an init container.

    Before 1.28 it leaves the word out that makes a sidecar; what `kubectl apply` notes has it.
    """
    try:
        applied = read_note(_APPLIED, pod.metadata.annotations.get(_APPLIED) or "{}")
        inits = applied["spec"]["initContainers"]
        meant = [one["name"] for one in inits if one.get("restartPolicy") == "Always"]
    except (AttributeError, BadInput, KeyError, TypeError):
        return  # whoever wrote it, it is no pod with init containers
    for container in pod.spec.init_containers:
        if container.name in meant and container.restart_policy is None:
            raise BadInput(
                f"container {container.name}: with restartPolicy Always it is a sidecar, which "
                "this Kubernetes does not know (1.28 and later do): move it to containers"
            )


def _scheduled_by(name: str) -> Plain:
    return {"op": "add", "path": "/spec/schedulerName", "value": name}


def _resources_of(spec: Plain, name: str) -> tuple[str, Plain]:
    """Return a container's path in the pod, and what is written of its resources."""
    return next(
        (f"/spec/{kind}/{number}", container.get("resources") or {})
        for kind in ("containers", "initContainers")
        for number, container in enumerate(spec.get(kind) or ())
        if container["name"] == name
    )


def _refuse_privileged(asked: Asked, container: Container) -> None:
    if container.security_context.privileged:
        raise BadInput(
            f"container {asked.container}: is privileged, so it sees every card and no share "
            f"can hold it: drop privileged, or {asked.resource_names.count}"
        )


async def _within_quota(
    api: ApiCalls, vocabulary: Vocabulary, namespace: str, pod: Pod, every: tuple[Asked, ...]
) -> None:
    """Refuse what passes a quota all by itself; what others hold is counted when a pod is bound."""
    try:
        listed = await api.get(f"/api/v1/namespaces/{namespace}/resourcequotas")
    except ApiError as error:
        raise BadInput(f"the quotas of namespace {namespace} cannot be read: {error}") from None
    quotas = Quotas(vocabulary)
    for quota in read_all(ResourceQuota, listed["items"]):
        allowed = limits(quota.spec.hard, vocabulary.resources)
        quotas.allow(namespace, quota.metadata.name, allowed)
    over = quotas.over(namespace, _charge(pod, every))
    if over:
        raise BadInput(over)


def _charge(pod: Pod, every: tuple[Asked, ...]) -> Counter[str]:
    """Return what the pod asks of memory and core in so many words, over all its cards."""
    charges = {asked.container: _charge_of(asked) for asked in every}

    def of(some: tuple[Container, ...]) -> list[Counter[str]]:
        return [charges.get(one.name, Counter()) for one in some]

    held = sum(of(pod.spec.containers), Counter[str]())
    for charge in of(pod.spec.init_containers):
        held |= charge  # name by name the larger
    return held


def _charge_of(asked: Asked) -> Counter[str]:
    resource_names, ask, made = asked.resource_names, asked.request.asks[0], Counter[str]()
    for name in resource_names.memory if ask.memory is not None else ():
        made[name] = -(-(ask.memory or 0) // resource_names.memory_unit) * asked.count
    for name in resource_names.core if ask.core is not None else ():
        made[name] = -(-(ask.core or 0) * resource_names.core_whole // 100) * asked.count
    return made
