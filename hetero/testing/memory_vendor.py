"""An in-memory vendor, and `rack`, which makes its devices: tests need no driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Device,
    Enforcement,
    Fractional,
    Granularity,
    Usage,
    Whole,
)
from hetero.plugin.hookspecs import hookimpl
from hetero.plugin.vendor import Model, Vendor


def rack(
    *sizes_bytes: int,
    vendor: str = "memory",
    model: str = "M1",
    granularity: Granularity | None = None,
    core: int = 100,
    slots: int = 10,
    **facts: Any,
) -> tuple[Device, ...]:
    """Return one device per size in `sizes_bytes`: `rack(80 * GiB, 80 * GiB)`.

    UUIDs are `<vendor>-0`, `<vendor>-1`, …; `facts` are further `Device` fields for all of them.
    """
    return tuple(
        Device(
            uuid=f"{vendor}-{index}",
            vendor=vendor,
            model=model,
            index=index,
            capacity={CORE: core, MEMORY: size_bytes, SLOTS: slots},
            granularity=granularity or Fractional(),
            **{"enforcement": Enforcement.NONE, "health": "ok", **facts},
        )
        for index, size_bytes in enumerate(sizes_bytes)
    )


class MemoryVendor:
    """A vendor with the devices it was constructed with: for tests without a driver."""

    def __init__(
        self, devices: Sequence[Device], *, name: str = "memory", limiter: str | None = None
    ) -> None:
        self.devices = list(devices)
        self.usage: dict[str, Usage] = {}
        self._vendor = Vendor(
            api=2,
            name=name,
            title=name.title(),
            models=(
                Model(match="whole*", granularity=Whole()),
                Model(match="*", granularity=Fractional(), slots=10),
            ),
            visible=(f"{name.upper()}_VISIBLE_DEVICES",),
            limiter=limiter,
        )

    @hookimpl
    def hetero_vendor(self) -> Vendor:
        """Return a declaration that covers every model."""
        return self._vendor

    @hookimpl
    def hetero_discover(self) -> list[Device]:
        """Return the devices."""
        return self.devices

    @hookimpl
    def hetero_observe(self, device: Device) -> Usage | None:
        """Return the usage that a test set for the device, None without any."""
        return self.usage.get(device.uuid)
