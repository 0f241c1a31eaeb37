"""What keeps a grant to its piece of a device, which the device alone does not say."""

from __future__ import annotations

from hetero.model import Device, DeviceAllocation, Enforcement, Policy, Templated
from hetero.node.ledger.ledger import Grant


def enforcement_of(
    grant: Grant, piece: DeviceAllocation, device: Device | None
) -> Enforcement | None:
    """Return how a grant is kept to its piece of a device; None: of a device that is not known."""
    if device is None:
        return None
    if grant.allocation.policy is Policy.OFF and device.enforcement.by_limiter:
        return Enforcement.NONE  # no limiter was loaded
    is_cut = device.enforcement is Enforcement.PARTITION and not piece.is_whole(device)
    if is_cut and not grant.is_contained and not _has_standing_parts(device):
        return Enforcement.VARIABLE
    return device.enforcement


def _has_standing_parts(device: Device) -> bool:
    """Whether it is partitioned as it is, so that no program gets more than a part."""
    match device.granularity:
        case Templated(menu=menu):
            return any(template.part for template in menu)
        case _:
            return False
