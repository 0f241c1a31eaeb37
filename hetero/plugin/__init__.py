"""The API of vendor plugins: a vendor imports these names, and nothing else of ours.

Read in this order: `vendor` (the declaration, with `container` and `resource_names`), `hookspecs`
(the eight hooks), `driver` and `discovery` (calls of a driver library), `slices` (hardware that is
cut), `service` (a process by which programs share a card). `hetero.registry` finds the vendors and
calls them; `hetero.testing` has the contract.

Imports `hetero.model`. Start with `vendor`.
"""

from hetero.model import (
    CORE,
    MEMORY,
    POLICY_SLOTS,
    SLOTS,
    Allocation,
    Device,
    DeviceAllocation,
    Edits,
    Enforcement,
    Fractional,
    Ladder,
    Link,
    Mount,
    MultiDevice,
    Policy,
    Selector,
    Step,
    Template,
    Templated,
    Usage,
    Whole,
)
from hetero.model.errors import DriverAbsent
from hetero.model.units import GiB, MiB
from hetero.plugin.binding import Binding
from hetero.plugin.container import ContainerEdits, ContainerRuntime
from hetero.plugin.discovery import (
    Lingering,
    counted,
    drm_of,
    each_card,
    first_node,
    numa_of,
    pci_address,
    pci_of,
    ways,
)
from hetero.plugin.driver import Driver, DriverError, Library, struct, text
from hetero.plugin.hookspecs import VendorModule, hookimpl
from hetero.plugin.resource_names import (
    DeviceChoice,
    IneffectiveWords,
    LimiterVariables,
    MeantDevices,
    Modes,
    Policies,
    QosClasses,
    ResourceNames,
)
from hetero.plugin.service import Service, ServiceDriver
from hetero.plugin.slices import free_mask, free_number, note, orphaned, shares, slice_name
from hetero.plugin.vendor import API, Model, Vendor, menus

__all__ = [
    "API",
    "CORE",
    "MEMORY",
    "POLICY_SLOTS",
    "SLOTS",
    "Allocation",
    "Binding",
    "ContainerEdits",
    "ContainerRuntime",
    "Device",
    "DeviceAllocation",
    "DeviceChoice",
    "Driver",
    "DriverAbsent",
    "DriverError",
    "Edits",
    "Enforcement",
    "Fractional",
    "GiB",
    "IneffectiveWords",
    "Ladder",
    "Library",
    "LimiterVariables",
    "Lingering",
    "Link",
    "MeantDevices",
    "MiB",
    "Model",
    "Modes",
    "Mount",
    "MultiDevice",
    "Policies",
    "Policy",
    "QosClasses",
    "ResourceNames",
    "Selector",
    "Service",
    "ServiceDriver",
    "Step",
    "Template",
    "Templated",
    "Usage",
    "Vendor",
    "VendorModule",
    "Whole",
    "counted",
    "drm_of",
    "each_card",
    "first_node",
    "free_mask",
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
