"""The values that travel between the stages: one frozen type per arrow of the data flow.

`discover` gives `Device`s, `fit` turns an `Inventory` and a `Request` into an `Allocation` or a
`Refusal`, `enforce` turns an `Allocation` into `Edits`, `observe` gives `Usage`. All memory is in
bytes; `None` means "not said" and is never a stand-in for zero. Pure: it imports nothing of ours.
Start with `device` and `granularity`; units are read and written in `units` alone.
"""

from hetero.model.allocation import FITS, Allocation, Grant, Inventory, Refusal
from hetero.model.device import Device, Link, Rung
from hetero.model.enforcement import Edits, Mount, Usage
from hetero.model.granularity import (
    CORE,
    MEMORY,
    SLOTS,
    Counters,
    Fractional,
    Grain,
    Granularity,
    Ladder,
    Multi,
    Step,
    Template,
    Templated,
    Whole,
)
from hetero.model.request import (
    ONE_POLICY,
    Ask,
    Choice,
    Company,
    Policy,
    Priority,
    Request,
    following,
)

__all__ = [
    "Allocation",
    "Ask",
    "CORE",
    "Choice",
    "Company",
    "Counters",
    "Device",
    "Edits",
    "FITS",
    "Fractional",
    "Grain",
    "Grant",
    "Granularity",
    "Inventory",
    "Ladder",
    "Link",
    "MEMORY",
    "Mount",
    "Multi",
    "ONE_POLICY",
    "Policy",
    "Priority",
    "Refusal",
    "Request",
    "Rung",
    "SLOTS",
    "Step",
    "Template",
    "Templated",
    "Usage",
    "Whole",
    "following",
]
