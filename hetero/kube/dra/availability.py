"""What of a cluster's devices is free, and why a request does not get one of them. Pure.

It reads slices, classes and claims as kube-scheduler's allocator does: selectors, taints, capacity
that is consumed by a policy, shared counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal

from attrs import frozen

from hetero.kube.dra.selection import AllocationAborted, all_match
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
        """The name by which claims call it."""
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
        """Return the devices and claims of API objects; of a pool the latest generation counts.

        `rules` are DeviceTaintRules.
        """
        latest_generation: dict[_Pool, int] = {}
        slice_specs = [plain_slice["spec"] for plain_slice in slices]
        for slice_spec in slice_specs:
            pool_key = _pool_of(slice_spec)
            latest_generation[pool_key] = max(
                latest_generation.get(pool_key, 0), slice_spec["pool"]["generation"]
            )
        slice_specs = [
            slice_spec
            for slice_spec in slice_specs
            if slice_spec["pool"]["generation"] == latest_generation[_pool_of(slice_spec)]
        ]
        allocations = (claim.get("status", {}).get("allocation") or {} for claim in claims)
        return cls(
            candidates=tuple(
                Candidate(
                    node=slice_spec.get("nodeName"),
                    pool=_pool_of(slice_spec),
                    device=device,
                    by_rules=tuple(
                        (rule["metadata"]["name"], rule["spec"]["taint"])
                        for rule in rules
                        if _means(rule, (*_pool_of(slice_spec), device["name"]))
                    ),
                )
                for slice_spec in slice_specs
                for device in slice_spec.get("devices") or ()
            ),
            sets={
                (_pool_of(slice_spec), counter_set["name"]): {
                    counter: decimal(counter_value["value"])
                    for counter, counter_value in counter_set["counters"].items()
                }
                for slice_spec in slice_specs
                for counter_set in slice_spec.get("sharedCounters") or ()
            },
            classes={
                device_class["metadata"]["name"]: tuple(device_class["spec"].get("selectors") or ())
                for device_class in classes
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


def _means(rule: Plain, device_key: tuple[str, str, str]) -> bool:
    """Whether a DeviceTaintRule is for a device: one without a selector is for none."""
    selector = rule["spec"].get("deviceSelector")
    if selector is None:
        return False
    selected_values = (selector.get(key_name) for key_name in ("driver", "pool", "device"))
    return all(
        selected_value in (None, own_value)
        for selected_value, own_value in zip(selected_values, device_key, strict=True)
    )


@frozen(kw_only=True)
class AllocatedState:
    """What claims consume of devices and of counters."""

    consumed: Mapping[tuple[str, str, str], Mapping[str, Decimal]]
    counters: Mapping[tuple[_Pool, str], Mapping[str, Decimal]]

    @classmethod
    def of(cls, pools: Pools) -> AllocatedState:
        """Return what all claims consume."""
        allocated_state = cls(consumed={}, counters={})
        candidate_by_key = {candidate.key: candidate for candidate in pools.candidates}
        for result in pools.taken:
            candidate = candidate_by_key.get((result["driver"], result["pool"], result["device"]))
            if candidate:
                consumed_capacity = result.get("consumedCapacity") or {}
                allocated_state = allocated_state.plus(
                    candidate,
                    {
                        capacity_name: decimal(amount)
                        for capacity_name, amount in consumed_capacity.items()
                    },
                )
        return allocated_state

    def plus(self, candidate: Candidate, amounts: Mapping[str, Decimal]) -> AllocatedState:
        """Return the allocated state after a device is given. Its counters are consumed once."""
        counters = dict(self.counters)
        for consumption in (
            candidate.device.get("consumesCounters") or ()
            if candidate.key not in self.consumed
            else ()
        ):
            set_key = (candidate.pool, consumption["counterSet"])
            used_amounts = {
                counter: decimal(counter_value["value"])
                for counter, counter_value in consumption["counters"].items()
            }
            counters[set_key] = _sum(counters.get(set_key, {}), used_amounts)
        consumed_amounts = _sum(self.consumed.get(candidate.key, {}), amounts)
        return AllocatedState(
            consumed={**self.consumed, candidate.key: consumed_amounts}, counters=counters
        )


def _sum(
    first_amounts: Mapping[str, Decimal], second_amounts: Mapping[str, Decimal]
) -> dict[str, Decimal]:
    return {
        capacity: first_amounts.get(capacity, Decimal(0)) + second_amounts.get(capacity, Decimal(0))
        for capacity in {*first_amounts, *second_amounts}
    }


def unavailable(
    candidate: Candidate, exact_request: Plain, pools: Pools, allocated_state: AllocatedState
) -> str | None:
    """Return what a device has too little of for a request, None if it has enough."""
    return in_use(candidate, exact_request, pools, allocated_state) or short(
        candidate.device, exact_request, allocated_state.consumed.get(candidate.key, {})
    )


def in_use(
    candidate: Candidate, exact_request: Plain, pools: Pools, allocated_state: AllocatedState
) -> str | None:
    """Return the use by others that leaves nothing of a device, None if some may be left.

    A request with adminAccess uses what others have, but only where there is room for one more
    share.
    """
    consumed_amounts, is_shared = (
        allocated_state.consumed.get(candidate.key),
        candidate.device.get("allowMultipleAllocations"),
    )
    if consumed_amounts is not None and not is_shared and not exact_request.get("adminAccess"):
        return "taken"
    for consumption in (
        candidate.device.get("consumesCounters") or ()
        if consumed_amounts is None or not is_shared
        else ()
    ):
        total_by_counter = pools.sets.get((candidate.pool, consumption["counterSet"]), {})
        used_by_counter = allocated_state.counters.get(
            (candidate.pool, consumption["counterSet"]), {}
        )
        for counter, counter_value in consumption["counters"].items():
            left_amount = total_by_counter.get(counter, 0) - used_by_counter.get(
                counter, Decimal(0)
            )
            if decimal(counter_value["value"]) > left_amount:
                return f"beside parts that leave too little {counter}"
    return None


def unsuited(candidate: Candidate, exact_request: Plain, pools: Pools) -> str | None:
    """Return what a device lacks even when it is free."""
    if reason := mismatch(candidate, exact_request, pools):
        return reason
    own_taints = (("", taint) for taint in candidate.device.get("taints") or ())
    for rule, taint in (*own_taints, *candidate.by_rules):
        if taint["effect"] in _REPELLING and not _tolerated(taint, exact_request):
            return f"tainted {taint['key']}" + (f" by DeviceTaintRule {rule}" if rule else "")
    return None


def mismatch(candidate: Candidate, exact_request: Plain, pools: Pools) -> str | None:
    """Return why selectors exclude a device, None if they do not. Raises `AllocationAborted`."""
    device, driver = candidate.device, candidate.pool[0]
    try:
        if not all_match(
            pools.classes[exact_request["deviceClassName"]], device, driver_name=driver
        ):
            return f"not of class {exact_request['deviceClassName']}"
        if not all_match(exact_request.get("selectors") or (), device, driver_name=driver):
            return "not selected"
    except AllocationAborted as error:
        raise AllocationAborted(
            f"device {candidate.device['name']} of node {candidate.node}: {error}"
        ) from None
    except BadInput as error:
        return f"not told by {error}"
    return None


def short(
    device: Plain, exact_request: Plain, consumed_amounts: Mapping[str, Decimal]
) -> str | None:
    """Return which capacity is too small."""
    wanted_amounts = consumes_of(device, exact_request)
    for capacity_name in (exact_request.get("capacity") or {}).get("requests") or ():
        if capacity_name not in (device.get("capacity") or {}):
            return f"without {capacity_name}"
    for capacity_name, amount in wanted_amounts.items():
        if amount is None or amount > decimal(
            device["capacity"][capacity_name]["value"]
        ) - consumed_amounts.get(capacity_name, 0):
            return f"lack {capacity_name}"
    return None


def consumes_of(device: Plain, exact_request: Plain) -> dict[str, Decimal | None]:
    """Return what a request takes of each capacity, None where that is above its maximum.

    Amounts are rounded up as the capacity's policy requires.
    """
    requested_amounts = (exact_request.get("capacity") or {}).get("requests") or {}
    consumed_amounts: dict[str, Decimal | None] = {}
    for capacity_name, capacity in (device.get("capacity") or {}).items():
        policy = capacity.get("requestPolicy") or {}
        if capacity_name in requested_amounts:
            consumed_amounts[capacity_name] = _rounded(
                decimal(requested_amounts[capacity_name]), policy
            )
        elif device.get("allowMultipleAllocations"):
            consumed_amounts[capacity_name] = decimal(policy.get("default") or capacity["value"])
    return consumed_amounts


def _rounded(amount: Decimal, policy: Plain) -> Decimal | None:
    if "validValues" in policy:
        larger_values = [
            valid_value
            for valid_value in map(decimal, policy["validValues"])
            if valid_value >= amount
        ]
        return min(larger_values, default=None)
    valid_range = policy.get("validRange") or {}
    least_value = decimal(valid_range.get("min") or 0)
    amount = max(amount, least_value)
    if "step" in valid_range:
        step = decimal(valid_range["step"])
        amount = (
            least_value + ((amount - least_value) / step).to_integral_value(ROUND_CEILING) * step
        )
    return None if "max" in valid_range and amount > decimal(valid_range["max"]) else amount


def _tolerated(taint: Plain, exact_request: Plain) -> bool:
    return any(
        toleration.get("key") in (None, "", taint["key"])
        and toleration.get("effect") in (None, "", taint["effect"])
        and (
            toleration.get("operator") == "Exists"
            or toleration.get("value", "") == taint.get("value", "")
        )
        for toleration in exact_request.get("tolerations") or ()
    )
