"""Has the vendors confine grants: cuts and keeps slices, and starts services."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from attrs import evolve

from hetero.model import Allocation, Device, Edits
from hetero.model.errors import Refused
from hetero.node import services, slices
from hetero.node.ledger.ledger import Grant
from hetero.node.node import Node
from hetero.registry.registry import Discovery


def persisting(node: Node, discovery: Discovery, grant: Grant | None = None) -> frozenset[str]:
    """Return the vendors with slices or services that outlive programs; a grant adds its own."""
    grant_vendors = grant.allocation.vendors if grant and grant.served else frozenset[str]()
    return discovery.cutting | services.running(node.ledger, discovery) | grant_vendors


@contextmanager
def slices_held(
    node: Node, vendors: Iterable[str], *, within_s: float | None = None
) -> Iterator[None]:
    """Lock the slices of these vendors against other processes; not within `admission`.

    Raises `HeteroError` when another process holds them for longer than `within_s` seconds; None:
    as long as an admission waits for the ledger.
    """
    node.aside()
    patience_s = node.ledger.patience_s if within_s is None else within_s
    with slices.held(node.ledger, vendors, within_s=patience_s):
        yield


def enforce(
    node: Node,
    allocation: Allocation,
    devices: Mapping[str, Device],
    *,
    container: bool = False,
) -> Edits:
    """Have the vendors confine `allocation`, with the slices of those that cut them locked."""
    return slices.enforce(node.registry, node.ledger, allocation, devices, container=container)


def serve(node: Node, grant: Grant, devices: Mapping[str, Device], *, container: bool) -> Edits:
    """Start the services of a grant's devices; return the edits by which programs reach them."""
    edits = Edits()
    for uuid in grant.served:
        standing_grants = node.ledger.snapshot().grants
        service = services.start(node.registry, node.ledger, devices[uuid], standing_grants)
        # On the machine itself its files are where they are.
        edits = edits.merged(service.edits if container else evolve(service.edits, mounts=()))
        for piece in grant.allocation.pieces:
            if piece.device == uuid and piece.sm_percent is not None:
                if service.sm is None:
                    raise Refused(f"device {uuid}: its service has no parts of multiprocessors")
                edits = edits.merged(Edits(env={service.sm: str(piece.sm_percent)}))
    return edits


def reconcile(node: Node, discovery: Discovery, vendors: Collection[str]) -> tuple[str, ...]:
    """Bring the locked slices of these vendors in line with the standing grants.

    Not within `admission`. Return a sentence about each failure.
    """
    if not vendors:
        return ()
    with node.ledger.admission() as own_snapshot:
        snapshot = node.with_system(own_snapshot)
    faults = slices.reconcile(node.registry, node.ledger, discovery, snapshot, vendors=vendors)
    if snapshot.unreadable:
        return faults
    return faults + services.stop_unused(node.registry, node.ledger, discovery, snapshot.grants)
