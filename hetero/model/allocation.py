"""The results of a request: the allocated pieces of devices, or the refusal with its reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import field

from hetero.model.device import Device
from hetero.model.frozen import frozen
from hetero.model.granularity import CORE, MEMORY, Counters
from hetero.model.json_keys import json_key
from hetero.model.request import Gang, OnBypass, OnExcess, Policy, Priority
from hetero.model.units import format_memories, format_memory, format_percent


@frozen(kw_only=True)
class DeviceAllocation:
    """The piece of one device that a container holds. `core` is its limit in the device's units.

    `takes` is what it takes of each of the device's counters. `core` None means no limit: the grant
    holds the whole device, or asked for no share of its core. `sm_percent` is the percent of the
    device's multiprocessors that its programs may use, in place of such a limit.
    """

    device: str
    vendor: str
    takes: Counters
    core: int | None = None
    template: str | None = None
    part: str | None = None
    sm_percent: int | None = field(default=None, metadata=json_key("sm"))

    def is_whole(self, device: Device) -> bool:
        """Return whether it takes all of the device, so that no slice is cut."""
        return all(
            self.takes.get(counter, 0) >= total for counter, total in device.capacity.items()
        )

    def core_percent(self, device: Device) -> float | None:
        """Its share of the core, in percent of the card; None where nothing says how much it is.

        That is its limit, or what its template or the whole device has.
        """
        if self.sm_percent is not None:
            return None
        is_limited = self.template is None and self.core is not None
        core_units = self.core if is_limited else self.takes.get(CORE)
        return 100 * core_units / device.of_card(CORE) if core_units else None


@frozen(kw_only=True)
class Allocation:
    """The pieces of all devices of one container, and how its limits are enforced.

    `on_excess`, `on_bypass` and `context` None: as the node's settings say. `strict`: functions of
    the driver that the limiter does not know are refused. `context`: the driver's own memory for
    its programs counts against the limit. `gang`: how its devices share their time; None: as the
    node's settings say. `notes` are sentences about devices that are given whole, or exclusively,
    for a part.
    """

    pieces: tuple[DeviceAllocation, ...]
    policy: Policy = Policy.FIXED
    priority: Priority = Priority.LOW
    on_excess: OnExcess | None = None
    on_bypass: OnBypass | None = None
    strict: bool = False
    context: bool | None = None
    gang: Gang | None = None
    notes: tuple[str, ...] = ()

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
    """One counter that a device lacks: the amounts that were asked and `free`, `of` its capacity.

    Of several devices it is that of the device that comes nearest. Amounts are in the units of a
    device's capacity; `of` core are those of the card itself. `in_part`: the device is given by its
    parts alone, `free` is what the largest has, free or not, and core may be in finer units.
    """

    counter: str
    asked: int
    free: int
    of: int
    in_part: bool = field(default=False, metadata=json_key("part"))

    @property
    def largest(self) -> str:
        """The part of a sentence about several devices: `24 GiB wanted, largest free 6`."""
        if self.counter == CORE:
            asked_percent, free_percent, unit = (
                -(-self.asked * 100 // self.of),
                self.free * 100 // self.of,
                " %",
            )
            return f"{asked_percent}{unit} wanted, {self._noun} {free_percent}"
        if self.counter == DEVICES:
            return f"{self.asked} wanted, most on a node {self.free}"
        if self.counter != MEMORY:
            return f"{self.asked} wanted, largest free {self.free}"
        asked_text, free_text = format_memories(self.asked, self.free)
        return f"{asked_text} wanted, {self._noun} {free_text}"

    @property
    def _noun(self) -> str:
        if self.in_part:
            return "largest part"
        return "largest" if self.counter == MEMORY and self.free == self.of else "largest free"

    @property
    def on_device(self) -> str:
        """The part of a sentence about this device: `20 % of the core free, 50 % asked`."""
        if self.counter == CORE:
            asked_text, free_text = (
                format_percent(100 * amount / self.of) for amount in (self.asked, self.free)
            )
            if self.in_part:
                return f"its largest part has {free_text} of the core, {asked_text} asked"
            return f"{free_text} of the core free, {asked_text} asked"
        if self.counter != MEMORY:
            return f"{self.free} of {self.of} {self.counter} free, {self.asked} asked"
        if self.in_part:
            return (
                f"its largest part has {format_memory(self.free)} memory, "
                f"{format_memory(self.asked)} asked"
            )
        total_text, free_number = format_memories(self.of, self.free)
        if self.free == self.of:  # not more of it than is free, by rounding
            total_text = f"{free_number} {total_text.split()[1]}"
        return f"{free_number} of {total_text} memory free, {format_memory(self.asked)} asked"

    def nearer(self, other_shortage: Shortage | None) -> Shortage:
        """Return the one of the two that lacks the smaller part of what was asked."""
        if (
            other_shortage is None
            or self.free * other_shortage.asked >= other_shortage.free * self.asked
        ):
            return self
        return other_shortage


@frozen(kw_only=True)
class Refusal:
    """Why nothing is allocated: `verdicts` has the reason of each device, by UUID.

    `missing` is the whole sentence where no device is the reason: a device or vendor that was asked
    for does not exist, or a quota is used up. `of` is what the verdicts are about. Verdicts of
    thousands of nodes are only counted: `counts` has the number of each. `shortages` has the
    amounts of the verdicts that have any. Where enough devices fit but not together, `group` is
    what they must have in common (`vendor`), and `fitting` how many fit of each group. `crowded` is
    the whole sentence where only programs without a grant stand in the way.
    """

    wanted: int
    verdicts: Mapping[str, str]
    missing: str | None = None
    of: str = "device"
    counts: Mapping[str, int] | None = None
    shortages: Mapping[str, Shortage] = field(factory=dict)
    group: str | None = None
    fitting: Mapping[str, int] = field(factory=dict)
    crowded: str | None = None

    @property
    def sentence(self) -> str:
        """The sentence that the command line, a pod's event and the tests show."""
        if self.crowded:
            return self.crowded
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
