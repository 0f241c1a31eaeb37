"""Finds out whose share the kubelet is asking for, gives it, and takes it back with its pod.

The kubelet's Allocate names no pod. But its list of what pods hold has every pod it knows, also the
one it is admitting at this moment, and it admits one at a time: whoever is on that list, on this
node by the API's word, has a signed allocation and holds nothing yet is the one. When the container
starts, the same list says who got the devices, and a start that does not match is stopped.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from time import monotonic

from attrs import define, field, frozen

from hetero.container.keep import Libraries, keep
from hetero.errors import BadInput, HeteroError, Refused
from hetero.kube.api import Api, ApiError, Plain
from hetero.kube.bring import Bring
from hetero.kube.kubelet import Kubelet
from hetero.kube.wire import Key, assignment, device_of
from hetero.model import Allocation
from hetero.node.ledger import Standing
from hetero.node.node import Node
from hetero.registry import Discovery

log = logging.getLogger(__name__)

#: How long Allocate waits for a share whose pod is gone and whose processes are about to be. The
#: kubelet admits pods one by one: whoever waits here lets all others wait.
_PATIENCE = 2.0
_PAUSE = 0.1
#: Seconds within which Allocate follows upon a preference: no kubelet starts anew as fast.
_AT_ONCE = 1.0


@frozen(kw_only=True)
class Wanted:
    """A container that was given an allocation."""

    pod: Plain
    container: str
    allocation: Allocation

    @property
    def identity(self) -> str:
        """The id of its grant: the same whenever it is asked for."""
        name = f"{self.pod['metadata']['uid']}/{self.container}"
        return hashlib.sha256(name.encode()).hexdigest()[:12]

    @property
    def keeper(self) -> dict[str, str]:
        """What the ledger notes of it."""
        about = self.pod["metadata"]
        names = (about["namespace"], about["name"], about["uid"], self.container)
        return dict(zip(("namespace", "pod", "uid", "container"), names, strict=True))

    def __str__(self) -> str:
        return f"{_name(self.pod)}, container {self.container}"


@define(eq=False)
class Shares:
    """The shares of one node's pods."""

    node: Node
    name: str
    key_file: str
    api: Api
    kubelet: Kubelet
    libraries: Libraries
    discovery: Discovery
    driver: Bring = field(factory=Bring)
    pods: dict[str, Plain] = field(factory=dict)  # on this node, by UID
    # The resource and the ids last preferred, for whom and when.
    _preferred: tuple[str, frozenset[str], Wanted, float] | None = field(init=False, default=None)

    # --- what the kubelet asks ------------------------------------------------------------------

    async def prefer(
        self, resource: str, available: list[str], must: list[str], size: int
    ) -> list[str]:
        """Return the ids that are slots of the very cards the container was given."""
        wanted = await self._wanted(resource, size)
        chosen = list(must)
        left = [name for name in available if name not in chosen]
        for grant in wanted.allocation.grants:
            if any(device_of(name) == grant.device for name in chosen):
                continue
            slot = next((name for name in left if device_of(name) == grant.device), None)
            if slot is not None:
                chosen.append(slot)
                left.remove(slot)
        ids = (chosen + left)[:size]
        self._preferred = (resource, frozenset(ids), wanted, monotonic())
        return ids

    async def allocate(self, resource: str, ids: Iterable[str]) -> Standing:
        """Give the container that is being admitted its share. Raises `Refused`."""
        names = frozenset(ids)
        wanted = self._just_preferred(resource, names) or await self._wanted(resource, len(names))
        standing = await self._keep(wanted, resource, names)
        log.info("%s: given grant %s", wanted, standing.id)
        return standing

    async def confirm(self, resource: str, ids: Iterable[str]) -> None:
        """Make sure that the container about to start got these ids for its own share.

        Raises `Refused` when it did not. A share that was lost, as at a reboot, is given again.
        """
        names = frozenset(ids)
        held = await self.kubelet.held()
        served = [entry for entry in await self._standing() if _devices(entry, resource) == names]
        owners = [
            (await self._pod(*pod), container)
            for pod, containers in held.items()
            for container, resources in containers.items()
            if names <= resources.get(resource, frozenset())
        ]
        if not owners:
            # Kubelets before 1.29 do not list init containers.
            owners = [
                (self.pods.get(entry.keeper["uid"]), entry.keeper["container"]) for entry in served
            ]
        (pod, container), *others = owners or [(None, "")]
        if pod is None or others:
            raise Refused(f"the kubelet does not say which container got {_list(names)}")
        for entry in served:
            # An init container's devices are handed on to a later container of the same pod.
            if entry.keeper["uid"] != pod["metadata"]["uid"]:
                raise Refused(
                    f"{_name(pod)}, container {container}, got {_list(names)}, which was given "
                    f"for {entry.label}: it is not started (delete the pod and create it anew)"
                )
        if not any(entry.keeper["container"] == container for entry in served):
            await self._keep(self._signed(pod, container), resource, names)

    # --- whose it is ----------------------------------------------------------------------------

    async def _wanted(self, resource: str, count: int) -> Wanted:
        """Return the container that is being admitted. Raises `Refused` when there is none."""
        held = await self.kubelet.held()
        found: list[Wanted] = []
        faults: list[str] = []
        for (namespace, name), containers in held.items():
            pod = await self._pod(namespace, name)
            if pod is None or not _active(pod):
                continue
            try:
                wanted = await self._next(pod, resource, held=containers)
            except HeteroError as error:
                faults.append(str(error))
                continue
            if wanted is not None and len(wanted.allocation.grants) == count:
                found.append(wanted)
        if not found:
            why = "; ".join(faults) or "the scheduler gave none on this node what it asks"
            raise Refused(f"no pod waits for {count} {resource}: {why}")
        # Of two, one was refused by the kubelet for another reason, and the API has not heard yet:
        # the one being admitted is the one that was bound last.
        return max(found, key=lambda one: int(one.pod["metadata"]["resourceVersion"]))

    def _just_preferred(self, resource: str, ids: frozenset[str]) -> Wanted | None:
        """Return whom these very ids were chosen for by the call before this one, if they were.

        A kubelet that asks for a preference goes on to Allocate with the same container, and waits
        for each of our answers: it need not be asked a second time who that is.
        """
        preferred, self._preferred = self._preferred, None
        if preferred is None or preferred[:2] != (resource, ids):
            return None
        _, _, wanted, at = preferred
        return wanted if monotonic() - at < _AT_ONCE else None

    async def _next(
        self, pod: Plain, resource: str, *, held: Mapping[str, Mapping[str, frozenset[str]]]
    ) -> Wanted | None:
        """Return the pod's first container that asks for `resource` and does not hold it yet."""
        for container in _asking(pod, resource):
            if held.get(container, {}).get(resource):
                continue
            wanted = self._signed(pod, container)
            if container not in held and wanted.identity in await self._ids():
                continue  # an init container, which older kubelets do not list
            return wanted
        return None

    def _signed(self, pod: Plain, container: str) -> Wanted:
        """Return what the scheduler gave the container. Raises `BadInput` on a forgery."""
        about = pod["metadata"]
        given = assignment(
            about.get("annotations") or {},
            Key.read(self.key_file),
            pod=f"{about['namespace']}/{about['name']}",
            uid=about["uid"],
            node=self.name,
        )
        for name, allocation in given.containers if given else ():
            if name == container:
                return Wanted(pod=pod, container=container, allocation=allocation)
        raise BadInput(
            f"{_name(pod)}: the scheduler gave container {container} no share: is its "
            "schedulerName the one of hetero? (if it started before hetero came, delete it and "
            "create it anew)"
        )

    async def _pod(self, namespace: str, name: str) -> Plain | None:
        """Return the pod if the API says that it is on this node."""
        for pod in self.pods.values():
            about = pod["metadata"]
            if (about["namespace"], about["name"]) == (namespace, name):
                return pod
        return await self._ask(namespace, name)

    async def _ask(self, namespace: str, name: str) -> Plain | None:
        try:
            pod = await self.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return pod if pod["spec"].get("nodeName") == self.name else None

    def variable(self, entry: Standing, name: str) -> str | None:
        """Return a variable of the container a grant is for, as its pod sets it."""
        pod = self.pods.get(entry.keeper.get("uid", ""))
        spec = pod["spec"] if pod else {}
        for container in (*spec.get("containers", ()), *(spec.get("initContainers") or ())):
            if container["name"] == entry.keeper["container"]:
                variables = {one["name"]: one.get("value") for one in container.get("env") or ()}
                return variables.get(name)
        return None

    # --- the ledger -----------------------------------------------------------------------------

    async def _standing(self) -> tuple[Standing, ...]:
        """Return the grants of pods that stand."""
        look = await asyncio.to_thread(self.node.ledger.look)
        return tuple(entry for entry in look.standing if entry.keeper.get("uid"))

    async def _ids(self) -> set[str]:
        return {entry.id for entry in await self._standing()}

    async def _keep(self, wanted: Wanted, resource: str, ids: frozenset[str]) -> Standing:
        began = monotonic()
        while True:
            try:
                return await asyncio.to_thread(
                    keep,
                    self.node,
                    wanted.allocation,
                    discovery=self.discovery,
                    identity=wanted.identity,
                    label="/".join((*_full_name(wanted.pod), wanted.container)),
                    keeper={**wanted.keeper, resource: ",".join(sorted(ids))},
                    libraries=self.libraries,
                    beside=partial(self._rests, wanted.pod),
                    bring=partial(self.driver.into, wanted.pod),
                )
            except Refused as error:
                if monotonic() - began > _PATIENCE:
                    raise Refused(f"{wanted}: {error}") from None
            await self.reconcile()
            await asyncio.sleep(_PAUSE)

    def _rests(self, pod: Plain, entry: Standing) -> bool:
        """Whether a grant is an init container's that has ended, or will have when `pod` runs."""
        uid = entry.keeper.get("uid")
        own = uid == pod["metadata"]["uid"]
        owner = pod if own else self.pods.get(uid or "")
        if owner is None or entry.keeper["container"] not in _ending(owner):
            return False
        return own or _initialized(owner)

    async def reconcile(self) -> None:
        """Take back the shares of pods that ended or are not on this node any more."""
        gone = False
        for entry in await self._standing():
            about = entry.keeper
            pod = self.pods.get(about["uid"])
            if pod is None:
                # Not in our copy: only the API itself can say that it is gone.
                try:
                    pod = await self._ask(about["namespace"], about["pod"])
                except ApiError:
                    continue
            if pod is not None and pod["metadata"]["uid"] == about["uid"] and not ended(pod):
                continue
            await asyncio.to_thread(self.node.ledger.let_go, entry.id)
            log.info("%s: its pod is gone, grant %s is let go", entry.label, entry.id)
            gone = True
        if gone:
            await asyncio.to_thread(self.node.sweep)


def _asking(pod: Plain, resource: str) -> Iterator[str]:
    """Yield the containers that ask for the resource, in the order the kubelet admits them."""
    spec = pod["spec"]
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        limits = (container.get("resources") or {}).get("limits") or {}
        if limits.get(resource, "0") != "0":
            yield container["name"]


def _ending(pod: Plain) -> set[str]:
    """Return the init containers that end before the others start."""
    starting = pod["spec"].get("initContainers") or ()
    return {one["name"] for one in starting if one.get("restartPolicy") != "Always"}


def _initialized(pod: Plain) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Initialized" and one["status"] == "True" for one in conditions)


def ended(pod: Plain) -> bool:
    """Return whether a pod's containers have ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _active(pod: Plain) -> bool:
    return not ended(pod) and "deletionTimestamp" not in pod["metadata"]


def _devices(entry: Standing, resource: str) -> frozenset[str]:
    return frozenset(entry.keeper.get(resource, "").split(","))


def _full_name(pod: Plain) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _name(pod: Plain) -> str:
    return f"pod {'/'.join(_full_name(pod))}"


def _list(ids: Iterable[str]) -> str:
    return ", ".join(sorted(ids))
