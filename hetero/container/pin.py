"""Pins a grant for a container that another program starts, as the kubelet does."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from attrs import evolve, frozen

from hetero.container.edits import confine
from hetero.container.preload import PLACE, TARGET, preloading
from hetero.model import Allocation, Edits, Mount
from hetero.model.errors import HeteroError, NotFound, Refused
from hetero.node.confinement import enforce
from hetero.node.inventory import devices_of, inventory_of
from hetero.node.ledger.ledger import Grant, Snapshot
from hetero.node.node import Node
from hetero.node.transaction import GrantDraft, new_grant
from hetero.registry.registry import Discovery


@frozen
class Libraries:
    """The directory on the machine for copies of the limiters, which containers mount.

    The installed limiters may be in an image that the machine does not see. The directory must not
    be on a file system mounted noexec, as /run often is.
    """

    path: Path

    def put(self, library_paths: Sequence[Path]) -> tuple[Mount, ...]:
        """Copy limiters to it and return their mounts, with the preload file that names them.

        Names carry a digest of the contents: a running container keeps the version it started with.
        Raises `HeteroError` if the directory cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            mounts = []
            for source_path in library_paths:
                source_status = source_path.stat()
                digest = _digest(
                    source_path,
                    source_status.st_ino,
                    source_status.st_size,
                    source_status.st_mtime_ns,
                )
                copy_path = self._put(
                    f"{digest}-{source_path.name}", source_path.read_bytes, mode=0o755
                )
                mounts.append(Mount(str(copy_path), f"{PLACE}/{source_path.name}"))
            preload_bytes = preloading((mount.target for mount in mounts), ()).encode()
            if mounts:
                preload_name = f"{_named(preload_bytes)}-preload"
                mounts.append(
                    Mount(str(self._put(preload_name, lambda: preload_bytes, mode=0o644)), TARGET)
                )
            return tuple(mounts)
        except OSError as error:
            raise HeteroError(f"limiters for containers: {self.path}: {error.strerror}") from None

    def _put(self, file_name: str, contents: Callable[[], bytes], *, mode: int) -> Path:
        path = self.path / file_name
        if not path.exists():
            draft_path = path.with_name(f".{path.name}.{os.getpid()}")
            draft_path.write_bytes(contents())
            draft_path.chmod(mode)
            draft_path.replace(path)
        return path


@lru_cache
def _digest(path: Path, *_identity: int) -> str:
    """Return the digest of a file; it is read again only if its identity changed."""
    return _named(path.read_bytes())


def _named(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:12]


def pin(
    node: Node,
    allocation: Allocation,
    *,
    discovery: Discovery,
    grant_id: str,
    label: str,
    owner: Mapping[str, str],
    libraries: Libraries,
    injection: Callable[[Edits], Edits] | None = None,
) -> Grant:
    """Make an allocation stand for a container until it is unpinned, and say what confines it.

    One that stands already is answered as it is. `injection` says how the driver comes in
    (`without_driver` unless set). Raises `Refused` when what is free does not cover it, `NotFound`
    when a device of it is gone.
    """
    with node.ledger.admission() as own_snapshot:
        snapshot = node.with_system(own_snapshot)
        for standing_grant in snapshot.grants:
            if standing_grant.id == grant_id:
                node.ledger.pin_again(grant_id)
                if standing_grant.owner != owner or not standing_grant.promised:
                    # An older agent noted less.
                    standing_grant = evolve(standing_grant, owner=owner, promised=allocation.pieces)
                    node.ledger.change(standing_grant)
                return standing_grant
        device_by_uuid = devices_of(discovery)
        for piece in allocation.pieces:
            if piece.device not in device_by_uuid:
                raise NotFound(f"device {piece.device} is not on this node (any more)")
            reason = node.held_back(device_by_uuid[piece.device], snapshot)
            if reason:
                raise Refused(f"device {piece.device}: {reason}")
        grant = evolve(
            new_grant(node, allocation, discovery, label=label), promised=allocation.pieces
        )
        _expect_room(evolve(grant, owner=owner), discovery, snapshot)
        # Pinned only when it is confined: until then it ends with this process.
        handle = node.ledger.add(grant, own_snapshot.grants)
    draft = GrantDraft(node, discovery, handle)
    with (
        draft.confined(container=True, sweep=False) as edits,
        node.ledger.admission() as own_snapshot,
    ):
        grant = draft.committed(edits.parts, id=grant_id, owner=owner)
        limiters = libraries.put(node.limiters(grant.allocation, discovery.vendors))
        edits = _real(node, edits, injection or without_driver)
        confined_edits = confine(node, grant, evolve(edits, cdi=()), limiters=limiters)
        grant = evolve(grant, edits=evolve(confined_edits, cdi=edits.cdi))
        node.ledger.pin(grant, instead_of=handle, standing_grants=own_snapshot.grants)
    node.ledger.abort(handle)  # it stands under its own id now
    return grant


def _expect_room(new_grant: Grant, discovery: Discovery, snapshot: Snapshot) -> None:
    """Raise `Refused` unless all grants and the new one fit into their devices."""
    after = evolve(snapshot, grants=(*snapshot.grants, new_grant))
    free_by_uuid = inventory_of(discovery, after).free()
    for piece in new_grant.allocation.pieces:
        lacking = [counter for counter in piece.takes if free_by_uuid[piece.device][counter] < 0]
        if lacking:
            raise Refused(
                f"device {piece.device} has not enough {' and '.join(lacking)} left for this grant"
            )


def shown(
    node: Node,
    allocation: Allocation,
    *,
    discovery: Discovery,
    injection: Callable[[Edits], Edits],
) -> Edits:
    """Return what shows a container whole devices, which it holds nothing of and is not limited on.

    `injection` says how the driver comes in.
    """
    edits = enforce(node, allocation, devices_of(discovery), container=True)
    shown_edits = _real(node, edits, injection)
    if node.simulation:
        env = {**shown_edits.env, "HETERO_RACK": str(node.simulation.rack)}
        shown_edits = evolve(
            shown_edits, env=env, mounts=(*shown_edits.mounts, *node.simulation.mounts())
        )
    return shown_edits


def without_driver(edits: Edits) -> Edits:
    """Return the edits for a container whose runtime injects the driver: the nodes that exist."""
    return evolve(edits, cdi=(), files=())


def _real(node: Node, edits: Edits, injection: Callable[[Edits], Edits]) -> Edits:
    """Return those edits of a vendor that a container can have: simulated cards have no nodes."""
    if node.simulation is None:
        return injection(edits)
    mounts = tuple(mount for mount in edits.mounts if Path(mount.source).exists())
    injected_edits = injection(evolve(edits, mounts=mounts, device_nodes=(), files=()))
    drivers = str(node.simulation.drivers)
    return evolve(
        injected_edits,
        env={**injected_edits.env, **node.simulation.environment({})},
        mounts=(*injected_edits.mounts, Mount(drivers, drivers)),
    )
