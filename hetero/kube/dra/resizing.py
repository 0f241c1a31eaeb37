"""Resizes the share of a claim in use: as its annotation says, and never above what it consumes.

kube-scheduler counts what the claim consumes, whatever its size is meanwhile: so a claim that was
lowered can always have its own back.
"""

from __future__ import annotations

from hetero.kube.api.client import Plain
from hetero.kube.api.quantity import bytes_of, quantity
from hetero.model import CORE, MEMORY, Allocation, Ask, Device, DeviceAllocation
from hetero.model.errors import BadInput, Refused
from hetero.model.rounding import cut
from hetero.model.units import format_both
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node, devices_of
from hetero.node.resize import resize
from hetero.plugin.registry import Discovery

#: What a claim's annotation says: `memory=2Gi,cores=20`; what it leaves out is as consumed.
RESIZE = "hetero.io/resize"
_WORDS = ("memory", "cores")


def resize_claim(
    node: Node, entry: Grant, claim: Plain, consumed: Allocation, discovery: Discovery
) -> bool:
    """Bring a claim's grant to the size that the claim says; return whether that changed it.

    `consumed` is what the claim was allocated. Raises `BadInput` or `Refused` with the reason.
    """
    text = (claim["metadata"].get("annotations") or {}).get(RESIZE, "")
    (held, *others), (piece, *_) = entry.allocation.pieces, consumed.pieces
    if others or piece.template is not None or piece.part is not None:
        if text:
            raise BadInput(f"{RESIZE}: only a share of one device is resized")
        return False
    device = devices_of(discovery).get(piece.device)
    if device is None:
        return False
    ask = _ask(_said(text), piece, device)
    core = piece.core if ask.core is None else -(-device.of_card(CORE) * ask.core // 100)
    made = cut(device, memory=ask.memory or 0, core=core, count=1, free={})
    if made is None or (made.takes[MEMORY], made.core) == (held.takes[MEMORY], held.core):
        return False
    resize(node, entry.id, ask)
    return True


def _said(text: str) -> dict[str, str]:
    """Return what an annotation says. Raises `BadInput`."""
    said = dict(part.strip().partition("=")[::2] for part in text.split(",") if part.strip())
    for word, amount in said.items():
        if word not in _WORDS or not amount:
            raise BadInput(f"{RESIZE} {text!r}: write memory=2Gi,cores=20, or one of them")
    return said


def _ask(said: dict[str, str], piece: DeviceAllocation, device: Device) -> Ask:
    """Return the size that is meant. Raises `Refused` where it is more than the claim consumes."""
    memory = bytes_of(said, "memory", 1) or piece.takes[MEMORY]
    cores = quantity(said, "cores")
    if memory > piece.takes[MEMORY]:
        asked, most = format_both(memory, piece.takes[MEMORY])
        raise Refused(f"{RESIZE}: {asked} of memory is more than the claim consumes, {most}")
    if cores is None:
        cores = piece.core
    elif cores > piece.takes[CORE]:
        raise Refused(
            f"{RESIZE}: {cores} cores are more than the claim consumes, {piece.takes[CORE]}"
        )
    percent = None if cores is None else max(cores * 100 // device.of_card(CORE), 1)
    return Ask(memory=memory, core=percent)
