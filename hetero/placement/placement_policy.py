"""Placement policies: small pure functions that choose among the devices and nodes that fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from attrs import asdict, fields_dict

from hetero.model import CORE, MEMORY, SLOTS, Device
from hetero.model.errors import BadInput
from hetero.model.frozen import frozen
from hetero.model.rounding import Portion

#: Returns what taking the portion costs; the lowest is taken. All give tuples of one length.
PlacementPolicy = Callable[[Device, Mapping[str, int], Portion], tuple[int, ...]]


def binpack(device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, ...]:
    """Fill the fullest device first, and among empty ones the smallest: keeps cards whole."""
    total_core = max(device.capacity[CORE], 1)
    return (
        (free[MEMORY] - cut.takes.get(MEMORY, 0)) // (1024 * 1024),
        (free[CORE] - cut.takes.get(CORE, 0)) * 100 // total_core,
    )


def spread(device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, ...]:
    """Take the emptiest device first: fewest neighbours."""
    return tuple(-cost for cost in binpack(device, free, cut))


class CardKey(Enum):
    """What cards are compared by."""

    BINPACK = "binpack"  # the one of which most is taken
    SPREAD = "spread"  # the one of which least is taken
    NUMA = "numa"  # the one of the NUMA node with the highest number


#: A sum of parts of a card counts in millionths.
_WHOLE_PARTS = 1_000_000


@frozen(kw_only=True)
class PlacementChain:
    """A placement policy over devices that compares by keys: each settles ties of those before it.

    What is taken of a card, the new share with it, is the sum of the parts of its slots, core and
    memory, times their weights. Cards that are equal by all keys go by their driver's numbers, the
    last first. That is HAMi's order (4707fb02, pkg/scheduler/policy).
    """

    keys: tuple[CardKey, ...]
    slots: int = 1
    core: int = 1
    memory: int = 1

    def __call__(self, device: Device, free: Mapping[str, int], cut: Portion) -> tuple[int, ...]:
        """Return what taking the portion costs; the lowest is taken."""
        taken_parts = sum(
            weight * self._taken_parts(device, free, cut, counter)
            for counter, weight in ((SLOTS, self.slots), (CORE, self.core), (MEMORY, self.memory))
        )
        cost_by_key = {
            CardKey.BINPACK: -taken_parts,
            CardKey.SPREAD: taken_parts,
            CardKey.NUMA: -(device.numa or 0),
        }
        return (*(cost_by_key[key] for key in self.keys), -device.index)

    @staticmethod
    def _taken_parts(device: Device, free: Mapping[str, int], cut: Portion, counter: str) -> int:
        total = device.capacity.get(counter, 0)
        taken = total - free.get(counter, 0) + cut.takes.get(counter, 0)
        return taken * _WHOLE_PARTS // total if total else 0


#: The placement policies over devices by name.
PLACEMENT_POLICIES: Mapping[str, PlacementPolicy] = {"binpack": binpack, "spread": spread}

_LARGEST_WEIGHT = 1_000_000


@frozen(kw_only=True)
class Weights:
    """How much each term of a placement's cost counts over a cluster; all terms are integers.

    The first three price what the placement makes useless (see `hetero.placement.mix`): the rest of
    the card it cuts, the rest of the node's empty cards, cards left without enough host. The other
    two pack (positive) or spread (negative) by the room that is left of the card and of the node.
    Once pods end as well as arrive, `usable` takes the place of all others: what the node can serve
    less (see `hetero.placement.node_values`).
    The cheapest placement wins, the first node among equals.
    """

    fragmentation: int = 0
    whole_cards: int = 0
    host: int = 0
    usable: int = 0
    card: int = 0
    node: int = 0

    def __attrs_post_init__(self) -> None:
        for term, weight in asdict(self).items():
            if abs(weight) > _LARGEST_WEIGHT:  # sums over a node's cards stay within 64 bits
                raise BadInput(f"weight {term}={weight} is out of range: at most {_LARGEST_WEIGHT}")


#: The placement policies over a cluster by name. Terms that settle only ties weigh 1 against 1000.
WEIGHTS: Mapping[str, Weights] = {
    "fragmentation": Weights(fragmentation=2, whole_cards=1, host=1, usable=1),
    "binpack": Weights(node=1000, card=1),
    "spread": Weights(node=-1000, card=-1),
    "node-binpack-device-spread": Weights(node=1000, card=-1),
    "node-spread-device-binpack": Weights(node=-1000, card=1),
    "first": Weights(),
}


def weights(weights_text: str) -> Weights:
    """Return a placement's weights, of its name or `fragmentation=2,host=1`. Raises `BadInput`."""
    if weights_text in WEIGHTS:
        return WEIGHTS[weights_text]
    if "=" not in weights_text:
        raise BadInput(
            f"placement {weights_text!r} is none of {', '.join(WEIGHTS)}, "
            "nor weights as fragmentation=2"
        )
    weight_by_term: dict[str, int] = {}
    for term_text in weights_text.split(","):
        term, _, weight_text = term_text.partition("=")
        if term not in fields_dict(Weights) or not weight_text.removeprefix("-").isdecimal():
            known_terms = ", ".join(fields_dict(Weights))
            raise BadInput(f"weight {term_text!r} is not one of {known_terms} with a whole number")
        weight_by_term[term] = int(weight_text)
    return Weights(**weight_by_term)


def cost_of(
    device: Device, cut: Portion, free: Mapping[str, int], policy: PlacementPolicy
) -> tuple[int, ...]:
    """Return what taking the cut costs: its downgrade level, its surplus, then the policy's cost.

    A smaller shape comes before what a policy prefers, which decides among equal ones.
    """
    return (cut.downgrade, *cut.surplus, *policy(device, free, cut))
