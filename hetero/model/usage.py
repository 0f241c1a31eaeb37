"""How busy a device is now."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.model.frozen import frozen


@frozen(kw_only=True)
class Usage:
    """How busy a device is now: bytes in use, and busy share of its time from 0 to 1.

    `processes` are the bytes the driver itself counts for each process (by PID) that computes.
    `temperature` is in degrees Celsius, `power` in watts.
    """

    memory: int | None = None
    core: float | None = None
    processes: Mapping[int, int] | None = None
    temperature: int | None = None
    power: float | None = None
