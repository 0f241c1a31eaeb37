"""The four questions a vendor answers; this page is the manual for writing one.

A vendor is a module with functions marked `@hetero.hookimpl`, published under the entry point
group `hetero.vendor`. An implementation may take fewer arguments than the specification has.
Importing the module must not need a driver, and `hetero_vendor` must be pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pluggy

from hetero.model import Allocation, Device, Edits, Usage
from hetero.vendor import Vendor

#: The entry point group vendors are found under.
GROUP = "hetero.vendor"

hookspec = pluggy.HookspecMarker("hetero")
hookimpl = pluggy.HookimplMarker("hetero")


@hookspec(firstresult=True)
def hetero_vendor() -> Vendor | None:
    """Return the declaration: who you are and how your models divide. Needs no driver."""


@hookspec(firstresult=True)
def hetero_discover() -> Iterable[Device] | None:
    """Return the devices on this node, each built with `Vendor.device`.

    Raise `DriverAbsent` when the driver is not installed. None found is fine; any other exception
    means the driver is broken and is shown as this vendor's row.
    """


@hookspec(firstresult=True)
def hetero_enforce(allocation: Allocation, devices: Sequence[Device]) -> Edits | None:
    """Return how a container is confined to its grants of this vendor's `devices`.

    Both arguments hold only what concerns this vendor, in the same order. None means what the
    declaration implies: the `visible` variables set to the devices, and in a container the vendor's
    `cdi` devices or, where there are none, its `device_nodes` and `files`.
    """


@hookspec(firstresult=True)
def hetero_observe(device: Device) -> Usage | None:
    """Return how busy `device` is now; None, or a None field, where the driver will not say."""
