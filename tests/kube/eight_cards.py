"""Nodes of eight alike cards, for the benchmarks of the scheduler."""

from hetero.model import Device, Enforcement
from hetero.model.units import GiB
from hetero.plugin.vendor import Vendor


def node_name(number: int) -> str:
    """Return a name of 24 characters."""
    return f"node-{number:05}.cluster.local"


def eight_cards(vendor: Vendor, node: int) -> tuple[Device, ...]:
    """Return the cards of the node of this number."""
    return tuple(
        vendor.device(
            uuid=f"GPU-{node}-{index}",
            model="NVIDIA H200",
            index=index,
            memory=141 * GiB,
            enforcement=Enforcement.PRELOAD,
        )
        for index in range(8)
    )
