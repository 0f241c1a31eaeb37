"""Says which devices a claim would get of a cluster's ResourceSlices, or why it gets none. Pure.

It does what kube-scheduler's allocator does with what is free now: alternatives, counts and
constraints over what `availability` says. A node is chosen by more than that, so which of several
it is kube-scheduler decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial

from attrs import field, frozen

from hetero.kube.dra.availability import (
    Books,
    Candidate,
    Pools,
    consumes_of,
    in_use,
    mismatch,
    short,
    unavailable,
    unsuited,
)
from hetero.kube.dra.selection import Lacking, attribute
from hetero.kube.objects.kinds import Plain
from hetero.kube.words.quantity import decimal
from hetero.model.errors import BadInput

#: How many devices a claim may have (resource.k8s.io/v1, AllocationResultsMaxSize).
_RESULTS = 32
#: How often it is looked for another device beside those that were chosen, for one claim.
_TRIES = 2_000


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
    """What a claim gets; nothing with the sentences that say why."""

    given: tuple[Given, ...] = ()
    why: tuple[str, ...] = ()


def explain(spec: Plain, pools: Pools) -> ClaimSelection:
    """Return what a claim's spec would be given.

    Raises `BadInput` for a class that is missing, and where too much would have to be tried.
    """
    devices = spec.get("devices") or {}
    requests = devices.get("requests") or ()
    for request in requests:
        for _, exact in _alternatives(request):
            if exact["deviceClassName"] not in pools.classes:
                raise BadInput(f"there is no DeviceClass {exact['deviceClassName']}")
    base = Books.of(pools)
    ranks = {name: rank for one in requests for rank, (name, _) in enumerate(_alternatives(one))}
    constraints = devices.get("constraints") or ()
    best: tuple[int, _Found] | None = None
    for candidates in _by_node(pools.candidates):
        search = _Search(pools=pools, base=base, constraints=tuple(constraints))
        try:
            fewest = search.fewest(requests, candidates)
            if fewest > _RESULTS:
                most = f"a claim has {_RESULTS} devices at most, and this asks {fewest}"
                return ClaimSelection(why=(most,))
            solution = next(search.serve(list(requests), candidates, base), None)
        except Lacking as error:
            return ClaimSelection(
                why=(f"kube-scheduler gives nothing to a claim that it stops at: {error}",)
            )
        rank = sum(ranks[name] for name in {given.request for given, _ in solution or ()})
        if solution and (best is None or rank < best[0]):
            best = rank, solution
    if best is not None:
        return ClaimSelection(given=tuple(given for given, _ in best[1]))
    why = tuple(_why(request, pools, base) for request in requests)
    return ClaimSelection(why=why or ("the claim asks for nothing",))


def _by_node(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Return the devices that each node has, with those that all have."""
    by_node: dict[str, list[Candidate]] = {}
    anywhere: list[Candidate] = []
    for candidate in candidates:
        (by_node.setdefault(candidate.node, []) if candidate.node else anywhere).append(candidate)
    return [[*here, *anywhere] for here in by_node.values()]


_Found = Sequence[tuple[Given, Candidate]]


def _alternatives(request: Plain) -> Iterator[tuple[str, Plain]]:
    """Yield what serves a request, the best first, with its full name."""
    if "exactly" in request:
        yield request["name"], request["exactly"]
    for subrequest in request.get("firstAvailable") or ():
        yield f"{request['name']}/{subrequest['name']}", subrequest


@frozen(kw_only=True)
class _Search:
    """Looks for devices for all requests of a claim on one node after the other."""

    pools: Pools
    base: Books  # before the claim
    constraints: tuple[Plain, ...]
    _tries: Iterator[int] = field(factory=lambda: iter(range(_TRIES)))
    # By request and device: selectors are the slowest part.
    _found_unsuited: dict[tuple[str, tuple[str, str, str]], bool] = field(factory=dict)

    def fewest(self, requests: Iterable[Plain], candidates: list[Candidate]) -> int:
        """Return how many devices of a node requests are for at least; too many end all."""
        return sum(
            min(self._count(exact, candidates) for _, exact in _alternatives(one))
            for one in requests
        )

    def _count(self, exact: Plain, candidates: list[Candidate]) -> int:
        if exact.get("allocationMode") == "All":
            return sum(self._meant(exact, one) for one in candidates)
        return int(exact.get("count", 1))

    def serve(
        self, requests: list[Plain], candidates: list[Candidate], books: Books, before: _Found = ()
    ) -> Iterator[_Found]:
        """Yield the ways to serve requests by the devices of a node beside what is given before."""
        if not requests:
            yield before
            return
        first, *rest = requests
        for name, exact in _alternatives(first):
            for chosen, after in self._choices(name, exact, candidates, books, before):
                yield from self.serve(rest, candidates, after, chosen)

    def _choices(
        self, name: str, exact: Plain, candidates: list[Candidate], books: Books, before: _Found
    ) -> Iterator[tuple[_Found, Books]]:
        """Yield the ways to give one request its devices, with what is given before.

        A constraint that keeps one of all devices from being given ends the search on all nodes,
        and for all alternatives. Raises `Lacking` then.
        """
        count = self._count(exact, candidates)
        if len(before) + count > _RESULTS:
            return
        if exact.get("allocationMode") != "All":
            yield from self._several(name, exact, candidates, books, before, count)
            return
        chosen, after = before, books
        for candidate in filter(partial(self._meant, exact), candidates):
            if unsuited(candidate, exact, self.pools) or in_use(
                candidate, exact, self.pools, after
            ):
                return
            more, later = _with(name, exact, candidate, after, chosen)
            if not all(_holds(constraint, more) for constraint in self.constraints):
                device = f"device {candidate.device['name']} of node {candidate.node}"
                raise Lacking(f"{device} is one of all that {name} asks, and a constraint bars it")
            if short(candidate.device, exact, after.consumed.get(candidate.key, {})):
                return
            chosen, after = more, later
        if count:
            yield chosen, after

    def _several(
        self,
        name: str,
        exact: Plain,
        candidates: list[Candidate],
        books: Books,
        before: _Found,
        count: int,
    ) -> Iterator[tuple[_Found, Books]]:
        """Yield the ways to give a request so many devices, each once, even if it is shared."""
        if count == 0:
            yield before, books
            return
        if before and next(self._tries, None) is None:
            raise BadInput(
                f"no devices were found in {_TRIES:,} tries: ask for fewer together, or write "
                "constraints that fewer devices meet"
            )
        for number in range(len(candidates) - count + 1):
            if self._fits(name, exact, candidates[number], books, before):
                chosen, after = _with(name, exact, candidates[number], books, before)
                rest = candidates[number + 1 :]
                yield from self._several(name, exact, rest, after, chosen, count - 1)

    def _meant(self, exact: Plain, candidate: Candidate) -> bool:
        """Return whether a device is one of all that a request asks: selected and large enough.

        What the claim itself takes before does not make it another one: then all are not had.
        """
        if mismatch(candidate, exact, self.pools) is not None:
            return False
        return short(candidate.device, exact, self.base.consumed.get(candidate.key, {})) is None

    def _fits(
        self, name: str, exact: Plain, candidate: Candidate, books: Books, before: _Found
    ) -> bool:
        """Return whether a request may get a device beside what is given before."""
        key = name, candidate.key
        if key not in self._found_unsuited:
            self._found_unsuited[key] = unsuited(candidate, exact, self.pools) is not None
        if (
            self._found_unsuited[key]
            or unavailable(candidate, exact, self.pools, books) is not None
        ):
            return False
        chosen, _ = _with(name, exact, candidate, books, before)
        return all(_holds(constraint, chosen) for constraint in self.constraints)


def _with(
    name: str, exact: Plain, candidate: Candidate, books: Books, before: _Found
) -> tuple[_Found, Books]:
    """Return what is given, and the books, once a request has a device."""
    amounts = {
        key: amount or Decimal(0) for key, amount in consumes_of(candidate.device, exact).items()
    }
    given = Given(
        request=name,
        node=candidate.node,
        driver=candidate.pool[0],
        device=candidate.device["name"],
        consumes=_said(candidate, exact),
    )
    return (*before, (given, candidate)), books.plus(candidate, amounts)


def _said(candidate: Candidate, exact: Plain) -> dict[str, str]:
    """Return what is consumed as a claim says it: rounded amounts are those of the policy."""
    if not candidate.device.get("allowMultipleAllocations"):
        return {}
    asked = (exact.get("capacity") or {}).get("requests") or {}
    made = {}
    for name, amount in consumes_of(candidate.device, exact).items():
        capacity = candidate.device["capacity"][name]
        usual = (capacity.get("requestPolicy") or {}).get("default") or capacity["value"]
        text = str(asked.get(name, usual))
        made[name] = text if amount == decimal(text) else f"{amount}"
    return made


def _holds(constraint: Plain, chosen: _Found) -> bool:
    """Return whether devices are as a constraint says."""
    meant = constraint.get("requests")
    name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
    values = [
        attribute(one.device, name, driver=one.pool[0])
        for given, one in chosen
        if not meant or {given.request, given.request.partition("/")[0]} & {*meant}
    ]
    if None in values:
        return False
    if "matchAttribute" in constraint:
        return len({*values}) <= 1
    return len({*values}) == len(values)


def _reason(candidate: Candidate, exact: Plain, pools: Pools, books: Books) -> str | None:
    """Return why a request does not get a device, None if it may; whatever is told of it."""
    try:
        return unsuited(candidate, exact, pools) or unavailable(candidate, exact, pools, books)
    except Lacking as error:
        return f"not told by {error}"


def _why(request: Plain, pools: Pools, books: Books) -> str:
    """Return a sentence of why no device serves a request, counted by reason."""
    sentences = []
    for name, exact in _alternatives(request):
        reasons = [_reason(one, exact, pools, books) for one in pools.candidates]
        counts = Counter(one for one in reasons if one is not None)
        fit = reasons.count(None)
        parts = ", ".join(f"{number} {reason}" for reason, number in counts.most_common())
        sentence = f"{name}: {fit} of {len(reasons)} devices"
        if fit:
            sentence += ", but no node has all that the claim asks together"
        sentences.append(f"{sentence}: {parts}" if parts else sentence)
    return "; else ".join(sentences)
