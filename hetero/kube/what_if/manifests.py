"""Pods to be simulated: those of manifests, and those of a shape in the command line's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from attrs import frozen

from hetero.kube.objects.kinds import Plain
from hetero.kube.words.pod_request import Vocabulary
from hetero.model import Ask, Device
from hetero.model.errors import BadInput
from hetero.plugin.resource_names import ResourceNames

#: Where kinds have the template of their pods, and how many of it they make.
_TEMPLATES: Mapping[str, str] = {
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "ReplicationController": "replicas",
    "StatefulSet": "replicas",
    "Job": "parallelism",
}
_MOST = 100_000  # pods: a typing error, not a question


@frozen(kw_only=True)
class Shape:
    """So many pods (`replicas`) that each ask for `count` devices of a vendor.

    `model` is a part of a model's name. None: whichever the cluster has.
    """

    replicas: int
    ask: Ask
    count: int = 1
    vendor: str | None = None
    model: str | None = None


def pods_of_file(path: Path) -> list[Plain]:
    """Return the pods that a file of manifests, YAML or JSON, makes. Raises `BadInput`."""
    where = f"--add {path}"
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except OSError as error:
        raise BadInput(f"{where}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{where}: {' '.join(str(error).split())}") from None
    pods: list[Plain] = []
    for number, document in enumerate(documents, 1):
        try:
            pods += _pods(document)
        except KeyError as error:
            raise BadInput(f"{where}: document {number} has no {error.args[0]!r}") from None
        except (TypeError, AttributeError):
            raise BadInput(f"{where}: document {number} is not a manifest") from None
        except BadInput as error:
            raise BadInput(f"{where}: document {number}: {error}") from None
    if not pods:
        kinds = ", ".join(("Pod", *_TEMPLATES))
        raise BadInput(f"{where}: no pod is in it (what makes pods here: {kinds})")
    return pods


def _pods(document: Any) -> Iterator[Plain]:
    if document is None:
        return
    kind, about = document["kind"], document.get("metadata") or {}
    if kind == "List":
        for item in document["items"]:
            yield from _pods(item)
    elif kind == "Pod":
        yield _pod(about["name"], about, document["spec"])
    elif kind in _TEMPLATES:
        spec = document["spec"]
        template, times = spec["template"], spec.get(_TEMPLATES[kind])
        inner = {"namespace": about.get("namespace"), **(template.get("metadata") or {})}
        for number in range(_replicas(1 if times is None else times)):
            yield _pod(f"{about['name']}-{number}", inner, template["spec"])


def _replicas(times: int) -> int:
    if not 0 <= times <= _MOST:
        raise BadInput(f"{times} pods: at most {_MOST}")
    return times


def _pod(name: str, about: Plain, spec: Plain) -> Plain:
    """Return a pod as the API would have it: what is limited is requested."""
    completed = {
        **spec,
        "containers": [_completed(one) for one in spec["containers"]],
        "initContainers": [_completed(one) for one in spec.get("initContainers") or ()],
    }
    notes = {str(key): str(value) for key, value in (about.get("annotations") or {}).items()}
    metadata = {
        "name": str(name),
        "namespace": about.get("namespace") or "default",
        "labels": about.get("labels") or {},
        "annotations": notes,
    }
    return {"metadata": metadata, "spec": completed}


def _completed(container: Plain) -> Plain:
    resources = container.get("resources") or {}
    limits = _texts(resources.get("limits"))
    requests = {**limits, **_texts(resources.get("requests"))}
    return {**container, "resources": {"limits": limits, "requests": requests}}


def _texts(amounts: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(name): str(amount) for name, amount in (amounts or {}).items()}


# --- a shape --------------------------------------------------------------------------------------


def pods_of_shape(shape: Shape, vocabulary: Vocabulary, devices: Iterable[Device]) -> list[Plain]:
    """Return pods that ask for a shape in a vendor's resources. Raises `BadInput`.

    `devices` are the cluster's: by them it is known which vendor's resources are meant.
    """
    meant = [
        device
        for device in devices
        if shape.vendor in (None, device.vendor)
        and (shape.model is None or shape.model.lower() in device.model.lower())
    ]
    names = _names(shape, vocabulary, meant)
    limits = _limits(shape, names)
    by_model = names.choice.include_model
    notes = {by_model: shape.model} if by_model and shape.model else {}
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    return [
        _pod(f"what-if-{number}", {"annotations": notes}, {"containers": [container]})
        for number in range(shape.replicas)
    ]


def _names(shape: Shape, vocabulary: Vocabulary, meant: list[Device]) -> ResourceNames:
    """Return the names by which all of the devices are asked for."""
    if not meant:
        wanted = " and ".join(filter(None, (shape.vendor, shape.model)))
        raise BadInput(f"the cluster has no device{f' of {wanted}' if wanted else ''}")
    vendors = sorted({device.vendor for device in meant})
    if len(vendors) > 1:
        raise BadInput(
            f"the cluster has devices of {', '.join(vendors)}: say which are asked for by --vendor"
        )
    declared = next((one for one in vocabulary.vendors if one.name == vendors[0]), None)
    if declared is None:
        raise BadInput(f"vendor {vendors[0]} is not installed here: its resources are not known")
    for names in declared.resource_names:
        if names.devices.shape is None and all(map(names.devices.mean, meant)):
            return names
    models = ", ".join(sorted({device.model for device in meant}))
    raise BadInput(f"no one resource asks for {models}: say which are asked for by --model")


def _limits(shape: Shape, names: ResourceNames) -> dict[str, str]:
    ask, limits = shape.ask, {names.count: str(shape.count)}
    if ask.memory is not None:
        if not names.memory:
            raise BadInput(f"--memory: pods ask for {names.count} without a size")
        limits[names.memory[0]] = str(-(-ask.memory // names.memory_unit))
    if ask.memory_percent is not None:
        if names.memory_percent is None:
            raise BadInput(f"--memory: pods ask for {names.count} in bytes, not in percent")
        limits[names.memory_percent] = str(ask.memory_percent)
    if ask.core is not None:
        if not names.core:
            raise BadInput(f"--core: pods ask for {names.count} without a share of the core")
        limits[names.core[0]] = str(-(-ask.core * names.core_whole // 100))
    return limits
