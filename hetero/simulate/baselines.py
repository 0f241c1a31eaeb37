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
from hetero.placement.state import UNLIMITED_AMOUNT, Cluster

_Ints = NDArray[np.int64]
WHOLE_MILLI = 1000  # thousandths of a card
_MAX_CPU, _MAX_CARDS = 128_000, 8_000  # the largest node, by which the paper's scores normalise
#: The share of pods the typical ones must make up, in percent, as the authors run it.
_TYPICAL_PERCENT = 95


@frozen
class BaselinePod:
    """A pod as the paper sees it: `card_count` cards with `share_milli` thousandths of each."""

    cpu_milli: int
    host_memory_bytes: int
    card_count: int
    share_milli: int
    models: tuple[str, ...]


def demand(pod: PlacedPod, *, card_bytes: int) -> BaselinePod:
    """Return the demand of a pod where a card has `card_bytes` bytes. Raises `BadInput`."""
    requests = [
        container.request
        for container in (*pod.containers, *pod.sidecars, *pod.init)
        if container.request
    ]
    if len(requests) > 1 or (requests and not _simple(requests[0])):
        raise BadInput(f"pod {pod.name!r}: the baselines know one container with equal shares only")
    host_amounts = pod.host()
    card_count, share_milli = 0, 0
    models: tuple[str, ...] = ()
    if requests:
        ask = requests[0].asks[0]
        card_count, models = len(requests[0].asks), requests[0].model.include
        share_milli = (
            WHOLE_MILLI if ask.memory is None else -(-ask.memory * WHOLE_MILLI // card_bytes)
        )
        if ask.memory_percent is not None:
            share_milli = ask.memory_percent * WHOLE_MILLI // 100
    return BaselinePod(
        host_amounts.get(CPU, 0), host_amounts.get(HOST_MEMORY, 0), card_count, share_milli, models
    )


def _simple(request: Request) -> bool:
    return len(set(request.asks)) == 1 and request == Request(
        asks=request.asks, model=request.model, policy=request.policy, priority=request.priority
    )


class Room:
    """The free amounts of every node of a cache, in the terms of the paper."""

    def __init__(self, cluster: Cluster) -> None:
        """Read all nodes. Raises `BadInput` unless all cards are equal in size."""
        self._cluster, nodes = cluster, cluster.nodes
        card_sizes = {device.capacity[MEMORY] for node in nodes for device in node.devices}
        if len(card_sizes) > 1:
            raise BadInput("the baselines know cards of one size only")
        self.card_bytes = max(card_sizes, default=WHOLE_MILLI)
        most_cards = max((len(node.devices) for node in nodes), default=0) or 1
        self.cpu_left_milli: _Ints = np.zeros(len(nodes), dtype=np.int64)
        self.host_memory_left_bytes: _Ints = np.zeros(len(nodes), dtype=np.int64)
        self.cards_left_milli: _Ints = np.zeros((len(nodes), most_cards), dtype=np.int64)
        self.exists = np.zeros((len(nodes), most_cards), dtype=bool)
        models = sorted({device.model for node in nodes for device in node.devices})
        self.model_number_by_name = {model: position for position, model in enumerate(models)}
        self.model_numbers: _Ints = np.full(len(nodes), -1, dtype=np.int64)
        for node_number, node in enumerate(nodes):
            self.exists[node_number, : len(node.devices)] = True
            if node.devices:
                self.model_numbers[node_number] = self.model_number_by_name[node.devices[0].model]
            self.read(node_number)
        #: How many pods of each affinity (shared, 1, 2, 4, 8 cards …) a node holds: clustering.
        self.pod_counts_by_affinity: dict[int, _Ints] = {}

    def read(self, node_number: int) -> None:
        """Update one node."""
        cluster = self._cluster
        host_left = dict(zip(cluster.counters, cluster.host[node_number], strict=True))
        self.cpu_left_milli[node_number] = host_left.get(CPU, UNLIMITED_AMOUNT)
        self.host_memory_left_bytes[node_number] = host_left.get(HOST_MEMORY, UNLIMITED_AMOUNT)
        card_states = cluster.cards[node_number]
        self.cards_left_milli[node_number, : len(card_states)] = [
            cluster.card_states.states[state_number].free_milli for state_number in card_states
        ]

    def allowed(self, pod: BaselinePod) -> NDArray[np.bool_]:
        """Return the models that the pod may run on; the last entry is for nodes without cards."""
        if not pod.models:
            return np.ones(len(self.model_number_by_name) + 1, dtype=bool)
        return np.array([*(model in pod.models for model in self.model_number_by_name), False])

    def count(self, node_number: int, pod: BaselinePod, *, direction: int) -> None:
        """Count a pod that was placed on a node (`direction` 1) or left it (-1)."""
        if pod.card_count:
            affinity_key = 0 if pod.share_milli < WHOLE_MILLI else pod.card_count
            pods_by_node = self.pod_counts_by_affinity.setdefault(
                affinity_key, np.zeros(len(self.cpu_left_milli), dtype=np.int64)
            )
            pods_by_node[node_number] += direction


class Mix:
    """The typical pods of a workload, and the card parts useless to them: the paper's measure F."""

    def __init__(self, pods: list[BaselinePod], room: Room) -> None:
        """Take as typical the most frequent demands that make up 95 % of `pods`."""
        count_by_demand: dict[tuple[int, int, int, tuple[str, ...]], int] = {}
        for pod in pods:
            demand_key = (pod.cpu_milli, pod.share_milli, pod.card_count, pod.models)
            count_by_demand[demand_key] = count_by_demand.get(demand_key, 0) + 1
        ranked_demands = sorted(
            count_by_demand.items(),
            key=lambda demand_and_count: (demand_and_count[1], demand_and_count[0]),
            reverse=True,
        )
        typical_demands, counted_pods = [], 0
        for demand_key, pod_count in ranked_demands:
            if counted_pods * 100 >= _TYPICAL_PERCENT * len(pods):
                break
            typical_demands.append((demand_key, pod_count))
            counted_pods += pod_count
        self._times = np.array([pod_count for _, pod_count in typical_demands], dtype=np.int64)
        self._total = counted_pods
        self._cpu = np.array([demand_key[0] for demand_key, _ in typical_demands], dtype=np.int64)
        self._count = np.array([demand_key[2] for demand_key, _ in typical_demands], dtype=np.int64)
        shares_milli = sorted({demand_key[1] for demand_key, _ in typical_demands})
        self._shares = np.array(shares_milli, dtype=np.int64)
        self._share = np.array(
            [shares_milli.index(demand_key[1]) for demand_key, _ in typical_demands]
        )
        allowed_models = [
            room.allowed(BaselinePod(demand_key[0], 0, demand_key[2], demand_key[1], demand_key[3]))
            for demand_key, _ in typical_demands
        ]
        self._allowed = np.array(allowed_models).T  # by model

    def useless(
        self, cpu_left_milli: _Ints, cards_left_milli: _Ints, model_numbers: _Ints
    ) -> NDArray[np.float64]:
        """Return the thousandths of each node's cards that a typical pod cannot use, on average.

        `cards_left_milli` has a node's cards across; the three go together node by node.
        """
        fits_card = cards_left_milli[:, :, None] >= self._shares
        has_enough = fits_card.sum(axis=1)[:, self._share] >= self._count
        is_usable = (
            has_enough
            & (cpu_left_milli[:, None] >= self._cpu)
            & self._allowed[model_numbers]
            & (self._count > 0)
        )
        small_rest_milli = np.where(fits_card, 0, cards_left_milli[:, :, None]).sum(axis=1)[
            :, self._share
        ]
        lost_milli = np.where(is_usable, small_rest_milli, cards_left_milli.sum(axis=1)[:, None])
        mean_lost_milli: NDArray[np.float64] = (lost_milli * self._times).sum(axis=1) / self._total
        return mean_lost_milli

    def lost(self, room: Room) -> float:
        """Return the thousandths of all cards that a typical pod cannot use."""
        return float(
            self.useless(room.cpu_left_milli, room.cards_left_milli, room.model_numbers).sum()
        )


#: Returns the scores of the given nodes for a pod, higher is better.
Score = Callable[[Room, Mix, BaselinePod, _Ints], _Ints]


def best_fit(room: Room, _: Mix, pod: BaselinePod, node_numbers: _Ints) -> _Ints:
    """Prefer the node with the least free amounts; processors and cards have the same weight."""
    cpu_rest = (room.cpu_left_milli[node_numbers] - pod.cpu_milli) / _MAX_CPU
    cards_rest = (
        room.cards_left_milli[node_numbers].sum(axis=1) - pod.share_milli * pod.card_count
    ) / _MAX_CARDS
    return _whole((1 - (cpu_rest + cards_rest) / 2) * 100)


def dot_product(room: Room, _: Mix, pod: BaselinePod, node_numbers: _Ints) -> _Ints:
    """Prefer the node whose free resources are least along the pod's (Tetris, upside down)."""
    cpu_weight = room.cpu_left_milli[node_numbers] / _MAX_CPU * (pod.cpu_milli / _MAX_CPU)
    cards_weight = (
        room.cards_left_milli[node_numbers].sum(axis=1)
        / _MAX_CARDS
        * (pod.share_milli * pod.card_count / _MAX_CARDS)
    )
    return _whole((1 - (cpu_weight + cards_weight) / 2) * 100)


def packing(room: Room, _: Mix, pod: BaselinePod, node_numbers: _Ints) -> _Ints:
    """Prefer shared cards, then empty cards on used nodes, then empty nodes."""
    if not pod.card_count:
        return np.zeros(len(node_numbers), dtype=np.int64)
    cards_left_milli, is_card = room.cards_left_milli[node_numbers], room.exists[node_numbers]
    whole_card_counts = (cards_left_milli == WHOLE_MILLI).sum(axis=1)
    tightest_cards_milli = np.sort(
        np.where(
            is_card & (cards_left_milli >= pod.share_milli), cards_left_milli, WHOLE_MILLI + 1
        ),
        axis=1,
    )
    used_cards_milli = tightest_cards_milli[:, : pod.card_count]
    opened_card_counts = (used_cards_milli == WHOLE_MILLI).sum(axis=1)
    empty_node_scores = np.maximum(100 // 3 - whole_card_counts, whole_card_counts)
    empty_card_scores = np.maximum(50 - opened_card_counts, 100 // 3)
    shared_card_scores = np.maximum(
        100 - (used_cards_milli * 100 // WHOLE_MILLI).sum(axis=1) // 10, 50
    )
    scores = np.where(opened_card_counts > 0, empty_card_scores, shared_card_scores)
    return _whole(np.where(whole_card_counts == is_card.sum(axis=1), empty_node_scores, scores))


def clustering(room: Room, _: Mix, pod: BaselinePod, node_numbers: _Ints) -> _Ints:
    """Prefer nodes with pods of the same affinity (shared, one card, two …) and no others."""
    if not pod.card_count:
        return np.zeros(len(node_numbers), dtype=np.int64)
    affinity_count = sum(
        (pods_held[node_numbers] > 0).astype(np.int64)
        for pods_held in room.pod_counts_by_affinity.values()
    )
    affinity_key = 0 if pod.share_milli < WHOLE_MILLI else pod.card_count
    has_same = (
        room.pod_counts_by_affinity[affinity_key][node_numbers] > 0
        if affinity_key in room.pod_counts_by_affinity
        else np.zeros(len(node_numbers), dtype=bool)
    )
    rank = np.where(
        has_same, np.where(affinity_count == 1, 75, 50), np.where(affinity_count == 0, 25, 0)
    )
    return _whole(
        25 * (_MAX_CARDS - room.cards_left_milli[node_numbers].sum(axis=1)) // _MAX_CARDS + rank
    )


def fgd(room: Room, mix: Mix, pod: BaselinePod, node_numbers: _Ints) -> _Ints:
    """Prefer the node whose useless part grows least (fragmentation gradient descent)."""
    return _whole(_descents(room, mix, pod, node_numbers).max(axis=1))


def _descents(room: Room, mix: Mix, pod: BaselinePod, node_numbers: _Ints) -> _Ints:
    """Return FGD's scores by node (rows) and card (columns; one column for whole cards)."""
    cpu_left_milli, cards_left_milli, model_numbers = (
        room.cpu_left_milli[node_numbers] - pod.cpu_milli,
        room.cards_left_milli[node_numbers],
        room.model_numbers[node_numbers],
    )
    lost_before_milli = mix.useless(
        room.cpu_left_milli[node_numbers], cards_left_milli, model_numbers
    )
    if pod.card_count == 1 and pod.share_milli < WHOLE_MILLI:
        card_count = cards_left_milli.shape[1]
        cards_after_milli = np.repeat(cards_left_milli[:, None, :], card_count, axis=1)
        cards_after_milli[:, range(card_count), range(card_count)] -= pod.share_milli
        flat_cards = cards_after_milli.reshape(-1, card_count)
        lost_after = mix.useless(
            np.repeat(cpu_left_milli, card_count), flat_cards, np.repeat(model_numbers, card_count)
        )
        scores = _squash(lost_before_milli[:, None] - lost_after.reshape(-1, card_count))
        return _whole(np.where(cards_left_milli >= pod.share_milli, scores, -1))
    cards_after_milli = cards_left_milli.copy()
    if pod.card_count:
        is_whole = cards_left_milli == WHOLE_MILLI
        cards_after_milli[is_whole & (np.cumsum(is_whole, axis=1) <= pod.card_count)] = 0
    return _squash(
        lost_before_milli - mix.useless(cpu_left_milli, cards_after_milli, model_numbers)
    )[:, None]


def _squash(descent: NDArray[np.float64]) -> _Ints:
    return _whole(100 / (1 + np.exp(-descent / 1000)))


def _whole(scores: NDArray[Any]) -> _Ints:
    """Return the scores truncated to whole numbers."""
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

    def __init__(
        self, score_name: str, cluster: Cluster, pods: Iterable[PlacedPod], seed: int
    ) -> None:
        """Read the cluster; FGD takes its typical pods from `pods`, the declared workload."""
        self._cluster, self.room = cluster, Room(cluster)
        self._demands: dict[int, BaselinePod] = {}
        self.mix = Mix([demand(pod, card_bytes=self.room.card_bytes) for pod in pods], self.room)
        self._name, self._score = score_name, SCORES[score_name]
        self._random = random.Random(seed)
        self._rows: dict[BaselinePod, _Ints] = {}
        self._upto: dict[BaselinePod, int] = {}
        self._changed: list[int] = []

    def choose(self, pod: PlacedPod) -> tuple[str, PlacementPolicy] | None:
        """Return the node for a pod and the policy that chooses its cards, None if none fits."""
        baseline_pod = self._demand(pod)
        if self._score is None:
            all_numbers = np.arange(len(self.room.cpu_left_milli))
            able_numbers = np.flatnonzero(self._fits(baseline_pod, all_numbers))
            node_number = (
                int(self._random.choice(able_numbers.tolist())) if len(able_numbers) else None
            )
        else:
            node_number = self._best(baseline_pod, self._score)
        if node_number is None:
            return None
        card_position = self._card(node_number, baseline_pod)
        node = self._cluster.nodes[node_number]

        def prefer(device: Device, _: Mapping[str, int], __: Portion) -> tuple[int, ...]:
            return (device is not node.devices[card_position],)

        return node.name, prefer

    def note(self, node_number: int, pod: PlacedPod, *, direction: int) -> None:
        """Record that a pod was placed on a node (`direction` 1) or left it (-1)."""
        self.room.read(node_number)
        self.room.count(node_number, self._demand(pod), direction=direction)
        self._changed.append(node_number)

    def _demand(self, pod: PlacedPod) -> BaselinePod:
        baseline_pod = self._demands.get(id(pod))
        if baseline_pod is None:
            baseline_pod = self._demands[id(pod)] = demand(pod, card_bytes=self.room.card_bytes)
        return baseline_pod

    def _best(self, baseline_pod: BaselinePod, score: Score) -> int | None:
        score_row = self._rows.get(baseline_pod)
        if score_row is None:
            score_row = self._rows[baseline_pod] = np.full(
                len(self.room.cpu_left_milli), -1, dtype=np.int64
            )
            stale_numbers: _Ints = np.arange(len(score_row))
        else:
            stale_numbers = np.array(
                sorted(set(self._changed[self._upto[baseline_pod] :])), dtype=np.int64
            )
        self._upto[baseline_pod] = len(self._changed)
        if len(stale_numbers):
            score_row[stale_numbers] = -1
            able_numbers = stale_numbers[self._fits(baseline_pod, stale_numbers)]
            if len(able_numbers):
                score_row[able_numbers] = score(self.room, self.mix, baseline_pod, able_numbers)
        best_number = int(score_row.argmax())
        return best_number if score_row[best_number] >= 0 else None

    def _fits(self, baseline_pod: BaselinePod, node_numbers: _Ints) -> Any:
        room = self.room
        has_enough = (room.cpu_left_milli[node_numbers] >= baseline_pod.cpu_milli) & (
            room.host_memory_left_bytes[node_numbers] >= baseline_pod.host_memory_bytes
        )
        if baseline_pod.card_count:
            has_enough &= (room.cards_left_milli[node_numbers] >= baseline_pod.share_milli).sum(
                axis=1
            ) >= baseline_pod.card_count
            has_enough &= room.allowed(baseline_pod)[room.model_numbers[node_numbers]]
        return has_enough

    def _card(self, node_number: int, baseline_pod: BaselinePod) -> int:
        """Return the card of a share: FGD's own choice, any for random, else the tightest."""
        if baseline_pod.card_count != 1 or baseline_pod.share_milli == WHOLE_MILLI:
            return 0
        cards_left = self.room.cards_left_milli[node_number]
        if self._name == "fgd":
            return int(
                _descents(self.room, self.mix, baseline_pod, np.array([node_number]))[0].argmax()
            )
        able_cards = np.flatnonzero(cards_left >= baseline_pod.share_milli)
        if self._name == "random":
            return int(self._random.choice(able_cards.tolist()))
        return int(able_cards[cards_left[able_cards].argmin()])
