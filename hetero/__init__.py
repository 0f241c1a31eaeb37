"""hetero: many jobs share an accelerator safely, whatever the vendor.

This is the front door: the names a vendor plugin may import, and nothing else.
"""

from hetero.binding import Binding
from hetero.cards import (
    counted,
    drm_of,
    each_card,
    first_node,
    numa_of,
    pci_address,
    pci_of,
    ways,
)
from hetero.driver import Driver, DriverError, Library, struct, text
from hetero.errors import DriverAbsent
from hetero.hookspecs import hookimpl
from hetero.model import (
    CORE,
    MEMORY,
    ONE_POLICY,
    SLOTS,
    Allocation,
    Choice,
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
from hetero.slicing import free_number, note, orphaned, shares, slice_name
from hetero.units import GiB, MiB
from hetero.vendor import Model, Vendor, menus
from hetero.words import Words

__all__ = [
    "CORE",
    "MEMORY",
    "ONE_POLICY",
    "SLOTS",
    "Allocation",
    "Binding",
    "Choice",
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
    "Words",
    "counted",
    "drm_of",
    "each_card",
    "first_node",
    "free_number",
    "hookimpl",
    "menus",
    "note",
    "numa_of",
    "orphaned",
    "pci_address",
    "pci_of",
    "shares",
    "slice_name",
    "struct",
    "text",
    "ways",
]
