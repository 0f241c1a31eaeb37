"""How busy a device is now."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.model.frozen import frozen


@frozen(kw_only=True)
class Usage:
    """How busy a device is now: bytes in use, and busy share of its time from 0 to 1.

    `processes` are the bytes the driver itself counts for each process (by PID) that computes.
    `busy` is the part of its time, 0 to 1, that the driver's last sample has for each process; one
    that it has nothing of is missing. None: this driver does not say.
    `temperature` is in degrees Celsius, `power` in watts.
    """

    memory: int | None = None
    core: float | None = None
    processes: Mapping[int, int] | None = None
    busy: Mapping[int, float] | None = None
    temperature: int | None = None
    power: float | None = None
