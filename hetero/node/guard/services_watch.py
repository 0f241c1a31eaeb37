"""Watches the services that share devices: reports which grants a fault hurt, and restarts them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from attrs import define, field

from hetero.model import Device
from hetero.model.errors import HeteroError
from hetero.node import services
from hetero.node.confinement import slices_held
from hetero.node.ledger.grant_dir import replace
from hetero.node.ledger.ledger import Grant, Snapshot
from hetero.node.node import Node
from hetero.node.view.hurt import HURT_FILE, Hurt
from hetero.registry.message import Serve

#: Seconds that programs whose device failed them may take to end.
_DRAIN_S = 30.0


@define
class ServicesWatch:
    """Remembers the grants that each service served, since a dead service cannot say it."""

    node: Node
    _clients: dict[str, frozenset[str]] = field(init=False, factory=dict)
    _failed_at_s: dict[str, float] = field(init=False, factory=dict)  # since when

    def sample(self, snapshot: Snapshot) -> tuple[Hurt, ...]:
        """Look at the services of standing grants; return the grants that a fault has hurt."""
        uuids = {uuid for grant in snapshot.grants for uuid in grant.served}
        if not uuids:
            return ()
        hurt_grants: list[Hurt] = []
        for device in self.node.discover().devices:
            if device.uuid in uuids:
                served_grants = [grant for grant in snapshot.grants if device.uuid in grant.served]
                with suppress(HeteroError):  # tried again at the next look
                    hurt_grants += self._sample(device, served_grants)
        return tuple(hurt_grants)

    def _sample(self, device: Device, grants: list[Grant]) -> Iterator[Hurt]:
        with slices_held(self.node, {device.vendor}, within_s=0.0):
            service_directory = services.directory(self.node.ledger, device.uuid)
            service = self.node.registry.serve(device, Serve.LOOK, directory=service_directory)
            pids_by_grant = self.node.processes(grant.id for grant in grants)
            served_ids = frozenset(
                grant_id
                for grant_id, pids in pids_by_grant.items()
                if not set(service.clients).isdisjoint(pids)
            )
            served_before = self._clients.get(device.uuid, frozenset(pids_by_grant)) | served_ids
            fault = service.fault or services.failure(self.node.ledger, device.uuid)
            if service.running and not fault:
                self._clients[device.uuid] = served_ids
                self._failed_at_s.pop(device.uuid, None)
                for grant_id in served_ids:
                    with suppress(OSError):
                        (self.node.directory(grant_id) / HURT_FILE).unlink(missing_ok=True)
                return
            fault = fault or "it was killed"
            services.note_failure(self.node.ledger, device.uuid, fault)
            reason = f"the service of its card ended ({fault})"
            for grant_id in sorted(served_before & pids_by_grant.keys()):
                with suppress(OSError):
                    replace(
                        self.node.directory(grant_id) / HURT_FILE,
                        f"{reason}\n".encode(),
                        mode=0o644,
                    )
                yield Hurt(grant=grant_id, device=device.uuid, why=reason)
            self._clients[device.uuid] = served_before
            failed_at_s = self._failed_at_s.setdefault(device.uuid, time.monotonic())
            if service.running and service.clients and time.monotonic() - failed_at_s < _DRAIN_S:
                return
            services.restart(self.node.registry, self.node.ledger, device, grants)
            self._failed_at_s.pop(device.uuid, None)
            self._clients[device.uuid] = frozenset()
