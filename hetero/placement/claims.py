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

    nodes: set[str] = field(factory=set)  # that anybody claims
    _of: dict[str, tuple[str, ...]] = field(factory=dict)

    def __contains__(self, uid: str) -> bool:
        """Return whether a pod has chosen its nodes, perhaps none."""
        return uid in self._of

    def of(self, uid: str) -> tuple[str, ...]:
        """Return the nodes that a pod claims."""
        return self._of.get(uid, ())

    def add(self, uid: str, nodes: tuple[str, ...]) -> None:
        """Claim nodes that nobody claims for a pod."""
        self._of[uid] = nodes
        self.nodes.update(nodes)

    def drop(self, uid: str) -> tuple[str, ...]:
        """Give up what a pod claims, if it does, and return that."""
        nodes = self._of.pop(uid, ())
        self.nodes.difference_update(nodes)
        return nodes
