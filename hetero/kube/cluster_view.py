"""A cluster as its API tells it: every node's devices, the pods that hold of them, and their use.

Use is what the agents tell Prometheus, read through the API: whoever may see the pods of the agents
and reach into them sees it, from anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from time import monotonic

from attrs import evolve, field, frozen
from prometheus_client.parser import text_string_to_metric_families

from hetero.kube.client.api import IMPATIENT, Access, Api, ApiError
from hetero.kube.objects.kinds import NodeObject, Pod
from hetero.kube.objects.reading import read_all
from hetero.kube.server.delegated import AUDIENCE, TOKEN
from hetero.kube.words.annotations import ALLOCATION, INVENTORY, Assignment, published_devices
from hetero.kube.words.pod import ended
from hetero.model import CORE, MEMORY, Allocation, Device, DeviceAllocation, Inventory, Usage, codec
from hetero.model.errors import BadInput
from hetero.node.view.observe import DeviceView, Share, lending

#: How the agents' pods are known, and the names of the port their metrics are on: the second is one
#: that lets in everybody.
_AGENTS, _PORTS = {"app": "hetero-agent"}, {"https-metrics": "https:", "metrics": ""}
#: Whose tokens let in who reads them through the API.
_READER = "hetero-metrics"
_LABELS = ("UUID", "namespace", "pod", "container")


@frozen(kw_only=True)
class PodView:
    """A container that holds devices, as the scheduler noted; `phase` is its pod's."""

    namespace: str
    pod: str
    container: str
    node: str
    phase: str
    allocation: Allocation
    shares: tuple[Share, ...] = ()  # of the device of each grant


@frozen(kw_only=True)
class MemberView:
    """One node of a cluster.

    `fault` says why its inventory cannot be read, `silent` why its usage is not known.
    """

    name: str
    devices: tuple[DeviceView, ...]
    fault: str | None = None
    silent: str | None = None


@frozen(kw_only=True)
class ClusterView:
    """All nodes that published devices, and all pods that hold some."""

    nodes: tuple[MemberView, ...]
    pods: tuple[PodView, ...]


@frozen(kw_only=True)
class _Heard:
    """What one agent said: values by metric and labels, at a time; or why it said nothing."""

    at: float = 0.0
    values: Mapping[tuple[str, ...], float] = field(factory=dict)
    silent: str | None = None


def read_cluster(*, seconds: float | None = None) -> ClusterView:
    """Return the cluster of this pod or of $KUBECONFIG. Raises `HeteroError` without one.

    What is used is looked up if `seconds` says over how long.
    """

    async def asked() -> ClusterView:
        async with Api(Access.here(), connect=IMPATIENT).open() as api:
            return await snapshot(api, seconds=seconds)

    return asyncio.run(asked())


async def snapshot(api: Api, *, seconds: float | None = None) -> ClusterView:
    """Return the cluster behind an API, as `read_cluster`."""
    answers = await asyncio.gather(api.get("/api/v1/nodes"), api.get("/api/v1/pods"))
    nodes, pods = read_all(NodeObject, answers[0]["items"]), read_all(Pod, answers[1]["items"])
    holding = tuple(view for pod in pods for view in _holding(pod))
    members = tuple(
        _member(node, holding) for node in nodes if INVENTORY in node.metadata.annotations
    )
    before: dict[str, _Heard] = {}
    now: dict[str, _Heard] = {}
    if seconds is not None:
        agents = dict(filter(None, map(_agent, pods)))
        before = await _hear(api, agents)
        await asyncio.sleep(seconds)
        now = await _hear(api, agents)
        members = tuple(_used(member, now.get(member.name)) for member in members)
    rows = {row.device.uuid: row for member in members for row in member.devices}
    known = partial(_share, rows=rows, before=before, now=now)
    used = tuple(
        evolve(view, shares=tuple(known(view, piece) for piece in view.allocation.pieces))
        for view in holding
    )
    with_lent = lending(share for view in used for share in view.shares)
    views = (evolve(view, shares=tuple(map(with_lent, view.shares))) for view in used)
    return ClusterView(nodes=members, pods=tuple(views))


# --- what is used -----------------------------------------------------------------------------


def _agent(pod: Pod) -> tuple[str, str] | None:
    """Return an agent's node and where the API serves its metrics; None for any other pod."""
    about, node = pod.metadata, pod.spec.node_name
    if node is None or not _AGENTS.items() <= about.labels.items():
        return None
    declared = (port for one in pod.spec.containers for port in one.ports)
    ports = {port.name: port.container_port for port in declared}
    name = next((name for name in _PORTS if name in ports), "metrics")
    at = f"{_PORTS[name]}{about.name}:{ports.get(name, 80)}"
    return node, f"/api/v1/namespaces/{about.namespace}/pods/{at}/proxy/metrics"


async def _token(api: Api, agents: Iterable[str]) -> dict[str, str]:
    """Return the header that lets in: the API hands no token of ours on, and none of ours should.

    Raises `ApiError`.
    """
    secure = next((path for path in agents if "/https:" in path), None)
    if secure is None:
        return {}
    namespace = secure.partition("/pods/")[0]
    spec = {"audiences": [AUDIENCE], "expirationSeconds": 600}
    path = f"{namespace}/serviceaccounts/{_READER}/token"
    return {TOKEN: (await api.post(path, {"spec": spec}))["status"]["token"]}


async def _hear(api: Api, agents: Mapping[str, str]) -> dict[str, _Heard]:
    try:
        headers = await _token(api, agents.values())
    except ApiError as error:
        return dict.fromkeys(agents, _Heard(silent=str(error)))

    async def answer_of(path: str) -> _Heard:
        try:
            text = await api.text(path, headers)
        except ApiError as error:
            return _Heard(silent=str(error))
        values = {
            (sample.name, *(sample.labels.get(label, "") for label in _LABELS)): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "UUID" in sample.labels
        }
        return _Heard(at=monotonic(), values=values)

    heard = await asyncio.gather(*map(answer_of, agents.values()))
    return dict(zip(agents, heard, strict=True))


def _used(member: MemberView, heard: _Heard | None) -> MemberView:
    """Return the node with what its devices are used now."""
    if heard is None or heard.silent:
        return evolve(member, silent="no agent runs there" if heard is None else heard.silent)

    def usage(uuid: str) -> Usage:
        memory, busy = (
            heard.values.get((f"hetero_device_{name}", uuid, "", "", ""))
            for name in ("memory_used_bytes", "utilization_ratio")
        )
        return Usage(memory=None if memory is None else int(memory), core=busy)

    devices = (evolve(view, usage=usage(view.device.uuid)) for view in member.devices)
    return evolve(member, devices=tuple(devices))


def _share(
    view: PodView,
    piece: DeviceAllocation,
    *,
    rows: Mapping[str, DeviceView],
    before: Mapping[str, _Heard],
    now: Mapping[str, _Heard],
) -> Share:
    """Return what a container has and uses of the device of a grant."""
    row, nothing = rows.get(piece.device), _Heard()
    old, new = before.get(view.node, nothing), now.get(view.node, nothing)
    whose = (piece.device, view.namespace, view.pod, view.container)
    memory = new.values.get(("hetero_share_memory_used_bytes", *whose))

    def mean(name: str) -> float | None:
        """Return what a count of seconds grew by in a second; None where no core is limited."""
        key = (f"hetero_share_{name}_seconds_total", *whose)
        if core is None or key not in old.values or key not in new.values:
            return None
        return max(new.values[key] - old.values[key], 0) / (new.at - old.at)

    core = None
    if row is not None and piece.core is not None:
        core = 100 * piece.core / row.device.of_card(CORE)
    used, borrowed, stopped = mean("core"), mean("borrowed"), mean("stopped")
    return Share(
        device=piece.device,
        number=row.number if row else None,
        memory=piece.takes[MEMORY],
        core=core,
        enforcement=row.device.enforcement if row else None,
        memory_used=None if memory is None else int(memory),
        core_used=None if used is None else 100 * used,
        core_borrowed=None if borrowed is None else 100 * borrowed,
        core_stopped=None if stopped is None else 1000 * stopped,
    )


# --- what stands ------------------------------------------------------------------------------


def _member(node: NodeObject, holding: tuple[PodView, ...]) -> MemberView:
    name = node.metadata.name
    try:
        devices = published_devices(node.metadata.annotations[INVENTORY], node=name)
    except BadInput as error:
        return MemberView(name=name, devices=(), fault=str(error))
    on_node = tuple(view for view in holding if view.node == name)
    free = Inventory(devices, tuple(view.allocation for view in on_node)).free()

    def held(device: Device) -> dict[str, int]:
        return {name: all_ - free[device.uuid][name] for name, all_ in device.capacity.items()}

    return MemberView(
        name=name,
        devices=tuple(
            DeviceView(
                number=number,
                device=device,
                held=held(device),
                usage=Usage(),
                grants=tuple(
                    f"{view.namespace}/{view.pod}/{view.container}"
                    for view in on_node
                    if any(piece.device == device.uuid for piece in view.allocation.pieces)
                ),
            )
            for number, device in enumerate(devices)
        ),
    )


def _holding(pod: Pod) -> tuple[PodView, ...]:
    """Return what the pod's containers hold; nothing when it ended or is not bound."""
    about, node = pod.metadata, pod.spec.node_name
    text = about.annotations.get(ALLOCATION)
    if text is None or node is None or ended(pod):
        return ()
    view = PodView(
        namespace=about.namespace,
        pod=about.name,
        container="",
        node=node,
        phase=pod.status.phase or "Unknown",
        allocation=Allocation(pieces=()),
    )
    try:
        # Not verified here, where there is no key: what is shown decides nothing.
        given = codec.loads(text, Assignment, source=f"pod {about.name}")
    except BadInput:
        return ()
    return tuple(
        evolve(view, container=container, allocation=allocation)
        for container, allocation in given.containers
    )
