"""Says by claims what a pod asks for by resource names: a ResourceClaimTemplate for each container.

The name of a template is a digest of what it asks, so whoever makes it needs not believe who names
it. What the containers said stays in an annotation of the pod, since kube-scheduler would look for
the names among the resources of nodes. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

from attrs import frozen
from msgspec.structs import replace

from hetero.kube.dra.claims import CONFIG_KIND, CONFIG_VERSION
from hetero.kube.dra.offers import DRIVER, amount_of
from hetero.kube.objects.kinds import Container, Plain, Pod, Resources
from hetero.kube.words.annotations import read_note
from hetero.kube.words.pod_request import Asked, Vocabulary
from hetero.model import (
    CORE,
    MEMORY,
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

    @property
    def whole(self) -> bool:
        """Whether it asks for whole cards of a kind by their number, and says no more of them."""
        devices = self.spec["devices"]
        exactly = devices["requests"][0].get("exactly")
        if exactly is None or {"capacity", "selectors"} & exactly.keys() or "config" in devices:
            return False
        bound = any("matchAttribute" in one for one in devices.get("constraints") or ())
        return not bound and [str(exactly["count"])] == [*self.limits.values()]


@frozen(kw_only=True)
class _Kind:
    """Cards of so many units of core; `models` tells them from others, where there are others."""

    units: int
    models: tuple[str, ...] = ()


def templates(vocabulary: Vocabulary, pod: Pod) -> tuple[ClaimTemplate, ...]:
    """Return the claims of a pod's containers, as they ask by resource names. Raises `BadInput`."""
    made = []
    limits = {one.name: _said(one, vocabulary) for one in pod.containers}
    for asked in vocabulary.asked(pod):
        name = asked.container
        try:
            spec = {"devices": _devices(vocabulary, asked)}
        except BadInput as error:
            raise BadInput(f"container {name}: {error}") from None
        template = ClaimTemplate(
            container=name, name=template_name(spec), spec=spec, limits=limits[name]
        )
        made.append(template)
    return tuple(made)


def templates_again(vocabulary: Vocabulary, pod: Pod) -> tuple[ClaimTemplate, ...]:
    """Return `templates` of a pod whose words `patches` has put aside. Raises `BadInput`."""
    return templates(vocabulary, with_words(pod))


def with_words(pod: Pod) -> Pod:
    """Return a pod with the words again that `patches` has put aside. Raises `BadInput`."""
    text = pod.metadata.annotations.get(ASKED, "{}")
    limits = read_note(ASKED, text)
    if not isinstance(limits, dict) or not all(map(_is_amounts, limits.values())):
        raise BadInput(f"annotation {ASKED} is not what the webhook wrote")

    def meant(containers: Iterable[Container]) -> tuple[Container, ...]:
        return tuple(
            replace(one, resources=Resources(limits=limits.get(one.name, {}))) for one in containers
        )

    spec = pod.spec
    spec = replace(
        spec, containers=meant(spec.containers), init_containers=meant(spec.init_containers)
    )
    return replace(pod, spec=spec)


def _is_amounts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(amount, str) for amount in value.values())


def named_templates(pod: Pod) -> tuple[str, ...]:
    """Return the templates with names of ours that a pod names."""
    names = (one.resource_claim_template_name or "" for one in pod.spec.resource_claims)
    return tuple(name for name in names if name.startswith(PREFIX))


def expect_own(vocabulary: Vocabulary, pod: Pod) -> None:
    """Raise `BadInput` if a pod names a template of ours that its own words do not come to.

    One that was made for a pod with a right says what that right is for.
    """
    named = {*named_templates(pod)}
    others = named and named - {one.name for one in templates_again(vocabulary, pod)}
    if others:
        raise BadInput(
            f"template {min(others)} is made for pods whose own words come to it, and those of "
            f"annotation {ASKED} do not: leave it out"
        )


def template_name(spec: Plain) -> str:
    """Return the name of the template that says this."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return f"{PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def patches(vocabulary: Vocabulary, pod: Pod, spec: Plain) -> Iterator[Plain]:
    """Yield what makes a pod ask by claims for what it asks for by resource names.

    `spec` is the pod's as it was written. Raises `BadInput` for what claims cannot say.
    """
    made = {one.container: one for one in templates(vocabulary, pod)}
    notes = pod.metadata.annotations
    limits: dict[str, Plain] = {}
    claims: list[Plain] = list(spec.get("resourceClaims") or ())
    for kind in ("containers", "initContainers"):
        for number, container in enumerate(spec.get(kind) or ()):
            template = made.get(container["name"])
            if template is None:
                continue
            name = f"{PREFIX}{len(limits)}"
            limits[container["name"]] = {**template.limits}
            claims.append({"name": name, "resourceClaimTemplateName": template.name})
            rest = _without(container.get("resources") or {}, vocabulary)
            rest["claims"] = [*(rest.get("claims") or ()), {"name": name}]
            yield {"op": "add", "path": f"/spec/{kind}/{number}/resources", "value": rest}
    text = json.dumps(limits, sort_keys=True)
    yield {"op": "add", "path": "/metadata/annotations", "value": {**notes, ASKED: text}}
    yield {"op": "add", "path": "/spec/resourceClaims", "value": claims}


def _said(container: Container, vocabulary: Vocabulary) -> Plain:
    amounts = container.resources.amounts
    return {name: str(amounts[name]) for name in sorted(vocabulary.resources & amounts.keys())}


def _without(resources: Plain, vocabulary: Vocabulary) -> Plain:
    """Return a container's resources without those that claims now say."""
    left = dict(resources)
    for kind in ("limits", "requests"):
        if kind in left:
            left[kind] = {
                name: amount
                for name, amount in left[kind].items()
                if name not in vocabulary.resources
            }
    return left


def _devices(vocabulary: Vocabulary, asked: Asked) -> Plain:
    """Return what a claim says for a container, with all that the API would fill in."""
    request = asked.request
    _expect_sayable(vocabulary, asked)
    count = _count(asked)
    alternatives = [_exactly(vocabulary, asked, kind) for kind in _kinds(vocabulary, asked)]
    device_request: Plain = {"exactly": alternatives[0]}
    if len(alternatives) > 1:
        device_request = {
            "firstAvailable": [
                {"name": f"{_REQUEST}-{number}", **one} for number, one in enumerate(alternatives)
            ]
        }
    made: Plain = {"requests": [{"name": _REQUEST, **device_request}]}
    together = [("distinctAttribute", "uuid")]
    together += [("matchAttribute", "numaNode")] if request.numa else []
    together += [("matchAttribute", "linkGroup")] if request.links else []
    if count > 1:
        made["constraints"] = [
            {"requests": [_REQUEST], kind: f"{DRIVER}/{name}"} for kind, name in together
        ]
    parameters = _parameters(request)
    if parameters:
        share = {"apiVersion": CONFIG_VERSION, "kind": CONFIG_KIND, **parameters}
        # The API keeps its text as it is, and a patch of the claim sorts it: no change, if it was.
        share = dict(sorted(share.items()))
        made["config"] = [{"opaque": {"driver": DRIVER, "parameters": share}}]
    return made


def _count(asked: Asked) -> int:
    """Return how many devices of a slice are asked: it has a module of cards as one."""
    return max(asked.count // asked.resource_names.devices.module, 1)


def _exactly(vocabulary: Vocabulary, asked: Asked, kind: _Kind) -> Plain:
    """Return a request for cards of a kind."""
    request, count = asked.request, _count(asked)
    amounts = {} if request.exclusive else _amounts(vocabulary, asked, kind)
    expressions = [*_selectors(request)]
    if kind.models:
        these = Selector(include=kind.models)
        expressions.append(_allows(f"{_ATTRIBUTES}.model", these, exact=True))
    if count > 1 and not _several_shared(vocabulary, asked):
        if "memory" in amounts:
            expressions.append(
                f'device.capacity["{DRIVER}"].memory'
                f'.compareTo(quantity("{amounts["memory"]}")) >= 0'
            )
        amounts = {}
    name = asked.resource_names.count.replace("/", "-").lower()
    if amounts and _by_parts(vocabulary, asked):
        # The class of a resource has whole cards alone: its plain number never means a part.
        name = ANY_CLASS
        expressions.insert(0, _allows(f"{_ATTRIBUTES}.vendor", request.vendor, exact=True))
    made: Plain = {"deviceClassName": name, "allocationMode": "ExactCount", "count": count}
    if amounts:
        made["capacity"] = {"requests": amounts}
    if expressions:
        made["selectors"] = [{"cel": {"expression": text}} for text in expressions]
    return made


def _expect_sayable(vocabulary: Vocabulary, asked: Asked) -> None:
    """Raise `BadInput` for what only the classic way can do."""
    request, ask, names = asked.request, asked.request.asks[0], asked.resource_names
    unlimited = asked.unlimited and not vocabulary.defaults.unlimited
    first = request.priority is Priority.HIGH
    reports = request.on_excess is OnExcess.REPORT or request.on_bypass is OnBypass.REPORT
    lacking = {
        f"{names.memory_percent} is of a card that nobody has chosen yet: write a size": (
            ask.memory_percent not in (None, 100)
        ),
        "a card that nobody holds (mutex) is not to be had by claims": request.empty,
        f"{names.qos_classes.name} is not served by claims": any(
            one.value for one in request.co_tenancy
        ),
        "what passes limits or goes before others is for a DeviceClass to say, or your claim": (
            request.policy is Policy.OFF or unlimited or first or reports
        ),
    }
    for sentence, so in lacking.items():
        if so:
            raise BadInput(sentence)


def _amounts(vocabulary: Vocabulary, asked: Asked, kind: _Kind) -> dict[str, str]:
    """Return how much of each card is asked, as the API writes it."""
    ask, made = asked.request.asks[0], {}
    if ask.memory is not None:
        made["memory"] = amount_of(MEMORY, ask.memory)
    if ask.core is not None and _counts_core(vocabulary, asked):
        made["cores"] = amount_of(CORE, -(-ask.core * kind.units // 100))
    return made


def _kinds(vocabulary: Vocabulary, asked: Asked) -> list[_Kind]:
    """Return the kinds of cards that a part of the core is of, one where that does not matter.

    Raises `BadInput` for kinds that cannot be told by their models.
    """
    units: dict[int, list[str]] = {}
    models = _models(vocabulary, asked)
    for model in [one for one in models if not isinstance(one.granularity, Whole)] or models:
        units.setdefault(model.core, []).append(model.match)
    whole = asked.request.exclusive or (
        _count(asked) > 1 and not _several_shared(vocabulary, asked)
    )
    by_core = asked.request.asks[0].core is not None and _counts_core(vocabulary, asked)
    if len(units) == 1 or whole or not by_core:
        return [_Kind(units=next(iter(units)))]
    if any({*"*?["} & {*match} for matches in units.values() for match in matches):
        raise BadInput(
            f"{asked.resource_names.core[0]}: these cards count core in units of their own, so a "
            "part of one is asked by a claim with its cores"
        )
    return [_Kind(units=each, models=tuple(matches)) for each, matches in units.items()]


def _counts_core(vocabulary: Vocabulary, asked: Asked) -> bool:
    """Whether core decides how much of such a card is given."""
    grains = (model.granularity for model in _models(vocabulary, asked))
    return any(CORE in one.measured_by if isinstance(one, Templated) else True for one in grains)


def _models(vocabulary: Vocabulary, asked: Asked) -> tuple[Model, ...]:
    """Return the declared models that are meant."""
    meant = asked.request.model
    return tuple(
        model
        for vendor in vocabulary.vendors
        if asked.request.vendor.allows(vendor.name, all_of_it=True)
        for model in vendor.models
        if model.match == "*" or meant.allows(model.match.strip("*"))
    )


def _several_shared(vocabulary: Vocabulary, asked: Asked) -> bool:
    """Whether several of these cards are given as shares; else they are only given whole."""
    grains = (model.granularity for model in _models(vocabulary, asked))
    return any(isinstance(one, Fractional) and one.multi is MultiDevice.SHARES for one in grains)


def _by_parts(vocabulary: Vocabulary, asked: Asked) -> bool:
    """Whether a size of these cards may be an entry of a menu, which is a device of its own."""
    grains = (model.granularity for model in _models(vocabulary, asked))
    partition = Enforcement.PARTITION.value in asked.request.enforcement.include
    return partition or any(isinstance(one, Templated) for one in grains)


def _selectors(request: Request) -> Iterator[str]:
    """Yield what of its device a claim expects, in CEL."""
    for name, selector, exact in (
        ("model", request.model, False),
        ("uuid", request.uuid, False),
        ("enforcement", request.enforcement, True),
    ):
        text = _allows(f"{_ATTRIBUTES}.{name}", selector, exact=exact)
        if text:
            yield text


def _allows(attribute: str, selector: Selector, *, exact: bool) -> str:
    """Return `Selector.allows` of an attribute, "" if it allows all."""

    def any_of(names: tuple[str, ...]) -> str:
        texts = (json.dumps(name.lower(), ensure_ascii=False) for name in names)
        value = f"{attribute}.lowerAscii()"
        tests = (f"{value} == {one}" if exact else f"{value}.contains({one})" for one in texts)
        return f"({' || '.join(tests)})"

    parts = [any_of(selector.include)] if selector.include else []
    parts += [f"!{any_of(selector.exclude)}"] if selector.exclude else []
    return " && ".join(parts)


def _parameters(request: Request) -> Plain:
    """Return how a share is to be enforced, as far as it differs from what is usual."""
    made: Plain = {}
    if request.policy is not Policy.FIXED:
        made["policy"] = request.policy.value
    if request.on_excess is not None:
        made["onExcess"] = request.on_excess.value
    if request.on_bypass is not None:
        made["onBypass"] = request.on_bypass.value
    if request.strict:
        made["strict"] = True
    return made
