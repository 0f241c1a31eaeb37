"""What arrives, boiled down to classes of requests with weights that decay: the expected mix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import chain, pairwise

from attrs import define, evolve, field, frozen

from hetero.model import Ask, Request, Selector
from hetero.placement.cluster import PlacedPod
from hetero.placement.mix import GRAIN

#: The first lesson is drawn after this many pods, the next when as many came as were counted then.
FIRST_LESSON = 16
#: Seconds after which what arrived counts half, where nobody says otherwise: seven days. Users run
#: by the week, and a mix that is a month old counts a sixteenth.
HALF_LIFE = 7 * 86_400.0
#: What a pod takes of each of the host's counters, by their names.
Needs = tuple[tuple[str, int], ...]
#: Classes that are kept.
MOST_CLASSES = 512
#: Weights above the first are made smaller; classes below the second are then forgotten.
_LARGEST, _FORGOTTEN = 2.0**20, 2.0**-10
#: Pods come and go once one of so many has ended. Any figure from 2 to 100 would do: in a cluster
#: that has been full for a while nearly all that came have ended.
_ENDED = 8


@frozen(cache_hash=True)
class RequestClass:
    """What a pod asks of a node's devices: of `cards` devices what the request's first ask says.

    For a pod that wants more than one container's equal devices (`plain` False) `request` and
    `cards` only tell where it may fit, and `place_pod` tells where it does.
    """

    request: Request | None
    cards: int
    plain: bool


#: What pods are counted by.
PodClass = tuple[RequestClass, Needs]


def wanted(pod: PlacedPod) -> RequestClass:
    """Return what a pod asks of a node's devices."""
    everyone = (*pod.containers, *pod.init, *pod.sidecars)
    requests = [one.request for one in everyone if one.request is not None]
    largest = max(requests, key=lambda request: len(request.asks), default=None)
    if largest is None:
        return RequestClass(None, 0, True)
    alike = len(set(largest.asks)) == 1
    told_apart = largest.uuid != Selector() or largest.asks[0].device is not None
    plain = len(requests) == 1 and alike and not (told_apart or largest.numa or largest.links)
    return RequestClass(evolve(largest, uuid=Selector()), len(largest.asks) if alike else 1, plain)


def without_size(want: RequestClass) -> tuple[RequestClass, tuple[int, int, int] | None]:
    """Return what is left of a class without the size of its asks, and that size.

    The size is memory in bytes, memory in percent and core in percent, 0 where that was not asked.
    What is left keeps a 1 where it was. A class whose asks differ has no size.
    """
    if not want.plain or want.request is None:
        return want, None
    ask = want.request.asks[0]
    bare = Ask(
        memory=ask.memory and 1,
        memory_percent=ask.memory_percent and 1,
        core=ask.core and 1,
        shape=ask.shape,
    )
    size = (ask.memory or 0, ask.memory_percent or 0, ask.core or 0)
    return evolve(want, request=evolve(want.request, asks=(bare,))), size


def with_size(bare: RequestClass, size: tuple[int, int, int]) -> RequestClass:
    """Return the class that `without_size` made this of."""
    if bare.request is None:
        return bare
    memory, percent, core = (amount or None for amount in size)
    ask = evolve(bare.request.asks[0], memory=memory, memory_percent=percent, core=core)
    return evolve(bare, request=evolve(bare.request, asks=(ask,) * bare.cards))


@define(eq=False)
class _Sized:
    """A class that may be joined with its neighbours, which differ from it in amounts alone."""

    pod: PodClass
    bare: RequestClass
    amounts: tuple[int, int, int]
    size: float
    weight: float
    before: _Sized | None = None
    after: _Sized | None = None
    gone: bool = False


@define(eq=False)
class _Joins:
    """Pairs of neighbours, by what joining them adds; `size` says what a class takes."""

    size: Callable[[PodClass], float]
    _heap: list[tuple[float, int, _Sized, _Sized, _Sized]] = field(factory=list)
    _offered: int = 0

    def offer(self, sized: _Sized) -> None:
        """Put a class and the next one, if there is one, among the pairs."""
        other = sized.after
        if other is None:
            return
        memory, percent, core = map(max, sized.amounts, other.amounts)
        amounts = memory, percent, core
        needs = tuple(map(max, sized.pod[1], other.pod[1]))  # the larger amount of each counter
        pod = with_size(sized.bare, amounts), needs
        both = _Sized(pod, sized.bare, amounts, self.size(pod), sized.weight + other.weight)
        added = sized.weight * (both.size - sized.size) + other.weight * (both.size - other.size)
        self._offered += 1
        heappush(self._heap, (added, self._offered, sized, other, both))

    def take(self) -> _Sized | None:
        """Join the pair that adds least and return what it becomes, None if no pair is left."""
        while self._heap:
            _, _, sized, other, both = heappop(self._heap)
            if sized.gone or other.gone:
                continue
            sized.gone = other.gone = True
            both.before, both.after = sized.before, other.after
            if both.before is not None:
                both.before.after = both
                self.offer(both.before)
            if both.after is not None:
                both.after.before = both
                self.offer(both)
            return both
        return None


@define(eq=False)
class Demand:
    """How often each class of pod came and went, and how much of the host all pods asked for.

    A pod that came `half_life` seconds ago counts half of one that comes now. Weights are kept in
    units of a pod that came at `_origin`.
    """

    half_life: float = HALF_LIFE
    weights: dict[PodClass, float] = field(factory=dict)
    host: dict[str, float] = field(factory=dict)
    _arrived: float = 0.0  # the weight of all pods
    _ended: float = 0.0  # the weight of all that ended, each as of when it did
    _since: int = 0  # pods since the last lesson
    _lesson: float = FIRST_LESSON  # pods from one lesson to the next
    _origin: float = 0.0
    _now: float = 0.0  # when the last pod came

    def arrive(self, want: RequestClass, host: Mapping[str, int], now: float) -> bool:
        """Count a pod that comes at `now`, in seconds; return whether a lesson is due."""
        self._now = max(now, self._now)
        weight = self._weight()
        self._arrived += weight
        self._since += 1
        if want.request is not None:
            key = want, tuple(sorted(host.items()))
            self.weights[key] = self.weights.get(key, 0.0) + weight
        for name, amount in host.items():
            self.host[name] = self.host.get(name, 0.0) + weight * amount
        if self._since < self._lesson:
            return False
        self._since, self._lesson = 0, max(FIRST_LESSON, self._arrived / weight)
        return True

    def end(self) -> None:
        """Count a pod that held a place and ended."""
        self._ended += self._weight()

    @property
    def pods_end(self) -> bool:
        """Whether pods end, and not only arrive: one in eight of those that came."""
        return self._ended * _ENDED > self._arrived

    def _weight(self) -> float:
        """Return what a pod of now weighs; numbers that grew too large are made smaller."""
        weight: float = pow(2.0, min((self._now - self._origin) / self.half_life, 1000.0))
        if weight <= _LARGEST:
            return weight
        self._origin = self._now
        self._arrived /= weight
        self._ended /= weight
        self.weights = {
            one: left for one, was in self.weights.items() if (left := was / weight) > _FORGOTTEN
        }
        self.host = {name: was / weight for name, was in self.host.items()}
        return 1.0

    def join(self, size: Callable[[RequestClass], int], *, most: int = MOST_CLASSES) -> None:
        """Join classes until at most `most` are left: those first that so ask for least more.

        `size` says how many thousandths of cards a class takes; a host's amount counts as what
        comes with it on average. Two that differ in amounts alone become one that has room for
        both. Where none are left to join, those that ask for least are forgotten.
        """
        takes = self._sizes(size)
        alike: dict[object, list[_Sized]] = {}
        weights: dict[PodClass, float] = {}  # of those that have no size, then of all
        for pod, weight in self.weights.items():
            bare, amounts = without_size(pod[0])
            if amounts is None:
                weights[pod] = weight
            else:
                kind = bare, tuple(name for name, _ in pod[1])
                sized = _Sized(pod, bare, amounts, takes(pod), weight)
                alike.setdefault(kind, []).append(sized)
        joins = _Joins(takes)
        for row in alike.values():
            row.sort(key=lambda sized: (size(sized.pod[0]), sized.amounts, sized.pod[1]))
            for sized, other in pairwise(row):
                sized.after, other.before = other, sized
                joins.offer(sized)
        joined = [joins.take() for _ in range(len(self.weights) - most)]
        for sized in (
            sized for sized in (*chain(*alike.values()), *joined) if sized and not sized.gone
        ):
            weights[sized.pod] = weights.get(sized.pod, 0.0) + sized.weight
        if len(weights) > most:
            for pod in sorted(weights, key=lambda pod: weights[pod] * takes(pod))[:-most]:
                del weights[pod]
        self.weights = weights

    def _sizes(self, size: Callable[[RequestClass], int]) -> Callable[[PodClass], float]:
        """Return what says how much a class takes: thousandths of cards, and host in their kind."""
        cards = sum(weight * size(want) for (want, _), weight in self.weights.items())
        rates = {name: cards / amount for name, amount in self.host.items() if amount}

        def takes(pod: PodClass) -> float:
            want, needs = pod
            return size(want) + sum(amount * rates.get(name, 0.0) for name, amount in needs)

        return takes

    def copy(self) -> Demand:
        """Return the same, to be changed apart."""
        return evolve(self, weights=dict(self.weights), host=dict(self.host))

    def at(self, now: float) -> tuple[dict[PodClass, float], dict[str, float], float, float]:
        """Return classes, host counters, all pods and those that ended, in pods of `now`."""
        age = (now - self._origin) / self.half_life
        fade = 2.0 ** -max(min(age, 1000.0), -1000.0)
        return (
            {pod: weight * fade for pod, weight in self.weights.items()},
            {name: amount * fade for name, amount in self.host.items()},
            self._arrived * fade,
            self._ended * fade,
        )

    def restore(
        self,
        weights: Mapping[PodClass, float],
        host: Mapping[str, float],
        arrived: float,
        ended: float,
        *,
        now: float,
    ) -> None:
        """Take over what `at` gave at that time."""
        self.weights, self.host = dict(weights), dict(host)
        self._arrived, self._ended, self._origin, self._now = arrived, ended, now, now
        self._since, self._lesson = 0, max(FIRST_LESSON, arrived)

    def times(self) -> list[tuple[RequestClass, int]]:
        """Return how often each request came, in sixteenths of a pod of now, at least one."""
        came: dict[RequestClass, float] = {}
        for (want, _), weight in self.weights.items():
            came[want] = came.get(want, 0.0) + weight
        unit = GRAIN / self._weight()
        return [(want, max(round(weight * unit), 1)) for want, weight in came.items()]

    def pods(self) -> list[tuple[RequestClass, Needs, int]]:
        """Return the same, those apart that ask for different amounts of the host."""
        unit = GRAIN / self._weight()
        return [
            (want, needs, max(round(weight * unit), 1))
            for (want, needs), weight in self.weights.items()
        ]

    def asked(self, counter: str) -> int:
        """Return how much of a host counter was asked for, in the same unit."""
        return round(self.host.get(counter, 0.0) * GRAIN / self._weight())
