"""Places pods on the scheduler's own cache, by our prices or by a published policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hetero.model import Refusal
from hetero.model.errors import BadInput
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import PlacedNode, PlacedPod
from hetero.placement.placement_policy import WEIGHTS, weights
from hetero.simulate.baselines import SCORES, Baseline, Mix, Room, demand


class Player:
    """A cluster under one placement policy; pods are placed as kube-scheduler would ask."""

    def __init__(
        self, placement: str, nodes: Iterable[PlacedNode], pods: Iterable[PlacedPod], seed: int
    ) -> None:
        """Start with everything free; some baselines learn from `pods`, the whole workload."""
        is_ours = placement not in SCORES
        self.seed = seed
        self.cache = SchedulerCache(weights=weights(placement) if is_ours else WEIGHTS["first"])
        for node in nodes:
            self.cache.update_node(node)
        self._names = frozenset(self.cache.inventory.nodes)
        self.cluster = self.cache.rows().cluster
        declared_pods = list(pods)
        self._baseline = None if is_ours else Baseline(placement, self.cluster, declared_pods, seed)
        self._mix: tuple[Mix, Room] | None = None
        try:
            room = Room(self.cluster)
            self._mix = (
                Mix([demand(pod, card_bytes=room.card_bytes) for pod in declared_pods], room),
                room,
            )
        except BadInput:
            pass  # the measure is defined for equal cards and plain pods only

    def place(self, uid: str, pod: PlacedPod, now_s: float) -> bool:
        """Filter and bind a pod at `now_s` in seconds; return whether it fits."""
        policy = None
        if self._baseline is None:
            self.cache.arrive(uid, pod, now_s)
            node = self.cache.best(pod, self._names, uid=uid)
            if node is None:
                self.cache.reserve_nodes(uid, pod, self._names)
        else:
            node_and_policy = self._baseline.choose(pod)
            node, policy = node_and_policy or (None, None)
        if node is None or isinstance(self.cache.reserve(uid, pod, node, policy=policy), Refusal):
            return False
        self._note(node, pod, direction=1)
        return True

    def end(self, uid: str) -> None:
        """Remove a pod."""
        placement = self.cache.standing.get(uid)
        self.cache.forget(uid)
        if placement is not None:
            self._note(placement.node, placement.pod, direction=-1)

    def _note(self, node_name: str, pod: PlacedPod, *, direction: int) -> None:
        if self._baseline is not None:
            self._baseline.note(self.cluster.number[node_name], pod, direction=direction)

    def reason(self, pod: PlacedPod) -> str:
        """Return the reason of most nodes to refuse the pod."""
        _, verdicts = self.cache.serving(pod, self._names)
        count_by_reason = Counter(verdicts.values())
        return min(
            count_by_reason, key=lambda reason: (-count_by_reason[reason], reason), default=""
        )

    def useless(self) -> float | None:
        """Return the thousandths of cards that a typical pod cannot use; None if cards differ."""
        if self._mix is None:
            return None
        mix, room = self._mix
        for node_number in range(len(self.cluster.nodes)):
            room.read(node_number)
        return mix.lost(room)
