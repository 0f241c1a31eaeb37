"""The values that travel between the stages: one frozen type per arrow of the data flow.

`discover` gives `Device`s, `fit` turns an `Inventory` and a `Request` into an `Allocation` or a
`Refusal`, `enforce` turns an `Allocation` into `Edits`, `observe` gives `Usage`. All memory is in
bytes; `None` means "not said" and is never a stand-in for zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from attrs import field

from hetero.errors import BadInput
from hetero.value import frozen

#: Named integer counters. Every device counts at least these three; a vendor may add its own.
Counters = Mapping[str, int]
CORE = "core"  # the device's own units of compute (`Vendor.models` says how many make a card)
MEMORY = "memory"  # bytes
SLOTS = "slots"  # how many grants may share the device


class Rung(str, Enum):
    """How a device's promise is kept, strongest first."""

    KERNEL = "kernel"  # the driver's kernel module limits a cgroup
    PARTITION = "partition"  # the hardware or driver carves the device up
    SERVICE = "service"  # a vendor daemon arbitrates
    PRELOAD = "preload"  # our limiter stands in front of the driver library
    NONE = "none"  # counted, not enforced


class Policy(str, Enum):
    """What happens to core time a grant does not use."""

    FIXED = "fixed"  # never above the share
    ELASTIC = "elastic"  # idle time is lent out and taken back
    OFF = "off"  # no limiter at all


def following(policy: Policy) -> str:
    """Return the counter of shares that follow a policy, on devices that count `ONE_POLICY`."""
    return f"{policy.value} shares"


#: More counters of a device whose shares must all follow one policy: nobody gets a share of it by
#: a policy while shares by another stand. There is room for more than any device has slots.
ONE_POLICY: Counters = {following(policy): 1 << 16 for policy in Policy}


class Priority(str, Enum):
    """Who goes first when both want the device."""

    HIGH = "high"
    LOW = "low"


# --- how a device divides -------------------------------------------------------------------


@frozen
class Step:
    """A grain of multiples: sizes are rounded up to the next multiple of `of`."""

    of: int = field()

    @of.validator
    def _positive(self, _: object, value: int) -> None:
        if value < 1:
            raise ValueError("a step is at least 1")


def _ascending(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(sizes))


@frozen
class Ladder:
    """A grain of listed sizes: the first rung that covers the size is taken."""

    sizes: tuple[int, ...] = field(converter=_ascending)

    @sizes.validator
    def _not_empty(self, _: object, value: tuple[int, ...]) -> None:
        if not value or value[0] < 1:
            raise ValueError("a ladder has at least one positive size")


Grain = Step | Ladder


class Multi(str, Enum):
    """What a request for several devices gets of each."""

    SHARES = "shares"
    WHOLE = "whole"


@frozen
class Whole:
    """The device is given as a whole or not at all."""


@frozen
class Fractional:
    """Memory and core are cut freely, each by its grain (bytes and core units).

    `together` is for cards whose driver cuts no memory without core: a request that names no core
    gets the same part of the core as of the memory, rounded down so that equal parts fit.
    """

    memory: Grain = Step(1024 * 1024)
    core: Grain = Step(1)
    multi: Multi = Multi.SHARES
    together: bool = False


@frozen
class Template:
    """One named shape: the counters it takes, and the id of the part where it already exists."""

    name: str
    takes: Counters = field()
    part: str | None = None

    @takes.validator
    def _measurable(self, _: object, value: Counters) -> None:
        if not {CORE, MEMORY} <= set(value):
            raise ValueError(f"template {self.name!r} takes core and memory, of each at least 0")


@frozen
class Templated:
    """The device is cut by a menu: the first entry that covers the request is taken.

    Above the largest entry a request gets the whole device, unless `whole` is False (a card that
    is partitioned already and can only be given by its parts). `by` names what a request is
    measured by: where memory alone decides, a shape's core comes with it, asked or not.
    """

    menu: tuple[Template, ...]
    multi: Multi = Multi.WHOLE
    whole: bool = True
    by: tuple[str, ...] = (CORE, MEMORY)


Granularity = Whole | Fractional | Templated


# --- discover -------------------------------------------------------------------------------


@frozen
class Link:
    """A way from one device to another: `kind` in the vendor's word, `weight` larger is better."""

    peer: str
    kind: str
    weight: int


@frozen
class Device:
    """One physical card, with how it divides (`granularity`) and how that is kept (`rung`).

    `index` is the position its own driver lists it at; `uuid` is what it is addressed by.
    `health` is "ok", or what is wrong in a few words; None when the driver will not say. Devices of
    one `group` are parts of one module: whoever takes one of them whole takes them all. `card` is
    what the card itself has where a node's scaling makes it promise a `capacity` above that.
    """

    uuid: str
    vendor: str
    model: str
    index: int
    capacity: Counters
    granularity: Granularity
    rung: Rung = Rung.NONE
    health: str | None = None
    numa: int | None = None
    pci: str | None = None
    links: tuple[Link, ...] = ()
    attributes: Mapping[str, str] = field(factory=dict)
    group: str | None = None
    card: Counters = field(factory=dict)

    def of_card(self, counter: str) -> int:
        """How much of `counter` the card itself has: what percentages are percentages of."""
        return self.card.get(counter, self.capacity[counter])

    @property
    def shapes(self) -> frozenset[str]:
        """The names of its menu, if it has one."""
        menu = self.granularity.menu if isinstance(self.granularity, Templated) else ()
        return frozenset(template.name for template in menu)

    @property
    def usable(self) -> bool:
        """Whether the device may be given out."""
        return self.health in (None, "ok")

    def whole(self, grant: Grant) -> bool:
        """Whether the grant holds all of the device, so that nothing is to be cut from it."""
        return all(grant.takes.get(name, 0) >= of for name, of in self.capacity.items())


# --- request --------------------------------------------------------------------------------


@frozen(kw_only=True)
class Ask:
    """What is asked of one device. Memory unset means all of it; core unset means no core limit.

    `memory` is in bytes, `memory_percent` and `core` in percent of the card, `device` a position in
    the inventory or the start of a UUID. `shape` is one of a card's menu by its name, whatever its
    size.
    """

    memory: int | None = None
    memory_percent: int | None = None
    core: int | None = None
    device: str | None = None
    shape: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.memory is not None and self.memory_percent is not None:
            raise BadInput("memory is given in bytes and in percent: give one of them")
        if self.memory is not None and self.memory < 1:
            raise BadInput(f"memory {self.memory} is not a positive number of bytes")
        for name, value in (("memory", self.memory_percent), ("core", self.core)):
            if value is not None and not 1 <= value <= 100:
                raise BadInput(f"{name} {value} is out of range: it is 1 to 100 percent of a card")


@frozen
class Choice:
    """Names to choose among (none: all) and names to avoid; case does not matter."""

    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def allows(self, name: str, *, all_of_it: bool = False) -> bool:
        """Return whether a name may be taken: it has one of these as a part, or is one of them."""

        def hit(part: str) -> bool:
            return part.lower() == name.lower() if all_of_it else part.lower() in name.lower()

        if any(hit(part) for part in self.never):
            return False
        return not self.only or any(hit(part) for part in self.only)


@frozen(kw_only=True)
class Company:
    """Whom a grant shares a device with: in the matter of `what` it is `name`, and only goes to
    those who are one of `beside` in it. Who has nothing to say in a matter shares with anybody.
    """

    what: str
    name: str
    beside: tuple[str, ...]


@frozen(kw_only=True)
class Request:
    """One container's wish: as many different physical devices as there are asks.

    `exclusive` takes each device whole whatever share is asked; `empty` takes only the share, but
    of a device nobody holds (mutex); `numa` wants all devices on one NUMA node; `links` wants the
    best-connected ones (and for a single device the worst-connected, to leave the others be).
    """

    asks: tuple[Ask, ...]
    exclusive: bool = False
    empty: bool = False
    numa: bool = False
    links: bool = False
    policy: Policy = Policy.FIXED
    priority: Priority = Priority.LOW
    vendor: Choice = Choice()
    model: Choice = Choice()  # parts of model names
    uuid: Choice = Choice()  # starts of UUIDs
    rung: Choice = Choice()
    company: tuple[Company, ...] = ()

    def __attrs_post_init__(self) -> None:
        if not self.asks:
            raise BadInput("a request names at least one device")


# --- fit ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Grant:
    """The piece of one device a container holds. `core` is its limit in the device's units.

    `takes` is what it consumes of the device's counters. `core` None means no limit: the grant
    either holds the whole device or did not ask for a share of its core.
    """

    device: str
    vendor: str
    takes: Counters
    core: int | None = None
    template: str | None = None
    part: str | None = None


@frozen(kw_only=True)
class Allocation:
    """All grants of one container, and how they are to be enforced."""

    grants: tuple[Grant, ...]
    policy: Policy = Policy.FIXED
    priority: Priority = Priority.LOW


@frozen(kw_only=True)
class Refusal:
    """No, with the reason for every device: `verdicts` maps a UUID to why it does not serve.

    `missing` is the whole sentence where no device is to blame: a device or vendor that was asked
    for and does not exist, a quota that is used up. `of` says what the verdicts are
    about; over thousands of nodes they are only counted: `counts` has how many gave which.
    """

    wanted: int
    verdicts: Mapping[str, str]
    missing: str | None = None
    of: str = "device"
    counts: Mapping[str, int] | None = None

    @property
    def sentence(self) -> str:
        """The one sentence every surface shows."""
        if self.missing:
            return self.missing
        counts = dict(self.counts or {})
        for verdict in self.verdicts.values():
            counts[verdict] = counts.get(verdict, 0) + 1
        total = sum(counts.values())
        reasons = ", ".join(
            f"{count} {reason}" for reason, count in sorted(counts.items()) if reason != FITS
        )
        fitting = counts.get(FITS, 0)
        need = "" if self.wanted == 1 else f" ({self.wanted} needed)"
        noun = self.of if total == 1 else f"{self.of}s"
        return f"{fitting} of {total} {noun} fit{'s' if fitting == 1 else ''}{need}" + (
            f": {reasons}" if reasons else ""
        )


#: The verdict of a device that would serve, in a refusal for want of a second one.
FITS = "fits"


@frozen
class Inventory:
    """The devices of a node and the allocations standing on them."""

    devices: tuple[Device, ...]
    standing: tuple[Allocation, ...] = ()

    def free(self) -> dict[str, dict[str, int]]:
        """Return what is left of each counter of each device, by UUID."""
        left = {device.uuid: dict(device.capacity) for device in self.devices}
        for allocation in self.standing:
            for grant in allocation.grants:
                counters = left.get(grant.device)
                if counters is None:
                    continue  # the card is gone; its grants end with their owners
                for name, amount in grant.takes.items():
                    counters[name] = counters.get(name, 0) - amount
        return left


# --- enforce and observe --------------------------------------------------------------------


@frozen
class Mount:
    """A host path made visible to a container, read-only unless said otherwise."""

    source: str
    target: str
    writable: bool = False


@frozen(kw_only=True)
class Edits:
    """What is added to a container or process (the nouns of the Container Device Interface).

    `cdi` names the vendor's own CDI devices. Where the machine has those, they bring the device
    nodes and the driver's `files`; elsewhere we do. Such a file is a library by the name programs
    open it by, or a program by its path.
    `parts` names, by device UUID, the slice that was made for the grant of that device.
    """

    env: Mapping[str, str] = field(factory=dict)
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(factory=dict)

    def merged(self, other: Edits) -> Edits:
        """Return both together; where they name the same variable, `other` has it."""
        return Edits(
            env={**self.env, **other.env},
            mounts=self.mounts + other.mounts,
            device_nodes=tuple(dict.fromkeys(self.device_nodes + other.device_nodes)),
            cdi=self.cdi + other.cdi,
            files=self.files + other.files,
            parts={**self.parts, **other.parts},
        )


@frozen(kw_only=True)
class Usage:
    """How busy a device is now: bytes in use, and busy share of its time from 0 to 1.

    `processes` are the bytes the driver itself counts for each process (by PID) that computes.
    """

    memory: int | None = None
    core: float | None = None
    processes: Mapping[int, int] | None = None
