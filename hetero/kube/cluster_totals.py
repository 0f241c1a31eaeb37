"""Sums over the cards of a cluster, by pool of nodes and model: fast enough for thousands of nodes.

`cluster_view` says more of each card, and takes a hundred times as long. Both count alike: what it
does with objects of the model is done here with what the annotations say. A node of which these say
more than its cards is left to `cluster_view`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from attrs import define, evolve, field, frozen
from msgspec import MsgspecError, Raw, Struct, json

from hetero.kube.cluster_objects import ClusterObjects
from hetero.kube.objects.kinds import NodeObject, Pod
from hetero.kube.words.annotations import (
    ALLOCATION,
    CORDONED,
    HAMI_CORDON,
    INVENTORY,
    published,
)
from hetero.kube.words.pod import ended, kinds
from hetero.model import CORE, MEMORY, SLOTS, ContainerKind, Counters, Device
from hetero.model.device import ailment_of, short_model_of
from hetero.model.errors import BadInput
from hetero.model.json_keys import json_key
from hetero.model.occupancy import left_of, obtainable_of, peak
from hetero.node.view.totals import Total, count, merge

if TYPE_CHECKING:
    from hetero.kube.dra.plain_pools import PlainPools

#: The labels by which clouds and autoscalers name the pool of a node, the first that it has.
_POOLS = (
    "hetero.io/pool",
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
_NEEDED = {CORE, MEMORY, SLOTS}
#: Annotations that may name a card which the node has not: the view of it says so.
_CORDONS = {CORDONED, HAMI_CORDON}

#: What is held of each device of a node, by UUID.
_Held = dict[str, dict[str, int]]


@frozen(kw_only=True)
class PoolTotal:
    """The sums over the cards of a model in a pool of `nodes` that have some; None: in no pool."""

    pool: str | None
    nodes: int
    total: Total


@frozen(kw_only=True)
class SickCard:
    """A card of which nothing is given: `ailment` in a word, `health` as its driver says it."""

    node: str
    device_number: int = field(metadata=json_key("number"))
    vendor: str
    model: str
    ailment: str
    health: str


@frozen(kw_only=True)
class ClusterTotals:
    """What a cluster has: nodes with cards, pods that hold some, sums, sick cards.

    `faults` say whose inventory cannot be read, `notes` what is not counted.
    """

    nodes: int
    pods: int
    totals: tuple[PoolTotal, ...]
    sick: tuple[SickCard, ...]
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def pool_of(labels: Mapping[str, str]) -> str | None:
    """Return the pool that the labels of a node name."""
    return next((labels[label] for label in _POOLS if label in labels), None)


def plain_totals(objects: ClusterObjects) -> tuple[ClusterTotals, ClusterObjects | None]:
    """Return the sums of the nodes of which no more is said than is read here, and all others."""
    held_by_node, count_by_node = _held(objects.pods)
    pools = _pools(objects)
    ledger = _Ledger({}, {}, [])
    odd_nodes = set(pools.odd_nodes) if pools else set()
    node_count = pod_count = 0
    for node in objects.nodes:
        text, name = node.metadata.annotations.get(INVENTORY), node.metadata.name
        pool, held = pools and pools.pools.get(name), held_by_node.get(name, {})
        if name in odd_nodes or (text is None and pool is None):
            continue
        if not _CORDONS.isdisjoint(node.metadata.annotations):
            odd_nodes.add(name)
            continue
        if pools and pool:  # an inventory beside slices is what another agent left there
            _add(held, pool.held)
            ledger.add(node, pools.kinds, pool.cards.values(), held)
            pod_count += pools.claims_by_node.get(name, 0)
        else:
            rack = _plain_rack(text or "")
            if rack is None:
                odd_nodes.add(name)
                continue
            devices = rack.devices()
            if devices is None:
                odd_nodes.add(name)
                continue
            ledger.add(node, devices, rack.cards, held)
        node_count += 1
        pod_count += count_by_node.get(name, 0)
    totals = ClusterTotals(
        nodes=node_count,
        pods=pod_count,
        totals=ledger.totals(),
        sick=tuple(ledger.sick),
        notes=(*objects.notes, *(pools.notes if pools else ())),
    )
    return totals, _rest(objects, odd_nodes) if odd_nodes else None


def _rest(objects: ClusterObjects, names: AbstractSet[str]) -> ClusterObjects:
    """Return the objects of some nodes, without what is in the notes already."""
    from hetero.kube.dra.offers import DRIVER

    rest = objects.of_nodes(names)
    return evolve(
        rest, notes=(), slices=[each for each in rest.slices if each.spec.driver == DRIVER]
    )


def _pools(objects: ClusterObjects) -> PlainPools | None:
    """Return what is plain of what is given by claims, None where nothing is."""
    if not (objects.slices or objects.claims):
        return None
    from hetero.kube.dra.plain_pools import plain_pools  # here: many clusters have none

    return plain_pools(objects.slices, objects.claims)


def merged(totals: ClusterTotals, others: ClusterTotals) -> ClusterTotals:
    """Return the sums over the nodes of both, of which each has its own."""
    by_key: dict[tuple[str | None, str, str], list[PoolTotal]] = {}
    for each in (*totals.totals, *others.totals):
        by_key.setdefault((each.pool, each.total.vendor, each.total.model), []).append(each)
    return ClusterTotals(
        nodes=totals.nodes + others.nodes,
        pods=totals.pods + others.pods,
        totals=tuple(sorted(map(_sum, by_key.values()), key=by_size)),
        sick=(*totals.sick, *others.sick),
        faults=(*totals.faults, *others.faults),
        notes=tuple(dict.fromkeys((*totals.notes, *others.notes))),
    )


def _sum(parts: list[PoolTotal]) -> PoolTotal:
    first, *rest = parts
    for each in rest:
        merge(first.total, each.total)
    return evolve(first, nodes=sum(each.nodes for each in parts))


# --- inventories ------------------------------------------------------------------------------


class _AnyCard(Protocol):
    """A card of an inventory or of a pool of slices."""

    uuid: str
    kind: int
    health: str | None
    cordon: str | None
    number: int


class _Attributes(Struct, frozen=True):
    context: str = ""
    context_counts: str = ""


_NO_ATTRIBUTES = _Attributes()


class _Card(Struct):
    uuid: str
    kind: int
    health: str | None = None
    cordon: str | None = None
    attributes: _Attributes = _NO_ATTRIBUTES
    number: int = 0


class _Rack(Struct, forbid_unknown_fields=True):
    version: int = 1
    kinds: tuple[Raw, ...] = ()
    cards: tuple[_Card, ...] = ()

    def devices(self) -> list[Device] | None:
        """Return cards that stand for their like, by which each card is numbered anew.

        None where an inventory says what is refused.
        """
        if self.version != 1 or len({card.uuid for card in self.cards}) < len(self.cards):
            return None
        devices: list[Device] = []
        number_by_like: dict[tuple[int, _Attributes], int] = {}
        for position, card in enumerate(self.cards):
            if not 0 <= card.kind < len(self.kinds):
                return None
            like = (card.kind, card.attributes)
            if like not in number_by_like:
                device = _stand_in(bytes(self.kinds[card.kind]), *like[1:])
                if device is None:
                    return None
                number_by_like[like] = len(devices)
                devices.append(device)
            card.kind, card.number = number_by_like[like], position
        return devices


@lru_cache(maxsize=4096)
def _stand_in(kind_json: bytes, attributes: _Attributes) -> Device | None:
    """Return a card of a kind with these attributes; None where its kind cannot be read."""
    card = {"uuid": "like others", "index": 0, "kind": 0, "attributes": attributes}
    rack_json = json.encode({"kinds": [Raw(kind_json)], "cards": [card]}).decode()
    try:
        (device,), _ = published(rack_json, node="any")
    except BadInput:
        return None
    return device if device.capacity.keys() >= _NEEDED else None


_DECODER = json.Decoder(_Rack)


def _plain_rack(text: str) -> _Rack | None:
    """Return what an inventory says; None where it says more than cards, or cannot be read."""
    try:
        rack = _DECODER.decode(text)
    except MsgspecError:
        return None
    return rack


# --- pods -------------------------------------------------------------------------------------


class _Piece(Struct):
    device: str
    takes: dict[str, int] = {}


class _Allocation(Struct):
    pieces: tuple[_Piece, ...] = ()


class _Assignment(Struct):
    containers: tuple[tuple[str, _Allocation], ...] = ()


def _held(pods: Iterable[Pod]) -> tuple[dict[str, _Held], dict[str, int]]:
    """Return what pods hold of the devices of each node, and how many hold any."""
    held_by_node: dict[str, _Held] = {}
    count_by_node: dict[str, int] = {}
    decode = json.Decoder(_Assignment).decode
    for pod in pods:
        text, node_name = pod.metadata.annotations.get(ALLOCATION), pod.spec.node_name
        if text is None or node_name is None or ended(pod):
            continue
        try:
            assignment = decode(text)
        except MsgspecError:
            continue
        count_by_node[node_name] = count_by_node.get(node_name, 0) + 1
        held = held_by_node.setdefault(node_name, {})
        _add(held, _by_device(_pieces(pod, assignment)))
    return held_by_node, count_by_node


def _pieces(
    pod: Pod, assignment: _Assignment
) -> Iterator[tuple[ContainerKind, str, Mapping[str, int]]]:
    kind_by_name = kinds(pod) if pod.spec.init_containers else {}
    for name, allocation in assignment.containers:
        for piece in allocation.pieces:
            yield kind_by_name.get(name, ContainerKind.MAIN), piece.device, piece.takes


def _by_device(pieces: Iterable[tuple[ContainerKind, str, Counters]]) -> _Held:
    """Return what a pod of these pieces holds of each device."""
    amounts_by_uuid: dict[str, list[tuple[ContainerKind, Counters]]] = {}
    for kind, uuid, takes in pieces:
        amounts_by_uuid.setdefault(uuid, []).append((kind, takes))
    return {
        uuid: dict(amounts[0][1]) if len(amounts) == 1 else peak(amounts)
        for uuid, amounts in amounts_by_uuid.items()
    }


def _add(held: _Held, more: _Held) -> None:
    for uuid, takes in more.items():
        if uuid in held:
            held[uuid] = {
                counter: held[uuid].get(counter, 0) + takes.get(counter, 0)
                for counter in held[uuid] | takes
            }
        else:
            held[uuid] = takes


# --- sums -------------------------------------------------------------------------------------


@define
class _Sums:
    """The sums of a model in a pool while they are made; `last` is the node counted last."""

    total: Total
    nodes: int = 0
    last: str = ""

    def add(self, card: _AnyCard, kind: Device, held: Mapping[str, int]) -> None:
        is_healthy = card.health in (None, "ok")
        count(
            self.total,
            kind.capacity,
            card_units=kind.of_card(CORE),
            held=held,
            free=obtainable_of(kind, left_of(kind, held)) if held else kind.capacity,
            healthy=is_healthy,
            usable=is_healthy and card.cordon is None,
        )


_NOTHING: Mapping[str, int] = {}


@define
class _Ledger:
    """The sums by pool, vendor and model; the names of models as they are shown."""

    sums: dict[tuple[str | None, str, str], _Sums]
    names: dict[tuple[str, str], str]
    sick: list[SickCard]

    def add(
        self,
        node: NodeObject,
        kinds: Sequence[Device],
        cards: Iterable[_AnyCard],
        held: _Held,
    ) -> None:
        node_name, pool = node.metadata.name, pool_of(node.metadata.labels)
        entry_by_kind: dict[int, _Sums] = {}
        for card in cards:
            kind = kinds[card.kind]
            if card.kind not in entry_by_kind:
                entry_by_kind[card.kind] = self._entry(pool, kind, node_name)
            entry_by_kind[card.kind].add(card, kind, held.get(card.uuid, _NOTHING))
            if card.health not in (None, "ok"):
                self.sick.append(
                    SickCard(
                        node=node_name,
                        device_number=card.number,
                        vendor=kind.vendor,
                        model=self.names[kind.vendor, kind.model],
                        ailment=ailment_of(card.health) or "",
                        health=card.health or "",
                    )
                )

    def _entry(self, pool: str | None, kind: Device, node_name: str) -> _Sums:
        full_name = (kind.vendor, kind.model)
        if full_name not in self.names:
            self.names[full_name] = short_model_of(*full_name)
        key = (pool, kind.vendor, self.names[full_name])
        entry = self.sums.get(key)
        if entry is None:
            entry = self.sums[key] = _Sums(Total(vendor=kind.vendor, model=key[2]))
        if entry.last != node_name:
            entry.last, entry.nodes = node_name, entry.nodes + 1
        return entry

    def totals(self) -> tuple[PoolTotal, ...]:
        """Return the sums, those of the most cards first."""
        sums = (
            PoolTotal(pool=pool, nodes=entry.nodes, total=entry.total)
            for (pool, _, _), entry in self.sums.items()
            if entry.total.device_count
        )
        return tuple(sorted(sums, key=by_size))


def by_size(pool_total: PoolTotal) -> tuple[int, str, str, str]:
    """Return the key by which those of the most cards come first."""
    total = pool_total.total
    return -total.device_count, total.vendor, total.model, pool_total.pool or ""
