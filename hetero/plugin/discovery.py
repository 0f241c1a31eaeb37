"""Reads the cards of a machine one by one, and the facts that each discovery needs.

These are the links between cards, their NUMA nodes, and PCI addresses in one spelling.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from attrs import define, evolve, field

from hetero.model import Device, Link
from hetero.plugin.driver import DriverError

Place = TypeVar("Place")
LinkKindOf = Callable[[Device, Device], str | None]

_MOST_CARDS = 64
#: Whether `each_card` reads links: of 64 cards there are 4,032, and few requests need any.
_reads_links = ContextVar("reads_links", default=True)


@define(eq=False, repr=False)
class Lingering:
    """A state of cards that comes and goes: it holds for `seconds` after it was last seen.

    Only this process remembers it. A process that looks once has the state of that moment.
    """

    seconds: float
    _seen: dict[str, float] = field(factory=dict, init=False)  # when, by card

    def holds(self, card: str, *, seen: bool) -> bool:
        """Record whether a card is in this state now (`seen`). Return whether the state holds."""
        now_s = monotonic()
        if seen:
            self._seen[card] = now_s
        return seen or (card in self._seen and now_s - self._seen[card] < self.seconds)


def counted(cards: int) -> range:
    """Return the indices of `cards` cards. Raises `DriverError` for more than a machine holds."""
    if not 0 <= cards <= _MOST_CARDS:
        raise DriverError(f"the driver counts {cards} cards")
    return range(cards)


@contextmanager
def reading_links(*, wanted: bool) -> Iterator[None]:
    """Have `each_card` read the links between cards, or not, until the block ends."""
    token = _reads_links.set(wanted)
    try:
        yield
    finally:
        _reads_links.reset(token)


def each_card(
    read: Callable[[Place], Device],
    places: Iterable[Place],
    between: LinkKindOf | None = None,
    faster: Mapping[str, int] | None = None,
) -> Iterator[Device | DriverError]:
    """Read every card on its own, so an error costs that card and not its neighbours.

    `between` returns the kind of link from one usable card to another. The weight of a kind is the
    one in `faster`, else the one in `PCIE`; a kind in neither is no link. Yields the result of
    `hetero_discover`: devices, and the errors of cards that cannot be read.
    """
    cards: list[Device] = []
    for place in places:
        try:
            cards.append(read(place))
        except (DriverError, LookupError, ValueError) as error:
            yield DriverError(f"card {place}: {error}")
    usable = [card for card in cards if card.usable]
    if not _reads_links.get():
        between = None
    for card in cards:
        links: list[Link] = []
        try:
            if between is not None and card.usable:
                links.extend(_links(card, usable, between, {**PCIE, **(faster or {})}))
        except DriverError as error:
            yield DriverError(f"links of card {card.index}: {error}")
        yield evolve(card, links=tuple(links))


def _links(
    card: Device, others: Iterable[Device], between: LinkKindOf, weights: Mapping[str, int]
) -> Iterator[Link]:
    for other in others:
        link_kind = between(card, other) if other is not card else None
        if link_kind is not None and link_kind in weights:
            yield Link(other.uuid, link_kind, weights[link_kind])


#: What two cards share on the way over PCIe, nearest first; the nearer, the heavier.
PCIE = {"board": 6, "PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}


def ways(codes: Iterable[int]) -> dict[int, str]:
    """Return the link kind of each of the driver's codes for PCIe, given nearest first."""
    return dict(zip(codes, PCIE, strict=True))


def pci_address(domain: int, bus: int, device: int, function: int = 0) -> str:
    """Return a PCI address in the form that all devices have: `0000:18:00.0`."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def pci_of(pci_struct: Any) -> str | None:
    """Return the address in a driver's PCI struct, None where the driver gave no struct."""
    if not pci_struct:
        return None
    return pci_address(
        pci_struct.domain, pci_struct.bus, pci_struct.device, getattr(pci_struct, "function", 0)
    )


def pci_device(pci: str | None) -> Path:
    """Return where the kernel says what it knows of a PCI device: `/sys/bus/pci/devices/…`.

    A simulation has a `/sys` of its own, which $HETERO_SYSFS names.
    """
    return Path(os.environ.get("HETERO_SYSFS") or "/sys") / "bus/pci/devices" / (pci or "")


def numa_of(pci: str | None) -> int | None:
    """Return the NUMA node of the card at a PCI address, for drivers without that query."""
    try:
        node = int((pci_device(pci) / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return None if node < 0 else node


def first_node(mask: int) -> int | None:
    """Return the lowest NUMA node in a bit mask, None for an empty mask."""
    return (mask & -mask).bit_length() - 1 if mask else None


def drm_of(pci: str | None) -> dict[str, str]:
    """Return the attributes `card` and `render` of the card at a PCI address.

    They are its device nodes in /dev/dri. A node that does not exist has no attribute.
    """
    drm_nodes = {
        name: next((pci_device(pci) / "drm").glob(pattern), None)
        for name, pattern in (("card", "card*"), ("render", "renderD*"))
    }
    return {name: f"/dev/dri/{drm_node.name}" for name, drm_node in drm_nodes.items() if drm_node}
