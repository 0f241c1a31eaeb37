"""Keeps the services that share devices as the ledger says: one where grants stand, else none.

A service is a process of its vendor's. It has a directory here by which whoever comes next finds
it, and a cgroup of its own: it outlives the heterod or the node agent that started it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from hetero.model import Device, Enforcement
from hetero.model.errors import HeteroError, Refused
from hetero.node.ledger.grant_dir import replace
from hetero.node.ledger.ledger import Grant, Ledger
from hetero.node.ledger.state import make
from hetero.plugin.service import Service
from hetero.registry.message import Serve
from hetero.registry.registry import Discovery, Registry

#: In the directory of a service: why it is to be started anew, from when that was seen until it is.
_FAILED = "failed"
_CGROUPS, _OWN = Path("/sys/fs/cgroup"), "hetero-services"


def directory(ledger: Ledger, device: str) -> Path:
    """Return where the service of a device keeps its files."""
    return ledger.path / "services" / quote(device, safe="")


def start(registry: Registry, ledger: Ledger, device: Device, grants: Iterable[Grant]) -> Service:
    """Have the service of a device run for what stands on it.

    Raises `Refused` where it cannot take a further grant now.
    """
    if os.geteuid() != 0:
        raise Refused(
            f"device {device.uuid} is shared by a service, which root starts: "
            "`hetero install`, as root, has heterod do that"
        )
    sharing = [entry for entry in grants if _has(entry, device)]
    place = directory(ledger, device.uuid)
    make(place.parent, mode=0o755)
    make(place, mode=0o755)
    before = registry.serve(device, Serve.LOOK, directory=place)
    if fault := before.fault or failure(ledger, device.uuid):
        raise Refused(
            f"device {device.uuid}: its service is being started anew after a fault "
            f"({fault}): try again when the programs that it hurt have ended"
        )
    most = max((limit.memory for entry in sharing for limit in entry.limits), default=0)
    service = registry.serve(device, Serve.START, directory=place, memory=most)
    users = {entry.uid or 0 for entry in sharing}
    if service.one_user and len(users) > 1:
        raise Refused(
            f"device {device.uuid}: its driver's service has programs of one user at a time, and "
            "another user has a grant there: newer drivers serve several"
        )
    if not before.running:
        _set_apart(service.processes)
    return service


def failure(ledger: Ledger, device: str) -> str | None:
    """Return why the service of a device is being started anew, if it is."""
    with suppress(OSError):
        return (directory(ledger, device) / _FAILED).read_text().strip()
    return None


def note_failure(ledger: Ledger, device: str, why: str) -> None:
    """Have no grant given of a device until its service was started anew.

    A service may say that it is well again as soon as those are gone who failed on it.
    """
    replace(directory(ledger, device) / _FAILED, f"{why}\n".encode(), mode=0o644)


def restart(registry: Registry, ledger: Ledger, device: Device, grants: Iterable[Grant]) -> None:
    """End the service of a device with what it serves, and start it for what stands."""
    place = directory(ledger, device.uuid)
    registry.serve(device, Serve.STOP, directory=place)
    (place / _FAILED).unlink(missing_ok=True)
    start(registry, ledger, device, grants)


def end(registry: Registry, ledger: Ledger, device: Device, processes: Iterable[int]) -> None:
    """Have the service of a device let go of these processes, before they are killed."""
    place = directory(ledger, device.uuid)
    clients = registry.serve(device, Serve.LOOK, directory=place).clients
    for pid in sorted(set(processes).intersection(clients)):
        registry.serve(device, Serve.END, directory=place, process=pid)


def stop_unused(
    registry: Registry, ledger: Ledger, discovery: Discovery, grants: Iterable[Grant]
) -> tuple[str, ...]:
    """Stop the services of devices that no grant stands on; return a sentence for each failure."""
    used = {piece.device for entry in grants for piece in entry.allocation.pieces}
    faults = []
    for device in discovery.devices:
        place = directory(ledger, device.uuid)
        if device.uuid in used or not place.exists():
            continue
        try:
            registry.serve(device, Serve.STOP, directory=place)
            shutil.rmtree(place, ignore_errors=True)
        except HeteroError as error:
            faults.append(str(error))
    return tuple(faults)


def running(ledger: Ledger, discovery: Discovery) -> frozenset[str]:
    """Return the vendors that have services here."""
    return frozenset(
        device.vendor for device in discovery.devices if directory(ledger, device.uuid).exists()
    )


def _has(entry: Grant, device: Device) -> bool:
    return any(piece.device == device.uuid for piece in entry.allocation.pieces)


def by_service(device: Device) -> bool:
    """Whether a device's programs share it by a service."""
    return device.enforcement is Enforcement.SERVICE


def _set_apart(processes: Iterable[int]) -> None:
    """Move processes to a cgroup of their own: who ends ours, as a restart does, ends not them.

    Where cgroups are not to be written, they stay; then the service is started again.
    """
    for hierarchy in (_CGROUPS, *_CGROUPS.glob("*")):
        if not (hierarchy / "cgroup.procs").exists() or _is_group(hierarchy):
            continue
        with suppress(OSError):
            own = hierarchy / _OWN
            own.mkdir(exist_ok=True)
            for limit in ("cpuset.cpus", "cpuset.mems"):  # version 1 takes nobody in without
                if (own / limit).exists() and not (own / limit).read_text().strip():
                    (own / limit).write_text((hierarchy / limit).read_text())
            for pid in processes:
                (own / "cgroup.procs").write_text(str(pid))


def _is_group(path: Path) -> bool:
    """Whether a directory is a group within a hierarchy, and not the root of one."""
    return path != _CGROUPS and (_CGROUPS / "cgroup.procs").exists()
