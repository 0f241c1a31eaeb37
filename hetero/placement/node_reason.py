"""Says in a few words why a node cannot serve, of all that its devices say: the true reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hetero.model import DEVICES, FITS, NO_DEVICE, NOT_CHOSEN, Shortage
from hetero.placement.offer import NOT_EMPTY

_TOO_FEW = "have too few devices"
#: What a device says, with the numbers of it.
DeviceVerdict = tuple[str, Shortage | None]


def node_reason(verdicts: Iterable[DeviceVerdict], *, wanted: int) -> DeviceVerdict:
    """Return what a node says whose devices say this, of which `wanted` have to serve.

    What is short comes before what will never be there, and what most devices say before the rest.
    The numbers are those of the last device that is needed.
    """
    heard = list(verdicts)
    counts = Counter(reason for reason, _ in heard)
    fitting = counts.pop(FITS, 0)
    if fitting >= wanted:
        return FITS, None
    if not counts:
        if not heard:
            return NO_DEVICE, None
        return _TOO_FEW, Shortage(counter=DEVICES, asked=wanted, free=fitting, of=fitting)
    reason = min(
        counts,
        key=lambda verdict: (_class(verdict), -counts[verdict], verdict != "lack memory", verdict),
    )
    numbers = [lacking for one, lacking in heard if one == reason and lacking is not None]
    numbers.sort(key=lambda shortage: -shortage.free / shortage.asked)
    last = numbers[min(wanted - fitting, len(numbers)) - 1] if numbers else None
    return _of_node(reason, wanted), last


def _class(reason: str) -> int:
    return 0 if reason == NOT_EMPTY or reason.startswith("lack ") else 1 + (reason == NOT_CHOSEN)


def _of_node(reason: str, wanted: int) -> str:
    if reason == NOT_EMPTY:
        return "lack a whole device" if wanted == 1 else f"lack {wanted} whole devices"
    if reason.startswith("lack "):
        return f"{reason} on {'one device' if wanted == 1 else f'{wanted} devices'}"
    return reason
