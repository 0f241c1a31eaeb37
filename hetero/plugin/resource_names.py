"""The resource names and annotations by which pods request a vendor's cards, as data.

They are those of other products, so that users' manifests keep their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import evolve, field

from hetero.model import Device, Policy, Selector
from hetero.model.frozen import frozen
from hetero.model.units import MiB


@frozen(kw_only=True)
class MeantDevices:
    """The devices of a vendor that resource names stand for, and how much of one."""

    #: The models.
    models: Selector = field(default=Selector())
    #: How they are shared.
    enforcements: Selector = field(default=Selector())
    #: Whether the names never mean a share.
    whole: bool = False
    #: Whether devices that are partitioned already, where the pod's annotations do not say so.
    partitioned: bool = True
    #: The one shape of their menus.
    shape: str | None = None
    #: How many cards make a module, where whole ones are only given by modules: one means a module.
    module: int = 1

    def mean(self, device: Device) -> bool:
        """Return whether the names stand for the device."""
        has_shape = self.shape is None or self.shape in device.shapes
        has_enforcement = self.enforcements.allows(device.enforcement.value, all_of_it=True)
        return has_shape and has_enforcement and self.models.allows(device.model)


@frozen(kw_only=True)
class DeviceChoice:
    """The annotations by which a pod selects devices; lists are separated by commas."""

    #: Lists of models to choose from, and to leave out.
    include_model: str | None = None
    exclude_model: str | None = None
    #: What in a model's name users write differently from the driver, and the driver's way.
    spelling: Mapping[str, str] = field(factory=dict)
    #: Lists of UUIDs to choose from, and to leave out.
    include_uuid: str | None = None
    exclude_uuid: str | None = None
    #: A switch, which is "true": all devices of one NUMA node.
    numa: str | None = None
    #: A switch, which is "true": devices that are near each other.
    links: str | None = None


@frozen(kw_only=True)
class Policies:
    """The annotation, or the container's variable, that selects the core policy."""

    #: Its name.
    name: str | None = None
    #: What its values mean; None: core is counted and limits nobody.
    values: Mapping[str, Policy | None] = field(factory=dict)
    #: A container's variable that is true where it is to run without a limiter.
    unlimited: str | None = None


@frozen(kw_only=True)
class LimiterVariables:
    """A container's variables that another limiter reads, and that mean the same here."""

    #: The log level.
    log: str | None = None
    #: By its values, those of HETERO_LOG.
    log_levels: Mapping[str, str] = field(factory=dict)
    #: The memory of each card; of one card, by its position, with `_` and the position after it.
    #: Bytes, with k, m or g for KiB, MiB or GiB. It lowers what is asked, and never raises it.
    memory: str | None = None


class WordKind(str, Enum):
    """Where a pod has a word."""

    RESOURCE = "resource"
    ANNOTATION = "annotation"
    VARIABLE = "variable"


@frozen(kw_only=True)
class IneffectiveWords:
    """Words of other products by which a pod asks for a vendor's cards and that change nothing.

    A pod with one is told so, and its maker.
    """

    #: Where a pod has them: "resource", "annotation" or "variable", of a container that asks.
    kind: WordKind = field(converter=WordKind)
    #: The words, which may be patterns with `*`.
    names: tuple[str, ...]
    #: What is so, and what to write instead: what follows "has no effect: ".
    sentence: str
    #: The values that are meant; all without any.
    values: tuple[str, ...] = ()


@frozen(kw_only=True)
class QosClasses:
    """The annotation with a pod's QoS class; a container of a class has one card."""

    #: Its name.
    name: str | None = None
    #: By class, the classes it may share a card with; "" is to have none.
    compatible: Mapping[str, tuple[str, ...]] = field(factory=dict)
    #: The classes that go first on their card.
    first: tuple[str, ...] = ()


@frozen(kw_only=True)
class Modes:
    """The annotation that selects the enforcement of a shared card."""

    #: Its name.
    name: str | None = None
    #: What its values mean.
    values: Mapping[str, Selector] = field(factory=dict)
    #: Another name, which counts where a pod has not the first.
    other_name: str | None = None


@frozen(kw_only=True)
class ResourceNames:
    """The resources and annotations by which a pod requests a vendor's cards.

    `memory` and `core` are per card. Where a resource has several names, each is accepted.
    """

    #: The resource that counts cards, which the kubelet knows.
    count: str
    #: Resources of `memory_unit` bytes each; an amount with a binary suffix is bytes as it stands.
    memory: tuple[str, ...] = ()
    #: The bytes of one of `memory`.
    memory_unit: int = MiB
    #: The resource of memory in percent of a card.
    memory_percent: str | None = None
    #: Resources of compute, of which `core_whole` are all of a card.
    core: tuple[str, ...] = ()
    #: How many of `core` a card has.
    core_whole: int = 100
    #: The resource that says who goes first: 0 does.
    priority: str | None = None
    #: Which devices these names mean.
    devices: MeantDevices = field(default=MeantDevices())
    #: The annotations that choose among them.
    choice: DeviceChoice = field(default=DeviceChoice())
    #: The annotation that chooses what becomes of core time.
    policies: Policies = field(default=Policies())
    #: The annotation that names a pod's class.
    qos_classes: QosClasses = field(default=QosClasses())
    #: The annotation that chooses how a card is shared.
    modes: Modes = field(default=Modes())
    #: The variables of containers that another limiter reads.
    limiter_variables: LimiterVariables = field(default=LimiterVariables())

    def each(self, *models: str, module: int = 1) -> tuple[ResourceNames, ...]:
        """Return these names for each of the models, where each model has resources of its own.

        `{model}` in a name is replaced by the model. Where one model's name is part of another's,
        its names exclude the other model's cards.
        """

        def named(model: str) -> ResourceNames:
            longer_models = tuple(
                other_model
                for other_model in models
                if model in other_model and other_model != model
            )
            choice = self.choice
            return evolve(
                self,
                count=self.count.format(model=model),
                memory=tuple(pattern.format(model=model) for pattern in self.memory),
                core=tuple(pattern.format(model=model) for pattern in self.core),
                devices=evolve(
                    self.devices, models=Selector((model,), longer_models), module=module
                ),
                choice=evolve(
                    choice,
                    include_uuid=choice.include_uuid and choice.include_uuid.format(model=model),
                    exclude_uuid=choice.exclude_uuid and choice.exclude_uuid.format(model=model),
                ),
            )

        return tuple(map(named, models))

    def each_shape(self, *shapes: str) -> tuple[ResourceNames, ...]:
        """Return these names for each of the shapes, with `{shape}` in `count` replaced by it."""
        return tuple(
            evolve(
                self,
                count=self.count.format(shape=shape),
                devices=evolve(self.devices, shape=shape),
            )
            for shape in shapes
        )

    @property
    def resources(self) -> tuple[str, ...]:
        """All resource names. The kubelet knows `count`, the scheduler alone knows the others."""
        resource_names = (self.count, *self.sizes, self.priority)
        return tuple(name for name in resource_names if name is not None)

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of how much of each card: a part of one."""
        percent_names = () if self.memory_percent is None else (self.memory_percent,)
        return (*self.memory, *percent_names, *self.core)
