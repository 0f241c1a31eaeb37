"""How a vendor's own runtime learns the cards of a container.

The agent sets a variable, and the container's own variables take precedence over the agent's. A
variable of a ConfigMap or Secret (`envFrom`) is one of them, but the container's single variables
take precedence over it. So a container with a share and `envFrom` names the runtime's variables
singly, with values from annotations of its pod. The webhook writes the names and the scheduler the
annotations; no other user may.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from hetero.kube.objects.kinds import FieldRef, Plain, Pod, ValueSource, Variable
from hetero.model import Allocation, Device
from hetero.plugin.vendor import Vendor

#: The annotations, a pattern: `CONTAINER.visible.hetero.io/VARIABLE`.
VISIBLE = "*.visible.hetero.io/*"


class InjectionWay(str, Enum):
    """The component that injects the driver into a container.

    It also decides how the vendor's runtime learns the cards.
    """

    FILES = "files"  # the agent: device nodes and files as the vendor declares them
    ENVVAR = "envvar"  # the vendor's own runtime, told by a variable
    VOLUME_MOUNTS = "volume-mounts"  # the vendor's own runtime, told by mounts, which no image has
    CDI_ANNOTATIONS = "cdi-annotations"  # the container runtime, by specs and annotations
    CDI_CRI = "cdi-cri"  # the container runtime, by specs and the kubelet's field

    @classmethod
    def _missing_(cls, value: object) -> InjectionWay | None:
        return {"runtime": cls.ENVVAR, "cdi": cls.CDI_CRI}.get(str(value))

    @property
    def by_default_runtime(self) -> bool:
        """Whether the vendor's runtime has to be the default one of the nodes."""
        return self in (InjectionWay.ENVVAR, InjectionWay.VOLUME_MOUNTS)

    @property
    def by_cdi(self) -> bool:
        """Whether the vendor's runtime, which may be installed as well, has to add nothing."""
        return self in (InjectionWay.CDI_ANNOTATIONS, InjectionWay.CDI_CRI)


def noted_variable(container_name: str, variable_name: str) -> Plain:
    """Return the variable of a container that takes its value from an annotation."""
    field = {"apiVersion": "v1", "fieldPath": _path(container_name, variable_name)}
    return {"name": variable_name, "valueFrom": {"fieldRef": field}}


def is_noted(container_name: str, variable: Variable) -> bool:
    """Whether a container's variable takes its value from that annotation."""
    own_field = FieldRef(field_path=_path(container_name, variable.name))
    return variable.value_from == ValueSource(field_ref=own_field)


def notes_of_variables(
    pod: Pod,
    allocation_by_container: dict[str, Allocation],
    *,
    vendors: Sequence[Vendor],
    devices: Sequence[Device],
) -> dict[str, str]:
    """Return the annotations for those variables that a pod's containers have from them.

    `allocation_by_container` are the containers' allocations, `devices` those of the node.
    """
    annotations: dict[str, str] = {}
    device_by_uuid = {device.uuid: device for device in devices}
    for container in pod.containers:
        allocation = allocation_by_container.get(container.name)
        noted_names = {
            variable.name for variable in container.env if is_noted(container.name, variable)
        }
        if allocation is None or not noted_names:
            continue
        for vendor in vendors:
            pieces = [piece for piece in allocation.pieces if piece.vendor == vendor.name]
            is_device_gone = any(piece.device not in device_by_uuid for piece in pieces)
            if not pieces or is_device_gone:
                continue
            own_devices = [device_by_uuid[piece.device] for piece in pieces]
            env = vendor.implied(pieces, own_devices, container=True).env
            noted_variables = (
                noted_names & {*vendor.runtime.variables, vendor.runtime.template} & env.keys()
            )
            annotations |= {
                _note(container.name, variable): env[variable] for variable in noted_variables
            }
    return annotations


def _note(container_name: str, variable_name: str) -> str:
    return VISIBLE.replace("*", container_name, 1).replace("*", variable_name)


def _path(container_name: str, variable_name: str) -> str:
    return f"metadata.annotations['{_note(container_name, variable_name)}']"
