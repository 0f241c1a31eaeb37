"""What a vendor declares about itself: pure data, true whether or not a driver is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from attrs import evolve, field

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Choice,
    Counters,
    Device,
    Edits,
    Grant,
    Granularity,
    Link,
    Policy,
    Rung,
)
from hetero.units import MiB
from hetero.value import frozen

#: No card has this much; a driver that says so speaks another version of its interface.
_IMPOSSIBLE_MEMORY = 2**50


@frozen(kw_only=True)
class Model:
    """How every card whose model name matches divides.

    `match` is a shell pattern on the driver's model name, case-insensitive. `core` is the number
    of compute units a card divides into (100 where a vendor counts in percent), `slots` how many
    grants may share one card, `extra` further counters a template may take from.
    """

    match: str
    granularity: Granularity
    core: int = 100
    slots: int = 1
    extra: Counters = field(factory=dict)


@frozen(kw_only=True)
class Words:
    """The words in which a pod asks for a vendor's cards; all are names of Kubernetes resources
    or annotations, so that what users wrote for other products keeps its meaning.

    `count` counts cards and is the resource the kubelet knows. `memory` and `core` are per card:
    one of `memory` is `memory_unit` bytes (an amount with a binary suffix is bytes as it stands),
    and `core_whole` of `core` are all of a card. Where a resource has several names, each serves.
    `models` are the models these words mean, `rungs` how their cards are shared, and `whole` says
    that they never mean a share. `shape` is the one shape of their menus that they mean.
    """

    count: str
    memory: tuple[str, ...] = ()
    memory_unit: int = MiB
    memory_percent: str | None = None
    core: tuple[str, ...] = ()
    core_whole: int = 100
    priority: str | None = None  # 0 goes first
    models: Choice = field(default=Choice())
    rungs: Choice = field(default=Choice())
    whole: bool = False
    shape: str | None = None
    # Annotations: lists of names, separated by commas, and switches that are "true".
    only_model: str | None = None
    never_model: str | None = None
    #: What in a model's name users write differently from the driver, and the driver's way.
    spelling: Mapping[str, str] = field(factory=dict)
    only_uuid: str | None = None
    never_uuid: str | None = None
    numa: str | None = None
    links: str | None = None
    #: The annotation or the container's variable that chooses a policy, and what its values mean;
    #: None: core is counted and limits nobody.
    policy: str | None = None
    policies: Mapping[str, Policy | None] = field(factory=dict)
    #: The annotation that names a pod's class, and beside which classes each may be on a card; ""
    #: is to have none. A container of a class has one card, and those of `first` go first on it.
    grade: str | None = None
    grades: Mapping[str, tuple[str, ...]] = field(factory=dict)
    first: tuple[str, ...] = ()
    #: The annotation that says by which rungs a card may be shared, and what its values mean.
    mode: str | None = None
    modes: Mapping[str, Choice] = field(factory=dict)
    #: How many cards make a module, where whole ones are only given by modules: one means a module.
    module: int = 1
    #: Annotations of the whole product these words come from: how nodes and devices are ordered.
    node_order: str | None = None
    device_order: str | None = None

    def each(self, *models: str) -> tuple[Words, ...]:
        """Return such words for each of these models, where each has resources of its own.

        `{model}` stands for the model in what these words say. A name that is the beginning of
        another's means its own cards alone.
        """
        return tuple(
            evolve(
                self,
                count=self.count.format(model=model),
                memory=tuple(name.format(model=model) for name in self.memory),
                core=tuple(name.format(model=model) for name in self.core),
                models=Choice((model,), tuple(m for m in models if model in m and m != model)),
                only_uuid=self.only_uuid and self.only_uuid.format(model=model),
                never_uuid=self.never_uuid and self.never_uuid.format(model=model),
            )
            for model in models
        )

    @property
    def resources(self) -> tuple[str, ...]:
        """All resource names; all but `count` exist for the scheduler alone."""
        some = (self.count, *self.memory, self.memory_percent, *self.core, self.priority)
        return tuple(name for name in some if name is not None)

    def mean(self, device: Device) -> bool:
        """Return whether the device is one that these words may get."""
        rung, shaped = device.rung.value, self.shape is None or self.shape in device.shapes
        fits = self.models.allows(device.model) and self.rungs.allows(rung, all_of_it=True)
        return fits and shaped


@frozen(kw_only=True)
class Vendor:
    """Who a vendor is, how its models divide, and what confines a process to its devices.

    `visible` names the environment variables programs learn their devices from, listed by UUID or
    by index (`visible_by`); in a container, which has its own devices alone, indices count from 0.
    `runtime` names those that the vendor's container runtime reads: there a device is called what
    the machine calls it. Either says `none` where no device of the vendor is to be seen.
    `limiter` names the driver API the preloaded limiter covers, where there is one. `words` are
    what a pod asks in.

    A container needs more than a variable: `device_nodes` are the /dev entries of a granted device
    and `files` those of its driver: libraries by the name programs open them by, programs and
    directories by their path (`path:place` where it has another place inside). `{index}` and any
    `{attribute}` of the device are filled in; what names an attribute a device lacks, or is not on
    the machine, is left out. `cdi` is the kind of the vendor's own CDI devices, named by UUID:
    where such are there, they bring both.
    """

    name: str
    title: str
    models: tuple[Model, ...]
    visible: tuple[str, ...] = ()
    visible_by: str = field(default="uuid")
    runtime: tuple[str, ...] = ()
    none: str = "-1"  # an index no device has
    limiter: str | None = None
    device_nodes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    cdi: str | None = None
    words: tuple[Words, ...] = ()

    @visible_by.validator
    def _uuid_or_index(self, _: object, value: str) -> None:
        if value not in ("uuid", "index"):
            raise ValueError(f"visible_by is 'uuid' or 'index', not {value!r}")

    def declared(self, model: str) -> Model:
        """Return the first declaration that covers `model`. Raises `LookupError`."""
        for declaration in self.models:
            if fnmatchcase(model.lower(), declaration.match.lower()):
                return declaration
        raise LookupError(f"{self.name}: no declared model matches {model!r}")

    def device(
        self,
        *,
        uuid: str,
        model: str,
        index: int,
        memory: int,
        rung: Rung,
        granularity: Granularity | None = None,
        capacity: Counters | None = None,
        health: str | None = None,
        numa: int | None = None,
        pci: str | None = None,
        links: tuple[Link, ...] = (),
        attributes: Mapping[str, str | None] | None = None,
        group: str | None = None,
    ) -> Device:
        """Return the discovered card with its declared granularity and capacity stamped on it.

        `memory` is in bytes. `granularity` and `capacity` replace the declared ones on a card
        whose own state decides them (one that is partitioned already). Attributes that are None
        are not said. Raises `ValueError` on what no card can be.
        """
        if not uuid or not uuid.isprintable():
            raise ValueError(f"the driver gave {uuid!r} as a UUID")
        if not (0 if health not in (None, "ok") else 1) <= memory < _IMPOSSIBLE_MEMORY:
            raise ValueError(f"the driver gave {memory} bytes of memory")
        declaration = self.declared(model)
        declared = {
            CORE: declaration.core,
            MEMORY: memory,
            SLOTS: declaration.slots,
            **declaration.extra,
        }
        return Device(
            uuid=uuid,
            vendor=self.name,
            model=model,
            index=index,
            capacity={**declared, **(capacity or {})},
            granularity=granularity or declaration.granularity,
            rung=rung,
            health=health,
            numa=numa,
            pci=pci,
            links=links,
            attributes={n: said for n, said in (attributes or {}).items() if said is not None},
            group=group,
        )

    def implied(
        self, grants: Sequence[Grant], devices: Sequence[Device], *, container: bool
    ) -> Edits:
        """Return what the declaration implies: the granted devices or parts are seen and opened."""
        if self.visible_by == "uuid":
            names = [g.part or device.uuid for g, device in zip(grants, devices, strict=True)]
            seen = names
        else:
            names = [str(index) for index in sorted(device.index for device in devices)]
            seen = [str(place) for place in range(len(devices))] if container else names

        def filled_in(texts: tuple[str, ...]) -> tuple[str, ...]:
            # What the driver has for itself is the same for every device.
            found = (_filled_in(text, device) for text in texts for device in devices)
            return tuple(dict.fromkeys(filter(None, found)))

        return Edits(
            env=dict.fromkeys(self.runtime, ",".join(names))
            | dict.fromkeys(self.visible, ",".join(seen)),
            device_nodes=filled_in(self.device_nodes),
            cdi=tuple(f"{self.cdi}={grant.part or grant.device}" for grant in grants if self.cdi),
            files=filled_in(self.files),
        )


def _filled_in(text: str, device: Device) -> str | None:
    """Return the text with the device's facts in it, None where it lacks one."""
    try:
        return text.format_map({"index": device.index, **device.attributes})
    except KeyError:
        return None
