"""Finds the containers that see a grant, and what people call them.

A container sees a grant when the grant's file is at its place inside; that is a fact of the kernel,
whatever engine made it. Names are looked up where the engines keep them: for people to read, and
nothing is decided by them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from hetero.node.ledger.grant_dir import GRANT
from hetero.node.ledger.ledger import ContainerInfo, Ledger
from hetero.node.view.oci import read_json, runtime_state

_INSIDE = "root/etc/hetero/grant"
#: Where OCI runtimes keep their containers' states: by themselves, under containerd, under docker.
_STATES = ("run/runc", "run/crun", "run/containerd/runc/*", "run/docker/runtime-*/*")

#: The cgroup of a container, and what is below it: engines name it by the container's id, of 64
#: hexadecimal digits (docker-<id>.scope, libpod-<id>.scope, cri-containerd-<id>.scope, <id>).
_CONTAINER = re.compile(r"^\d+:[^:]*:(.*[0-9a-f]{64}[^/]*)", re.M)
#: Cgroups of engines that run a process of their own in each pod, its sandbox, before all others
#: and until after them. CRI-O (crio-<id>) does where containers see each other's processes alone.
_BESIDE_SANDBOX = re.compile(r"/((docker|cri-containerd)-)?[0-9a-f]{64}(\.scope)?$")
#: PF_EXITING of the kernel's include/linux/sched.h, and where flags are in `stat_of`.
_EXITING, _FLAGS = 0x4, 6


def containers(grants: Mapping[str, Path]) -> dict[str, tuple[ContainerInfo, ...]]:
    """Return the containers that see each grant file."""
    return {grant: tuple(seen.values()) for grant, seen in containers_by_space(grants).items()}


def in_use(ledger: Ledger, owners: Mapping[str, Collection[str]]) -> set[str]:
    """Return those of a ledger's grants that a container uses: sees one, or is of its pods.

    `owners` has the UIDs of each grant's pods. What changed its root sees its grant no more.
    """
    grants = {identity: ledger.directory(identity) / GRANT for identity in owners}
    used = {identity for identity, seen in containers_by_space(grants).items() if seen}
    unseen = owners.keys() - used
    if any(owners[identity] for identity in unseen):
        tasks = filter(None, map(running_task, processes()))
        cgroups = {cgroup for task in tasks if (cgroup := container_cgroup(task))}
        used |= {name for name in unseen if any(_runs_in(cgroups, uid) for uid in owners[name])}
    return used


def is_of_pod(cgroup: str, uid: str) -> bool:
    """Whether a pod's UID is in the name of a cgroup; systemd's names have no hyphens."""
    return bool(uid) and uid in cgroup.replace("_", "-")


def container_cgroup(pid: int) -> str | None:
    """Return the cgroup of the container that a process is in; None for one in no container."""
    with suppress(OSError):
        match = _CONTAINER.search(Path(f"/proc/{pid}/cgroup").read_text(errors="replace"))
        return match and match[1]
    return None


def containers_by_space(grants: Mapping[str, Path]) -> dict[str, dict[str, ContainerInfo]]:
    """Return the containers that see each grant file by their mount namespaces (`space_of`).

    That is one walk over /proc.
    """
    wanted: dict[tuple[int, int], str] = {}
    for identity, path in grants.items():
        with suppress(OSError):
            status = path.stat()
            wanted[status.st_dev, status.st_ino] = identity
    seeing: dict[str, dict[str, int]] = {identity: {} for identity in grants}
    if wanted:
        for pid in sorted(processes()):
            with suppress(OSError):
                inside = os.stat(f"/proc/{pid}/{_INSIDE}")
                if (inside.st_dev, inside.st_ino) in wanted:
                    seen = seeing[wanted[inside.st_dev, inside.st_ino]]
                    seen.setdefault(os.readlink(f"/proc/{pid}/ns/mnt"), pid)
    known = dict(_known()) if any(seeing.values()) else {}
    return {
        identity: {
            space: known.get(space) or ContainerInfo(id=str(pid), name=f"with process {pid}")
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


def describe(identity: str, bundle: Path, *, state: str | None = None) -> ContainerInfo:
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
    return ContainerInfo(id=identity, name=name or identity, image=image, state=state)


def processes() -> Iterator[int]:
    """Yield all processes that /proc has."""
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def running_task(pid: int) -> int | None:
    """Return a thread of the process that is not at its end, None if there is none.

    Its first thread may have ended and left the others: then it has no files of its own to see.
    """
    if _runs(pid):
        return pid
    with suppress(OSError):
        return next(filter(_runs, map(int, os.listdir(f"/proc/{pid}/task"))), None)
    return None


def stat_of(task: int) -> list[str]:
    """Return the fields of a thread's `stat` from its state on; none if it is gone.

    Before them is its name, which may be any bytes.
    """
    with suppress(OSError):
        return Path(f"/proc/{task}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _runs(task: int) -> bool:
    fields = stat_of(task)
    return bool(fields) and not int(fields[_FLAGS]) & _EXITING


def _runs_in(cgroups: Collection[str], uid: str) -> bool:
    """Whether one of these cgroups is of a container of a pod, and not of its sandbox alone."""
    of_pod = [one for one in cgroups if is_of_pod(one, uid)]
    return len(of_pod) > 1 or any(not _BESIDE_SANDBOX.search(one) for one in of_pod)


def _known() -> Iterator[tuple[str, ContainerInfo]]:
    """Yield every container a runtime knows, by its mount namespace."""
    for pattern in _STATES:
        for state in Path("/").glob(f"{pattern}/*"):
            bundle, pid = runtime_state(state)
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/ns/mnt"), describe(state.name, bundle or Path("/"))
