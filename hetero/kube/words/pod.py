"""What a pod is to those who read it: who asks for devices, and what was signed for whom."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from posixpath import normpath
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from hetero.container.preload import PLACE, TARGET
from hetero.kube.objects.kinds import Container, ContainerStatus, Pod
from hetero.kube.objects.reading import read_all
from hetero.kube.words.annotations import read_assignment
from hetero.kube.words.signing import PublicKeys
from hetero.model import Allocation, ContainerKind, Gang
from hetero.model.errors import BadInput

if TYPE_CHECKING:
    from hetero.kube.client.api import ApiCalls  # to import it takes longer than all the rest

#: A label of a pod, of kube-scheduler's coscheduling plugin: the PodGroup that it is in.
POD_GROUP = "scheduling.x-k8s.io/pod-group"
#: Where every container has links to its own root.
_TO_ROOT = re.compile(r"/proc/(self|thread-self|[0-9]+)/")


def path_of(pod: Pod) -> str:
    """Return where the API has a pod."""
    return "/api/v1/namespaces/{}/pods/{}".format(*pod.full_name)


async def read_pod(api: ApiCalls, namespace: str, pod_name: str) -> Pod | None:
    """Return a pod as the API has it, None if it is gone. Raises `ApiError`.

    It is listed: who follows pods may do that, and needs no right to get them.
    """
    query = {"fieldSelector": f"metadata.name={pod_name}"}
    pod_list = await api.get(f"/api/v1/namespaces/{namespace}/pods", query)
    return next(iter(read_all(Pod, pod_list["items"])), None)


@frozen(kw_only=True)
class SignedContainer:
    """A container that was given an allocation."""

    pod: Pod
    container: str
    allocation: Allocation

    @property
    def identity(self) -> str:
        """The id of its grant."""
        return identity_of(self.pod.metadata.uid, self.container)

    @property
    def owner(self) -> dict[str, str]:
        """What the ledger notes of it."""
        namespace, pod_name = self.pod.full_name
        return {
            "namespace": namespace,
            "pod": pod_name,
            "uid": self.pod.metadata.uid,
            "container": self.container,
            "kind": kinds(self.pod)[self.container].value,
        }

    def __str__(self) -> str:
        return f"{named(self.pod)}, container {self.container}"


def signed(pod: Pod, keys: PublicKeys, *, node: str) -> list[SignedContainer]:
    """Return what the scheduler gave the pod's containers, in the order they are admitted.

    Raises `BadInput` on a forgery.
    """
    metadata = pod.metadata
    assignment = read_assignment(
        metadata.annotations, keys, pod="/".join(pod.full_name), uid=metadata.uid, node=node
    )
    allocation_by_container = dict(assignment.containers if assignment else ())
    gang_slot = assignment.place_in_time if assignment else None
    # The name is for people: rows are told apart by where they are.
    gang = Gang(name=metadata.name, row=gang_slot.row, rows=gang_slot.rows) if gang_slot else None
    return [
        SignedContainer(
            pod=pod,
            container=container.name,
            allocation=evolve(allocation_by_container[container.name], gang=gang),
        )
        for container in pod.containers
        if container.name in allocation_by_container
    ]


def mounted(container: Container) -> Iterator[str]:
    """Yield where a container has files of its pod's own, as containerd reads the paths."""
    return (normpath(f"/{path.lstrip('/')}") for path in _own(container))


def _own(container: Container) -> Iterator[str]:
    """Yield the paths of a container's own files as the pod has them."""
    yield from (mount.mount_path for mount in container.volume_mounts)
    yield from (device.device_path for device in container.volume_devices)
    if container.termination_message_path:
        yield container.termination_message_path


def expect_unhidden(container: Container) -> None:
    """Raise `BadInput` if a container's own mounts could hide what limits its cards.

    Below ours, since a kubelet mounts them after ours. Above ours, since what ours are mounted on
    is then a file of that volume: who has it elsewhere, as another container of the pod does, may
    remove the file, and the kernel then takes our mount away. By a link of /proc to the container's
    root, since runtimes follow it; and by `..`, which some of them read after such links.
    """
    for pod_path, container_path in zip(_own(container), mounted(container), strict=True):
        own_path = f"{container_path.rstrip('/')}/"
        message = f"container {container.name}: mounts its own at {pod_path}"
        if ".." in pod_path.split("/"):
            raise BadInput(
                f"{message}: `..` may lead to what limits its cards: write the path without"
            )
        if _TO_ROOT.match(own_path) or any(
            own_path.startswith(reserved_path) or reserved_path.startswith(own_path)
            for reserved_path in (f"{PLACE}/", f"{TARGET}/")
        ):
            raise BadInput(
                f"{message}, where what limits its cards is or may be: mount it elsewhere"
            )


def kinds(pod: Pod) -> dict[str, ContainerKind]:
    """Return when each container runs, by name and in the order of a placement's allocations."""
    init_containers = pod.spec.init_containers
    sidecars = [container for container in init_containers if container.is_sidecar]
    init = [container for container in init_containers if not container.is_sidecar]
    return {
        **{container.name: ContainerKind.SIDECAR for container in sidecars},
        **{container.name: ContainerKind.MAIN for container in pod.spec.containers},
        **{container.name: ContainerKind.INIT for container in init},
    }


def asking(pod: Pod, resource: str) -> Iterator[str]:
    """Yield the containers that ask for the resource, in the order the kubelet admits them."""
    for container in pod.containers:
        if container.resources.limits.get(resource, "0") != "0":
            yield container.name


def initialized(pod: Pod) -> bool:
    """Return whether a pod's init containers have ended."""
    return pod.status.is_true("Initialized")


def ended(pod: Pod) -> bool:
    """Return whether a pod's containers have ended for good."""
    return pod.status.phase in ("Succeeded", "Failed")


def has_ended(pod: Pod, container_name: str) -> bool:
    """Return whether a container has ended, as its kubelet said last; it may start again."""
    if kinds(pod).get(container_name) is ContainerKind.INIT and initialized(pod):
        return True
    return any(
        status.name == container_name and status.state.terminated is not None
        for status in _statuses(pod)
    )


def running(pod: Pod) -> bool:
    """Return whether a container of a pod runs, as its kubelet said last."""
    return any(status.state.running is not None for status in _statuses(pod))


def _statuses(pod: Pod) -> tuple[ContainerStatus, ...]:
    return (*pod.status.container_statuses, *pod.status.init_container_statuses)


def active(pod: Pod) -> bool:
    """Return whether a pod may still start containers."""
    return not ended(pod) and pod.metadata.deletion_timestamp is None


def identity_of(uid: str, container_name: str) -> str:
    """Return the id of a container's grant: the same whenever it is asked for."""
    return hashlib.sha256(f"{uid}/{container_name}".encode()).hexdigest()[:12]


def named(pod: Pod) -> str:
    """Return a pod's name, for people."""
    return f"pod {'/'.join(pod.full_name)}"
