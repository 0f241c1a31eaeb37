"""The devices of a node, their counters, and how the limits of their shares are enforced."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import field

from hetero.model.frozen import frozen
from hetero.model.granularity import Counters, Granularity, Templated, Whole

#: The health of a device that grants stand on and its driver no longer lists.
LOST = "lost by its driver"
#: The health of a device whose driver does not say how much memory it has.
SIZE_UNSAID = "its driver says no memory: write cards.memory in the node's settings"
#: One word for what ails a device, with what a driver's sentence then has in it.
_AILMENTS = {
    "lost": ("lost", "fell off"),
    "hot": ("hot", "temperature"),
    "ecc": ("ecc", "memory error", "remap", "memory repair"),
    "xid": ("xid",),
    "alarm": ("alarm",),
}
#: All such words: the last is for what none of the others says.
AILMENTS = (*_AILMENTS, "fault")


class Enforcement(str, Enum):
    """What keeps a grant within its share of a device, strongest first."""

    KERNEL = "kernel"  # the driver's kernel module limits a cgroup
    PARTITION = "partition"  # the hardware or driver carves the device up
    SERVICE = "service"  # a vendor daemon arbitrates
    PRELOAD = "preload"  # our limiter stands in front of the driver library
    VARIABLE = "variable"  # a part of a cut device that only variables name to its program
    NONE = "none"  # counted, not enforced

    @property
    def by_limiter(self) -> bool:
        """Whether our limiter limits the device's programs, alone or together with a service."""
        return self in (Enforcement.PRELOAD, Enforcement.SERVICE)


@frozen
class Link:
    """A link from one device to another: `kind` in the vendor's word, `weight` larger is faster."""

    peer: str
    kind: str
    weight: int


@frozen
class Device:
    """One physical card, with how it divides (`granularity`) and how that is kept (`enforcement`).

    `index` is the position its own driver lists it at; `uuid` is what it is addressed by.
    `health` is "ok", or what is wrong in a few words; None when the driver will not say. `cordon`
    is why its administrator has nothing new given of it, "" without a reason; None: it is not
    cordoned. `excluded`: the node's settings are why, so another program may give it out. Devices
    of one `group` are parts of one module: a grant that takes one of them whole takes them all.
    `card` is what the card itself has where a node's scaling makes it promise another `capacity`;
    of memory at most what is promised.
    """

    uuid: str
    vendor: str
    model: str
    index: int
    capacity: Counters
    granularity: Granularity
    enforcement: Enforcement = Enforcement.NONE
    health: str | None = None
    numa: int | None = None
    pci: str | None = None
    links: tuple[Link, ...] = ()
    attributes: Mapping[str, str] = field(factory=dict)
    group: str | None = None
    card: Counters = field(factory=dict)
    cordon: str | None = None
    excluded: bool = False

    @property
    def name(self) -> str:
        """The name that people see and every command takes: `acme:0`, by its driver's index."""
        return f"{self.vendor}:{self.index}"

    def of_card(self, counter: str) -> int:
        """How much of `counter` the card itself has: what percentages are percentages of."""
        return self.card.get(counter, self.capacity[counter])

    @property
    def size_unsaid(self) -> bool:
        """Whether its driver lists it and does not say how much memory it has."""
        return self.health == SIZE_UNSAID

    @property
    def reserved_bytes(self) -> int:
        """The memory that its driver keeps for itself, as far as it says so."""
        reserved_text = self.attributes.get("reserved", "")
        return int(reserved_text) if reserved_text.isdecimal() else 0

    @property
    def context_bytes(self) -> int:
        """The memory that its driver takes for a context of a program; 0 where it is not known."""
        context_text = self.attributes.get("context", "")
        return int(context_text) if context_text.isdecimal() else 0

    @property
    def context_is_declared(self) -> bool:
        """Whether `context_bytes` is what its vendor declares: no card of its kind was measured."""
        return self.attributes.get("context_from") == "declared"

    @property
    def counted_context_bytes(self) -> int:
        """What a context takes of the memory that is asked of it; 0: nothing, or not known.

        Contexts count where its limiter charges them, unless the node's settings say otherwise.
        Those settings are not for claims.
        """
        return 0 if self.attributes.get("context_counts") == "for claims" else self.context_bytes

    @property
    def charges_contexts(self) -> bool:
        """Whether its limiter charges contexts; where it does not, they count as no memory."""
        return self.attributes.get("context") != "uncharged"

    @property
    def cut_at_admission(self) -> bool:
        """Whether slices of it are cut before a pod's first container and last until its end."""
        return not isinstance(self.granularity, Whole) and self.granularity.cut_at_admission

    @property
    def shapes(self) -> frozenset[str]:
        """The names of its menu, if it has one."""
        menu = self.granularity.menu if isinstance(self.granularity, Templated) else ()
        return frozenset(template.name for template in menu)

    @property
    def partitioned(self) -> bool:
        """Whether it is partitioned already, so that it is given by its parts alone."""
        return isinstance(self.granularity, Templated) and not self.granularity.whole

    @property
    def part_takes(self) -> tuple[Counters, ...]:
        """What the parts take of a device that is given by its parts alone, empty for another."""
        menu = self.granularity.menu if isinstance(self.granularity, Templated) else ()
        return tuple(template.takes for template in menu) if self.partitioned else ()

    @property
    def short_model(self) -> str:
        """The model's name without its vendor's."""
        return short_model_of(self.vendor, self.model)

    @property
    def lost(self) -> bool:
        """Whether its driver no longer lists it, so that nothing can be asked about it."""
        return self.health == LOST

    @property
    def healthy(self) -> bool:
        """Whether nothing is known to be wrong with the device."""
        return self.health in (None, "ok")

    @property
    def ailment(self) -> str | None:
        """What is wrong with the device in one word: `lost`, `ecc`, `hot`; `fault` for others."""
        return ailment_of(self.health)

    @property
    def usable(self) -> bool:
        """Whether the device may be given out."""
        return self.healthy and self.cordon is None

    @property
    def condition(self) -> str | None:
        """Its health with its cordon, as views show it; None when neither is known."""
        if self.cordon is None:
            return self.health
        cordon_text = f"cordoned ({self.cordon})" if self.cordon else "cordoned"
        return cordon_text if self.healthy else f"{self.health}; {cordon_text}"


def short_model_of(vendor: str, model: str) -> str:
    """Return a model's name without its vendor's."""
    first_word, _, other_words = model.partition(" ")
    return other_words if other_words and first_word.lower() == vendor.lower() else model


def ailment_of(health: str | None) -> str | None:
    """Return what is wrong with a device of this health in one word; None: nothing is."""
    if health in (None, "ok"):
        return None
    sentence = (health or "").lower()
    return next(
        (word for word, signs in _AILMENTS.items() if any(sign in sentence for sign in signs)),
        AILMENTS[-1],
    )
