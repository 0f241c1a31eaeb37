"""Finds what the claims of a file would be allocated in a cluster: `hetero explain claim`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import yaml
from attrs import frozen

from hetero.kube.client.api import Access, Api, ApiError
from hetero.kube.dra.availability import Pools
from hetero.kube.dra.explanation import ClaimSelection, explain
from hetero.kube.dra.templates import ASKED, claim_holders, templates, with_words
from hetero.kube.objects.kinds import Plain, Pod
from hetero.kube.objects.reading import read
from hetero.kube.words import settings
from hetero.kube.words.pod_request import Vocabulary
from hetero.model.errors import BadInput

_GROUP = "/apis/resource.k8s.io/v1"
#: From Kubernetes 1.36 on; before, they are alpha and of other forms.
_RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
_KINDS = ("ResourceClaim", "ResourceClaimTemplate")


@frozen(kw_only=True)
class ClaimAnswer:
    """What the claim of this name would be allocated."""

    claim: str
    answer: ClaimSelection


@frozen(kw_only=True)
class Explained:
    """The answers for all claims; `unread` says which objects the API refused, None if none."""

    answers: tuple[ClaimAnswer, ...]
    unread: str | None


def explain_claims(path: Path) -> Explained:
    """Return for each claim of a file what it alone would be allocated now.

    Raises `BadInput` if an object is not a claim or the API does not answer.
    """
    claims = read_claims(path)

    async def ask() -> tuple[Pools, str | None]:
        async with Api(Access.here()).open() as api:
            slices, device_classes, claims = await asyncio.gather(
                *(
                    api.items(f"{_GROUP}/{kind}")
                    for kind in ("resourceslices", "deviceclasses", "resourceclaims")
                ),
            )
            taint_rules, unread_parts = await _rules(api)
        return Pools.read(
            slices=slices, classes=device_classes, claims=claims, rules=taint_rules
        ), unread_parts

    try:
        pools, unread_parts = asyncio.run(ask())
    except ApiError as error:
        raise BadInput(f"Kubernetes: claims cannot be read: {error}") from None
    answers = tuple(
        ClaimAnswer(claim=claim_name, answer=explain(spec, pools))
        for claim_name, spec in claims.items()
    )
    return Explained(answers=answers, unread=unread_parts)


async def _rules(api: Api) -> tuple[list[Plain], str | None]:
    """Return the DeviceTaintRules, or the reason why they could not be read. Raises `ApiError`.

    The API server checks rights first: a user without the right to list them gets 403 even where
    there are none.
    """
    try:
        return await api.items(_RULES), None
    except ApiError as error:
        if error.status == 403:
            return [], f"DeviceTaintRules were not read, so devices may be tainted: {error}"
        if error.status != 404:
            raise
        return [], None


def own_vocabulary() -> Vocabulary:
    """Return the resource names that the installed vendors declare."""
    default_settings = settings.load(None)
    return default_settings.vocabulary(default_settings.registry())


def read_claims(
    path: Path, vocabulary: Callable[[], Vocabulary] = own_vocabulary
) -> dict[str, Plain]:
    """Return the specs of the claims in a file, and of its claim templates, by name.

    A pod that asks by resource names, which `vocabulary` has, gives the claims that the webhook or
    kube-scheduler makes for its containers. Raises `BadInput`.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{path}: {str(error).splitlines()[0]}") from None
    spec_by_name: dict[str, Plain] = {}
    for document in documents:
        if not isinstance(document, dict) or document.get("kind") not in (*_KINDS, "Pod"):
            continue
        if document["kind"] == "Pod":
            spec_by_name |= _of_pod(path, document, vocabulary)
            continue
        try:
            spec = document["spec"]["spec"] if document["kind"] == _KINDS[1] else document["spec"]
            spec_by_name[document["metadata"]["name"]] = dict(spec)
        except (KeyError, TypeError, ValueError):
            raise BadInput(f"{path}: a {document['kind']} without a name or a spec") from None
    if not spec_by_name:
        raise BadInput(
            f"{path}: has no {_KINDS[0]}, no {_KINDS[1]} and no Pod that asks by resource names"
        )
    return spec_by_name


def _of_pod(path: Path, pod: Plain, vocabulary: Callable[[], Vocabulary]) -> dict[str, Plain]:
    """Return the claims that stand for the resource names of a pod's containers.

    Of a pod as the API has it, whose names the webhook moved to an annotation, these count.
    """
    try:
        spec = {
            kind: [_as_kept(container) for container in pod["spec"].get(kind) or ()]
            for kind in ("containers", "initContainers")
        }
        pod_name = pod["metadata"]["name"]
        is_admitted = ASKED in (pod["metadata"].get("annotations") or {})
        amounts_by_container = [
            _amounts(container) for containers in spec.values() for container in containers
        ]
    except (KeyError, TypeError, AttributeError):
        raise BadInput(f"{path}: a Pod without a name or containers") from None
    if is_admitted:
        pod_object = with_words(read(Pod, pod))
    elif any("/" in resource for amounts in amounts_by_container for resource in amounts):
        pod_object = read(Pod, {**pod, "spec": spec})
    else:
        return {}
    container_templates = templates(vocabulary(), pod_object)
    holders = claim_holders(pod_object, container_templates)
    claim_templates = [
        template
        for template in container_templates
        if holders[template.container] == template.container
    ]
    return {
        pod_name if len(claim_templates) == 1 else f"{pod_name}/{template.container}": template.spec
        for template in claim_templates
    }


def _as_kept(container: Plain) -> Plain:
    """Return a container with its amounts as strings, as the API stores them."""
    limits = {resource_name: str(amount) for resource_name, amount in _amounts(container).items()}
    return {**container, "resources": {"limits": limits}}


def _amounts(container: Plain) -> Plain:
    resources = container.get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
