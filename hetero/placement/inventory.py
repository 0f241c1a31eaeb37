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
        name, conflict = node.name, None
        owners = {device.uuid: self._owners.get(device.uuid, name) for device in node.devices}
        duplicates = {uuid: owner for uuid, owner in owners.items() if owner != name}
        if duplicates:
            uuid, owner = next(iter(duplicates.items()))
            conflict = f"publish device {uuid}, which node {owner} has"
            devices = tuple(device for device in node.devices if device.uuid not in duplicates)
            node = evolve(node, devices=devices)
            fault = fault or (None if devices else conflict)
        if fault:
            self._faults[name], node = fault, evolve(node, devices=())
        else:
            self._faults.pop(name, None)
        if name in self._cordons:
            node = evolve(node, cordoned=True)
        before = self.nodes.get(name)
        if before != node:
            self._disown(name)
            self.nodes[name] = node
            self._owners.update((device.uuid, name) for device in node.devices)
        return NodeChange(before=before, after=node, conflict=conflict)

    def cordon(self, name: str, why: str | None) -> bool:
        """Have a node take no pod from its next update on, None: take pods; return if it is new."""
        if self._cordons.get(name) == why:
            return False
        if why is None:
            del self._cordons[name]
        else:
            self._cordons[name] = why
        return True

    def update_cordon(self, name: str) -> NodeChange | None:
        """Bring a node to what `cordon` said of it, None if it is not known."""
        node = self.nodes.get(name)
        if node is None:
            return None
        return self.update(evolve(node, cordoned=False), fault=self._faults.get(name))

    def is_cordoned(self, name: str) -> bool:
        """Return whether a node takes no pod for now."""
        return name in self._cordons

    def remove(self, name: str) -> bool:
        """Note that a node is gone; return whether it was known."""
        self._disown(name)
        self._faults.pop(name, None)
        self._cordons.pop(name, None)
        return self.nodes.pop(name, None) is not None

    def devices(self, name: str) -> tuple[Device, ...]:
        """Return a node's devices."""
        node = self.nodes.get(name)
        return node.devices if node else ()

    def unusable(self, name: str) -> str | None:
        """Return why no pod is to be placed on a node, None if pods may be."""
        return self._faults.get(name) or self._cordons.get(name)

    def _disown(self, name: str) -> None:
        for device in self.devices(name):
            del self._owners[device.uuid]
