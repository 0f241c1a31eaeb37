"""Keeps nodes clear for pods that wait for whole ones: else those never empty."""

from __future__ import annotations

from attrs import define, field

#: Nodes that a waiting pod claims; it takes the first that empties. Chosen on two traces
#: (docs/decisions/packing.md).
NODES = 3


@define(eq=False)
class Claims:
    """Which pod claims which nodes, by UID and by the nodes' names; a node has one claim at most.

    Others are placed there only where no other node serves them.
    """

    _nodes: dict[str, tuple[str, ...]] = field(factory=dict)
    _pods: dict[str, str] = field(factory=dict)

    def __contains__(self, uid: str) -> bool:
        """Return whether a pod has chosen its nodes, perhaps none."""
        return uid in self._nodes

    def keeps_out(self, uid: str, node: str) -> bool:
        """Return whether a node is claimed by another pod."""
        return self._pods.get(node, uid) != uid

    def add(self, uid: str, nodes: tuple[str, ...]) -> None:
        """Claim nodes that nobody claims for a pod."""
        self._nodes[uid] = nodes
        self._pods.update(dict.fromkeys(nodes, uid))

    def drop(self, uid: str) -> None:
        """Give up what a pod claims, if it does."""
        for node in self._nodes.pop(uid, ()):
            del self._pods[node]
