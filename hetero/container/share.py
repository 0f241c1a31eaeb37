"""Named shares: grants that stand without a process, which any container gets by a CDI name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from attrs import evolve, frozen

from hetero.container.cdi import KIND, Specs, check_name
from hetero.container.edits import confine, in_place
from hetero.container.log import tell
from hetero.model import Ask, Device, DeviceAllocation, Edits, Request, Templated, codec
from hetero.model.errors import BadInput, HeteroError, NotFound, Refused
from hetero.model.names import did_you_mean
from hetero.model.units import format_memory
from hetero.node.confinement import enforce, reconcile, slices_held
from hetero.node.grants import LocalGrants, grants_of
from hetero.node.inventory import devices_of
from hetero.node.ledger.grant_dir import GRANT, replace
from hetero.node.ledger.grant_file import CORE_FULL
from hetero.node.ledger.ledger import EDITS, ContainerInfo, Grant
from hetero.node.node import Node
from hetero.node.transaction import with_parts
from hetero.node.view.containers import containers
from hetero.registry.registry import Discovery


@frozen(kw_only=True)
class ShareView:
    """A share as `hetero share ls` shows it.

    `devices` are the names a container is started with: the vendor's own where the machine has CDI
    specs of them, and ours. `gone` lists cards that are not here any more, or not well.
    """

    name: str
    entry: Grant
    devices: tuple[str, ...]
    containers: tuple[ContainerInfo, ...]
    gone: tuple[str, ...] = ()


@frozen(kw_only=True)
class Shares:
    """The shares of a node after their specs were brought in line; `words` says what was done."""

    shares: tuple[ShareView, ...]
    words: tuple[str, ...] = ()


def create(node: Node, name: str, request: Request, *, specs: Specs | None = None) -> ShareView:
    """Make a share stand, now and after a reboot. Raises `Refused`; then nothing was taken."""
    specs = specs or Specs()
    check_name(name)
    _expect_root(node)
    specs.expect_free(name, owner=node.ledger.path)
    try:
        taken = LocalGrants(node).take(request, share=name)
    except HeteroError as error:
        tell(node, name, f"share refused: {error}")
        raise
    entry = taken.handle.grant
    try:
        _note(node, entry, taken.edits)
        _put(node, name, entry, taken.edits, specs=specs)
    except BaseException as error:
        with node.ledger.admission():
            node.ledger.drop(entry.id)
        tell(node, name, f"share given back: {error}")
        raise
    tell(node, name, f"share created: grant {entry.id}")
    return _view(node, entry, specs, gone=())


def settle(node: Node, *, specs: Specs | None = None) -> Shares:
    """Bring the specs in line with the shares and the cards there are, as after a reboot."""
    specs = specs or Specs()
    _expect_root(node)
    discovery = node.discover()
    devices = {device.uuid: device for device in discovery.devices}
    views, words = [], []
    faults = _confine_all(node, discovery)
    with node.ledger.admission() as snapshot:
        grant = {entry.share: entry for entry in snapshot.grants if entry.share}
        for name in specs.owned(node.ledger.path):
            if name not in grant:
                specs.remove(name)
                words.append(f"removed the spec of {name}: no such share stands")
        for name, entry in sorted(grant.items()):
            gone = tuple(
                piece.part or piece.device
                for piece in entry.allocation.pieces
                if not _there(node, piece, devices.get(piece.device))
            )
            fault = f"{', '.join(gone)} is gone or not well" if gone else faults.get(entry.id)
            edits = _noted(node, entry)
            if fault is None and edits is not None:
                try:
                    _put(node, name, entry, edits, specs=specs)
                except HeteroError as error:
                    fault = str(error)
            if fault is not None and name in specs.owned(node.ledger.path):
                specs.remove(name)
                words.append(
                    f"removed the spec of {name}: {fault}; "
                    f"`hetero share rm {name}` removes the share, too"
                )
            elif fault is not None and not gone:
                words.append(f"share {name} cannot be used: {fault}")
            views.append(_view(node, entry, specs, gone=gone))
    for word in words:
        tell(node, "shares", word)
    return Shares(shares=tuple(views), words=tuple(words))


def remove(node: Node, name: str, *, specs: Specs | None = None) -> str:
    """End a share and return its id. Raises `Refused` with its containers while any has it."""
    specs = specs or Specs()
    _expect_root(node)
    with node.ledger.admission() as snapshot:
        broken = [entry for entry in snapshot.unreadable if entry.id == name]
        identity = broken[0].id if broken else _named(snapshot.grants, name).id
        used = containers({identity: node.ledger.directory(identity) / GRANT})[identity]
        if used:
            raise Refused(
                f"share {name} is in use by {_names(used)}: it can be removed when they are gone"
            )
        specs.remove(name)
        node.ledger.drop(identity)
    tell(node, name, "share removed")
    return identity


def change(node: Node, name: str, ask: Ask, *, specs: Specs | None = None) -> Grant:
    """Give a share the memory and core `ask` names; containers that run meet it at once."""
    specs = specs or Specs()
    identity = _named(node.ledger.snapshot().grants, name).id
    entry = grants_of(node).resize(identity, ask)
    devices = {device.uuid: device for device in node.discover().devices}
    with slices_held(node, filter(node.registry.cuts, entry.allocation.vendors)):
        # A vendor may tell its runtime a slice's size: the next container is to hear the new one.
        edits = enforce(node, entry.allocation, devices, container=True)
    with node.ledger.admission():
        _note(node, entry, edits)
        _put(node, name, entry, edits, specs=specs)
    tell(node, name, f"share changed: {_limits(entry)}")
    return entry


def _there(node: Node, piece: DeviceAllocation, device: Device | None) -> bool:
    """Whether the device of a grant is here and well, and so is its part if others cut it."""
    if device is None or not device.usable:
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
        shares = (entry for entry in node.ledger.snapshot().grants if entry.share)
        return [entry for entry in shares if _noted(node, entry) is None]

    faults: dict[str, str] = {}
    if not unnoted():
        return faults
    devices = devices_of(discovery)
    with slices_held(node, discovery.cutting):
        reconcile(node, discovery, discovery.cutting)  # what an interrupted one had cut
        for entry in unnoted():
            if all(
                _there(node, piece, devices.get(piece.device)) for piece in entry.allocation.pieces
            ):
                try:
                    _confine(node, entry, devices)
                except HeteroError as error:
                    faults[entry.id] = str(error)
    return faults


def _confine(node: Node, entry: Grant, devices: Mapping[str, Device]) -> None:
    """Have the vendors confine a share anew, and note what they say; with the slices held."""
    allocation = evolve(
        entry.allocation,
        pieces=tuple(
            evolve(piece, part=None) if node.registry.cuts(piece.vendor) else piece
            for piece in entry.allocation.pieces
        ),
    )
    edits = enforce(node, allocation, devices, container=True)
    entry = evolve(entry, allocation=with_parts(allocation, edits.parts))
    with node.ledger.admission():
        node.ledger.change(entry)
        _note(node, entry, edits)


def _note(node: Node, entry: Grant, edits: Edits) -> None:
    path = node.ledger.directory(entry.id) / EDITS
    replace(path, codec.dumps(edits).encode(), mode=0o644)


def _noted(node: Node, entry: Grant) -> Edits | None:
    path = node.ledger.directory(entry.id) / EDITS
    with suppress(FileNotFoundError, BadInput):  # one that says nothing is as good as none
        return codec.loads(path.read_text(), Edits, source=str(path))
    return None


def _put(node: Node, name: str, entry: Grant, edits: Edits, *, specs: Specs) -> None:
    """Write the spec that gives a container the share."""
    libraries = node.limiters(entry.allocation, node.registry.declarations())
    limiters = in_place(node.ledger.directory(entry.id), libraries)
    confined = confine(node, entry, edits, limiters=limiters, specs=specs)
    specs.put(name, confined, owner=node.ledger.path)


def _view(node: Node, entry: Grant, specs: Specs, *, gone: tuple[str, ...]) -> ShareView:
    kinds = (
        f"{kind}={piece.part or piece.device}"
        for piece in entry.allocation.pieces
        if (kind := node.registry.vendor(piece.vendor).container.cdi)
    )
    return ShareView(
        name=str(entry.share),
        entry=entry,
        devices=(*filter(specs.present, kinds), f"{KIND}={entry.share}"),
        containers=containers({entry.id: node.ledger.directory(entry.id) / GRANT})[entry.id],
        gone=gone,
    )


def _expect_root(node: Node) -> None:
    if node.ledger.persistent is None:
        raise Refused("shares are root's: try again as root")


def _named(grant: Sequence[Grant], name: str) -> Grant:
    for entry in grant:
        if entry.share == name:
            return entry
    every = [entry.share for entry in grant if entry.share]
    raise NotFound(
        f"no share {name!r}: `hetero share ls` lists those there are" + did_you_mean(name, every)
    )


def _names(used: Sequence[ContainerInfo]) -> str:
    return ("container " if len(used) == 1 else "containers ") + ", ".join(
        container.name for container in used
    )


def _limits(entry: Grant) -> str:
    return ", ".join(
        f"{limit.name} memory {format_memory(limit.memory)} core {limit.core * 100 / CORE_FULL:g} %"
        for limit in entry.limits
    )
