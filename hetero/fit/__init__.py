"""The packing core: pure, deterministic and exact, knowing no vendor."""

from hetero.fit.cluster import Container, Hold, Node, Placement, Pod, Quota
from hetero.fit.index import Index
from hetero.fit.match import Verdict, explain, fit

__all__ = [
    "Container",
    "Hold",
    "Index",
    "Node",
    "Placement",
    "Pod",
    "Quota",
    "Verdict",
    "explain",
    "fit",
]
