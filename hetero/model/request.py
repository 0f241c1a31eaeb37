"""A request for devices, validated where it is made."""

from __future__ import annotations

from enum import Enum

from attrs import field

from hetero.model.device import Device
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.model.granularity import Counters
from hetero.model.json_keys import json_key


class Truth(Enum):
    """The words for yes and no that are accepted."""

    TRUE = "true"
    FALSE = "false"


class Policy(str, Enum):
    """What happens to the core time that a grant does not use."""

    FIXED = "fixed"  # held to the share of device time, whether the device is idle or not
    ELASTIC = "elastic"  # idle time is lent out and taken back
    OFF = "off"  # no limiter at all


def following(policy: Policy) -> str:
    """Return the counter of shares with a policy, on devices with `POLICY_SLOTS`."""
    return f"{policy.value} shares"


class OnExcess(str, Enum):
    """The reaction to memory that the driver counts for a grant and its limiter did not charge."""

    REPORT = "report"  # it is shown
    REFUSE = "refuse"  # it counts as the grant's: the next allocations fail
    KILL = "kill"  # the same, and beyond the limit the process that has most of it is ended


class OnBypass(str, Enum):
    """The reaction to a grant's program that uses memory or device time past its limiter."""

    REPORT = "report"  # it is shown
    KILL = "kill"  # it is ended


#: More counters of a device whose shares must all follow one policy: nobody gets a share of it by
#: a policy while shares by another stand. There is room for more than any device has slots.
POLICY_SLOTS: Counters = {following(policy): 1 << 16 for policy in Policy}


#: A row is a part of a period that is worth its beginning.
MOST_ROWS = 32

#: Bytes; what the grant file can say is twice as much.
_MOST_MEMORY_BYTES = 2**63


class Priority(str, Enum):
    """Which of two grants runs first when both want the device."""

    HIGH = "high"
    LOW = "low"


@frozen(kw_only=True)
class Ask:
    """The request for one device: no `memory` means all of it, no `core` means no core limit.

    `memory` is in bytes, `memory_percent` in percent of the card. `core` is in parts of the card,
    which has `core_of` of them: percent, unless a pod asks in a vendor's units. `device` is a
    position in the inventory or the start of a UUID. `shape` is a template of the card's menu by
    its name, whatever its size. `open`, where a grant is resized: its core limit is removed.
    `sm_percent` is in percent of a card's multiprocessors: its programs never use more of them, and
    no limiter limits their core. Only a device that programs share by a service can have that.
    """

    memory: int | None = None
    memory_percent: int | None = None
    core: int | None = None
    core_of: int = 100
    device: str | None = None
    shape: str | None = None
    open: bool = False
    sm_percent: int | None = field(default=None, metadata=json_key("sm"))

    def __attrs_post_init__(self) -> None:
        if self.memory is not None and self.memory_percent is not None:
            raise BadInput("memory is given in bytes and in percent: give one of them")
        if self.memory is not None and self.memory < 1:
            raise BadInput(f"memory {self.memory} is not a positive number of bytes")
        if self.memory is not None and self.memory >= _MOST_MEMORY_BYTES:
            raise BadInput("memory is more than any device has: write less than 8 EiB")
        if self.sm_percent is not None and self.core is not None:
            raise BadInput("core and sm are both given: sm is instead of a share of the time")
        if self.sm_percent is not None and not 1 <= self.sm_percent < 100:
            raise BadInput(
                f"sm {self.sm_percent} is out of range: it is 1 to 99 percent, all by default"
            )
        for noun, parts, most in (
            ("memory", self.memory_percent, 100),
            ("core", self.core, self.core_of),
        ):
            if parts is not None and not 1 <= parts <= most:
                unit = "percent" if most == 100 else "parts"
                raise BadInput(
                    f"{noun} {parts} is out of range: it is 1 to {most} {unit} of a card"
                )

    def core_units(self, card_units: int) -> int | None:
        """Return the core in units of which a card has so many, rounded up; None: no limit."""
        return None if self.core is None else -(-card_units * self.core // self.core_of)


@frozen
class Selector:
    """Names to include (none: all) and names to exclude; case does not matter."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def allows(self, tested_name: str, *, all_of_it: bool = False) -> bool:
        """Return whether a name is allowed: it contains an included one, or is it (`all_of_it`)."""

        def matches(name_part: str) -> bool:
            return (
                name_part.lower() == tested_name.lower()
                if all_of_it
                else name_part.lower() in tested_name.lower()
            )

        if any(matches(name_part) for name_part in self.exclude):
            return False
        return not self.include or any(matches(name_part) for name_part in self.include)


@frozen(kw_only=True)
class CoTenancy:
    """Limits who shares a device: only grants whose `key` value is in `compatible_with` do.

    `value` is the grant's own value of that key. A grant without the key shares with any.
    """

    key: str
    value: str
    compatible_with: tuple[str, ...]


@frozen(kw_only=True)
class Gang:
    """How the devices of one grant share their time, in place of the node's setting.

    `off`: each device on its own. `name` and row `row` of `rows`, counted from 1: the grant runs in
    that part of each period, together with all grants of that name, on any node.
    """

    name: str | None = None
    row: int | None = None
    rows: int | None = None
    off: bool = False

    def __attrs_post_init__(self) -> None:
        if self.off and self.row is not None:
            raise BadInput("a gang that is off has no row")
        if (self.row is None) != (self.rows is None) or (self.row is None) != (self.name is None):
            raise BadInput("a gang by hand has a name and a row: --gang NAME --row 1/2")
        if self.row is not None and self.rows is not None:
            if not 1 <= self.rows <= MOST_ROWS:
                raise BadInput(f"row {self.row}/{self.rows}: there are 1 to {MOST_ROWS} rows")
            if not 1 <= self.row <= self.rows:
                raise BadInput(
                    f"row {self.row}/{self.rows}: rows are counted from 1 to all of them"
                )


@frozen(kw_only=True)
class Request:
    """The request of one container: as many different physical devices as there are asks.

    `exclusive` takes each device whole whatever share is asked. `empty` takes only the share, but
    of a device that nobody holds (mutex). `numa` requires all devices on one NUMA node. `links`
    prefers the best-connected devices, and for a single device the worst-connected one, which
    leaves the others free. `on_excess` and `on_bypass` None: as the node's settings say. `strict`:
    functions of the driver that the limiter does not know are refused. `unpartitioned`: it has no
    parts of devices that are partitioned already; other requests may, also where these do not count
    as devices (`Templated.counted`). `least`: of a device that is given by its parts alone it has
    one part, the smallest with the memory and the core asked; without a size that is the largest.
    """

    asks: tuple[Ask, ...]
    exclusive: bool = False
    empty: bool = False
    numa: bool = False
    links: bool = False
    policy: Policy = Policy.FIXED
    priority: Priority = Priority.LOW
    vendor: Selector = Selector()
    model: Selector = Selector()  # parts of model names
    uuid: Selector = Selector()  # starts of UUIDs
    enforcement: Selector = Selector()
    co_tenancy: tuple[CoTenancy, ...] = ()
    on_excess: OnExcess | None = None
    on_bypass: OnBypass | None = None
    strict: bool = False
    gang: Gang | None = None
    unpartitioned: bool = False
    least: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.asks:
            raise BadInput("a request names at least one device")

    def chooses(self, device: Device) -> bool:
        """Return whether a device has the requested vendor, model and UUID, whatever its size."""
        return (
            self.vendor.allows(device.vendor, all_of_it=True)
            and self.model.allows(device.model)
            and self.uuid.allows(device.uuid)
            and self.enforcement.allows(device.enforcement.value, all_of_it=True)
        )
