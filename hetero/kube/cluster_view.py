"""A cluster as its API shows it: every node's devices, the pods that hold them, and their usage.

The usage is in the metrics of the agents, which are read through the API. A user with the right to
list the agents' pods and to proxy to them sees it from any machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import starmap
from pathlib import Path
from time import monotonic

from attrs import evolve, field, frozen
from prometheus_client.parser import text_string_to_metric_families

from hetero.kube.client.api import VIEW_CONNECT_S, Access, Api, ApiError
from hetero.kube.cluster_objects import AGENTS, ClusterObjects, read_saved
from hetero.kube.cluster_totals import ClusterTotals, PoolTotal, SickCard, by_size, pool_of
from hetero.kube.dra.claims import users
from hetero.kube.dra.standing_claims import ClaimBooks, StandingClaim, claim_books, read_claims
from hetero.kube.objects.kinds import NodeObject, Pod
from hetero.kube.server.delegated import AUDIENCE, TOKEN
from hetero.kube.words.annotations import (
    ALLOCATION,
    INVENTORY,
    Assignment,
    Held,
    NodeGrant,
    NodeGrants,
    RunsOn,
    idle_cordons,
    published,
)
from hetero.kube.words.pod import ended, has_ended, kinds
from hetero.model import (
    MEMORY,
    Allocation,
    ContainerKind,
    Device,
    DeviceAllocation,
    Inventory,
    Usage,
    codec,
)
from hetero.model.errors import BadInput
from hetero.node.view.observe import DeviceView, Share, device_view, lending
from hetero.node.view.totals import totals

#: The names of the port that agents' metrics are on: the second is one that lets in everybody.
_PORTS = {"https-metrics": "https:", "metrics": ""}
#: Whose tokens let in who reads them through the API.
_READER_ACCOUNT = "hetero-metrics"
_LABEL_NAMES = ("UUID", "namespace", "pod", "container", "claim")
#: Phases of containers that are not those of their pods.
ENDED, RUNS_ON = "ended", "runs on"
#: What stands in place of a phase for a grant of a node's own program, share or container.
NOT_A_POD = "not a pod's"


@frozen(kw_only=True)
class ContainerView:
    """A container that holds devices, as the scheduler recorded it; `phase` is that of its pod.

    It is `ENDED` of a container that has ended and for which its pod holds something until it ends
    itself, and `RUNS_ON` of one whose pod is over. Of a `claim`, `pod_name` and `container_name`
    name all that use it, and are empty where no pod uses it yet. Of a grant that is `NOT_A_POD`,
    the container has its name, and there is no namespace.
    """

    namespace: str
    pod_name: str
    container_name: str
    node: str
    phase: str
    allocation: Allocation
    kind: ContainerKind = ContainerKind.MAIN
    claim: str | None = None
    shares: tuple[Share, ...] = ()  # of the device of each grant

    @property
    def holder(self) -> str:
        """The name by which it is in the list of a card's grants."""
        names = (self.claim,) if self.claim else (self.pod_name, self.container_name)
        return "/".join(filter(None, (self.namespace, *names)))


@frozen(kw_only=True)
class MemberView:
    """One node of a cluster.

    `pool` is the pool of nodes that it is in. `inventory_error` says why its inventory cannot be
    read, `metrics_error` why the metrics of its agent cannot, so that its usage is not known.
    """

    name: str
    devices: tuple[DeviceView, ...]
    inventory_error: str | None = None
    metrics_error: str | None = None
    pool: str | None = None


@frozen(kw_only=True)
class ClusterView:
    """All nodes with published devices, and all containers and claims that hold some.

    `notes` say what cards of claims are not shown, and why, and which cordons mean no card.
    """

    nodes: tuple[MemberView, ...]
    containers: tuple[ContainerView, ...]
    notes: tuple[str, ...] = ()


@frozen(kw_only=True)
class _Published:
    """What a node's annotation says: its devices and grants; or why it cannot be read.

    `numbers` are those of the devices in the node's inventory.
    """

    devices: tuple[Device, ...] = ()
    numbers: tuple[int, ...] = ()
    grants: NodeGrants = field(factory=NodeGrants)
    inventory_error: str | None = None


@frozen(kw_only=True)
class _Heard:
    """The metrics of one agent: values by metric and labels, at a time; or why there are none."""

    heard_at_s: float = 0.0
    values: Mapping[tuple[str, ...], float] = field(factory=dict)
    metrics_error: str | None = None


def read_cluster(
    *, seconds: float | None = None, saved: Path | None = None, node: str | None = None
) -> ClusterView:
    """Return the cluster of this pod or of $KUBECONFIG, or a `saved` one; of one `node` alone.

    Usage is measured over `seconds` if that is given. Raises `HeteroError` without a cluster.
    """
    if saved is not None:
        return view_of(objects_of(saved=saved, node=node))

    async def read() -> ClusterView:
        async with Api(Access.here(), connect_timeout_s=VIEW_CONNECT_S).open() as api:
            return await snapshot(api, seconds=seconds)

    return asyncio.run(read())


def objects_of(*, saved: Path | None = None, node: str | None = None) -> ClusterObjects:
    """Return the objects of the cluster as `read_cluster` reads them. Raises `HeteroError`."""
    objects = asyncio.run(_live(node)) if saved is None else read_saved(saved)
    return objects if node is None else objects.of_node(node)


async def _live(node: str | None) -> ClusterObjects:
    async with Api(Access.here(), connect_timeout_s=VIEW_CONNECT_S).open() as api:
        return await read_objects(api, node=node)


async def read_objects(api: Api, *, node: str | None = None) -> ClusterObjects:
    """Return the objects behind an API, of pods those of `node` alone if it is named."""
    of_node = {"fieldSelector": f"spec.nodeName={node}"} if node else {}
    nodes, pods, (slices, claims, notes) = await asyncio.gather(
        api.objects("/api/v1/nodes", NodeObject),
        api.objects("/api/v1/pods", Pod, of_node),
        read_claims(api),
    )
    return ClusterObjects(nodes=nodes, pods=pods, slices=slices, claims=claims, notes=tuple(notes))


async def snapshot(api: Api, *, seconds: float | None = None) -> ClusterView:
    """Return the cluster behind an API, as `read_cluster`."""
    objects = await read_objects(api)
    if seconds is None:
        return view_of(objects)
    path_by_node = dict(filter(None, map(_agent, objects.pods)))
    metrics_before = await _hear(api, path_by_node)
    await asyncio.sleep(seconds)
    return view_of(objects, metrics_before, await _hear(api, path_by_node))


def view_of(
    objects: ClusterObjects,
    metrics_before: Mapping[str, _Heard] | None = None,
    metrics_now: Mapping[str, _Heard] | None = None,
) -> ClusterView:
    """Return what these objects say of a cluster; usage is what grew between the metrics."""
    published_by_node, books = _published_by_node(objects)
    holders = _holders(objects, published_by_node, books)
    members = _members(objects, published_by_node, holders)
    if metrics_now is not None:
        members = tuple(_used(member, metrics_now.get(member.name)) for member in members)
    row_by_uuid = {row.device.uuid: row for member in members for row in member.devices}
    share_of = partial(
        _share,
        row_by_uuid=row_by_uuid,
        metrics_before=metrics_before or {},
        metrics_now=metrics_now or {},
    )
    used_views = tuple(
        evolve(view, shares=tuple(share_of(view, piece) for piece in view.allocation.pieces))
        for holder in holders
        for view in holder
    )
    with_lent = lending(share for view in used_views for share in view.shares)
    views = (evolve(view, shares=tuple(map(with_lent, view.shares))) for view in used_views)
    idle = _idle_cordons(objects.nodes, published_by_node)
    return ClusterView(
        nodes=members, containers=tuple(views), notes=(*objects.notes, *books.notes, *idle)
    )


def _members(
    objects: ClusterObjects,
    published_by_node: Mapping[str, _Published],
    holders: Iterable[tuple[ContainerView, ...]],
) -> tuple[MemberView, ...]:
    holders_by_node: dict[str, list[tuple[ContainerView, ...]]] = {}
    for holder in filter(None, holders):
        holders_by_node.setdefault(holder[0].node, []).append(holder)
    pool_by_node = {node.metadata.name: pool_of(node.metadata.labels) for node in objects.nodes}
    return tuple(
        evolve(_member(name, inventory, holders_by_node.get(name, ())), pool=pool_by_node.get(name))
        for name, inventory in published_by_node.items()
    )


def _holders(
    objects: ClusterObjects, published_by_node: Mapping[str, _Published], books: ClaimBooks
) -> tuple[tuple[ContainerView, ...], ...]:
    """Return the views of each pod, claim and other grant, of which each is one sum."""
    corrected_by_node = {
        name: inventory.grants.corrected_pods for name, inventory in published_by_node.items()
    }
    return (
        *(
            _holding(pod, corrected_by_node.get(pod.spec.node_name or "", {}))
            for pod in objects.pods
        ),
        *(
            _running_on(name, ended_pod)
            for name, inventory in published_by_node.items()
            for ended_pod in inventory.grants.ended_pods.values()
        ),
        *(
            (_other(name, grant),)
            for name, inventory in published_by_node.items()
            for grant in inventory.grants.others.values()
        ),
        *((view,) for view in _claiming(books.claims, objects.pods)),
    )


def _published_by_node(objects: ClusterObjects) -> tuple[dict[str, _Published], ClaimBooks]:
    """Return what each node with cards says of them, and what claims hold."""
    published_by_node = {
        node.metadata.name: _inventory(node)
        for node in objects.nodes
        if INVENTORY in node.metadata.annotations
    }
    devices_by_node = {name: inventory.devices for name, inventory in published_by_node.items()}
    books = claim_books(objects.slices, objects.claims, devices_by_node)
    for node in objects.nodes:
        if node.metadata.name in books.pools:
            pool = books.pools[node.metadata.name]
            inventory = published_by_node.get(node.metadata.name, _Published())
            # An inventory beside slices is what an agent of another `allocation` left there.
            if pool.devices:
                inventory = _Published(
                    devices=pool.devices, numbers=pool.device_numbers, grants=pool.grants
                )
            published_by_node[node.metadata.name] = inventory
    return published_by_node, books


def _idle_cordons(
    nodes: Iterable[NodeObject], published_by_node: Mapping[str, _Published]
) -> Iterator[str]:
    annotations_by_node = {node.metadata.name: node.metadata.annotations for node in nodes}
    for name, inventory in published_by_node.items():
        if inventory.devices:
            yield from idle_cordons(
                annotations_by_node.get(name, {}),
                [device.uuid for device in inventory.devices],
                node=name,
            )


def totals_of(view: ClusterView) -> ClusterTotals:
    """Return the sums over the cards of a view, as `cluster_totals` makes them."""
    rows_by_pool: dict[str | None, list[DeviceView]] = {}
    nodes_by_model: dict[tuple[str | None, str, str], set[str]] = {}
    for member in view.nodes:
        rows_by_pool.setdefault(member.pool, []).extend(member.devices)
        for row in member.devices:
            key = (member.pool, row.device.vendor, row.device.short_model)
            nodes_by_model.setdefault(key, set()).add(member.name)
    pool_totals = (
        PoolTotal(pool=pool, nodes=len(nodes_by_model[pool, sums.vendor, sums.model]), total=sums)
        for pool, rows in rows_by_pool.items()
        for sums in totals(rows)
    )
    return ClusterTotals(
        nodes=len(view.nodes),
        pods=len(
            {
                (container.namespace, container.claim or container.pod_name, bool(container.claim))
                for container in view.containers
            }
        ),
        totals=tuple(sorted(pool_totals, key=by_size)),
        sick=tuple(
            SickCard(
                node=member.name,
                device_number=row.device_number,
                vendor=row.device.vendor,
                model=row.device.short_model,
                ailment=row.device.ailment or "",
                health=row.device.health or "",
            )
            for member in view.nodes
            for row in member.devices
            if not row.device.healthy
        ),
        faults=tuple(member.inventory_error for member in view.nodes if member.inventory_error),
        notes=view.notes,
    )


# --- what is used -----------------------------------------------------------------------------


def _agent(pod: Pod) -> tuple[str, str] | None:
    """Return an agent's node and where the API serves its metrics; None for any other pod."""
    metadata, node = pod.metadata, pod.spec.node_name
    if node is None or not AGENTS.items() <= metadata.labels.items():
        return None
    declared_ports = (port for container in pod.spec.containers for port in container.ports)
    number_by_name = {port.name: port.container_port for port in declared_ports}
    port_name = next((port_name for port_name in _PORTS if port_name in number_by_name), "metrics")
    pod_and_port = f"{_PORTS[port_name]}{metadata.name}:{number_by_name.get(port_name, 80)}"
    return node, f"/api/v1/namespaces/{metadata.namespace}/pods/{pod_and_port}/proxy/metrics"


async def _token(api: Api, paths: Iterable[str]) -> dict[str, str]:
    """Return the header that admits a reader of the metrics. Raises `ApiError`.

    The API server does not forward tokens, and ours must not be forwarded.
    """
    secure_path = next((path for path in paths if "/https:" in path), None)
    if secure_path is None:
        return {}
    namespace = secure_path.partition("/pods/")[0]
    spec = {"audiences": [AUDIENCE], "expirationSeconds": 600}
    path = f"{namespace}/serviceaccounts/{_READER_ACCOUNT}/token"
    return {TOKEN: (await api.post(path, {"spec": spec}))["status"]["token"]}


async def _hear(api: Api, path_by_node: Mapping[str, str]) -> dict[str, _Heard]:
    try:
        headers = await _token(api, path_by_node.values())
    except ApiError as error:
        return dict.fromkeys(path_by_node, _Heard(metrics_error=str(error)))

    async def metrics_at(path: str) -> _Heard:
        try:
            metrics_text = await api.text(path, headers)
        except ApiError as error:
            return _Heard(metrics_error=str(error))
        value_by_labels = {
            (sample.name, *(sample.labels.get(label, "") for label in _LABEL_NAMES)): sample.value
            for family in text_string_to_metric_families(metrics_text)
            for sample in family.samples
            if "UUID" in sample.labels
        }
        return _Heard(heard_at_s=monotonic(), values=value_by_labels)

    metrics = await asyncio.gather(*map(metrics_at, path_by_node.values()))
    return dict(zip(path_by_node, metrics, strict=True))


def _used(member: MemberView, metrics: _Heard | None) -> MemberView:
    """Return the node with the current usage of its devices."""
    if metrics is None or metrics.metrics_error:
        return evolve(
            member,
            metrics_error="no agent runs there" if metrics is None else metrics.metrics_error,
        )

    def usage(uuid: str) -> Usage:
        memory_bytes, core_part = (
            metrics.values.get((f"hetero_device_{metric_name}", uuid, "", "", "", ""))
            for metric_name in ("memory_used_bytes", "utilization_ratio")
        )
        return Usage(memory=None if memory_bytes is None else int(memory_bytes), core=core_part)

    devices = (evolve(view, usage=usage(view.device.uuid)) for view in member.devices)
    return evolve(member, devices=tuple(devices))


def _share(
    view: ContainerView,
    piece: DeviceAllocation,
    *,
    row_by_uuid: Mapping[str, DeviceView],
    metrics_before: Mapping[str, _Heard],
    metrics_now: Mapping[str, _Heard],
) -> Share:
    """Return what a container holds and uses of one of its devices."""
    row, no_metrics = row_by_uuid.get(piece.device), _Heard()
    old_metrics, new_metrics = (
        metrics_before.get(view.node, no_metrics),
        metrics_now.get(view.node, no_metrics),
    )
    whose = ("", "", view.claim) if view.claim else (view.pod_name, view.container_name, "")
    labels = (piece.device, view.namespace, *whose)
    memory_bytes = new_metrics.values.get(("hetero_share_memory_used_bytes", *labels))

    def mean(metric_name: str) -> float | None:
        """Return the growth per second of a counter of seconds; None where no core is limited."""
        sample_key = (f"hetero_share_{metric_name}_seconds_total", *labels)
        if (
            core_percent is None
            or sample_key not in old_metrics.values
            or sample_key not in new_metrics.values
        ):
            return None
        return max(new_metrics.values[sample_key] - old_metrics.values[sample_key], 0) / (
            new_metrics.heard_at_s - old_metrics.heard_at_s
        )

    core_percent = piece.core_percent(row.device) if row else None
    core_used, core_borrowed, stopped_part = mean("core"), mean("borrowed"), mean("stopped")
    return Share(
        device=piece.device,
        card=row.device.name if row else None,
        device_number=row.device_number if row else None,
        memory_bytes=piece.takes.get(MEMORY, 0),
        core_percent=core_percent,
        enforcement=row.device.enforcement if row else None,
        memory_used_bytes=None if memory_bytes is None else int(memory_bytes),
        core_used_percent=None if core_used is None else 100 * core_used,
        core_borrowed_percent=None if core_borrowed is None else 100 * core_borrowed,
        core_stopped_ms_per_s=None if stopped_part is None else 1000 * stopped_part,
    )


# --- what stands ------------------------------------------------------------------------------


def _inventory(node: NodeObject) -> _Published:
    """Return what a node's annotation says, or why it cannot be read."""
    try:
        devices, grants = published(node.metadata.annotations[INVENTORY], node=node.metadata.name)
    except BadInput as error:
        return _Published(inventory_error=str(error))
    return _Published(devices=devices, numbers=tuple(range(len(devices))), grants=grants)


def _member(
    node_name: str, inventory: _Published, node_holders: Collection[tuple[ContainerView, ...]]
) -> MemberView:
    pods = (tuple((view.kind, view.allocation) for view in holder) for holder in node_holders)
    free_by_uuid = Inventory(inventory.devices, pods=tuple(pods)).free()

    pieces_by_uuid: dict[str, list[tuple[str, DeviceAllocation]]] = {}
    for holder in node_holders:
        for view in holder:
            for piece in view.allocation.pieces:
                pieces_by_uuid.setdefault(piece.device, []).append((view.holder, piece))
    return MemberView(
        name=node_name,
        inventory_error=inventory.inventory_error,
        devices=tuple(
            device_view(
                number,
                device,
                free_by_uuid[device.uuid],
                pieces_by_uuid.get(device.uuid, ()),
                usage=Usage(),
            )
            for number, device in zip(inventory.numbers, inventory.devices, strict=True)
        ),
    )


def _running_on(node_name: str, ended_pod: RunsOn) -> tuple[ContainerView, ...]:
    """Return what the containers of a pod hold that run on after its end."""
    return tuple(
        ContainerView(
            namespace=ended_pod.namespace,
            pod_name=ended_pod.pod,
            container_name=container_name,
            node=node_name,
            phase=RUNS_ON,
            allocation=allocation,
            kind=kind,
        )
        for container_name, kind, allocation in ended_pod.containers
    )


def _other(node_name: str, grant: NodeGrant) -> ContainerView:
    """Return what a grant of no pod holds."""
    return ContainerView(
        namespace=grant.namespace,
        pod_name="",
        container_name="" if grant.namespace else grant.name,
        node=node_name,
        phase=RUNS_ON if grant.namespace else NOT_A_POD,
        allocation=grant.allocation,
        claim=grant.name if grant.namespace else None,
    )


def _holding(pod: Pod, corrected_pods: Held) -> tuple[ContainerView, ...]:
    """Return what the containers of a pod hold; nothing for one that ended or is not bound.

    `corrected_pods` are those of its node that hold something else than they say themselves.
    """
    metadata, node = pod.metadata, pod.spec.node_name
    allocation_json = metadata.annotations.get(ALLOCATION)
    corrected = corrected_pods.get(metadata.uid)
    if not (allocation_json or corrected) or node is None or ended(pod):
        return ()
    view = ContainerView(
        namespace=metadata.namespace,
        pod_name=metadata.name,
        container_name="",
        node=node,
        phase=_phase(pod),
        allocation=Allocation(pieces=()),
    )
    if corrected:
        containers = tuple((name, allocation) for name, _, allocation in corrected.containers)
    else:
        try:
            # Not verified here, where there is no key: what is shown decides nothing.
            assignment = codec.loads(
                allocation_json or "", Assignment, source=f"pod {metadata.name}"
            )
        except BadInput:
            return ()
        containers = assignment.containers
    kind_by_container = kinds(pod)

    def of_container(container_name: str, allocation: Allocation) -> ContainerView:
        kind = kind_by_container.get(container_name, ContainerKind.MAIN)
        phase = ENDED if has_ended(pod, container_name) else view.phase
        return evolve(
            view, container_name=container_name, allocation=allocation, kind=kind, phase=phase
        )

    return tuple(starmap(of_container, containers))


def _phase(pod: Pod) -> str:
    return pod.status.phase or "Unknown"


def _claiming(claims: Iterable[StandingClaim], pods: Iterable[Pod]) -> Iterator[ContainerView]:
    """Yield a view for each claim: what it holds is its own, however many pods use it."""
    pod_by_uid = {pod.metadata.uid: pod for pod in pods if not ended(pod)}
    for claim in claims:
        users_of_claim = [pod_by_uid[uid] for uid in claim.pods if uid in pod_by_uid]
        names_and_phases = [
            (container.name, ENDED if has_ended(pod, container.name) else _phase(pod))
            for pod in users_of_claim
            for container in users(pod, claim.name)
        ]
        container_names = [name for name, _ in names_and_phases]
        phases = [phase for _, phase in names_and_phases] or [*map(_phase, users_of_claim)]
        if any(phase != ENDED for phase in phases):
            phases = [phase for phase in phases if phase != ENDED]
        yield ContainerView(
            namespace=claim.namespace,
            pod_name=", ".join(pod.metadata.name for pod in users_of_claim),
            container_name=", ".join(dict.fromkeys(container_names)),
            node=claim.node,
            phase=", ".join(dict.fromkeys(phases)) or "unused",
            allocation=claim.allocation,
            claim=claim.name,
        )
