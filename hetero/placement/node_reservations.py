"""Keeps nodes clear for pods that wait for whole ones, since busy nodes never empty otherwise."""

from __future__ import annotations

from attrs import define, field

#: Nodes that are reserved for one waiting pod, which takes the first that empties. Chosen on two
#: traces (docs/decisions/packing.md).
MOST_RESERVED_NODES = 3


@define(eq=False)
class NodeReservations:
    """Which nodes are reserved for which pod, by name and UID; a node for one pod at most.

    Other pods are placed there only where no other node serves them.
    """

    nodes: set[str] = field(factory=set)  # that are reserved for any pod
    _nodes_by_uid: dict[str, tuple[str, ...]] = field(factory=dict)

    def __contains__(self, uid: str) -> bool:
        """Return whether nodes were chosen for a pod, perhaps none."""
        return uid in self._nodes_by_uid

    def of(self, uid: str) -> tuple[str, ...]:
        """Return the nodes that are reserved for a pod."""
        return self._nodes_by_uid.get(uid, ())

    def add(self, uid: str, node_names: tuple[str, ...]) -> None:
        """Reserve nodes for a pod; none of them may be reserved already."""
        self._nodes_by_uid[uid] = node_names
        self.nodes.update(node_names)

    def drop(self, uid: str) -> tuple[str, ...]:
        """End a pod's reservation, if it has one, and return its nodes."""
        node_names = self._nodes_by_uid.pop(uid, ())
        self.nodes.difference_update(node_names)
        return node_names
