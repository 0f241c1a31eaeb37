"""What a vendor declares about itself: pure data, true whether or not a driver is installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from attrs import evolve, field, validators

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Counters,
    Device,
    DeviceAllocation,
    Edits,
    Enforcement,
    Fractional,
    Granularity,
    Link,
    Template,
    Templated,
)
from hetero.model.frozen import frozen
from hetero.model.units import MiB
from hetero.plugin.resource_names import ResourceNames

#: No card has this much; a driver that says so speaks another version of its interface.
_IMPOSSIBLE_MEMORY = 2**50
#: How many may share a card that is shared softly.
_SOFT_SLOTS = 10


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


def menus(table: str, *, counters: Sequence[str], measured_by: Sequence[str]) -> tuple[Model, ...]:
    """Return the models of a table, each a row: `M2  24/6  small 8192/3/1, large 16384/6/1`.

    After its name come what it has of the `counters`, and its templates, smallest first: each has
    its name, MiB, and what it takes of those. A row that says less does not count the rest. A card
    has a slot for each time its smallest template fits. `by` is that of `Templated`.
    """

    def amounts(text: str) -> dict[str, int]:
        return dict(zip(counters, map(int, text.split("/")), strict=False))

    def template(text: str) -> Template:
        name, size = text.split()
        memory, _, rest = size.partition("/")
        return Template(name, {MEMORY: int(memory) * MiB, **amounts(rest)})

    def model(row: str) -> Model:
        match, has, entries = row.split(maxsplit=2)
        menu, whole = tuple(map(template, entries.split(", "))), amounts(has)
        slots = min(amount // menu[0].takes[name] for name, amount in whole.items())
        return Model(
            match=match,
            granularity=Templated(menu, measured_by=tuple(measured_by)),
            core=whole.pop(CORE),
            slots=slots,
            extra=whole,
        )

    return tuple(map(model, table.strip().splitlines()))


@frozen(kw_only=True)
class Vendor:
    """Who a vendor is, how its models divide, and what confines a process to its devices.

    `visible` names the environment variables programs learn their devices from, listed by UUID or
    by index (`visible_by`); in a container, which has its own devices alone, indices count from 0.
    `runtime` names those that the vendor's container runtime reads: there a device is called what
    the machine calls it, or `runtime_name`, filled in as paths are. The variable `runtime_template`
    has the runtime cut the card to a template. Programs are told `none` where no device of the
    vendor is to be seen; the runtime is told the first of `runtime_none`, each of which gives a
    container none. Below `runtime_mounts` the runtime takes what is mounted at a device's name for
    that device, where it may be told so. `runtime_options` are further variables that it reads, of
    devices or of what of them it gives: nobody tells it so by these but, where `runtime_by_hook`
    says so, the vendor's hook.
    `limiter` names the driver API the preloaded limiter covers, where there is one. `soft_limiter`
    does for a vendor that cuts its cards: a node whose settings say so shares them without cuts.
    `resource_names` are what a pod asks by. Resources of their domains, and of `resource_domains`,
    are for the vendor's cards too, whoever offers them.

    A container needs more than a variable: `device_nodes` are the /dev entries of a granted device
    and `files` those of its driver: libraries by the name programs open them by, programs and
    directories by their path (`path:place` where it has another place inside). `{index}` and any
    `{attribute}` of the device are filled in; what names an attribute a device lacks, or is not on
    the machine, is left out. `cdi` is the kind of the vendor's own CDI devices, named by UUID:
    where such are there, they bring both.

    `monitors` are executables of the vendor's that watch cards beside everybody's programs: they
    are never ended for what they hold.
    """

    name: str
    title: str
    models: tuple[Model, ...]
    visible: tuple[str, ...] = ()
    visible_by: str = field(default="uuid", validator=validators.in_(("uuid", "index")))
    runtime: tuple[str, ...] = ()
    runtime_name: str | None = None
    runtime_template: str | None = None
    none: str = "-1"  # an index no device has
    runtime_none: tuple[str, ...] = ()
    runtime_mounts: str | None = None
    runtime_options: tuple[str, ...] = ()
    runtime_by_hook: bool = False
    limiter: str | None = None
    soft_limiter: str | None = None
    device_nodes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    cdi: str | None = None
    resource_names: tuple[ResourceNames, ...] = ()
    resource_domains: tuple[str, ...] = ()
    monitors: tuple[str, ...] = ()

    def declared(self, model: str) -> Model:
        """Return the first declaration that covers `model`. Raises `LookupError`."""
        for declaration in self.models:
            if fnmatchcase(model.lower(), declaration.match.lower()):
                return declaration
        raise LookupError(f"{self.name}: no declared model matches {model!r}")

    @property
    def soft(self) -> Vendor:
        """The vendor as a node has it that shares its cards softly."""
        return evolve(self, limiter=self.soft_limiter or self.limiter)

    def device(
        self,
        *,
        uuid: str | None,
        model: str | None,
        index: int,
        memory: int,
        enforcement: Enforcement,
        granularity: Granularity | None = None,
        capacity: Counters | None = None,
        health: str | None = None,
        numa: int | None = None,
        pci: str | None = None,
        links: tuple[Link, ...] = (),
        attributes: Mapping[str, str | int | None] | None = None,
        group: str | None = None,
    ) -> Device:
        """Return the discovered card with its declared granularity and capacity stamped on it.

        `memory` is in bytes. `granularity` and `capacity` replace the declared ones on a card
        whose own state decides them (one that is partitioned already; its parts are counted
        here). A `model` that the driver does not name is "unknown"; attributes that are None are
        not said. Raises `ValueError` on what no card can be.
        """
        if not uuid or not uuid.isprintable():
            raise ValueError(f"the driver gave {uuid!r} as a UUID")
        if not (0 if health not in (None, "ok") else 1) <= memory < _IMPOSSIBLE_MEMORY:
            raise ValueError(f"the driver gave {memory} bytes of memory")
        model = model or "unknown"
        declaration = self.declared(model)
        declared = {
            CORE: declaration.core,
            MEMORY: memory,
            SLOTS: declaration.slots,
            **declaration.extra,
        }
        granularity = granularity or declaration.granularity
        if isinstance(granularity, Templated) and not granularity.whole:
            granularity, parts = _parts(granularity)
            declared.update(parts)
        return Device(
            uuid=uuid,
            vendor=self.name,
            model=model,
            index=index,
            capacity={**declared, **(capacity or {})},
            granularity=granularity,
            enforcement=enforcement,
            health=health,
            numa=numa,
            pci=pci,
            links=links,
            attributes={n: str(v) for n, v in (attributes or {}).items() if v is not None},
            group=group,
        )

    @property
    def hiding(self) -> dict[str, str]:
        """What variables say where no device of the vendor is to be seen."""
        return {**self.runtime_hiding, **dict.fromkeys(self.visible, self.none)}

    @property
    def runtime_hiding(self) -> dict[str, str]:
        """What variables say where the vendor's runtime is to bring no device."""
        return dict.fromkeys(self.runtime, self.runtime_none[0]) if self.runtime_none else {}

    @property
    def runtime_unsaid(self) -> tuple[str, ...]:
        """The options by which nobody tells the runtime anything: what else says them is undone."""
        return () if self.runtime_by_hook else self.runtime_options

    def implied(
        self, pieces: Sequence[DeviceAllocation], devices: Sequence[Device], *, container: bool
    ) -> Edits:
        """Return what the declaration implies: the granted devices or parts are seen and opened."""
        if self.visible_by == "uuid":
            names = [g.part or device.uuid for g, device in zip(pieces, devices, strict=True)]
            seen = names
        else:
            devices = sorted(devices, key=lambda device: device.index)
            names = [str(device.index) for device in devices]
            seen = [str(place) for place in range(len(devices))] if container else names

        def filled_in(texts: tuple[str, ...]) -> tuple[str, ...]:
            # What the driver has for itself is the same for every device.
            found = (_filled_in(text, device) for text in texts for device in devices)
            return tuple(dict.fromkeys(filter(None, found)))

        called = filled_in((self.runtime_name,)) if self.runtime_name else names
        templates = {piece.template for piece in pieces if piece.template}
        cut = (self.runtime_template,) if self.runtime_template and container and templates else ()
        return Edits(
            env=dict.fromkeys(self.runtime, ",".join(called))
            | dict.fromkeys(self.visible, ",".join(seen))
            | dict.fromkeys(cut, ",".join(templates)),
            device_nodes=filled_in(self.device_nodes),
            cdi=tuple(f"{self.cdi}={piece.part or piece.device}" for piece in pieces if self.cdi),
            files=filled_in(self.files),
        )


def shared_softly(device: Device) -> Device:
    """Return a card that is not cut, by 1 % and 1 MiB; parts of a card are what they are."""
    if isinstance(device.granularity, Templated) and not device.granularity.whole:
        return device
    return evolve(
        device,
        capacity={CORE: 100, MEMORY: device.capacity[MEMORY], SLOTS: _SOFT_SLOTS},
        granularity=Fractional(),
        enforcement=Enforcement.PRELOAD,
    )


def _parts(card: Templated) -> tuple[Templated, Counters]:
    """Return the parts of a card, smallest first, and counters by which each is given once.

    There is one for each part, and one for each kind: it says in a refusal what ran out.
    """
    sized = sorted(card.menu, key=lambda one: (one.takes[MEMORY], one.takes[CORE], one.part or ""))
    kinds = Counter(one.name for one in sized)
    single = {one.part: 1 for one in sized if one.part}
    menu = (evolve(one, takes={**one.takes, one.name: 1, one.part or one.name: 1}) for one in sized)
    return evolve(card, menu=tuple(menu)), {**kinds, **single, SLOTS: len(sized)}


def _filled_in(text: str, device: Device) -> str | None:
    """Return the text with the device's facts in it, None where it lacks one."""
    try:
        return text.format_map({"index": device.index, **device.attributes})
    except KeyError:
        return None
