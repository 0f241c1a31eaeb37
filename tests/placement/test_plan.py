"""Plans are values: what a gang, a preemption, a what-if or a defragmentation would do."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from hetero.model import Refusal
from hetero.model.units import GiB
from hetero.placement import Index, Placement, defragment, gang, preempt, what_if
from tests.placement.conftest import cards, node, placed, pod, sound, where


def test_a_gang_is_placed_whole_in_the_order_it_was_given() -> None:
    index = Index([node("a", cards("free", 2, node="a"))])
    group = [pod(memory=30 * GiB, name="one"), pod(memory=50 * GiB, name="two"), pod(name="all")]
    answer = gang(index, group)

    assert isinstance(answer, tuple)
    assert ["one", "two", "all"] == [placement.pod.name for placement in answer]
    sound(index, answer)


def test_a_gang_that_does_not_fit_leaves_nothing_behind() -> None:
    index = Index([node("a", cards("free", 2, node="a"))])
    answer = gang(index, [pod(name=f"p{i}", memory=50 * GiB) for i in range(3)])

    assert isinstance(answer, Refusal)
    assert (
        "2 of 3 pods of the group fit; pod 'p2': 0 of 1 node fit: 1 lack memory" == answer.sentence
    )
    sound(index, [])


def test_a_node_that_is_not_there_yet_can_be_asked() -> None:
    answers = what_if(node("new", cards("free", 1)), [pod(memory=50 * GiB)] * 2)

    assert ["new", "0 of 1 node fit: 1 lack memory"] == [
        a.node if isinstance(a, Placement) else a.sentence for a in answers
    ]


def test_a_pod_that_fits_needs_no_victim() -> None:
    index = Index([node("a", cards("free", 1, node="a"))])
    answer = preempt(index, pod(priority=9), [])

    assert not isinstance(answer, Refusal)
    assert () == answer.victims
    sound(index, [])


def test_nobody_of_equal_priority_has_to_go() -> None:
    index = Index([node("a", cards("free", 1, node="a"))])
    standing = [placed(index, pod(memory=50 * GiB, priority=5))]

    assert isinstance(preempt(index, pod(priority=5), standing), Refusal)
    assert not isinstance(preempt(index, pod(priority=6), standing), Refusal)


def test_one_victim_on_another_node_is_cheaper_than_two_here() -> None:
    index = Index([node("a", cards("free", 1, node="a")), node("b", cards("free", 1, node="b"))])
    standing = [placed(index, pod(memory=40 * GiB, name=f"half-{i}")) for i in range(2)]
    standing.append(placed(index, pod(name="whole", work=100)))
    answer = preempt(index, pod(priority=1), standing)

    assert not isinstance(answer, Refusal)
    assert ["whole"] == [victim.pod.name for victim in answer.victims]
    assert ["b/free-0"] == where(answer.placement)
    sound(index, standing)


@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 2), st.integers(0, 9)), max_size=7),
    st.integers(1, 8),
    st.integers(1, 2),
)
def test_the_victims_are_the_cheapest_there_are(
    there: list[tuple[int, int, int]], size: int, count: int
) -> None:
    """Against trying every set of every node."""
    nodes = [node(name, cards("free", 2, node=name)) for name in "ab"]
    index = Index(nodes)
    standing = []
    for amount, priority, work in there:
        place_pod = index.place(pod(memory=amount * 10 * GiB, priority=priority, work=work))
        if isinstance(place_pod, Placement):
            standing.append(place_pod)
    demand = pod(count, memory=size * 10 * GiB, priority=2)

    best: tuple[int, int, int] | None = None
    for machine in nodes:
        mine = [p for p in standing if p.node == machine.name and p.pod.priority < 2]
        for number in range(len(mine) + 1):
            for some in combinations(mine, number):
                for victim in some:
                    index.remove(victim)
                placed = machine.name in index.costs(demand)
                for victim in some:
                    index.take(victim)
                loss = (number, sum(v.pod.work for v in some), sum(v.pod.priority for v in some))
                if placed and (best is None or loss < best):
                    best = loss

    answer = preempt(index, demand, standing)
    got = None
    if not isinstance(answer, Refusal):
        pods = [victim.pod for victim in answer.victims]
        got = (len(pods), sum(p.work for p in pods), sum(p.priority for p in pods))
    assert best == got
    sound(index, standing)


def test_half_empty_cards_are_emptied_by_moving_their_pods_together() -> None:
    index = Index([node("a", cards("free", 4, node="a"))])
    standing = [placed(index, pod(memory=45 * GiB)) for _ in range(4)]
    standing += [placed(index, pod(memory=25 * GiB)) for _ in range(4)]
    for placement in standing[:3]:
        index.remove(placement)
    standing = standing[3:]
    plan = defragment(index, standing)

    assert 2 == len(plan.emptied)
    assert 2 == len(plan.moves)
    for move in plan.moves:
        index.remove(move.before)
        index.take(move.after)
        standing[standing.index(move.before)] = move.after
    sound(index, standing)
    assert 2 == index.cluster.empty[0]


def test_a_packed_cluster_is_left_alone() -> None:
    index = Index([node("a", cards("free", 2, node="a"))])
    standing = [placed(index, pod(memory=50 * GiB)) for _ in range(2)]

    assert ((), ()) == (defragment(index, standing).moves, defragment(index, standing).emptied)


def test_no_more_moves_are_named_than_asked_for() -> None:
    index = Index([node("a", cards("free", 4, node="a"))])
    large = [placed(index, pod(memory=50 * GiB)) for _ in range(4)]
    standing = [placed(index, pod(memory=20 * GiB)) for _ in range(4)]
    for placement in large:
        index.remove(placement)

    assert 3 == len(defragment(index, standing).moves)
    assert 1 == len(defragment(index, standing, most=1).moves)
