"""The seven questions a vendor answers; this page is the manual for writing one.

A vendor is a module with functions marked `@plugin.hookimpl`, published under the entry point
group `hetero.plugin.vendor`. An implementation may take fewer arguments than the specification has.
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
_Result = Vendor | _Devices | Edits | Usage | Mapping[str, str] | ServiceDriver | None
#: A function that gives what some hook gives. It may take fewer arguments than its specification.
Hook = TypeVar("Hook", bound=Callable[..., _Result])

hookspec = pluggy.HookspecMarker("hetero")
_hookimpl = pluggy.HookimplMarker("hetero")


def hookimpl(hook: Hook) -> Hook:
    """Mark a function as the answer to the question of its name, for pluggy and for mypy."""
    marked: Hook = _hookimpl(hook)
    return marked


class VendorModule(Protocol):
    """A vendor's module, or an object with its hooks, as mypy sees it: what each of them has."""

    def hetero_vendor(self) -> Vendor:
        """Return the declaration."""

    def hetero_discover(self) -> Iterable[Device | DriverError] | None:
        """Return the devices on this node."""


@hookspec(firstresult=True)
def hetero_vendor() -> Vendor | None:
    """Return the declaration: who you are and how your models divide. Needs no driver."""


@hookspec(firstresult=True)
def hetero_discover() -> Iterable[Device | DriverError] | None:
    """Return the devices on this node, each built with `Vendor.device`.

    Raise `DriverAbsent` when the driver is not installed. None found is fine. In place of a card
    that cannot be read, give the `DriverError` that says why (`plugin.each_card` does): it is
    shown, and its neighbours work. Any other exception means the driver is broken and is shown as
    this vendor's row.
    """


@hookspec(firstresult=True)
def hetero_enforce(
    allocation: Allocation, devices: Sequence[Device], directory: Path, container: bool
) -> Edits | None:
    """Return what confines a container or a process to its grants of this vendor's `devices`.

    Allocation and devices hold only what concerns this vendor, in the same order. What is returned
    comes on top of what the declaration implies, and a variable in place of an implied one: the
    `visible` and `runtime` variables set to the devices, and in a container the vendor's `cdi`
    devices or, where there are none, its `device_nodes` and `files`. None means nothing more.

    A vendor whose hardware is cut into slices makes them here and names them in `Edits.parts`; it
    may keep notes about them in `directory` (`plugin.note`). A grant that names its `part` already
    has it: bring that to the grant's size, or make it again where it is gone, as after a reboot.
    `container` says that a container runtime, and not this node, starts the program: some make the
    slice themselves.
    """


@hookspec(firstresult=True)
def hetero_reconcile(device: Device, parts: AbstractSet[str], directory: Path) -> None:
    """Destroy every slice of ours on `device` but those in `parts`, which standing grants hold.

    Asked whenever a grant of its vendor has ended and before every admission to its devices, while
    no other is under way, so that a slice whose maker was killed half-way is gone at the next look.
    Ours are those that `hetero_enforce` marked or noted; a slice that somebody else made, or that a
    process still uses, is left alone. Doing it twice is the same as doing it once.
    """


@hookspec(firstresult=True)
def hetero_observe(device: Device) -> Usage | None:
    """Return how busy `device` is now; None, or a None field, where the driver will not say."""


@hookspec(firstresult=True)
def hetero_watch() -> dict[str, str] | None:
    """Wait until the health of devices changes; return by UUID why nothing may be given of which.

    For drivers that tell of events which `hetero_discover` does not see afterwards: a device that
    is in the answer is unhealthy for that reason, whatever was discovered, until an answer without
    it. Programs that go on ask this again and again, in a process of its own, and wait as long as
    it takes. That process may end at any time, which is no failure: another one is started later.
    """


@hookspec(firstresult=True)
def hetero_serve(device: Device, directory: Path) -> ServiceDriver | None:
    """Return what drives the service by which programs share `device`.

    Asked where the node's settings have the device shared so, each time before one thing is asked
    of what is returned. The service outlives the process that started it. It keeps its files in
    `directory`, by which it is found again.
    """


#: Every question above, in the order a vendor is asked them.
HOOKS = (
    "hetero_vendor",
    "hetero_discover",
    "hetero_enforce",
    "hetero_reconcile",
    "hetero_observe",
    "hetero_watch",
    "hetero_serve",
)
