"""Chooses pods to evict from a node: the fewest, of these the least important, gangs whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain
from types import MappingProxyType

from attrs import frozen

from hetero.placement.cluster import PlacedPod, Placement

#: The UIDs of pods that are evicted together: one, or all of a gang.
Gang = frozenset[str]
NO_GANGS: Mapping[str, Gang] = MappingProxyType({})
#: Sets of victims that are tried, the least loss first, before one is taken with none to spare.
_MOST_SETS = 300


@frozen(kw_only=True)
class Victims:
    """Whom to evict for a pod on a node, by UID; `ending` are those that go by themselves.

    Of a gang all are evicted, those on other nodes, too.
    """

    node: str
    uids: tuple[str, ...]
    ending: tuple[str, ...]
    priorities: tuple[int, ...]

    @property
    def loss(self) -> tuple[int, tuple[int, ...]]:
        """What is lost: how many, and then how important they are."""
        return len(self.uids), self.priorities


def choose_victims(
    pod: PlacedPod,
    node_name: str,
    *,
    placement_by_uid: Mapping[str, Placement],
    uids_on_node: Iterable[str],
    certain_uids: Collection[str],
    ending_uids: Iterable[str],
    spared_uids: Container[str],
    gangs: Mapping[str, Gang],
    fits: Callable[[Collection[str]], bool],
    may_evict: Callable[[Collection[str]], bool],
) -> Victims | None:
    """Return whom to evict from a node: `SchedulerCache.victims`.

    `fits` says whether the pod would have a place without some pods.
    """

    def gang_of(uid: str) -> Gang:
        return gangs.get(uid) or frozenset({uid})

    def has_spared(gang: Iterable[str]) -> bool:
        return any(
            uid in spared_uids or placement_by_uid[uid].pod.priority >= pod.priority for uid in gang
        )

    certain_victims = dict.fromkeys(chain(certain_uids, *map(gang_of, certain_uids)))
    if has_spared(certain_victims.keys() - certain_uids):
        return None
    leaving_uids = {*certain_victims, *ending_uids}
    # Each pod of a gang gives the same set.
    candidates = {gang_of(uid) for uid in uids_on_node if uid not in leaving_uids}
    candidates = {other_gang for other_gang in candidates if not has_spared(other_gang)}
    priorities = {uid: placement_by_uid[uid].pod.priority for gang in candidates for uid in gang}
    chosen_uids = fewest(
        candidates, priorities, fits=lambda uids: fits([*leaving_uids, *uids]), may_evict=may_evict
    )
    if chosen_uids is None:
        return None
    return Victims(
        node=node_name,
        uids=(*certain_victims, *chosen_uids),
        ending=tuple(ending_uids),
        priorities=tuple(sorted((priorities[uid] for uid in chosen_uids), reverse=True)),
    )


def fewest(
    gangs: Iterable[Gang],
    priorities: Mapping[str, int],
    *,
    fits: Callable[[Collection[str]], bool],
    may_evict: Callable[[Collection[str]], bool],
) -> tuple[str, ...] | None:
    """Return the fewest pods without which the pod fits and that may be evicted, None if none.

    Of equally small sets it is the one with the lowest `priorities`. If the pod fits without a set,
    it fits without a larger one; if a set may be evicted, so may a smaller one. After 300 sets a
    set is returned from which no pod can be spared.
    """
    ranked_gangs = sorted(gangs, key=lambda gang: (_loss(gang, priorities), sorted(gang)))
    if not fits(_pods(ranked_gangs)):
        return None
    losses_and_positions = [(_loss((), priorities), tuple[int, ...]())]
    for _ in range(_MOST_SETS):
        if not losses_and_positions:
            return None
        _, chosen_positions = heappop(losses_and_positions)
        uids = _pods([ranked_gangs[position] for position in chosen_positions])
        is_allowed = may_evict(uids)
        if is_allowed and fits(uids):
            return uids
        # Each set is reached once, from one with less loss: with a gang more, or its last replaced.
        next_position = chosen_positions[-1] + 1 if chosen_positions else 0
        if next_position < len(ranked_gangs):
            for next_positions in [(*chosen_positions, next_position)] * is_allowed + [
                (*chosen_positions[:-1], next_position)
            ] * bool(chosen_positions):
                heappush(
                    losses_and_positions,
                    (
                        _loss(
                            _pods([ranked_gangs[position] for position in next_positions]),
                            priorities,
                        ),
                        next_positions,
                    ),
                )
    return _spared(ranked_gangs, fits=fits, may_evict=may_evict)


def _spared(
    ranked_gangs: Sequence[Gang],
    *,
    fits: Callable[[Collection[str]], bool],
    may_evict: Callable[[Collection[str]], bool],
) -> tuple[str, ...] | None:
    """Return a set that may be evicted, from which no gang can be spared."""
    leaving_gangs: list[Gang] = []
    for gang in ranked_gangs:
        if may_evict(_pods([*leaving_gangs, gang])):
            leaving_gangs.append(gang)
    if not fits(_pods(leaving_gangs)):
        return None
    for gang in reversed(ranked_gangs):
        remaining_gangs = [other_gang for other_gang in leaving_gangs if other_gang != gang]
        if fits(_pods(remaining_gangs)):
            leaving_gangs = remaining_gangs
    return _pods(leaving_gangs)


def _pods(gangs: Iterable[Gang]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(map(sorted, gangs)))


def _loss(uids: Collection[str], priorities: Mapping[str, int]) -> tuple[int, list[int]]:
    return len(uids), sorted((priorities[uid] for uid in uids), reverse=True)
