"""Sums over the cards of a cluster, by pool of nodes and model: fast enough for thousands of nodes.

`cluster_view` says more of each card, and takes a hundred times as long. Both count alike: what it
does with objects of the model is done here with what the annotations say. A node of which these say
more than its cards is left to `cluster_view`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

from attrs import define, evolve, field, frozen
from msgspec import MsgspecError, Struct, json

from hetero.kube.cluster_objects import ClusterObjects
from hetero.kube.objects.kinds import NodeObject, Pod
from hetero.kube.words.annotations import ALLOCATION, CORDONED, HAMI_CORDON, INVENTORY
from hetero.kube.words.pod import ended, kinds
from hetero.model import CORE, MEMORY, SLOTS, ContainerKind, Counters
from hetero.model.device import ailment_of, short_model_of
from hetero.model.json_keys import json_key
from hetero.model.occupancy import obtainable, peak
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
            ledger.add(node, rack.kinds, rack.numbered(), held)
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


class _Template(Struct, frozen=True):
    takes: dict[str, int]


class _Granularity(Struct, frozen=True):
    whole: bool = True
    menu: tuple[_Template, ...] = ()


_WHOLE_CARD = _Granularity()


class _AnyKind(Protocol):
    """What cards have in common: as an inventory says it, or one that stands for its like."""

    @property
    def vendor(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def capacity(self) -> Counters: ...
    @property
    def card(self) -> Counters: ...
    @property
    def part_takes(self) -> tuple[Counters, ...]: ...


class _AnyCard(Protocol):
    """A card of an inventory or of a pool of slices."""

    uuid: str
    kind: int
    health: str | None
    cordon: str | None
    number: int


class _Kind(Struct):
    vendor: str
    model: str
    capacity: dict[str, int]
    card: dict[str, int] = {}
    granularity: _Granularity = _WHOLE_CARD

    @property
    def part_takes(self) -> tuple[Counters, ...]:
        """What the parts take of a card that is given by its parts alone, as `Device` has it."""
        granularity = self.granularity
        return () if granularity.whole else tuple(part.takes for part in granularity.menu)


class _Card(Struct):
    uuid: str
    kind: int
    health: str | None = None
    cordon: str | None = None
    number: int = 0


class _Rack(Struct, forbid_unknown_fields=True):
    version: int = 1
    kinds: tuple[_Kind, ...] = ()
    cards: tuple[_Card, ...] = ()

    def numbered(self) -> tuple[_Card, ...]:
        """Return the cards, each with its position as its number."""
        for position, card in enumerate(self.cards):
            card.number = position
        return self.cards

    @property
    def is_sound(self) -> bool:
        """Whether nothing of it is refused."""
        return (
            self.version == 1
            and len({card.uuid for card in self.cards}) == len(self.cards)
            and all(_NEEDED <= kind.capacity.keys() for kind in self.kinds)
            and all(0 <= card.kind < len(self.kinds) for card in self.cards)
        )


_DECODER = json.Decoder(_Rack)


def _plain_rack(text: str) -> _Rack | None:
    """Return what an inventory says; None where it says more than cards, or cannot be read."""
    try:
        rack = _DECODER.decode(text)
    except MsgspecError:
        return None
    return rack if rack.is_sound else None


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

    def add(self, card: _AnyCard, kind: _AnyKind, held: Mapping[str, int]) -> None:
        is_healthy = card.health in (None, "ok")
        left_counters = (
            {counter: amount - held.get(counter, 0) for counter, amount in kind.capacity.items()}
            if held
            else kind.capacity
        )
        count(
            self.total,
            kind.capacity,
            card_units=kind.card.get(CORE, kind.capacity[CORE]),
            held=held,
            free=obtainable(left_counters, capacity=kind.capacity, part_takes=kind.part_takes),
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
        kinds: Sequence[_AnyKind],
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

    def _entry(self, pool: str | None, kind: _AnyKind, node_name: str) -> _Sums:
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
