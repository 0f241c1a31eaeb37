"""Says which devices a claim would get of a cluster's ResourceSlices, or why it gets none. Pure.

It does what kube-scheduler's allocator does with what is free now: selectors, taints, capacity that
is consumed by a policy, shared counters, alternatives and constraints. A node is chosen by more
than that, so which of several it is kube-scheduler decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from attrs import field, frozen

from hetero.kube.api.quantity import decimal
from hetero.kube.dra.selection import all_match, attribute
from hetero.model.errors import BadInput

Plain = dict[str, Any]
_Pool = tuple[str, str]  # a driver, and its pool
_REPELLING = ("NoSchedule", "NoExecute")


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
    """Return what a claim's spec would be given. Raises `BadInput` for a class that is missing."""
    devices = spec.get("devices") or {}
    requests = devices.get("requests") or ()
    for request in requests:
        for _, exact in _alternatives(request):
            if exact["deviceClassName"] not in pools.classes:
                raise BadInput(f"there is no DeviceClass {exact['deviceClassName']}")
    base = _Books.of(pools)
    nodes = dict.fromkeys(one.node for one in pools.candidates if one.node)
    for node in nodes:
        here = [one for one in pools.candidates if one.node in (node, None)]
        for found in _serve(list(requests), here, base, pools, devices.get("constraints") or ()):
            return Answer(given=tuple(given for given, _ in found))
    why = tuple(_why(request, pools, base) for request in requests)
    return Answer(why=why or ("the claim asks for nothing",))


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


def _refused(one: Candidate, exact: Plain, pools: Pools, books: _Books) -> str | None:
    """Return why a request does not get a device, None if it may."""
    reason = _unsuited(one, exact, pools)
    if reason or exact.get("adminAccess"):
        return reason
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
    device, driver = one.device, one.pool[0]
    try:
        if not all_match(pools.classes[exact["deviceClassName"]], device, driver=driver):
            return f"not of class {exact['deviceClassName']}"
        if not all_match(exact.get("selectors") or (), device, driver=driver):
            return "not selected"
    except BadInput as error:
        return f"not told by {error}"
    for taint in device.get("taints") or ():
        if taint["effect"] in _REPELLING and not _tolerated(taint, exact):
            return f"tainted {taint['key']}"
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

_Found = list[tuple[Given, Candidate]]


def _alternatives(request: Plain) -> Iterator[tuple[str, Plain]]:
    """Yield what serves a request, the best first, with its full name."""
    if "exactly" in request:
        yield request["name"], request["exactly"]
    for one in request.get("firstAvailable") or ():
        yield f"{request['name']}/{one['name']}", one


def _serve(
    requests: list[Plain],
    here: list[Candidate],
    books: _Books,
    pools: Pools,
    constraints: Iterable[Plain],
) -> Iterator[_Found]:
    """Yield the ways to serve requests by the devices of a node."""
    if not requests:
        yield []
        return
    first, *rest = requests
    for name, exact in _alternatives(first):
        for found, after in _choices(name, exact, here, books, pools):
            for others in _serve(rest, here, after, pools, constraints):
                if all(_holds(one, [*found, *others]) for one in constraints):
                    yield [*found, *others]


def _choices(
    name: str, exact: Plain, here: list[Candidate], books: _Books, pools: Pools
) -> Iterator[tuple[_Found, _Books]]:
    """Yield the ways to give one request its devices."""
    fitting = [one for one in here if _refused(one, exact, pools, books) is None]
    if exact.get("allocationMode") == "All":
        count, starts = len(fitting), [fitting] if fitting else []
    else:
        count = exact.get("count", 1)
        starts = [fitting[number:] for number in range(len(fitting))]
    for start in starts:
        one = start[0]
        amounts = {
            key: amount or Decimal(0) for key, amount in _consumes(one.device, exact).items()
        }
        given = Given(
            request=name,
            node=one.node,
            driver=one.pool[0],
            device=one.device["name"],
            consumes=_said(one, exact),
        )
        after = books if exact.get("adminAccess") else books.plus(one, amounts)
        if count <= 1:
            yield [(given, one)], after
            continue
        fewer = {**exact, "allocationMode": "ExactCount", "count": count - 1}
        again = start if one.device.get("allowMultipleAllocations") else start[1:]
        for found, last in _choices(name, fewer, again, after, pools):
            yield [(given, one), *found], last


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


def _why(request: Plain, pools: Pools, books: _Books) -> str:
    """Return a sentence of why no device serves a request, counted by reason."""
    sentences = []
    for name, exact in _alternatives(request):
        reasons = [_refused(one, exact, pools, books) for one in pools.candidates]
        counts = Counter(one for one in reasons if one is not None)
        fit = reasons.count(None)
        parts = ", ".join(f"{number} {reason}" for reason, number in counts.most_common())
        sentence = f"{name}: {fit} of {len(reasons)} devices"
        if fit:
            sentence += ", but no node has all that the claim asks together"
        sentences.append(f"{sentence}: {parts}" if parts else sentence)
    return "; else ".join(sentences)
