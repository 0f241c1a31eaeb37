"""What of a cluster's devices is free, and why a request does not get one of them. Pure.

It reads slices, classes and claims as kube-scheduler's allocator does: selectors, taints, capacity
that is consumed by a policy, shared counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal

from attrs import frozen

from hetero.kube.dra.selection import Lacking, all_match
from hetero.kube.objects.kinds import Plain
from hetero.kube.words.quantity import decimal
from hetero.model.errors import BadInput

_Pool = tuple[str, str]  # a driver, and its pool
_REPELLING = ("NoSchedule", "NoExecute")


@frozen(kw_only=True)
class Candidate:
    """A device of a slice; `node` None: of any node. `by_rules` are taints that rules give it."""

    node: str | None
    pool: _Pool
    device: Plain
    by_rules: tuple[tuple[str, Plain], ...] = ()  # each with its rule's name

    @property
    def key(self) -> tuple[str, str, str]:
        """What claims call it by."""
        return (*self.pool, self.device["name"])


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
        cls,
        *,
        slices: Iterable[Plain],
        classes: Iterable[Plain],
        claims: Iterable[Plain],
        rules: Sequence[Plain] = (),
    ) -> Pools:
        """Return what objects of the API say; of a pool its latest generation counts.

        `rules` are DeviceTaintRules.
        """
        latest: dict[_Pool, int] = {}
        specs = [one["spec"] for one in slices]
        for spec in specs:
            pool = _pool_of(spec)
            latest[pool] = max(latest.get(pool, 0), spec["pool"]["generation"])
        specs = [one for one in specs if one["pool"]["generation"] == latest[_pool_of(one)]]
        allocations = (one.get("status", {}).get("allocation") or {} for one in claims)
        return cls(
            candidates=tuple(
                Candidate(
                    node=spec.get("nodeName"),
                    pool=_pool_of(spec),
                    device=device,
                    by_rules=tuple(
                        (rule["metadata"]["name"], rule["spec"]["taint"])
                        for rule in rules
                        if _means(rule, (*_pool_of(spec), device["name"]))
                    ),
                )
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


def _pool_of(spec: Plain) -> _Pool:
    return spec["driver"], spec["pool"]["name"]


def _means(rule: Plain, key: tuple[str, str, str]) -> bool:
    """Whether a DeviceTaintRule is for a device: one without a selector is for none."""
    selector = rule["spec"].get("deviceSelector")
    if selector is None:
        return False
    selected = (selector.get(name) for name in ("driver", "pool", "device"))
    return all(one in (None, own) for one, own in zip(selected, key, strict=True))


@frozen(kw_only=True)
class Books:
    """What is consumed: of devices, and of counters."""

    consumed: Mapping[tuple[str, str, str], Mapping[str, Decimal]]
    counters: Mapping[tuple[_Pool, str], Mapping[str, Decimal]]

    @classmethod
    def of(cls, pools: Pools) -> Books:
        """Return what all claims consume."""
        books = cls(consumed={}, counters={})
        known = {one.key: one for one in pools.candidates}
        for result in pools.taken:
            candidate = known.get((result["driver"], result["pool"], result["device"]))
            if candidate:
                amounts = result.get("consumedCapacity") or {}
                books = books.plus(candidate, {name: decimal(one) for name, one in amounts.items()})
        return books

    def plus(self, candidate: Candidate, amounts: Mapping[str, Decimal]) -> Books:
        """Return the books after a device is given; its counters are consumed once."""
        counters = dict(self.counters)
        for use in (
            candidate.device.get("consumesCounters") or ()
            if candidate.key not in self.consumed
            else ()
        ):
            key = (candidate.pool, use["counterSet"])
            used = {name: decimal(counter["value"]) for name, counter in use["counters"].items()}
            counters[key] = _sum(counters.get(key, {}), used)
        held = _sum(self.consumed.get(candidate.key, {}), amounts)
        return Books(consumed={**self.consumed, candidate.key: held}, counters=counters)


def _sum(first: Mapping[str, Decimal], second: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {
        name: first.get(name, Decimal(0)) + second.get(name, Decimal(0))
        for name in {*first, *second}
    }


def unavailable(candidate: Candidate, exact: Plain, pools: Pools, books: Books) -> str | None:
    """Return what others leave too little of on a device, None if it is enough."""
    return in_use(candidate, exact, pools, books) or short(
        candidate.device, exact, books.consumed.get(candidate.key, {})
    )


def in_use(candidate: Candidate, exact: Plain, pools: Pools, books: Books) -> str | None:
    """Return what others have of a device that leaves none of it, None if some may be left.

    Who has adminAccess uses what others have, but only where there is room for one more share.
    """
    held, shared = (
        books.consumed.get(candidate.key),
        candidate.device.get("allowMultipleAllocations"),
    )
    if held is not None and not shared and not exact.get("adminAccess"):
        return "taken"
    for use in candidate.device.get("consumesCounters") or () if held is None or not shared else ():
        total = pools.sets.get((candidate.pool, use["counterSet"]), {})
        gone = books.counters.get((candidate.pool, use["counterSet"]), {})
        for name, counter in use["counters"].items():
            if decimal(counter["value"]) > total.get(name, 0) - gone.get(name, Decimal(0)):
                return f"beside parts that leave too little {name}"
    return None


def unsuited(candidate: Candidate, exact: Plain, pools: Pools) -> str | None:
    """Return what a device lacks whoever else has of it."""
    if reason := mismatch(candidate, exact, pools):
        return reason
    own = (("", taint) for taint in candidate.device.get("taints") or ())
    for rule, taint in (*own, *candidate.by_rules):
        if taint["effect"] in _REPELLING and not _tolerated(taint, exact):
            return f"tainted {taint['key']}" + (f" by DeviceTaintRule {rule}" if rule else "")
    return None


def mismatch(candidate: Candidate, exact: Plain, pools: Pools) -> str | None:
    """Return why selectors do not mean a device, None if they do. Raises `Lacking`."""
    device, driver = candidate.device, candidate.pool[0]
    try:
        if not all_match(pools.classes[exact["deviceClassName"]], device, driver=driver):
            return f"not of class {exact['deviceClassName']}"
        if not all_match(exact.get("selectors") or (), device, driver=driver):
            return "not selected"
    except Lacking as error:
        raise Lacking(
            f"device {candidate.device['name']} of node {candidate.node}: {error}"
        ) from None
    except BadInput as error:
        return f"not told by {error}"
    return None


def short(device: Plain, exact: Plain, held: Mapping[str, Decimal]) -> str | None:
    """Return which capacity is too little."""
    wanted = consumes_of(device, exact)
    for name in (exact.get("capacity") or {}).get("requests") or ():
        if name not in (device.get("capacity") or {}):
            return f"without {name}"
    for name, amount in wanted.items():
        if amount is None or amount > decimal(device["capacity"][name]["value"]) - held.get(
            name, 0
        ):
            return f"lack {name}"
    return None


def consumes_of(device: Plain, exact: Plain) -> dict[str, Decimal | None]:
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
