"""Finds the containers that see a grant, and their names.

A container sees a grant when the grant's file is at its place inside. The kernel knows that,
whichever engine made the container. Names are read from the engines' files, for people: no decision
depends on them.
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
from hetero.node.tenants.oci import read_json, runtime_state

_INSIDE = "root/etc/hetero/grant"
#: Where OCI runtimes keep their containers' states: by themselves, under containerd, under docker.
_STATES = ("run/runc", "run/crun", "run/containerd/runc/*", "run/docker/runtime-*/*")

#: The cgroup of a container, and what is below it: engines name it by the container's id, of 64
#: hexadecimal digits (docker-<id>.scope, libpod-<id>.scope, cri-containerd-<id>.scope, <id>).
_CONTAINER = r"(?m)^\d+:[^:]*:(.*[0-9a-f]{64}[^/]*)"
#: Cgroups of engines that run a process of their own in each pod, its sandbox, before all others
#: and until after them. CRI-O (crio-<id>) does where containers see each other's processes alone.
_BESIDE_SANDBOX = r"/((docker|cri-containerd)-)?[0-9a-f]{64}(\.scope)?$"
#: PF_EXITING of the kernel's include/linux/sched.h, and where flags are in `stat_of`.
_EXITING, _FLAGS = 0x4, 6


def containers(grant_path_by_id: Mapping[str, Path]) -> dict[str, tuple[ContainerInfo, ...]]:
    """Return the containers that see each grant file."""
    return {
        grant_id: tuple(container_by_space.values())
        for grant_id, container_by_space in containers_by_space(grant_path_by_id).items()
    }


def in_use(ledger: Ledger, owner_uids_by_grant: Mapping[str, Collection[str]]) -> set[str]:
    """Return those of a ledger's grants that a container uses: sees one, or is of its pods.

    `owner_uids_by_grant` has the UIDs of each grant's pods. A process that changed its root no
    longer sees its grant.
    """
    grant_files = {grant_id: ledger.directory(grant_id) / GRANT for grant_id in owner_uids_by_grant}
    used_ids = {
        grant_id
        for grant_id, container_by_space in containers_by_space(grant_files).items()
        if container_by_space
    }
    unseen_ids = owner_uids_by_grant.keys() - used_ids
    if any(owner_uids_by_grant[grant_id] for grant_id in unseen_ids):
        thread_ids = filter(None, map(running_task, processes()))
        cgroups = {cgroup for thread_id in thread_ids if (cgroup := container_cgroup(thread_id))}
        used_ids |= {
            grant_id
            for grant_id in unseen_ids
            if any(_runs_in(cgroups, owner_uid) for owner_uid in owner_uids_by_grant[grant_id])
        }
    return used_ids


def is_of_pod(cgroup: str, pod_uid: str) -> bool:
    """Whether a pod's UID is in the name of a cgroup; systemd's names have no hyphens."""
    return bool(pod_uid) and pod_uid in cgroup.replace("_", "-")


def container_cgroup(pid: int) -> str | None:
    """Return the cgroup of the container that a process is in; None for one in no container."""
    with suppress(OSError):
        cgroup_match = re.search(
            _CONTAINER, Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
        )
        return cgroup_match and cgroup_match[1]
    return None


def containers_by_space(
    grant_path_by_id: Mapping[str, Path],
) -> dict[str, dict[str, ContainerInfo]]:
    """Return the containers that see each grant file by their mount namespaces (`space_of`).

    That is one walk over /proc.
    """
    grant_by_file: dict[tuple[int, int], str] = {}
    for grant_id, path in grant_path_by_id.items():
        with suppress(OSError):
            status = path.stat()
            grant_by_file[status.st_dev, status.st_ino] = grant_id
    pids_by_space: dict[str, dict[str, int]] = {grant_id: {} for grant_id in grant_path_by_id}
    if grant_by_file:
        for pid in sorted(processes()):
            with suppress(OSError):
                file_status = os.stat(f"/proc/{pid}/{_INSIDE}")
                if (file_status.st_dev, file_status.st_ino) in grant_by_file:
                    pid_by_space = pids_by_space[
                        grant_by_file[file_status.st_dev, file_status.st_ino]
                    ]
                    pid_by_space.setdefault(os.readlink(f"/proc/{pid}/ns/mnt"), pid)
    container_by_space = dict(_known()) if any(pids_by_space.values()) else {}
    return {
        grant_id: {
            namespace: container_by_space.get(namespace)
            or ContainerInfo(id=str(pid), name=f"with process {pid}")
            for namespace, pid in pid_by_space.items()
        }
        for grant_id, pid_by_space in pids_by_space.items()
    }


def sees(pid: int, grant_file: Path) -> bool:
    """Whether a process is in a container that sees this grant file."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/{_INSIDE}"), grant_file.stat())
    except OSError:
        return False


def space_of(pid: int) -> str | None:
    """Return the name of a process's mount namespace; None when it is gone or another user's."""
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return None


def describe(container_id: str, bundle_path: Path, *, state: str | None = None) -> ContainerInfo:
    """Return a container's name and image, from what its engine keeps next to its bundle."""
    oci_config = read_json(bundle_path / "config.json")
    annotations = oci_config.get("annotations") or {}
    container_name = annotations.get("io.kubernetes.cri.container-name")
    image = annotations.get("io.kubernetes.cri.image-name")
    # podman: <storage>/overlay-containers/<id>/userdata is the bundle.
    for file_name in ("containers.json", "volatile-containers.json"):
        for container_entry in read_json(bundle_path.parent.parent / file_name, default=[]):
            if container_entry.get("id") == container_id:
                container_name = next(iter(container_entry.get("names") or ()), None)
                image = json.loads(container_entry.get("metadata") or "{}").get("image-name")
    docker_config = read_json(Path("/var/lib/docker/containers") / container_id / "config.v2.json")
    if docker_config:
        container_name = docker_config.get("Name", "").lstrip("/")
        image = docker_config.get("Config", {}).get("Image")
    return ContainerInfo(
        id=container_id, name=container_name or container_id, image=image, state=state
    )


def processes() -> Iterator[int]:
    """Yield all processes that /proc has."""
    return (int(pid_text) for pid_text in os.listdir("/proc") if pid_text.isdecimal())


def running_task(pid: int) -> int | None:
    """Return a thread of the process that is not ending, None if there is none.

    Its first thread may have ended and left the others: then it has no files to see.
    """
    if _runs(pid):
        return pid
    with suppress(OSError):
        return next(filter(_runs, map(int, os.listdir(f"/proc/{pid}/task"))), None)
    return None


def stat_of(thread_id: int) -> list[str]:
    """Return the fields of a thread's `stat` from its state on; none if it is gone.

    Before them is its name, which may be any bytes.
    """
    with suppress(OSError):
        return (
            Path(f"/proc/{thread_id}/stat").read_text(errors="replace").rpartition(")")[2].split()
        )
    return []


def _runs(thread_id: int) -> bool:
    fields = stat_of(thread_id)
    return bool(fields) and not int(fields[_FLAGS]) & _EXITING


def _runs_in(cgroups: Collection[str], uid: str) -> bool:
    """Whether one of these cgroups is of a container of a pod, and not of its sandbox alone."""
    pod_cgroups = [cgroup for cgroup in cgroups if is_of_pod(cgroup, uid)]
    return len(pod_cgroups) > 1 or any(
        not re.search(_BESIDE_SANDBOX, cgroup) for cgroup in pod_cgroups
    )


def _known() -> Iterator[tuple[str, ContainerInfo]]:
    """Yield every container a runtime knows, by its mount namespace."""
    for pattern in _STATES:
        for state_directory in Path("/").glob(f"{pattern}/*"):
            bundle, pid = runtime_state(state_directory)
            with suppress(OSError):
                yield (
                    os.readlink(f"/proc/{pid}/ns/mnt"),
                    describe(state_directory.name, bundle or Path("/")),
                )
