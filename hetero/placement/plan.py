"""Answers about what could be, as values: nothing here evicts, moves or buys anything.

A gang is placed whole or not at all; a preemption names the cheapest victims; a what-if asks a node
that is not there yet; a defragmentation lists moves that leave whole cards empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import comb

from attrs import evolve, frozen

from hetero.model import Refusal
from hetero.placement.cluster import Node, Placement, Pod
from hetero.placement.index import Index
from hetero.placement.place_pod import place_pod
from hetero.placement.placement_policy import WEIGHTS, Weights
from hetero.placement.state import State

#: Nodes that come nearest to fitting a pod are searched for victims; so many at most.
_NEAREST = 200
#: Sets of victims of one size tried on a node before settling for a set with none to spare.
_SETS = 1000


@frozen(kw_only=True)
class Preemption:
    """Where the pod would go if `victims` went: fewest first, then least work lost."""

    placement: Placement
    victims: tuple[Placement, ...]


@frozen(kw_only=True)
class Move:
    """One pod's way from where it stands to where it would stand instead."""

    before: Placement
    after: Placement


@frozen(kw_only=True)
class Defragmentation:
    """Moves in the order they are to be made, and the devices that are empty after them."""

    moves: tuple[Move, ...] = ()
    emptied: tuple[str, ...] = ()


def gang(index: Index, pods: Sequence[Pod]) -> tuple[Placement, ...] | Refusal:
    """Place all pods, in the order given, or none of them and return why the first failed.

    The largest are placed first; a gang that fits only in another order may be refused.
    """
    by_size = sorted(range(len(pods)), key=lambda place: (-index.prices.demand(pods[place]), place))
    placed: dict[int, Placement] = {}
    for place in by_size:
        answer = index.place(pods[place])
        if isinstance(answer, Refusal):
            for placement in placed.values():
                index.remove(placement)
            found = f"{len(placed)} of {len(pods)} pods of the group fit"
            sentence = f"{found}; pod {pods[place].name!r}: {answer.sentence}"
            return Refusal(wanted=len(pods), verdicts={}, missing=sentence)
        placed[place] = answer
    return tuple(placed[place] for place in range(len(pods)))


def what_if(
    node: Node, pods: Iterable[Pod], *, weights: Weights = WEIGHTS["fragmentation"]
) -> tuple[Placement | Refusal, ...]:
    """Return what each pod in turn would get were `node` there, empty and alone."""
    index = Index((node,), weights=weights, dense=False)
    return tuple(index.place(pod) for pod in pods)


def preempt(index: Index, pod: Pod, standing: Iterable[Placement]) -> Preemption | Refusal:
    """Return the cheapest way in for a pod: which placements of lower priority would have to go.

    On one node the answer is exact while it has up to a thousand sets of victims of a size to try;
    beyond that no victim is named needlessly, but another set might be smaller. In a large
    cluster the 200 nodes with the least room missing are looked at.
    """
    answer = index.find(pod)
    if isinstance(answer, Placement):
        return Preemption(placement=answer, victims=())
    lower: dict[int, list[Placement]] = {}
    for placement in standing:
        if placement.pod.priority < pod.priority:
            lower.setdefault(index.cluster.number[placement.node], []).append(placement)
    best: Preemption | None = None
    for number in sorted(lower, key=lambda one: (_lacking(index, one, pod), one))[:_NEAREST]:
        most = len(best.victims) if best else len(lower[number])
        found = _victims(index, number, pod, lower[number], most)
        if found is not None and (best is None or _loss(found.victims) < _loss(best.victims)):
            best = found
    return best or answer


def defragment(index: Index, standing: Iterable[Placement], *, most: int = 100) -> Defragmentation:
    """Return up to `most` moves that leave cards empty, the least used card first.

    The plan is made on a copy. A card counts only if all its pods find room on cards already in
    use, so every card in `emptied` is one more than before.
    """
    placed = list(standing)
    copy = Index(
        index.cluster.nodes, weights=Weights(card=1)
    )  # the fullest card, an empty one last
    for placement in placed:
        copy.take(placement)
    holders = {usage.device for placement in placed for usage in placement.holds}
    cluster = copy.cluster

    def free_milli(uuid: str) -> int:
        node, position = cluster.where[uuid]
        return cluster.states[cluster.cards[node][position]].free_milli

    moves: list[Move] = []
    emptied: list[str] = []
    while holders:  # what was moved makes other cards fuller: each time, the least used of now
        uuid = min(holders, key=lambda one: (-free_milli(one), one))
        holders.discard(uuid)
        leaving = [number for number in range(len(placed)) if _holds(placed[number], uuid)]
        if not leaving or len(moves) + len(leaving) > most:
            continue
        made = _clear(copy, uuid, [placed[number] for number in leaving])
        if made is not None:
            emptied.append(uuid)
            moves += made
            for number, move in zip(leaving, made, strict=True):
                placed[number] = move.after
    return Defragmentation(moves=tuple(moves), emptied=tuple(emptied))


def _clear(index: Index, uuid: str, leaving: list[Placement]) -> list[Move] | None:
    """Move pods off a device onto others already in use; None, and nothing done, if they stay."""
    number, position = index.cluster.where[uuid]
    device = index.cluster.nodes[number].devices[position]
    empty = sum(index.cluster.empty)
    index.replace(evolve(device, health="to be emptied"))
    moves: list[Move] = []
    for placement in leaving:
        index.remove(placement)
        answer = index.find(placement.pod)
        if isinstance(answer, Refusal):
            index.take(placement)
            break
        index.take(answer)
        moves.append(Move(before=placement, after=answer))
    index.replace(device)
    if len(moves) == len(leaving) and sum(index.cluster.empty) > empty:
        return moves
    for move in reversed(moves):
        index.remove(move.after)
        index.take(move.before)
    return None


def _holds(placement: Placement, uuid: str) -> bool:
    return any(usage.device == uuid for usage in placement.holds)


def _loss(victims: Sequence[Placement]) -> tuple[int, int, int]:
    return (
        len(victims),
        sum(victim.pod.work for victim in victims),
        sum(victim.pod.priority for victim in victims),
    )


def _victims(
    index: Index, number: int, pod: Pod, candidates: list[Placement], most: int
) -> Preemption | None:
    """Return the cheapest victims on one node, None if even all would not do or be too many."""

    def without(victims: Iterable[Placement]) -> Placement | None:
        return _place_without(index, number, pod, victims)

    if without(candidates) is None:
        return None
    for size in range(1, min(most, len(candidates)) + 1):
        if comb(len(candidates), size) > _SETS:
            break
        for some in sorted(combinations(candidates, size), key=_loss):
            placement = without(some)
            if placement is not None:
                return Preemption(placement=placement, victims=some)
    else:
        return None
    remaining = list(candidates)  # too many sets: spare the costliest while the pod still fits
    for victim in sorted(candidates, key=lambda one: _loss((one,)), reverse=True):
        rest = [one for one in remaining if one is not victim]
        if without(rest) is not None:
            remaining = rest
    placement = without(remaining)
    return None if placement is None else Preemption(placement=placement, victims=tuple(remaining))


def _place_without(
    index: Index, number: int, pod: Pod, victims: Iterable[Placement]
) -> Placement | None:
    """Return the pod's place on a node once the victims are gone from it."""
    cluster = index.cluster
    if cluster.closed[number]:
        return None
    free = {uuid: dict(left) for uuid, left in cluster.free(number).items()}
    host = dict(zip(cluster.counters, cluster.host[number], strict=True))
    for victim in victims:
        for usage in victim.holds:
            for name, amount in usage.takes.items():
                free[usage.device][name] += amount
        for name, amount in victim.host.items():
            if name in host:
                host[name] += amount
    node = cluster.nodes[number]
    answer = place_pod(node.name, node.devices, free, host, pod, policy=index.prices.policy)
    return answer if isinstance(answer, Placement) else None


def _lacking(index: Index, number: int, pod: Pod) -> int:
    """Return the thousandths of cards by which a node's roomiest cards fall short of a pod."""
    cluster, shape = index.cluster, index.prices.shape(pod)
    cards = sorted((cluster.states[card] for card in cluster.cards[number]), key=_free_milli)
    roomiest = cards[max(len(cards) - shape.cards, 0) :] if shape.cards else []
    each = (index.prices.size(shape, state.kind) // shape.cards for state in roomiest)
    return sum(max(size - state.free_milli, 0) for size, state in zip(each, roomiest, strict=True))


def _free_milli(state: State) -> int:
    return state.free_milli
