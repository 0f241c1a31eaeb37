"""The scheduler's record of each pod that waits or holds devices: one record, in one state.

docs/architecture.md draws the states; a test compares its drawing with `EDGES`. A bound pod without
devices has no record unless this process bound it: the cache counts its part of the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from attrs import define, field

from hetero.kube.objects.kinds import Pod
from hetero.kube.words.pod_request import PodRequest
from hetero.model.errors import HeteroError
from hetero.placement.cache import SchedulerCache
from hetero.placement.cluster import Placement

#: Pods whose request is remembered between being filtered and being bound.
MOST_FILTERED = 1024


class PodState(str, Enum):
    """The state of a pod, as far as the scheduler goes."""

    #: There is no record: the pod is gone, or nothing was asked or heard of it yet.
    UNKNOWN = "unknown"
    #: kube-scheduler asked for nodes. It holds nothing but what its group or an eviction holds.
    FILTERED = "filtered"
    #: Filter took its place on a node, until the record's deadline.
    HELD = "held"
    #: Bind of this process gave it its place. What the API says of it later changes nothing.
    RESERVED = "reserved"
    #: Another process bound it: its signed annotations say what it holds.
    BOUND = "bound"
    #: HAMi started it: its cards are not empty until it ends.
    HAMI = "hami"
    #: It was deleted by force while it ran: its node is still to say what runs on.
    UNCONFIRMED = "unconfirmed"


UNKNOWN, FILTERED, HELD, RESERVED, BOUND, HAMI, UNCONFIRMED = PodState
#: The states of pods that run, or are about to.
PLACED = frozenset({RESERVED, BOUND, HAMI})
#: The states in which a pod may be bound next, and its request is known for that.
_WAITS = frozenset({FILTERED, HELD})
#: From each state those that may follow, but for `UNKNOWN`, which may follow each.
EDGES: Mapping[PodState, frozenset[PodState]] = {
    UNKNOWN: frozenset({FILTERED, BOUND, HAMI}),
    FILTERED: frozenset({HELD, RESERVED}),
    HELD: frozenset({FILTERED, RESERVED}),
    RESERVED: frozenset({FILTERED, HELD, UNCONFIRMED}),
    BOUND: frozenset({UNCONFIRMED}),
    HAMI: frozenset({UNCONFIRMED}),
    UNCONFIRMED: frozenset(),
}


@define(eq=False, weakref_slot=False)
class PodRecord:
    """One pod. `PodTable.transition` alone changes its state."""

    uid: str
    state: PodState = UNKNOWN
    pod: Pod | None = None  # as it was heard of last; None: it was bound without devices
    request: PodRequest | None = None  # of one that may be bound next
    placement: Placement | None = None  # of one that is held: what filter took
    deadline_s: float = 0.0  # of one that is held, in seconds of the monotonic clock


@define(eq=False)
class PodTable:
    """The records of all pods, by UID, and the cache with their placements."""

    cache: SchedulerCache
    _records: dict[str, PodRecord] = field(factory=dict)
    _waiting: dict[str, PodRecord] = field(factory=dict)  # those with a request, oldest first
    # Those in states of few pods, which are looked for among many; by when they came to be so.
    _by_state: dict[PodState, dict[str, PodRecord]] = field(
        factory=lambda: {state: {} for state in (HELD, HAMI, UNCONFIRMED)}
    )

    def get(self, uid: str) -> PodRecord:
        """Return a pod's record, an empty one if there is none."""
        return self._records.get(uid) or PodRecord(uid)

    def within(self, state: PodState) -> list[PodRecord]:
        """Return the records in state held, HAMi or unconfirmed, in the order they entered it."""
        return [*self._by_state[state].values()]

    def waiting(self) -> Iterator[tuple[str, Pod, PodRequest]]:
        """Yield UID, pod and request of the pods that may be bound next, oldest first."""
        for uid, record in self._waiting.items():
            if record.pod is not None and record.request is not None:
                yield uid, record.pod, record.request

    def holder(self, uid: str) -> Pod | None:
        """Return a pod if it is placed with devices, else None."""
        record = self._records.get(uid)
        if record is None or record.state not in PLACED:
            return None
        return record.pod if record.request is None or record.request.devices else None

    def holders(self) -> Iterator[tuple[str, Pod]]:
        """Yield UID and pod of the pods that are placed with devices."""
        for uid in self._records:
            if (pod := self.holder(uid)) is not None:
                yield uid, pod

    # --- what becomes of a pod ------------------------------------------------------------------

    def ask(self, pod: Pod, request: PodRequest) -> None:
        """Record the request of a pod that kube-scheduler filters, whatever it holds already."""
        uid = pod.metadata.uid
        record = self._records.get(uid)
        if record is None or record.state not in (HELD, RESERVED):
            record = self.transition(uid, FILTERED)
        record.pod, record.request = pod, request
        self._waiting[uid] = record
        if len(self._waiting) > MOST_FILTERED:
            oldest_record = self._waiting.pop(next(iter(self._waiting)))
            oldest_record.request = None
            if oldest_record.state is FILTERED:
                self.transition(oldest_record.uid, UNKNOWN)

    def hold(self, uid: str, placement: Placement, deadline_s: float) -> None:
        """Record the place that filter reserved for a pod, and its deadline."""
        record = self.transition(uid, HELD)
        record.placement, record.deadline_s = placement, deadline_s

    def learn(self, pod: Pod, state: PodState) -> None:
        """Record a pod's state by the API, whatever its state was before."""
        uid = pod.metadata.uid
        self.transition(uid, UNKNOWN)
        self.transition(uid, state).pod = pod

    def release(self, uid: str, place: Placement | None) -> None:
        """Release a place that the pod still has. If the pod waits it may be bound later."""
        if place is None:
            return
        is_standing = self.cache.standing.get(uid) is place
        if is_standing:
            self.cache.release(uid)
        if is_standing or self.get(uid).placement is place:
            self.transition(uid, FILTERED if uid in self._waiting else UNKNOWN)

    def forget(self, uid: str, *, ran: bool) -> None:
        """Release what a pod held, and its record."""
        self.transition(uid, UNKNOWN)
        self.cache.forget(uid, ran=ran)

    def transition(self, uid: str, state: PodState) -> PodRecord:
        """Change a pod's state. Raises `HeteroError` where no edge leads there."""
        record = self._records.get(uid) or PodRecord(uid)
        if state not in (record.state, UNKNOWN) and state not in EDGES[record.state]:
            raise HeteroError(f"pod {uid} is {record.state.value}: it cannot be {state.value} next")
        if record.state in self._by_state:
            del self._by_state[record.state][uid]
            record.placement = None
        record.state = state
        if state in self._by_state:
            self._by_state[state][uid] = record
        if record.request is not None and state not in _WAITS:
            del self._waiting[uid]
            record.request = None
        if state is UNKNOWN:
            self._records.pop(uid, None)
        else:
            self._records[uid] = record
        return record
