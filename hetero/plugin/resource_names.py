"""The names by which pods ask for a vendor's cards: resources and annotations, as data."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, field

from hetero.model import Device, Policy, Selector
from hetero.model.frozen import frozen
from hetero.model.units import MiB


@frozen(kw_only=True)
class ResourceNames:
    """The resources and annotations by which a pod asks for a vendor's cards.

    They are other products' names, so that what users wrote for those keeps its meaning.

    `count` counts cards and is the resource the kubelet knows. `memory` and `core` are per card:
    one of `memory` is `memory_unit` bytes (an amount with a binary suffix is bytes as it stands),
    and `core_whole` of `core` are all of a card. Where a resource has several names, each serves.
    `models` are the models these names mean, `enforcements` how their cards are shared, and `whole`
    says that they never mean a share. `shape` is the one shape of their menus that they mean.
    """

    count: str
    memory: tuple[str, ...] = ()
    memory_unit: int = MiB
    memory_percent: str | None = None
    core: tuple[str, ...] = ()
    core_whole: int = 100
    priority: str | None = None  # 0 goes first
    models: Selector = field(default=Selector())
    enforcements: Selector = field(default=Selector())
    whole: bool = False
    shape: str | None = None
    # Annotations: lists of names, separated by commas, and switches that are "true".
    include_model: str | None = None
    exclude_model: str | None = None
    #: What in a model's name users write differently from the driver, and the driver's way.
    spelling: Mapping[str, str] = field(factory=dict)
    include_uuid: str | None = None
    exclude_uuid: str | None = None
    numa: str | None = None
    links: str | None = None
    #: The annotation or the container's variable that chooses a policy, and what its values mean;
    #: None: core is counted and limits nobody.
    policy: str | None = None
    policies: Mapping[str, Policy | None] = field(factory=dict)
    #: The annotation that names a pod's class, and beside which classes each may be on a card; ""
    #: is to have none. A container of a class has one card, and those of `first` go first on it.
    qos_class: str | None = None
    qos_classes: Mapping[str, tuple[str, ...]] = field(factory=dict)
    first: tuple[str, ...] = ()
    #: The annotation that says by which enforcement a card may be shared, and its values' meaning.
    mode: str | None = None
    modes: Mapping[str, Selector] = field(factory=dict)
    #: How many cards make a module, where whole ones are only given by modules: one means a module.
    module: int = 1

    def each(self, *models: str, module: int = 1) -> tuple[ResourceNames, ...]:
        """Return such names for each of these models, where each has resources of its own.

        `{model}` stands for the model in what these names say. A name that is the beginning of
        another's means its own cards alone.
        """
        return tuple(
            evolve(
                self,
                count=self.count.format(model=model),
                memory=tuple(name.format(model=model) for name in self.memory),
                core=tuple(name.format(model=model) for name in self.core),
                models=Selector((model,), tuple(m for m in models if model in m and m != model)),
                include_uuid=self.include_uuid and self.include_uuid.format(model=model),
                exclude_uuid=self.exclude_uuid and self.exclude_uuid.format(model=model),
                module=module,
            )
            for model in models
        )

    def each_shape(self, *shapes: str) -> tuple[ResourceNames, ...]:
        """Return such names for each of these shapes, with `{shape}` filled in their count."""
        return tuple(
            evolve(self, count=self.count.format(shape=shape), shape=shape) for shape in shapes
        )

    @property
    def resources(self) -> tuple[str, ...]:
        """All resource names; all but `count` exist for the scheduler alone."""
        some = (self.count, *self.memory, self.memory_percent, *self.core, self.priority)
        return tuple(name for name in some if name is not None)

    def mean(self, device: Device) -> bool:
        """Return whether the device is one that these names may get."""
        enforcement, shaped = (
            device.enforcement.value,
            self.shape is None or self.shape in device.shapes,
        )
        fits = self.models.allows(device.model) and self.enforcements.allows(
            enforcement, all_of_it=True
        )
        return fits and shaped
