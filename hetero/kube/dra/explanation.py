"""Says which devices a claim would get of a cluster's ResourceSlices, or why it gets none. Pure.

It does what kube-scheduler's allocator does with the free devices: alternatives, counts and
constraints over `availability`. Which of several nodes is chosen depends on more, and is left to
kube-scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial

from attrs import field, frozen

from hetero.kube.dra.availability import (
    AllocatedState,
    Candidate,
    Pools,
    consumes_of,
    in_use,
    mismatch,
    short,
    unavailable,
    unsuited,
)
from hetero.kube.dra.selection import AllocationAborted, attribute
from hetero.kube.objects.kinds import Plain
from hetero.kube.words.quantity import decimal
from hetero.model.errors import BadInput

#: How many devices a claim may have (resource.k8s.io/v1, AllocationResultsMaxSize).
_MOST_RESULTS = 32
#: How many devices are tried in all for one claim.
_MOST_TRIES = 2_000


@frozen(kw_only=True)
class Given:
    """One device that a request gets, and what it consumes of it."""

    request: str
    node: str | None
    driver: str
    device: str
    consumes: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class ClaimSelection:
    """What a claim gets; where it gets nothing, the sentences that say why."""

    given: tuple[Given, ...] = ()
    why: tuple[str, ...] = ()


def explain(spec: Plain, pools: Pools) -> ClaimSelection:
    """Return what a claim's spec would be given.

    Raises `BadInput` for a class that is missing, and where the search would be too large.
    """
    devices = spec.get("devices") or {}
    requests = devices.get("requests") or ()
    for request in requests:
        for _, exact_request in _alternatives(request):
            if exact_request["deviceClassName"] not in pools.classes:
                raise BadInput(f"there is no DeviceClass {exact_request['deviceClassName']}")
    allocated_state = AllocatedState.of(pools)
    rank_by_name = {
        request_name: rank
        for request in requests
        for rank, (request_name, _) in enumerate(_alternatives(request))
    }
    constraints = devices.get("constraints") or ()
    best_found: tuple[int, _GivenDevices] | None = None
    for candidates in _by_node(pools.candidates):
        search = _Search(pools=pools, base=allocated_state, constraints=tuple(constraints))
        try:
            device_count = search.fewest(requests, candidates)
            if device_count > _MOST_RESULTS:
                message = (
                    f"a claim has {_MOST_RESULTS} devices at most, and this asks {device_count}"
                )
                return ClaimSelection(why=(message,))
            solution = next(search.serve(list(requests), candidates, allocated_state), None)
        except AllocationAborted as error:
            return ClaimSelection(
                why=(f"kube-scheduler aborts the allocation of this claim: {error}",)
            )
        rank = sum(
            rank_by_name[request_name]
            for request_name in {
                given_device.request for given_device, _candidate in solution or ()
            }
        )
        if solution and (best_found is None or rank < best_found[0]):
            best_found = rank, solution
    if best_found is not None:
        return ClaimSelection(
            given=tuple(given_device for given_device, _candidate in best_found[1])
        )
    sentences = tuple(_why(request, pools, allocated_state) for request in requests)
    return ClaimSelection(why=sentences or ("the claim asks for nothing",))


def _by_node(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Return the devices that each node has, with those that all have."""
    candidates_by_node: dict[str, list[Candidate]] = {}
    nodeless_candidates: list[Candidate] = []
    for candidate in candidates:
        (
            candidates_by_node.setdefault(candidate.node, [])
            if candidate.node
            else nodeless_candidates
        ).append(candidate)
    return [
        [*node_candidates, *nodeless_candidates] for node_candidates in candidates_by_node.values()
    ]


_GivenDevices = Sequence[tuple[Given, Candidate]]


def _alternatives(request: Plain) -> Iterator[tuple[str, Plain]]:
    """Yield the alternatives that serve a request, the best first, each with its full name."""
    if "exactly" in request:
        yield request["name"], request["exactly"]
    for subrequest in request.get("firstAvailable") or ():
        yield f"{request['name']}/{subrequest['name']}", subrequest


@frozen(kw_only=True)
class _Search:
    """A search for devices for all requests of a claim, node by node."""

    pools: Pools
    base: AllocatedState  # before the claim
    constraints: tuple[Plain, ...]
    _tries: Iterator[int] = field(factory=lambda: iter(range(_MOST_TRIES)))
    # By request and device: selectors are the slowest part.
    _found_unsuited: dict[tuple[str, tuple[str, str, str]], bool] = field(factory=dict)

    def fewest(self, requests: Iterable[Plain], candidates: list[Candidate]) -> int:
        """Return the least number of devices of a node that the requests need."""
        return sum(
            min(
                self._count(exact_request, candidates)
                for _, exact_request in _alternatives(request)
            )
            for request in requests
        )

    def _count(self, exact_request: Plain, candidates: list[Candidate]) -> int:
        if exact_request.get("allocationMode") == "All":
            return sum(self._meant(exact_request, candidate) for candidate in candidates)
        return int(exact_request.get("count", 1))

    def serve(
        self,
        requests: list[Plain],
        candidates: list[Candidate],
        allocated_state: AllocatedState,
        devices_before: _GivenDevices = (),
    ) -> Iterator[_GivenDevices]:
        """Yield the ways to serve requests by the devices of a node, after what is given before."""
        if not requests:
            yield devices_before
            return
        first_request, *other_requests = requests
        for request_name, exact_request in _alternatives(first_request):
            for given_devices, state_after in self._choices(
                request_name, exact_request, candidates, allocated_state, devices_before
            ):
                yield from self.serve(other_requests, candidates, state_after, given_devices)

    def _choices(
        self,
        request_name: str,
        exact_request: Plain,
        candidates: list[Candidate],
        allocated_state: AllocatedState,
        devices_before: _GivenDevices,
    ) -> Iterator[tuple[_GivenDevices, AllocatedState]]:
        """Yield the ways to give one request its devices, with what is given before.

        Where a request asks for all devices and a constraint excludes one, the search ends on all
        nodes and for all alternatives: raises `AllocationAborted`.
        """
        device_count = self._count(exact_request, candidates)
        if len(devices_before) + device_count > _MOST_RESULTS:
            return
        if exact_request.get("allocationMode") != "All":
            yield from self._several(
                request_name,
                exact_request,
                candidates,
                allocated_state,
                devices_before,
                device_count,
            )
            return
        given_devices, state_after = devices_before, allocated_state
        for candidate in filter(partial(self._meant, exact_request), candidates):
            if unsuited(candidate, exact_request, self.pools) or in_use(
                candidate, exact_request, self.pools, state_after
            ):
                return
            devices_then, state_then = _with(
                request_name, exact_request, candidate, state_after, given_devices
            )
            if not all(_holds(constraint, devices_then) for constraint in self.constraints):
                device_text = f"device {candidate.device['name']} of node {candidate.node}"
                raise AllocationAborted(
                    f"{device_text} is one of all that {request_name} asks, "
                    "and a constraint bars it"
                )
            if short(candidate.device, exact_request, state_after.consumed.get(candidate.key, {})):
                return
            given_devices, state_after = devices_then, state_then
        if device_count:
            yield given_devices, state_after

    def _several(
        self,
        request_name: str,
        exact_request: Plain,
        candidates: list[Candidate],
        allocated_state: AllocatedState,
        devices_before: _GivenDevices,
        device_count: int,
    ) -> Iterator[tuple[_GivenDevices, AllocatedState]]:
        """Yield the ways to give a request so many devices, each once, even if it is shared."""
        if device_count == 0:
            yield devices_before, allocated_state
            return
        if devices_before and next(self._tries, None) is None:
            raise BadInput(
                f"no devices were found in {_MOST_TRIES:,} tries: ask for fewer together, or write "
                "constraints that fewer devices meet"
            )
        for position in range(len(candidates) - device_count + 1):
            if self._fits(
                request_name, exact_request, candidates[position], allocated_state, devices_before
            ):
                devices_then, state_after = _with(
                    request_name,
                    exact_request,
                    candidates[position],
                    allocated_state,
                    devices_before,
                )
                candidates_after = candidates[position + 1 :]
                yield from self._several(
                    request_name,
                    exact_request,
                    candidates_after,
                    state_after,
                    devices_then,
                    device_count - 1,
                )

    def _meant(self, exact_request: Plain, candidate: Candidate) -> bool:
        """Return whether a device is one of all that a request asks: selected and large enough.

        It stays one if the claim itself took of it before: then not all can be had.
        """
        if mismatch(candidate, exact_request, self.pools) is not None:
            return False
        return (
            short(candidate.device, exact_request, self.base.consumed.get(candidate.key, {}))
            is None
        )

    def _fits(
        self,
        request_name: str,
        exact_request: Plain,
        candidate: Candidate,
        allocated_state: AllocatedState,
        devices_before: _GivenDevices,
    ) -> bool:
        """Return whether a request may get a device in addition to what is given before."""
        request_and_device = request_name, candidate.key
        if request_and_device not in self._found_unsuited:
            self._found_unsuited[request_and_device] = (
                unsuited(candidate, exact_request, self.pools) is not None
            )
        if (
            self._found_unsuited[request_and_device]
            or unavailable(candidate, exact_request, self.pools, allocated_state) is not None
        ):
            return False
        devices_then, _ = _with(
            request_name, exact_request, candidate, allocated_state, devices_before
        )
        return all(_holds(constraint, devices_then) for constraint in self.constraints)


def _with(
    request_name: str,
    exact_request: Plain,
    candidate: Candidate,
    allocated_state: AllocatedState,
    devices_before: _GivenDevices,
) -> tuple[_GivenDevices, AllocatedState]:
    """Return what is given, and the allocated state, once a request has a device."""
    amount_by_capacity = {
        capacity: amount or Decimal(0)
        for capacity, amount in consumes_of(candidate.device, exact_request).items()
    }
    given_device = Given(
        request=request_name,
        node=candidate.node,
        driver=candidate.pool[0],
        device=candidate.device["name"],
        consumes=_said(candidate, exact_request),
    )
    return (*devices_before, (given_device, candidate)), allocated_state.plus(
        candidate, amount_by_capacity
    )


def _said(candidate: Candidate, exact_request: Plain) -> dict[str, str]:
    """Return what is consumed in the claim's notation; rounded amounts in the policy's."""
    if not candidate.device.get("allowMultipleAllocations"):
        return {}
    requested_amounts = (exact_request.get("capacity") or {}).get("requests") or {}
    amount_texts = {}
    for capacity_name, amount in consumes_of(candidate.device, exact_request).items():
        capacity = candidate.device["capacity"][capacity_name]
        usual_amount = (capacity.get("requestPolicy") or {}).get("default") or capacity["value"]
        amount_text = str(requested_amounts.get(capacity_name, usual_amount))
        amount_texts[capacity_name] = amount_text if amount == decimal(amount_text) else f"{amount}"
    return amount_texts


def _holds(constraint: Plain, given_devices: _GivenDevices) -> bool:
    """Return whether devices satisfy a constraint."""
    request_names = constraint.get("requests")
    attribute_name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
    attribute_values = [
        attribute(candidate.device, attribute_name, driver_name=candidate.pool[0])
        for given_device, candidate in given_devices
        if not request_names
        or {given_device.request, given_device.request.partition("/")[0]} & {*request_names}
    ]
    if None in attribute_values:
        return False
    if "matchAttribute" in constraint:
        return len({*attribute_values}) <= 1
    return len({*attribute_values}) == len(attribute_values)


def _reason(
    candidate: Candidate, exact_request: Plain, pools: Pools, allocated_state: AllocatedState
) -> str | None:
    """Return why a request does not get a device, None if it may, for people to read."""
    try:
        return unsuited(candidate, exact_request, pools) or unavailable(
            candidate, exact_request, pools, allocated_state
        )
    except AllocationAborted as error:
        return f"not told by {error}"


def _why(request: Plain, pools: Pools, allocated_state: AllocatedState) -> str:
    """Return a sentence of why no device serves a request, with the count of each reason."""
    sentences = []
    for request_name, exact_request in _alternatives(request):
        reasons = [
            _reason(candidate, exact_request, pools, allocated_state)
            for candidate in pools.candidates
        ]
        count_by_reason = Counter(reason for reason in reasons if reason is not None)
        fitting_count = reasons.count(None)
        reasons_text = ", ".join(
            f"{count} {reason}" for reason, count in count_by_reason.most_common()
        )
        sentence = f"{request_name}: {fitting_count} of {len(reasons)} devices"
        if fitting_count:
            sentence += ", but no node has all that the claim asks together"
        sentences.append(f"{sentence}: {reasons_text}" if reasons_text else sentence)
    return "; else ".join(sentences)
