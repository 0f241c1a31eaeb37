"""Two thousand nodes with every kind of card: pods come and go, cards fail, nodes are shut."""

import random

import pytest

from hetero.model import MEMORY, SLOTS, Selector, Templated
from hetero.model.rounding import portion
from hetero.model.units import GiB
from hetero.placement.cluster import PlacedNode, Placement
from tests.placement.conftest import KINDS, Asked, cards, fail, node, pod, shut, sound

SIZES = (None, GiB, 2 * GiB, 5 * GiB, 8 * GiB, 12 * GiB, 20 * GiB, 40 * GiB)
CORES = (None, 5, 10, 20, 50, 100)


def mixed(nodes: int) -> list[PlacedNode]:
    kinds = list(KINDS)
    return [
        node(
            f"n{i}", cards(kinds[i % len(kinds)], 1 + i % 8, node=f"n{i}"), cpu=128_000, memory=1024
        )
        for i in range(nodes)
    ]


def obeys(placement: Placement, asked: Asked) -> None:
    """Assert that every grant is what its device's declaration makes of what was asked."""
    request = placement.pod.containers[0].request
    allocation = placement.allocations[0]
    if request is None or allocation is None:
        return
    assert len(request.asks) == len({grant.device for grant in allocation.pieces})
    for ask, grant in zip(request.asks, allocation.pieces, strict=True):
        number, position = asked.cluster.where[grant.device]
        device = asked.cluster.nodes[number].devices[position]
        cut = portion(device, ask, count=len(request.asks), free=device.capacity)
        assert cut is not None
        assert grant.takes[MEMORY] >= (ask.memory or 0)
        assert grant.takes[SLOTS] >= 1
        if grant.template is None:
            assert dict(cut.takes) == dict(grant.takes)
        else:
            assert isinstance(device.granularity, Templated)
            shapes = {(s.name, s.part): s.takes for s in device.granularity.menu}
            assert {**shapes[grant.template, grant.part], SLOTS: 1} == dict(grant.takes)


def live(steps: int, nodes: int) -> None:
    rng = random.Random(7)
    asked = Asked(mixed(nodes))
    kinds = list(KINDS)
    demands = [
        pod(
            rng.choice([0, 1, 1, 1, 1, 2, 4]),
            cpu=rng.choice([0, 1000, 4000, 16_000]),
            memory=rng.choice(SIZES),
            core=rng.choice(CORES),
            request={
                "vendor": Selector(include=(rng.choice(kinds),) if rng.random() < 0.7 else ())
            },
        )
        for _ in range(120)
    ]
    standing: list[Placement] = []
    closed: set[str] = set()
    for step in range(steps):
        draw = rng.random()
        if draw < 0.52:
            answer = asked.place(rng.choice(demands))
            if isinstance(answer, Placement):
                standing.append(answer)
                obeys(answer, asked)
                assert answer.node not in closed
        elif draw < 0.98 and standing:
            last = rng.randrange(len(standing))
            standing[last], standing[-1] = standing[-1], standing[last]
            asked.remove(standing.pop())
        elif draw < 0.99:
            name = f"n{rng.randrange(nodes)}"
            shut(asked, name, cordoned=name not in closed)
            closed ^= {name}
        else:
            name = f"n{rng.randrange(nodes)}"
            fail(asked, name, rng.randrange(8), rng.choice([None, None, "lost"]))
        if step % (steps // 20) == 0:
            sound(asked, standing)
    sound(asked, standing)


def test_six_thousand_steps_of_a_mixed_cluster_never_break_a_device_s_rule() -> None:
    live(6_000, nodes=100)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_million_steps_of_two_thousand_mixed_nodes_never_break_a_device_s_rule() -> None:
    live(1_000_000, nodes=2_000)
