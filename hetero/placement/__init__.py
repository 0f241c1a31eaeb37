"""The packing core: pure, deterministic and exact, knowing no vendor.

`match` fits a request to one node's devices, `place_pod` a pod to a node. `cache` holds a cluster
and places pods on it by prices; the cluster's extender and `hetero simulate` call the same
functions of it. What places pods over a cluster is imported from its module: an admission on one
machine does not wait for it.

Imports `hetero.model`. Start with `match`, then `placement_policy`, then `cache`.
"""

from __future__ import annotations

from hetero.placement.match import Explanation, Verdict, explain, fit

__all__ = ["Explanation", "Verdict", "explain", "fit"]
