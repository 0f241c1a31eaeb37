"""The cache follows a cluster that changes, and says what one that starts anew would say."""

from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from hetero.kube.objects.kinds import Pod
from hetero.kube.objects.reading import read
from hetero.kube.words.quota import Quotas
from hetero.model.units import GiB
from hetero.placement.cache import QuotaRules, SchedulerCache
from hetero.placement.cluster import PlacedNode, PlacedPod
from hetero.placement.placement_policy import PLACEMENT_POLICIES
from tests.kube.conftest import card
from tests.kube.test_pod_request import WORDS, pod

NAMES = [f"n{number}" for number in range(4)]
ASKS = (
    {"nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"},
    {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "9000"},
    {"nvidia.com/gpu": "1"},
)


#: Most pods together may have; a whole card may be more, depending on which it is.
QUOTA = {"default": {"most": {"nvidia.com/gpumem": 60_000}}}


def asking(number: int) -> PlacedPod:
    asked = WORDS.pod_request(read(Pod, pod(ASKS[number])))
    assert asked is not None
    return asked.pod


def entered(name: str, cards: int, *, gib: int, ill: bool) -> PlacedNode:
    made = tuple(card(f"{name}-{index}", memory=gib * GiB) for index in range(cards))
    if ill and made:
        made = (evolve(made[0], health="ill"), *made[1:])
    return PlacedNode(name=name, devices=made)


changes = st.one_of(
    st.tuples(
        st.just("enter"),
        st.sampled_from(NAMES),
        st.integers(0, 3),
        st.sampled_from([16, 32]),
        st.booleans(),
    ),
    st.tuples(st.just("leave"), st.sampled_from(NAMES)),
    st.tuples(st.just("reserve"), st.sampled_from(NAMES), st.integers(0, 2), st.integers(0, 9)),
    st.tuples(st.just("release"), st.integers(0, 9)),
)


def anew(cache: SchedulerCache) -> SchedulerCache:
    """Return a cache that learns at once all there is now."""
    fresh = SchedulerCache(Quotas(WORDS, QUOTA))
    for name in cache.inventory.nodes:
        fresh.update_node(PlacedNode(name=name, devices=cache.inventory.devices(name)))
    fresh.standing.update(cache.standing)
    return fresh


@example([("enter", "n0", 1, 16, False), ("reserve", "n0", 0, 0), ("reserve", "n0", 1, 0)])
@example(
    [
        ("enter", "n0", 1, 16, False),
        ("enter", "n1", 3, 32, False),
        ("reserve", "n1", 2, 0),
        ("enter", "n2", 1, 32, False),
        ("enter", "n0", 1, 32, False),
    ]
)
@example([("enter", "n0", 2, 16, True), ("reserve", "n0", 0, 0), ("release", 0)])
@given(st.lists(changes, max_size=12))
def test_a_cache_that_followed_every_change_says_what_a_new_one_would(
    story: list[tuple[object, ...]],
) -> None:
    cache = SchedulerCache(Quotas(WORDS, QUOTA))
    for number in range(len(ASKS)):  # rows that are there before anything changes
        cache.serving(asking(number), NAMES)
    for change in story:
        match change:
            case ("enter", str(name), int(cards), int(gib), bool(ill)):
                cache.update_node(entered(name, cards, gib=gib, ill=ill))
            case ("leave", str(name)):
                cache.remove_node(name)
            case ("reserve", str(name), int(number), int(uid)):
                cache.reserve(
                    f"uid-{uid}", asking(number), name, policy=PLACEMENT_POLICIES["binpack"]
                )
            case ("release", int(uid)):
                cache.release(f"uid-{uid}")
        fresh = anew(cache)
        for number in range(len(ASKS)):
            wanted = asking(number)
            assert fresh.serving(wanted, NAMES) == cache.serving(wanted, NAMES)
            assert fresh.costs(wanted, NAMES) == cache.costs(wanted, NAMES)
        assert charged(fresh.quotas) == charged(cache.quotas)


def charged(quotas: QuotaRules | None) -> dict[str, dict[str, int]]:
    assert quotas is not None
    return {namespace: dict(+used) for namespace, used in quotas.used.items() if +used}


def test_a_card_that_falls_ill_is_noted_without_starting_anew() -> None:
    cache = SchedulerCache(Quotas(WORDS))
    for name in NAMES:
        cache.update_node(entered(name, 1, gib=16, ill=False))
    assert (NAMES, {}) == cache.serving(asking(0), NAMES)
    cluster = cache.rows().cluster
    cache.update_node(entered("n1", 1, gib=16, ill=True))
    cache.update_node(entered("n9", 2, gib=16, ill=False))

    refused = {"n1": "unhealthy (ill)"}
    assert (["n0", "n2", "n3", "n9"], refused) == cache.serving(asking(0), [*NAMES, "n9"])
    assert cluster is cache.rows().cluster
