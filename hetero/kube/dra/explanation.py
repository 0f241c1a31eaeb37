"""Says which devices a claim would get of a cluster's ResourceSlices, or why it gets none. Pure.

It does what kube-scheduler's allocator does with what is free now: selectors, taints, capacity that
is consumed by a policy, shared counters, alternatives and constraints. A node is chosen by more
than that, so which of several it is kube-scheduler decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from attrs import field, frozen

from hetero.kube.api.quantity import decimal
from hetero.kube.dra.selection import Lacking, all_match, attribute
from hetero.model.errors import BadInput

Plain = dict[str, Any]
_Pool = tuple[str, str]  # a driver, and its pool
_REPELLING = ("NoSchedule", "NoExecute")
#: How many devices a claim may have (resource.k8s.io/v1, AllocationResultsMaxSize).
_RESULTS = 32
#: How often it is looked for another device beside those that were chosen, for one claim.
_TRIES = 2_000


@frozen(kw_only=True)
class Candidate:
    """A device of a slice; `node` None: of any node."""

    node: str | None
    pool: _Pool
    device: Plain

    @property
    def key(self) -> tuple[str, str, str]:
        """What claims call it by."""
        return (*self.pool, self.device["name"])


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


@frozen(kw_only=True)
class Pools:
    """The devices of a cluster, and what claims consume of them.

    `sets` are the shared counters of pools, `classes` the selectors of device classes by name.
    """

    candidates: tuple[Candidate, ...]
    sets: Mapping[tuple[_Pool, str], Mapping[str, Decimal]]
    classes: Mapping[str, tuple[Plain, ...]]
    taken: tuple[Plain, ...]  # the results of all claims

    @classmethod
    def read(
        cls, *, slices: Iterable[Plain], classes: Iterable[Plain], claims: Iterable[Plain]
    ) -> Pools:
        """Return what objects of the API say; of a pool its latest generation counts."""
        latest: dict[_Pool, int] = {}
        specs = [one["spec"] for one in slices]
        for spec in specs:
            pool = _pool_of(spec)
            latest[pool] = max(latest.get(pool, 0), spec["pool"]["generation"])
        specs = [one for one in specs if one["pool"]["generation"] == latest[_pool_of(one)]]
        allocations = (one.get("status", {}).get("allocation") or {} for one in claims)
        return cls(
            candidates=tuple(
                Candidate(node=spec.get("nodeName"), pool=_pool_of(spec), device=device)
                for spec in specs
                for device in spec.get("devices") or ()
            ),
            sets={
                (_pool_of(spec), one["name"]): {
                    name: decimal(counter["value"]) for name, counter in one["counters"].items()
                }
                for spec in specs
                for one in spec.get("sharedCounters") or ()
            },
            classes={
                one["metadata"]["name"]: tuple(one["spec"].get("selectors") or ())
                for one in classes
            },
            taken=tuple(
                result
                for allocation in allocations
                for result in (allocation.get("devices") or {}).get("results") or ()
                if not result.get("adminAccess")
            ),
        )


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
    fewest = sum(min(exact.get("count", 1) for _, exact in _alternatives(r)) for r in requests)
    if fewest > _RESULTS:
        return Answer(why=(f"a claim has {_RESULTS} devices at most, and this asks {fewest}",))
    base = _Books.of(pools)
    ranks = {name: rank for one in requests for rank, (name, _) in enumerate(_alternatives(one))}
    best: tuple[int, _Found] | None = None
    for here in _by_node(pools.candidates):
        search = _Search(pools=pools, constraints=tuple(devices.get("constraints") or ()))
        try:
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


def _pool_of(spec: Plain) -> _Pool:
    return spec["driver"], spec["pool"]["name"]


# --- what is free ---------------------------------------------------------------------------------


@frozen(kw_only=True)
class _Books:
    """What is consumed: of devices, and of counters."""

    consumed: Mapping[tuple[str, str, str], Mapping[str, Decimal]]
    counters: Mapping[tuple[_Pool, str], Mapping[str, Decimal]]

    @classmethod
    def of(cls, pools: Pools) -> _Books:
        books = cls(consumed={}, counters={})
        known = {one.key: one for one in pools.candidates}
        for result in pools.taken:
            found = known.get((result["driver"], result["pool"], result["device"]))
            if found:
                amounts = result.get("consumedCapacity") or {}
                books = books.plus(found, {name: decimal(one) for name, one in amounts.items()})
        return books

    def plus(self, one: Candidate, amounts: Mapping[str, Decimal]) -> _Books:
        """Return the books after a device is given; its counters are consumed once."""
        counters = dict(self.counters)
        for use in one.device.get("consumesCounters") or () if one.key not in self.consumed else ():
            key = (one.pool, use["counterSet"])
            said = {name: decimal(counter["value"]) for name, counter in use["counters"].items()}
            counters[key] = _sum(counters.get(key, {}), said)
        held = _sum(self.consumed.get(one.key, {}), amounts)
        return _Books(consumed={**self.consumed, one.key: held}, counters=counters)


def _sum(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {
        name: one.get(name, Decimal(0)) + other.get(name, Decimal(0)) for name in {*one, *other}
    }


# --- one device for one request -------------------------------------------------------------------


def _unavailable(one: Candidate, exact: Plain, pools: Pools, books: _Books) -> str | None:
    """Return what others leave too little of on a device, None if it is enough."""
    if exact.get("adminAccess"):
        return None
    held = books.consumed.get(one.key)
    if held is not None and not one.device.get("allowMultipleAllocations"):
        return "taken"
    for use in one.device.get("consumesCounters") or () if held is None else ():
        total = pools.sets.get((one.pool, use["counterSet"]), {})
        gone = books.counters.get((one.pool, use["counterSet"]), {})
        for name, counter in use["counters"].items():
            if decimal(counter["value"]) > total.get(name, 0) - gone.get(name, Decimal(0)):
                return f"beside parts that leave too little {name}"
    return _short(one.device, exact, held or {})


def _unsuited(one: Candidate, exact: Plain, pools: Pools) -> str | None:
    """Return what a device lacks whoever else has of it."""
    if reason := _mismatch(one, exact, pools):
        return reason
    for taint in one.device.get("taints") or ():
        if taint["effect"] in _REPELLING and not _tolerated(taint, exact):
            return f"tainted {taint['key']}"
    return None


def _mismatch(one: Candidate, exact: Plain, pools: Pools) -> str | None:
    """Return why selectors do not mean a device, None if they do. Raises `Lacking`."""
    device, driver = one.device, one.pool[0]
    try:
        if not all_match(pools.classes[exact["deviceClassName"]], device, driver=driver):
            return f"not of class {exact['deviceClassName']}"
        if not all_match(exact.get("selectors") or (), device, driver=driver):
            return "not selected"
    except Lacking as error:
        raise Lacking(f"device {one.device['name']} of node {one.node}: {error}") from None
    except BadInput as error:
        return f"not told by {error}"
    return None


def _short(device: Plain, exact: Plain, held: Mapping[str, Decimal]) -> str | None:
    """Return which capacity is too little."""
    wanted = _consumes(device, exact)
    for name in (exact.get("capacity") or {}).get("requests") or ():
        if name not in (device.get("capacity") or {}):
            return f"without {name}"
    for name, amount in wanted.items():
        if amount is None or amount > decimal(device["capacity"][name]["value"]) - held.get(
            name, 0
        ):
            return f"lack {name}"
    return None


def _consumes(device: Plain, exact: Plain) -> dict[str, Decimal | None]:
    """Return what a request takes of each capacity, None where that is more than it may be.

    Rounded up as the capacity's policy says.
    """
    asked = (exact.get("capacity") or {}).get("requests") or {}
    made: dict[str, Decimal | None] = {}
    for name, capacity in (device.get("capacity") or {}).items():
        policy = capacity.get("requestPolicy") or {}
        if name in asked:
            made[name] = _rounded(decimal(asked[name]), policy)
        elif device.get("allowMultipleAllocations"):
            made[name] = decimal(policy.get("default") or capacity["value"])
    return made


def _rounded(amount: Decimal, policy: Plain) -> Decimal | None:
    if "validValues" in policy:
        larger = [one for one in map(decimal, policy["validValues"]) if one >= amount]
        return min(larger, default=None)
    span = policy.get("validRange") or {}
    least = decimal(span.get("min") or 0)
    amount = max(amount, least)
    if "step" in span:
        step = decimal(span["step"])
        amount = least + ((amount - least) / step).to_integral_value(ROUND_CEILING) * step
    return None if "max" in span and amount > decimal(span["max"]) else amount


def _tolerated(taint: Plain, exact: Plain) -> bool:
    return any(
        one.get("key") in (None, "", taint["key"])
        and one.get("effect") in (None, "", taint["effect"])
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in exact.get("tolerations") or ()
    )


# --- all requests ---------------------------------------------------------------------------------

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
    constraints: tuple[Plain, ...]
    _tries: Iterator[int] = field(factory=lambda: iter(range(_TRIES)))
    # By request and device: selectors are the slowest part.
    _unsuited: dict[tuple[str, tuple[str, str, str]], bool] = field(factory=dict)

    def serve(
        self, requests: list[Plain], here: list[Candidate], books: _Books, before: _Found = ()
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
        self, name: str, exact: Plain, here: list[Candidate], books: _Books, before: _Found
    ) -> Iterator[tuple[_Found, _Books]]:
        """Yield the ways to give one request its devices, with what is given before."""
        if exact.get("allocationMode") != "All":
            yield from self._several(name, exact, here, books, before, exact.get("count", 1))
            return
        meant = [one for one in here if self._meant(exact, one, books)]
        found, after = before, books
        for one in meant:
            if not self._fits(name, exact, one, after, found):
                return
            found, after = _with(name, exact, one, after, found)
        if meant:
            yield found, after

    def _several(
        self,
        name: str,
        exact: Plain,
        here: list[Candidate],
        books: _Books,
        before: _Found,
        count: int,
    ) -> Iterator[tuple[_Found, _Books]]:
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

    def _meant(self, exact: Plain, one: Candidate, books: _Books) -> bool:
        """Return whether a device is one of all that a request asks: selected and large enough."""
        if _mismatch(one, exact, self.pools) is not None:
            return False
        held = books.consumed.get(one.key, {})
        return bool(exact.get("adminAccess")) or _short(one.device, exact, held) is None

    def _fits(self, name: str, exact: Plain, one: Candidate, books: _Books, before: _Found) -> bool:
        """Return whether a request may get a device beside what is given before."""
        key = name, one.key
        if key not in self._unsuited:
            self._unsuited[key] = _unsuited(one, exact, self.pools) is not None
        if self._unsuited[key] or _unavailable(one, exact, self.pools, books) is not None:
            return False
        found, _ = _with(name, exact, one, books, before)
        return all(_holds(constraint, found) for constraint in self.constraints)


def _with(
    name: str, exact: Plain, one: Candidate, books: _Books, before: _Found
) -> tuple[_Found, _Books]:
    """Return what is given, and the books, once a request has a device."""
    amounts = {key: amount or Decimal(0) for key, amount in _consumes(one.device, exact).items()}
    given = Given(
        request=name,
        node=one.node,
        driver=one.pool[0],
        device=one.device["name"],
        consumes=_said(one, exact),
    )
    after = books if exact.get("adminAccess") else books.plus(one, amounts)
    return (*before, (given, one)), after


def _said(one: Candidate, exact: Plain) -> dict[str, str]:
    """Return what is consumed as a claim says it: rounded amounts are those of the policy."""
    if not one.device.get("allowMultipleAllocations"):
        return {}
    asked = (exact.get("capacity") or {}).get("requests") or {}
    made = {}
    for name, amount in _consumes(one.device, exact).items():
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


def _reason(one: Candidate, exact: Plain, pools: Pools, books: _Books) -> str | None:
    """Return why a request does not get a device, None if it may; whatever is told of it."""
    try:
        return _unsuited(one, exact, pools) or _unavailable(one, exact, pools, books)
    except Lacking as error:
        return f"not told by {error}"


def _why(request: Plain, pools: Pools, books: _Books) -> str:
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
