"""Victims are the fewest, of these the least important, and of a gang all or none."""

from collections.abc import Collection
from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from hetero.placement import victims
from hetero.placement.victims import Gang, fewest


@st.composite
def gangs(draw: st.DrawFn) -> tuple[list[Gang], dict[str, int], dict[str, int], int, int]:
    """Return gangs, their pods' priorities and sizes, what is wanted and how many may go."""
    sizes = draw(st.lists(st.integers(1, 3), max_size=6))
    made = [frozenset(f"{at}{one}" for one in range(size)) for at, size in enumerate(sizes)]
    pods = sorted(chain(*made))
    priorities = {uid: draw(st.integers(0, 3)) for uid in pods}
    holds = {uid: draw(st.integers(0, 4)) for uid in pods}
    return made, priorities, holds, draw(st.integers(0, 12)), draw(st.integers(0, 8))


def loss(pods: Collection[str], priorities: dict[str, int]) -> tuple[int, list[int]]:
    return len(pods), sorted((priorities[uid] for uid in pods), reverse=True)


@given(gangs())
def test_no_other_set_of_whole_gangs_loses_less(
    case: tuple[list[Gang], dict[str, int], dict[str, int], int, int],
) -> None:
    made, priorities, holds, wanted, most = case

    def fits(pods: Collection[str]) -> bool:
        return sum(holds[uid] for uid in pods) >= wanted

    def may_evict(pods: Collection[str]) -> bool:
        return len([uid for uid in pods if uid.endswith("0")]) <= most

    sets = chain(*(combinations(made, size) for size in range(len(made) + 1)))
    pods = [tuple(chain(*one)) for one in sets]
    best = min(
        (loss(one, priorities) for one in pods if may_evict(one) and fits(one)), default=None
    )
    chosen = fewest(made, priorities, fits=fits, may_evict=may_evict)

    assert best == (None if chosen is None else loss(chosen, priorities))
    if chosen is not None:
        assert may_evict(chosen)
        assert fits(chosen)
        assert all(gang <= set(chosen) or gang.isdisjoint(chosen) for gang in made)


def test_of_too_many_to_try_all_sets_nobody_goes_needlessly_nor_more_than_may() -> None:
    made = [frozenset({f"{at:02}a", f"{at:02}b"}) for at in range(40)]
    priorities = {uid: int(uid[:2]) for gang in made for uid in gang}
    tried = []

    def fits(pods: Collection[str]) -> bool:
        tried.append(pods)
        return len(pods) >= 20

    chosen = fewest(made, priorities, fits=fits, may_evict=lambda pods: "03a" not in pods)

    assert chosen is not None
    assert [0, 1, 2, *range(4, 11)] == sorted({priorities[uid] for uid in chosen})
    assert victims._MOST_SETS + 50 > len(tried)
    assert fewest(made, priorities, fits=fits, may_evict=lambda pods: len(pods) < 20) is None
