"""Prices a placement on every node, by the weights and the demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import define, field

from hetero.model import FITS, NOT_CHOSEN, Device, Templated
from hetero.model.rounding import Portion
from hetero.placement.cluster import PlacedContainer, PlacedPod
from hetero.placement.demand import Demand, RequestClass, request_class_of
from hetero.placement.mix import (
    POINTS,
    PRIOR,
    DemandClass,
    fragmentation,
    host_rate,
    whole_cards,
)
from hetero.placement.node_reason import DeviceVerdict, node_reason
from hetero.placement.node_values import NodeValue, NodeValues, PodClass, coarse
from hetero.placement.offer import cut_of, obstacle, offer, shortage
from hetero.placement.placement_policy import Weights
from hetero.placement.state import Cluster, Kind, State

#: Every placement costs less: sums over a node's devices stay below it.
DEAREST_COST = 1 << 92
#: A cost no placement has: the pod does not fit. Above what a node reservation adds (`price_rows`).
NEVER_COST = 4 * DEAREST_COST
#: How many pod profiles are kept; above that all are worked out anew.
_MOST_PROFILES = 4096
#: What a MiB and a percent of core cost of `Portion.surplus`: more than all else of a node by any
#: weights.
_MIB_COST, _PERCENT_COST = 1 << 56, 1 << 42
#: What one level of `Portion.downgrade` costs: more than that. The sums over a node's devices stay
#: below the next, and below DEAREST.
_DOWNGRADE_COST = 1 << 84
_END = PlacedContainer()  # separates one group of a pod's containers from the next


@define(eq=False)
class RequestProfile:
    """A class of requests, with what was worked out for it on the cards of this cluster."""

    request_class: RequestClass
    #: The cut each kind of card would give, by the kind's number; a verdict where it gives none.
    cuts: dict[int, Portion | str] = field(factory=dict)
    #: The thousandths of cards it takes in all, by the kind's number.
    sizes: dict[int, int] = field(factory=dict)
    #: What one cut of it costs, by a card's state.
    costs: list[int] = field(factory=list)
    #: The verdicts of cards, by their state.
    verdicts: list[DeviceVerdict] = field(factory=list)
    #: What it costs of a node's cards, by the states they are in.
    nodes: dict[tuple[int, ...], int] = field(factory=dict)
    #: Where pods come and go, by a card's state: what the cut costs by its shape, and the
    #: thousandths of the card that it leaves. None where the card gives no cut.
    left: list[tuple[int, int] | None] = field(factory=list)
    #: What it costs of a node, by its cards' states and the keys of its value before and after.
    losses: dict[tuple[tuple[int, ...], ...], int] = field(factory=dict)
    #: Why a node does not serve it, by the states of its cards.
    reasons: dict[tuple[int, ...], DeviceVerdict] = field(factory=dict)


@define(eq=False)
class PodProfile:
    """What equal pods have in common: their request of the devices and of the host.

    `exact`: a node whose cards' states have room has a place. Otherwise that takes a search.
    """

    profile_number: int
    pod: PlacedPod
    exact: bool
    profile: RequestProfile
    host: tuple[int, ...]


@define(eq=False)
class DemandStats:
    """What the demand says of how much a piece of a card or of a node is worth."""

    whole_cards: tuple[int, ...] = ()  # by the empty cards of a node
    #: (position of a host counter, points of card, amount): that many points of card are asked for
    #: with every such amount of the counter.
    rates: tuple[tuple[int, int, int], ...] = ()
    node_values: NodeValues | None = None  # where pods come and go


class Prices:
    """Pod profiles, and what each costs on every node of a cluster."""

    def __init__(self, cluster: Cluster, weights: Weights, demand_stats: DemandStats) -> None:
        """Price by `weights` and by `demand_stats`, which other prices may share."""
        self.cluster = cluster
        self.weights = weights
        self.demand_stats = demand_stats
        self._pod_profiles: dict[object, PodProfile] = {}
        self._profiles: dict[RequestClass, RequestProfile] = {}
        self._made = 0
        # The last pod and its profile: one decision asks several times.
        self._last: tuple[PlacedPod | None, PodProfile | None] = None, None

    def pod_profile(self, pod: PlacedPod) -> PodProfile:
        """Return the profile of a pod, a new one if no earlier pod was equal."""
        last_pod, last_profile = self._last
        if last_profile is not None and last_pod is pod:
            return last_profile
        profile_key = tuple(
            [
                (container.request, *container.host.items())
                for group in (pod.containers, pod.init, pod.sidecars)
                for container in (*group, _END)
            ]
        )
        pod_profile = self._pod_profiles.get(profile_key)
        if pod_profile is None:
            if len(self._pod_profiles) >= _MOST_PROFILES:
                self._pod_profiles.clear()
                self._profiles.clear()
            needs, request_class = pod.host(), request_class_of(pod)
            pod_profile = self._pod_profiles[profile_key] = PodProfile(
                profile_number=self._made,
                pod=pod,
                exact=request_class.plain
                and not (request_class.request and request_class.request.co_tenancy),
                profile=self.profile(request_class),
                host=tuple(needs.get(counter, 0) for counter in self.cluster.counters),
            )
            self._made += 1
        self._last = pod, pod_profile
        return pod_profile

    def profile(self, request_class: RequestClass) -> RequestProfile:
        """Return what is known of a class of requests."""
        return self._profiles.setdefault(request_class, RequestProfile(request_class))

    def forget(self) -> None:
        """Note that the demand statistics or the numbers of states changed."""
        for profile in self._profiles.values():
            profile.costs.clear()
            profile.verdicts.clear()
            profile.nodes.clear()
            profile.left.clear()
            profile.losses.clear()
            profile.reasons.clear()

    # --- what it costs --------------------------------------------------------------------------

    def cost(self, node_number: int, pod_profile: PodProfile) -> int:
        """Return the cost of a pod profile on a node by the weights; NEVER if it does not fit."""
        cluster, profile = self.cluster, pod_profile.profile
        if cluster.nodes[node_number].cordoned:
            return NEVER_COST
        for have, need in zip(cluster.host[node_number], pod_profile.host, strict=True):
            if need and have < need:
                return NEVER_COST
        node_values = self.node_values
        if node_values is not None:
            return self._loss(node_number, pod_profile, node_values)
        cost = 0
        states, weights = cluster.states_of[node_number], self.weights
        if profile.request_class.cards:
            device_cost = profile.nodes.get(states)
            if device_cost is None:
                choice = self._choose(states, profile)
                device_cost = profile.nodes[states] = NEVER_COST if choice is None else choice[0]
            if device_cost == NEVER_COST:
                return NEVER_COST
            cost = device_cost
        if weights.node and states:
            cost += weights.node * cluster.free_milli[node_number] // len(states)
        if weights.host:
            cost += weights.host * self._stranded_by(node_number, pod_profile)
        return cost

    @property
    def node_values(self) -> NodeValues | None:
        """The values of nodes for pods that come and go; None where these do not count."""
        return self.demand_stats.node_values if self.weights.usable else None

    def _loss(self, node_number: int, pod_profile: PodProfile, node_values: NodeValues) -> int:
        """Return by how much less a node serves with the pod on it, in steps of `coarse`."""
        cluster, profile = self.cluster, pod_profile.profile
        states = cluster.states_of[node_number]
        if profile.nodes.get(states) == NEVER_COST:  # quick: most nodes of a full cluster
            return NEVER_COST
        if not states:
            return NEVER_COST if profile.request_class.cards else 0
        kind, host_free = cluster.card_states.states[states[0]].kind, cluster.host[node_number]
        value_before = node_values.value(kind.kind_number, host_free)
        value_after = node_values.value(kind.kind_number, _without(host_free, pod_profile.host))
        loss_key = (states, value_before.key, value_after.key)
        loss = profile.losses.get(loss_key)
        if loss is None:
            loss = profile.losses[loss_key] = self._loss_of(
                states, profile, value_before, value_after
            )
            if loss == NEVER_COST:
                profile.nodes[states] = NEVER_COST
        return loss

    def _loss_of(
        self,
        states: tuple[int, ...],
        profile: RequestProfile,
        value_before: NodeValue,
        value_after: NodeValue,
    ) -> int:
        all_states, shape_units, cost, size_milli = self.cluster.card_states.states, 0, 0, 0
        if profile.request_class.cards:
            choice = self._choose(states, profile, value_after)
            if choice is None:
                return NEVER_COST
            shape_units, cost = divmod(choice[0], _PERCENT_COST)
            size_milli = self.size(profile, all_states[states[0]].kind)
        cost += value_before.node(states, all_states) - value_after.node(states, all_states)
        return shape_units * _PERCENT_COST + coarse(cost - size_milli * POINTS)

    def _stranded_by(self, node_number: int, pod_profile: PodProfile) -> int:
        """Return the points of card that the pod leaves without enough of the node's own counters.

        Most of the time of a decision is spent here: there is no call, and one loop for before and
        after.
        """
        cluster = self.cluster
        points_before = points_after = cluster.free_milli[node_number] * POINTS
        if pod_profile.profile.request_class.cards:
            kind = cluster.card_states.states[cluster.states_of[node_number][0]].kind
            points_after = max(points_after - self.size(pod_profile.profile, kind) * POINTS, 0)
        served_before, served_after = points_before, points_after
        host_free, needs = cluster.host[node_number], pod_profile.host
        for position, rate_points, rate_amount in self.demand_stats.rates:
            covered_points = host_free[position] * rate_points // rate_amount
            served_before = min(served_before, max(covered_points, 0))
            covered_points = (host_free[position] - needs[position]) * rate_points // rate_amount
            served_after = min(served_after, max(covered_points, 0))
        return (points_after - served_after) - (points_before - served_before)

    def choose(self, node_number: int, pod_profile: PodProfile) -> list[int]:
        """Return the positions of the cards to cut on a node; none if too few can be."""
        cluster, node_values, node_value = self.cluster, self.node_values, None
        card_states = cluster.cards[node_number]
        if node_values is not None and card_states:
            kind = cluster.card_states.states[cluster.states_of[node_number][0]].kind
            node_value = node_values.value(
                kind.kind_number, _without(cluster.host[node_number], pod_profile.host)
            )
        choice = self._choose(card_states, pod_profile.profile, node_value)
        return choice[1] if choice else []

    def _choose(
        self,
        card_states: Sequence[int],
        profile: RequestProfile,
        node_value: NodeValue | None = None,
    ) -> tuple[int, list[int]] | None:
        """Return the cost and the positions of the cards to cut, None if too few can be.

        `card_states` are the states of a node's cards; `node_value` is the node's value afterwards.
        """
        states, card_count = self.cluster.card_states.states, profile.request_class.cards
        empty_cards = sum(states[state_number].empty for state_number in card_states)
        costs: Mapping[int, int] | list[int]
        if node_value is None:
            costs, empty_card_cost = self._card_costs(profile), 0
        else:
            costs = self._card_losses(card_states, profile, node_value)
            empty_card_cost = (
                node_value.empty[empty_cards] - node_value.empty[max(empty_cards - 1, 0)]
            )
        ranked_cards = [
            (
                costs[state_number] + states[state_number].empty * empty_card_cost,
                states[state_number].empty,
                position,
            )
            for position, state_number in enumerate(card_states)
            if costs[state_number] < NEVER_COST
        ]
        if len(ranked_cards) < card_count:
            return None
        chosen_cards = [min(ranked_cards)] if card_count == 1 else sorted(ranked_cards)[:card_count]
        opened_cards = sum(is_empty for _, is_empty, _ in chosen_cards)
        cost = sum(cost for cost, _, _ in chosen_cards) - opened_cards * empty_card_cost
        if node_value is None:
            points = self.demand_stats.whole_cards
            cost += self.weights.whole_cards * (
                points[empty_cards - opened_cards] - points[empty_cards]
            )
        else:
            cost += node_value.empty[empty_cards] - node_value.empty[empty_cards - opened_cards]
        return cost, [position for _, _, position in chosen_cards]

    def _card_losses(
        self, card_states: Sequence[int], profile: RequestProfile, node_value: NodeValue
    ) -> dict[int, int]:
        """Return by how much one cut lowers the value of each of the cards, by their state."""
        states, left_by_state = self.cluster.card_states.states, profile.left
        for state in states[len(left_by_state) :]:
            cut = self.cut(state, profile)
            if cut is None:
                left_by_state.append(None)
                continue
            free = {
                counter: amount - cut.takes.get(counter, 0)
                for counter, amount in state.free.items()
            }
            left_by_state.append((_shape_cost(cut), state.kind.free_milli(free)))
        loss_by_state = {}
        for state_number in set(card_states):
            cost_and_milli = left_by_state[state_number]
            loss_by_state[state_number] = (
                NEVER_COST
                if cost_and_milli is None
                else cost_and_milli[0]
                + node_value.card(states[state_number].free_milli)
                - node_value.card(cost_and_milli[1])
            )
        return loss_by_state

    def _card_costs(self, profile: RequestProfile) -> list[int]:
        """Return the cost of one cut for every state of a card."""
        costs = profile.costs
        for state in self.cluster.card_states.states[len(costs) :]:
            cut = self.cut(state, profile)
            free = state.free
            if cut is None:
                costs.append(NEVER_COST)
            else:
                cost, *_ = self.policy(state.kind.device, free, cut)
                costs.append(_shape_cost(cut) + cost)
        return costs

    def policy(self, device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, ...]:
        """Return the cost of a cut by the device alone, by the weights: a `PlacementPolicy`."""
        kind, weights = self.cluster.card_states.kind(device), self.weights
        milli_before = kind.free_milli(free)
        milli_after = kind.free_milli(
            {counter: amount - cut.takes.get(counter, 0) for counter, amount in free.items()}
        )
        return (
            weights.fragmentation
            * (kind.fragmentation[milli_after] - kind.fragmentation[milli_before])
            + weights.card * milli_after,
        )

    # --- what is cut ----------------------------------------------------------------------------

    def size(self, profile: RequestProfile, kind: Kind) -> int:
        """Return the thousandths of cards that a request takes on cards of this kind."""
        size_milli = profile.sizes.get(kind.kind_number)
        if size_milli is None:
            cut, capacity = self._cut_of_kind(kind, profile), kind.device.capacity
            takes = {} if isinstance(cut, str) else cut.takes
            free = {counter: amount - takes.get(counter, 0) for counter, amount in capacity.items()}
            cut_milli = kind.free_milli(capacity) - kind.free_milli(free)
            size_milli = profile.sizes[kind.kind_number] = profile.request_class.cards * cut_milli
        return size_milli

    def demand(self, pod: PlacedPod) -> int:
        """Return the thousandths of cards a pod asks for, averaged over the kinds that serve."""
        return self._mean_size(self.pod_profile(pod).profile)

    def mean_size(self, request_class: RequestClass) -> int:
        """Return the thousandths of cards a class takes, averaged over the kinds that serve it."""
        return self._mean_size(RequestProfile(request_class))

    def _mean_size(self, profile: RequestProfile) -> int:
        sizes_milli = [
            size_milli
            for kind in self.cluster.card_states.kinds
            if (size_milli := self.size(profile, kind))
        ]
        return sum(sizes_milli) // len(sizes_milli) if sizes_milli else 0

    def cut(self, state: State, profile: RequestProfile) -> Portion | None:
        """Return what a card in this state gives, None if nothing."""
        kind, request = state.kind, profile.request_class.request
        if request is None:
            return None
        if isinstance(kind.device.granularity, Templated):  # the template depends on what is free
            cut = cut_of(kind.device, request.asks[0], request, state.free)
        else:
            cut = self._cut_of_kind(kind, profile)
        if isinstance(cut, str) or obstacle(kind.device, cut, request, state.free):
            return None
        return cut

    def _cut_of_kind(self, kind: Kind, profile: RequestProfile) -> Portion | str:
        """Return what an empty card of the kind gives, or why it does not."""
        cut = profile.cuts.get(kind.kind_number)
        if cut is None:
            request = profile.request_class.request
            cut = (
                NOT_CHOSEN
                if request is None
                else cut_of(kind.device, request.asks[0], request, kind.device.capacity)
            )
            profile.cuts[kind.kind_number] = cut
        return cut

    # --- why not --------------------------------------------------------------------------------

    def reason(self, node_number: int, pod_profile: PodProfile) -> DeviceVerdict:
        """Return why a pod does not fit on a node, with numbers."""
        cluster, profile = self.cluster, pod_profile.profile
        if cluster.nodes[node_number].cordoned:
            return "cordoned", None
        for position, need in enumerate(pod_profile.host):
            if need and cluster.host[node_number][position] < need:
                return f"lack host {cluster.counters[position]}", None
        states = cluster.states_of[node_number]
        if states not in profile.reasons:
            verdicts = self._verdicts(profile)
            profile.reasons[states] = node_reason(
                (verdicts[state_number] for state_number in states),
                wanted_devices=profile.request_class.cards,
            )
        return profile.reasons[states]

    def _verdicts(self, profile: RequestProfile) -> list[DeviceVerdict]:
        """Return the verdicts of cards, by their state."""
        verdicts, request = profile.verdicts, profile.request_class.request
        for state in self.cluster.card_states.states[len(verdicts) :]:
            if request is None:
                verdicts.append((FITS, None))
                continue
            device, ask = state.kind.device, request.asks[0]
            device_offer = offer(device, ask, request, state.free)
            verdicts.append(
                (device_offer, shortage(device, ask, request, state.free))
                if isinstance(device_offer, str)
                else (FITS, None)
            )
        return verdicts

    # --- what is learned ------------------------------------------------------------------------

    def learn(self, demand: Demand) -> None:
        """Work out from the pods that came so far what pieces of cards and nodes are worth."""
        profiles = [(self.profile(demand_class), times) for demand_class, times in demand.times()]
        fragmentation_by_demands: dict[tuple[DemandClass, ...], tuple[int, ...]] = {}
        sizes_milli: list[list[int]] = [[] for _ in profiles]
        for kind in self.cluster.card_states.kinds:
            demands = list(PRIOR)
            for position, (profile, times) in enumerate(profiles):
                size_milli = self.size(profile, kind) // profile.request_class.cards
                if size_milli:
                    sizes_milli[position].append(size_milli)
                    demands.append(
                        DemandClass(times=times, cards=profile.request_class.cards, size=size_milli)
                    )
            demands_key = tuple(demands)
            kind.fragmentation = (
                fragmentation_by_demands[demands_key]
                if demands_key in fragmentation_by_demands
                else fragmentation_by_demands.setdefault(demands_key, fragmentation(demands))
            )
        demands_of_all = [
            DemandClass(
                times=times, cards=profile.request_class.cards, size=sum(sizes) // len(sizes)
            )
            for (profile, times), sizes in zip(profiles, sizes_milli, strict=True)
            if sizes
        ]
        most_cards = max(map(len, self.cluster.cards), default=0)
        self.demand_stats.whole_cards = whole_cards(
            (*PRIOR, *demands_of_all), most_cards=most_cards
        )
        card_points = (
            sum(
                demand_class.times * demand_class.cards * demand_class.size
                for demand_class in demands_of_all
            )
            * POINTS
        )
        rates = (host_rate(card_points, demand.asked(counter)) for counter in self.cluster.counters)
        self.demand_stats.rates = tuple(
            (position, rate.points, rate.amount) for position, rate in enumerate(rates) if rate
        )
        self.demand_stats.node_values = (
            NodeValues(self._pod_classes(demand), self.cluster) if demand.pods_end else None
        )

    def _pod_classes(self, demand: Demand) -> Iterator[PodClass]:
        for request_class, needs, times in demand.pods():
            profile, host_needs = self.profile(request_class), dict(needs)
            milli_by_kind = {
                kind.kind_number: size_milli // request_class.cards
                for kind in self.cluster.card_states.kinds
                if (size_milli := self.size(profile, kind))
            }
            if milli_by_kind:
                needs_by_position = tuple(
                    host_needs.get(counter, 0) for counter in self.cluster.counters
                )
                yield PodClass(times, request_class.cards, milli_by_kind, needs_by_position)


def of_least_shapes(costs: Mapping[str, int]) -> dict[str, int]:
    """Return those of nodes' costs which are least by shapes, whose costs dwarf all others."""
    least_cost = min(costs.values(), default=0)
    return {
        node_name: cost
        for node_name, cost in costs.items()
        if cost - least_cost < _PERCENT_COST // 2
    }


def _without(host_free: Sequence[int], needs: Sequence[int]) -> list[int]:
    return [amount - need for amount, need in zip(host_free, needs, strict=True)]


def _shape_cost(cut: Portion) -> int:
    """Return what a cut costs because it is not quite what was asked."""
    mib, percent = cut.surplus
    return cut.downgrade * _DOWNGRADE_COST + mib * _MIB_COST + percent * _PERCENT_COST
