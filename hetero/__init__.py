"""hetero: many jobs share an accelerator safely, whatever the vendor.

Two interfaces. This one is for users: the node, a request, and what would be given. The other,
`hetero.plugin`, is for vendors. Names are imported when they are first asked for: a vendor's
plugin does not wait for the node.

Imports nothing until then; of ours it may import `hetero.model`, `hetero.placement` and
`hetero.node`. Start with `hetero.node.node`; docs/architecture.md is the map of the packages.
"""

from __future__ import annotations

__version__ = "0.1.0"

# Not typing's: nothing is imported before `hetero.start`, until which Ctrl-C prints a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from hetero.model import Allocation, Ask, Refusal, Request
    from hetero.model.errors import BadInput, DriverAbsent, HeteroError, NotFound, Refused
    from hetero.node.node import Node
    from hetero.placement import fit

__all__ = [
    "Allocation",
    "Ask",
    "BadInput",
    "DriverAbsent",
    "HeteroError",
    "Node",
    "NotFound",
    "Refusal",
    "Refused",
    "Request",
    "fit",
]

_HOMES = {
    **dict.fromkeys(("Allocation", "Ask", "Refusal", "Request"), "hetero.model"),
    **dict.fromkeys(
        ("BadInput", "DriverAbsent", "HeteroError", "NotFound", "Refused"), "hetero.model.errors"
    ),
    "Node": "hetero.node.node",
    "fit": "hetero.placement",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
