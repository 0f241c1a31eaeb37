"""Chooses devices with room in fact: beside the ledger it asks drivers what others hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import define, evolve, field

from hetero.model import MEMORY, Allocation, Device, Inventory, Refusal, Request
from hetero.model.errors import NoRoom
from hetero.model.units import rounded_memory
from hetero.node.context_sizes import expect_room
from hetero.node.foreign import ForeignUse, foreign_uses
from hetero.node.inventory import devices_of
from hetero.node.ledger.ledger import Snapshot
from hetero.node.ledger.queue import WaitingRequest
from hetero.node.node import Node
from hetero.node.quota import User, expect_within, held_of_quotas
from hetero.node.selection import refused
from hetero.placement import Explanation, explain, fit
from hetero.placement.match import named
from hetero.registry.registry import Discovery

#: Cards that a refusal names one by one.
_NAMED_CARDS = 4
#: Devices that others keep busy for parts of the time less than this apart count as alike: it is a
#: sample of a moment.
_BUSY_STEP_PERCENT = 10
#: How many more cards are looked at, for each that was looked at and then taken by others.
_MORE_CARDS = 4


@define(eq=False, repr=False)
class Outlook:
    """Chooses devices for a request, and asks drivers of those that matter to the choice.

    First the devices that the ledger would give are looked at, and then, if programs without a
    grant hold some of them, all that the request may have. Where others were admitted meanwhile,
    some more are looked at each time, since others still will be. `anyway` gives what the ledger
    has left where no device has room in fact. `ahead` are the requests that wait before this one,
    which are not to be delayed.
    """

    node: Node
    discovery: Discovery
    request: Request
    anyway: bool = False
    ahead: Sequence[WaitingRequest] = ()
    _use_by_uuid: dict[str, ForeignUse] = field(init=False, factory=dict)
    _asked_uuids: set[str] = field(init=False, factory=set)
    # The devices of the last answer, as far as their drivers were not asked.
    _unasked_uuids: set[str] = field(init=False, factory=set)

    def choose(self, snapshot: Snapshot) -> Allocation | Refusal | None:
        """Return what the request gets; None: `look` first, for which no lock may be held."""
        inventory = self.node.inventory(self.discovery, snapshot)
        by_ledger = fit(inventory, self.request)
        if isinstance(by_ledger, Refusal):
            return by_ledger
        if self.ahead:
            inventory = self._kept(inventory)
            by_ledger = fit(inventory, self.request)
            if isinstance(by_ledger, Refusal):
                return self._behind()
        if not self._is_crowded:
            return self._looked_at(by_ledger)
        held_bytes = {uuid: use.taken for uuid, use in self._use_by_uuid.items()}
        for shunned in self._shunned():
            others = {
                device.uuid: device.capacity[MEMORY]
                for device in inventory.devices
                if device.uuid in shunned
            }
            answer = fit(evolve(inventory, foreign={**held_bytes, **others}), self.request)
            if isinstance(answer, Allocation):
                return self._looked_at(answer)
        if not self.anyway:
            return self._crowded(inventory)
        pieces = {piece.device for piece in by_ledger.pieces}
        foreign_notes = (
            f"{device.name} ({device.short_model}): {self._use_by_uuid[device.uuid].sentence}"
            for device in inventory.devices
            if device.uuid in pieces and held_bytes.get(device.uuid)
        )
        return evolve(by_ledger, notes=(*by_ledger.notes, *foreign_notes))

    def look(self, snapshot: Snapshot) -> None:
        """Ask the drivers of the devices that `choose` did not know enough about."""
        devices = self.discovery.devices
        more_count = len(devices) if self._is_crowded else len(self._asked_uuids) * _MORE_CARDS
        first = next(
            (at for at, device in enumerate(devices) if device.uuid in self._unasked_uuids), 0
        )
        others = [
            device.uuid
            for device in (*devices[first:], *devices[:first])  # a burst fills them in this order
            if device.usable and device.uuid not in self._asked_uuids | self._unasked_uuids
            if self.request.chooses(device)
        ]
        uuids = {*self._unasked_uuids, *others[:more_count]}
        self._ask(snapshot, tuple(device for device in devices if device.uuid in uuids))

    @property
    def _is_crowded(self) -> bool:
        """Whether more than grants have is used of a device that was looked at."""
        return any(use.taken or _busy_level(use) for use in self._use_by_uuid.values())

    def _shunned(self) -> Iterator[set[str]]:
        """Yield the devices that others should come before, fewer each time.

        First those that programs without a grant use, then those that they keep busier than others,
        at last none.
        """
        uses = self._use_by_uuid
        yield {uuid for uuid, use in uses.items() if use.memory or _busy_level(use)}
        for level in sorted({_busy_level(use) for use in uses.values()}):
            yield {uuid for uuid, use in uses.items() if _busy_level(use) > level}

    def _looked_at(self, answer: Allocation) -> Allocation | None:
        self._unasked_uuids = {piece.device for piece in answer.pieces} - self._asked_uuids
        return None if self._unasked_uuids else answer

    def explain(self, snapshot: Snapshot) -> Explanation:
        """Return what the request gets, and what every device says of its room in fact."""
        self._ask(snapshot, self.discovery.devices)
        inventory = self._kept(self.node.inventory(self.discovery, snapshot))
        held_bytes = {uuid: use.taken for uuid, use in self._use_by_uuid.items()}
        answer = self.choose(snapshot)
        return explain(evolve(inventory, foreign=held_bytes), self.request, answer=answer)

    def _ask(self, snapshot: Snapshot, devices: Iterable[Device]) -> None:
        # What a driver does not answer is not known, and refuses nothing.
        usages, _ = self.node.registry.observe_all(devices)
        self._use_by_uuid.update(foreign_uses(self.node, snapshot, usages))
        self._asked_uuids.update(device.uuid for device, _ in usages)

    def _kept(self, inventory: Inventory) -> Inventory:
        """Return the inventory without the devices that are kept for who waits before this one."""
        if not self.ahead:
            return inventory
        from hetero.placement.queued import kept_for  # here: mostly nobody waits

        return kept_for((waiting.request for waiting in self.ahead), inventory, self.request)

    def _behind(self) -> Refusal:
        """Return the refusal of what would delay those who wait."""
        first, *others = self.ahead
        more_text = f" and {len(others)} more wait" if others else " waits"
        sentence = (
            f"{first.id} of {first.user}{more_text} for what it would take (`hetero ps`): "
            "--wait waits behind"
        )
        return Refusal(wanted=len(self.request.asks), verdicts={}, crowded=sentence)

    def _meant(self, inventory: Inventory) -> list[Device]:
        """Return the devices that the request may have, by what it says of them."""
        devices = inventory.devices
        meant_uuids = {
            device.uuid
            for ask in self.request.asks
            for device in (devices if ask.device is None else named(devices, ask.device))
            if self.request.chooses(device)
        }
        return [device for device in devices if device.uuid in meant_uuids]

    def _crowded(self, inventory: Inventory) -> Refusal:
        """Return the refusal that names the devices which have room by the ledger alone."""
        held_bytes = {uuid: use.taken for uuid, use in self._use_by_uuid.items()}
        inventory_in_fact = evolve(inventory, foreign=held_bytes)
        free, in_fact = inventory.free(), inventory_in_fact.free()
        meant_devices = self._meant(inventory)
        sentences = [
            f"{device.name} ({device.short_model}) has "
            f"{rounded_memory(in_fact[device.uuid][MEMORY])} free: {use.sentence}"
            for device in inventory.devices
            if (use := self._use_by_uuid.get(device.uuid))
            and use.taken
            and device in meant_devices
            and free[device.uuid][MEMORY] > 0
        ]
        if len(sentences) > _NAMED_CARDS:
            sentences[_NAMED_CARDS:] = [f"and {len(sentences) - _NAMED_CARDS} devices more"]
        least_bytes = 1 + max(device.counted_context_bytes for device in inventory.devices)
        asks = (evolve(ask, memory=least_bytes, memory_percent=None) for ask in self.request.asks)
        least = fit(inventory_in_fact, evolve(self.request, asks=tuple(asks), exclusive=False))
        advice = "ask for less, " if isinstance(least, Allocation) else ""
        return Refusal(
            wanted=len(self.request.asks),
            verdicts={},
            crowded="; ".join(sentences) + f"; {advice}end that, or take it with --anyway",
        )


def _busy_level(use: ForeignUse) -> int:
    """Return how busy programs without a grant keep a device, in steps; 0 where that is unknown."""
    return int((use.core or 0) // _BUSY_STEP_PERCENT)


def fit_now(node: Node, request: Request, *, anyway: bool = False) -> Allocation | Refusal:
    """Return what the request would get now, without taking it.

    Raises `Refused` where the devices could give it and the user's quota does not, `BadInput` where
    no program could make a context within it.
    """
    outlook, snapshot = _outlook(node, request, anyway=anyway)
    while (answer := outlook.choose(snapshot)) is None:
        outlook.look(snapshot)
    return _within_quota(outlook, snapshot, answer)


def explain_now(node: Node, request: Request, *, anyway: bool = False) -> Explanation:
    """Return the answer of `fit_now` with the verdict of every device; raises what that raises."""
    outlook, snapshot = _outlook(node, request, anyway=anyway)
    explanation = outlook.explain(snapshot)
    _within_quota(outlook, snapshot, explanation.answer)
    return explanation


def _outlook(node: Node, request: Request, *, anyway: bool) -> tuple[Outlook, Snapshot]:
    discovery = node.discover_for(request)
    snapshot = node.snapshot()
    ahead = requests_ahead(node, discovery, snapshot)
    return Outlook(node, discovery, request, anyway=anyway, ahead=ahead), snapshot


def requests_ahead(
    node: Node, discovery: Discovery, snapshot: Snapshot, *, before: int | None = None
) -> tuple[WaitingRequest, ...]:
    """Return the requests that wait and are not to be delayed; `before`: those before that number.

    One whose process is stopped holds up nobody, nor one that waits for its user's own quota.
    """
    return tuple(
        waiting
        for waiting in node.ledger.queue.waiting(before=before)
        if not waiting.silent and not _waits_for_quota(node, discovery, snapshot, waiting)
    )


def _waits_for_quota(
    node: Node, discovery: Discovery, snapshot: Snapshot, waiting: WaitingRequest
) -> bool:
    if waiting.uid is None:
        return False
    devices = devices_of(discovery)
    asker = User(waiting.uid, waiting.user)
    held_quotas = held_of_quotas(node.settings, asker, snapshot.grants, devices)
    allocation = (
        fit(node.inventory(discovery, Snapshot()), waiting.request) if held_quotas else None
    )
    try:
        if isinstance(allocation, Allocation):
            expect_within(held_quotas, allocation, devices)
    except NoRoom:
        return True
    return False


def recovered(discovery: Discovery) -> Discovery:
    """Return the devices as if all were well and uncordoned that are so again without a setting."""
    return evolve(
        discovery,
        devices=tuple(
            device
            if device.excluded or device.size_unsaid
            else evolve(device, health="ok", cordon=None)
            for device in discovery.devices
        ),
    )


def expect_possible(node: Node, discovery: Discovery, request: Request, asker: User | None) -> None:
    """Raise `NoRoom` for what a request would not get of this node if it had it to itself.

    `discovery` is as `recovered` returns it: a card that is cordoned or sick is waited for.
    """
    devices, nothing = devices_of(discovery), Snapshot()
    answer = fit(node.inventory(discovery, nothing), request)
    if isinstance(answer, Refusal):
        raise refused(answer, request)
    node.expect_within_quota(answer, nothing, devices, asker)


def _within_quota(
    outlook: Outlook, snapshot: Snapshot, answer: Allocation | Refusal
) -> Allocation | Refusal:
    if isinstance(answer, Allocation):
        devices = devices_of(outlook.discovery)
        outlook.node.expect_within_quota(answer, snapshot, devices)
        expect_room(outlook.node.limits_of(answer, devices))
    return answer
