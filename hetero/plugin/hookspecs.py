"""The eight hooks of a vendor; this page is the manual for writing one.

A vendor is a module with functions marked `@plugin.hookimpl`, published under the entry point group
`hetero.plugin.vendor`. An implementation may take fewer arguments than the specification has.
Importing the module must not need a driver, and `hetero_vendor` must be pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Protocol, TypeVar

import pluggy

from hetero.model import Allocation, Device, Edits, Usage
from hetero.plugin.driver import DriverError
from hetero.plugin.service import ServiceDriver
from hetero.plugin.vendor import Vendor

#: The entry point group vendors are found under.
GROUP = "hetero.plugin.vendor"

_Devices = Iterable[Device | DriverError]
_Result = Vendor | _Devices | Edits | Usage | Mapping[str, str | None] | ServiceDriver | int | None
#: A function that gives what some hook gives. It may take fewer arguments than its specification.
Hook = TypeVar("Hook", bound=Callable[..., _Result])

hookspec = pluggy.HookspecMarker("hetero")
_hookimpl = pluggy.HookimplMarker("hetero")


def hookimpl(hook: Hook) -> Hook:
    """Mark a function as the implementation of the hook of its name, for pluggy and for mypy."""
    marked: Hook = _hookimpl(hook)
    return marked


class VendorModule(Protocol):
    """The type of a vendor's module, or of an object with its hooks: the hooks that each has."""

    def hetero_vendor(self) -> Vendor:
        """Return the declaration."""

    def hetero_discover(self) -> Iterable[Device | DriverError] | None:
        """Return the devices on this node."""


@hookspec(firstresult=True)
def hetero_vendor() -> Vendor | None:
    """Return the declaration: the vendor's name and how its models divide. Needs no driver."""


@hookspec(firstresult=True)
def hetero_discover() -> Iterable[Device | DriverError] | None:
    """Return the devices on this node, each built with `Vendor.device`. There may be none.

    Raise `DriverAbsent` where the driver is not installed. A card that cannot be read is replaced
    by a `DriverError` with the reason (`plugin.each_card` does that): it is shown, and its
    neighbours work. Any other exception means that the driver is broken: it becomes this vendor's
    row.
    """


@hookspec(firstresult=True)
def hetero_enforce(
    allocation: Allocation, devices: Sequence[Device], directory: Path, container: bool
) -> Edits | None:
    """Return what confines a container or a process to its grants of this vendor's `devices`.

    Allocation and devices are this vendor's alone, in the same order. The result is added to the
    edits that the declaration implies, and its variables replace implied ones. Implied are the
    `visible` and `runtime` variables, set to the devices. In a container these are also the
    vendor's `cdi` devices or, without any, its `device_nodes` and `files`. None adds nothing.

    A vendor whose hardware is cut into slices makes them here, and names them in `Edits.parts`. It
    may keep notes about them in `directory` (`plugin.note`). A grant that names its `part` has a
    slice already: resize that to the grant, or make it again where it is gone, as after a reboot.
    With `container` a container runtime starts the program, not this node: some runtimes make the
    slice.
    """


@hookspec(firstresult=True)
def hetero_reconcile(device: Device, parts: AbstractSet[str], directory: Path) -> None:
    """Destroy every slice of ours on `device` but those in `parts`, which standing grants hold.

    Called when a grant of the vendor has ended, and before every admission to its devices, under
    the admission lock. So a slice whose maker was killed half-way is gone after the next call. Ours
    are slices that `hetero_enforce` marked or noted. Leave a slice alone that somebody else made,
    or that a process still uses. The call is idempotent.
    """


@hookspec(firstresult=True)
def hetero_observe(device: Device) -> Usage | None:
    """Return how busy `device` is now; None, or a None field, where the driver will not say."""


@hookspec(firstresult=True)
def hetero_measure(device: Device) -> int | None:
    """Return the bytes of `device` that the driver takes for a context of a program.

    Make one in this process, which ends afterwards, and ask the driver what it holds for it. None
    where the driver will not say; raise where no context is to be had now, and the node asks again
    later. It asks once for each model and version of the driver, of devices that a limiter shares.
    """


@hookspec(firstresult=True)
def hetero_watch(faults: Mapping[str, str]) -> dict[str, str | None] | None:
    """Wait until the health of devices changes; return by UUID why nothing may be given of which.

    For drivers that tell of events which `hetero_discover` does not see afterwards. The node notes
    each reason, and the device is unhealthy for it until an answer has None for its UUID, the
    driver (`Vendor.module`) is loaded anew, or an administrator clears it. `faults` are the reasons
    that are noted now. Programs that go on ask this again and again, in a process of its own, and
    wait as long as it takes. That process may end at any time, which is no failure: another one is
    started later.
    """


@hookspec(firstresult=True)
def hetero_serve(device: Device, directory: Path) -> ServiceDriver | None:
    """Return the driver of the service by which programs share `device`.

    Called where the node's settings share the device so, before each single request to the result.
    The service outlives the process that started it. Its files are in `directory`, where the next
    process finds it.
    """


#: Every question above, in the order a vendor is asked them.
HOOKS = (
    "hetero_vendor",
    "hetero_discover",
    "hetero_enforce",
    "hetero_reconcile",
    "hetero_observe",
    "hetero_measure",
    "hetero_watch",
    "hetero_serve",
)
