"""Makes the templates that pods name, if the pods' own words lead to that name, and no others.

A template's name is a digest of its content (`templates`), so one with other content was made by
somebody else and is replaced. Several controllers may run: each makes what is missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from attrs import define, field

from hetero.kube.client.api import Api, ApiError
from hetero.kube.client.events import Events
from hetero.kube.dra.templates import (
    ASKED,
    PREFIX,
    named_templates,
    template_name,
    templates_again,
)
from hetero.kube.objects.kinds import Object, Plain, Pod
from hetero.kube.objects.reading import read
from hetero.kube.words.owned_words import owned_words
from hetero.kube.words.pod import ended
from hetero.kube.words.pod_request import Vocabulary
from hetero.kube.words.word_events import WordEvents
from hetero.model.errors import BadInput

log = logging.getLogger(__name__)

_GROUP = "/apis/resource.k8s.io/v1"
TEMPLATES = f"{_GROUP}/resourceclaimtemplates"
_PODS = "/api/v1/pods"
#: Seconds after which a template that no pod names goes, and between two looks for such.
UNNAMED_LIFE_S, _POLL_PERIOD_S = 3600.0, 60.0
#: How many templates of ours a namespace may have.
MOST_TEMPLATES = 100

_Key = tuple[str, str]  # a namespace and a name


@define(eq=False)
class TemplateController:
    """The templates of a cluster: `most` in a namespace; unnamed ones stay for `unnamed_life_s`."""

    api: Api
    vocabulary: Vocabulary
    unnamed_life_s: float = UNNAMED_LIFE_S
    poll_period_s: float = _POLL_PERIOD_S
    most: int = MOST_TEMPLATES
    _word_events: WordEvents = field(init=False)
    _pods: dict[str, Pod] = field(init=False, factory=dict)  # that name templates, by UID
    _templates: dict[_Key, Object] = field(init=False, factory=dict)  # what the API has
    _valid_versions: dict[_Key, str] = field(
        init=False, factory=dict
    )  # of templates that are right
    _named_at_s: dict[_Key, float] = field(init=False, factory=dict)  # when each was named last
    _changed: asyncio.Event = field(init=False, factory=asyncio.Event)
    _listed_kinds: set[str] = field(init=False, factory=set)  # what was listed: pods, templates

    def __attrs_post_init__(self) -> None:
        self._word_events = WordEvents(
            Events(self.api), owned_words(self.vocabulary.vendors), lambda _: True
        )

    async def follow(self) -> None:
        """Make and remove templates as pods name them, for ever."""
        await asyncio.gather(
            self.api.follow(
                _PODS, Pod, listed=self._pods_listed, changed=self._pod_changed, lost=_lost("pods")
            ),
            self.api.follow(
                TEMPLATES,
                Object,
                metadata_only=True,
                listed=self._templates_listed,
                changed=self._template_changed,
                lost=_lost("templates"),
            ),
            self._act(),
        )

    async def _act(self) -> None:
        """Do what is missing at each change, and once a period."""
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout=self.poll_period_s)
            self._changed.clear()
            if len(self._listed_kinds) == 2:  # what is there is not known before
                await self.reconcile()

    async def reconcile(self) -> None:
        """Replace foreign templates, make missing ones, remove those that no pod names."""
        spec_and_pod_by_key: dict[_Key, tuple[Plain, Pod]] = {}
        for pod in tuple(self._pods.values()):
            spec_and_pod_by_key |= {
                template_key: (spec, pod)
                for template_key, spec in (await self._wanted(pod)).items()
            }
        now_s = monotonic()
        for template_key in {*spec_and_pod_by_key, *self._templates}:
            if template_key in spec_and_pod_by_key or template_key not in self._named_at_s:
                self._named_at_s[template_key] = now_s
        for template_key, template in tuple(self._templates.items()):
            if not await self._says_so(template_key, template):
                log.warning(
                    "template %s/%s does not say what its name does: it goes", *template_key
                )
                await self._remove(template_key)
            elif (
                template_key not in spec_and_pod_by_key
                and now_s - self._named_at_s[template_key] >= self.unnamed_life_s
            ):
                await self._remove(template_key)
        for template_key, (spec, pod) in spec_and_pod_by_key.items():
            if template_key in self._templates:
                continue
            if sum(namespace == template_key[0] for namespace, _ in self._templates) < self.most:
                await self._make(template_key, spec)
                continue
            sentence = (
                f"namespace {template_key[0]} has {self.most} templates of {PREFIX}…, its most"
            )
            await self._word_events.events.tell(
                pod.metadata, "NoTemplate", f"{sentence}: {template_key[1]} is not made"
            )
        self._named_at_s = {
            template_key: at_s
            for template_key, at_s in self._named_at_s.items()
            if template_key in {*spec_and_pod_by_key, *self._templates}
        }
        self._valid_versions = {
            template_key: at_s
            for template_key, at_s in self._valid_versions.items()
            if template_key in self._templates
        }

    async def _says_so(self, template_key: _Key, template: Object) -> bool:
        """Whether the content of a template matches its name; an unreadable one stays."""
        resource_version = template.metadata.resource_version
        if self._valid_versions.get(template_key) == resource_version:
            return True
        try:
            existing = await self.api.get(f"{_path(template_key[0])}/{template_key[1]}")
        except ApiError as error:
            log.warning("template %s/%s: %s", *template_key, error)
            return True
        if template_name((existing.get("spec") or {}).get("spec") or {}) != template_key[1]:
            return False
        self._valid_versions[template_key] = resource_version
        return True

    async def _wanted(self, pod: Pod) -> dict[_Key, Plain]:
        """Return the content of the templates that a pod names, if its own words lead to them."""
        namespace = pod.metadata.namespace
        try:
            spec_by_name = {
                template.name: template.spec for template in templates_again(self.vocabulary, pod)
            }
        except BadInput as error:
            await self._word_events.events.tell(pod.metadata, "NoTemplate", str(error))
            return {}
        spec_by_key: dict[_Key, Plain] = {}
        for object_name in named_templates(pod):
            if object_name in spec_by_name:
                spec_by_key[namespace, object_name] = spec_by_name[object_name]
            elif (namespace, object_name) not in self._templates:
                sentence = (
                    f"template {object_name} is not what the pod's annotation {ASKED} comes to"
                )
                await self._word_events.events.tell(
                    pod.metadata, "NoTemplate", f"{sentence}: nothing is made"
                )
        return spec_by_key

    async def _make(self, template_key: _Key, spec: Plain) -> None:
        namespace, object_name = template_key
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": object_name, "namespace": namespace},
            "spec": {"spec": spec},
        }
        try:
            template = await self.api.post(_path(namespace), body)
        except ApiError as error:
            if error.status != 409:  # another controller's is as good
                log.warning("template %s/%s: %s", namespace, object_name, error)
            return
        self._templates[template_key] = read(Object, template)
        log.info("template %s/%s: made", namespace, object_name)

    async def _remove(self, template_key: _Key) -> None:
        namespace, object_name = template_key
        try:
            await self.api.delete(f"{_path(namespace)}/{object_name}")
        except ApiError as error:
            if error.status != 404:
                log.warning("template %s/%s: %s", namespace, object_name, error)
                return
        self._templates.pop(template_key, None)
        log.info("template %s/%s: removed", namespace, object_name)

    def _pods_listed(self, pods: list[Pod]) -> None:
        self._pods = {}
        self._word_events.pods_listed({pod.metadata.uid for pod in pods})
        for pod in pods:
            self._note(pod)
        self._listed("pods")

    def _pod_changed(self, event_type: str, pod: Pod) -> None:
        known_pod = self._pods.pop(pod.metadata.uid, None)
        if event_type == "DELETED":
            self._word_events.pod_changed(event_type, pod)
        else:
            self._note(pod)
        if known_pod is not None or pod.metadata.uid in self._pods:
            self._changed.set()

    def _note(self, pod: Pod) -> None:
        if not ended(pod) and any(named_templates(pod)):
            self._pods[pod.metadata.uid] = pod
            self._word_events.pod_changed("ADDED", pod)

    def _templates_listed(self, templates: list[Object]) -> None:
        self._templates = {
            template.full_name: template for template in templates if _is_ours(template)
        }
        self._listed("templates")

    def _template_changed(self, event_type: str, template: Object) -> None:
        if not _is_ours(template):
            return
        if event_type == "DELETED":
            self._templates.pop(template.full_name, None)
        else:
            self._templates[template.full_name] = template
        self._changed.set()

    def _listed(self, kind: str) -> None:
        self._listed_kinds.add(kind)
        self._changed.set()


def _is_ours(template: Object) -> bool:
    return template.metadata.name.startswith(PREFIX)


def _path(namespace: str) -> str:
    return f"{_GROUP}/namespaces/{namespace}/resourceclaimtemplates"


def _lost(subject: str) -> Callable[[Exception], None]:
    return lambda error: log.warning("%s: the API does not answer: %s", subject, error)
