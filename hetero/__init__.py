"""hetero: many jobs share an accelerator safely, whatever the vendor.

This is the front door: the names a vendor plugin may import, and nothing else.
"""

from hetero.driver import (
    Driver,
    DriverError,
    Library,
    counted,
    each_card,
    linked,
    mark,
    numa_of,
    pci_address,
    struct,
    text,
)
from hetero.errors import DriverAbsent
from hetero.hookspecs import hookimpl
from hetero.model import (
    CORE,
    MEMORY,
    SLOTS,
    Allocation,
    Device,
    Edits,
    Fractional,
    Grant,
    Ladder,
    Link,
    Mount,
    Multi,
    Policy,
    Rung,
    Step,
    Template,
    Templated,
    Usage,
    Whole,
)
from hetero.units import GiB, MiB
from hetero.vendor import Model, Vendor

__all__ = [
    "CORE",
    "MEMORY",
    "SLOTS",
    "Allocation",
    "Device",
    "Driver",
    "DriverAbsent",
    "DriverError",
    "Edits",
    "Fractional",
    "GiB",
    "Grant",
    "Ladder",
    "Library",
    "Link",
    "MiB",
    "Model",
    "Mount",
    "Multi",
    "Policy",
    "Rung",
    "Step",
    "Template",
    "Templated",
    "Usage",
    "Vendor",
    "Whole",
    "counted",
    "each_card",
    "hookimpl",
    "linked",
    "mark",
    "numa_of",
    "pci_address",
    "struct",
    "text",
]
