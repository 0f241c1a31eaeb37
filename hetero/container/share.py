"""Named shares: grants without a process, which any container gets by a CDI name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from attrs import evolve, frozen

from hetero.container.cdi import KIND, Specs, check_name
from hetero.container.edits import confine, in_place
from hetero.model import Ask, Device, DeviceAllocation, Edits, Request, Templated, codec
from hetero.model.errors import BadInput, HeteroError, NotFound, Refused
from hetero.model.names import did_you_mean
from hetero.model.units import format_memory, format_percent
from hetero.node.confinement import enforce, reconcile, slices_held
from hetero.node.grants import LocalGrants, grants_of
from hetero.node.inventory import devices_of
from hetero.node.ledger.events import record
from hetero.node.ledger.grant_dir import GRANT, replace
from hetero.node.ledger.ledger import EDITS, ContainerInfo, Grant
from hetero.node.node import Node
from hetero.node.tenants.containers import containers
from hetero.node.transaction import with_parts
from hetero.registry.registry import Discovery


@frozen(kw_only=True)
class ShareView:
    """A share as `hetero share ls` shows it.

    `devices` are the CDI names for the command line of an engine: the vendor's own if the machine
    has specs of them, and ours. `gone` lists cards that are missing or unhealthy.
    """

    name: str
    entry: Grant
    devices: tuple[str, ...]
    containers: tuple[ContainerInfo, ...]
    gone: tuple[str, ...] = ()


@frozen(kw_only=True)
class Shares:
    """The shares of a node after their specs were updated; `words` reports the changes."""

    shares: tuple[ShareView, ...]
    words: tuple[str, ...] = ()


def create(
    node: Node, share_name: str, request: Request, *, specs: Specs | None = None
) -> ShareView:
    """Create a share that stands now and after a reboot. Raises `Refused`; then nothing is held."""
    specs = specs or Specs()
    check_name(share_name)
    _expect_root(node)
    specs.expect_free(share_name, owner=node.ledger.path)
    try:
        admission = LocalGrants(node).take(request, share=share_name, anyway=True)
    except HeteroError as error:
        record(node.ledger.persistent, share_name, f"share refused: {error}")
        raise
    grant = admission.handle.grant
    try:
        _note(node, grant, admission.edits)
        _put(node, share_name, grant, admission.edits, specs=specs)
    except BaseException as error:
        with node.ledger.admission():
            node.ledger.drop(grant.id)
        record(node.ledger.persistent, share_name, f"share given back: {error}")
        raise
    record(
        node.ledger.persistent,
        share_name,
        f"share created: grant {grant.id} of {grant.cards}",
        grant_id=grant.id,
        numbers=grant.device_numbers,
    )
    return _view(node, grant, specs, gone_devices=())


def settle(node: Node, *, specs: Specs | None = None) -> Shares:
    """Update the specs to the shares and the cards of the node, as after a reboot."""
    specs = specs or Specs()
    _expect_root(node)
    discovery = node.discover()
    device_by_uuid = {device.uuid: device for device in discovery.devices}
    views, messages = [], []
    faults = _confine_all(node, discovery)
    with node.ledger.admission() as snapshot:
        grant_by_share = {grant.share: grant for grant in snapshot.grants if grant.share}
        for share_name in specs.owned(node.ledger.path):
            if share_name not in grant_by_share:
                specs.remove(share_name)
                messages.append(f"removed the spec of {share_name}: no such share stands")
        for share_name, grant in sorted(grant_by_share.items()):
            gone_devices = tuple(
                piece.part or piece.device
                for piece in grant.allocation.pieces
                if not _there(node, piece, device_by_uuid.get(piece.device))
            )
            fault = (
                f"{', '.join(gone_devices)} is gone or not well"
                if gone_devices
                else faults.get(grant.id)
            )
            edits = _noted(node, grant)
            if fault is None and edits is not None:
                try:
                    _put(node, share_name, grant, edits, specs=specs)
                except HeteroError as error:
                    fault = str(error)
            if fault is not None and share_name in specs.owned(node.ledger.path):
                specs.remove(share_name)
                messages.append(
                    f"removed the spec of {share_name}: {fault}; "
                    f"`hetero share rm {share_name}` removes the share, too"
                )
            elif fault is not None and not gone_devices:
                messages.append(f"share {share_name} cannot be used: {fault}")
            views.append(_view(node, grant, specs, gone_devices=gone_devices))
    for message in messages:
        record(node.ledger.persistent, "shares", message)
    return Shares(shares=tuple(views), words=tuple(messages))


def remove(node: Node, share_name: str, *, specs: Specs | None = None) -> str:
    """End a share and return its id. Raises `Refused` with the containers that use it."""
    specs = specs or Specs()
    _expect_root(node)
    with node.ledger.admission() as snapshot:
        unreadable_grants = [
            unreadable_grant
            for unreadable_grant in snapshot.unreadable
            if unreadable_grant.id == share_name
        ]
        grant_id = (
            unreadable_grants[0].id if unreadable_grants else _named(snapshot.grants, share_name).id
        )
        using_containers = containers({grant_id: node.ledger.directory(grant_id) / GRANT})[grant_id]
        if using_containers:
            raise Refused(
                f"share {share_name} is in use by {_names(using_containers)}: "
                "it can be removed when they are gone"
            )
        specs.remove(share_name)
        node.ledger.drop(grant_id)
    record(node.ledger.persistent, share_name, "share removed")
    return grant_id


def change(node: Node, share_name: str, ask: Ask, *, specs: Specs | None = None) -> Grant:
    """Change the memory and core of a share to `ask`; it applies to running containers at once."""
    specs = specs or Specs()
    grant_id = _named(node.ledger.snapshot().grants, share_name).id
    grant = grants_of(node).resize(grant_id, ask, anyway=True)  # as it was created
    device_by_uuid = {device.uuid: device for device in node.discover().devices}
    with slices_held(node, filter(node.registry.cuts, grant.allocation.vendors)):
        # A vendor may tell its runtime a slice's size: the next container is to hear the new one.
        edits = enforce(node, grant.allocation, device_by_uuid, container=True)
    with node.ledger.admission():
        _note(node, grant, edits)
        _put(node, share_name, grant, edits, specs=specs)
    record(node.ledger.persistent, share_name, f"share changed: {_limits(grant)}")
    return grant


def _there(node: Node, piece: DeviceAllocation, device: Device | None) -> bool:
    """Return whether the device of a piece is present and healthy, and so is its part."""
    if device is None or not device.healthy:
        return False
    if piece.part is None or node.registry.cuts(piece.vendor):
        return True
    menu = device.granularity.menu if isinstance(device.granularity, Templated) else ()
    return any(template.part == piece.part for template in menu)


def _confine_all(node: Node, discovery: Discovery) -> dict[str, str]:
    """Have the vendors confine the shares for which nothing is noted; return what failed, by grant.

    What the vendors said is noted where a reboot takes it away, as it takes the slices they cut:
    then they are asked to cut new ones. Killed half-way, the next look cuts again, and what was cut
    for nothing is nobody's.
    """

    def unnoted() -> list[Grant]:
        share_grants = (grant for grant in node.ledger.snapshot().grants if grant.share)
        return [grant for grant in share_grants if _noted(node, grant) is None]

    fault_by_grant: dict[str, str] = {}
    if not unnoted():
        return fault_by_grant
    device_by_uuid = devices_of(discovery)
    with slices_held(node, discovery.cutting):
        reconcile(node, discovery, discovery.cutting)  # what an interrupted one had cut
        for grant in unnoted():
            if all(
                _there(node, piece, device_by_uuid.get(piece.device))
                for piece in grant.allocation.pieces
            ):
                try:
                    _confine(node, grant, device_by_uuid)
                except HeteroError as error:
                    fault_by_grant[grant.id] = str(error)
    return fault_by_grant


def _confine(node: Node, grant: Grant, devices: Mapping[str, Device]) -> None:
    """Have the vendors confine a share again, and record their edits; with the slices locked."""
    allocation = evolve(
        grant.allocation,
        pieces=tuple(
            evolve(piece, part=None) if node.registry.cuts(piece.vendor) else piece
            for piece in grant.allocation.pieces
        ),
    )
    edits = enforce(node, allocation, devices, container=True)
    grant = evolve(grant, allocation=with_parts(allocation, edits.parts))
    with node.ledger.admission():
        node.ledger.change(grant)
        _note(node, grant, edits)


def _note(node: Node, grant: Grant, edits: Edits) -> None:
    path = node.ledger.directory(grant.id) / EDITS
    replace(path, codec.dumps(edits).encode(), mode=0o644)


def _noted(node: Node, grant: Grant) -> Edits | None:
    path = node.ledger.directory(grant.id) / EDITS
    with suppress(FileNotFoundError, BadInput):  # one that says nothing is as good as none
        return codec.loads(path.read_text(), Edits, source=str(path))
    return None


def _put(node: Node, share_name: str, grant: Grant, edits: Edits, *, specs: Specs) -> None:
    """Write the spec that gives a container the share."""
    libraries = node.limiters(grant.allocation, node.registry.declarations())
    limiters = in_place(node.ledger.directory(grant.id), libraries)
    confined_edits = confine(node, grant, edits, limiters=limiters, specs=specs)
    specs.put(share_name, confined_edits, owner=node.ledger.path)


def _view(node: Node, grant: Grant, specs: Specs, *, gone_devices: tuple[str, ...]) -> ShareView:
    cdi_kinds = (
        f"{cdi_kind}={piece.part or piece.device}"
        for piece in grant.allocation.pieces
        if (cdi_kind := node.registry.vendor(piece.vendor).container.cdi)
    )
    return ShareView(
        name=str(grant.share),
        entry=grant,
        devices=(*filter(specs.present, cdi_kinds), f"{KIND}={grant.share}"),
        containers=containers({grant.id: node.ledger.directory(grant.id) / GRANT})[grant.id],
        gone=gone_devices,
    )


def _expect_root(node: Node) -> None:
    if node.ledger.persistent is None:
        raise Refused("shares are root's: try again as root")


def _named(grants: Sequence[Grant], share_name: str) -> Grant:
    for grant in grants:
        if grant.share == share_name:
            return grant
    share_names = [grant.share for grant in grants if grant.share]
    raise NotFound(
        f"no share {share_name!r}: `hetero share ls` lists those there are"
        + did_you_mean(share_name, share_names)
    )


def _names(using_containers: Sequence[ContainerInfo]) -> str:
    return ("container " if len(using_containers) == 1 else "containers ") + ", ".join(
        container.name for container in using_containers
    )


def _limits(grant: Grant) -> str:
    return ", ".join(
        f"{limit.name} memory {format_memory(limit.memory)} "
        f"core {format_percent(100 if limit.granted_percent is None else limit.granted_percent)}"
        for limit in grant.limits
    )
