"""The costs of pod profiles on every node, kept up to date by the nodes that changed."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappush
from typing import Protocol

from attrs import define, field

from hetero.model import Refusal
from hetero.placement.cluster import PlacedPod, Placement
from hetero.placement.demand import Demand
from hetero.placement.node_reason import DeviceVerdict, node_reason
from hetero.placement.node_reservations import NodeReservations
from hetero.placement.place_pod import MOST_TRIES
from hetero.placement.placement_policy import Weights
from hetero.placement.price import DEAREST_COST, NEVER_COST, DemandStats, PodProfile, Prices
from hetero.placement.state import Cluster

#: What is added to the cost of a reserved node for all other pods: more than any cost.
RESERVED_COST = 2 * DEAREST_COST
#: How many pod profiles have a row, and how many changes are kept for these.
_MOST_ROWS, _MOST_CHANGES = 1024, 100_000
#: After so many new states of cards, those that no card is in any more are forgotten.
_MOST_STATES = 20_000
#: A pod with more than a few asking containers is tried so often on all nodes together: 0.5 s.
_FEW_CONTAINERS, _ROW_TRIES = 4, 4 * MOST_TRIES


class PlaceOnNode(Protocol):
    """Places a pod on a node by a search."""

    def __call__(self, pod: PlacedPod, node_name: str, *, most_tries: int) -> Placement | Refusal:
        """Try each device `most_tries` times for a request."""


@define(eq=False)
class PriceRow:
    """The costs of a pod profile on every node, as of a position in the list of changes."""

    pod_profile: PodProfile
    #: By the node's number: NEVER where it does not fit, `RESERVED` more where it is reserved.
    costs: list[int] = field(factory=list)
    #: (cost, number) of every node it fits on, the cheapest first, among what is out of date.
    heap: list[tuple[int, int]] = field(factory=list)
    #: By number, the reasons of nodes that seemed to serve and cannot place the pod.
    reasons: dict[int, DeviceVerdict] = field(factory=dict)
    upto: int = 0


class PriceRows:
    """A cluster's prices by weights, with a row of costs for each pod profile in use.

    Costs follow a change of a node when the row is next read.
    """

    def __init__(
        self, cluster: Cluster, reservations: NodeReservations, place_on_node: PlaceOnNode
    ) -> None:
        """Start without rows; `place_on_node` searches where a price alone does not decide."""
        self.cluster = cluster
        self.kinds = {node.name: _kinds(cluster, node.name) for node in cluster.nodes}
        self._reservations = reservations
        self._place = place_on_node
        self._demand_stats = DemandStats()
        self._prices: dict[Weights, Prices] = {}
        self._rows: dict[tuple[Weights, int], PriceRow] = {}
        self._changes: list[int] = []
        self._learned_kinds = 0
        self._most_states = _MOST_STATES

    def __len__(self) -> int:
        """Return how many rows are kept."""
        return len(self._rows)

    def prices(self, weights: Weights) -> Prices:
        """Return the prices by these weights."""
        prices = self._prices.get(weights)
        if prices is None:
            prices = self._prices[weights] = Prices(self.cluster, weights, self._demand_stats)
        return prices

    def changed(self, node_number: int) -> None:
        """Note that a node, or what is left of it, changed."""
        self._changes.append(node_number)

    def reservation_changed(self, node_names: Iterable[str]) -> None:
        """Note that nodes were reserved or released."""
        number_by_name = self.cluster.number
        self._changes += [
            number_by_name[node_name] for node_name in node_names if node_name in number_by_name
        ]

    def node_changed(self, node_name: str, *, device_count: int) -> bool:
        """Note what a node has now; return whether the demand has to be learned anew."""
        self.kinds[node_name] = _kinds(self.cluster, node_name)
        self.changed(self.cluster.number[node_name])
        has_more_devices = device_count >= len(self._demand_stats.whole_cards)
        return has_more_devices or len(self.cluster.card_states.kinds) > self._learned_kinds

    @property
    def has_stale_states(self) -> bool:
        """Whether so many new states of cards appeared that most may be forgotten."""
        return len(self.cluster.card_states.states) > self._most_states

    def learn(self, demand: Demand, weights: Weights) -> None:
        """Learn from the demand, and forget what was worked out before."""
        self.cluster.compact()
        self.prices(weights).learn(demand)
        for prices in self._prices.values():
            prices.forget()
        self.clear()
        self._learned_kinds = len(self.cluster.card_states.kinds)
        self._most_states = 2 * len(self.cluster.card_states.states) + _MOST_STATES

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()
        self._changes.clear()

    def row(self, pod: PlacedPod, weights: Weights) -> PriceRow:
        """Return the costs of the pod on every node, brought up to date."""
        prices = self.prices(weights)
        if len(self._changes) > _MOST_CHANGES:
            self.clear()
        pod_profile = prices.pod_profile(pod)
        row_key = (prices.weights, pod_profile.profile_number)
        row = self._rows.pop(row_key, None)
        if row is None:
            row = self._new_row(pod_profile, prices)
            if len(self._rows) >= _MOST_ROWS:
                del self._rows[next(iter(self._rows))]
        elif row.upto < len(self._changes):
            costs, heap = row.costs, row.heap
            costs += [NEVER_COST] * (len(self.cluster.nodes) - len(costs))
            for node_number in set(self._changes[row.upto :]):
                cost = self._cost(node_number, row, prices)
                if cost != costs[node_number]:
                    costs[node_number] = cost
                    if cost < NEVER_COST:
                        heappush(heap, (cost, node_number))
            if len(heap) > 4 * len(costs):
                row.heap = _heap(costs)
        row.upto = len(self._changes)
        self._rows[row_key] = row  # the last used is the last
        return row

    def _new_row(self, pod_profile: PodProfile, prices: Prices) -> PriceRow:
        row, cluster = PriceRow(pod_profile), self.cluster
        searched_numbers: Iterable[int] = range(len(cluster.nodes))
        if pod_profile.exact:
            searched_numbers = (
                cluster.mixed if pod_profile.profile.request_class.request is not None else ()
            )
        reserved_names = self._reservations.nodes
        reserved_numbers = (
            cluster.number[reserved_name]
            for reserved_name in reserved_names
            if reserved_name in cluster.number
        )
        # Most of thousands of nodes are equal: the cost is computed for one of each kind.
        example_by_likeness = dict(zip(cluster.alike, range(len(cluster.nodes)), strict=True))
        cost_by_likeness = {
            likeness: prices.cost(node_number, pod_profile)
            for likeness, node_number in example_by_likeness.items()
        }
        row.costs = [cost_by_likeness[likeness] for likeness in cluster.alike]
        tried_numbers = {*searched_numbers, *reserved_numbers}
        # No other request is answered meanwhile, so many nodes may take no longer than few.
        most_tries = (
            MOST_TRIES
            if _asking(pod_profile.pod) <= _FEW_CONTAINERS
            else _ROW_TRIES // max(1, len(tried_numbers))
        )
        for node_number in tried_numbers:
            row.costs[node_number] = self._cost(
                node_number, row, prices, most_tries=min(MOST_TRIES, max(1, most_tries))
            )
        row.heap = _heap(row.costs)
        return row

    def _cost(
        self, node_number: int, row: PriceRow, prices: Prices, *, most_tries: int = MOST_TRIES
    ) -> int:
        """Return the cost on a node; NEVER where it has no place, with the reason in the row."""
        cost, cluster = prices.cost(node_number, row.pod_profile), self.cluster
        row.reasons.pop(node_number, None)
        if cost == NEVER_COST:
            return NEVER_COST
        node_name = cluster.nodes[node_number].name
        if not is_exact(row.pod_profile, node_number, cluster):  # the price alone does not decide
            placement = self._place(row.pod_profile.pod, node_name, most_tries=most_tries)
            if isinstance(placement, Refusal):
                row.reasons[node_number] = _reason(placement)
                return NEVER_COST
        return cost + RESERVED_COST if node_name in self._reservations.nodes else cost


def is_exact(pod_profile: PodProfile, node_number: int, cluster: Cluster) -> bool:
    """Return whether a node serves for certain where its cards' states say so."""
    return pod_profile.exact and (
        node_number not in cluster.mixed or pod_profile.profile.request_class.request is None
    )


def _asking(pod: PlacedPod) -> int:
    containers = (*pod.sidecars, *pod.containers, *pod.init)
    return sum(container.request is not None for container in containers)


def _heap(costs: list[int]) -> list[tuple[int, int]]:
    heap = [(cost, node_number) for node_number, cost in enumerate(costs) if cost < NEVER_COST]
    heapify(heap)
    return heap


def _kinds(cluster: Cluster, node_name: str) -> frozenset[int]:
    """Return the kinds of a node's cards."""
    card_states = cluster.cards[cluster.number[node_name]]
    return frozenset(
        cluster.card_states.states[state_number].kind.kind_number for state_number in card_states
    )


def _reason(refusal: Refusal) -> DeviceVerdict:
    """Return in a few words why a node does not serve, with numbers."""
    if refusal.missing is None and refusal.group is None:
        shortages = refusal.shortages
        verdicts = ((verdict, shortages.get(verdict)) for verdict in refusal.verdicts.values())
        return node_reason(verdicts, wanted_devices=refusal.wanted)
    return f"cannot place it ({refusal.sentence})", None
