"""Evaluates the selectors of claims and classes, in CEL, on the devices of ResourceSlices.

The language is a library's. What Kubernetes adds to it is here: quantities, and the functions of
strings that selectors use. Its optional fields (`.?name`) are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import cel

from hetero.kube.objects.kinds import Plain
from hetero.kube.words.quantity import decimal
from hetero.model.errors import BadInput

#: How errors of the library are told, but for those of a lookup: they are Python's mappings'.
_ERRORS = (ValueError, RuntimeError, TypeError)


class AllocationAborted(BadInput):
    """An error at which kube-scheduler aborts the allocation of a claim.

    An expression reads an attribute that a device does not have, say: a run-time error of CEL.
    """


def matches(expression: str, device: Plain, *, driver_name: str) -> bool:
    """Return whether a device of a driver's slice satisfies an expression.

    Raises `AllocationAborted` where the device lacks an attribute that it reads, `BadInput` where
    it cannot be parsed.
    """
    context = cel.Context()
    context.add_variable("device", _seen(device, driver_name))
    for function_name, function in _FUNCTIONS.items():
        context.add_function(function_name, function)
    try:
        return cel.evaluate(expression, context) is True
    except KeyError as error:
        raise AllocationAborted(f"{expression}: there is no {error}") from None
    except _ERRORS as error:
        raise BadInput(f"{expression}: {str(error).splitlines()[0]}") from None


def attribute(device: Plain, full_name: str, *, driver_name: str) -> object:
    """Return a device's attribute by its full name, None if it has none of it."""
    values_by_domain = _qualified(device.get("attributes") or {}, driver_name)
    domain, _, short_name = full_name.rpartition("/")
    typed_value = values_by_domain.get(domain, {}).get(short_name)
    return next(iter(typed_value.values())) if typed_value else None


def _seen(device: Plain, driver_name: str) -> Plain:
    """Return a device as expressions see it: names by their domains, amounts as numbers."""
    attributes = _qualified(device.get("attributes") or {}, driver_name)
    capacity = _qualified(device.get("capacity") or {}, driver_name)
    return {
        "driver": driver_name,
        "allowMultipleAllocations": bool(device.get("allowMultipleAllocations")),
        "attributes": {
            domain: {
                short_name: next(iter(typed_value.values()))
                for short_name, typed_value in values_by_name.items()
            }
            for domain, values_by_name in attributes.items()
        },
        "capacity": {
            domain: {
                short_name: _whole(decimal(typed_value["value"]))
                for short_name, typed_value in values_by_name.items()
            }
            for domain, values_by_name in capacity.items()
        },
    }


def _qualified(attributes: Mapping[str, Plain], driver_name: str) -> dict[str, dict[str, Plain]]:
    """Return attributes by domain and name; those without a domain are the driver's."""
    values_by_domain: dict[str, dict[str, Plain]] = {driver_name: {}}
    for full_name, typed_value in attributes.items():
        domain, _, short_name = full_name.rpartition("/")
        values_by_domain.setdefault(domain or driver_name, {})[short_name] = typed_value
    return values_by_domain


def _whole(amount: Decimal) -> int:
    """Return an amount in thousandths: so those of processors stay whole numbers."""
    return int(amount * 1000)


def _compare(left_thousandths: int, right_thousandths: int) -> int:
    return (left_thousandths > right_thousandths) - (left_thousandths < right_thousandths)


_FUNCTIONS: Mapping[str, Any] = {
    "quantity": lambda text: _whole(decimal(text)),
    "compareTo": _compare,
    "isGreaterThan": lambda left, right: left > right,
    "isLessThan": lambda left, right: left < right,
    "lowerAscii": lambda text: text.lower(),
    "upperAscii": lambda text: text.upper(),
}


def all_match(selectors: Iterable[Plain], device: Plain, *, driver_name: str) -> bool:
    """Return whether a device satisfies all selectors. Raises `BadInput` as `matches` does."""
    return all(
        matches(selector["cel"]["expression"], device, driver_name=driver_name)
        for selector in selectors
    )
