"""The packing core: pure, deterministic and exact, knowing no vendor.

`match` fits a request to one node's devices, `place_pod` a pod to a node; `price` says what a
placement costs over a cluster. What places pods over a cluster is imported when it is first asked
for: an admission on one machine does not wait for it.

Imports `hetero.model`. Start with `match`, then `placement_policy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hetero.placement.match import Explanation, Verdict, explain, fit

if TYPE_CHECKING:
    from hetero.placement.cluster import Container, DeviceUsage, Node, Placement, Pod, Quota
    from hetero.placement.index import Index
    from hetero.placement.plan import (
        Defragmentation,
        Move,
        Preemption,
        defragment,
        gang,
        preempt,
        what_if,
    )

__all__ = [
    "Container",
    "Defragmentation",
    "DeviceUsage",
    "Explanation",
    "Index",
    "Move",
    "Node",
    "Placement",
    "Pod",
    "Preemption",
    "Quota",
    "Verdict",
    "defragment",
    "explain",
    "fit",
    "gang",
    "preempt",
    "what_if",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from hetero.placement import cluster, index, plan

        for module in (cluster, index, plan):
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
