"""Resizes the share of a claim in use: as its annotation says, and never above what it consumes.

kube-scheduler counts what the claim consumes, whatever its size is: so a claim that was lowered can
grow back, but for a card that is cordoned or sick meanwhile, of which nothing more is given.
"""

from __future__ import annotations

from attrs import evolve

from hetero.kube.objects.kinds import ResourceClaim
from hetero.kube.words.quantity import bytes_of, quantity
from hetero.model import CORE, MEMORY, Allocation, Device, DeviceAllocation, Fractional
from hetero.model.errors import BadInput, Refused
from hetero.model.rounding import round_up
from hetero.model.units import format_both
from hetero.node.inventory import devices_of
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node
from hetero.node.resize import resize_to
from hetero.registry.registry import Discovery

#: What a claim's annotation says: `memory=2Gi,cores=20`; what it leaves out is as consumed.
RESIZE = "hetero.io/resize"
_WORDS = ("memory", "cores")


def resize_claim(
    node: Node,
    grant: Grant,
    claim: ResourceClaim,
    consumed_allocation: Allocation,
    discovery: Discovery,
) -> bool:
    """Resize a claim's grant as the claim says; return whether that changed it.

    `consumed_allocation` is what the claim was allocated. Raises `BadInput` or `Refused` with the
    reason.
    """
    wanted_sizes = claim.metadata.annotations.get(RESIZE, "")
    (held_piece, *other_pieces), (consumed_piece, *_) = (
        grant.allocation.pieces,
        consumed_allocation.pieces,
    )
    device = devices_of(discovery).get(consumed_piece.device)
    if other_pieces or consumed_piece.template is not None or consumed_piece.part is not None:
        if wanted_sizes:
            raise BadInput(f"{RESIZE}: only a share of one device is resized")
        return False
    if device is None or not isinstance(device.granularity, Fractional):
        return False
    goal = _goal(_said(wanted_sizes), consumed_piece, device, device.granularity)
    if (goal.takes, goal.core) == (held_piece.takes, held_piece.core):
        return False
    resize_to(node, grant.id, goal)
    return True


def _said(sizes_text: str) -> dict[str, str]:
    """Return what an annotation says. Raises `BadInput`."""
    amount_by_word = dict(
        part.strip().partition("=")[::2] for part in sizes_text.split(",") if part.strip()
    )
    for capacity, amount in amount_by_word.items():
        if capacity not in _WORDS or not amount:
            raise BadInput(f"{RESIZE} {sizes_text!r}: write memory=2Gi,cores=20, or one of them")
    return amount_by_word


def _goal(
    amount_by_word: dict[str, str], piece: DeviceAllocation, device: Device, granularity: Fractional
) -> DeviceAllocation:
    """Return the size that is asked. Raises `Refused` where it is more than the claim consumes."""
    amount_by_counter = {MEMORY: piece.takes[MEMORY], CORE: piece.takes[CORE]}
    memory_bytes, cores = bytes_of(amount_by_word, "memory", 1), quantity(amount_by_word, "cores")
    if memory_bytes is not None and memory_bytes > amount_by_counter[MEMORY]:
        asked_text, most_text = format_both(memory_bytes, amount_by_counter[MEMORY])
        raise Refused(
            f"{RESIZE}: {asked_text} of memory is more than the claim consumes, {most_text}"
        )
    if cores is not None and cores > amount_by_counter[CORE]:
        raise Refused(
            f"{RESIZE}: {cores} cores are more than the claim consumes, {amount_by_counter[CORE]}"
        )
    if 0 in (memory_bytes, cores):
        raise BadInput(f"{RESIZE}: 0 is no size: leave out what is to be as the claim consumes it")
    if memory_bytes is not None:
        amount_by_counter[MEMORY] = min(
            round_up(memory_bytes, granularity.memory) or amount_by_counter[MEMORY],
            amount_by_counter[MEMORY],
        )
    if cores is None:
        return evolve(piece, takes={**piece.takes, **amount_by_counter})
    amount_by_counter[CORE] = min(
        round_up(cores, granularity.core) or amount_by_counter[CORE], amount_by_counter[CORE]
    )
    core_units = amount_by_counter[CORE] if amount_by_counter[CORE] < device.of_card(CORE) else None
    return evolve(piece, takes={**piece.takes, **amount_by_counter}, core=core_units)
