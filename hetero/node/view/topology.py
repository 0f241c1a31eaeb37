"""How the cards of a node are connected with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hetero.model.frozen import frozen
from hetero.node.view.observe import DeviceView

#: The largest weight of a link over PCIe (`hetero.plugin.discovery`): others are the vendor's own.
PCIE_WEIGHT = 6
#: Where no driver tells of a link, the NUMA nodes of two cards say whether they are on one.
SAME_NUMA, OTHER_NUMA = "node", "sys"


@frozen(kw_only=True)
class Connection:
    """A link from a card to another, by its number: `kind` as the driver calls it.

    `weight`, larger is faster, is None where no driver tells of a link and only the NUMA nodes are
    known; `kind` is None where neither is.
    """

    number: int
    kind: str | None
    weight: int | None = None

    @property
    def own(self) -> bool:
        """Whether it is a link of the vendor's own."""
        return self.weight is not None and self.weight > PCIE_WEIGHT


def connections(row: DeviceView, rows: Sequence[DeviceView]) -> tuple[Connection, ...]:
    """Return how a card is connected with each of the others."""
    links = {link.peer: link for link in row.device.links}
    return tuple(
        Connection(
            number=peer.device_number,
            kind=links[peer.device.uuid].kind,
            weight=links[peer.device.uuid].weight,
        )
        if peer.device.uuid in links
        else Connection(number=peer.device_number, kind=_by_numa(row, peer))
        for peer in rows
        if peer is not row
    )


def _by_numa(row: DeviceView, peer: DeviceView) -> str | None:
    numa_nodes = row.device.numa, peer.device.numa
    if None in numa_nodes:
        return None
    return SAME_NUMA if numa_nodes[0] == numa_nodes[1] else OTHER_NUMA


def meanings(kinds: Sequence[str]) -> Mapping[str, str]:
    """Return what these kinds of links mean, of those that vendors share."""
    return {kind: _MEANINGS[kind] for kind in _MEANINGS if kind in kinds}


_MEANINGS = {
    "SYS": "over the link between NUMA nodes",
    "NODE": "over PCIe and the links between the host bridges of a NUMA node",
    "PHB": "over a PCIe host bridge, mostly the processor",
    "PXB": "over several PCIe bridges",
    "PIX": "over one PCIe bridge",
    "board": "on one board",
    SAME_NUMA: "no link is known: on one NUMA node",
    OTHER_NUMA: "no link is known: on other NUMA nodes",
}
