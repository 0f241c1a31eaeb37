"""The published placement policies, as defined there, to compare ours with under one protocol.

Weng et al. (USENIX ATC 2023, on fragmentation gradient descent) compare six. Each gives a node a
whole-numbered score from 0 to 100, the highest wins, and the first node among equals; that
rounding is part of what they do and is kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from hetero.model import MEMORY, Device, Request
from hetero.model.errors import BadInput
from hetero.model.rounding import Portion
from hetero.placement.cluster import CPU, HOST_MEMORY, PlacedPod
from hetero.placement.placement_policy import PlacementPolicy
from hetero.placement.state import UNLIMITED, Cluster

_Ints = NDArray[np.int64]
WHOLE = 1000  # thousandths of a card
_MAX_CPU, _MAX_CARDS = 128_000, 8_000  # the largest node, by which the paper's scores normalise
#: The share of pods the typical ones must make up, in percent, as the authors run it.
_TYPICAL = 95


@frozen
class BaselinePod:
    """A pod as the paper sees it: `count` cards with `share` thousandths of each."""

    cpu: int
    memory: int
    count: int
    share: int
    models: tuple[str, ...]


def demand(pod: PlacedPod, *, card: int) -> BaselinePod:
    """Return the demand of a pod where a card has `card` bytes. Raises `BadInput`."""
    requests = [c.request for c in (*pod.containers, *pod.sidecars, *pod.init) if c.request]
    if len(requests) > 1 or (requests and not _simple(requests[0])):
        raise BadInput(f"pod {pod.name!r}: the baselines know one container with equal shares only")
    host = pod.host()
    count, share = 0, 0
    models: tuple[str, ...] = ()
    if requests:
        ask = requests[0].asks[0]
        count, models = len(requests[0].asks), requests[0].model.include
        share = WHOLE if ask.memory is None else -(-ask.memory * WHOLE // card)
        if ask.memory_percent is not None:
            share = ask.memory_percent * WHOLE // 100
    return BaselinePod(host.get(CPU, 0), host.get(HOST_MEMORY, 0), count, share, models)


def _simple(request: Request) -> bool:
    return len(set(request.asks)) == 1 and request == Request(
        asks=request.asks, model=request.model, policy=request.policy, priority=request.priority
    )


class Room:
    """What is left of every node of a cache, as the paper's policies see it."""

    def __init__(self, cluster: Cluster) -> None:
        """Read all nodes. Raises `BadInput` unless all cards are equal in size."""
        self._cluster, nodes = cluster, cluster.nodes
        sizes = {device.capacity[MEMORY] for node in nodes for device in node.devices}
        if len(sizes) > 1:
            raise BadInput("the baselines know cards of one size only")
        self.card = max(sizes, default=WHOLE)
        most = max((len(node.devices) for node in nodes), default=0) or 1
        self.cpu: _Ints = np.zeros(len(nodes), dtype=np.int64)
        self.memory: _Ints = np.zeros(len(nodes), dtype=np.int64)
        self.cards: _Ints = np.zeros((len(nodes), most), dtype=np.int64)
        self.exists = np.zeros((len(nodes), most), dtype=bool)
        models = sorted({d.model for node in nodes for d in node.devices})
        self.models = {model: place for place, model in enumerate(models)}
        self.model: _Ints = np.full(len(nodes), -1, dtype=np.int64)
        for number, node in enumerate(nodes):
            self.exists[number, : len(node.devices)] = True
            if node.devices:
                self.model[number] = self.models[node.devices[0].model]
            self.read(number)
        #: How many pods of each affinity (shared, 1, 2, 4, 8 cards …) a node holds: clustering.
        self.affinity: dict[int, _Ints] = {}

    def read(self, number: int) -> None:
        """Read one node anew."""
        cluster = self._cluster
        left = dict(zip(cluster.counters, cluster.host[number], strict=True))
        self.cpu[number] = left.get(CPU, UNLIMITED)
        self.memory[number] = left.get(HOST_MEMORY, UNLIMITED)
        cards = cluster.cards[number]
        self.cards[number, : len(cards)] = [
            cluster.card_states.states[card].free_milli for card in cards
        ]

    def allowed(self, want: BaselinePod) -> NDArray[np.bool_]:
        """Return which models the pod may run on; the last entry is a node without cards."""
        if not want.models:
            return np.ones(len(self.models) + 1, dtype=bool)
        return np.array([*(model in want.models for model in self.models), False])

    def count(self, number: int, want: BaselinePod, *, times: int) -> None:
        """Note that a pod came to a node (`times` 1) or left it (-1)."""
        if want.count:
            key = 0 if want.share < WHOLE else want.count
            held = self.affinity.setdefault(key, np.zeros(len(self.cpu), dtype=np.int64))
            held[number] += times


class Mix:
    """The typical pods of a workload and what they cannot use of a node: the paper's measure F."""

    def __init__(self, pods: list[BaselinePod], room: Room) -> None:
        """Take as typical the most frequent demands that make up 95 % of `pods`."""
        seen: dict[tuple[int, int, int, tuple[str, ...]], int] = {}
        for pod in pods:
            key = (pod.cpu, pod.share, pod.count, pod.models)
            seen[key] = seen.get(key, 0) + 1
        ranked = sorted(seen.items(), key=lambda counted: (counted[1], counted[0]), reverse=True)
        typical, so_far = [], 0
        for key, times in ranked:
            if so_far * 100 >= _TYPICAL * len(pods):
                break
            typical.append((key, times))
            so_far += times
        self._times = np.array([times for _, times in typical], dtype=np.int64)
        self._total = so_far
        self._cpu = np.array([key[0] for key, _ in typical], dtype=np.int64)
        self._count = np.array([key[2] for key, _ in typical], dtype=np.int64)
        shares = sorted({key[1] for key, _ in typical})
        self._shares = np.array(shares, dtype=np.int64)
        self._share = np.array([shares.index(key[1]) for key, _ in typical])
        allowed = [room.allowed(BaselinePod(k[0], 0, k[2], k[1], k[3])) for k, _ in typical]
        self._allowed = np.array(allowed).T  # by model

    def useless(self, cpu: _Ints, cards: _Ints, model: _Ints) -> NDArray[np.float64]:
        """Return the thousandths of each node's cards that a typical pod cannot use, on average.

        `cards` has a node's cards across; the three go together node by node.
        """
        fits = cards[:, :, None] >= self._shares
        enough = fits.sum(axis=1)[:, self._share] >= self._count
        usable = enough & (cpu[:, None] >= self._cpu) & self._allowed[model] & (self._count > 0)
        small = np.where(fits, 0, cards[:, :, None]).sum(axis=1)[:, self._share]
        lost = np.where(usable, small, cards.sum(axis=1)[:, None])
        useless: NDArray[np.float64] = (lost * self._times).sum(axis=1) / self._total
        return useless

    def lost(self, room: Room) -> float:
        """Return the thousandths of all cards that a typical pod cannot use."""
        return float(self.useless(room.cpu, room.cards, room.model).sum())


#: Returns the scores of the given nodes for a pod, higher is better.
Score = Callable[[Room, Mix, BaselinePod, _Ints], _Ints]


def best_fit(room: Room, _: Mix, want: BaselinePod, at: _Ints) -> _Ints:
    """Prefer the node with the least left over, processors and cards weighing the same."""
    cpu = (room.cpu[at] - want.cpu) / _MAX_CPU
    cards = (room.cards[at].sum(axis=1) - want.share * want.count) / _MAX_CARDS
    return _whole((1 - (cpu + cards) / 2) * 100)


def dot_product(room: Room, _: Mix, want: BaselinePod, at: _Ints) -> _Ints:
    """Prefer the node whose free resources are least along the pod's (Tetris, upside down)."""
    cpu = room.cpu[at] / _MAX_CPU * (want.cpu / _MAX_CPU)
    cards = room.cards[at].sum(axis=1) / _MAX_CARDS * (want.share * want.count / _MAX_CARDS)
    return _whole((1 - (cpu + cards) / 2) * 100)


def packing(room: Room, _: Mix, want: BaselinePod, at: _Ints) -> _Ints:
    """Prefer shared cards, then empty cards on used nodes, then empty nodes."""
    if not want.count:
        return np.zeros(len(at), dtype=np.int64)
    cards, exists = room.cards[at], room.exists[at]
    whole = (cards == WHOLE).sum(axis=1)
    least = np.sort(np.where(exists & (cards >= want.share), cards, WHOLE + 1), axis=1)
    used = least[:, : want.count]
    opened = (used == WHOLE).sum(axis=1)
    on_empty_node = np.maximum(100 // 3 - whole, whole)
    on_empty_cards = np.maximum(50 - opened, 100 // 3)
    on_shared = np.maximum(100 - (used * 100 // WHOLE).sum(axis=1) // 10, 50)
    scores = np.where(opened > 0, on_empty_cards, on_shared)
    return _whole(np.where(whole == exists.sum(axis=1), on_empty_node, scores))


def clustering(room: Room, _: Mix, want: BaselinePod, at: _Ints) -> _Ints:
    """Prefer nodes that hold pods of the same affinity (shared, one card, two …), and only such."""
    if not want.count:
        return np.zeros(len(at), dtype=np.int64)
    kinds = sum((held[at] > 0).astype(np.int64) for held in room.affinity.values())
    key = 0 if want.share < WHOLE else want.count
    same = room.affinity[key][at] > 0 if key in room.affinity else np.zeros(len(at), dtype=bool)
    rank = np.where(same, np.where(kinds == 1, 75, 50), np.where(kinds == 0, 25, 0))
    return _whole(25 * (_MAX_CARDS - room.cards[at].sum(axis=1)) // _MAX_CARDS + rank)


def fgd(room: Room, mix: Mix, want: BaselinePod, at: _Ints) -> _Ints:
    """Prefer the node whose useless part grows least (fragmentation gradient descent)."""
    return _whole(_descents(room, mix, want, at).max(axis=1))


def _descents(room: Room, mix: Mix, want: BaselinePod, at: _Ints) -> _Ints:
    """Return FGD's score of each node (down) and card (across; one column for whole cards)."""
    cpu, cards, model = room.cpu[at] - want.cpu, room.cards[at], room.model[at]
    before = mix.useless(room.cpu[at], cards, model)
    if want.count == 1 and want.share < WHOLE:
        width = cards.shape[1]
        after = np.repeat(cards[:, None, :], width, axis=1)
        after[:, range(width), range(width)] -= want.share
        flat = after.reshape(-1, width)
        then = mix.useless(np.repeat(cpu, width), flat, np.repeat(model, width))
        scores = _squash(before[:, None] - then.reshape(-1, width))
        return _whole(np.where(cards >= want.share, scores, -1))
    after = cards.copy()
    if want.count:
        whole = cards == WHOLE
        after[whole & (np.cumsum(whole, axis=1) <= want.count)] = 0
    return _squash(before - mix.useless(cpu, after, model))[:, None]


def _squash(descent: NDArray[np.float64]) -> _Ints:
    return _whole(100 / (1 + np.exp(-descent / 1000)))


def _whole(scores: NDArray[Any]) -> _Ints:
    """Return the scores cut to whole numbers."""
    return scores.astype(np.int64)


SCORES: Mapping[str, Score | None] = {
    "random": None,
    "bestfit": best_fit,
    "dotproduct": dot_product,
    "packing": packing,
    "clustering": clustering,
    "fgd": fgd,
}


class Baseline:
    """Chooses nodes of a cache by one of the published scores, kept until their node changes."""

    def __init__(self, name: str, cluster: Cluster, pods: Iterable[PlacedPod], seed: int) -> None:
        """Read the cluster; `pods` is the declared workload FGD takes its typical pods from."""
        self._cluster, self.room = cluster, Room(cluster)
        self._demands: dict[int, BaselinePod] = {}
        self.mix = Mix([demand(pod, card=self.room.card) for pod in pods], self.room)
        self._name, self._score = name, SCORES[name]
        self._random = random.Random(seed)
        self._rows: dict[BaselinePod, _Ints] = {}
        self._upto: dict[BaselinePod, int] = {}
        self._changed: list[int] = []

    def choose(self, pod: PlacedPod) -> tuple[str, PlacementPolicy] | None:
        """Return the node for a pod and what chooses its cards, None if it fits nowhere."""
        want = self._demand(pod)
        if self._score is None:
            every = np.arange(len(self.room.cpu))
            able = np.flatnonzero(self._fits(want, every))
            number = int(self._random.choice(able.tolist())) if len(able) else None
        else:
            number = self._best(want, self._score)
        if number is None:
            return None
        card = self._card(number, want)
        node = self._cluster.nodes[number]

        def prefer(device: Device, _: Mapping[str, int], __: Portion) -> tuple[int, ...]:
            return (device is not node.devices[card],)

        return node.name, prefer

    def note(self, node: int, pod: PlacedPod, *, times: int) -> None:
        """Note that a pod came to a node (`times` 1) or left it (-1)."""
        self.room.read(node)
        self.room.count(node, self._demand(pod), times=times)
        self._changed.append(node)

    def _demand(self, pod: PlacedPod) -> BaselinePod:
        want = self._demands.get(id(pod))
        if want is None:
            want = self._demands[id(pod)] = demand(pod, card=self.room.card)
        return want

    def _best(self, want: BaselinePod, score: Score) -> int | None:
        row = self._rows.get(want)
        if row is None:
            row = self._rows[want] = np.full(len(self.room.cpu), -1, dtype=np.int64)
            stale: _Ints = np.arange(len(row))
        else:
            stale = np.array(sorted(set(self._changed[self._upto[want] :])), dtype=np.int64)
        self._upto[want] = len(self._changed)
        if len(stale):
            row[stale] = -1
            able = stale[self._fits(want, stale)]
            if len(able):
                row[able] = score(self.room, self.mix, want, able)
        best = int(row.argmax())
        return best if row[best] >= 0 else None

    def _fits(self, want: BaselinePod, at: _Ints) -> Any:
        room = self.room
        enough = (room.cpu[at] >= want.cpu) & (room.memory[at] >= want.memory)
        if want.count:
            enough &= (room.cards[at] >= want.share).sum(axis=1) >= want.count
            enough &= room.allowed(want)[room.model[at]]
        return enough

    def _card(self, node: int, want: BaselinePod) -> int:
        """Return the card of a share: FGD's own choice, any for random, else the tightest."""
        if want.count != 1 or want.share == WHOLE:
            return 0
        cards = self.room.cards[node]
        if self._name == "fgd":
            return int(_descents(self.room, self.mix, want, np.array([node]))[0].argmax())
        able = np.flatnonzero(cards >= want.share)
        if self._name == "random":
            return int(self._random.choice(able.tolist()))
        return int(able[cards[able].argmin()])
