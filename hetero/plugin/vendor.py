"""The declaration of a vendor: pure data, the same whether or not a driver is installed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import lcm

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
from hetero.model.device import SIZE_UNSAID
from hetero.model.frozen import frozen
from hetero.model.units import MiB
from hetero.plugin.container import ContainerEdits, ContainerRuntime
from hetero.plugin.resource_names import IneffectiveWords, ResourceNames

#: The version of what a vendor imports. It grows when a plugin of before would no longer work.
API = 2

#: No card has this much; a driver that says so speaks another version of its interface.
_IMPOSSIBLE_MEMORY = 2**50
#: An index that no device has.
_NO_DEVICE = "-1"
#: How many may share a card that is shared softly.
_SOFT_SLOTS = 10


@frozen(kw_only=True)
class Model:
    """How every card divides whose model name matches.

    `match` is a shell pattern on the driver's model name, case-insensitive. `core` is the number of
    compute units of a card (100 where a vendor counts in percent), `slots` how many grants may
    share one card. `extra` has further counters that a template may take from.
    """

    match: str
    granularity: Granularity
    core: int = 100
    slots: int = 1
    extra: Counters = field(factory=dict)


def menus(table: str, *, counters: Sequence[str]) -> tuple[Model, ...]:
    """Return the models of a table, each a row: `M2  24/6  small 8192/3/1, large 16384/6/1`.

    After a model's name come its amounts of the `counters`, and its templates, smallest first. A
    template has its name, MiB, and what it takes of the counters. Counters that a row omits are not
    counted. A card has a slot for each time its smallest template fits.
    """

    def amounts(text: str) -> dict[str, int]:
        return dict(zip(counters, map(int, text.split("/")), strict=False))

    def template(text: str) -> Template:
        template_name, amounts_text = text.split()
        memory_text, _, other_amounts = amounts_text.partition("/")
        return Template(template_name, {MEMORY: int(memory_text) * MiB, **amounts(other_amounts)})

    def model(table_row: str) -> Model:
        model_part, capacity_text, templates_text = table_row.split(maxsplit=2)
        menu, card_capacity = (
            tuple(map(template, templates_text.split(", "))),
            amounts(capacity_text),
        )
        slots = min(amount // menu[0].takes[counter] for counter, amount in card_capacity.items())
        return Model(
            match=model_part,
            granularity=Templated(menu),
            core=card_capacity.pop(CORE),
            slots=slots,
            extra=card_capacity,
        )

    return tuple(map(model, table.strip().splitlines()))


@frozen(kw_only=True)
class Vendor:
    """A vendor's name, how its models divide, and what confines a process to its devices."""

    #: The version of this interface that it was written for: `API`.
    api: int
    #: Its name, which is its entry point's, in lower case.
    name: str
    #: Its name for people.
    title: str
    #: How its cards divide: the first model that matches decides.
    models: tuple[Model, ...]
    #: The environment variables that programs learn their devices from.
    visible: tuple[str, ...] = ()
    #: How those list devices: by "uuid", or by "index", which in a container counts from 0. By
    #: "number" is by UUID, too, but where `hetero run` loads its limiter into a program they count
    #: the grant's devices from 0, and the limiter has the driver read UUIDs.
    visible_by: str = field(default="uuid", validator=validators.in_(("uuid", "index", "number")))
    #: What a container needs of its devices.
    container: ContainerEdits = field(default=ContainerEdits())
    #: What its own container runtime reads.
    runtime: ContainerRuntime = field(default=ContainerRuntime())
    #: The driver API that its preloaded limiter covers, where there is one.
    limiter: str | None = None
    #: The same where its cards are cut and a node's settings have them shared without cuts.
    soft_limiter: str | None = None
    #: The bytes that its driver takes for a context of a program, where no node could measure that
    #: yet; 0: not known. None: its limiter charges no contexts, so they count as no grant's memory.
    context_bytes: int | None = 0
    #: What a pod asks by. Resources of their domains are for its cards, also when another device
    #: plugin offers them.
    resource_names: tuple[ResourceNames, ...] = ()
    #: Further such domains.
    resource_domains: tuple[str, ...] = ()
    #: What users of other products write of its cards and that changes nothing here.
    ineffective_words: tuple[IneffectiveWords, ...] = ()
    #: The kernel module of its driver. Faults of its cards that were noted are over once it is
    #: loaded anew.
    module: str | None = None
    #: Executables that watch cards which programs use: never ended for what they hold.
    monitors: tuple[str, ...] = ()

    def __new__(cls, **declared: object) -> Vendor:
        """Refuse a declaration of another version, before one of its fields is found missing."""
        if declared and declared.get("api") != API:
            version = f"version {declared['api']}" if "api" in declared else "no version"
            raise ValueError(
                f"the declaration says {version} of the plugin interface, and this is version "
                f"{API}: see docs/guides/adding-a-vendor.md"
            )
        return object.__new__(cls)

    def declared(self, model: str) -> Model:
        """Return the first declaration that covers `model`. Raises `LookupError`."""
        for declaration in self.models:
            if fnmatchcase(model.lower(), declaration.match.lower()):
                return declaration
        raise LookupError(f"{self.name}: no declared model matches {model!r}")

    @property
    def soft(self) -> Vendor:
        """The vendor with its cards shared by the limiter, as a node's settings may say."""
        return evolve(self, limiter=self.soft_limiter or self.limiter)

    def device(
        self,
        *,
        uuid: str | None,
        model: str | None,
        index: int,
        memory: int | None,
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
        """Return a discovered card with its declared granularity and capacity.

        `memory` is in bytes; None: the driver does not say it, and nothing is given of the card
        unless the node's settings do. The driver keeps what the attribute `reserved` says of it,
        and that is promised to nobody. `granularity` and `capacity` replace the declared ones on a
        card whose own state decides them: one that is partitioned already, whose parts are counted
        here and have what they say. A `model` that the driver does not name is "unknown".
        Attributes that are None are left out. Raises `ValueError` for values that no card can have.
        """
        if memory is None:
            memory, health = 0, health if health not in (None, "ok") else SIZE_UNSAID
        if not uuid or not uuid.isprintable():
            raise ValueError(f"the driver gave {uuid!r} as a UUID")
        if not (0 if health not in (None, "ok") else 1) <= memory < _IMPOSSIBLE_MEMORY:
            raise ValueError(f"the driver gave {memory} bytes of memory")
        model = model or "unknown"
        declaration = self.declared(model)
        declared_fields = {
            CORE: declaration.core,
            MEMORY: memory,
            SLOTS: declaration.slots,
            **declaration.extra,
        }
        granularity = granularity or declaration.granularity
        if isinstance(granularity, Templated) and not granularity.whole:
            granularity, part_counters = _parts(granularity)
            declared_fields.update(part_counters)
        else:
            declared_fields[MEMORY] -= min(int((attributes or {}).get("reserved") or 0), memory)
        return Device(
            uuid=uuid,
            vendor=self.name,
            model=model,
            index=index,
            capacity={**declared_fields, **(capacity or {})},
            granularity=granularity,
            enforcement=enforcement,
            health=health,
            numa=numa,
            pci=pci,
            links=links,
            attributes={
                attribute: str(value)
                for attribute, value in (attributes or {}).items()
                if value is not None
            },
            group=group,
        )

    @property
    def hiding(self) -> dict[str, str]:
        """The values of all variables that hide the vendor's devices from a program."""
        return {**self.runtime.hiding, **dict.fromkeys(self.visible, _NO_DEVICE)}

    def implied(
        self, pieces: Sequence[DeviceAllocation], devices: Sequence[Device], *, container: bool
    ) -> Edits:
        """Return the edits that the declaration implies for the granted devices or parts."""
        if self.visible_by != "index":
            own_names = [
                piece.part or device.uuid for piece, device in zip(pieces, devices, strict=True)
            ]
            visible_names = own_names
        else:
            devices = sorted(devices, key=lambda device: device.index)
            own_names = [str(device.index) for device in devices]
            visible_names = (
                [str(position) for position in range(len(devices))] if container else own_names
            )

        def filled_in(texts: tuple[str, ...]) -> tuple[str, ...]:
            # What the driver has for itself is the same for every device.
            filled_texts = (_filled_in(text, device) for text in texts for device in devices)
            return tuple(dict.fromkeys(filter(None, filled_texts)))

        runtime, cdi = self.runtime, self.container.cdi
        device_names = filled_in((runtime.name,)) if runtime.name else own_names
        template_names = {piece.template for piece in pieces if piece.template}
        variables = (runtime.template,) if runtime.template and container and template_names else ()
        return Edits(
            env=dict.fromkeys(runtime.variables, ",".join(device_names))
            | dict.fromkeys(self.visible, ",".join(visible_names))
            | dict.fromkeys(variables, ",".join(template_names)),
            device_nodes=filled_in(self.container.device_nodes),
            cdi=tuple(f"{cdi}={piece.part or piece.device}" for piece in pieces if cdi),
            files=filled_in(self.container.files),
        )


def with_software_limiter(device: Device) -> Device:
    """Return the device as shared by the software limiter.

    Core goes in steps of 1 % or of one of the vendor's units, memory in steps of 1 MiB. A card that
    is already partitioned is returned unchanged.
    """
    if device.partitioned:
        return device
    return evolve(
        device,
        capacity={
            CORE: lcm(100, device.of_card(CORE)),
            MEMORY: device.capacity[MEMORY],
            SLOTS: _SOFT_SLOTS,
        },
        granularity=Fractional(),
        enforcement=Enforcement.PRELOAD,
    )


def _parts(templated: Templated) -> tuple[Templated, Counters]:
    """Return the parts of a card, and counters by which each is given once.

    There is a counter for each part, and one for each kind: a refusal says which kind ran out.
    """
    template_counts = Counter(template.name for template in templated.menu)
    part_counts = {template.part: 1 for template in templated.menu if template.part}
    menu = (
        evolve(
            template, takes={**template.takes, template.name: 1, template.part or template.name: 1}
        )
        for template in templated.menu
    )
    return evolve(templated, menu=tuple(menu)), {
        **template_counts,
        **part_counts,
        SLOTS: len(templated.menu),
    }


def _filled_in(text: str, device: Device) -> str | None:
    """Return the text with the device's attributes filled in, None where it lacks one."""
    try:
        return text.format_map({"index": device.index, **device.attributes})
    except KeyError:
        return None
