"""Cordons a card of this machine, takes that back, and clears a fault that is noted of one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hetero.model import Device
from hetero.model.errors import BadInput, NotFound, Refused
from hetero.model.frozen import frozen
from hetero.node.card_book import CardBook, expect_reason
from hetero.node.card_notes import standing_faults
from hetero.node.node import Node
from hetero.placement.match import named


@frozen(kw_only=True)
class CordonResult:
    """A card after a change, by its number in the inventory; `node` is None on this machine.

    `holders` are the ids of the grants on it, in a cluster the names of the containers. `notes` say
    which other cordons of the node mean no card. `private_state` is the user's own ledger, which
    alone knows of the change; None where it is the machine's.
    """

    device_number: int
    device: Device
    holders: tuple[str, ...]
    node: str | None = None
    notes: tuple[str, ...] = ()
    private_state: str | None = None


@frozen(kw_only=True)
class CardFault:
    """A card of which a fault is noted since a time (UTC), by its number in the inventory."""

    device_number: int
    device: Device
    since_utc: str


def card_named(
    devices: Sequence[Device],
    card_name: str,
    *,
    numbers: Sequence[int] | None = None,
    place: str = "here",
) -> int:
    """Return the number of the one card that a name means, as `named` reads both.

    Raises `NotFound` where there is none, `BadInput` where there are several.
    """
    matching_devices = named(devices, card_name, numbers)
    if not matching_devices:
        raise NotFound(
            f"no card {card_name!r} {place}: name one as vendor:index, by its UUID, or by "
            "its number"
        )
    if len(matching_devices) > 1:
        uuids = ", ".join(device.uuid for device in matching_devices)
        raise BadInput(f"card {card_name!r} may be any of {uuids}: write more of the UUID")
    position = devices.index(matching_devices[0])
    return position if numbers is None else numbers[position]


def cordon(node: Node, card_name: str, *, reason: str) -> CordonResult:
    """Give nothing new of a card from now on. Raises `HeteroError`."""
    book, reason_line = _book(node), expect_reason(reason)
    devices = node.discover().devices
    number = card_named(devices, card_name)
    book.cordon(devices[number].uuid, reason_line)
    return _result(node, number)


def uncordon(node: Node, card_name: str) -> CordonResult:
    """Give of a card again. Raises `Refused` where no cordon of this node keeps it."""
    book, devices = _book(node), node.discover().devices
    number = card_named(devices, card_name)
    device, notes = devices[number], book.read()
    if device.uuid in notes.cluster_cordons:
        raise Refused(
            f"{device.name} is cordoned by an annotation of its Kubernetes node: "
            f"hetero uncordon NODE {number}, with the cluster's KUBECONFIG"
        )
    if device.excluded:
        raise Refused(f"{device.name} is {device.cordon}: change them")
    reason = node.held_back(device, node.snapshot())
    if reason and device.uuid not in notes.cordons:
        raise Refused(f"{device.name} waits for older grants: {reason}")
    book.uncordon(device.uuid)
    return _result(node, number)


def noted_faults(node: Node) -> tuple[CardFault, ...]:
    """Return the cards of which a fault is noted."""
    faults = standing_faults(node.cards.read()) if node.cards else {}
    return tuple(
        CardFault(device_number=number, device=device, since_utc=faults[device.uuid].since_utc)
        for number, device in enumerate(node.discover().devices)
        if device.uuid in faults
    )


def clear_fault(node: Node, card_name: str) -> CordonResult:
    """Forget the fault that is noted of a card. Raises `Refused` where its driver says it now."""
    book, devices = _book(node), node.discover().devices
    number = card_named(devices, card_name)
    device = devices[number]
    if not device.healthy and device.uuid not in standing_faults(book.read()):
        raise Refused(f"{device.name}: its driver says so now: {device.health}")
    book.clear_fault(device.uuid)
    return _result(node, number)


def _book(node: Node) -> CardBook:
    """Return the book that this user may change. Raises `BadInput` or `Refused`."""
    sentence = "the cards of this machine are for all its users: only root does that, as with sudo"
    if node.daemon is not None:
        raise Refused(sentence)
    if os.geteuid() != 0 and not _private_state(node) and node.simulation is None:
        raise BadInput(f"{sentence}; a ledger in $HETERO_STATE has cordons of its own")
    assert node.cards is not None  # noqa: S101 - `Node.here` has one
    return node.cards


def _private_state(node: Node) -> str | None:
    """Return the directory that the user's own ledger is in, None if it is the machine's."""
    return (node.environ.get("HETERO_STATE") or None) if os.geteuid() != 0 else None


def _result(node: Node, device_number: int) -> CordonResult:
    device = node.discover().devices[device_number]
    return CordonResult(
        device_number=device_number,
        device=device,
        holders=tuple(
            grant.id
            for grant in node.snapshot().grants
            if any(piece.device == device.uuid for piece in grant.allocation.pieces)
        ),
        private_state=_private_state(node),
    )
