"""A pod that waits for a whole node gets one: others are kept off the nodes nearest to empty."""

from hetero.model import Refusal
from hetero.model.units import GiB
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedPod
from hetero.placement.node_reservations import MOST_RESERVED_NODES
from tests.placement.conftest import cards, node, pod

LARGE, SMALL = pod(4), pod(memory=80 * GiB)


def waiting(*standing: int, ends: bool = True) -> tuple[SchedulerCache, list[str]]:
    """Return nodes of four cards with so many pods of one card, and their names.

    A pod that wants a whole node has been refused. `ends` says whether pods have ended.
    """
    cache, names = SchedulerCache(), [f"n{number}" for number in range(len(standing))]
    for name in names:
        cache.update_node(node(name, cards("free", 4, node=name)))
    for number in range(8 * ends):
        take(cache, f"before{number}", SMALL, names[0])
        cache.forget(f"before{number}")
    for name, many in zip(names, standing, strict=True):
        for number in range(many):
            take(cache, f"{name}/{number}", SMALL, name)
    cache.arrive("large", LARGE, 0.0)
    assert cache.best(LARGE, frozenset(names), uid="large") is None
    cache.reserve_nodes("large", LARGE, names)
    return cache, names


def take(cache: SchedulerCache, uid: str, pod: PlacedPod, where: str) -> None:
    cache.arrive(uid, pod, 0.0)
    assert not isinstance(cache.reserve(uid, pod, where), Refusal)


def arriving(cache: SchedulerCache, names: list[str], most: int) -> list[str]:
    """Return the nodes of pods of one card that come, one after the other."""
    nodes = []
    for number in range(most):
        node = cache.best(SMALL, frozenset(names), uid=f"new{number}")
        if node is None:
            break
        take(cache, f"new{number}", SMALL, node)
        nodes.append(node)
    return nodes


def test_others_go_to_reserved_nodes_only_where_no_other_serves_them() -> None:
    cache, names = waiting(3, 1, 2, 3, 1, 3, 3)
    nodes = arriving(cache, names, 99)

    # n0, n3, n5 and n6 have one card left each; one of them is reserved with n1, n2 and n4.
    assert 3 == MOST_RESERVED_NODES
    assert {"n0", "n3", "n5", "n6"} == set(nodes[:4])
    assert sorted(["n1"] * 3 + ["n2"] * 2 + ["n4"] * 3) == sorted(nodes[4:])


def test_a_reserved_node_that_empties_is_the_waiting_pods_and_the_reservation_ends_with_it() -> (
    None
):
    cache, names = waiting(3, 1, 2, 3, 1, 3, 3)
    cache.forget("n1/0")
    assert "n1" not in arriving(cache, names, 4)
    assert "n1" == cache.best(LARGE, frozenset(names), uid="large")
    take(cache, "large", LARGE, "n1")

    assert not cache.reservations.nodes


class Counted(frozenset[str]):
    """Names that count how often they are searched."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        self.asked += 1
        return super().__contains__(name)


def test_reserved_nodes_are_not_looked_at_while_another_serves() -> None:
    cache, names = waiting(*[1] * 30, 3)
    for number in range(9):
        cache.reserve_nodes(f"other{number}", LARGE, names)
    assert 30 == len(cache.reservations.nodes)
    offered = Counted(names)

    assert "n30" == cache.best(SMALL, offered, uid="new")
    assert 1 == offered.asked


def test_reservations_hold_when_the_cluster_is_worked_out_anew_and_others_score_nothing_there() -> (
    None
):
    cache, names = waiting(1, 1, 1, 3, 3)
    cache.remove_node("n4")

    assert {"n3"} == cache.costs(SMALL, names).keys()
    assert "n3" == cache.best(SMALL, frozenset(names), uid="new")
    cache.remove_node("n1")
    assert {"n3"} == cache.costs(SMALL, names).keys()
    cache.forget("n2/0")
    assert "n2" == cache.best(LARGE, frozenset(names), uid="large")
    cache.forget("large")
    assert {"n0", "n2", "n3"} == cache.costs(SMALL, names).keys()


def test_to_its_own_pod_a_reserved_node_costs_no_more_than_another() -> None:
    cache, names = waiting(1, 1, 1, 1)
    cache.forget("n0/0")
    cache.forget("n3/0")

    assert "n0" == cache.best(LARGE, frozenset(names), uid="large")
    assert "n3" == cache.best(LARGE, frozenset(names), uid="other")
    assert "n3" == cache.best(LARGE, frozenset({"n1", "n3"}), uid="large")


def test_for_a_pod_that_is_gone_nothing_is_reserved() -> None:
    cache, names = waiting(3, 1, 2)
    assert set(names) == cache.reservations.nodes
    cache.forget("large")

    assert not cache.reservations.nodes


def test_nothing_is_reserved_while_pods_only_arrive_or_for_less_than_a_node() -> None:
    cache, names = waiting(3, 1, 2, ends=False)
    assert not cache.reservations.nodes

    cache, names = waiting(4, 4, 4)
    cache.reserve_nodes("two", pod(2), names)
    cache.reserve_nodes("one", SMALL, names)
    assert not cache.reservations.nodes


def test_two_that_wait_have_different_nodes_and_none_where_they_could_never_run() -> None:
    cache, names = waiting(1, 1, 1, 1, 1, 1, 1)
    cache.reserve_nodes("other", pod(4, cpu=4000), names)
    cache.reserve_nodes("huge", pod(4, cpu=65_000), names)
    reserved = [cache.reservations.of(uid) for uid in ("large", "other", "huge")]

    assert [("n0", "n1", "n2"), ("n3", "n4", "n5"), ()] == reserved
