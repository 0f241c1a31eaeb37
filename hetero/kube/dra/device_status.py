"""Writes the status of a claim's devices: which they are, how much is held, and their health. Pure.

Conditions are those of meta/v1: `Ready` since the devices were prepared, `Healthy` by their driver.
The agent owns the entries of its own driver in its own node's pool, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone

from hetero.kube.dra.claims import Prepared
from hetero.kube.dra.offers import DRIVER, Offer, amount_of
from hetero.kube.objects.kinds import Plain, ResourceClaim
from hetero.model import CORE, MEMORY, DeviceAllocation
from hetero.node.ledger.ledger import Grant

_KEYS = ("device", "shareID")
#: Characters of a condition's message, of which the API takes 32768.
_LONGEST_MESSAGE = 1024


def statuses(
    claim: ResourceClaim,
    prepared_claim: Prepared,
    offers: Mapping[str, Offer],
    grant: Grant | None,
    *,
    node_name: str,
    now: datetime | None = None,
) -> list[Plain]:
    """Return `status.devices` of a claim, as far as this node owns it.

    `grant` is the claim's grant, None where it has admin access. A condition that does not change
    keeps its time.
    """
    piece_by_device = {piece.device: piece for piece in grant.allocation.pieces} if grant else {}
    status_by_key = {_key(status): status for status in _own(claim, node_name)}
    now_text = (now or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%SZ")
    device_statuses: list[Plain] = []
    for result in prepared_claim.results:
        offer = offers[result.device]
        status: Plain = {"driver": DRIVER, "pool": node_name, "device": result.device}
        if result.share is not None:
            status["shareID"] = result.share
        status["data"] = _data(offer, grant, piece_by_device)
        condition_by_type = {
            condition["type"]: condition
            for condition in status_by_key.get(_key(status), {}).get("conditions") or ()
        }
        fault = next((device.health for device in offer.devices if not device.healthy), None)
        status["conditions"] = [
            _condition("Ready", "Prepared", condition_by_type, now_text),
            _condition(
                "Healthy",
                "Unhealthy" if fault else "Healthy",
                condition_by_type,
                now_text,
                fault=fault,
            ),
        ]
        device_statuses.append(status)
    return device_statuses


def differ(claim: ResourceClaim, device_statuses: list[Plain], *, node_name: str) -> bool:
    """Return whether a claim's status differs for this node's devices."""
    return sorted(_own(claim, node_name), key=_key) != sorted(device_statuses, key=_key)


def _own(claim: ResourceClaim, node_name: str) -> list[Plain]:
    own_driver_and_pool = (DRIVER, node_name)
    return [
        status
        for status in claim.status.devices
        if (status["driver"], status["pool"]) == own_driver_and_pool
    ]


def _key(status: Plain) -> tuple[str, ...]:
    return tuple(status.get(key_name) or "" for key_name in _KEYS)


def _data(
    offer: Offer, grant: Grant | None, piece_by_device: Mapping[str, DeviceAllocation]
) -> Plain:
    """Return which devices these are, and what the claim's grant may use of them."""
    first_device = offer.devices[0]
    data: Plain = {
        "vendor": first_device.vendor,
        "model": first_device.model,
        "uuids": [device.uuid for device in offer.devices],
        "enforcement": first_device.enforcement.value,
    }
    own_pieces = [
        piece_by_device[device.uuid] for device in offer.devices if device.uuid in piece_by_device
    ]
    if grant is not None and own_pieces:
        data["grant"] = grant.id
        data["memory"] = amount_of(MEMORY, sum(piece.takes[MEMORY] for piece in own_pieces))
        data["cores"] = sum(piece.takes[CORE] for piece in own_pieces)
    return data


def _condition(
    condition_type: str,
    reason: str,
    condition_by_type: Mapping[str, Plain],
    now_text: str,
    *,
    fault: str | None = None,
) -> Plain:
    """Return a condition; one that does not change keeps its time."""
    condition_status, condition_before = (
        "False" if fault else "True",
        condition_by_type.get(condition_type, {}),
    )
    return {
        "type": condition_type,
        "status": condition_status,
        "reason": reason,
        "message": (fault or "")[:_LONGEST_MESSAGE],
        "lastTransitionTime": condition_before["lastTransitionTime"]
        if condition_before.get("status") == condition_status
        else now_text,
    }
