"""One vendor at one look: what of it can be used, and why not the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve

from hetero.model import Device
from hetero.model.frozen import frozen


@frozen(kw_only=True)
class VendorRow:
    """One installed vendor as `hetero vendors` shows it.

    `state` is "ok", "partial" (some of its cards cannot be used), "stale" (it failed at this look;
    its cards are those of its last answer, and nothing is given of them), "absent" (its driver is
    not installed here), "untrusted" (its distribution is not on the node's list, so nothing of it
    was run) or "broken"; `reason` says why. `source` is the distribution and version it came from,
    `file` where its code is.
    """

    name: str
    source: str
    state: str
    reason: str | None = None
    devices: int = 0
    title: str | None = None
    file: str | None = None
    trusted: bool = True

    @property
    def works(self) -> bool:
        """Whether cards of this vendor can be given out."""
        return self.state in ("ok", "partial")


def addressable(
    row: VendorRow, devices: list[Device], faults: Iterable[str], count: Mapping[str, int]
) -> tuple[list[Device], VendorRow]:
    """Return a vendor's devices but for those whose UUID counts twice, and its row."""
    shared = sorted({device.uuid for device in devices if count[device.uuid] > 1})
    why = [*faults] + [
        f"{count[uuid]} cards have the UUID {uuid}: none of them can be addressed"
        for uuid in shared
    ]
    left = [device for device in devices if device.uuid not in shared]
    if row.state == "stale":
        return left, evolve(row, devices=len(left))
    state = "ok" if not why else "partial" if left else "broken"
    reason = f"{row.name}: discover: {'; '.join(why)}" if why else None
    return left, evolve(row, state=state, reason=reason, devices=len(left))
