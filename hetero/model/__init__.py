"""The values that pass between the stages: one frozen type for each arrow of the data flow.

`discover` gives `Device`s. `fit` turns an `Inventory` and a `Request` into an `Allocation` or a
`Refusal`. `enforce` turns an `Allocation` into `Edits`, and `observe` gives `Usage`. All memory is
in bytes. `None` means "not given", and never stands for zero. Pure.

Imports nothing else of ours. Start with `device` and `granularity`, then `rounding`.
"""

from hetero.model.allocation import (
    DEVICES,
    FITS,
    NO_DEVICE,
    NOT_CHOSEN,
    Allocation,
    DeviceAllocation,
    Refusal,
    Shortage,
)
from hetero.model.device import Device, Enforcement, Link
from hetero.model.edits import Edits, Mount
from hetero.model.granularity import (
    CORE,
    MEMORY,
    SLOTS,
    Counters,
    Fractional,
    Grain,
    Granularity,
    Ladder,
    MultiDevice,
    Step,
    Template,
    Templated,
    Whole,
)
from hetero.model.occupancy import (
    ContainerKind,
    Inventory,
    Occupancy,
    left_in_parts,
    left_of,
    obtainable,
    obtainable_of,
    occupancies,
    peak,
)
from hetero.model.request import (
    POLICY_SLOTS,
    Ask,
    CoTenancy,
    Gang,
    OnBypass,
    OnExcess,
    Policy,
    Priority,
    Request,
    Selector,
    Truth,
    following,
)
from hetero.model.usage import Usage

__all__ = [
    "CORE",
    "DEVICES",
    "FITS",
    "MEMORY",
    "NOT_CHOSEN",
    "NO_DEVICE",
    "POLICY_SLOTS",
    "SLOTS",
    "Allocation",
    "Ask",
    "CoTenancy",
    "ContainerKind",
    "Counters",
    "Device",
    "DeviceAllocation",
    "Edits",
    "Enforcement",
    "Fractional",
    "Gang",
    "Grain",
    "Granularity",
    "Inventory",
    "Ladder",
    "Link",
    "Mount",
    "MultiDevice",
    "Occupancy",
    "OnBypass",
    "OnExcess",
    "Policy",
    "Priority",
    "Refusal",
    "Request",
    "Selector",
    "Shortage",
    "Step",
    "Template",
    "Templated",
    "Truth",
    "Usage",
    "Whole",
    "following",
    "left_in_parts",
    "left_of",
    "obtainable",
    "obtainable_of",
    "occupancies",
    "peak",
]
