"""The spellings people use for memory and shares, turned into bytes and percent at the edge."""

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
_QUANTITY = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([A-Za-z]*)", re.ASCII)
_WHOLE = re.compile(r"\d{1,30}", re.ASCII)
_PERCENT = re.compile(r"(\d{1,30})\s*%?", re.ASCII)
#: More devices than any machine or request has.
_MOST_DEVICES = 1024


def parse_memory(text: str) -> int:
    """Return the bytes `text` stands for: `3000Mi`, `3G`, `1.5GiB`, `512B`.

    Binary suffixes (Ki, Mi, Gi, Ti) count in 1024s and decimal ones (K, M, G, T) in 1000s, as
    Kubernetes quantities do; case and a trailing B do not matter. Bytes are written with their B,
    since a bare number means MiB elsewhere. A part of a byte counts as one: `22.4Gi` is what tables
    show. Raises `BadInput`.
    """
    match = _QUANTITY.fullmatch(text.strip())
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise BadInput(f"memory {text!r} is not a size: write 3000Mi, 3G or 50%")
    if match[2] == "m":  # thousandths, as Kubernetes has it
        raise BadInput(f"memory {text!r}: m is a thousandth: write {match[1]}Mi or {match[1]}M")
    amount = Decimal(match[1]) * factor
    size = amount.to_integral_value(ROUND_CEILING) if factor > 1 else amount
    if amount < 1 or size != int(size):
        raise BadInput(f"memory {text!r} is not a whole, positive number of bytes")
    if not match[2]:
        unit = "Mi" if size < MiB else "B"
        raise BadInput(f"memory {text!r} has no unit: {size} bytes? write {size}{unit}")
    return int(size)


def parse_percent(text: str, *, of: str) -> int:
    """Return the percentage in `30` or `30%`; `of` names it in the error. Raises `BadInput`."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None or not 1 <= int(match[1]) <= 100:
        raise BadInput(f"{of} {text!r} is not a percentage: write a whole number from 1 to 100")
    return int(match[1])


def parse_count(text: str, *, of: str) -> int:
    """Return the number of devices in `text`; `of` names it in the error. Raises `BadInput`."""
    if _WHOLE.fullmatch(text.strip()) is None or not 1 <= int(text) <= _MOST_DEVICES:
        raise BadInput(
            f"{of} {text!r} is not a number of devices: write a whole number from 1 to "
            f"{_MOST_DEVICES}"
        )
    return int(text)


def format_memory(size: int) -> str:
    """Return `size` bytes in the largest binary unit that stays readable: `3000 MiB`."""
    for factor, unit in ((1024 * GiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    for factor, unit in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def format_memories(asked: int, free: int) -> tuple[str, str]:
    """Return more and less bytes in one unit, the second without it: `24 GiB`, `6`.

    The first is rounded up and the second down, in the largest unit in which they differ.
    """
    for factor, unit in ((GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        tenths = -(-asked * 10 // factor), free * 10 // factor
        if asked >= factor and (tenths[0] != tenths[1] or asked == free):
            shown = [f"{tenth / 10:.1f}".removesuffix(".0") for tenth in tenths]
            return f"{shown[0]} {unit}", shown[1]
    return f"{asked} B", str(free)


def format_both(more: int, less: int) -> tuple[str, str]:
    """Do as `format_memories` does, with the unit behind both: `24 GiB`, `6 GiB`."""
    shown, least = format_memories(more, less)
    return shown, f"{least} {shown.split()[1]}"
