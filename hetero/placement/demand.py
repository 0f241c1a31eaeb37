"""What arrives, boiled down to classes of requests with weights that decay: the expected mix."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, evolve, field, frozen

from hetero.model import Request, Selector
from hetero.placement.cluster import Pod
from hetero.placement.mix import GRAIN

#: The first lesson is drawn after this many pods, the next when as many came as were counted then.
FIRST_LESSON = 16
#: What a pod takes of each of the host's counters.
Needs = tuple[tuple[str, int], ...]
#: Weights above the first are made smaller; classes below the second are then forgotten.
_LARGEST, _FORGOTTEN = 2.0**20, 2.0**-10
#: Pods come and go once one of so many has ended. Any figure from 2 to 100 would do: in a cluster
#: that has been full for a while nearly all that came have ended.
_ENDED = 8


@frozen
class RequestClass:
    """What a pod asks of a node's devices: of `cards` devices what the request's first ask says.

    For a pod that wants more than one container's equal devices (`plain` False) `request` and
    `cards` only tell where it may fit, and `place_pod` tells where it does.
    """

    request: Request | None
    cards: int
    plain: bool


def wanted(pod: Pod) -> RequestClass:
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


@define(eq=False)
class Demand:
    """How often each class of pod came and went, and how much of the host all pods asked for.

    A pod that came `half_life` seconds ago counts half of one that comes now; None: all count
    alike. Weights are kept in units of a pod that came at `_origin`.
    """

    half_life: float | None = None
    weights: dict[tuple[RequestClass, Needs], float] = field(factory=dict)
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
            one = want, tuple(sorted(host.items()))
            self.weights[one] = self.weights.get(one, 0.0) + weight
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
        if self.half_life is None:
            return 1.0
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
