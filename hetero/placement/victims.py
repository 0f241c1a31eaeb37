"""Chooses whom to evict from a node: the fewest, of these the least important, gangs whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain
from types import MappingProxyType

from attrs import frozen

from hetero.placement.cluster import PlacedPod, Placement

#: Pods that go together: one, or all of a gang.
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
    node: str,
    *,
    standing: Mapping[str, Placement],
    on_node: Iterable[str],
    given: Collection[str],
    ending: Iterable[str],
    spared: Container[str],
    gangs: Mapping[str, Gang],
    fits: Callable[[Collection[str]], bool],
    may_evict: Callable[[Collection[str]], bool],
) -> Victims | None:
    """Return whom to evict from a node: `SchedulerCache.victims`.

    `fits` says whether the pod would have a place without some pods.
    """

    def together(uid: str) -> Gang:
        return gangs.get(uid) or frozenset({uid})

    def spares(gang: Iterable[str]) -> bool:
        return any(uid in spared or standing[uid].pod.priority >= pod.priority for uid in gang)

    certain = dict.fromkeys(chain(given, *map(together, given)))
    if spares(certain.keys() - given):
        return None
    going = {*certain, *ending}
    # The same one for each of a gang's pods.
    others = {together(uid) for uid in on_node if uid not in going}
    others = {gang for gang in others if not spares(gang)}
    priorities = {uid: standing[uid].pod.priority for gang in others for uid in gang}
    chosen = fewest(
        others, priorities, fits=lambda some: fits([*going, *some]), may_evict=may_evict
    )
    if chosen is None:
        return None
    return Victims(
        node=node,
        uids=(*certain, *chosen),
        ending=tuple(ending),
        priorities=tuple(sorted((priorities[uid] for uid in chosen), reverse=True)),
    )


def fewest(
    gangs: Iterable[Gang],
    priorities: Mapping[str, int],
    *,
    fits: Callable[[Collection[str]], bool],
    may_evict: Callable[[Collection[str]], bool],
) -> tuple[str, ...] | None:
    """Return the fewest pods without whom it fits and who may go, None if there are none.

    Of all sets as small it is the one with the lowest `priorities`. What fits without some fits
    without more; of those that may go, fewer may. Over 300 sets nobody is named needlessly.
    """
    ranked = sorted(gangs, key=lambda gang: (_loss(gang, priorities), sorted(gang)))
    if not fits(_pods(ranked)):
        return None
    heap = [(_loss((), priorities), tuple[int, ...]())]
    for _ in range(_MOST_SETS):
        if not heap:
            return None
        _, chosen = heappop(heap)
        pods = _pods([ranked[at] for at in chosen])
        allowed = may_evict(pods)
        if allowed and fits(pods):
            return pods
        # Each set is reached once, from one with less loss: a gang more, or another for its last.
        after = chosen[-1] + 1 if chosen else 0
        if after < len(ranked):
            for chosen_next in [(*chosen, after)] * allowed + [(*chosen[:-1], after)] * bool(
                chosen
            ):
                heappush(
                    heap,
                    (_loss(_pods([ranked[at] for at in chosen_next]), priorities), chosen_next),
                )
    return _spared(ranked, fits=fits, may_evict=may_evict)


def _spared(
    ranked: Sequence[Gang],
    *,
    fits: Callable[[Collection[str]], bool],
    may_evict: Callable[[Collection[str]], bool],
) -> tuple[str, ...] | None:
    """Return those that may go, without the largest loss that it can do without."""
    going: list[Gang] = []
    for gang in ranked:
        if may_evict(_pods([*going, gang])):
            going.append(gang)
    if not fits(_pods(going)):
        return None
    for gang in reversed(ranked):
        rest = [one for one in going if one != gang]
        if fits(_pods(rest)):
            going = rest
    return _pods(going)


def _pods(gangs: Iterable[Gang]) -> tuple[str, ...]:
    return tuple(chain.from_iterable(map(sorted, gangs)))


def _loss(pods: Collection[str], priorities: Mapping[str, int]) -> tuple[int, list[int]]:
    return len(pods), sorted((priorities[uid] for uid in pods), reverse=True)
