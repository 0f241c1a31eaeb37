"""What nodes are worth where pods come and go: to whom, how it is weighed and in which steps."""

from math import isqrt

from hypothesis import given
from hypothesis import strategies as st

from hetero.model.units import GiB
from hetero.placement.cluster import PlacedNode, PlacedPod
from hetero.placement.demand import FIRST_LEARNING_PODS
from hetero.placement.mix import POINTS, PRIOR
from hetero.placement.node_values import NodeValues, PodClass, coarse
from hetero.placement.state import Cluster
from hetero.simulate.departures import Protocol, live
from hetero.simulate.trace import Trace
from tests.placement.conftest import Asked, cards, node, placed, pod

WHOLE = 80 * GiB


def where_pods_end(nodes: list[PlacedNode], pods: list[PlacedPod]) -> Asked:
    """Return a cache on which these pods have come and gone."""
    asked = Asked(nodes)
    for number in range(FIRST_LEARNING_PODS * len(pods)):
        asked.cache.demand.end()
        asked.cache.arrive(f"early-{number}", pods[number % len(pods)], 0.0)
    return asked


def test_the_only_node_that_serves_a_large_pod_is_kept_for_it() -> None:
    nodes = [
        node("ample", cards("free", 4, node="ample"), cpu=128_000),
        node("plain", cards("free", 4, node="plain"), cpu=64_000),
    ]
    small, large = pod(memory=WHOLE, cpu=8000), pod(4, memory=WHOLE, cpu=120_000)
    asked = where_pods_end(nodes, [small] * 5 + [large])

    assert ["plain"] * 4 == [placed(asked, small).node for _ in range(4)]
    assert "ample" == placed(asked, large).node


def test_a_pod_of_processors_alone_leaves_them_to_pods_that_need_cards_too() -> None:
    nodes = [
        node("wanted", cards("free", 4, node="wanted"), cpu=64_000),
        node("poor", cards("free", 4, node="poor"), cpu=16_000),
    ]
    asked = where_pods_end(nodes, [pod(4, memory=WHOLE, cpu=60_000), pod(0, cpu=8000)])

    assert ["poor", "poor"] == [placed(asked, pod(0, cpu=8000)).node for _ in range(2)]


def test_of_nodes_that_cost_alike_the_first_is_taken_so_that_the_last_empties() -> None:
    nodes = [node(name, cards("free", 2, node=name)) for name in ("first", "second", "third")]
    small = pod(memory=WHOLE)
    asked = where_pods_end(nodes, [small])
    standing = [placed(asked, small) for _ in range(4)]
    asked.remove(standing[0])

    assert ["first", "first", "second", "second"] == [one.node for one in standing]
    assert "first" == placed(asked, small).node


@given(
    st.lists(
        st.tuples(
            st.integers(1, 40),
            st.integers(1, 4),
            st.sampled_from([130, 250, 500, 810, 1000]),
            st.sampled_from([0, 8000, 30_000]),
        ),
        max_size=6,
    ),
    st.lists(st.sampled_from([0, 190, 500, 870, 1000]), min_size=4, max_size=4),
    st.sampled_from([0, 7999, 8000, 64_000]),
)
def test_a_node_is_worth_the_cards_that_each_class_could_use_by_its_weight(
    drawn: list[tuple[int, int, int, int]], milli: list[int], cpu: int
) -> None:
    cluster = Cluster([node("n", cards("free", 4, node="n"))])
    classes = [
        PodClass(times, many, {0: 1000 if many > 1 else size}, (need, 0))
        for times, many, size, need in drawn
    ]
    node_values = NodeValues(classes, cluster)
    node_value = node_values.value(0, [cpu, 256 * GiB])

    total = served = 0
    for pod_class in (*(PodClass(p.times, 1, {0: p.size}, (0, 0)) for p in PRIOR), *classes):
        size = pod_class.sizes[0]
        weight = pod_class.times * isqrt(pod_class.cards * size)
        total += weight
        fitting = [left for left in milli if left >= size]
        if cpu >= pod_class.needs[0] and len(fitting) >= pod_class.cards:
            served += weight * sum(fitting)
    points = sum(node_value.card(left) for left in milli) + node_value.empty[milli.count(1000)]
    assert abs(served * POINTS // total - points) <= len(milli) + 1


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_a_cost_that_is_higher_never_takes_fewer_steps(first: int, other: int) -> None:
    low, high = sorted((first, other))

    assert coarse(low) <= coarse(high)
    assert coarse(0) == 0
    assert -100 <= coarse(low) <= 100


def test_large_pods_are_refused_less_than_where_ends_are_not_priced() -> None:
    nodes = tuple(node(f"n{i}", cards("free", 8, node=f"n{i}"), cpu=10**6) for i in range(24))
    pods = (pod(memory=WHOLE),) * 15 + (pod(memory=24 * GiB),) * 10 + (pod(8, memory=WHOLE),)
    trace = Trace(name="large", nodes=nodes, pods=pods)
    protocol = Protocol(
        lifetimes="exponential",
        mode="loss",
        load_percent=80,
        warm_up_count=1000,
        measured_count=2000,
    )
    priced, before = (
        sum(live(trace, placement, seed, protocol).sizes[-1].refused_count for seed in (42, 43))
        for placement in ("fragmentation", "fragmentation=2,whole_cards=1,host=1")
    )

    assert priced < before
