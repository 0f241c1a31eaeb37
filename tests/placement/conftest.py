"""Racks of every kind of card there is, and short spellings of pods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
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
from hetero.placement import Container, Index, Node, Placement, Pod
from hetero.plugin.testing import rack

#: A test of both forms that a cluster's rows are kept in.
FORMS = pytest.mark.parametrize("dense", [False, True], ids=["plain", "dense"])
#: One of each way a card divides: whole; freely; in coarse steps; by a ladder, several of them only
#: whole; by a menu; in parts that exist already; and with a counter of its own.
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


def node(name: str, *devices: Sequence[Device], cpu: int = 64_000, memory: int = 256) -> Node:
    """Return a node; `memory` is in GiB."""
    host = {"cpu": cpu, "memory": memory * GiB}
    return Node(name=name, devices=tuple(d for some in devices for d in some), host=host)


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
) -> Pod:
    """Return a pod of one container that asks `count` cards for the same."""
    asks = asks if asks is not None else (Ask(**ask),) * count
    demand = Request(asks=asks, **(request or {})) if asks else None
    return Pod(
        name=name,
        namespace=namespace,
        priority=priority,
        work=work,
        containers=(Container(request=demand, host={"cpu": cpu} if cpu else {}),),
    )


def placed(index: Index, some: Pod) -> Placement:
    answer = index.place(some)
    assert isinstance(answer, Placement), answer
    return answer


def refused(index: Index, some: Pod) -> str:
    answer = index.place(some)
    assert isinstance(answer, Refusal), answer
    return answer.sentence


def where(placement: Placement) -> list[str]:
    """Return the devices a placement holds, as they were named."""
    return sorted(usage.device for usage in placement.holds)


def sound(index: Index, standing: Sequence[Placement]) -> None:
    """Assert that nothing is over its capacity and that the index counts what stands, exactly."""
    cluster = index.cluster
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
            left = machine.host[name] - host.get(machine.name, {}).get(name, 0)
            assert left >= 0, (machine.name, name, left)
            assert cluster.host[number][place] == left


def container(memory: int | None = None, cpu: int = 0) -> Container:
    request = Request(asks=(Ask(memory=memory * GiB),)) if memory else None
    return Container(request=request, host={"cpu": cpu})
