"""The answers to a request: what is given of which devices, or why nothing is."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.model.device import Device
from hetero.model.frozen import frozen
from hetero.model.granularity import Counters
from hetero.model.request import Policy, Priority


@frozen(kw_only=True)
class DeviceAllocation:
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

    def is_whole(self, device: Device) -> bool:
        """Whether it holds all of the device, so that nothing is to be cut from it."""
        return all(self.takes.get(name, 0) >= of for name, of in device.capacity.items())


@frozen(kw_only=True)
class Allocation:
    """The pieces of all devices of one container, and how they are to be enforced."""

    pieces: tuple[DeviceAllocation, ...]
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
            for piece in allocation.pieces:
                counters = left.get(piece.device)
                if counters is None:
                    continue  # the card is gone; its grants end with their owners
                for name, amount in piece.takes.items():
                    counters[name] = counters.get(name, 0) - amount
        return left
