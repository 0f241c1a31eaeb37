"""hetero: many jobs share an accelerator safely, whatever the vendor.

This is the front door: the names a vendor plugin may import, and nothing else.
"""

from hetero.errors import DriverAbsent
from hetero.hookspecs import hookimpl
from hetero.model import (
    CORE,
    MEMORY,
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
from hetero.units import GiB, MiB
from hetero.vendor import Model, Vendor, Words

__all__ = [
    "CORE",
    "MEMORY",
    "SLOTS",
    "Allocation",
    "Choice",
    "Device",
    "DriverAbsent",
    "Edits",
    "Fractional",
    "GiB",
    "Grant",
    "Ladder",
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
    "hookimpl",
]
