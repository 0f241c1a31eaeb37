"""Reads the quantities of the API: numbers with the suffixes it allows."""

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
_MOST = 2**63
#: Characters of an amount, which is kept; in annotations it may be of any length.
_LONGEST = 64


def quantity(amounts: Mapping[str, object], name: str | None) -> int | None:
    """Return a resource's whole number, None if it is not there. Raises `BadInput`."""
    return None if name is None or name not in amounts else _number(name, amounts[name])


def bytes_of(amounts: Mapping[str, object], name: str, unit: int) -> int | None:
    """Return a memory resource in bytes: with a binary suffix as it stands, else by its unit."""
    if name not in amounts:
        return None
    is_suffixed = str(amounts[name])[-2:] in _BINARY
    return _number(name, amounts[name]) * (1 if is_suffixed else unit)


def decimal(text: object) -> Decimal:
    """Return the number that a quantity is. Raises `BadInput`."""
    return _parsed("quantity", str(text))


def rounded_up(name: str, amount: object, *, unit: Decimal) -> int:
    """Return a resource in so large units, rounded up as Kubernetes does. Raises `BadInput`."""
    return ceil(_parsed(name, str(amount)) / unit)


def _number(name: str, value: object) -> int:
    number = _parsed(name, str(value))
    if number != int(number):
        raise BadInput(f"{name} {str(value)!r} is not a whole number")
    return int(number)


def _parsed(name: str, text: str) -> Decimal:
    if len(text) > _LONGEST:
        raise BadInput(f"{name}: {len(text)} characters are no amount: at most {_LONGEST} are")
    return _known(name, text)


@lru_cache(maxsize=4096)  # pods of one workload say the same, at every event
def _known(name: str, text: str) -> Decimal:
    digits, suffix = (text[:-2], text[-2:]) if text[-2:] in _BINARY else (text, "")
    factor: Decimal | int = _BINARY.get(suffix, 1)
    if not suffix and text[-1:] in _DECIMAL:
        digits, factor = text[:-1], _DECIMAL[text[-1:]]
    try:
        number = Decimal(digits) * factor
        if not 0 <= number < _MOST:
            raise BadInput(f"{name} {text!r} is not a whole number")
    except ArithmeticError:
        raise BadInput(f"{name} {text!r} is not a number") from None
    return number
