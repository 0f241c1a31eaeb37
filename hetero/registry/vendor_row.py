"""One vendor at one discovery: which of its cards can be used, and why not the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import evolve

from hetero.model import Device
from hetero.model.frozen import frozen

#: Faults of a vendor's cards that are told one by one.
_MOST_TOLD_FAULTS = 3


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
    row: VendorRow, devices: list[Device], faults: Iterable[str], count_by_uuid: Mapping[str, int]
) -> tuple[list[Device], VendorRow]:
    """Return a vendor's devices without those whose UUID occurs twice, and its row."""
    shared_uuids = sorted({device.uuid for device in devices if count_by_uuid[device.uuid] > 1})
    reasons = [*faults] + [
        f"{count_by_uuid[uuid]} cards have the UUID {uuid}: none of them can be addressed"
        for uuid in shared_uuids
    ]
    unique_devices = [device for device in devices if device.uuid not in shared_uuids]
    if row.state == "stale":
        return unique_devices, evolve(row, devices=len(unique_devices))
    if len(reasons) > _MOST_TOLD_FAULTS + 1:
        reasons[_MOST_TOLD_FAULTS:] = [f"and {len(reasons) - _MOST_TOLD_FAULTS} more like these"]
    state = "ok" if not reasons else "partial" if unique_devices else "broken"
    reason = f"{row.name}: discover: {'; '.join(reasons)}" if reasons else None
    return unique_devices, evolve(row, state=state, reason=reason, devices=len(unique_devices))
