"""The values the scheduler works on: nodes, pods of several containers, and where a pod went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attrs import field, frozen

from hetero.model import Allocation, ContainerKind, Counters, Device, Occupancy, Request, peak
from hetero.model.errors import BadInput

#: Counters of a node itself. A node may count others; a counter it lacks is not limited there.
CPU = "cpu"  # thousandths of a processor
HOST_MEMORY = "memory"  # bytes


def _not_negative(owner: PlacedNode | PlacedContainer, _: object, counters: Counters) -> None:
    for counter, amount in counters.items():
        if amount < 0:
            raise BadInput(f"{owner.TITLE.lower()}: {counter} {amount} is negative")


@frozen(kw_only=True)
class PlacedNode:
    """One machine: its devices and what else it has to give (`host`)."""

    #: Its name in errors.
    TITLE: ClassVar[str] = "Node"
    name: str
    devices: tuple[Device, ...] = ()
    host: Counters = field(factory=dict, validator=_not_negative)
    cordoned: bool = False


@frozen(kw_only=True)
class PlacedContainer:
    """What one container of a pod wants: devices (None: none) and a part of the host."""

    #: Its name in errors.
    TITLE: ClassVar[str] = "Container"
    request: Request | None = None
    host: Counters = field(factory=dict, validator=_not_negative)


@frozen(kw_only=True)
class PlacedPod:
    """Containers that land on one node together.

    `init` containers run one after the other before `containers` start, `sidecars` run with all
    of them.
    """

    #: Its name in errors.
    TITLE: ClassVar[str] = "Pod"
    name: str = ""
    namespace: str = "default"
    containers: tuple[PlacedContainer, ...]
    init: tuple[PlacedContainer, ...] = ()
    sidecars: tuple[PlacedContainer, ...] = ()
    priority: int = 0
    #: What is lost if the pod is evicted now, in any unit that is the same for all pods.
    work: int = 0

    def __attrs_post_init__(self) -> None:
        if not self.containers:
            raise BadInput(f"pod {self.name!r} has no container")

    @property
    def kinds_and_containers(self) -> tuple[tuple[ContainerKind, PlacedContainer], ...]:
        """All its containers in the order of a placement's allocations, with their kinds."""
        return (
            *((ContainerKind.SIDECAR, container) for container in self.sidecars),
            *((ContainerKind.MAIN, container) for container in self.containers),
            *((ContainerKind.INIT, container) for container in self.init),
        )

    def host(self) -> dict[str, int]:
        """Return what the pod takes of its node's own counters."""
        if len(self.containers) == 1 and not self.init and not self.sidecars:
            return dict(self.containers[0].host)  # most pods, and it is asked for each
        return peak((kind, container.host) for kind, container in self.kinds_and_containers)


@frozen(kw_only=True)
class Placement:
    """A pod on its node: one allocation per container, and what all of them keep together.

    `allocations` follow the order sidecars, containers, init; None for one without devices.
    """

    node: str
    pod: PlacedPod
    allocations: tuple[Allocation | None, ...]
    holds: tuple[Occupancy, ...]
    host: Counters


#: Most a namespace may hold, by namespace: counters of devices (`core`, `memory`, …) and `devices`.
Quota = Mapping[str, Counters]
DEVICES = "devices"
