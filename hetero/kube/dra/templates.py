"""Says by claims what a pod asks for by resource names: a ResourceClaimTemplate for each container.

The name of a template is a digest of what it asks, so its maker need not trust the pod that names
it. What the containers said stays in an annotation of the pod, since kube-scheduler would look for
the names among the resources of nodes. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

from attrs import evolve, frozen
from msgspec.structs import replace

from hetero.kube.dra.claims import CONFIG_KIND, CONFIG_VERSION
from hetero.kube.dra.offers import DRIVER, amount_of
from hetero.kube.objects.kinds import Container, Plain, Pod, Resources
from hetero.kube.words.annotations import read_note
from hetero.kube.words.pod import kinds
from hetero.kube.words.pod_request import ContainerRequest, Vocabulary
from hetero.model import (
    CORE,
    MEMORY,
    ContainerKind,
    Enforcement,
    Fractional,
    MultiDevice,
    OnBypass,
    OnExcess,
    Policy,
    Priority,
    Request,
    Selector,
    Templated,
    Whole,
)
from hetero.model.errors import BadInput
from hetero.plugin.vendor import Model

#: The annotation that keeps what containers asked for: `{"main": {"example.com/memory": "3000"}}`.
ASKED = f"{DRIVER}/asked"
#: What the names of templates begin with; nobody but us may make such.
PREFIX = "hetero-"
#: The class of any vendor's cards and of their parts.
ANY_CLASS = "hetero"
_REQUEST, _ATTRIBUTES = "cards", f'device.attributes["{DRIVER}"]'


@frozen(kw_only=True)
class ClaimTemplate:
    """The claim of one container: what its template is called and says."""

    container: str
    name: str
    spec: Plain
    limits: Mapping[str, str]  # the container's own words


@frozen(kw_only=True)
class _Kind:
    """Cards of so many units of core; `models` tells them from others, where there are others.

    `partitioned`: the parts of cards that are partitioned, which have so many percent of its core.
    """

    units: int = 100
    models: tuple[str, ...] = ()
    partitioned: bool = False


def templates(vocabulary: Vocabulary, pod: Pod) -> tuple[ClaimTemplate, ...]:
    """Return the claims of a pod's containers, as they ask by resource names. Raises `BadInput`."""
    claim_templates = []
    limits_by_container = {
        container.name: _said(container, vocabulary) for container in pod.containers
    }
    for container_request in vocabulary.asked(pod):
        container_name = container_request.container
        try:
            spec = {"devices": _devices(vocabulary, container_request)}
        except BadInput as error:
            raise BadInput(f"container {container_name}: {error}") from None
        template = ClaimTemplate(
            container=container_name,
            name=template_name(spec),
            spec=spec,
            limits=limits_by_container[container_name],
        )
        claim_templates.append(template)
    return tuple(claim_templates)


def claim_holders(pod: Pod, claim_templates: Iterable[ClaimTemplate]) -> dict[str, str]:
    """Return by container the one whose claim it has: its own, but for init containers.

    An init container has the claim of the first main container that asks for the same, else of
    the first other init container that does: no two of them run at a time.
    """
    holders: dict[str, str] = {}
    holder_by_template: dict[str, str] = {}
    kind_by_container = kinds(pod)
    for template in sorted(
        claim_templates,
        key=lambda template: kind_by_container[template.container] is not ContainerKind.MAIN,
    ):
        container, kind = template.container, kind_by_container[template.container]
        holders[container] = container
        if kind is ContainerKind.INIT:
            holders[container] = holder_by_template.setdefault(template.name, container)
        elif kind is ContainerKind.MAIN:
            holder_by_template.setdefault(template.name, container)
    return holders


def templates_again(vocabulary: Vocabulary, pod: Pod) -> tuple[ClaimTemplate, ...]:
    """Return `templates` of a pod whose words `patches` moved. Raises `BadInput`."""
    return templates(vocabulary, with_words(pod))


def with_words(pod: Pod) -> Pod:
    """Return a pod with the words restored that `patches` moved. Raises `BadInput`."""
    limits_json = pod.metadata.annotations.get(ASKED, "{}")
    limits_by_container = read_note(ASKED, limits_json)
    if not isinstance(limits_by_container, dict) or not all(
        map(_is_amounts, limits_by_container.values())
    ):
        raise BadInput(f"annotation {ASKED} is not what the webhook wrote")

    def with_limits(containers: Iterable[Container]) -> tuple[Container, ...]:
        return tuple(
            replace(
                container, resources=Resources(limits=limits_by_container.get(container.name, {}))
            )
            for container in containers
        )

    spec = pod.spec
    spec = replace(
        spec,
        containers=with_limits(spec.containers),
        init_containers=with_limits(spec.init_containers),
    )
    return replace(pod, spec=spec)


def _is_amounts(plain_amounts: object) -> bool:
    return isinstance(plain_amounts, dict) and all(
        isinstance(amount, str) for amount in plain_amounts.values()
    )


def named_templates(pod: Pod) -> tuple[str, ...]:
    """Return the templates with names of ours that a pod names."""
    names = (claim.resource_claim_template_name or "" for claim in pod.spec.resource_claims)
    return tuple(name for name in names if name.startswith(PREFIX))


def expect_own(vocabulary: Vocabulary, pod: Pod) -> None:
    """Raise `BadInput` if a pod names a template of ours that its own words do not lead to.

    A template that was made for a pod with a right contains what that right is for.
    """
    template_names = {*named_templates(pod)}
    other_names = template_names and template_names - {
        template.name for template in templates_again(vocabulary, pod)
    }
    if other_names:
        raise BadInput(
            f"template {min(other_names)} is made for pods whose own words come to it, "
            "and those of "
            f"annotation {ASKED} do not: leave it out"
        )


def template_name(spec: Plain) -> str:
    """Return the name of the template with this content."""
    spec_json = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return f"{PREFIX}{hashlib.sha256(spec_json.encode()).hexdigest()[:20]}"


def patches(vocabulary: Vocabulary, pod: Pod, spec: Plain) -> Iterator[Plain]:
    """Yield patches that make a pod ask by claims for what it asks for by resource names.

    `spec` is the pod's as it was written. Raises `BadInput` for what claims cannot express.
    """
    template_by_container = {
        template.container: template for template in templates(vocabulary, pod)
    }
    annotations = pod.metadata.annotations
    holders = claim_holders(pod, template_by_container.values())
    limits_by_container: dict[str, Plain] = {}
    claims: list[Plain] = list(spec.get("resourceClaims") or ())
    claim_name_by_holder: dict[str, str] = {}
    for container_list in ("containers", "initContainers"):
        for position, container in enumerate(spec.get(container_list) or ()):
            template = template_by_container.get(container["name"])
            if template is None:
                continue
            limits_by_container[container["name"]] = {**template.limits}
            holder = holders[container["name"]]
            if holder not in claim_name_by_holder:
                pod_claim_name = f"{PREFIX}{len(claim_name_by_holder)}"
                claim_name_by_holder[holder] = pod_claim_name
                claims.append({"name": pod_claim_name, "resourceClaimTemplateName": template.name})
            other_resources = _without(container.get("resources") or {}, vocabulary)
            other_resources["claims"] = [
                *(other_resources.get("claims") or ()),
                {"name": claim_name_by_holder[holder]},
            ]
            yield {
                "op": "add",
                "path": f"/spec/{container_list}/{position}/resources",
                "value": other_resources,
            }
    limits_json = json.dumps(limits_by_container, sort_keys=True)
    yield {
        "op": "add",
        "path": "/metadata/annotations",
        "value": {**annotations, ASKED: limits_json},
    }
    yield {"op": "add", "path": "/spec/resourceClaims", "value": claims}


def _said(container: Container, vocabulary: Vocabulary) -> Plain:
    amounts = container.resources.amounts
    return {
        resource_name: str(amounts[resource_name])
        for resource_name in sorted(vocabulary.resources & amounts.keys())
    }


def _without(resources: Plain, vocabulary: Vocabulary) -> Plain:
    """Return a container's resources without those that claims now ask for."""
    resources_left = dict(resources)
    for list_name in ("limits", "requests"):
        if list_name in resources_left:
            resources_left[list_name] = {
                resource_name: amount
                for resource_name, amount in resources_left[list_name].items()
                if resource_name not in vocabulary.resources
            }
    return resources_left


def _devices(vocabulary: Vocabulary, container_request: ContainerRequest) -> Plain:
    """Return the devices of a claim for a container, with all that the API would fill in."""
    request = container_request.request
    _expect_sayable(vocabulary, container_request)
    device_count = _count(container_request)
    alternatives = [
        _exactly(vocabulary, container_request, kind)
        for kind in _kinds(vocabulary, container_request)
    ]
    device_request: Plain = {"exactly": alternatives[0]}
    if len(alternatives) > 1:
        device_request = {
            "firstAvailable": [
                {"name": f"{_REQUEST}-{position}", **alternative}
                for position, alternative in enumerate(alternatives)
            ]
        }
    devices_spec: Plain = {"requests": [{"name": _REQUEST, **device_request}]}
    constraints = [("distinctAttribute", "uuid")]
    constraints += [("matchAttribute", "numaNode")] if request.numa else []
    constraints += [("matchAttribute", "linkGroup")] if request.links else []
    if device_count > 1:
        devices_spec["constraints"] = [
            {"requests": [_REQUEST], constraint_kind: f"{DRIVER}/{attribute}"}
            for constraint_kind, attribute in constraints
        ]
    parameters = _parameters(request)
    if parameters:
        share = {"apiVersion": CONFIG_VERSION, "kind": CONFIG_KIND, **parameters}
        # The API keeps its text as it is, and a patch of the claim sorts it: no change, if it was.
        share = dict(sorted(share.items()))
        devices_spec["config"] = [{"opaque": {"driver": DRIVER, "parameters": share}}]
    return devices_spec


def _count(container_request: ContainerRequest) -> int:
    """Return how many devices of a slice are asked: it has a module of cards as one."""
    return max(container_request.count // container_request.resource_names.devices.module, 1)


def _exactly(vocabulary: Vocabulary, container_request: ContainerRequest, kind: _Kind) -> Plain:
    """Return a request for cards of a kind."""
    request, device_count = container_request.request, _count(container_request)
    is_any_size = request.exclusive and not kind.partitioned
    amounts = {} if is_any_size else _amounts(container_request, kind)
    if kind.partitioned:
        only_parts = Selector(include=(Enforcement.PARTITION.value,))
        request = evolve(request, enforcement=only_parts)
    expressions = [*_selectors(request)]
    core_percent = request.asks[0].core
    if kind.partitioned and core_percent is not None:
        del amounts["cores"]
        expressions.append(f"{_ATTRIBUTES}.corePercent >= {core_percent}")
    if kind.models:
        models = Selector(include=kind.models)
        expressions.append(_allows(f"{_ATTRIBUTES}.model", models, is_exact=True))
    if device_count > 1 and not _several_shared(vocabulary, container_request):
        if "memory" in amounts:
            expressions.append(
                f'device.capacity["{DRIVER}"].memory'
                f'.compareTo(quantity("{amounts["memory"]}")) >= 0'
            )
        amounts = {}
    device_class = container_request.resource_names.count.replace("/", "-").lower()
    if kind.partitioned or (amounts and _by_parts(vocabulary, container_request)):
        # The class of a resource has whole cards alone: its plain number never means a part.
        device_class = ANY_CLASS
        expressions.insert(0, _allows(f"{_ATTRIBUTES}.vendor", request.vendor, is_exact=True))
    exact_request: Plain = {
        "deviceClassName": device_class,
        "allocationMode": "ExactCount",
        "count": device_count,
    }
    if amounts:
        exact_request["capacity"] = {"requests": amounts}
    if expressions:
        exact_request["selectors"] = [
            {"cel": {"expression": expression}} for expression in expressions
        ]
    return exact_request


def _expect_sayable(vocabulary: Vocabulary, container_request: ContainerRequest) -> None:
    """Raise `BadInput` for what only the classic way can do."""
    request, ask, resource_names = (
        container_request.request,
        container_request.request.asks[0],
        container_request.resource_names,
    )
    is_unlimited = container_request.unlimited and not vocabulary.defaults.unlimited
    has_priority = request.priority is Priority.HIGH
    reports = request.on_excess is OnExcess.REPORT or request.on_bypass is OnBypass.REPORT
    is_lacking = {
        f"{resource_names.memory_percent} is of a card that nobody has chosen yet: write a size": (
            ask.memory_percent not in (None, 100)
        ),
        "a card that nobody holds (mutex) is not to be had by claims": request.empty,
        f"{resource_names.qos_classes.name} is not served by claims": any(
            co_tenancy.value for co_tenancy in request.co_tenancy
        ),
        "what passes limits or goes before others is for a DeviceClass to say, or your claim": (
            request.policy is Policy.OFF or is_unlimited or has_priority or reports
        ),
    }
    for sentence, is_asked in is_lacking.items():
        if is_asked:
            raise BadInput(sentence)


def _amounts(container_request: ContainerRequest, kind: _Kind) -> dict[str, str]:
    """Return how much of each card is asked, as the API writes it."""
    ask, amounts = container_request.request.asks[0], {}
    if ask.memory is not None:
        amounts["memory"] = amount_of(MEMORY, ask.memory)
    core_units = ask.core_units(kind.units)
    if core_units is not None:
        amounts["cores"] = amount_of(CORE, core_units)
    return amounts


def _kinds(vocabulary: Vocabulary, container_request: ContainerRequest) -> list[_Kind]:
    """Return the kinds of cards by their units of core, one kind where core does not matter.

    Parts of cards that are partitioned come first, where the pod may have them. Raises `BadInput`
    for kinds that cannot be told apart by their models.
    """
    enforcements = container_request.request.enforcement.include
    is_by_name = not container_request.resource_names.devices.partitioned
    parts = (
        [_Kind(partitioned=True)] if is_by_name and Enforcement.PARTITION in enforcements else []
    )
    if parts and len(enforcements) == 1:
        return parts
    models_by_units: dict[int, list[str]] = {}
    models = _models(vocabulary, container_request)
    for model in [model for model in models if not isinstance(model.granularity, Whole)] or models:
        models_by_units.setdefault(model.core, []).append(model.match)
    is_whole = container_request.request.exclusive or (
        _count(container_request) > 1 and not _several_shared(vocabulary, container_request)
    )
    names_core = container_request.request.asks[0].core is not None
    if len(models_by_units) == 1 or is_whole or not names_core:
        return [*parts, _Kind(units=next(iter(models_by_units)))]
    if any(
        {*"*?["} & {*model_pattern}
        for patterns in models_by_units.values()
        for model_pattern in patterns
    ):
        raise BadInput(
            f"{container_request.resource_names.core[0]}: these cards count core in units of their "
            "own, so a part of one is asked by a claim with its cores"
        )
    return parts + [
        _Kind(units=core_units, models=tuple(patterns))
        for core_units, patterns in models_by_units.items()
    ]


def _models(vocabulary: Vocabulary, container_request: ContainerRequest) -> tuple[Model, ...]:
    """Return the declared models that are asked for."""
    selector = container_request.request.model
    return tuple(
        model
        for vendor in vocabulary.vendors
        if container_request.request.vendor.allows(vendor.name, all_of_it=True)
        for model in vendor.models
        if model.match == "*" or selector.allows(model.match.strip("*"))
    )


def _several_shared(vocabulary: Vocabulary, container_request: ContainerRequest) -> bool:
    """Whether several of these cards are given as shares; else they are only given whole."""
    granularities = (model.granularity for model in _models(vocabulary, container_request))
    return any(
        isinstance(granularity, Fractional) and granularity.multi is MultiDevice.SHARES
        for granularity in granularities
    )


def _by_parts(vocabulary: Vocabulary, container_request: ContainerRequest) -> bool:
    """Whether a size of these cards may be an entry of a menu, which is a device of its own."""
    granularities = (model.granularity for model in _models(vocabulary, container_request))
    is_partition = Enforcement.PARTITION.value in container_request.request.enforcement.include
    return is_partition or any(isinstance(granularity, Templated) for granularity in granularities)


def _selectors(request: Request) -> Iterator[str]:
    """Yield what a claim requires of its device, in CEL."""
    for attribute_name, selector, is_exact in (
        ("model", request.model, False),
        ("uuid", request.uuid, False),
        ("enforcement", request.enforcement, True),
    ):
        expression = _allows(f"{_ATTRIBUTES}.{attribute_name}", selector, is_exact=is_exact)
        if expression:
            yield expression


def _allows(attribute: str, selector: Selector, *, is_exact: bool) -> str:
    """Return `Selector.allows` of an attribute, "" if it allows all."""

    def any_of(allowed_names: tuple[str, ...]) -> str:
        json_names = (
            json.dumps(allowed_name.lower(), ensure_ascii=False) for allowed_name in allowed_names
        )
        lowered_attribute = f"{attribute}.lowerAscii()"
        tests = (
            f"{lowered_attribute} == {json_name}"
            if is_exact
            else f"{lowered_attribute}.contains({json_name})"
            for json_name in json_names
        )
        return f"({' || '.join(tests)})"

    conditions = [any_of(selector.include)] if selector.include else []
    conditions += [f"!{any_of(selector.exclude)}"] if selector.exclude else []
    return " && ".join(conditions)


def _parameters(request: Request) -> Plain:
    """Return how a share is to be enforced, as far as it differs from what is usual."""
    parameters: Plain = {}
    if request.policy is not Policy.FIXED:
        parameters["policy"] = request.policy.value
    if request.on_excess is not None:
        parameters["onExcess"] = request.on_excess.value
    if request.on_bypass is not None:
        parameters["onBypass"] = request.on_bypass.value
    if request.strict:
        parameters["strict"] = True
    return parameters
