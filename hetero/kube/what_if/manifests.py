"""The pods to simulate: those of manifests, and those of a shape on the command line."""

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
from hetero.model.names import did_you_mean
from hetero.plugin.resource_names import ResourceNames

#: Where kinds have the template of their pods, and how many of it they make.
_TEMPLATES: Mapping[str, str] = {
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "ReplicationController": "replicas",
    "StatefulSet": "replicas",
    "Job": "parallelism",
}
_MOST_PODS = 100_000  # pods: a typing error, not a question


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
    source_name = f"--add {path}"
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except OSError as error:
        raise BadInput(f"{source_name}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{source_name}: {' '.join(str(error).split())}") from None
    pods: list[Plain] = []
    for document_number, document in enumerate(documents, 1):
        try:
            pods += _pods(document)
        except KeyError as error:
            raise BadInput(
                f"{source_name}: document {document_number} has no {error.args[0]!r}"
            ) from None
        except (TypeError, AttributeError):
            raise BadInput(f"{source_name}: document {document_number} is not a manifest") from None
        except BadInput as error:
            raise BadInput(f"{source_name}: document {document_number}: {error}") from None
    if not pods:
        kinds = ", ".join(("Pod", *_TEMPLATES))
        raise BadInput(f"{source_name}: no pod is in it (what makes pods here: {kinds})")
    return pods


def _pods(document: Any) -> Iterator[Plain]:
    if document is None:
        return
    kind, metadata = document["kind"], document.get("metadata") or {}
    if kind == "List":
        for listed_document in document["items"]:
            yield from _pods(listed_document)
    elif kind == "Pod":
        yield _pod(metadata["name"], metadata, document["spec"])
    elif kind in _TEMPLATES:
        spec = document["spec"]
        template, replicas = spec["template"], spec.get(_TEMPLATES[kind])
        template_metadata = {
            "namespace": metadata.get("namespace"),
            **(template.get("metadata") or {}),
        }
        for position in range(_replicas(1 if replicas is None else replicas)):
            yield _pod(f"{metadata['name']}-{position}", template_metadata, template["spec"])


def _replicas(replicas: int) -> int:
    if not 0 <= replicas <= _MOST_PODS:
        raise BadInput(f"{replicas} pods: at most {_MOST_PODS}")
    return replicas


def _pod(pod_name: str, given_metadata: Plain, spec: Plain) -> Plain:
    """Return a pod as the API completes it: requests default to the limits."""
    completed_spec = {
        **spec,
        "containers": [_completed(container) for container in spec["containers"]],
        "initContainers": [_completed(container) for container in spec.get("initContainers") or ()],
    }
    annotations = {
        str(annotation_name): str(annotation_value)
        for annotation_name, annotation_value in (given_metadata.get("annotations") or {}).items()
    }
    metadata = {
        "name": str(pod_name),
        "namespace": given_metadata.get("namespace") or "default",
        "labels": given_metadata.get("labels") or {},
        "annotations": annotations,
    }
    return {"metadata": metadata, "spec": completed_spec}


def _completed(container: Plain) -> Plain:
    resources = container.get("resources") or {}
    limits = _texts(resources.get("limits"))
    requests = {**limits, **_texts(resources.get("requests"))}
    return {**container, "resources": {"limits": limits, "requests": requests}}


def _texts(amounts: Mapping[str, Any] | None) -> dict[str, str]:
    return {str(resource): str(amount) for resource, amount in (amounts or {}).items()}


# --- a shape --------------------------------------------------------------------------------------


def pods_of_shape(shape: Shape, vocabulary: Vocabulary, devices: Iterable[Device]) -> list[Plain]:
    """Return pods that ask for a shape in the resource names of a vendor. Raises `BadInput`.

    `devices` are those of the cluster: they determine the vendor.
    """
    cluster_devices = tuple(devices)
    matching_devices = [
        device
        for device in cluster_devices
        if shape.vendor in (None, device.vendor)
        and (shape.model is None or shape.model.lower() in device.model.lower())
    ]
    if not matching_devices:
        raise BadInput(_none_matches(shape, cluster_devices))
    resource_names = _names(vocabulary, matching_devices)
    limits = _limits(shape, resource_names)
    model_annotation = resource_names.choice.include_model
    annotations = {model_annotation: shape.model} if model_annotation and shape.model else {}
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    return [
        _pod(f"what-if-{position}", {"annotations": annotations}, {"containers": [container]})
        for position in range(shape.replicas)
    ]


def _none_matches(shape: Shape, devices: Iterable[Device]) -> str:
    """Return the sentence that none of a cluster's devices is of a shape's vendor and model."""
    wanted_names = [*filter(None, (shape.vendor, shape.model))]
    known_names = dict.fromkeys(
        name for device in devices for name in (device.vendor, device.short_model)
    )
    suggestion = did_you_mean(wanted_names[0], known_names) if wanted_names else ""
    wanted_text = " and ".join(wanted_names)
    return f"the cluster has no device{f' of {wanted_text}' if wanted_text else ''}{suggestion}"


def _names(vocabulary: Vocabulary, matching_devices: list[Device]) -> ResourceNames:
    """Return the resource names that ask for all of these devices. Raises `BadInput`."""
    vendors = sorted({device.vendor for device in matching_devices})
    if len(vendors) > 1:
        raise BadInput(
            f"the cluster has devices of {', '.join(vendors)}: say which are asked for by --vendor"
        )
    vendor = next((vendor for vendor in vocabulary.vendors if vendor.name == vendors[0]), None)
    if vendor is None:
        raise BadInput(f"vendor {vendors[0]} is not installed here: its resources are not known")
    for resource_names in vendor.resource_names:
        if resource_names.devices.shape is None and all(
            map(resource_names.devices.mean, matching_devices)
        ):
            return resource_names
    models = ", ".join(sorted({device.model for device in matching_devices}))
    raise BadInput(f"no one resource asks for {models}: say which are asked for by --model")


def _limits(shape: Shape, resource_names: ResourceNames) -> dict[str, str]:
    ask, limits = shape.ask, {resource_names.count: str(shape.count)}
    if ask.memory is not None:
        if not resource_names.memory:
            raise BadInput(f"--memory: pods ask for {resource_names.count} without a size")
        limits[resource_names.memory[0]] = str(-(-ask.memory // resource_names.memory_unit))
    if ask.memory_percent is not None:
        if resource_names.memory_percent is None:
            raise BadInput(
                f"--memory: pods ask for {resource_names.count} in bytes, not in percent"
            )
        limits[resource_names.memory_percent] = str(ask.memory_percent)
    if ask.core is not None:
        if not resource_names.core:
            raise BadInput(
                f"--core: pods ask for {resource_names.count} without a share of the core"
            )
        limits[resource_names.core[0]] = str(ask.core_units(resource_names.core_whole))
    return limits
