"""The JSON of every command: a document with its schema's name and version, and one list `items`.

docs/json.md is the reference, docs/json.schema.json the schemas. One unit a quantity: memory in
bytes, core in percent of a card, temperature in degrees Celsius, power in watts, times in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from hetero.model import CORE, MEMORY, SLOTS, Allocation, Device, DeviceAllocation, Refusal
from hetero.model.codec import to_plain
from hetero.model.errors import HeteroError

if TYPE_CHECKING:
    from hetero.container.share import Shares, ShareView
    from hetero.kube.cluster_view import ClusterView, ContainerView, MemberView
    from hetero.kube.what_if.claims import Explained
    from hetero.kube.what_if.simulation import PodAnswer, SimulatedPlacement
    from hetero.node.cordon import CardFault, CordonResult
    from hetero.node.ledger.ledger import Grant
    from hetero.node.view.observe import DeviceView, ForeignView, GrantsView, NodeView
    from hetero.node.view.one_card import CardView
    from hetero.placement import Explanation

#: The version of all schemas. A new key leaves it; one that goes, or means something else, raises
#: it.
VERSION = 2

Plain = dict[str, Any]


def document(schema: str, items: Iterable[Any], **more: Any) -> Plain:
    """Return the document of a command: `items` is what it lists."""
    header = {"schema": f"hetero.{schema}", "version": VERSION}
    return {**header, **to_plain(more), "items": to_plain(tuple(items))}


def listing(schema: str) -> Callable[[Iterable[Any]], Plain]:
    """Return what makes the document of a command that shows one plain list."""
    return partial(document, schema)


def failure(error: HeteroError) -> Plain:
    """Return the document of any command that failed; it exits with `code`."""
    return document("error", (), error=str(error), code=error.code)


def grants(view: GrantsView, *, seconds: float | None) -> Plain:
    """Return the document of `ps`.

    Core use is averaged over the last `seconds` seconds, or since the grant was made if None.
    """
    return document(
        "ps",
        view.grants,
        simulated=view.rack_file,
        seconds=seconds,
        unreadable=view.unreadable,
        waiting=view.queue,
        foreign=None if view.foreign is None else list(map(_foreign, view.foreign)),
    )


def node(view: NodeView, *, seconds: float | None = None) -> Plain:
    """Return the document of `inventory` and `top`."""
    from hetero.node.view.totals import totals  # only here: nobody else waits for it

    return document(
        "node",
        map(_device, view.devices),
        simulated=view.rack_file,
        seconds=seconds,
        grants=view.grants,
        unreadable=view.unreadable,
        vendors=view.vendors,
        notes=view.notes,
        host=view.host,
        waiting=view.queue,
        totals=totals(view.devices),
    )


def card(view: CardView) -> Plain:
    """Return the document of `describe`: the item is the card."""
    return document(
        "card",
        [_device(view.card)],
        simulated=view.rack_file,
        grants=view.grants,
        connections=view.connections,
        fault_since=view.fault_since,
        settings=view.settings,
        waiting=view.queue,
    )


def topology(view: NodeView) -> Plain:
    """Return the document of `topo`: the items are cards, each with its way to every other."""
    from hetero.node.view.topology import connections  # only here: nobody else waits for it

    return document(
        "topology",
        (
            {
                "number": row.device_number,
                **{
                    field_name: getattr(row.device, field_name)
                    for field_name in ("uuid", "vendor", "model", "numa", "pci")
                },
                "connections": connections(row, view.devices),
            }
            for row in view.devices
        ),
        simulated=view.rack_file,
    )


def cluster(view: ClusterView) -> Plain:
    """Return the document of `inventory --cluster` and `top --cluster`."""
    card_by_uuid = {row.device.uuid: row.device for member in view.nodes for row in member.devices}
    from hetero.kube.cluster_view import totals_of  # only here: nobody else waits for it

    return document(
        "cluster",
        map(_member, view.nodes),
        totals=totals_of(view).totals,
        pods=[_container(container, card_by_uuid) for container in view.containers],
        notes=view.notes,
    )


def claims(explained_claims: Explained) -> Plain:
    """Return the document of `explain claim`: a claim gets devices, or `why` says why not."""
    return document(
        "claims",
        (
            {
                "claim": claim_answer.claim,
                "devices": claim_answer.answer.given,
                "why": claim_answer.answer.why,
            }
            for claim_answer in explained_claims.answers
        ),
        unread=explained_claims.unread,
    )


def fit(answer: Allocation | Refusal, cards: Mapping[str, Device]) -> Plain:
    """Return the document of `fit`: the pieces that would be given, none with a refusal."""
    return document("fit", _pieces(answer, cards), **_terms(answer))


def explanation(explained: Explanation, cards: Mapping[str, Device]) -> Plain:
    """Return the document of `fit --explain`."""
    outcome = explained.answer
    return document("fit", _pieces(outcome, cards), **_terms(outcome), verdicts=explained.verdicts)


def what_if(answer: SimulatedPlacement) -> Plain:
    """Return the document of `simulate --cluster`."""
    return document(
        "what-if",
        (_pod_answer(pod, answer.devices) for pod in answer.pods),
        placement={"node": answer.node_placement, "device": answer.device_placement},
        without=answer.without,
        before=answer.before,
        after=answer.after,
        notes=answer.notes,
    )


def cordon(result: CordonResult) -> Plain:
    """Return the document of `cordon`, `uncordon` and `health clear`."""
    card = {
        "node": result.node,
        **_card(result.device_number, result.device),
        "grants": result.holders,
    }
    return document("cordon", [card], notes=result.notes)


def faults(noted_faults: Iterable[CardFault]) -> Plain:
    """Return the document of `health`."""
    return document(
        "faults",
        (
            {**_card(fault.device_number, fault.device), "since": fault.since_utc}
            for fault in noted_faults
        ),
    )


def granted(grant: Grant, *, cdi: tuple[str, ...] | None = None) -> Plain:
    """Return the document of `run`, `resize`, `share create` and `share resize`.

    `cdi` are the names by which containers get the devices of a share. Of each device, `name` is
    its UUID or that of its part, `number` its index in the inventory, `memory` in bytes, `core` in
    percent of the card and `sm` in percent of the multiprocessors. `since` is a UTC timestamp, and
    `policy` says whether idle core time is lent.
    """
    inventory_indices = grant.device_numbers or (None,) * len(grant.limits)
    item = {
        **{name: getattr(grant, name) for name in ("id", "label", "share", "user")},
        "since": grant.since_utc,
        "policy": grant.allocation.policy,
        "priority": grant.allocation.priority,
        "shares": [
            {
                "device": piece.device,
                "name": limit.name,
                "number": inventory_index,
                "memory": limit.memory,
                "core": core_percent,
                "sm": piece.sm_percent,
                "template": piece.template,
            }
            for limit, piece, core_percent, inventory_index in zip(
                grant.limits,
                grant.allocation.pieces,
                grant.core_percents,
                inventory_indices,
                strict=True,
            )
        ],
        "cdi": cdi,
    }
    return document("granted", [item], notes=grant.allocation.notes)


def released(grant_name: str, sentence: str) -> Plain:
    """Return the document of `release`."""
    return document("released", [{"grant": grant_name, "says": sentence}])


def shares(settled: Shares) -> Plain:
    """Return the document of `share ls`."""
    return document("shares", map(_share, settled.shares), messages=settled.words)


# --- parts ------------------------------------------------------------------------------------


def _card(device_number: int, device: Device) -> Plain:
    field_names = ("uuid", "vendor", "model", "health", "cordon")
    return {"number": device_number, **{name: getattr(device, name) for name in field_names}}


def _percent(units: int | None, device: Device | None) -> float | None:
    return None if units is None or device is None else 100 * units / device.of_card(CORE)


def _device(row: DeviceView) -> Plain:
    device, usage = row.device, row.usage
    capacity, held_amounts = device.capacity, row.held
    other_counters = [counter for counter in capacity if counter not in (CORE, MEMORY, SLOTS)]
    return {
        "number": row.device_number,
        **{
            field_name: getattr(device, field_name)
            for field_name in ("uuid", "vendor", "model", "index", "health", "cordon")
        },
        **{
            field_name: getattr(device, field_name)
            for field_name in ("numa", "pci", "group", "links", "attributes")
        },
        "enforcement": device.enforcement,
        "granularity": device.granularity,
        "core_units": device.of_card(CORE),
        "memory": capacity[MEMORY],
        "memory_card": device.of_card(MEMORY),
        "memory_held": held_amounts[MEMORY],
        "memory_used": usage.memory,
        "memory_free": row.free[MEMORY],
        "core": _percent(capacity[CORE], device),
        "core_held": _percent(held_amounts[CORE], device),
        "core_used": None if usage.core is None else 100 * usage.core,
        "slots": capacity[SLOTS],
        "slots_held": held_amounts[SLOTS],
        "counters": {
            counter: {"of": capacity[counter], "held": held_amounts[counter]}
            for counter in other_counters
        },
        "temperature": usage.temperature,
        "power": usage.power,
        "power_limit": usage.power_limit,
        "open": row.open,
        "grants": row.grants,
        "processes": None
        if usage.processes is None
        else [{"pid": pid, "memory": memory} for pid, memory in usage.processes.items()],
        "foreign": row.foreign,
        "idle": row.idle,
        "templates": row.templates,
    }


def _foreign(view: ForeignView) -> Plain:
    return {"number": view.device_number, "device": view.device, **to_plain(view.use)}


def _member(member: MemberView) -> Plain:
    return {
        "name": member.name,
        "pool": member.pool,
        "fault": member.inventory_error,
        "silent": member.metrics_error,
        "devices": [_device(row) for row in member.devices],
    }


def _container(view: ContainerView, cards: Mapping[str, Device]) -> Plain:
    return {
        "namespace": view.namespace,
        "claim": view.claim,
        "pod": view.pod_name,
        "container": view.container_name,
        "node": view.node,
        "phase": view.phase,
        "policy": view.allocation.policy,
        "priority": view.allocation.priority,
        "pieces": _pieces(view.allocation, cards),
        "shares": view.shares,
    }


def _pod_answer(answer: PodAnswer, cards: Mapping[str, Device]) -> Plain:
    field_names = ("namespace", "pod", "origin", "from_node", "node", "refusal", "notes")
    return {
        **{field_name: getattr(answer, field_name) for field_name in field_names},
        "containers": [
            {"name": container_name, "pieces": _pieces(allocation, cards)}
            for container_name, allocation in answer.containers
        ],
    }


def _pieces(answer: Allocation | Refusal, cards: Mapping[str, Device]) -> list[Plain]:
    if isinstance(answer, Refusal):
        return []
    return [_piece(piece, cards.get(piece.device)) for piece in answer.pieces]


def _piece(piece: DeviceAllocation, card: Device | None) -> Plain:
    """Return what is given of one device; `core_units` None is no limit."""
    takes = dict(piece.takes)
    memory_bytes, core_units, slot_count = (
        takes.pop(counter, 0) for counter in (MEMORY, CORE, SLOTS)
    )
    return {
        "device": piece.device,
        "vendor": piece.vendor,
        "template": piece.template,
        "part": piece.part,
        "memory": memory_bytes,
        "core": _percent(core_units or None, card),
        "slots": slot_count,
        "counters": takes,
    }


def _terms(answer: Allocation | Refusal) -> Plain:
    if isinstance(answer, Refusal):
        return {"policy": None, "priority": None, "refusal": answer.sentence, "notes": ()}
    terms = {"policy": answer.policy, "priority": answer.priority, "notes": answer.notes}
    return {**terms, "refusal": None}


def _share(view: ShareView) -> Plain:
    grant = view.entry
    limits: Sequence[Plain] = [
        {
            "device": piece.device,
            "name": limit.name,
            "memory": limit.memory,
            "core": core_percent,
            "gone": piece.device in view.gone,
        }
        for piece, limit, core_percent in zip(
            grant.allocation.pieces, grant.limits, grant.core_percents, strict=True
        )
    ]
    return {
        "name": view.name,
        "grant": grant.id,
        "user": grant.user,
        "since": grant.since_utc,
        "policy": grant.allocation.policy,
        "priority": grant.allocation.priority,
        "cdi": view.devices,
        "limits": limits,
        "containers": view.containers,
    }
