"""Racks of every kind of card there is, and short spellings of pods."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import evolve

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Ask,
    Device,
    Fractional,
    Granularity,
    Ladder,
    MultiDevice,
    Refusal,
    Request,
    Step,
    Template,
    Templated,
    Whole,
)
from hetero.model.units import GiB, MiB
from hetero.placement.cache import QuotaRules, SchedulerCache
from hetero.placement.cluster import PlacedContainer, PlacedNode, PlacedPod, Placement
from hetero.placement.placement_policy import WEIGHTS, Weights
from hetero.placement.state import Cluster
from hetero.testing import rack

#: One of each way a card divides: whole; freely; in coarse steps; by a ladder, several of them only
#: whole; by a menu; in parts that exist already; with few sharers; and into slices for whole pods.
KINDS: dict[str, tuple[Granularity, dict[str, int]]] = {
    "whole": (Whole(), {CORE: 100, MEMORY: 32 * GiB, SLOTS: 1}),
    "free": (Fractional(), {CORE: 100, MEMORY: 80 * GiB, SLOTS: 10}),
    "coarse": (
        Fractional(memory=Step(256 * MiB), core=Step(5)),
        {CORE: 100, MEMORY: 24 * GiB, SLOTS: 8},
    ),
    "ladder": (
        Fractional(
            memory=Ladder(tuple(512 * MiB * n for n in (2, 4, 8, 16, 32, 64, 96))),
            core=Ladder((1, 2, 4, 8, 16)),
            multi=MultiDevice.WHOLE,
        ),
        {CORE: 16, MEMORY: 48 * GiB, SLOTS: 16},
    ),
    "menu": (
        Templated(
            menu=(
                Template("s2", {CORE: 2, MEMORY: 8 * GiB, "extra": 1}),
                Template("s4", {CORE: 4, MEMORY: 16 * GiB, "extra": 2}),
                Template("s8", {CORE: 8, MEMORY: 32 * GiB, "extra": 4}),
            )
        ),
        {CORE: 16, MEMORY: 64 * GiB, SLOTS: 8, "extra": 7},
    ),
    "parts": (
        Templated(
            menu=(
                Template("p1", {CORE: 1, MEMORY: 10 * GiB, "part-a": 1}, part="a"),
                Template("p1", {CORE: 1, MEMORY: 10 * GiB, "part-b": 1}, part="b"),
                Template("p3", {CORE: 3, MEMORY: 40 * GiB, "part-c": 1}, part="c"),
            ),
            whole=False,
        ),
        {CORE: 5, MEMORY: 60 * GiB, SLOTS: 3, "part-a": 1, "part-b": 1, "part-c": 1},
    ),
    "shares": (
        Fractional(memory=Step(GiB), core=Step(10), multi=MultiDevice.SHARES),
        {CORE: 100, MEMORY: 16 * GiB, SLOTS: 4},
    ),
    "slices": (
        Fractional(multi=MultiDevice.WHOLE, cut_at_admission=True),
        {CORE: 100, MEMORY: 80 * GiB, SLOTS: 10},
    ),
}


def cards(kind: str, count: int, *, node: str = "n", **facts: Any) -> tuple[Device, ...]:
    """Return equal cards of a kind, named `<node>/<kind>-<number>`."""
    granularity, capacity = KINDS[kind]
    made = rack(*[capacity[MEMORY]] * count, vendor=kind, model=f"{kind} card", **facts)
    return tuple(
        evolve(
            device,
            uuid=f"{node}/{device.uuid}",
            capacity=dict(capacity),
            granularity=granularity,
        )
        for device in made
    )


def node(name: str, *devices: Sequence[Device], cpu: int = 64_000, memory: int = 256) -> PlacedNode:
    """Return a node; `memory` is in GiB."""
    host = {"cpu": cpu, "memory": memory * GiB}
    return PlacedNode(name=name, devices=tuple(d for some in devices for d in some), host=host)


def pod(
    count: int = 1,
    *,
    name: str = "",
    cpu: int = 0,
    priority: int = 0,
    work: int = 0,
    namespace: str = "default",
    asks: tuple[Ask, ...] | None = None,
    request: dict[str, Any] | None = None,
    **ask: Any,
) -> PlacedPod:
    """Return a pod of one container that asks `count` cards for the same."""
    asks = asks if asks is not None else (Ask(**ask),) * count
    demand = Request(asks=asks, **(request or {})) if asks else None
    return PlacedPod(
        name=name,
        namespace=namespace,
        priority=priority,
        work=work,
        containers=(PlacedContainer(request=demand, host={"cpu": cpu} if cpu else {}),),
    )


class Asked:
    """A cache that is asked as kube-scheduler asks it: which node, then for a place on it."""

    def __init__(
        self,
        nodes: Iterable[PlacedNode],
        *,
        weights: Weights = WEIGHTS["fragmentation"],
        quotas: QuotaRules | None = None,
    ) -> None:
        self.cache = SchedulerCache(quotas, weights=weights)
        self._uids: dict[int, str] = {}  # of what was placed
        self._pods = 0
        for node in nodes:
            self.cache.update_node(node)

    @property
    def cluster(self) -> Cluster:
        return self.cache.rows().cluster

    def place(self, some: PlacedPod) -> Placement | Refusal:
        """Return the pod's place, taken from now on, or how many nodes say what."""
        self._pods += 1
        uid = str(self._pods)
        self.cache.arrive(uid, some, 0.0)
        names = frozenset(self.cache.inventory.nodes)
        node = self.cache.best(some, names)
        if node is None:
            counts = Counter(self.cache.serving(some, names)[1].values())
            return Refusal(wanted=1, verdicts={}, counts=counts, of="node")
        answer = self.cache.reserve(uid, some, node)
        assert isinstance(answer, Placement), answer  # what serves, does
        self._uids[id(answer)] = uid
        return answer

    def find(self, some: PlacedPod) -> Placement | Refusal:
        """Return the place the pod would get; nothing is taken."""
        answer = self.place(some)
        if isinstance(answer, Placement):
            self.remove(answer)
        return answer

    def remove(self, placement: Placement) -> None:
        self.cache.forget(self._uids[id(placement)])


def placed(asked: Asked, some: PlacedPod) -> Placement:
    answer = asked.place(some)
    assert isinstance(answer, Placement), answer
    return answer


def refused(asked: Asked, some: PlacedPod) -> str:
    answer = asked.place(some)
    assert isinstance(answer, Refusal), answer
    return answer.sentence


def where(placement: Placement) -> list[str]:
    """Return the devices a placement holds, as they were named."""
    return sorted(usage.device for usage in placement.holds)


def sound(asked: Asked, standing: Sequence[Placement]) -> None:
    """Assert that nothing is over its capacity and that the cache counts what stands, exactly."""
    cluster = asked.cluster
    held: dict[str, dict[str, int]] = {}
    host: dict[str, dict[str, int]] = {}
    for placement in standing:
        for name, amount in placement.host.items():
            of_node = host.setdefault(placement.node, {})
            of_node[name] = of_node.get(name, 0) + amount
        for usage in placement.holds:
            of_device = held.setdefault(usage.device, {})
            for name, amount in usage.takes.items():
                of_device[name] = of_device.get(name, 0) + amount
    for number, machine in enumerate(cluster.nodes):
        free = cluster.free(number)
        for device in machine.devices:
            for name, amount in device.capacity.items():
                left = amount - held.get(device.uuid, {}).get(name, 0)
                assert left >= 0, (device.uuid, name, left)
                assert free[device.uuid][name] == left, (device.uuid, name)
        for place, name in enumerate(cluster.counters):
            if name not in machine.host:
                continue
            left = machine.host[name] - host.get(machine.name, {}).get(name, 0)
            assert left >= 0, (machine.name, name, left)
            assert cluster.host[number][place] == left


def container(memory: int | None = None, cpu: int = 0) -> PlacedContainer:
    request = Request(asks=(Ask(memory=memory * GiB),)) if memory else None
    return PlacedContainer(request=request, host={"cpu": cpu})


def shut(asked: Asked, name: str, *, cordoned: bool = True) -> None:
    """Place nothing more on a node, or open it again."""
    asked.cache.update_node(evolve(_node(asked, name), cordoned=cordoned))


def fail(asked: Asked, name: str, position: int, health: str | None) -> None:
    """Have a node's device fall ill, or be well again (None)."""
    machine = _node(asked, name)
    devices = [*machine.devices]
    place = position % len(devices)
    devices[place] = evolve(devices[place], health=health)
    asked.cache.update_node(evolve(machine, devices=tuple(devices)))


def _node(asked: Asked, name: str) -> PlacedNode:
    return asked.cluster.nodes[asked.cluster.number[name]]
