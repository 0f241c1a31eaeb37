"""Counts the cards that nodes give by claims, for thousands of nodes: by kind, not card by card.

`node_pools` and `standing_claims` say more of each, and take several times as long. What a kind of
card has, and what a claim takes of one, is read by their functions, once for all that are alike.
Whatever is not plain is left to them: cards that divide by a menu, pools that are not complete,
grants beside claims, claims with a fault. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from attrs import field, frozen
from msgspec import Struct

from hetero.kube.dra.claims import config_of, results_of, taken
from hetero.kube.dra.node_pools import (
    card_of,
    condition_of,
    notes_of_other_drivers,
    number_of,
    text_of,
)
from hetero.kube.dra.offers import DRIVER
from hetero.kube.objects.kinds import PoolSlice, ResourceClaim, SliceDevice, SliceSpec
from hetero.kube.words.annotations import GRANTS
from hetero.model import Counters, Device
from hetero.model.errors import BadInput

#: What cards of one kind have in common.
_KIND = ("vendor", "model", "enforcement")
_DriverAmounts = tuple[tuple[str, str | int | float], ...]


class PlainCard(Struct, gc=False):
    """A card: its kind's position in the list of kinds, its condition, its number on its node."""

    uuid: str
    kind: int
    health: str | None
    cordon: str | None
    number: int


@frozen
class PlainPool:
    """The cards of a node, and what claims hold of them, by UUID."""

    cards: Mapping[str, PlainCard]  # by the names of their entries
    held: dict[str, dict[str, int]] = field(factory=dict)


@frozen
class PlainPools:
    """The pools in which all is plain, by node; `kinds` are cards that stand for their like.

    `odd_nodes` are the other nodes with slices or claims of ours. `claims_by_node` counts the
    claims that hold something of a plain one. `notes` say what other drivers have.
    """

    kinds: list[Device] = field(factory=list)
    pools: dict[str, PlainPool] = field(factory=dict)
    odd_nodes: set[str] = field(factory=set)
    claims_by_node: dict[str, int] = field(factory=dict)
    notes: tuple[str, ...] = ()


def plain_pools(slices: Collection[PoolSlice], claims: Iterable[ResourceClaim]) -> PlainPools:
    """Return what these slices and claims say of hetero's cards, as far as it is plain."""
    plain = PlainPools(notes=tuple(notes_of_other_drivers(slices)))
    reading = _Kinds(plain.kinds)
    specs_by_node: dict[str, list[SliceSpec]] = {}
    for resource_slice in slices:
        spec = resource_slice.spec
        if spec.driver == DRIVER and spec.node_name and spec.pool.name == spec.node_name:
            specs_by_node.setdefault(spec.node_name, []).append(spec)
            if GRANTS in resource_slice.metadata.annotations:
                plain.odd_nodes.add(spec.node_name)
    for node_name, specs in specs_by_node.items():
        pool = _pool(specs, reading) if node_name not in plain.odd_nodes else None
        if pool is None:
            plain.odd_nodes.add(node_name)
        else:
            plain.pools[node_name] = pool
    taking = _Taking(plain.kinds)
    for claim in claims:
        _count(claim, plain, taking)
    for node_name in plain.odd_nodes & plain.pools.keys():
        del plain.pools[node_name]
    return plain


def _pool(specs: list[SliceSpec], reading: _Kinds) -> PlainPool | None:
    """Return the cards of a node, None where some are not plain or not all of them are there."""
    first, *others = (spec.pool for spec in specs)
    if len(specs) != first.resource_slice_count or any(pool != first for pool in others):
        return None
    cards: dict[str, PlainCard] = {}
    numbers: set[int] = set()
    uuids: set[str] = set()
    for spec in specs:
        if spec.shared_counters:
            return None
        for entry in spec.devices:
            card = reading.card(entry, position=len(cards))
            if card is None:
                return None
            cards[entry.name] = card
            numbers.add(card.number)
            uuids.add(card.uuid)
    if not len(cards) == len(numbers) == len(uuids) == sum(len(spec.devices) for spec in specs):
        return None
    return PlainPool(cards) if cards else None


@frozen
class _Kinds:
    """The kinds of cards that were read, and what is said of each: mostly few and the same."""

    kinds: list[Device]
    _positions: dict[tuple[object, ...], list[tuple[SliceDevice, int]]] = field(factory=dict)

    def card(self, entry: SliceDevice, *, position: int) -> PlainCard | None:
        """Return the card of an entry, None where it is not plain.

        Its number is `position` where its agent publishes none.
        """
        uuid = text_of(entry, "uuid")
        if entry.consumes_counters or not uuid:
            return None
        kind = self._kind(entry)
        if kind is None:
            return None
        health, cordon = condition_of(entry)
        number = number_of(entry, "number")
        return PlainCard(uuid, kind, health, cordon, position if number is None else number)

    def _kind(self, entry: SliceDevice) -> int | None:
        attributes = entry.attributes
        key = (*map(attributes.get, _KIND), entry.allow_multiple_allocations)
        alike = self._positions.setdefault(key, [])
        for other, kind in alike:
            if other.capacity == entry.capacity:
                return kind
        try:
            self.kinds.append(card_of(entry))
        except (BadInput, ValueError):
            return None
        alike.append((entry, len(self.kinds) - 1))
        return len(self.kinds) - 1


@frozen
class _Taking:
    """What claims take of a card, by its kind and by what they consume."""

    kinds: list[Device]
    _takes: dict[tuple[int, _DriverAmounts], Counters] = field(factory=dict)

    def of(self, kind: int, consumed: Mapping[str, str | int | float]) -> Counters:
        """Return what is taken. Raises `BadInput`."""
        key = (kind, tuple(consumed.items()))
        if key not in self._takes:
            self._takes[key] = taken(self.kinds[kind], {**consumed})
        return self._takes[key]


def _count(claim: ResourceClaim, plain: PlainPools, taking: _Taking) -> None:
    """Add what a claim holds; where it is not plain, its nodes are odd."""
    results = results_of(claim)
    if not results or all(result.admin_access for result in results):
        return
    node_names = {result.pool for result in results}
    try:
        takes_by_uuid = dict(_takes(claim, plain, taking))
    except BadInput:
        takes_by_uuid = {}
    if len(takes_by_uuid) < len(results) or len(node_names) > 1:
        plain.odd_nodes.update(node_names)
        return
    (node_name,) = node_names
    plain.claims_by_node[node_name] = plain.claims_by_node.get(node_name, 0) + 1
    held = plain.pools[node_name].held
    for uuid, takes in takes_by_uuid.items():
        before = held.get(uuid)
        held[uuid] = (
            {counter: before.get(counter, 0) + amount for counter, amount in takes.items()}
            if before
            else dict(takes)
        )


def _takes(
    claim: ResourceClaim, plain: PlainPools, taking: _Taking
) -> Iterator[tuple[str, Counters]]:
    """Yield what a claim takes of each card, as far as that is plain. Raises `BadInput`."""
    results = results_of(claim)
    config_of(claim.status.allocation.devices.config, results)  # the rest of it takes nothing
    for result in results:
        pool = plain.pools.get(result.pool)
        card = pool.cards.get(result.device) if pool else None
        if card is not None and not result.admin_access:
            yield card.uuid, taking.of(card.kind, result.consumed_capacity)
