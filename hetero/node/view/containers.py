"""Finds the containers that see a grant, and what people call them.

A container sees a grant when the grant's file is at its place inside; that is a fact of the kernel,
whatever engine made it. Names are looked up where the engines keep them: for people to read, and
nothing is decided by them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hetero.node.ledger.grant_dir import GRANT
from hetero.node.ledger.ledger import Container, Ledger
from hetero.node.view.oci import read_json, runtime_state

_INSIDE = "root/etc/hetero/grant"
#: Where OCI runtimes keep their containers' states: by themselves, under containerd, under docker.
_STATES = ("run/runc", "run/crun", "run/containerd/runc/*", "run/docker/runtime-*/*")


def containers(grants: Mapping[str, Path]) -> dict[str, tuple[Container, ...]]:
    """Return the containers that see each grant file."""
    return {grant: tuple(seen.values()) for grant, seen in containers_by_space(grants).items()}


def in_use(ledger: Ledger, identities: Iterable[str]) -> set[str]:
    """Return those of a ledger's grants that a container sees."""
    grants = {identity: ledger.directory(identity) / GRANT for identity in identities}
    return {identity for identity, seen in containers_by_space(grants).items() if seen}


def containers_by_space(grants: Mapping[str, Path]) -> dict[str, dict[str, Container]]:
    """Return the containers that see each grant file by their mount namespaces (`space_of`).

    That is one walk over /proc.
    """
    wanted: dict[tuple[int, int], str] = {}
    for identity, path in grants.items():
        with suppress(OSError):
            found = path.stat()
            wanted[found.st_dev, found.st_ino] = identity
    seeing: dict[str, dict[str, int]] = {identity: {} for identity in grants}
    if wanted:
        for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
            with suppress(OSError):
                inside = os.stat(f"/proc/{pid}/{_INSIDE}")
                if (inside.st_dev, inside.st_ino) in wanted:
                    seen = seeing[wanted[inside.st_dev, inside.st_ino]]
                    seen.setdefault(os.readlink(f"/proc/{pid}/ns/mnt"), pid)
    known = dict(_known()) if any(seeing.values()) else {}
    return {
        identity: {
            space: known.get(space) or Container(id=str(pid), name=f"with process {pid}")
            for space, pid in spaces.items()
        }
        for identity, spaces in seeing.items()
    }


def sees(pid: int, grant: Path) -> bool:
    """Whether a process is in a container that sees this grant file."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/{_INSIDE}"), grant.stat())
    except OSError:
        return False


def space_of(pid: int) -> str | None:
    """Return the name of a process's mount namespace; None when it is gone or another user's."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return None


def describe(identity: str, bundle: Path, *, state: str | None = None) -> Container:
    """Return what people call a container, from what its engine keeps beside its bundle."""
    config = read_json(bundle / "config.json")
    notes = config.get("annotations") or {}
    name = notes.get("io.kubernetes.cri.container-name")
    image = notes.get("io.kubernetes.cri.image-name")
    # podman: <storage>/overlay-containers/<id>/userdata is the bundle.
    for entries in ("containers.json", "volatile-containers.json"):
        for entry in read_json(bundle.parent.parent / entries, default=[]):
            if entry.get("id") == identity:
                name = next(iter(entry.get("names") or ()), None)
                image = json.loads(entry.get("metadata") or "{}").get("image-name")
    docker = read_json(Path("/var/lib/docker/containers") / identity / "config.v2.json")
    if docker:
        name = docker.get("Name", "").lstrip("/")
        image = docker.get("Config", {}).get("Image")
    return Container(id=identity, name=name or identity, image=image, state=state)


def _known() -> Iterator[tuple[str, Container]]:
    """Yield every container a runtime knows, by its mount namespace."""
    for pattern in _STATES:
        for state in Path("/").glob(f"{pattern}/*"):
            bundle, pid = runtime_state(state)
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/ns/mnt"), describe(state.name, bundle or Path("/"))
