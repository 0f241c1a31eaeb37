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
class Answer:
    """What a claim gets; nothing with the sentences that say why."""

    given: tuple[Given, ...] = ()
    why: tuple[str, ...] = ()


def explain(spec: Plain, pools: Pools) -> Answer:
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
    for here in _by_node(pools.candidates):
        search = _Search(pools=pools, base=base, constraints=tuple(constraints))
        try:
            fewest = search.fewest(requests, here)
            if fewest > _RESULTS:
                most = f"a claim has {_RESULTS} devices at most, and this asks {fewest}"
                return Answer(why=(most,))
            found = next(search.serve(list(requests), here, base), None)
        except Lacking as error:
            return Answer(
                why=(f"kube-scheduler gives nothing to a claim that it stops at: {error}",)
            )
        rank = sum(ranks[name] for name in {given.request for given, _ in found or ()})
        if found and (best is None or rank < best[0]):
            best = rank, found
    if best is not None:
        return Answer(given=tuple(given for given, _ in best[1]))
    why = tuple(_why(request, pools, base) for request in requests)
    return Answer(why=why or ("the claim asks for nothing",))


def _by_node(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Return the devices that each node has, with those that all have."""
    found: dict[str, list[Candidate]] = {}
    anywhere: list[Candidate] = []
    for one in candidates:
        (found.setdefault(one.node, []) if one.node else anywhere).append(one)
    return [[*here, *anywhere] for here in found.values()]


_Found = Sequence[tuple[Given, Candidate]]


def _alternatives(request: Plain) -> Iterator[tuple[str, Plain]]:
    """Yield what serves a request, the best first, with its full name."""
    if "exactly" in request:
        yield request["name"], request["exactly"]
    for one in request.get("firstAvailable") or ():
        yield f"{request['name']}/{one['name']}", one


@frozen(kw_only=True)
class _Search:
    """Looks for devices for all requests of a claim on one node after the other."""

    pools: Pools
    base: Books  # before the claim
    constraints: tuple[Plain, ...]
    _tries: Iterator[int] = field(factory=lambda: iter(range(_TRIES)))
    # By request and device: selectors are the slowest part.
    _found_unsuited: dict[tuple[str, tuple[str, str, str]], bool] = field(factory=dict)

    def fewest(self, requests: Iterable[Plain], here: list[Candidate]) -> int:
        """Return how many devices of a node requests are for at least; too many end all."""
        return sum(
            min(self._count(exact, here) for _, exact in _alternatives(one)) for one in requests
        )

    def _count(self, exact: Plain, here: list[Candidate]) -> int:
        if exact.get("allocationMode") == "All":
            return sum(self._meant(exact, one) for one in here)
        return int(exact.get("count", 1))

    def serve(
        self, requests: list[Plain], here: list[Candidate], books: Books, before: _Found = ()
    ) -> Iterator[_Found]:
        """Yield the ways to serve requests by the devices of a node beside what is given before."""
        if not requests:
            yield before
            return
        first, *rest = requests
        for name, exact in _alternatives(first):
            for found, after in self._choices(name, exact, here, books, before):
                yield from self.serve(rest, here, after, found)

    def _choices(
        self, name: str, exact: Plain, here: list[Candidate], books: Books, before: _Found
    ) -> Iterator[tuple[_Found, Books]]:
        """Yield the ways to give one request its devices, with what is given before.

        A constraint that keeps one of all devices from being given ends the search on all nodes,
        and for all alternatives. Raises `Lacking` then.
        """
        count = self._count(exact, here)
        if len(before) + count > _RESULTS:
            return
        if exact.get("allocationMode") != "All":
            yield from self._several(name, exact, here, books, before, count)
            return
        found, after = before, books
        for one in filter(partial(self._meant, exact), here):
            if unsuited(one, exact, self.pools) or in_use(one, exact, self.pools, after):
                return
            more, later = _with(name, exact, one, after, found)
            if not all(_holds(constraint, more) for constraint in self.constraints):
                device = f"device {one.device['name']} of node {one.node}"
                raise Lacking(f"{device} is one of all that {name} asks, and a constraint bars it")
            if short(one.device, exact, after.consumed.get(one.key, {})):
                return
            found, after = more, later
        if count:
            yield found, after

    def _several(
        self,
        name: str,
        exact: Plain,
        here: list[Candidate],
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
        for number in range(len(here) - count + 1):
            if self._fits(name, exact, here[number], books, before):
                found, after = _with(name, exact, here[number], books, before)
                rest = here[number + 1 :]
                yield from self._several(name, exact, rest, after, found, count - 1)

    def _meant(self, exact: Plain, one: Candidate) -> bool:
        """Return whether a device is one of all that a request asks: selected and large enough.

        What the claim itself takes before does not make it another one: then all are not had.
        """
        if mismatch(one, exact, self.pools) is not None:
            return False
        return short(one.device, exact, self.base.consumed.get(one.key, {})) is None

    def _fits(self, name: str, exact: Plain, one: Candidate, books: Books, before: _Found) -> bool:
        """Return whether a request may get a device beside what is given before."""
        key = name, one.key
        if key not in self._found_unsuited:
            self._found_unsuited[key] = unsuited(one, exact, self.pools) is not None
        if self._found_unsuited[key] or unavailable(one, exact, self.pools, books) is not None:
            return False
        found, _ = _with(name, exact, one, books, before)
        return all(_holds(constraint, found) for constraint in self.constraints)


def _with(
    name: str, exact: Plain, one: Candidate, books: Books, before: _Found
) -> tuple[_Found, Books]:
    """Return what is given, and the books, once a request has a device."""
    amounts = {key: amount or Decimal(0) for key, amount in consumes_of(one.device, exact).items()}
    given = Given(
        request=name,
        node=one.node,
        driver=one.pool[0],
        device=one.device["name"],
        consumes=_said(one, exact),
    )
    return (*before, (given, one)), books.plus(one, amounts)


def _said(one: Candidate, exact: Plain) -> dict[str, str]:
    """Return what is consumed as a claim says it: rounded amounts are those of the policy."""
    if not one.device.get("allowMultipleAllocations"):
        return {}
    asked = (exact.get("capacity") or {}).get("requests") or {}
    made = {}
    for name, amount in consumes_of(one.device, exact).items():
        capacity = one.device["capacity"][name]
        usual = (capacity.get("requestPolicy") or {}).get("default") or capacity["value"]
        said = str(asked.get(name, usual))
        made[name] = said if amount == decimal(said) else f"{amount}"
    return made


def _holds(constraint: Plain, found: _Found) -> bool:
    """Return whether devices are as a constraint says."""
    meant = constraint.get("requests")
    name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
    values = [
        attribute(one.device, name, driver=one.pool[0])
        for given, one in found
        if not meant or {given.request, given.request.partition("/")[0]} & {*meant}
    ]
    if None in values:
        return False
    if "matchAttribute" in constraint:
        return len({*values}) <= 1
    return len({*values}) == len(values)


def _reason(one: Candidate, exact: Plain, pools: Pools, books: Books) -> str | None:
    """Return why a request does not get a device, None if it may; whatever is told of it."""
    try:
        return unsuited(one, exact, pools) or unavailable(one, exact, pools, books)
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
