"""Parses the spellings of memory and shares into bytes and percent, and prints bytes."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from hetero.model.errors import BadInput

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB

_FACTORS = {
    "": 1,
    "B": 1,
    "K": 1000,
    "KB": 1000,
    "M": 1000**2,
    "MB": 1000**2,
    "G": 1000**3,
    "GB": 1000**3,
    "T": 1000**4,
    "TB": 1000**4,
    "KI": KiB,
    "KIB": KiB,
    "MI": MiB,
    "MIB": MiB,
    "GI": GiB,
    "GIB": GiB,
    "TI": 1024 * GiB,
    "TIB": 1024 * GiB,
}
#: No number is longer: Python turns only so many digits into one.
_QUANTITY = r"(?a)(\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z]*)"
_WHOLE = r"(?a)\d{1,30}"
_DURATION = r"(?a)(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)"
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_PERCENT = r"(?a)(\d{1,30})\s*%?"
#: More devices than any machine or request has.
_MOST_DEVICES = 1024


def parse_memory(text: str) -> int:
    """Return the bytes that `text` means: `3000Mi`, `3G`, `1.5GiB`, `512B`.

    Binary suffixes (Ki, Mi, Gi, Ti) count in 1024s and decimal ones (K, M, G, T) in 1000s, as
    Kubernetes quantities do. Case and a trailing B do not matter. A number of bytes needs its B,
    since a bare number means MiB elsewhere. A fraction of a byte is rounded up: tables print
    `22.4Gi`. Raises `BadInput`.
    """
    quantity = re.fullmatch(_QUANTITY, text.strip())
    unit_bytes = _FACTORS.get(quantity[2].upper()) if quantity else None
    if quantity is None or unit_bytes is None:
        raise BadInput(f"memory {text!r} is not a size: write 3000Mi, 3G or 50%")
    if quantity[2] == "m":  # thousandths, as Kubernetes has it
        raise BadInput(
            f"memory {text!r}: m is a thousandth: write {quantity[1]}Mi or {quantity[1]}M"
        )
    exact_bytes = Decimal(quantity[1]) * unit_bytes
    size_bytes = exact_bytes.to_integral_value(ROUND_CEILING) if unit_bytes > 1 else exact_bytes
    if exact_bytes < 1 or size_bytes != int(size_bytes):
        raise BadInput(f"memory {text!r} is not a whole, positive number of bytes")
    if not quantity[2]:
        example = "Mi" if size_bytes < MiB else "B"
        raise BadInput(
            f"memory {text!r} has no unit: {size_bytes} bytes? write {size_bytes}{example}"
        )
    return int(size_bytes)


def parse_percent(text: str, *, of: str, most: int = 100) -> int:
    """Return the percentage in `30` or `30%`; `of` names it in the error. Raises `BadInput`."""
    match = re.fullmatch(_PERCENT, text.strip())
    if match is None or not 1 <= int(match[1]) <= most:
        raise BadInput(f"{of} {text!r} is not a percentage: write a whole number from 1 to {most}")
    return int(match[1])


def parse_duration(text: str, *, of: str) -> float:
    """Return the seconds in `90`, `90s`, `10m`, `2h` or `1d`; `of` names it in the error.

    Raises `BadInput`.
    """
    match = re.fullmatch(_DURATION, text.strip())
    if match is None or not float(match[1]):
        raise BadInput(f"{of} {text!r} is no time: write 90, 90s, 10m, 2h or 1d")
    return float(match[1]) * _SECONDS[match[2]]


def parse_count(text: str, *, of: str) -> int:
    """Return the number of devices in `text`; `of` names it in the error. Raises `BadInput`."""
    if re.fullmatch(_WHOLE, text.strip()) is None or not 1 <= int(text) <= _MOST_DEVICES:
        raise BadInput(
            f"{of} {text!r} is not a number of devices: write a whole number from 1 to "
            f"{_MOST_DEVICES}"
        )
    return int(text)


def format_memory(size_bytes: int) -> str:
    """Return `size_bytes` in the largest binary unit that stays readable: `3000 MiB`."""
    for unit_bytes, unit in ((1024 * GiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size_bytes >= unit_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes} {unit}"
    for unit_bytes, unit in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {unit}"
    return f"{size_bytes} B"


def rounded_memory(size_bytes: int) -> str:
    """Return bytes with at most one decimal, rounded down: `14.1 GiB`, `300 MiB`."""
    unit_bytes, unit = (GiB, "GiB") if size_bytes >= GiB else (MiB, "MiB")
    return f"{max(size_bytes, 0) * 10 // unit_bytes / 10:.1f}".removesuffix(".0") + f" {unit}"


def format_percent(percent: float) -> str:
    """Return a percentage with one decimal where it has any: `30 %`, `71.4 %`."""
    return f"{f'{percent:.1f}'.removesuffix('.0')} %"


def format_memories(asked_bytes: int, free_bytes: int) -> tuple[str, str]:
    """Return a larger and a smaller number of bytes in one unit: `24 GiB`, `6`.

    The first is rounded up and the second down, in the largest unit in which they differ.
    """
    for unit_bytes, unit in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        tenths = -(-asked_bytes * 10 // unit_bytes), free_bytes * 10 // unit_bytes
        if asked_bytes >= unit_bytes and (tenths[0] != tenths[1] or asked_bytes == free_bytes):
            numbers = [f"{tenth / 10:.1f}".removesuffix(".0") for tenth in tenths]
            return f"{numbers[0]} {unit}", numbers[1]
    return f"{asked_bytes} B", str(free_bytes)


def format_both(larger_bytes: int, smaller_bytes: int) -> tuple[str, str]:
    """Return the texts of `format_memories`, both with the unit: `24 GiB`, `6 GiB`."""
    larger_text, smaller_number = format_memories(larger_bytes, smaller_bytes)
    return larger_text, f"{smaller_number} {larger_text.split()[1]}"
