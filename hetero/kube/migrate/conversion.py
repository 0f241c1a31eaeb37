"""How a value of another product is written here: one function for each word of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from hetero.model.errors import BadInput


@frozen(kw_only=True)
class Leaf:
    """A value of another product: `before` is what its target has by now, None if nothing.

    `of` is the word of the table that it is about; `document` is all that the file says.
    """

    value: Any
    before: Any = None
    of: str = ""
    document: Mapping[str, Any]


#: Return what is written to the target, None if nothing has to be. Raises `BadInput` for a value
#: that has no counterpart: the table's sentence says why.
Converter = Callable[[Leaf], Any]

#: Namespaces that hetero's chart ignores by default (deploy/chart/values.yaml).
_IGNORED_NAMESPACES = ["kube-node-lease", "kube-public"]
_KUBELET_PLUGINS = "/device-plugins"
#: LIBCUDA_LOG_LEVEL and HETERO_LOG (HAMi-core 8f3a89c, src/include/log_utils.h).
_LOG_LEVELS = {"0": "off", "1": "error", "2": "notice", "3": "info", "4": "debug"}
_PLACEMENTS = ("binpack", "spread")


def _as_it_is(leaf: Leaf) -> Any:
    return leaf.value


def _kube_scheduler(leaf: Leaf) -> list[str] | None:
    own_flags = ("--config", "--policy-config-file", "--leader-elect", "--bind-address")
    arguments = [str(entry) for entry in leaf.value if not str(entry).startswith(own_flags)]
    return arguments or None


def _truth(leaf: Leaf) -> bool:
    text = str(leaf.value).lower()
    if text not in ("true", "false"):
        raise BadInput(f"{leaf.value!r} is neither true nor false")
    return text == "true"


def _directory(leaf: Leaf) -> str | None:
    return str(leaf.value).rstrip("/") or None


def _cert_manager(leaf: Leaf) -> str | None:
    return "cert-manager" if _truth(leaf) else None


def _custom_url(leaf: Leaf) -> str | None:
    """Return the URL of hetero's webhook by HAMi's: each of its leaves comes to the same."""
    custom_url = leaf.document["scheduler"]["admissionWebhook"]["customURL"]
    if str(custom_url.get("enabled", False)).lower() != "true":
        return None
    if not (custom_url.get("host") and custom_url.get("port")):
        raise BadInput("it has no host and port")
    return f"https://{custom_url['host']}:{custom_url['port']}/admit"


def _negated(leaf: Leaf) -> bool:
    return not _truth(leaf)


def _more(leaf: Leaf) -> list[Any]:
    if not isinstance(leaf.value, list):
        raise BadInput(f"{leaf.value!r} is no list")
    before = leaf.before or []
    return [*before, *(entry for entry in leaf.value if entry not in before)]


def _more_namespaces(leaf: Leaf) -> list[Any]:
    return _more(Leaf(value=leaf.value, before=_IGNORED_NAMESPACES, document=leaf.document))


def _indices(leaf: Leaf) -> list[Any]:
    names = [f"{leaf.of}:{index}" for index in leaf.value]
    return _more(Leaf(value=names, before=leaf.before, document=leaf.document))


def _list(leaf: Leaf) -> list[Any]:
    return [leaf.value]


def _rename(leaf: Leaf) -> dict[str, str] | None:
    return None if leaf.value == leaf.of else {**(leaf.before or {}), leaf.of: str(leaf.value)}


def _factor(leaf: Leaf) -> dict[str, int] | None:
    return None if leaf.value in (0, 1) else {**(leaf.before or {}), leaf.of: leaf.value}


def _mebibytes(leaf: Leaf) -> str | None:
    return f"{_whole(leaf)}Mi" if _whole(leaf) else None


def _not_zero(leaf: Leaf) -> int | None:
    return _whole(leaf) or None


def _whole(leaf: Leaf) -> int:
    if not str(leaf.value).isdecimal():
        raise BadInput(f"{leaf.value!r} is no whole number")
    return int(leaf.value)


def _hostname(leaf: Leaf) -> dict[str, str]:
    return {"kubernetes.io/hostname": str(leaf.value)}


def _placement(leaf: Leaf) -> str:
    if leaf.value not in _PLACEMENTS:
        raise BadInput(f"{leaf.value!r} is none of {', '.join(_PLACEMENTS)}")
    return str(leaf.value)


def _managed_nodes(leaf: Leaf) -> Any:
    if leaf.document.get("global", {}).get("managedNodeSelectorEnable") is not True:
        raise BadInput("it is not switched on")
    return leaf.value


def _kubelet(leaf: Leaf) -> str:
    path = str(leaf.value).rstrip("/")
    if not path.endswith(_KUBELET_PLUGINS):
        raise BadInput(f"{path} is no directory device-plugins")
    return path.removesuffix(_KUBELET_PLUGINS)


def _core_policy(leaf: Leaf) -> dict[str, Any]:
    defaults_by_policy: dict[str, dict[str, Any]] = {
        "default": {"policy": "elastic"},
        "force": {"policy": "fixed"},
        "disable": {"core-limit": False},
    }
    if leaf.value not in defaults_by_policy:
        raise BadInput(f"{leaf.value!r} is none of {', '.join(defaults_by_policy)}")
    return {**(leaf.before or {}), **defaults_by_policy[leaf.value]}


def _log_level(leaf: Leaf) -> str:
    if str(leaf.value) not in _LOG_LEVELS:
        raise BadInput(f"{leaf.value!r} is none of {', '.join(_LOG_LEVELS)}")
    return _LOG_LEVELS[str(leaf.value)]


def _operating_mode(leaf: Leaf) -> str | None:
    sharing_by_mode = {"hami-core": None, "mps": "mps"}
    if leaf.value not in sharing_by_mode:
        raise BadInput(f"{leaf.value!r} is none of {', '.join(sharing_by_mode)}")
    return sharing_by_mode[leaf.value]


#: By the table's word.
CONVERTERS: Mapping[str, Converter] = {
    "": _as_it_is,
    "truth": _truth,
    "negated": _negated,
    "cert-manager": _cert_manager,
    "custom-url": _custom_url,
    "directory": _directory,
    "more": _more,
    "more-namespaces": _more_namespaces,
    "indices": _indices,
    "list": _list,
    "rename": _rename,
    "factor": _factor,
    "mebibytes": _mebibytes,
    "not-zero": _not_zero,
    "hostname": _hostname,
    "placement": _placement,
    "managed-nodes": _managed_nodes,
    "kube-scheduler": _kube_scheduler,
    "kubelet": _kubelet,
    "core-policy": _core_policy,
    "log-level": _log_level,
    "operating-mode": _operating_mode,
}
