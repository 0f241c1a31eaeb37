"""Replays pods that arrive and depart at a load, under one placement policy and one seed."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from heapq import heappop, heappush
from itertools import product
from pathlib import Path
from statistics import fmean

from attrs import define, field, frozen

from hetero.model.errors import BadInput
from hetero.model.json_keys import json_key
from hetero.placement.cluster import PlacedPod
from hetero.placement.demand import request_class_of
from hetero.simulate.baselines import WHOLE_MILLI
from hetero.simulate.player import Player
from hetero.simulate.replay import as_they_end, demands
from hetero.simulate.trace import Trace, read

MODES = ("loss", "queue")
LIFETIMES = ("exponential", "trace")
#: Arrivals before measuring begins, and those that are measured.
WARM_UP_COUNT, MEASURED_COUNT = 10_000, 20_000
#: Seconds: the mean life where lives are exponential, and the longest of a trace.
MEAN_LIFE_S, LONGEST_LIFE_S = 3600.0, 24 * 3600.0

_MOST_LOAD_PERCENT = 1000
#: Arrivals from one count of the whole nodes to the next.
_COUNT_PERIOD_ARRIVALS = 20


@frozen(kw_only=True)
class Protocol:
    """How pods arrive and depart: the load is the arrival rate times mean(cards * life)."""

    lifetimes: str
    mode: str
    load_percent: int
    warm_up_count: int = WARM_UP_COUNT
    measured_count: int = MEASURED_COUNT


@frozen(kw_only=True)
class Size:
    """The outcome for the measured pods of one size: 0 is a share, else whole cards."""

    card_count: int = field(metadata=json_key("cards"))
    arrived_count: int = field(metadata=json_key("arrived"))
    #: Loss: not placed at once; queue: not placed by the end.
    refused_count: int = field(metadata=json_key("refused"))
    #: Seconds, mean; those that wait at the end count with what they have waited. Those that no
    #: node serves even when it is empty do not wait: their wait would only say how long a run is.
    mean_wait_s: float = field(metadata=json_key("waited"))
    wait_p99_s: float = field(metadata=json_key("waited_p99"))


@frozen(kw_only=True)
class Life:
    """The result of one placement policy for one sample; percentages are means over time."""

    placement: str
    seed: int
    load_percent: int
    allocated_percent: float  # of all cards
    whole_node_count: float  # nodes of which no card is used
    sizes: tuple[Size, ...]


@frozen(eq=False)
class _Workload:
    """The pods of a trace; all lists go by the pod's number in it."""

    name: str
    pods: Sequence[PlacedPod]
    demands_milli: Sequence[int]  # thousandths of cards that a pod asks for
    classes: Sequence[object]
    lives_s: Sequence[float]

    @classmethod
    def of(cls, trace: Trace, lifetimes: str) -> _Workload:
        classes = [(request_class_of(pod), tuple(pod.host().items())) for pod in trace.pods]
        return cls(trace.name, trace.pods, demands(trace), classes, _lives(trace, lifetimes))

    def mean(self) -> float:
        """Return the mean of cards times life, in thousandths and seconds. Raises `BadInput`."""
        total = sum(
            milli * life_s for milli, life_s in zip(self.demands_milli, self.lives_s, strict=True)
        )
        if not total:
            raise BadInput(f"{self.name}: no pod asks for a card that is there")
        return total / len(self.demands_milli)

    def cards(self, pod_number: int) -> int:
        """Return the whole cards a pod asks for, 0 for a share or none."""
        return self.demands_milli[pod_number] // WHOLE_MILLI


@define(eq=False)
class _Measures:
    """What is measured of a replay while it `is_running`; of pods, by the cards they ask for."""

    is_running: bool = False
    duration_s: float = 0.0
    used_milli_s: float = 0.0  # thousandths of cards times seconds
    whole_node_counts: list[int] = field(factory=list)  # their number, at each count
    arrival_count_by_cards: dict[int, int] = field(factory=dict)
    # The seconds that each pod waited which was placed, or was not by the end.
    placed_waits_s_by_cards: defaultdict[int, list[float]] = field(
        factory=partial(defaultdict, list)
    )
    unplaced_waits_s_by_cards: defaultdict[int, list[float]] = field(
        factory=partial(defaultdict, list)
    )

    def sizes(self) -> tuple[Size, ...]:
        sizes = []
        for cards, arrived in sorted(self.arrival_count_by_cards.items()):
            placed_waits = self.placed_waits_s_by_cards.get(cards, [])
            waits_s = sorted([*placed_waits, *self.unplaced_waits_s_by_cards.get(cards, [])])
            sizes.append(
                Size(
                    card_count=cards,
                    arrived_count=arrived,
                    refused_count=arrived - len(placed_waits),
                    mean_wait_s=sum(waits_s) / max(len(waits_s), 1),
                    wait_p99_s=waits_s[len(waits_s) * 99 // 100] if waits_s else 0.0,
                )
            )
        return tuple(sizes)


class _Replay:
    """The events of one replay, in time order."""

    def __init__(self, trace: Trace, placement: str, seed: int, protocol: Protocol) -> None:
        rng = random.Random(seed)
        nodes = list(trace.nodes)
        rng.shuffle(nodes)
        self.protocol = protocol
        self.player = Player(placement, nodes, trace.pods, seed)
        self.total_milli = self.player.cluster.left()
        self.workload = _Workload.of(trace, protocol.lifetimes)
        self.mean_gap_s = self.workload.mean() / (self.total_milli * protocol.load_percent / 100)
        self.rng = rng
        self.now_s = 0.0
        self.ends: list[tuple[float, str]] = []  # seconds, UID
        self.waiting: list[tuple[int, int, int, float]] = []  # -priority, arrival, pod, second
        self.empty_cluster = Player("first", nodes, (), seed)
        self.runs_alone: dict[object, bool] = {}  # by class of pod, of those that were refused
        self.measures = _Measures()

    def run(self) -> None:
        protocol = self.protocol
        for arrival_number in range(protocol.warm_up_count + protocol.measured_count):
            self._pass(self.now_s + self.rng.expovariate(1 / self.mean_gap_s))
            self.measures.is_running = arrival_number >= protocol.warm_up_count
            self._arrive(arrival_number, self.rng.randrange(len(self.workload.pods)))
        self.measures.is_running = False
        self._finish()
        for _, arrival_number, pod_number, arrived_at_s in self.waiting:
            if self._measured(arrival_number):
                cards = self.workload.cards(pod_number)
                self.measures.unplaced_waits_s_by_cards[cards].append(self.now_s - arrived_at_s)

    def _finish(self) -> None:
        """Continue the arrivals until no measured pod waits, or as many again have arrived."""
        arrival_number = self.protocol.warm_up_count + self.protocol.measured_count
        for later_number in range(arrival_number, arrival_number + self.protocol.measured_count):
            if not any(self._measured(waiting[1]) for waiting in self.waiting):
                return
            self._pass(self.now_s + self.rng.expovariate(1 / self.mean_gap_s))
            self._arrive(later_number, self.rng.randrange(len(self.workload.pods)))

    def _pass(self, until_s: float) -> None:
        """Advance the time; the waiting pods are tried again at each departure."""
        while self.ends and self.ends[0][0] <= until_s:
            ends_at_s, uid = heappop(self.ends)
            self._measure(ends_at_s)
            self.player.end(uid)
            self._try_all()
        self._measure(until_s)

    def _measure(self, until_s: float) -> None:
        if self.measures.is_running:
            self.measures.duration_s += until_s - self.now_s
            used_milli = self.total_milli - self.player.cluster.left()
            self.measures.used_milli_s += (until_s - self.now_s) * used_milli
        self.now_s = until_s

    def _arrive(self, arrival_number: int, pod_number: int) -> None:
        if self.measures.is_running:
            # Arrivals come at random: what they find is the mean over time.
            if arrival_number % _COUNT_PERIOD_ARRIVALS == 0:
                self.measures.whole_node_counts.append(self.player.cluster.whole_nodes())
            card_count = self.workload.cards(pod_number)
            arrivals = self.measures.arrival_count_by_cards
            arrivals[card_count] = arrivals.get(card_count, 0) + 1
        if self._try(arrival_number, pod_number, self.now_s) or self.protocol.mode == "loss":
            return
        if self._runs_alone(pod_number):
            self.waiting.append(
                (-self.workload.pods[pod_number].priority, arrival_number, pod_number, self.now_s)
            )
            self.waiting.sort()

    def _runs_alone(self, pod_number: int) -> bool:
        """Return whether an empty cluster serves a pod."""
        placement = self.runs_alone.get(self.workload.classes[pod_number])
        if placement is None:
            placement = self.empty_cluster.place("", self.workload.pods[pod_number], 0.0)
            self.empty_cluster.end("")
            self.runs_alone[self.workload.classes[pod_number]] = placement
        return placement

    def _try_all(self) -> None:
        """Try the waiting pods in the order of kube-scheduler: by priority, then by age."""
        refused_classes: set[object] = set()
        still_waiting = []
        for waiting in self.waiting:
            _, arrival_number, pod_number, arrived_at_s = waiting
            if self.workload.classes[pod_number] in refused_classes or not self._try(
                arrival_number, pod_number, arrived_at_s
            ):
                refused_classes.add(self.workload.classes[pod_number])
                still_waiting.append(waiting)
        self.waiting = still_waiting

    def _try(self, arrival_number: int, pod_number: int, arrived_at_s: float) -> bool:
        uid = str(arrival_number)
        if not self.player.place(uid, self.workload.pods[pod_number], self.now_s):
            if self.protocol.mode == "loss":
                self.player.end(uid)
            return False
        life_s = self.workload.lives_s[pod_number]
        if self.protocol.lifetimes == "exponential":
            life_s = random.Random(f"{self.player.seed}/{arrival_number}").expovariate(1 / life_s)
        heappush(self.ends, (self.now_s + life_s, uid))
        if self._measured(arrival_number):
            cards = self.workload.cards(pod_number)
            self.measures.placed_waits_s_by_cards[cards].append(self.now_s - arrived_at_s)
        return True

    def _measured(self, arrival_number: int) -> bool:
        return 0 <= arrival_number - self.protocol.warm_up_count < self.protocol.measured_count


def _lives(trace: Trace, lifetimes: str) -> list[float]:
    """Return each pod's mean life in seconds."""
    if lifetimes == "exponential":
        return [MEAN_LIFE_S] * len(trace.pods)
    if len(trace.lives) != len(trace.pods):
        raise BadInput(f"{trace.name}: its pods have no times: use --lifetimes exponential")
    return [min(life_s, LONGEST_LIFE_S) for life_s in trace.lives]


def live(trace: Trace, placement: str, seed: int, protocol: Protocol) -> Life:
    """Return the result of a placement policy for pods that depart; a seed determines it."""
    replay = _Replay(trace, placement, seed, protocol)
    replay.run()
    measures = replay.measures
    return Life(
        placement=placement,
        seed=seed,
        load_percent=protocol.load_percent,
        allocated_percent=100 * measures.used_milli_s / (replay.total_milli * measures.duration_s),
        whole_node_count=fmean(measures.whole_node_counts),
        sizes=measures.sizes(),
    )


def live_all(
    path: Path,
    pods: str | None,
    placements: Iterable[str],
    seeds: Iterable[int],
    protocols: Iterable[Protocol],
    *,
    processes: int,
) -> Iterator[Life]:
    """Yield a result for every placement, seed and protocol; `processes` run at a time."""
    tasks = [(path, pods, *task) for task in product(placements, seeds, protocols)]
    yield from as_they_end(_live_task, tasks, processes=processes)


def loads(list_text: str) -> list[int]:
    """Return the loads in a list such as `90,100,115`, in percent. Raises `BadInput`."""
    load_texts = [load_text.strip() for load_text in list_text.split(",") if load_text.strip()]
    for load_text in load_texts:
        if not load_text.isdecimal() or not 1 <= int(load_text) <= _MOST_LOAD_PERCENT:
            raise BadInput(
                f"--load {load_text}: a load is a whole number from 1 to {_MOST_LOAD_PERCENT}"
            )
    if not load_texts:
        raise BadInput("--load names no load: write --load 90,100,115")
    return list(dict.fromkeys(map(int, load_texts)))


def _live_task(task: tuple[Path, str | None, str, int, Protocol]) -> Life:
    path, pods, placement, seed, protocol = task
    return live(_read(path, pods), placement, seed, protocol)


@lru_cache(maxsize=2)
def _read(path: Path, pods: str | None) -> Trace:
    return read(path, pods=pods)
