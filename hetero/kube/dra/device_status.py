"""What the status of a claim says of its devices: which they are, how much is held, how they are.

Pure. Conditions are those of meta/v1: `Ready` since the devices were prepared, `Healthy` as their
driver says. The agent owns the entries of its own driver in its own node's pool, and no others.
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
_TEXT = 1024


def statuses(
    claim: ResourceClaim,
    held: Prepared,
    offers: Mapping[str, Offer],
    entry: Grant | None,
    *,
    node: str,
    now: datetime | None = None,
) -> list[Plain]:
    """Return `status.devices` of a claim as far as it is this node's to say.

    `entry` is the claim's grant, None where it has admin access. What is so already keeps the time
    at which it came to be.
    """
    pieces = {piece.device: piece for piece in entry.allocation.pieces} if entry else {}
    had = {_key(one): one for one in _own(claim, node)}
    at = (now or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%SZ")
    made: list[Plain] = []
    for result in held.results:
        offer = offers[result.device]
        status: Plain = {"driver": DRIVER, "pool": node, "device": result.device}
        if result.share is not None:
            status["shareID"] = result.share
        status["data"] = _data(offer, entry, pieces)
        before = {one["type"]: one for one in had.get(_key(status), {}).get("conditions") or ()}
        wrong = next((one.health for one in offer.devices if not one.usable), None)
        status["conditions"] = [
            _condition("Ready", "Prepared", before, at),
            _condition("Healthy", "Unhealthy" if wrong else "Healthy", before, at, wrong=wrong),
        ]
        made.append(status)
    return made


def differ(claim: ResourceClaim, device_statuses: list[Plain], *, node: str) -> bool:
    """Return whether a claim's status says anything else of this node's devices."""
    return sorted(_own(claim, node), key=_key) != sorted(device_statuses, key=_key)


def _own(claim: ResourceClaim, node: str) -> list[Plain]:
    own = (DRIVER, node)
    return [one for one in claim.status.devices if (one["driver"], one["pool"]) == own]


def _key(status: Plain) -> tuple[str, ...]:
    return tuple(status.get(name) or "" for name in _KEYS)


def _data(offer: Offer, entry: Grant | None, pieces: Mapping[str, DeviceAllocation]) -> Plain:
    """Return which devices these are, and what the claim's grant may use of them."""
    first = offer.devices[0]
    made: Plain = {
        "vendor": first.vendor,
        "model": first.model,
        "uuids": [one.uuid for one in offer.devices],
        "enforcement": first.enforcement.value,
    }
    own_pieces = [pieces[one.uuid] for one in offer.devices if one.uuid in pieces]
    if entry is not None and own_pieces:
        made["grant"] = entry.id
        made["memory"] = amount_of(MEMORY, sum(one.takes[MEMORY] for one in own_pieces))
        made["cores"] = sum(one.takes[CORE] for one in own_pieces)
    return made


def _condition(
    kind: str, reason: str, before: Mapping[str, Plain], at: str, *, wrong: str | None = None
) -> Plain:
    """Return a condition; one that was so before keeps its time."""
    status, had = "False" if wrong else "True", before.get(kind, {})
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": (wrong or "")[:_TEXT],
        "lastTransitionTime": had["lastTransitionTime"] if had.get("status") == status else at,
    }
