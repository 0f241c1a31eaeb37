"""The usage of a device at one moment."""

from __future__ import annotations

from collections.abc import Mapping

from hetero.model.frozen import frozen


@frozen(kw_only=True)
class Usage:
    """The usage of a device: bytes in use, and the busy part of its time from 0 to 1.

    `processes` are the bytes that the driver counts for each computing process, by PID. `busy` is
    the part of time, 0 to 1, in the driver's last sample of each process; a process without one is
    missing. None: this driver does not tell. `temperature` is in degrees Celsius; `power` and
    `power_limit`, above which the card slows itself down, are in watts.
    """

    memory: int | None = None
    core: float | None = None
    processes: Mapping[int, int] | None = None
    busy: Mapping[int, float] | None = None
    temperature: int | None = None
    power: float | None = None
    power_limit: float | None = None
