"""What is left of every node of a cluster, with one state for all equal cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import define, evolve

from hetero.model import SLOTS, Device
from hetero.model.errors import BadInput, NotFound
from hetero.placement.cluster import PlacedNode, Placement
from hetero.placement.mix import CARD_MILLI
from hetero.placement.offer import HEADS

#: The amount of a counter that a node does not declare, and the most it can declare: 16 TiB of
#: memory. Times a `HostRate`'s 18 bits of points it stays within 64 bits.
UNLIMITED_AMOUNT = 1 << 44

_SPARE_STATE_COUNT = 1000  # so many unused states are kept


@define(eq=False)
class Kind:
    """Devices that divide and count alike; `device` is an example."""

    kind_number: int
    device: Device
    #: Points of a card that stay unused, by its room; learned (see `hetero.placement.mix`).
    fragmentation: tuple[int, ...] = (0,) * (CARD_MILLI + 1)

    def free_milli(self, free: Mapping[str, int]) -> int:
        """Return the thousandths of the card that are left: of its scarcest counter."""
        if free[SLOTS] <= 0:
            return 0
        scarcest_milli = min(
            (
                free[counter] * CARD_MILLI // amount
                for counter, amount in self.device.capacity.items()
                if amount and counter not in HEADS
            ),
            default=0,
        )
        return max(scarcest_milli, 0)  # pods that wait for evictions hold more than there is


@define(eq=False)
class State:
    """What cards of one kind with the same free counters have in common."""

    kind: Kind
    free: dict[str, int]
    free_milli: int
    empty: bool


class CardStates:
    """The kinds of cards and the states that cards are in; both lists go by their number."""

    def __init__(self) -> None:
        """Start without any."""
        self.kinds: list[Kind] = []
        self.states: list[State] = []
        self._kinds_of: dict[object, list[Kind]] = {}
        self._state_of: dict[object, int] = {}

    def kind(self, device: Device) -> Kind:
        """Return the kind of a device, a new one if none is like it."""
        counted = (tuple(device.capacity.items()), tuple(device.card.items()))
        reason = None if device.usable else device.condition  # a verdict says it of all of a kind
        context_bytes = device.counted_context_bytes
        key = (device.vendor, device.model, device.enforcement, context_bytes, reason, counted)
        for kind in self._kinds_of.setdefault(key, []):
            granularity, known = device.granularity, kind.device.granularity
            if granularity is known or granularity == known:  # equality walks whole menus
                return kind
        made = Kind(kind_number=len(self.kinds), device=device)
        self._kinds_of[key].append(made)
        self.kinds.append(made)
        return made

    def number(self, kind: Kind, free: tuple[int, ...]) -> int:
        """Return the number of the state of a card with these counters free."""
        key = (kind.kind_number, free)
        number = self._state_of.get(key)
        if number is None:
            number = self._state_of[key] = len(self.states)
            counters = dict(zip(kind.device.capacity, free, strict=True))
            usable = kind.device.usable
            self.states.append(
                State(
                    kind=kind,
                    free=counters,
                    free_milli=kind.free_milli(counters) if usable else 0,
                    empty=usable and counters == dict(kind.device.capacity),
                )
            )
        return number

    def compact(self, live: list[int]) -> dict[int, int]:
        """Forget all states but these; return their new numbers, by the old ones."""
        now = {old: new for new, old in enumerate(live)}
        self.states = [self.states[old] for old in live]
        self._state_of = {k: now[old] for k, old in self._state_of.items() if old in now}
        return now


class Cluster:
    """The nodes with what is left of each. All lists go by the node's number."""

    def __init__(self, nodes: Iterable[PlacedNode]) -> None:
        """Start with everything free. Raises `BadInput` for what cannot be a cluster."""
        self.nodes: list[PlacedNode] = []
        self.number: dict[str, int] = {}  # of a node, by name
        self.where: dict[str, tuple[int, int]] = {}  # UUID -> node, position on it
        self.card_states = CardStates()
        self.cards: list[list[int]] = []  # states of the devices
        self.states_of: list[tuple[int, ...]] = []  # the same, sorted: alike nodes have the same
        self.host: list[list[int]] = []  # what is left, by counter
        self.free_milli: list[int] = []  # thousandths of a card, over all usable devices
        #: Nodes with the same number cost the same: their cards, host and cordon are alike.
        self.alike: list[int] = []
        #: Nodes on which it takes a search which devices go together: groups, several vendors.
        self.mixed: set[int] = set()
        self._alike_of: dict[object, int] = {}
        node_list = list(nodes)
        self.counters = tuple(sorted({counter for node in node_list for counter in node.host}))
        for node in node_list:
            self.add(node)

    def add(self, node: PlacedNode) -> None:
        """Take in one more node, all free. Raises `BadInput`."""
        unknown_counters = set(node.host) - set(self.counters)
        if unknown_counters:
            raise BadInput(
                f"node {node.name!r} counts {', '.join(unknown_counters)}: no node here did"
            )
        if node.name in self.number:
            raise BadInput(f"node {node.name!r} is there twice")
        for counter, amount in node.host.items():
            if amount > UNLIMITED_AMOUNT:
                raise BadInput(
                    f"node {node.name!r}: {counter} {amount} is more than {UNLIMITED_AMOUNT}"
                )
        node_number = self.number[node.name] = len(self.nodes)
        for position, device in enumerate(node.devices):
            if device.uuid in self.where:
                raise BadInput(f"node {node.name!r}: device {device.uuid!r} is there twice")
            self.where[device.uuid] = (node_number, position)
        card_states = [
            self._state(device, tuple(device.capacity.values())) for device in node.devices
        ]
        self.nodes.append(node)
        self.cards.append(card_states)
        self.states_of.append(tuple(sorted(card_states)))
        self.host.append([node.host.get(counter, UNLIMITED_AMOUNT) for counter in self.counters])
        self.free_milli.append(
            sum(self.card_states.states[state_number].free_milli for state_number in card_states)
        )
        self.alike.append(0)
        self._count_alike(node_number)
        vendors_of_node = {device.vendor for device in node.devices}
        if len(vendors_of_node) > 1 or any(device.group is not None for device in node.devices):
            self.mixed.add(node_number)

    def compact(self) -> bool:
        """Forget unused states, if they are most; return whether state numbers changed."""
        live_states = sorted(
            {state_number for card_states in self.cards for state_number in card_states}
        )
        if len(self.card_states.states) <= 2 * len(live_states) + _SPARE_STATE_COUNT:
            return False
        new_number_of = self.card_states.compact(live_states)
        self.cards = [
            [new_number_of[state_number] for state_number in card_states]
            for card_states in self.cards
        ]
        self.states_of = [tuple(sorted(card_states)) for card_states in self.cards]
        self._count_all_alike()
        return True

    def free(self, node_number: int) -> dict[str, dict[str, int]]:
        """Return what is left of the node's devices, by UUID."""
        card_states = zip(self.nodes[node_number].devices, self.cards[node_number], strict=True)
        return {device.uuid: self.card_states.states[card].free for device, card in card_states}

    def left(self) -> int:
        """Return the thousandths of cards that are left, over all usable devices."""
        return sum(self.free_milli)

    def empty(self) -> list[int]:
        """Return how many devices of each node nobody holds anything of."""
        states = self.card_states.states
        return [sum(states[card].empty for card in cards) for cards in self.cards]

    def whole_nodes(self) -> int:
        """Return how many nodes have devices of which nobody holds anything."""
        states = self.card_states.states
        return sum(
            all(states[card].empty for card in card_states)
            for card_states in self.cards
            if card_states
        )

    def update(self, node: PlacedNode) -> None:
        """Note what else of a node changed: its own counters, and whether it is cordoned."""
        node_number = self.number[node.name]
        old_host, host_free = self.nodes[node_number].host, self.host[node_number]
        for position, counter in enumerate(self.counters):
            host_free[position] += node.host.get(counter, UNLIMITED_AMOUNT) - old_host.get(
                counter, UNLIMITED_AMOUNT
            )
        self.nodes[node_number] = node
        self._count_alike(node_number)

    def move(self, placement: Placement, *, direction: int) -> int:
        """Take (`direction` 1) or give back (-1) what a placement holds; return its node number."""
        node_number = self.number[placement.node]
        host_free = self.host[node_number]
        for position, counter in enumerate(self.counters):
            if counter in self.nodes[node_number].host:
                host_free[position] -= direction * placement.host.get(counter, 0)
        for usage in placement.holds:
            owner_number, device_position = self.where.get(usage.device, (-1, 0))
            if owner_number != node_number:  # it is gone from there
                continue
            old_state = self.card_states.states[self.cards[owner_number][device_position]]
            free_amounts = tuple(
                amount - direction * usage.takes.get(counter, 0)
                for counter, amount in old_state.free.items()
            )
            self._change_state(
                owner_number, device_position, self.card_states.number(old_state.kind, free_amounts)
            )
        self._count_alike(node_number)
        return node_number

    def replace(self, device: Device) -> int:
        """Note that a device changed (its health, say) and return its node's number."""
        if device.uuid not in self.where:
            raise NotFound(f"no device {device.uuid!r} in this cluster")
        node_number, position = self.where[device.uuid]
        node = self.nodes[node_number]
        device_free = self.card_states.states[self.cards[node_number][position]].free
        if set(device_free) != set(device.capacity):
            raise BadInput(f"device {device.uuid!r} now counts other things than before")
        old_capacity = node.devices[position].capacity
        free_amounts = tuple(
            device_free[counter] + device.capacity[counter] - old_capacity[counter]
            for counter in device.capacity
        )
        devices = (*node.devices[:position], device, *node.devices[position + 1 :])
        self.nodes[node_number] = evolve(node, devices=devices)
        self._change_state(node_number, position, self._state(device, free_amounts))
        self._count_alike(node_number)
        return node_number

    def _state(self, device: Device, free_amounts: tuple[int, ...]) -> int:
        return self.card_states.number(self.card_states.kind(device), free_amounts)

    def _change_state(self, node_number: int, position: int, state_number: int) -> None:
        """Let a device of the node be in another state."""
        states = self.card_states.states
        old_state, new_state = states[self.cards[node_number][position]], states[state_number]
        self.cards[node_number][position] = state_number
        self.states_of[node_number] = tuple(sorted(self.cards[node_number]))
        self.free_milli[node_number] += new_state.free_milli - old_state.free_milli

    def _count_alike(self, node_number: int) -> None:
        """Note which nodes this node is equal to."""
        likeness_key = (
            self.states_of[node_number],
            self.nodes[node_number].cordoned,
            *self.host[node_number],
        )
        self.alike[node_number] = self._alike_of.setdefault(likeness_key, len(self._alike_of))
        if len(self._alike_of) > 2 * len(self.nodes) + _SPARE_STATE_COUNT:
            self._count_all_alike()

    def _count_all_alike(self) -> None:
        """Compute anew which nodes are equal."""
        self._alike_of.clear()
        for node_number in range(len(self.nodes)):
            self._count_alike(node_number)
