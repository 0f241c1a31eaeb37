"""Keeps the services that share devices as the ledger says: one where grants stand, else none.

A service is a process of its vendor's. It has a cgroup of its own, so it outlives the heterod or
the node agent that started it. By its directory here the next of these finds it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from hetero.model import Device
from hetero.model.errors import HeteroError, Refused
from hetero.node.ledger.grant_dir import replace
from hetero.node.ledger.ledger import Grant, Ledger
from hetero.node.ledger.state import make, remove_all
from hetero.plugin.service import Service
from hetero.registry.message import Serve
from hetero.registry.registry import Discovery, Registry

#: In the directory of a service: why it has to be restarted, until that is done.
_FAILED = "failed"
_CGROUPS, _OWN = Path("/sys/fs/cgroup"), "hetero-services"


def directory(ledger: Ledger, device_uuid: str) -> Path:
    """Return where the service of a device keeps its files."""
    return ledger.path / "services" / quote(device_uuid, safe="")


def start(registry: Registry, ledger: Ledger, device: Device, grants: Iterable[Grant]) -> Service:
    """Have the service of a device run for what stands on it.

    Raises `Refused` where it cannot take a further grant now.
    """
    if os.geteuid() != 0:
        raise Refused(
            f"device {device.uuid} is shared by a service, which root starts: "
            "`hetero install`, as root, has heterod do that"
        )
    sharers = [grant for grant in grants if _has(grant, device)]
    service_dir = directory(ledger, device.uuid)
    make(service_dir.parent, mode=0o755)
    make(service_dir, mode=0o755)
    service_before = registry.serve(device, Serve.LOOK, directory=service_dir)
    if fault := service_before.fault or failure(ledger, device.uuid):
        raise Refused(
            f"device {device.uuid}: its service is being started anew after a fault "
            f"({fault}): try again when the programs that it hurt have ended"
        )
    limit_bytes = max((limit.memory for grant in sharers for limit in grant.limits), default=0)
    service = registry.serve(device, Serve.START, directory=service_dir, memory=limit_bytes)
    user_ids = {grant.uid or 0 for grant in sharers}
    if service.one_user and len(user_ids) > 1:
        raise Refused(
            f"device {device.uuid}: its driver's service has programs of one user at a time, and "
            "another user has a grant there: newer drivers serve several"
        )
    if not service_before.running:
        _set_apart(service.processes)
    return service


def failure(ledger: Ledger, device_uuid: str) -> str | None:
    """Return why the service of a device is being started anew, if it is."""
    with suppress(OSError):
        return (directory(ledger, device_uuid) / _FAILED).read_text().strip()
    return None


def note_failure(ledger: Ledger, device_uuid: str, reason: str) -> None:
    """Give no grant of a device until its service was restarted.

    A service may report that it is well again as soon as the failed programs are gone.
    """
    replace(directory(ledger, device_uuid) / _FAILED, f"{reason}\n".encode(), mode=0o644)


def restart(registry: Registry, ledger: Ledger, device: Device, grants: Iterable[Grant]) -> None:
    """End the service of a device with its programs, and start it for the standing grants."""
    service_dir = directory(ledger, device.uuid)
    registry.serve(device, Serve.STOP, directory=service_dir)
    (service_dir / _FAILED).unlink(missing_ok=True)
    start(registry, ledger, device, grants)


def end(registry: Registry, ledger: Ledger, device: Device, pids: Iterable[int]) -> None:
    """Have the service of a device release these processes, before they are killed."""
    service_dir = directory(ledger, device.uuid)
    clients = registry.serve(device, Serve.LOOK, directory=service_dir).clients
    for pid in sorted(set(pids).intersection(clients)):
        registry.serve(device, Serve.END, directory=service_dir, process=pid)


def stop_unused(
    registry: Registry, ledger: Ledger, discovery: Discovery, grants: Iterable[Grant]
) -> tuple[str, ...]:
    """Stop the services of devices that no grant stands on; return a sentence for each failure."""
    used_uuids = {piece.device for grant in grants for piece in grant.allocation.pieces}
    faults = []
    for device in discovery.devices:
        service_dir = directory(ledger, device.uuid)
        if device.uuid in used_uuids or not service_dir.exists():
            continue
        try:
            registry.serve(device, Serve.STOP, directory=service_dir)
            remove_all(service_dir)
        except HeteroError as error:
            faults.append(str(error))
    return tuple(faults)


def running(ledger: Ledger, discovery: Discovery) -> frozenset[str]:
    """Return the vendors that have services here."""
    return frozenset(
        device.vendor for device in discovery.devices if directory(ledger, device.uuid).exists()
    )


def _has(grant: Grant, device: Device) -> bool:
    return any(piece.device == device.uuid for piece in grant.allocation.pieces)


def _set_apart(pids: Iterable[int]) -> None:
    """Move processes to a cgroup of their own, so that a restart of ours does not end them.

    Where cgroups cannot be written they stay, and the service is started again after a restart.
    """
    for hierarchy in (_CGROUPS, *_CGROUPS.glob("*")):
        if not (hierarchy / "cgroup.procs").exists() or _is_group(hierarchy):
            continue
        with suppress(OSError):
            own_cgroup = hierarchy / _OWN
            own_cgroup.mkdir(exist_ok=True)
            for control_file in ("cpuset.cpus", "cpuset.mems"):  # version 1 takes nobody in without
                if (own_cgroup / control_file).exists() and not (
                    own_cgroup / control_file
                ).read_text().strip():
                    (own_cgroup / control_file).write_text((hierarchy / control_file).read_text())
            for pid in pids:
                (own_cgroup / "cgroup.procs").write_text(str(pid))


def _is_group(path: Path) -> bool:
    """Whether a directory is a group within a hierarchy, and not the root of one."""
    return path != _CGROUPS and (_CGROUPS / "cgroup.procs").exists()
