"""The demand: arriving pods as classes of requests with decaying weights (the expected mix)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import chain, pairwise

from attrs import define, evolve, field, frozen

from hetero.model import Ask, Request, Selector
from hetero.placement.cluster import PlacedPod
from hetero.placement.mix import GRAIN

#: The demand is first learned after this many pods, and again when as many came as it then counts.
FIRST_LEARNING_PODS = 16
#: Seconds after which what arrived counts half, where nobody says otherwise: seven days. Users run
#: by the week, and a mix that is a month old counts a sixteenth.
HALF_LIFE_S = 7 * 86_400.0
#: What a pod takes of each of the host's counters, by their names.
Needs = tuple[tuple[str, int], ...]
#: Classes that are kept.
MOST_CLASSES = 512
#: Weights above the first are scaled down; classes below the second are then forgotten.
_LARGEST_WEIGHT, _FORGOTTEN_WEIGHT = 2.0**20, 2.0**-10
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


def request_class_of(pod: PlacedPod) -> RequestClass:
    """Return what a pod asks of a node's devices."""
    containers = (*pod.containers, *pod.init, *pod.sidecars)
    requests = [container.request for container in containers if container.request is not None]
    largest_request = max(requests, key=lambda request: len(request.asks), default=None)
    if largest_request is None:
        return RequestClass(None, 0, True)
    asks_are_alike = len(set(largest_request.asks)) == 1
    names_devices = largest_request.uuid != Selector() or largest_request.asks[0].device is not None
    plain = (
        len(requests) == 1
        and asks_are_alike
        and not (names_devices or largest_request.numa or largest_request.links)
    )
    return RequestClass(
        evolve(largest_request, uuid=Selector()),
        len(largest_request.asks) if asks_are_alike else 1,
        plain,
    )


def without_size(request_class: RequestClass) -> tuple[RequestClass, tuple[int, int, int] | None]:
    """Return what is left of a class without the size of its asks, and that size.

    The size is memory in bytes, memory in percent and core in parts, 0 where that was not asked.
    What is left keeps a 1 where there was a size. A class whose asks differ has no size.
    """
    if not request_class.plain or request_class.request is None:
        return request_class, None
    ask = request_class.request.asks[0]
    unit_ask = Ask(
        memory=ask.memory and 1,
        memory_percent=ask.memory_percent and 1,
        core=ask.core and 1,
        core_of=ask.core_of,
        shape=ask.shape,
    )
    sizes = (ask.memory or 0, ask.memory_percent or 0, ask.core or 0)
    return evolve(request_class, request=evolve(request_class.request, asks=(unit_ask,))), sizes


def with_size(class_without_size: RequestClass, sizes: tuple[int, int, int]) -> RequestClass:
    """Return the class with this size in place of the 1 that `without_size` left."""
    if class_without_size.request is None:
        return class_without_size
    memory_bytes, memory_percent, core_parts = (amount or None for amount in sizes)
    ask = evolve(
        class_without_size.request.asks[0],
        memory=memory_bytes,
        memory_percent=memory_percent,
        core=core_parts,
    )
    return evolve(
        class_without_size,
        request=evolve(class_without_size.request, asks=(ask,) * class_without_size.cards),
    )


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
    _offer_count: int = 0

    def offer(self, sized_class: _Sized) -> None:
        """Put a class and the next one, if there is one, among the pairs."""
        larger_class = sized_class.after
        if larger_class is None:
            return
        memory_bytes, memory_percent, core_parts = map(
            max, sized_class.amounts, larger_class.amounts
        )
        amounts = memory_bytes, memory_percent, core_parts
        needs = tuple(
            map(max, sized_class.pod[1], larger_class.pod[1])
        )  # the larger amount of each counter
        pod_class = with_size(sized_class.bare, amounts), needs
        joined_class = _Sized(
            pod_class,
            sized_class.bare,
            amounts,
            self.size(pod_class),
            sized_class.weight + larger_class.weight,
        )
        added_size = sized_class.weight * (
            joined_class.size - sized_class.size
        ) + larger_class.weight * (joined_class.size - larger_class.size)
        self._offer_count += 1
        heappush(
            self._heap, (added_size, self._offer_count, sized_class, larger_class, joined_class)
        )

    def take(self) -> _Sized | None:
        """Join the pair that adds least and return the joined class, None if no pair is left."""
        while self._heap:
            _, _, sized_class, larger_class, joined_class = heappop(self._heap)
            if sized_class.gone or larger_class.gone:
                continue
            sized_class.gone = larger_class.gone = True
            joined_class.before, joined_class.after = sized_class.before, larger_class.after
            if joined_class.before is not None:
                joined_class.before.after = joined_class
                self.offer(joined_class.before)
            if joined_class.after is not None:
                joined_class.after.before = joined_class
                self.offer(joined_class)
            return joined_class
        return None


@define(eq=False)
class Demand:
    """How often each class of pod came and ended, and how much of the host all pods asked for.

    A pod that came `half_life_s` ago counts half of one that comes now. Weights are in units
    of a pod that came at `_origin`.
    """

    half_life_s: float = HALF_LIFE_S
    weights: dict[PodClass, float] = field(factory=dict)
    host: dict[str, float] = field(factory=dict)
    _arrived: float = 0.0  # the weight of all pods
    _ended: float = 0.0  # the weight of all that ended, each as of when it did
    _arrivals_since: int = 0  # pods since the demand was learned
    _arrivals_until_learning: float = FIRST_LEARNING_PODS  # pods until it is learned again
    _origin: float = 0.0
    _now_s: float = 0.0  # when the last pod came

    def arrive(self, request_class: RequestClass, host: Mapping[str, int], now_s: float) -> bool:
        """Count a pod that comes at `now_s`; return whether the demand is to be learned anew."""
        self._now_s = max(now_s, self._now_s)
        weight = self._weight()
        self._arrived += weight
        self._arrivals_since += 1
        if request_class.request is not None:
            pod_class = request_class, tuple(sorted(host.items()))
            self.weights[pod_class] = self.weights.get(pod_class, 0.0) + weight
        for counter, amount in host.items():
            self.host[counter] = self.host.get(counter, 0.0) + weight * amount
        if self._arrivals_since < self._arrivals_until_learning:
            return False
        self._arrivals_since, self._arrivals_until_learning = (
            0,
            max(FIRST_LEARNING_PODS, self._arrived / weight),
        )
        return True

    def end(self) -> None:
        """Count a pod that held a place and ended."""
        self._ended += self._weight()

    @property
    def pods_end(self) -> bool:
        """Whether pods end, and not only arrive: one in eight of those that came."""
        return self._ended * _ENDED > self._arrived

    def _weight(self) -> float:
        """Return the weight of a pod that comes now; weights above a limit are scaled down."""
        current_weight: float = pow(
            2.0, min((self._now_s - self._origin) / self.half_life_s, 1000.0)
        )
        if current_weight <= _LARGEST_WEIGHT:
            return current_weight
        self._origin = self._now_s
        self._arrived /= current_weight
        self._ended /= current_weight
        self.weights = {
            pod_class: weight_now
            for pod_class, old_weight in self.weights.items()
            if (weight_now := old_weight / current_weight) > _FORGOTTEN_WEIGHT
        }
        self.host = {
            counter: old_amount / current_weight for counter, old_amount in self.host.items()
        }
        return 1.0

    def join(self, milli_of: Callable[[RequestClass], int], *, most: int = MOST_CLASSES) -> None:
        """Join classes until at most `most` are left, those first whose join adds least.

        `milli_of` gives the thousandths of cards of a class; an amount of the host counts as the
        cards that come with it on average. Two classes that differ in amounts alone become one with
        the larger amounts. Where no two can be joined, the classes that ask for least are
        forgotten.
        """
        size_of = self._sizes(milli_of)
        sized_by_kind: dict[object, list[_Sized]] = {}
        weights: dict[PodClass, float] = {}  # of classes without a size, then of all
        for pod_class, weight in self.weights.items():
            class_without_size, ask_sizes = without_size(pod_class[0])
            if ask_sizes is None:
                weights[pod_class] = weight
            else:
                kind_key = class_without_size, tuple(counter for counter, _ in pod_class[1])
                sized_class = _Sized(
                    pod_class, class_without_size, ask_sizes, size_of(pod_class), weight
                )
                sized_by_kind.setdefault(kind_key, []).append(sized_class)
        joiner = _Joins(size_of)
        for neighbours in sized_by_kind.values():
            neighbours.sort(
                key=lambda sized_class: (
                    milli_of(sized_class.pod[0]),
                    sized_class.amounts,
                    sized_class.pod[1],
                )
            )
            for sized_class, larger_class in pairwise(neighbours):
                sized_class.after, larger_class.before = larger_class, sized_class
                joiner.offer(sized_class)
        joined_classes = [joiner.take() for _ in range(len(self.weights) - most)]
        for sized_class in (
            sized_class
            for sized_class in (*chain(*sized_by_kind.values()), *joined_classes)
            if sized_class and not sized_class.gone
        ):
            weights[sized_class.pod] = weights.get(sized_class.pod, 0.0) + sized_class.weight
        if len(weights) > most:
            for pod_class in sorted(
                weights, key=lambda pod_class: weights[pod_class] * size_of(pod_class)
            )[:-most]:
                del weights[pod_class]
        self.weights = weights

    def _sizes(self, milli_of: Callable[[RequestClass], int]) -> Callable[[PodClass], float]:
        """Return a function that gives the size of a class, cards and host, in thousandths."""
        total_milli = sum(
            weight * milli_of(request_class) for (request_class, _), weight in self.weights.items()
        )
        rates = {counter: total_milli / amount for counter, amount in self.host.items() if amount}

        def size_with_host(pod_class: PodClass) -> float:
            request_class, host_needs = pod_class
            return milli_of(request_class) + sum(
                amount * rates.get(counter, 0.0) for counter, amount in host_needs
            )

        return size_with_host

    def copy(self) -> Demand:
        """Return an independent copy."""
        return evolve(self, weights=dict(self.weights), host=dict(self.host))

    def at(self, now_s: float) -> tuple[dict[PodClass, float], dict[str, float], float, float]:
        """Return classes, host counters, all pods and ended ones, in units of a pod of `now_s`."""
        age_half_lives = (now_s - self._origin) / self.half_life_s
        factor = 2.0 ** -max(min(age_half_lives, 1000.0), -1000.0)
        return (
            {pod_class: weight * factor for pod_class, weight in self.weights.items()},
            {counter: amount * factor for counter, amount in self.host.items()},
            self._arrived * factor,
            self._ended * factor,
        )

    def restore(
        self,
        weights: Mapping[PodClass, float],
        host: Mapping[str, float],
        arrived: float,
        ended: float,
        *,
        now_s: float,
    ) -> None:
        """Take over what `at` returned at that time."""
        self.weights, self.host = dict(weights), dict(host)
        self._arrived, self._ended, self._origin, self._now_s = arrived, ended, now_s, now_s
        self._arrivals_since, self._arrivals_until_learning = 0, max(FIRST_LEARNING_PODS, arrived)

    def times(self) -> list[tuple[RequestClass, int]]:
        """Return how often each request came, in sixteenths of a pod of now, at least one."""
        weight_by_class: dict[RequestClass, float] = {}
        for (request_class, _), weight in self.weights.items():
            weight_by_class[request_class] = weight_by_class.get(request_class, 0.0) + weight
        sixteenths = GRAIN / self._weight()
        return [
            (request_class, max(round(weight * sixteenths), 1))
            for request_class, weight in weight_by_class.items()
        ]

    def pods(self) -> list[tuple[RequestClass, Needs, int]]:
        """Return the same, apart for pods that ask for different amounts of the host."""
        sixteenths = GRAIN / self._weight()
        return [
            (request_class, needs, max(round(weight * sixteenths), 1))
            for (request_class, needs), weight in self.weights.items()
        ]

    def asked(self, counter: str) -> int:
        """Return how much of a host counter was asked for, in the same unit."""
        return round(self.host.get(counter, 0.0) * GRAIN / self._weight())
