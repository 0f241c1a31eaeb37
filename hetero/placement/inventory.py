"""Which nodes a cluster has, which devices each has, and why a node cannot be used."""

from __future__ import annotations

from attrs import define, evolve, field, frozen

from hetero.model import Device
from hetero.placement.cluster import PlacedNode


@frozen(kw_only=True)
class NodeChange:
    """A node before and after an update; `conflict` names a device that another node has."""

    before: PlacedNode | None
    after: PlacedNode
    conflict: str | None

    def __bool__(self) -> bool:
        """Return whether the update changed anything."""
        return self.before != self.after


@define(eq=False)
class ClusterInventory:
    """The nodes by name. A device belongs to the first node that published it."""

    nodes: dict[str, PlacedNode] = field(factory=dict)
    _owners: dict[str, str] = field(factory=dict)  # node names, by device UUID
    _faults: dict[str, str] = field(factory=dict)  # by node: why its devices cannot be used
    _cordons: dict[str, str] = field(factory=dict)  # by node: why it takes no pod for now

    def update(self, node: PlacedNode, *, fault: str | None = None) -> NodeChange:
        """Note what a node has, or the fault for which none of its devices can be used.

        Devices that another node has are left out; the node's other devices are used.
        """
        node_name, conflict = node.name, None
        owner_by_uuid = {
            device.uuid: self._owners.get(device.uuid, node_name) for device in node.devices
        }
        duplicates = {uuid: owner for uuid, owner in owner_by_uuid.items() if owner != node_name}
        if duplicates:
            uuid, owner = next(iter(duplicates.items()))
            conflict = f"publish device {uuid}, which node {owner} has"
            devices = tuple(device for device in node.devices if device.uuid not in duplicates)
            node = evolve(node, devices=devices)
            fault = fault or (None if devices else conflict)
        if fault:
            self._faults[node_name], node = fault, evolve(node, devices=())
        else:
            self._faults.pop(node_name, None)
        if node_name in self._cordons:
            node = evolve(node, cordoned=True)
        node_before = self.nodes.get(node_name)
        if node_before != node:
            self._disown(node_name)
            self.nodes[node_name] = node
            self._owners.update((device.uuid, node_name) for device in node.devices)
        return NodeChange(before=node_before, after=node, conflict=conflict)

    def cordon(self, node_name: str, reason: str | None) -> bool:
        """Close a node from its next update on, or open it; return whether that is new."""
        if self._cordons.get(node_name) == reason:
            return False
        if reason is None:
            del self._cordons[node_name]
        else:
            self._cordons[node_name] = reason
        return True

    def update_cordon(self, node_name: str) -> NodeChange | None:
        """Update a node to what `cordon` noted, None if the node is not known."""
        node = self.nodes.get(node_name)
        if node is None:
            return None
        return self.update(evolve(node, cordoned=False), fault=self._faults.get(node_name))

    def is_cordoned(self, node_name: str) -> bool:
        """Return whether a node takes no pod for now."""
        return node_name in self._cordons

    def remove(self, node_name: str) -> bool:
        """Note that a node is gone; return whether it was known."""
        self._disown(node_name)
        self._faults.pop(node_name, None)
        self._cordons.pop(node_name, None)
        return self.nodes.pop(node_name, None) is not None

    def devices(self, node_name: str) -> tuple[Device, ...]:
        """Return a node's devices."""
        node = self.nodes.get(node_name)
        return node.devices if node else ()

    def unusable(self, node_name: str) -> str | None:
        """Return why no pod is to be placed on a node, None if pods may be."""
        return self._faults.get(node_name) or self._cordons.get(node_name)

    def _disown(self, node_name: str) -> None:
        for device in self.devices(node_name):
            del self._owners[device.uuid]
