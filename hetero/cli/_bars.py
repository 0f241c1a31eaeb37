"""Bars of several shades: what is granted and in use, granted, used by others, and free."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hetero.cli._render import Flow, Text
from hetero.model import CORE, MEMORY
from hetero.node.view.observe import DeviceView

#: The columns of a bar.
BAR_COLUMNS = 10
#: What the shades of a bar mean, told apart without colours, too.
USED, GRANTED, FOREIGN, FREE = "█", "▓", "▒", "·"
_STYLE_BY_SIGN = {USED: "green", GRANTED: "cyan", FOREIGN: "yellow", FREE: "dim"}
LEGEND = Flow(
    tuple(
        (Text(sign, _STYLE_BY_SIGN[sign]), Text(f" {meaning}", "dim"))
        for sign, meaning in (
            (USED, "granted and in use"),
            (GRANTED, "granted"),
            (FOREIGN, "in use without a grant"),
            (FREE, "free"),
        )
    )
)


def core_bar(row: DeviceView) -> tuple[Text, ...]:
    """Return the core of a device: how busy it is, of what is granted and beyond."""
    granted_part = row.held[CORE] / row.device.of_card(CORE)
    busy_part = row.usage.core or 0
    used_part = busy_part if row.open else min(busy_part, granted_part)
    free_part = row.free[CORE] / row.device.of_card(CORE)
    parts = (used_part, max(granted_part - used_part, 0), busy_part - used_part)
    return _bar(*parts, unobtainable=1 - granted_part - free_part)


def memory_bar(row: DeviceView) -> tuple[Text, ...]:
    """Return the memory of a device: what grants use of theirs, and what others hold."""
    card_bytes = row.device.capacity[MEMORY]
    foreign_bytes = row.foreign.memory if row.foreign else 0
    granted_bytes = row.held[MEMORY]
    used_bytes = min(max((row.usage.memory or 0) - foreign_bytes, 0), granted_bytes)
    unobtainable_bytes = card_bytes - granted_bytes - foreign_bytes - row.free[MEMORY]
    amounts = (used_bytes, granted_bytes - used_bytes, foreign_bytes, unobtainable_bytes)
    *parts, unobtainable = (amount / card_bytes if card_bytes else 0 for amount in amounts)
    return _bar(*parts, unobtainable=unobtainable)


def part_bar(granted_part: float) -> tuple[Text, ...]:
    """Return a bar of what is granted, or cannot be given, of a sum."""
    return _bar(0, granted_part, 0)


def _bar(*parts: float, unobtainable: float = 0.0) -> tuple[Text, ...]:
    """Return a bar whose first shades have these parts of its length.

    The rest is free but for its end, which is blank where nobody can have so much of it.
    """
    ends = [round(min(end, 1.0) * BAR_COLUMNS) for end in accumulate(parts)]
    free_end = max(round((1 - max(unobtainable, 0.0)) * BAR_COLUMNS), ends[-1])
    return _shaded([*ends, free_end, BAR_COLUMNS])


def _shaded(ends: Sequence[int]) -> tuple[Text, ...]:
    lengths = [end - begin for begin, end in zip((0, *ends), ends, strict=False)]
    return tuple(
        Text(sign * length, _STYLE_BY_SIGN.get(sign, ""))
        for sign, length in zip((*_STYLE_BY_SIGN, " "), lengths, strict=True)
        if length
    )


#: The heights of a line of samples, and its columns.
_HEIGHTS, _PAST = "▁▂▃▄▅▆▇█", 12


def spark(values: Sequence[float]) -> Text:
    """Return the last values, parts of 1, as a line of samples."""
    heights = (min(max(value, 0.0), 1.0) * (len(_HEIGHTS) - 1) for value in values[-_PAST:])
    return Text("".join(_HEIGHTS[round(height)] for height in heights).rjust(_PAST), "green")
