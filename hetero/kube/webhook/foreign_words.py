"""Answers for words of other products that a pod of ours has: each is served, or it is reported.

What is reported is a warning to who makes the pod, a metric, and the pod's annotation, of which the
scheduler makes events. A cluster may have such pods refused instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from attrs import define, field, frozen
from msgspec.structs import replace
from prometheus_client import Counter

from hetero.kube.objects.kinds import Container, Plain, Pod
from hetero.kube.webhook.request import AdmissionRequest
from hetero.kube.webhook.rights import Rights
from hetero.kube.webhook.visible import containers
from hetero.kube.words.owned_words import INEFFECTIVE_WORDS, OwnedWords, noted
from hetero.kube.words.pod_request import ContainerRequest
from hetero.model.errors import BadInput

#: The policy of a container without a limiter.
_OFF = "off"
#: The limiter's variable that sets what it logs (limiters/core/log.c).
_LOG = "HETERO_LOG"


@frozen(kw_only=True)
class Limited:
    """A pod whose containers have a limiter, as far as nobody may run them without one.

    `patches` make it of the pod as it was; `names` are the words that have no effect in it.
    """

    pod: Pod
    patches: tuple[Plain, ...] = ()
    names: tuple[str, ...] = ()


@define(eq=False)
class ForeignWords:
    """Reports words without effect, or refuses pods with such (`refuses`)."""

    rights: Rights
    words: OwnedWords
    refuses: bool = False
    _reported: Counter = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reported = Counter(
            "hetero_webhook_ineffective_words",
            "Words of other products in pods, by the name in the table, that change nothing",
            ("word",),
            registry=self.rights.registry,
        )

    async def limited(
        self,
        request: AdmissionRequest,
        pod: Pod,
        container_requests: Iterable[ContainerRequest],
    ) -> Limited:
        """Return the pod with a limiter where a variable says none and nobody may say so.

        Such a variable is set to false, so that who reads the pod later need not ask again.
        """
        variable_by_container = {
            container_request.container: container_request.off_variable
            for container_request in container_requests
            if container_request.off_variable
        }
        if not variable_by_container or await self.rights.may(request, _OFF):
            return Limited(pod=pod)
        patches = tuple(
            {
                "op": "replace",
                "path": f"{path}/env/{position}/value",
                "value": "false",
            }
            for path, container in containers(pod)
            for position, variable in enumerate(container.env)
            if variable.name == variable_by_container.get(container.name)
        )

        def all_limited(group: tuple[Container, ...]) -> tuple[Container, ...]:
            return tuple(
                _with_false(container, variable_by_container.get(container.name))
                for container in group
            )

        spec = pod.spec
        limited_spec = replace(
            spec,
            containers=all_limited(spec.containers),
            init_containers=all_limited(spec.init_containers),
        )
        return Limited(
            pod=replace(pod, spec=limited_spec),
            patches=patches,
            names=tuple(dict.fromkeys(variable_by_container.values())),
        )

    def report(
        self,
        pod: Pod,
        container_requests: Iterable[ContainerRequest],
        names: Iterable[str],
        *,
        by_claims: bool,
    ) -> tuple[str, ...]:
        """Return the names of all words without effect of a pod of ours; `names` are known to be.

        `by_claims`: it asks by claims. Raises `BadInput` for the first where they are refused. Each
        is counted, unless the pod's annotation has it already: then the API server asks again about
        the same pod.
        """
        requests = tuple(container_requests)
        asking = {container_request.container for container_request in requests}
        found_names = (
            *names,
            *(
                name
                for container_request in requests
                for name in container_request.ineffective_variables
            ),
            *self.words.ineffective(pod, asking, by_claims=by_claims),
        )
        known_names = noted(pod.metadata.annotations)
        all_names = tuple(
            name
            for name in dict.fromkeys((*known_names, *found_names))
            if self.words.sentence(name)
        )
        if self.refuses and all_names:
            raise BadInput(str(self.words.sentence(all_names[0])))
        for name in set(all_names).difference(known_names):
            self._reported.labels(self.words.pattern(name)).inc()
        return all_names

    def sentences(self, names: Iterable[str]) -> list[str]:
        """Return what is so of words without effect, each in one line."""
        return [sentence for name in names if (sentence := self.words.sentence(name))]


def note_patches(pod: Pod, names: Iterable[str], patches: Iterable[Plain]) -> tuple[Plain, ...]:
    """Return what notes words without effect in a pod's annotations, after `patches`."""
    note = json.dumps([*names])
    annotations: Mapping[str, str] = pod.metadata.annotations
    if note == "[]" or annotations.get(INEFFECTIVE_WORDS) == note:
        return ()
    written = [patch["value"] for patch in patches if patch["path"] == "/metadata/annotations"]
    value = {**(written[-1] if written else annotations), INEFFECTIVE_WORDS: note}
    return ({"op": "add", "path": "/metadata/annotations", "value": value},)


def log_patches(
    pod: Pod,
    container_requests: Iterable[ContainerRequest],
    default_level: str | None,
    patches: Iterable[Plain],
) -> tuple[Plain, ...]:
    """Return what has the limiters of a pod's containers log as their variables say.

    `default_level` is for containers without one, None: the limiter's own. What a container says
    by our own variable stays.
    """
    request_by_container = {
        container_request.container: container_request for container_request in container_requests
    }
    has_env = {patch["path"] for patch in patches}
    found_patches: list[Plain] = []
    for path, container in containers(pod):
        container_request = request_by_container.get(container.name)
        value_by_name = {variable.name: variable.value for variable in container.env}
        if container_request is None or _LOG in value_by_name:
            continue
        variables = container_request.resource_names.limiter_variables
        level = variables.log_levels.get(value_by_name.get(variables.log or "") or "")
        if (level or default_level) is None:
            continue
        entry = {"name": _LOG, "value": level or default_level}
        if value_by_name or f"{path}/env" in has_env:
            found_patches.append({"op": "add", "path": f"{path}/env/-", "value": entry})
        else:
            found_patches.append({"op": "add", "path": f"{path}/env", "value": [entry]})
    return tuple(found_patches)


def _with_false(container: Container, variable_name: str | None) -> Container:
    env = tuple(
        replace(variable, value="false") if variable.name == variable_name else variable
        for variable in container.env
    )
    return replace(container, env=env)
