"""The transaction that makes a grant: added to the ledger, confined by vendors, committed.

    grant = new_grant(node, allocation, discovery, command=…)
    with node.ledger.admission() as snapshot:
        handle = node.ledger.add(grant, snapshot.grants)
    draft = GrantDraft(node, discovery, handle)
    with draft.confined() as edits:
        …  # write down draft.committed(edits.parts) in the ledger

After any error, in the block too, neither the grant nor what was cut for it is left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any

from attrs import evolve

from hetero.model import Allocation, Device, Edits, Whole
from hetero.model.errors import HeteroError
from hetero.node.confinement import enforce, persisting, reconcile, serve, slices_held
from hetero.node.context_sizes import expect_room
from hetero.node.inventory import devices_of, numbers_of, served
from hetero.node.ledger.ledger import Grant, GrantHandle
from hetero.node.node import Node
from hetero.node.quota import User
from hetero.registry.registry import Discovery


def new_grant(
    node: Node,
    allocation: Allocation,
    discovery: Discovery,
    *,
    command: tuple[str, ...] = (),
    label: str | None = None,
    asker: User | None = None,
) -> Grant:
    """Return the entry of a grant to be added; its user is `asker`, or who runs this process.

    Raises `BadInput` where no program could make a context within it.
    """
    devices = devices_of(discovery)
    limits = node.limits_of(allocation, devices)
    expect_room(limits)
    return Grant(
        id="",
        allocation=allocation,
        limits=limits,
        command=command,
        user=asker.name if asker else User.of(os.getuid()).name,
        uid=asker.uid if asker else None,
        since_utc=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        label=label,
        device_numbers=numbers_of(allocation, discovery),
        devices=tuple(_description(devices[piece.device]) for piece in allocation.pieces),
        soft=node.softly(allocation),
        served=served(allocation, devices),
    )


def _description(device: Device) -> Device:
    """Return what views show of a device that is lost later."""
    return Device(
        uuid=device.uuid,
        vendor=device.vendor,
        model=device.model,
        index=device.index,
        capacity=device.capacity,
        granularity=Whole(),
        enforcement=device.enforcement,
        card=device.card,
    )


class GrantDraft:
    """A grant that stands in the ledger while this process makes it."""

    def __init__(self, node: Node, discovery: Discovery, handle: GrantHandle) -> None:
        self.node, self.discovery, self.handle = node, discovery, handle
        vendors = persisting(node, discovery, handle.grant)
        #: The vendors with slices or services for it, which outlive its program.
        self.persisting = handle.grant.allocation.vendors & vendors

    @contextmanager
    def confined(self, *, container: bool = False, sweep: bool = True) -> Iterator[Edits]:
        """Have the vendors confine it, and give the block their edits; not within `admission`.

        The entry holds its units, and others have the ledger while a vendor works. The slices are
        held until the block has written them down; those that nobody holds go first if it is to
        `sweep`. After any error, the block's too, the grant and what was cut for it are gone.
        """
        node, discovery, grant = self.node, self.discovery, self.handle.grant
        devices = devices_of(discovery)
        try:
            with slices_held(node, self.persisting):
                try:
                    if sweep:
                        reconcile(node, discovery, self.persisting)
                    edits = enforce(node, grant.allocation, devices, container=container)
                    yield edits.merged(serve(node, grant, devices, container=container))
                except BaseException:  # what was cut for it is nobody's now
                    with suppress(HeteroError):  # else at the next admission
                        reconcile(node, discovery, self.persisting)
                    raise
        except BaseException:
            node.ledger.abort(self.handle)
            node.ledger.snapshot()  # brings back what its neighbours had
            raise

    def committed(self, part_by_uuid: Mapping[str, str], **holder: Any) -> Grant:
        """Return the entry with the slices that were made, and with who holds it from now on."""
        grant = self.handle.grant
        allocation = with_parts(grant.allocation, part_by_uuid)
        limits = self.node.limits_of(allocation, devices_of(self.discovery))
        return evolve(grant, allocation=allocation, limits=limits, **holder)


def with_parts(allocation: Allocation, part_by_uuid: Mapping[str, str]) -> Allocation:
    """Return the allocation with the slices that were made for it named in its grants."""
    return evolve(
        allocation,
        pieces=tuple(
            evolve(piece, part=part_by_uuid.get(piece.device, piece.part))
            for piece in allocation.pieces
        ),
    )
