"""The answers to a request: what is given of which devices, or why nothing is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import field

from hetero.model.device import Device
from hetero.model.frozen import frozen
from hetero.model.granularity import CORE, MEMORY, Counters
from hetero.model.request import Gang, OnBypass, OnExcess, Policy, Priority
from hetero.model.units import format_memories, format_memory


@frozen(kw_only=True)
class DeviceAllocation:
    """The piece of one device a container holds. `core` is its limit in the device's units.

    `takes` is what it consumes of the device's counters. `core` None means no limit: the grant
    either holds the whole device or did not ask for a share of its core. `sm` is the percent of the
    device's multiprocessors that its programs may use, in place of such a limit.
    """

    device: str
    vendor: str
    takes: Counters
    core: int | None = None
    template: str | None = None
    part: str | None = None
    sm: int | None = None

    def is_whole(self, device: Device) -> bool:
        """Whether it holds all of the device, so that nothing is to be cut from it."""
        return all(
            self.takes.get(counter, 0) >= total for counter, total in device.capacity.items()
        )


@frozen(kw_only=True)
class Allocation:
    """The pieces of all devices of one container, and how they are to be enforced.

    `on_excess`, `on_bypass` and `context` None: as the node's settings say. `strict`: what the
    driver offers and the limiter does not know is not to be had. `context`: the driver's own memory
    for its programs counts against it. `gang`: how it has several devices; None: as the node says.
    """

    pieces: tuple[DeviceAllocation, ...]
    policy: Policy = Policy.FIXED
    priority: Priority = Priority.LOW
    on_excess: OnExcess | None = None
    on_bypass: OnBypass | None = None
    strict: bool = False
    context: bool | None = None
    gang: Gang | None = None

    @property
    def vendors(self) -> frozenset[str]:
        """The vendors of its devices."""
        return frozenset(piece.vendor for piece in self.pieces)


#: What a device or a node says that would serve, in a refusal for want of more of them; that is
#: not what was asked for; that has nothing to ask.
FITS, NOT_CHOSEN, NO_DEVICE = "fits", "not chosen", "have no device"
#: What is short of a node that would serve but for the number of its devices.
DEVICES = "devices"
#: Reasons that say nothing of what there is: they come last.
_LEAST_TELLING = (NOT_CHOSEN, NO_DEVICE)


@frozen(kw_only=True)
class Shortage:
    """How much of a counter was asked of one device, `free` of it there, and `of` how much.

    Over several devices it is the one that comes nearest. Amounts are as in a device's capacity.
    """

    counter: str
    asked: int
    free: int
    of: int

    @property
    def largest(self) -> str:
        """What a sentence over several devices or nodes says: `24 GiB wanted, largest free 6`."""
        if self.counter == CORE:
            asked_percent, free_percent, unit = (
                -(-self.asked * 100 // self.of),
                self.free * 100 // self.of,
                " %",
            )
            return f"{asked_percent}{unit} wanted, largest free {free_percent}"
        if self.counter == DEVICES:
            return f"{self.asked} wanted, most on a node {self.free}"
        if self.counter != MEMORY:
            return f"{self.asked} wanted, largest free {self.free}"
        asked_text, free_text = format_memories(self.asked, self.free)
        noun = "largest" if self.free == self.of else "largest free"
        return f"{asked_text} wanted, {noun} {free_text}"

    @property
    def on_device(self) -> str:
        """What a sentence about this one device says: `20 of 100 core free, 50 asked`."""
        if self.counter != MEMORY:
            return f"{self.free} of {self.of} {self.counter} free, {self.asked} asked"
        total_text, free_number = format_memories(self.of, self.free)
        if self.free == self.of:  # not more of it than is free, by rounding
            total_text = f"{free_number} {total_text.split()[1]}"
        return f"{free_number} of {total_text} memory free, {format_memory(self.asked)} asked"

    def nearer(self, other_shortage: Shortage | None) -> Shortage:
        """Return that of the two which lacks the smaller part of what was asked."""
        if (
            other_shortage is None
            or self.free * other_shortage.asked >= other_shortage.free * self.asked
        ):
            return self
        return other_shortage


@frozen(kw_only=True)
class Refusal:
    """No, with the reason for every device: `verdicts` maps a UUID to why it does not serve.

    `missing` is the whole sentence where no device is to blame: a device or vendor that was asked
    for and does not exist, a quota that is used up. `of` says what the verdicts are
    about; over thousands of nodes they are only counted: `counts` has how many gave which.
    `shortages` has the numbers of those verdicts that have any. Where enough devices fit but not
    together, `group` says what they must have in common (`vendor`), and `fitting` how many fit of
    each.
    """

    wanted: int
    verdicts: Mapping[str, str]
    missing: str | None = None
    of: str = "device"
    counts: Mapping[str, int] | None = None
    shortages: Mapping[str, Shortage] = field(factory=dict)
    group: str | None = None
    fitting: Mapping[str, int] = field(factory=dict)

    @property
    def sentence(self) -> str:
        """The one sentence every surface shows."""
        if self.missing:
            return self.missing
        if self.group:
            most_fitting = max(self.fitting.values(), default=0)
            best_names = ", ".join(
                group_name for group_name, count in self.fitting.items() if count == most_fitting
            )
            most_text = f"{most_fitting} ({best_names})"
            return f"{self.wanted} {self.of}s of one {self.group} needed; most here: {most_text}"
        count_by_reason = Counter(self.counts or {})
        count_by_reason.update(self.verdicts.values())
        device_count, fitting_count = count_by_reason.total(), count_by_reason.pop(FITS, 0)
        ranked_reasons = sorted(
            count_by_reason.items(),
            key=lambda reason_and_count: (
                reason_and_count[0] in _LEAST_TELLING,
                -reason_and_count[1],
                reason_and_count[0],
            ),
        )
        reasons = ", ".join(
            f"{count} {self._with_numbers(reason)}" for reason, count in ranked_reasons
        )
        noun = self.of if device_count == 1 else f"{self.of}s"
        if self.wanted > 1:
            noun += f" fit{'s' if fitting_count == 1 else ''} ({self.wanted} needed)"
        return f"{fitting_count} of {device_count} {noun}" + (f": {reasons}" if reasons else "")

    def _with_numbers(self, reason: str) -> str:
        shortage = self.shortages.get(reason)
        return reason if shortage is None else f"{reason} ({shortage.largest})"


@frozen
class Inventory:
    """The devices of a node and the allocations standing on them."""

    devices: tuple[Device, ...]
    standing: tuple[Allocation, ...] = ()

    def free(self) -> dict[str, dict[str, int]]:
        """Return what is left of each counter of each device, by UUID."""
        free_by_uuid = {device.uuid: dict(device.capacity) for device in self.devices}
        for allocation in self.standing:
            for piece in allocation.pieces:
                free_counters = free_by_uuid.get(piece.device)
                if free_counters is None:
                    continue  # the card is gone; its grants end with their owners
                for counter, amount in piece.takes.items():
                    free_counters[counter] = free_counters.get(counter, 0) - amount
        return free_by_uuid
