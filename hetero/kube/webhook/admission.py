"""Admission of pods: what is missing is filled in, and nonsense is refused in one sentence.

Allocations are for schedulers to write: no other user may add or change one. Settings that take
something from neighbours need a right (`rights`).
"""

from __future__ import annotations

import base64
import fnmatch
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from aiohttp import web
from attrs import field, frozen

from hetero.kube.client.api import ApiCalls, ApiError
from hetero.kube.dra import templates
from hetero.kube.dra.way import AllocationWay, asks_by_claims
from hetero.kube.objects.kinds import Container, Plain, Pod, ResourceQuota
from hetero.kube.objects.reading import expect, read_all
from hetero.kube.webhook.foreign_words import (
    ForeignWords,
    log_patches,
    note_patches,
)
from hetero.kube.webhook.pod_size import MOST_BYTES, too_large
from hetero.kube.webhook.request import AdmissionRequest
from hetero.kube.webhook.rights import Rights, used
from hetero.kube.webhook.visible import POLICY, VisibleDevices, containers
from hetero.kube.words.annotations import ALLOCATION, HAMI_ALLOCATION, SIGNATURE, read_note
from hetero.kube.words.owned_words import owned_words
from hetero.kube.words.pod import POD_GROUP, expect_unhidden, kinds
from hetero.kube.words.pod_request import (
    INIT_PARTS,
    ContainerRequest,
    Vocabulary,
    expect_no_size_in_annotations,
)
from hetero.kube.words.quantity import bytes_of, quantity
from hetero.kube.words.quota import Quotas, least_of_pod, limits
from hetero.kube.words.runtime_variables import VISIBLE, InjectionWay
from hetero.model import ContainerKind
from hetero.model.errors import BadInput, HeteroError
from hetero.plugin.resource_names import ResourceNames

log = logging.getLogger(__name__)


#: Containers of a pod, whatever they ask: no node runs so many, and each may need its own patch.
_MOST_CONTAINERS = 1000
_SIGNED = (ALLOCATION, SIGNATURE)
#: Where kubectl notes what it was given.
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_RESERVED = "default-scheduler"


@frozen(kw_only=True)
class PodChange:
    """What becomes of a pod: patches in JSON, and sentences for who asks."""

    patches: tuple[Plain, ...] = ()
    warnings: tuple[str, ...] = ()


@frozen(kw_only=True)
class Webhook:
    """Answers admission reviews. `scheduler_name` is the name pods get.

    `allocation_writer_name` is the user who writes our allocations, `other_writer_names` are those
    who write HAMi's. Pods that name one of `adopted_scheduler_names` are moved to ours.
    """

    vocabulary: Vocabulary
    scheduler_name: str
    allocation_writer_name: str
    api: ApiCalls  # asked for quotas and rights
    other_writer_names: frozenset[str] = frozenset()
    adopted_scheduler_names: frozenset[str] = frozenset()
    runtime_class_by_vendor: Mapping[str, str] = field(factory=dict)  # by vendor
    serves_old_kubelets: bool = False  # they take what init containers ask of a card for their own
    has_autoscaler: bool = False  # nodes state sizes: kubelets count them by the resources' units
    vendor_runtime_classes: frozenset[str] = (
        frozenset()
    )  # runtime classes that bring cards by themselves
    hides_unasked: bool = False  # tell vendors' runtimes so where a pod asks for no cards
    allocation_way: AllocationWay = AllocationWay.CLASSIC
    driver_injection_way: InjectionWay = InjectionWay.FILES  # how agents bring drivers
    refuses_ineffective_words: bool = False
    limiter_log: str | None = None  # what limiters log in containers that do not say
    refuses_privileged_sidecars: bool = False  # beside containers that ask for cards
    takes_default_scheduler: bool = True  # else pods that ask have to name our scheduler
    rights: Rights = field(init=False)
    foreign_words: ForeignWords = field(init=False)
    visible_devices: VisibleDevices = field(init=False)

    def __attrs_post_init__(self) -> None:
        rights = Rights(self.api)
        object.__setattr__(self, "rights", rights)
        words = owned_words(self.vocabulary.vendors)
        foreign_words = ForeignWords(rights, words, refuses=self.refuses_ineffective_words)
        object.__setattr__(self, "foreign_words", foreign_words)
        visible_devices = VisibleDevices(
            vendors=self.vocabulary.vendors,
            hide=self.hides_unasked,
            runtime_classes=self.vendor_runtime_classes,
            way=self.driver_injection_way,
        )
        object.__setattr__(self, "visible_devices", visible_devices)

    def app(self) -> web.Application:
        """Return the HTTP service, which answers everybody."""
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post("/admit", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            request_text = await request.read()
            admission_review = json.loads(request_text)  # whatever encoding is said to be its own
            review_request = admission_review["request"]
            refusal = too_large(request_text)
            response = _denied(refusal) if refusal else await self.admit(review_request)
            answer = {"uid": review_request["uid"], **response}
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise web.HTTPBadRequest(text=f"not an AdmissionReview: {error!r}") from None
        return web.json_response(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
        )

    async def admit(self, review_request: Plain) -> Plain:
        """Return the response to an admission request for a pod."""
        try:
            _expect_few(review_request["object"].get("spec") or {})
            request = expect(AdmissionRequest, review_request)
            change = PodChange()
            if request.operation == "CREATE":
                change = await self._create(request, review_request["object"]["spec"])
            elif request.sub_resource != "ephemeralcontainers":
                await self._update(request)
            elif (
                "spec" in review_request["object"]
            ):  # before Kubernetes 1.22 it is another one, and alpha
                change = PodChange(patches=tuple(await self._debugged(request)))
        except HeteroError as error:
            return _denied(str(error))
        answer: Plain = {"allowed": True}
        if change.warnings:
            answer["warnings"] = [*change.warnings]
        if not change.patches:
            return answer
        patch_base64 = base64.b64encode(json.dumps(change.patches).encode()).decode()
        return {**answer, "patchType": "JSONPatch", "patch": patch_base64}

    async def _update(self, request: AdmissionRequest) -> None:
        old_pod, new_pod = request.before, request.object
        annotations_before, annotations_after = (
            old_pod.metadata.annotations,
            new_pod.metadata.annotations,
        )
        self._expect_writer(
            request,
            {
                annotation
                for annotation in {*annotations_before, *annotations_after}
                if annotations_before.get(annotation) != annotations_after.get(annotation)
            },
        )
        named_before, named_now = (
            self.visible_devices.annotated(old_pod),
            self.visible_devices.annotated(new_pod),
        )
        if not named_now.items() <= named_before.items():
            await self.rights.expect(
                request,
                (
                    (container_name, POLICY)
                    for container_name in self.visible_devices.named(new_pod)
                ),
            )
        if self._put_aside(old_pod) != self._put_aside(new_pod):
            await self.rights.expect(
                request, used(self._put_aside(new_pod), self.vocabulary.defaults)
            )
        if self._named(new_pod) not in (self.scheduler_name, *self.adopted_scheduler_names):
            return
        _expect_group(old_pod, new_pod)
        if self._understood(old_pod) != self._understood(new_pod):
            container_requests = self.vocabulary.asked(new_pod)
            _expect_limited(new_pod, container_requests)
            await self.rights.expect(request, used(container_requests, self.vocabulary.defaults))

    async def _debugged(self, request: AdmissionRequest) -> list[Plain]:
        """Check containers that are added to a running pod, and hide its cards from them.

        The rest of the pod cannot be changed this way.
        """
        pod = request.object
        names_before = [container.name for _, container in containers(request.before)]
        naming_containers = self.visible_devices.named(pod, known_names=names_before)
        await self.rights.expect(
            request, ((container_name, POLICY) for container_name in naming_containers)
        )
        container_requests = (
            self._understood(pod) or self._understood(templates.with_words(pod)) or ()
        )
        return [*self.visible_devices.patches(pod, container_requests, known_names=names_before)]

    def _expect_writer(self, request: AdmissionRequest, changed_annotations: Iterable[str]) -> None:
        """Raise `BadInput` if an annotation that gives devices is changed by another user."""
        user_name = request.user_info.get("username")
        own_annotations = [
            *fnmatch.filter(changed_annotations, VISIBLE),
            *set(_SIGNED).intersection(changed_annotations),
        ]
        if user_name != self.allocation_writer_name and own_annotations:
            raise BadInput(
                f"{min(own_annotations)} is written by the scheduler alone: leave it out"
            )
        hami_annotations = sorted(fnmatch.filter(changed_annotations, HAMI_ALLOCATION))
        if hami_annotations and user_name not in self.other_writer_names:
            raise BadInput(
                f"{hami_annotations[0]} says which devices HAMi gave, and is written by HAMi alone:"
                " leave it out"
            )

    def _understood(self, pod: Pod) -> tuple[ContainerRequest, ...] | None:
        """Return what a pod's containers ask, None if that is nonsense."""
        try:
            return self.vocabulary.asked(pod)
        except BadInput:
            return None

    def _put_aside(self, pod: Pod) -> tuple[ContainerRequest, ...]:
        """Return what a pod asks by words moved to its annotation, nothing if that is nonsense.

        Templates that it names are made of these words, whichever scheduler it has.
        """
        if self.allocation_way is AllocationWay.CLASSIC:
            return ()
        try:
            return self.vocabulary.asked(templates.with_words(pod))
        except BadInput:
            return ()

    def _named(self, pod: Pod) -> str:
        return pod.spec.scheduler_name or _RESERVED

    async def _create(self, request: AdmissionRequest, spec: Plain) -> PodChange:
        pod, scheduler_name = request.object, self._named(request.object)
        is_own = scheduler_name in (self.scheduler_name, *self.adopted_scheduler_names)
        self._expect_writer(request, pod.metadata.annotations)
        # By a vendor's runtime a pod gets cards from any scheduler.
        await self.rights.expect(
            request,
            ((container_name, POLICY) for container_name in self.visible_devices.named(pod)),
        )
        await self.rights.expect(request, used(self._put_aside(pod), self.vocabulary.defaults))
        if self.allocation_way is not AllocationWay.CLASSIC:
            templates.expect_own(self.vocabulary, pod)
        is_ours_to_take = scheduler_name == _RESERVED and self.takes_default_scheduler
        if not is_own and not is_ours_to_take:  # another scheduler's, by its user's choice
            return PodChange(patches=tuple(self.visible_devices.patches(pod, ())))
        asked_requests = self.vocabulary.asked(pod)
        limited = await self.foreign_words.limited(request, pod, asked_requests)
        pod = limited.pod
        container_requests = self.vocabulary.asked(pod) if limited.patches else asked_requests
        if is_own or container_requests:
            self._expect_numbers(pod)
        ineffective_names = (
            self.foreign_words.report(
                pod,
                container_requests,
                limited.names,
                by_claims=asks_by_claims(self.allocation_way, pod),
            )
            if is_own or container_requests
            else ()
        )
        patches = [
            *limited.patches,
            *await self._served(request, spec, pod, container_requests),
        ]
        patches += log_patches(pod, container_requests, self.limiter_log, patches)
        patches += note_patches(pod, ineffective_names, patches)
        warnings = tuple(self.foreign_words.sentences(ineffective_names))
        return PodChange(patches=tuple(patches), warnings=warnings)

    async def _served(
        self,
        request: AdmissionRequest,
        spec: Plain,
        pod: Pod,
        container_requests: tuple[ContainerRequest, ...],
    ) -> list[Plain]:
        """Return what is changed of a pod that no other scheduler places."""
        scheduler_name = self._named(pod)
        _expect_limited(pod, container_requests)
        if self.refuses_privileged_sidecars and container_requests:
            _expect_unprivileged(pod)
        expect_no_size_in_annotations(self.vocabulary, container_requests, pod.metadata.annotations)
        hiding_requests = container_requests
        if (
            not container_requests and self.allocation_way is not AllocationWay.CLASSIC
        ):  # claims say them by now
            hiding_requests = self.vocabulary.asked(templates.with_words(pod))
        await self.rights.expect(request, used(container_requests, self.vocabulary.defaults))
        runtime_class = self._runtime_class(container_requests)
        hiding_patches = [
            *self.visible_devices.patches(pod, hiding_requests, runtime_class=runtime_class)
        ]
        if not container_requests:
            return [*self._without_zeros(pod, spec), *hiding_patches]
        if pod.spec.node_name:
            raise BadInput(
                "nodeName is set, which passes the scheduler by: use a nodeSelector with "
                f"kubernetes.io/hostname: {pod.spec.node_name} instead"
            )
        _expect_kept(pod)
        is_by_claims = asks_by_claims(self.allocation_way, pod)
        charge = self._charge(pod, container_requests, is_by_claims=is_by_claims)
        await _within_quota(self.api, self.vocabulary, request.namespace, charge)
        if is_by_claims:
            return [
                *self._without_zeros(pod, spec),
                *self._by_claims(pod, spec, scheduler_name),
                *hiding_patches,
            ]
        return [
            *self._resources(pod, spec, container_requests),
            *self._without_zeros(pod, spec),
            *self._names(pod, container_requests),
            *hiding_patches,
        ]

    def _expect_numbers(self, pod: Pod) -> None:
        """Raise `BadInput` for a size that means no card, where no number of cards is added."""
        for container in (*pod.spec.containers, *pod.spec.init_containers):
            for size in self.vocabulary.lone_sizes(container):
                raise BadInput(
                    f"container {container.name}: {size} without a number of cards asks for none "
                    "here (defaults.count is 0 in the settings): write the number beside it"
                )

    def _charge(
        self, pod: Pod, container_requests: Iterable[ContainerRequest], *, is_by_claims: bool
    ) -> Counter[str]:
        """Return what the pod asks of memory and core in so many words, over all its cards.

        Each of its claims is held until the pod ends.
        """
        kind_by_container = kinds(pod)
        if is_by_claims:
            claim_templates = templates.templates(self.vocabulary, pod)
            holders = {*templates.claim_holders(pod, claim_templates).values()}
            kind_by_container = dict.fromkeys(holders, ContainerKind.MAIN)
        return least_of_pod(
            (kind_by_container[container_request.container], _charge_of(container_request))
            for container_request in container_requests
            if container_request.container in kind_by_container
        )

    def _by_claims(self, pod: Pod, spec: Plain, scheduler_name: str) -> list[Plain]:
        """Ask by claims for what a pod asks.

        For whole cards kube-scheduler could make claims itself, and a kubelet that a device plugin
        has told of the resource would start no such pod.
        """
        return [
            *([] if scheduler_name == _RESERVED else [_scheduled_by(_RESERVED)]),
            *templates.patches(self.vocabulary, pod, spec),
        ]

    def _names(self, pod: Pod, container_requests: tuple[ContainerRequest, ...]) -> list[Plain]:
        """Set the scheduler's name, and the runtime class."""
        patches, runtime_class = (
            [_scheduled_by(self.scheduler_name)],
            self._runtime_class(container_requests),
        )
        if runtime_class and not pod.spec.runtime_class_name:
            patches.append({"op": "add", "path": "/spec/runtimeClassName", "value": runtime_class})
        return patches

    def _runtime_class(self, container_requests: Iterable[ContainerRequest]) -> str | None:
        """Return the runtime class on which the asked vendors agree, None if none."""
        vendors = {
            vendor
            for container_request in container_requests
            for vendor in container_request.request.vendor.include
        }
        class_names = {self.runtime_class_by_vendor.get(vendor) for vendor in vendors}
        return class_names.pop() if len(class_names) == 1 else None

    def _without_zeros(self, pod: Pod, spec: Plain) -> Iterator[Plain]:
        """Leave out what counts 0 cards, and priorities of no card: a kubelet may refuse those.

        An old one asks the resource's plugin to prepare it, and finds no card for that. A newer one
        refuses it where no card of the resource is healthy, as where all are cordoned.
        """
        groups = {"containers": pod.spec.containers, "initContainers": pod.spec.init_containers}
        for list_name, group in groups.items():
            for position, container in enumerate(group):
                path = f"/spec/{list_name}/{position}/resources"
                written = spec[list_name][position].get("resources") or {}
                for resource in self.vocabulary.words_of_no_card(container):
                    for kind in ("limits", "requests"):
                        if resource in (written.get(kind) or {}):
                            pointer = resource.replace("/", "~1")
                            yield {"op": "remove", "path": f"{path}/{kind}/{pointer}"}

    def _resources(
        self, pod: Pod, spec: Plain, container_requests: tuple[ContainerRequest, ...]
    ) -> list[Plain]:
        """Write out how many cards are meant, where that was not said or is a part of a module.

        What init containers ask of each card is noted in an annotation, where kubelets would take
        it for their own to give.
        """
        patches, limits_by_container = [], {}
        for container_request in container_requests:
            path, resources = _resources_of(spec, container_request.container)
            new_resources = _with_count(resources, container_request)
            if self.has_autoscaler:
                new_resources = _counted(new_resources, container_request.resource_names)
            if self.serves_old_kubelets and path.startswith("/spec/initContainers"):
                part_names = {*container_request.resource_names.resources} - {
                    container_request.resource_names.count
                }
                limits = new_resources["limits"]
                limits_by_container[container_request.container] = {
                    resource: limits[resource] for resource in limits if resource in part_names
                }
                new_resources = {
                    list_name: {
                        resource: amount
                        for resource, amount in amounts.items()
                        if resource not in part_names
                    }
                    if list_name in ("limits", "requests")
                    else amounts
                    for list_name, amounts in new_resources.items()
                }
            if new_resources != resources:
                patches.append({"op": "add", "path": f"{path}/resources", "value": new_resources})
        if any(limits_by_container.values()):
            annotations = {
                **pod.metadata.annotations,
                INIT_PARTS: json.dumps(limits_by_container, sort_keys=True),
            }
            patches.append({"op": "add", "path": "/metadata/annotations", "value": annotations})
        return patches


def _denied(reason: str) -> Plain:
    return {"allowed": False, "status": {"code": 403, "message": f"hetero: {reason}"}}


def _expect_few(spec: Plain) -> None:
    """Raise `BadInput` for a pod that no node runs, and that would keep the webhook busy."""
    list_names = ("containers", "initContainers", "ephemeralContainers")
    container_count = sum(len(spec.get(list_name) or ()) for list_name in list_names)
    if container_count > _MOST_CONTAINERS:
        raise BadInput(f"{container_count} containers: a pod may have at most {_MOST_CONTAINERS}")


def _expect_group(old_pod: Pod, new_pod: Pod) -> None:
    """Raise `BadInput` if a pod that is bound says another group, by which its row is found."""
    old_group, new_group = (pod.metadata.labels.get(POD_GROUP) for pod in (old_pod, new_pod))
    if old_pod.spec.node_name and old_group != new_group:
        raise BadInput(
            f"label {POD_GROUP} stays as it is once a pod is bound, since the pod runs in step "
            "with its group: delete the pod and create it anew"
        )


def _expect_limited(pod: Pod, container_requests: tuple[ContainerRequest, ...]) -> None:
    """Raise `BadInput` if a container that asks, by names or claims, passes what limits it."""
    request_by_container = {
        container_request.container: container_request for container_request in container_requests
    }
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    for container in containers:
        if container.name in request_by_container:
            _refuse_privileged(request_by_container[container.name], container)
    for container in containers:
        if container.name in request_by_container or container.resources.claims:
            expect_unhidden(container)


def _with_count(resources: Plain, container_request: ContainerRequest) -> Plain:
    """Return a container's resources with how many cards it means."""
    resource, limits = container_request.resource_names.count, resources.get("limits") or {}
    if quantity(limits, resource) == container_request.count:
        return resources
    new_resources = {"limits": {**limits, resource: str(container_request.count)}}
    if resource in (resources.get("requests") or {}):
        new_resources["requests"] = {
            **resources["requests"],
            resource: str(container_request.count),
        }
    return {**resources, **new_resources}


def _counted(resources: Plain, resource_names: ResourceNames) -> Plain:
    """Return a container's resources with what is taken of a card, as a kubelet counts it.

    Memory is in the resources' own units, without suffix. A word that another one of the container
    goes before means nothing, and is left out.
    """
    unit = resource_names.memory_unit

    def counted(amounts: Plain) -> Plain:
        memory_units = {
            resource: -(-(bytes_of(amounts, resource, unit) or 0) // unit)
            for resource in resource_names.memory
        }
        units = memory_units | {
            resource: quantity(amounts, resource) or 0
            for resource in (*resource_names.core, resource_names.memory_percent)
            if resource is not None
        }
        memory_names = (*resource_names.memory, resource_names.memory_percent)
        meant = {
            next((name for name in names if units.get(name or "")), None)
            for names in (memory_names, resource_names.core)
        }
        if resource_names.priority is not None:  # who does not go first waits, whatever it says
            units[resource_names.priority] = min(quantity(amounts, resource_names.priority) or 0, 1)
            meant.add(resource_names.priority)
        return {
            resource: str(units[resource]) if resource in units else amount
            for resource, amount in amounts.items()
            if resource not in units or resource in meant or not units[resource]
        }

    return {
        list_name: counted(amounts) if list_name in ("limits", "requests") else amounts
        for list_name, amounts in resources.items()
    }


def _expect_kept(pod: Pod) -> None:
    """Raise `BadInput` for a sidecar that this Kubernetes took for an init container.

    Before 1.28 it leaves the word out that makes a sidecar; what `kubectl apply` notes has it.
    """
    try:
        applied_spec = read_note(_APPLIED, pod.metadata.annotations.get(_APPLIED) or "{}")
        init_containers = applied_spec["spec"]["initContainers"]
        sidecar_names = [
            container["name"]
            for container in init_containers
            if container.get("restartPolicy") == "Always"
        ]
    except (AttributeError, BadInput, KeyError, TypeError):
        return  # an annotation of anybody's: it is no pod with init containers
    for container in pod.spec.init_containers:
        if container.name in sidecar_names and container.restart_policy is None:
            raise BadInput(
                f"container {container.name}: with restartPolicy Always it is a sidecar, which "
                "this Kubernetes does not know (1.28 and later do): move it to containers"
            )


def _scheduled_by(scheduler_name: str) -> Plain:
    return {"op": "add", "path": "/spec/schedulerName", "value": scheduler_name}


def _resources_of(spec: Plain, container_name: str) -> tuple[str, Plain]:
    """Return a container's path in the pod, and what is written of its resources."""
    return next(
        (f"/spec/{list_name}/{position}", container.get("resources") or {})
        for list_name in ("containers", "initContainers")
        for position, container in enumerate(spec.get(list_name) or ())
        if container["name"] == container_name
    )


def _expect_unprivileged(pod: Pod) -> None:
    """Raise `BadInput` for a privileged container in a pod that asks for cards."""
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        if container.security_context.privileged:
            raise BadInput(
                f"container {container.name}: is privileged, so it sees every card beside those "
                "that the pod asks for, and privileged-sidecars is refuse in the settings: drop "
                "privileged"
            )


def _refuse_privileged(container_request: ContainerRequest, container: Container) -> None:
    if container.security_context.privileged:
        raise BadInput(
            f"container {container_request.container}: is privileged, so it sees every card and no "
            f"share can hold it: drop privileged, or {container_request.resource_names.count}"
        )


async def _within_quota(
    api: ApiCalls,
    vocabulary: Vocabulary,
    namespace: str,
    charge: Counter[str],
) -> None:
    """Refuse what passes a quota all by itself; what others hold is counted when a pod is bound."""
    try:
        quota_list = await api.get(f"/api/v1/namespaces/{namespace}/resourcequotas")
    except ApiError as error:
        raise BadInput(f"the quotas of namespace {namespace} cannot be read: {error}") from None
    quotas = Quotas(vocabulary)
    for quota in read_all(ResourceQuota, quota_list["items"]):
        allowed_amounts = limits(quota.spec.hard, vocabulary.resources)
        quotas.allow(namespace, quota.metadata.name, allowed_amounts)
    passed_quota = quotas.over(namespace, charge)
    if passed_quota:
        raise BadInput(passed_quota)


def _charge_of(container_request: ContainerRequest) -> Counter[str]:
    resource_names, ask, charge = (
        container_request.resource_names,
        container_request.request.asks[0],
        Counter[str](),
    )
    for resource in resource_names.memory if ask.memory is not None else ():
        charge[resource] = (
            -(-(ask.memory or 0) // resource_names.memory_unit) * container_request.count
        )
    core_units = ask.core_units(resource_names.core_whole)
    for resource in resource_names.core if core_units is not None else ():
        charge[resource] = (core_units or 0) * container_request.count
    return charge
