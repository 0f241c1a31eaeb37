"""Named shares: grants that stand without a process, which any container gets by a CDI name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from hetero.container.cdi import KIND, Specs, check_name
from hetero.container.edits import confine, in_place
from hetero.container.log import tell
from hetero.errors import HeteroError, NotFound, Refused
from hetero.model import Ask, Device, Request
from hetero.node.containers import containers
from hetero.node.grant import CORE_FULL
from hetero.node.ledger import Container, Standing
from hetero.node.node import Node
from hetero.node.resize import resize
from hetero.node.tenant import GRANT
from hetero.units import format_memory


@frozen(kw_only=True)
class ShareView:
    """A share as `hetero share ls` shows it.

    `devices` are the names a container is started with: the vendor's own where the machine has CDI
    specs of them, and ours. `gone` lists cards that are not here any more, or not well.
    """

    name: str
    entry: Standing
    devices: tuple[str, ...]
    containers: tuple[Container, ...]
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
        taken = node.take(request, share=name)
    except HeteroError as error:
        tell(node, name, f"share refused: {error}")
        raise
    entry = taken.hold.standing
    try:
        limiters = in_place(taken.hold.path, taken.limiters)
        edits = confine(node, entry, taken.edits, limiters=limiters, specs=specs)
        specs.put(name, edits, owner=node.ledger.path)
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
    devices = {device.uuid: device for device in node.discover().devices}
    views, words = [], []
    with node.ledger.admission() as look:
        standing = {entry.share: entry for entry in look.standing if entry.share}
        for name in specs.owned(node.ledger.path):
            if name not in standing:
                specs.remove(name)
                words.append(f"removed the spec of {name}: no such share stands")
        for name, entry in sorted(standing.items()):
            granted = [devices.get(grant.device) for grant in entry.allocation.grants]
            well = [device for device in granted if device and device.usable]
            gone: tuple[str, ...] = ()
            if len(well) == len(granted):
                _put(node, name, entry, devices=devices, specs=specs)
            else:
                there = {device.uuid for device in well}
                gone = tuple(
                    grant.device for grant in entry.allocation.grants if grant.device not in there
                )
                if name in specs.owned(node.ledger.path):
                    specs.remove(name)
                    words.append(
                        f"removed the spec of {name}: {', '.join(gone)} is gone or not well; "
                        f"`hetero share rm {name}` removes the share, too"
                    )
            views.append(_view(node, entry, specs, gone=gone))
    for word in words:
        tell(node, "shares", word)
    return Shares(shares=tuple(views), words=tuple(words))


def remove(node: Node, name: str, *, specs: Specs | None = None) -> None:
    """End a share. Raises `Refused` with the containers' names while any has it."""
    specs = specs or Specs()
    _expect_root(node)
    with node.ledger.admission() as look:
        broken = [entry for entry in look.unreadable if entry.id == name]
        identity = broken[0].id if broken else _named(look.standing, name).id
        used = containers({identity: node.ledger.directory(identity) / GRANT})[identity]
        if used:
            raise Refused(
                f"share {name} is in use by {_names(used)}: it can be removed when they are gone"
            )
        specs.remove(name)
        node.ledger.drop(identity)
    tell(node, name, "share removed")


def change(node: Node, name: str, ask: Ask) -> Standing:
    """Give a share the memory and core `ask` names; containers that run meet it at once."""
    entry = resize(node, _named(node.ledger.look().standing, name).id, ask)
    tell(node, name, f"share changed: {_limits(entry)}")
    return entry


def _put(
    node: Node, name: str, entry: Standing, *, devices: Mapping[str, Device], specs: Specs
) -> None:
    edits = node.enforce(entry.allocation, devices, container=True)
    limiters = in_place(node.ledger.directory(entry.id), node.limiters(entry.allocation))
    edits = confine(node, entry, edits, limiters=limiters, specs=specs)
    specs.put(name, edits, owner=node.ledger.path)


def _view(node: Node, entry: Standing, specs: Specs, *, gone: tuple[str, ...]) -> ShareView:
    kinds = (
        f"{kind}={grant.part or grant.device}"
        for grant in entry.allocation.grants
        if (kind := node.registry.vendor(grant.vendor).cdi)
    )
    return ShareView(
        name=str(entry.share),
        entry=entry,
        devices=(*filter(specs.present, kinds), f"{KIND}={entry.share}"),
        containers=containers({entry.id: node.ledger.directory(entry.id) / GRANT})[entry.id],
        gone=gone,
    )


def _expect_root(node: Node) -> None:
    if node.ledger.kept is None:
        raise Refused("shares are root's: try again as root")


def _named(standing: Sequence[Standing], name: str) -> Standing:
    for entry in standing:
        if entry.share == name:
            return entry
    raise NotFound(f"no share {name!r}: `hetero share ls` lists those there are")


def _names(used: Sequence[Container]) -> str:
    return ("container " if len(used) == 1 else "containers ") + ", ".join(
        container.name for container in used
    )


def _limits(entry: Standing) -> str:
    return ", ".join(
        f"{limit.name} memory {format_memory(limit.memory)} core {limit.core * 100 / CORE_FULL:g} %"
        for limit in entry.limits
    )
