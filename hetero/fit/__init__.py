"""The packing core: pure, deterministic and exact, knowing no vendor."""

from hetero.fit.cluster import Container, Hold, Node, Placement, Pod, Quota
from hetero.fit.index import Index
from hetero.fit.match import Explanation, Verdict, explain, fit
from hetero.fit.plan import (
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
    "Explanation",
    "Hold",
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
