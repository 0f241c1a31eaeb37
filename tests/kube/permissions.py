"""The table of docs/permissions.md, as rows that can be compared."""

import re
from collections.abc import Iterator
from typing import Any

from attrs import frozen

from tests.kube.binaries import ROOT

#: When a row holds, and the chart's values of `allocation` for it.
WITH = {
    "": ("classic", "both", "dra"),
    "both": ("both",),
    "claims": ("both", "dra"),
    "classic": ("classic", "both"),
}

_ACCOUNT = r"system:serviceaccount:hetero-system:(.*)"


@frozen
class Permission:
    """That an account may do something; `names` are the only objects, none: all."""

    account: str
    verb: str
    resource: str  # with its group, if it has one
    names: frozenset[str] = frozenset()


def documented(allocation: str) -> set[Permission]:
    """Return the rows that hold with an allocation."""
    permissions = set()
    for line in (ROOT / "docs/permissions.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 5 and cells[0].startswith("hetero-") and allocation in WITH[cells[3]]:
            resources, _, names = cells[1].partition(" [")
            for resource in resources.split(", "):
                named = frozenset(names.rstrip("]").split(", ")) if names else frozenset()
                permissions |= {
                    Permission(cells[0], v, resource, named) for v in cells[2].split(", ")
                }
    return permissions


def granted(manifests: list[dict[str, Any]]) -> Iterator[Permission]:
    """Yield what the chart's roles let its accounts do."""
    roles = {(m["kind"], m["metadata"]["name"]): m for m in manifests if "rules" in m}
    for made in manifests:
        if made["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        role = roles.get((made["roleRef"]["kind"], made["roleRef"]["name"]))
        for subject in made["subjects"] if role else ():
            for rule in role["rules"] if role else ():
                names = frozenset(rule.get("resourceNames", ()))
                for resource in _resources(rule):
                    for verb in rule["verbs"]:
                        yield Permission(subject["name"], verb, resource, names)


def used(event: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield account, verb, resource and name of what a release's accounts were allowed to do.

    One is what the request did, another what it asked the API server about: a path that is none of
    the API's own.
    """
    account = event["user"].get("username", "")  # none where the API server could not tell
    matched = re.fullmatch(_ACCOUNT, account)
    what = event.get("objectRef")
    if matched is None or what is None or not event.get("userAgent", "").startswith("hetero"):
        return
    if (event.get("responseStatus") or {}).get("code") == 403:
        return
    response = event.get("responseObject") or {}
    path = response.get("spec", {}).get("nonResourceAttributes")
    about = re.fullmatch(_ACCOUNT, response.get("spec", {}).get("user", ""))
    if path and about and response["status"].get("allowed"):
        yield about[1], path["verb"], path["path"], ""
    group = what.get("apiGroup", "")
    resource = what["resource"] + (f"/{what['subresource']}" if "subresource" in what else "")
    yield matched[1], event["verb"], resource + (group and f".{group}"), what.get("name", "")


def _resources(rule: dict[str, Any]) -> Iterator[str]:
    yield from rule.get("nonResourceURLs", ())
    for group in rule.get("apiGroups", ()):
        for resource in rule["resources"]:
            yield resource + (group and f".{group}")
