"""All that is known of one card: `hetero describe`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hetero.model import Device
from hetero.model.frozen import frozen
from hetero.node.card_notes import standing_faults
from hetero.node.cordon import card_named
from hetero.node.node import Node
from hetero.node.settings import NodeSettings
from hetero.node.view.observe import DeviceView, GrantView, QueuedRequest, observe_node
from hetero.node.view.topology import Connection, connections


@frozen(kw_only=True)
class CardView:
    """One card: how it is and who has some of it, how it is connected, and what was noted of it.

    `fault_since` (UTC) is when a fault was noted that its driver told once. `settings` are those of
    the node that bear on it, by their names in the file; `rack_file` names the rack file where
    nothing is real. `peers` are the cards of the machine by their numbers, and `queue` the requests
    that wait for them.
    """

    card: DeviceView
    grants: tuple[GrantView, ...]
    connections: tuple[Connection, ...]
    fault_since: str | None
    settings: Mapping[str, str]
    rack_file: str | None
    peers: tuple[DeviceView, ...] = ()
    queue: tuple[QueuedRequest, ...] = ()


def describe_card(node: Node, card_name: str) -> CardView:
    """Return what is known of a card, named as for `hetero cordon`.

    Raises `NotFound` where there is none, `BadInput` where there are several.
    """
    view = observe_node(node)
    row = view.devices[card_named([row.device for row in view.devices], card_name)]
    faults = standing_faults(node.cards.read()) if node.cards else {}
    return CardView(
        card=row,
        grants=tuple(
            grant
            for grant in view.grants
            if any(share.device_number == row.device_number for share in grant.shares)
        ),
        connections=connections(row, view.devices),
        fault_since=fault.since_utc if (fault := faults.get(row.device.uuid)) else None,
        settings=dict(_settings(node.settings, row.device)),
        rack_file=view.rack_file,
        peers=view.devices,
        queue=view.queue,
    )


def _settings(settings: NodeSettings, device: Device) -> Iterator[tuple[str, str]]:
    """Yield the settings that bear on a device, those by which it differs from its card first."""
    if device.card:
        yield "scale.memory", str(settings.memory_scale)
        yield "scale.core", str(settings.core_scale)
    if settings.max_sharers is not None:
        yield "cards.max_sharers", str(settings.max_sharers)
    if device.vendor in settings.soft:
        yield "cards.soft", device.vendor
    yield "cards.partitioned", settings.partitioned.value
    for name, sharing in settings.sharing.items():
        yield f"cards.sharing.{name}", sharing.value
    yield "count.context", "true" if settings.context else "false"
    yield "heterod.on_excess", settings.on_excess.value
    yield "heterod.on_bypass", settings.on_bypass.value
    yield "heterod.on_debt", settings.on_debt.value
