"""Says in a few words why a node cannot serve, from the verdicts of its devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hetero.model import DEVICES, FITS, NO_DEVICE, NOT_CHOSEN, Shortage
from hetero.placement.offer import BY_PARTS, NOT_EMPTY

_TOO_FEW = "have too few devices"
#: A device's verdict, with the numbers of its shortage.
DeviceVerdict = tuple[str, Shortage | None]


def node_reason(device_verdicts: Iterable[DeviceVerdict], *, wanted_devices: int) -> DeviceVerdict:
    """Return the verdict of a node by those of its devices, of which `wanted_devices` must serve.

    A shortage comes before what the node never has, and what most devices say before the rest. The
    numbers are those of the last device that is needed.
    """
    verdicts = list(device_verdicts)
    count_by_reason = Counter(reason for reason, _ in verdicts)
    fitting_count = count_by_reason.pop(FITS, 0)
    if fitting_count >= wanted_devices:
        return FITS, None
    if not verdicts:
        return NO_DEVICE, None
    # Devices that do not exist are not waited for, nor those that are none to this request.
    chosen_count = len(verdicts) - count_by_reason[NOT_CHOSEN] - count_by_reason[BY_PARTS]
    has_shortage = any(_class(reason) == 0 for reason in count_by_reason)
    if (fitting_count or has_shortage) and chosen_count < wanted_devices:
        return _TOO_FEW, Shortage(
            counter=DEVICES, asked=wanted_devices, free=chosen_count, of=chosen_count
        )
    reason = min(
        count_by_reason,
        key=lambda verdict: (
            _class(verdict),
            -count_by_reason[verdict],
            verdict != "lack memory",
            verdict,
        ),
    )
    shortages = [
        shortage for verdict, shortage in verdicts if verdict == reason and shortage is not None
    ]
    shortages.sort(key=lambda shortage: -shortage.free / shortage.asked)
    deciding = (
        shortages[min(wanted_devices - fitting_count, len(shortages)) - 1] if shortages else None
    )
    return _of_node(reason, wanted_devices), deciding


def _class(reason: str) -> int:
    return 0 if reason == NOT_EMPTY or reason.startswith("lack ") else 1 + (reason == NOT_CHOSEN)


def _of_node(reason: str, wanted_devices: int) -> str:
    if reason == NOT_EMPTY:
        return (
            "lack a whole device" if wanted_devices == 1 else f"lack {wanted_devices} whole devices"
        )
    if reason.startswith("lack "):
        return f"{reason} on {'one device' if wanted_devices == 1 else f'{wanted_devices} devices'}"
    return reason
