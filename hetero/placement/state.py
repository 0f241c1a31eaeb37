"""What every node of a cluster has left, kept in a form in which alike cards are one thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import define, evolve

from hetero.model import SLOTS, Device
from hetero.model.errors import BadInput, NotFound
from hetero.placement.cluster import PlacedNode, Placement
from hetero.placement.mix import CARD_MILLI
from hetero.placement.offer import HEADS

#: What a node has of a counter it does not declare, and the most one can declare: 16 TiB of memory.
#: Times a `HostRate`'s 18 bits of points it stays within 64.
UNLIMITED = 1 << 44

_SPARE = 1000  # states nobody is in that are not worth forgetting


@define(eq=False)
class Kind:
    """Devices that divide and count alike; `device` stands for all of them."""

    number: int
    device: Device
    #: Points of a card that stay unused, by its room; learned (see `hetero.placement.mix`).
    fragmentation: tuple[int, ...] = (0,) * (CARD_MILLI + 1)

    def free_milli(self, free: Mapping[str, int]) -> int:
        """Return the thousandths of the card that are left: of its scarcest counter."""
        if free[SLOTS] <= 0:
            return 0
        left = min(
            (
                free[name] * CARD_MILLI // amount
                for name, amount in self.device.capacity.items()
                if amount and name not in HEADS
            ),
            default=0,
        )
        return max(left, 0)  # more may be held than there is, for those that wait for others to go


@define(eq=False)
class State:
    """What cards of one kind with the same counters free have in common."""

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
        key = (device.vendor, device.model, device.enforcement, device.usable, counted)
        for kind in self._kinds_of.setdefault(key, []):
            granularity, known = device.granularity, kind.device.granularity
            if granularity is known or granularity == known:  # equality walks whole menus
                return kind
        made = Kind(number=len(self.kinds), device=device)
        self._kinds_of[key].append(made)
        self.kinds.append(made)
        return made

    def number(self, kind: Kind, free: tuple[int, ...]) -> int:
        """Return the number of the state of a card with these counters free."""
        key = (kind.number, free)
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
        given = list(nodes)
        self.counters = tuple(sorted({name for node in given for name in node.host}))
        for node in given:
            self.add(node)

    def add(self, node: PlacedNode) -> None:
        """Take in one more node, all free. Raises `BadInput`."""
        unknown = set(node.host) - set(self.counters)
        if unknown:
            raise BadInput(f"node {node.name!r} counts {', '.join(unknown)}: no node here did")
        if node.name in self.number:
            raise BadInput(f"node {node.name!r} is there twice")
        for counter, amount in node.host.items():
            if amount > UNLIMITED:
                raise BadInput(f"node {node.name!r}: {counter} {amount} is more than {UNLIMITED}")
        number = self.number[node.name] = len(self.nodes)
        for position, device in enumerate(node.devices):
            if device.uuid in self.where:
                raise BadInput(f"node {node.name!r}: device {device.uuid!r} is there twice")
            self.where[device.uuid] = (number, position)
        cards = [self._state(device, tuple(device.capacity.values())) for device in node.devices]
        self.nodes.append(node)
        self.cards.append(cards)
        self.states_of.append(tuple(sorted(cards)))
        self.host.append([node.host.get(name, UNLIMITED) for name in self.counters])
        self.free_milli.append(sum(self.card_states.states[card].free_milli for card in cards))
        self.alike.append(0)
        self._count_alike(number)
        vendors = {device.vendor for device in node.devices}
        if len(vendors) > 1 or any(device.group is not None for device in node.devices):
            self.mixed.add(number)

    def compact(self) -> bool:
        """Forget states no card is in any more, if they are most; whether numbers changed."""
        live = sorted({card for cards in self.cards for card in cards})
        if len(self.card_states.states) <= 2 * len(live) + _SPARE:
            return False
        now = self.card_states.compact(live)
        self.cards = [[now[card] for card in cards] for cards in self.cards]
        self.states_of = [tuple(sorted(cards)) for cards in self.cards]
        self._count_all_alike()
        return True

    def free(self, number: int) -> dict[str, dict[str, int]]:
        """Return what is left of the node's devices, by UUID."""
        cards = zip(self.nodes[number].devices, self.cards[number], strict=True)
        return {device.uuid: self.card_states.states[card].free for device, card in cards}

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
        return sum(all(states[card].empty for card in cards) for cards in self.cards if cards)

    def update(self, node: PlacedNode) -> None:
        """Note what else of a node changed: its own counters, and whether it is cordoned."""
        number = self.number[node.name]
        was, left = self.nodes[number].host, self.host[number]
        for place, counter in enumerate(self.counters):
            left[place] += node.host.get(counter, UNLIMITED) - was.get(counter, UNLIMITED)
        self.nodes[number] = node
        self._count_alike(number)

    def move(self, placement: Placement, *, times: int) -> int:
        """Take (`times` 1) or give back (-1) what a placement holds; return its node's number."""
        number = self.number[placement.node]
        left = self.host[number]
        for place, counter in enumerate(self.counters):
            if counter in self.nodes[number].host:
                left[place] -= times * placement.host.get(counter, 0)
        for usage in placement.holds:
            node, position = self.where.get(usage.device, (-1, 0))
            if node != number:  # it is gone from there
                continue
            old = self.card_states.states[self.cards[node][position]]
            free = tuple(
                amount - times * usage.takes.get(name, 0) for name, amount in old.free.items()
            )
            self._change_state(node, position, self.card_states.number(old.kind, free))
        self._count_alike(number)
        return number

    def replace(self, device: Device) -> int:
        """Note that a device changed (its health, say) and return its node's number."""
        if device.uuid not in self.where:
            raise NotFound(f"no device {device.uuid!r} in this cluster")
        number, position = self.where[device.uuid]
        node = self.nodes[number]
        free = self.card_states.states[self.cards[number][position]].free
        if set(free) != set(device.capacity):
            raise BadInput(f"device {device.uuid!r} now counts other things than before")
        before = node.devices[position].capacity
        left = tuple(free[name] + device.capacity[name] - before[name] for name in device.capacity)
        devices = (*node.devices[:position], device, *node.devices[position + 1 :])
        self.nodes[number] = evolve(node, devices=devices)
        self._change_state(number, position, self._state(device, left))
        self._count_alike(number)
        return number

    def _state(self, device: Device, free: tuple[int, ...]) -> int:
        return self.card_states.number(self.card_states.kind(device), free)

    def _change_state(self, number: int, position: int, card: int) -> None:
        """Let a device of the node be in another state."""
        states = self.card_states.states
        old, new = states[self.cards[number][position]], states[card]
        self.cards[number][position] = card
        self.states_of[number] = tuple(sorted(self.cards[number]))
        self.free_milli[number] += new.free_milli - old.free_milli

    def _count_alike(self, number: int) -> None:
        """Note what a node is like now."""
        key = (self.states_of[number], self.nodes[number].cordoned, *self.host[number])
        self.alike[number] = self._alike_of.setdefault(key, len(self._alike_of))
        if len(self._alike_of) > 2 * len(self.nodes) + _SPARE:
            self._count_all_alike()

    def _count_all_alike(self) -> None:
        """Note what all nodes are like, and forget what none is like any more."""
        self._alike_of.clear()
        for number in range(len(self.nodes)):
            self._count_alike(number)
