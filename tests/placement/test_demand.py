"""What arrives is counted by class, fades by its half-life and says when a lesson is due."""

import random

import pytest

from hetero.model.units import GiB, MiB
from hetero.placement import cache
from hetero.placement.demand import FIRST_LEARNING_PODS, Demand, request_class_of
from tests.placement.conftest import Asked, cards, node, pod

SMALL, LARGE = request_class_of(pod(memory=GiB)), request_class_of(pod(8))


def test_pods_that_ask_the_same_of_devices_are_one_class_whatever_their_host() -> None:
    demand = Demand()
    for cpu in (1000, 2000, 3000):
        demand.arrive(request_class_of(pod(memory=GiB, cpu=cpu)), {"cpu": cpu}, 0.0)
    demand.arrive(request_class_of(pod(0, cpu=4000)), {"cpu": 4000}, 0.0)

    assert [(SMALL, 3 * 16)] == demand.times()
    assert 16 * 10_000 == demand.asked("cpu")


def test_pods_that_ask_for_other_amounts_of_the_host_can_be_told_apart() -> None:
    demand = Demand()
    for cpu in (1000, 2000, 2000):
        demand.arrive(SMALL, {"cpu": cpu}, 0.0)

    assert [(SMALL, (("cpu", 1000),), 16), (SMALL, (("cpu", 2000),), 32)] == demand.pods()


def test_pods_come_and_go_once_more_than_one_in_eight_has_ended() -> None:
    demand = Demand()
    for _ in range(16):
        demand.arrive(SMALL, {}, 0.0)
    ends = []
    for _ in range(4):
        ends.append(demand.pods_end)
        demand.end()

    assert [False, False, False, True] == ends


def test_a_pod_that_held_no_place_does_not_count_as_ended() -> None:
    asked = Asked([node("a", cards("free", 1, node="a"))])
    for number in range(16):
        asked.cache.arrive(str(number), pod(memory=GiB), 0.0)
        asked.cache.forget(str(number))

    assert not asked.cache.demand.pods_end


def test_a_pod_of_a_half_life_ago_counts_half() -> None:
    demand = Demand(half_life_s=100.0)
    demand.arrive(SMALL, {"cpu": 1000}, 0.0)
    demand.arrive(LARGE, {}, 100.0)

    assert {SMALL: 8, LARGE: 16} == dict(demand.times())
    assert 8 * 1000 == demand.asked("cpu")


def test_what_has_not_come_for_ages_is_forgotten() -> None:
    demand = Demand(half_life_s=1.0)
    demand.arrive(SMALL, {"cpu": 1}, 0.0)
    demand.arrive(LARGE, {"cpu": 1}, 10_000.0)

    assert [(LARGE, 16)] == demand.times()


def test_lessons_are_due_at_every_doubling_of_what_still_counts() -> None:
    demand = Demand()
    due = [n for n in range(1, 400) if demand.arrive(SMALL, {}, 0.0)]

    assert [FIRST_LEARNING_PODS * 2**n for n in range(5)] == due


def test_a_pod_that_is_tried_again_is_counted_once() -> None:
    asked = Asked([node("a", cards("free", 1, node="a"))])
    for now in (0.0, 1.0, 2.0):
        asked.cache.arrive("uid", pod(memory=GiB), now)
    assert [(SMALL, 16)] == asked.cache.demand.times()

    asked.cache.forget("uid")
    asked.cache.arrive("uid", pod(memory=GiB), 3.0)
    assert [(SMALL, 32)] == asked.cache.demand.times()


def test_classes_that_differ_in_size_alone_are_joined_where_that_wastes_least() -> None:
    demand = Demand()
    for memory, times in ((1, 5), (2, 1), (6, 9), (8, 2)):
        for _ in range(times):
            demand.arrive(request_class_of(pod(memory=memory * GiB)), {}, 0.0)
    demand.arrive(LARGE, {}, 0.0)
    sizes = {request_class_of(pod(memory=gib * GiB)): gib * 100 for gib in (1, 2, 6, 8)}
    demand.join(lambda want: sizes.get(want, 8000), most=4)
    one_gib, six, eight = (request_class_of(pod(memory=gib * GiB)) for gib in (1, 6, 8))

    assert {(one_gib, ()): 5, (six, ()): 10, (eight, ()): 2, (LARGE, ()): 1} == demand.weights
    demand.join(lambda want: sizes.get(want, 8000), most=2)
    assert {(eight, ()): 17, (LARGE, ()): 1} == demand.weights
    demand.join(lambda want: sizes.get(want, 8000), most=1)
    assert [(eight, ())] == list(demand.weights), (
        "what asks for least is forgotten: 17 of 800, 1 of 8000"
    )


def test_of_five_thousand_shapes_512_classes_pack_as_well() -> None:
    rng = random.Random(1)
    sizes = rng.sample(range(200, 80_000), 5000)
    shapes = [pod(memory=size * MiB, cpu=1000 * (1 + size % 4)) for size in sizes]
    shapes += [pod(count, cpu=8000 * count) for count in (1, 2, 4, 8)] * 100
    rng.shuffle(shapes)

    def allocated(most: int) -> float:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache, "MOST_CLASSES", most)
            nodes = [node(f"n{n}", cards("free", 8, node=f"n{n}"), cpu=96_000) for n in range(12)]
            asked = Asked(nodes)
            asked.cache.demand._arrivals_until_learning = len(shapes)  # one, when all were seen
            for number, shape in enumerate(shapes):
                asked.cache.arrive(f"seen-{number}", shape, 0.0)
            assert most >= len(asked.cache.demand.weights)
            names = frozenset(asked.cache.inventory.nodes)
            for number, shape in enumerate(shapes[:540]):
                best = asked.cache.best(shape, names)
                if best is not None:
                    asked.cache.reserve(f"uid-{number}", shape, best)
            left = sum(asked.cache.rows().cluster.free_milli)
            return 100 - left / (12 * 8 * 10)

    joined, apart = allocated(512), allocated(10_000)
    assert apart > 80, "there were enough pods"
    assert joined >= apart - 0.3
