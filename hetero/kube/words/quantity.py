"""Reads quantities of the API: numbers with its suffixes."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from math import ceil

from hetero.model.errors import BadInput

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL: Mapping[str, Decimal | int] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
}
#: The API's own quantities end below this.
_MOST_AMOUNT = 2**63
#: Characters of an amount, which is kept; in annotations it may be of any length.
_AMOUNT_LENGTH = 64


def quantity(amounts: Mapping[str, object], resource: str | None) -> int | None:
    """Return the amount of a resource, None if it is not listed. Raises `BadInput`."""
    return (
        None
        if resource is None or resource not in amounts
        else _number(resource, amounts[resource])
    )


def bytes_of(amounts: Mapping[str, object], resource: str, unit: int) -> int | None:
    """Return a memory resource in bytes: a binary suffix counts, else the unit of the resource."""
    if resource not in amounts:
        return None
    is_suffixed = str(amounts[resource])[-2:] in _BINARY
    return _number(resource, amounts[resource]) * (1 if is_suffixed else unit)


def decimal(amount: object) -> Decimal:
    """Return a quantity as a number. Raises `BadInput`."""
    return _parsed("quantity", str(amount))


def rounded_up(resource: str, amount: object, *, unit: Decimal) -> int:
    """Return a resource in these units, rounded up as Kubernetes does. Raises `BadInput`."""
    return ceil(_parsed(resource, str(amount)) / unit)


def _number(resource: str, amount: object) -> int:
    number = _parsed(resource, str(amount))
    if number != int(number):
        raise BadInput(f"{resource} {str(amount)!r} is not a whole number")
    return int(number)


def _parsed(resource: str, amount_text: str) -> Decimal:
    if len(amount_text) > _AMOUNT_LENGTH:
        raise BadInput(
            f"{resource}: {len(amount_text)} characters are no amount: at most {_AMOUNT_LENGTH} are"
        )
    return _known(resource, amount_text)


@lru_cache(maxsize=4096)  # pods of one workload say the same, at every event
def _known(resource: str, amount_text: str) -> Decimal:
    digits, suffix = (
        (amount_text[:-2], amount_text[-2:]) if amount_text[-2:] in _BINARY else (amount_text, "")
    )
    factor: Decimal | int = _BINARY.get(suffix, 1)
    if not suffix and amount_text[-1:] in _DECIMAL:
        digits, factor = amount_text[:-1], _DECIMAL[amount_text[-1:]]
    try:
        number = Decimal(digits) * factor
        if not 0 <= number < _MOST_AMOUNT:
            raise BadInput(f"{resource} {amount_text!r} is not a whole number")
    except ArithmeticError:
        raise BadInput(f"{resource} {amount_text!r} is not a number") from None
    return number
