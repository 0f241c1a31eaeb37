"""What agent and scheduler tell each other through the API: a node's devices, a pod's allocation.

Both are annotations. The inventory says how cards divide once per model, so that a node of eight
cards stays small. An allocation is bound to its pod and node and signed with a key that the
scheduler alone has: a user who can annotate a pod still cannot give it a card.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from attrs import evolve, field, frozen
from msgspec import DecodeError, json, to_builtins

from hetero.kube.words.signing import PublicKeys, SigningKey
from hetero.model import (
    Allocation,
    ContainerKind,
    Counters,
    Device,
    DeviceAllocation,
    Enforcement,
    Granularity,
    Link,
    Occupancy,
    codec,
    occupancies,
)
from hetero.model.errors import BadInput
from hetero.registry.message import SHOWN_LENGTH, expect_sound_device

#: Whom the tokens are meant for by which agents prove where they run.
AUDIENCE = "hetero.io/agent"
#: On a node, said by its agent and written by the webhook, and only when it changes.
INVENTORY = "hetero.io/inventory"
#: On a slice of a node whose cards are given by claims: the grants that an inventory says.
GRANTS = "hetero.io/grants"
#: On a pod, written by the scheduler as it binds the pod: the devices and how much of each.
ALLOCATION = "hetero.io/allocation"
#: On a pod, with its allocation: the scheduler's signature of it.
SIGNATURE = "hetero.io/signature"
#: On a pod, written by HAMi, one for each kind of device: what it gave. A pattern.
HAMI_ALLOCATION = "hami.io/*-devices-allocated"

#: On a node, written by its administrator: the cards of which nothing new is given, a JSON object
#: of reasons by UUID. HAMi's lists UUIDs, with commas between, as ours may, too.
CORDONED, HAMI_CORDON = "hetero.io/cordoned", "hami.io/device-cordon"

#: Between a card's UUID and the slot in the ids of kubelet devices: `<uuid>::<slot>`.
_BETWEEN = "::"
#: How many names that mean no card are told of, and how much of each.
_MOST_NAMES, _LONGEST_UUID = 4, 64
#: What is not written.
_EMPTY: tuple[Any, ...] = ({}, [])


def device_id(uuid: str, slot: int) -> str:
    """Return the kubelet's id of one slot of a card."""
    return f"{uuid}{_BETWEEN}{slot}"


def device_of(device_id: str) -> str:
    """Return the UUID of the card that a kubelet device id is a slot of."""
    return device_id.rpartition(_BETWEEN)[0]


def read_note(annotation_name: str, annotation_text: str) -> Any:
    """Return the JSON in an annotation that anybody may have written. Raises `BadInput`.

    It may be nested more deeply than any parser follows.
    """
    try:
        return json.decode(annotation_text)
    except (DecodeError, RecursionError):
        raise BadInput(f"{annotation_name} is no JSON: leave it out") from None


def cordons(annotations: Mapping[str, str], *, node: str) -> dict[str, str]:
    """Return why cards of a node are cordoned, by UUID, "" without a reason. Raises `BadInput`."""
    return {
        **_cordons(annotations.get(HAMI_CORDON, ""), f"node {node}: {HAMI_CORDON}"),
        **_cordons(annotations.get(CORDONED, ""), f"node {node}: {CORDONED}"),
    }


def idle_cordons(
    annotations: Mapping[str, str], uuids: Iterable[str], *, node: str
) -> tuple[str, ...]:
    """Return a sentence for each cordon of a node that means none of its cards.

    `uuids` are those of its cards.
    """
    sentences: list[str] = []
    known_uuids = {uuid.lower() for uuid in uuids}
    for annotation_name in (CORDONED, HAMI_CORDON):
        source_name = f"node {node}: {annotation_name}"
        try:
            reason_by_uuid = _cordons(annotations.get(annotation_name, ""), source_name)
        except BadInput as error:
            sentences.append(f"{error}: cards stay cordoned as they were")
            continue
        strange_names = [name for name in reason_by_uuid if name.lower() not in known_uuids]
        sentences += [
            f"{source_name} names {name[:_LONGEST_UUID]!r}, and no card of this node has that "
            "UUID: `hetero cordon NODE CARD` writes it"
            for name in strange_names[:_MOST_NAMES]
        ]
        if strange_names[_MOST_NAMES:]:
            count = len(strange_names) - _MOST_NAMES
            sentences.append(f"{source_name} names {count} more that are no cards of this node")
    return tuple(sentences)


def without_cordon(
    annotations: Mapping[str, str], uuid: str, *, node: str
) -> dict[str, str | None]:
    """Return those annotations that cordon a card, as they are without it. Raises `BadInput`."""
    changed_annotations: dict[str, str | None] = {}
    for annotation_name in (CORDONED, HAMI_CORDON):
        text = annotations.get(annotation_name, "")
        reason_by_uuid = _cordons(text, f"node {node}: {annotation_name}")
        kept = {
            key: reason for key, reason in reason_by_uuid.items() if key.lower() != uuid.lower()
        }
        if kept != reason_by_uuid:
            is_list = not text.lstrip().startswith("{")
            kept_text = ",".join(kept) if is_list else cordons_text(kept)
            changed_annotations[annotation_name] = kept_text if kept else None
    return changed_annotations


def cordons_text(reason_by_uuid: Mapping[str, str]) -> str:
    """Return the text of `CORDONED`."""
    return json.encode(dict(reason_by_uuid), order="sorted").decode()


def _cordons(text: str, source_name: str) -> dict[str, str]:
    if not text.lstrip().startswith("{"):
        return {uuid.strip(): "" for uuid in text.split(",") if uuid.strip()}
    reason_by_uuid = read_note(source_name, text)
    if not all(isinstance(reason, str) for reason in reason_by_uuid.values()):
        raise BadInput(
            f"{source_name} is no JSON object of reasons by UUID: mend it, or remove it with "
            f"kubectl annotate {source_name.replace(': ', ' ')}-"
        )
    return {uuid: _line(reason) for uuid, reason in reason_by_uuid.items()}


def _line(reason: str) -> str:
    """Return a reason as views, events and taints have it: a short line without control codes."""
    printable = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for letter in " ".join(reason.split())
    )
    return printable[:SHOWN_LENGTH]


# --- inventory ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class _Kind:
    """The common properties of the cards of one model."""

    vendor: str
    model: str
    capacity: Counters
    granularity: Granularity
    enforcement: Enforcement
    attributes: Mapping[str, str] = field(factory=dict)  # as older agents write them
    card: Counters = field(factory=dict)


@frozen(kw_only=True)
class _Card:
    """The properties of one card; a link's peer is a position in the list of cards."""

    uuid: str
    kind: int
    index: int
    health: str | None = None
    cordon: str | None = None
    excluded: bool | None = None  # None: it is not, as of most cards
    numa: int | None = None
    pci: str | None = None
    group: str | None = None
    links: tuple[tuple[int, str, int], ...] = ()
    attributes: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class RunsOn:
    """What the containers of a pod hold by their node's word; of an ended one, those that run."""

    namespace: str
    pod: str
    containers: tuple[tuple[str, ContainerKind, Allocation], ...]

    @property
    def takes(self) -> tuple[Occupancy, ...]:
        """What the pod still takes of each device: what any pod of these containers does."""
        return occupancies((kind, allocation) for _, kind, allocation in self.containers)


#: What pods hold by their node's word and not by their own, by UID.
Held = Mapping[str, RunsOn]


@frozen(kw_only=True)
class NodeGrant:
    """A grant of a node that is no pod's: a program's, a share's or a container's.

    `namespace` is that of a claim that is gone, with whose devices a container runs on; "": it is
    of no namespace.
    """

    name: str
    allocation: Allocation
    namespace: str = ""


@frozen(kw_only=True)
class NodeGrants:
    """What stands on a node and is in no object of the API as it stands.

    `ended_pods` run on after their end. `corrected_pods` hold something else than their allocations
    say, which their owners may edit. `others` are the grants of no pod, by id.
    """

    ended_pods: Held = field(factory=dict)
    corrected_pods: Held = field(factory=dict)
    others: Mapping[str, NodeGrant] = field(factory=dict)

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self.ended_pods or self.corrected_pods or self.others)

    @property
    def allocations(self) -> Iterator[Allocation]:
        """All allocations in it."""
        for pod in (*self.ended_pods.values(), *self.corrected_pods.values()):
            yield from (allocation for _, _, allocation in pod.containers)
        yield from (grant.allocation for grant in self.others.values())


@frozen(kw_only=True)
class _Rack:
    kinds: tuple[_Kind, ...] = ()
    cards: tuple[_Card, ...] = ()
    ended_pods: Held = field(factory=dict)
    corrected_pods: Held = field(factory=dict)
    grants: Mapping[str, NodeGrant] = field(factory=dict)
    # As older agents write it: amounts by grant and device, and the grants' namespaces.
    running_on: Mapping[str, Mapping[str, Counters]] = field(factory=dict)
    namespaces: Mapping[str, str] = field(factory=dict)


def inventory_text(devices: tuple[Device, ...], grants: NodeGrants | None = None) -> str:
    """Return the text of `INVENTORY` for a node's devices, and what no object of the API says."""
    kinds: list[_Kind] = []
    card_records = []
    position_by_uuid = {device.uuid: position for position, device in enumerate(devices)}
    for device in devices:
        device_kind = _Kind(
            vendor=device.vendor,
            model=device.model,
            capacity=device.capacity,
            granularity=device.granularity,
            enforcement=device.enforcement,
            card=device.card,
        )
        if device_kind not in kinds:
            kinds.append(device_kind)
        card_records.append(
            _Card(
                uuid=device.uuid,
                kind=kinds.index(device_kind),
                index=device.index,
                health=device.health,
                cordon=device.cordon,
                excluded=device.excluded or None,
                numa=device.numa,
                pci=device.pci,
                group=device.group,
                links=tuple(
                    (position_by_uuid[link.peer], link.kind, link.weight)
                    for link in device.links
                    if link.peer in position_by_uuid
                ),
                attributes=device.attributes,
            )
        )
    grants = grants or NodeGrants()
    rack = _Rack(
        kinds=tuple(kinds),
        cards=tuple(card_records),
        ended_pods=grants.ended_pods,
        corrected_pods=grants.corrected_pods,
        grants=grants.others,
    )
    return _compact(codec.to_plain(rack))


def grants_text(grants: NodeGrants) -> str:
    """Return the text of `GRANTS`."""
    return inventory_text((), grants)


def published(inventory_json: str, *, node: str) -> tuple[tuple[Device, ...], NodeGrants]:
    """Return the devices in the text of `INVENTORY`, and what no object of the API says.

    Raises `BadInput`.
    """
    rack = codec.loads(inventory_json, _Rack, source=f"node {node}: {INVENTORY}")
    try:
        devices = tuple(_device(card, rack) for card in rack.cards)
    except IndexError:
        raise BadInput(f"node {node}: {INVENTORY}: a card refers to one that is missing") from None
    uuids: set[str] = set()
    for device in devices:
        try:
            expect_sound_device(device)
        except BadInput as error:
            raise BadInput(f"node {node}: {INVENTORY}: {error}") from None
        if device.uuid in uuids:
            raise BadInput(f"node {node}: {INVENTORY}: device {device.uuid} twice")
        uuids.add(device.uuid)
    grants = NodeGrants(
        ended_pods={**rack.ended_pods, **_by_grant(rack)},
        corrected_pods=rack.corrected_pods,
        others=rack.grants,
    )
    if any(
        amount < 0
        for allocation in grants.allocations
        for piece in allocation.pieces
        for amount in piece.takes.values()
    ):
        raise BadInput(f"node {node}: {INVENTORY}: less than nothing is held")
    return devices, grants


def _by_grant(rack: _Rack) -> Held:
    """Return what an older agent wrote of what runs on: each grant counts as a pod of its own."""
    ended_pods = {}
    for grant_id, takes_by_device in rack.running_on.items():
        pieces = (
            DeviceAllocation(device=uuid, vendor="", takes=takes)
            for uuid, takes in takes_by_device.items()
        )
        container = ("", ContainerKind.MAIN, Allocation(pieces=tuple(pieces)))
        ended_pods[grant_id] = RunsOn(
            namespace=rack.namespaces.get(grant_id, ""), pod=grant_id, containers=(container,)
        )
    return ended_pods


def published_devices(inventory_json: str, *, node: str) -> tuple[Device, ...]:
    """Return the devices in the text of `INVENTORY`. Raises `BadInput`."""
    return published(inventory_json, node=node)[0]


def _device(card: _Card, rack: _Rack) -> Device:
    device_kind = rack.kinds[card.kind]
    return Device(
        uuid=card.uuid,
        vendor=device_kind.vendor,
        model=device_kind.model,
        index=card.index,
        capacity=device_kind.capacity,
        granularity=device_kind.granularity,
        enforcement=device_kind.enforcement,
        health=card.health,
        cordon=card.cordon,
        excluded=bool(card.excluded),
        numa=card.numa,
        pci=card.pci,
        group=card.group,
        links=tuple(
            Link(rack.cards[position].uuid, link_kind, weight)
            for position, link_kind, weight in card.links
        ),
        attributes={**device_kind.attributes, **card.attributes},
        card=device_kind.card,
    )


# --- allocation -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class GangSlot:
    """Row `row`, counted from 1, of the `rows` that the time on a group's cards is cut into."""

    row: int
    rows: int

    def overlaps(self, other_slot: GangSlot) -> bool:
        """Return whether two rows have any part of the time in common."""
        scaled_start, other_start = (
            (self.row - 1) * other_slot.rows,
            (other_slot.row - 1) * self.rows,
        )
        return (
            scaled_start < other_start + self.rows and other_start < scaled_start + other_slot.rows
        )


@frozen(kw_only=True)
class Assignment:
    """What one pod holds on its node: an allocation for each container that asked for cards.

    `row` and `rows` are as in `GangSlot`, the same for all pods of a group; None outside groups.
    """

    node: str
    uid: str
    containers: tuple[tuple[str, Allocation], ...]
    row: int | None = None
    rows: int | None = None

    @property
    def place_in_time(self) -> GangSlot | None:
        """The row of the pod's group, None if it has none."""
        if self.row is None or self.rows is None:
            return None
        return GangSlot(row=self.row, rows=self.rows)


def signed_assignment(assignment: Assignment, signing_key: SigningKey) -> dict[str, str]:
    """Return the annotations that give a pod its allocation."""
    # An assignment has no value that is written by more than its own name: `codec` takes longer.
    allocation_json = _compact(to_builtins(assignment))
    signature = signing_key.sign(allocation_json, uid=assignment.uid, node=assignment.node)
    return {ALLOCATION: allocation_json, SIGNATURE: signature}


def read_assignment(
    annotations: Mapping[str, str], keys: PublicKeys, *, pod: str, uid: str, node: str
) -> Assignment | None:
    """Return the assignment of a pod, None if it has none. Raises `BadInput` on a forgery.

    `uid` and `node` are the pod's own, as the API has them; `pod` names it in errors.
    """
    allocation_json = annotations.get(ALLOCATION)
    if allocation_json is None:
        return None
    if not keys.signed(allocation_json, annotations.get(SIGNATURE, ""), uid=uid, node=node):
        raise BadInput(
            f"pod {pod}: {ALLOCATION} is not signed by this cluster's scheduler for this pod on "
            f"node {node}: it is ignored (delete the pod and create it anew)"
        )
    assignment = _read(allocation_json, f"pod {pod}: {ALLOCATION}")
    if (assignment.uid, assignment.node) != (uid, node):
        raise BadInput(
            f"pod {pod}: {ALLOCATION} is for pod {assignment.uid} on node {assignment.node}"
        )
    return assignment


@lru_cache(maxsize=256)
def _read(allocation_json: str, source_name: str) -> Assignment:
    """Return what an allocation's text says; an agent reads the same ones again and again."""
    return codec.loads(allocation_json, Assignment, source=source_name)


def without_core_limit(allocation: Allocation) -> Allocation:
    """Return the allocation without core limits; its core is counted as before."""
    return evolve(allocation, pieces=tuple(evolve(piece, core=None) for piece in allocation.pieces))


def _compact(plain: dict[str, Any]) -> str:
    """Return the canonical text: sorted, without spaces, nothing that is at its default."""
    lean_json = _lean({"version": codec.VERSION, **plain})
    return json.encode(lean_json, order="sorted").decode()


def _lean(plain: Any) -> Any:
    """Return the same without entries that are empty or null: a reader has them as defaults."""
    if isinstance(plain, dict):
        lean_values = (
            (field_name, _lean(field_value))
            for field_name, field_value in plain.items()
            if field_value is not None
        )
        return {
            field_name: field_value
            for field_name, field_value in lean_values
            if field_value not in _EMPTY
        }
    if isinstance(plain, list | tuple):
        return [_lean(value) for value in plain]
    return plain
