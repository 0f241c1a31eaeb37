"""Watches the services that share devices: says whom a fault hurt, and starts them anew."""

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
from hetero.node.view.hurt import HURT, Hurt
from hetero.registry.message import Serve

#: Seconds that programs whose device failed them may take to end.
_DRAIN = 30.0


@define
class ServicesWatch:
    """Remembers who was served at the last look: of a service that is gone nobody can say it."""

    node: Node
    _clients: dict[str, frozenset[str]] = field(init=False, factory=dict)
    _failed: dict[str, float] = field(init=False, factory=dict)  # since when

    def sample(self, snapshot: Snapshot) -> tuple[Hurt, ...]:
        """Look at the services of what stands; return the grants that a fault has hurt."""
        uuids = {uuid for entry in snapshot.grants for uuid in entry.served}
        if not uuids:
            return ()
        hurts: list[Hurt] = []
        for device in self.node.discover().devices:
            if device.uuid in uuids:
                served = [entry for entry in snapshot.grants if device.uuid in entry.served]
                with suppress(HeteroError):  # tried again at the next look
                    hurts += self._sample(device, served)
        return tuple(hurts)

    def _sample(self, device: Device, grants: list[Grant]) -> Iterator[Hurt]:
        with slices_held(self.node, {device.vendor}, within=0.0):
            place = services.directory(self.node.ledger, device.uuid)
            service = self.node.registry.serve(device, Serve.LOOK, directory=place)
            holding = self.node.processes(entry.id for entry in grants)
            served = frozenset(
                name for name, pids in holding.items() if not set(service.clients).isdisjoint(pids)
            )
            before = self._clients.get(device.uuid, frozenset(holding)) | served
            fault = service.fault or services.failure(self.node.ledger, device.uuid)
            if service.running and not fault:
                self._clients[device.uuid] = served
                self._failed.pop(device.uuid, None)
                for name in served:
                    with suppress(OSError):
                        (self.node.directory(name) / HURT).unlink(missing_ok=True)
                return
            fault = fault or "it was killed"
            services.note_failure(self.node.ledger, device.uuid, fault)
            why = f"the service of its card ended ({fault})"
            for name in sorted(before & holding.keys()):
                with suppress(OSError):
                    replace(self.node.directory(name) / HURT, f"{why}\n".encode(), mode=0o644)
                yield Hurt(grant=name, device=device.uuid, why=why)
            self._clients[device.uuid] = before
            since = self._failed.setdefault(device.uuid, time.monotonic())
            if service.running and service.clients and time.monotonic() - since < _DRAIN:
                return
            services.restart(self.node.registry, self.node.ledger, device, grants)
            self._failed.pop(device.uuid, None)
            self._clients[device.uuid] = frozenset()
