"""Asks a cluster's API what claims of a file would get there: `hetero explain claim`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml
from attrs import frozen

from hetero.kube.api.client import Access, Api, ApiError, Plain
from hetero.kube.dra.availability import Pools
from hetero.kube.dra.explanation import Answer, explain
from hetero.model.errors import BadInput

_GROUP = "/apis/resource.k8s.io/v1"
_KINDS = ("ResourceClaim", "ResourceClaimTemplate")


@frozen(kw_only=True)
class ClaimAnswer:
    """What the claim of this name would get."""

    claim: str
    answer: Answer


def explain_claims(path: Path) -> tuple[ClaimAnswer, ...]:
    """Return what each claim of a file would get by itself of what is free now.

    Raises `BadInput` for what is no claim, or if the API does not answer.
    """
    claims = read_claims(path)

    async def ask() -> Pools:
        async with Api(Access.here()).open() as api:
            slices, classes, others = await asyncio.gather(
                *(
                    api.items(f"{_GROUP}/{kind}")
                    for kind in ("resourceslices", "deviceclasses", "resourceclaims")
                )
            )
        return Pools.read(slices=slices, classes=classes, claims=others)

    try:
        pools = asyncio.run(ask())
    except ApiError as error:
        raise BadInput(f"Kubernetes: claims cannot be read: {error}") from None
    return tuple(
        ClaimAnswer(claim=name, answer=explain(spec, pools)) for name, spec in claims.items()
    )


def read_claims(path: Path) -> dict[str, Plain]:
    """Return the specs of the claims in a file, and of the claims of its templates, by name."""
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{path}: {str(error).splitlines()[0]}") from None
    found: dict[str, Plain] = {}
    for one in documents:
        if not isinstance(one, dict) or one.get("kind") not in _KINDS:
            continue
        try:
            spec = one["spec"]["spec"] if one["kind"] == _KINDS[1] else one["spec"]
            found[one["metadata"]["name"]] = dict(spec)
        except (KeyError, TypeError, ValueError):
            raise BadInput(f"{path}: a {one['kind']} without a name or a spec") from None
    if not found:
        raise BadInput(f"{path}: has no {_KINDS[0]} and no {_KINDS[1]}")
    return found
