"""Waits in the queue until a request can be granted, woken by what changes in the ledger."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from attrs import define, field

from hetero.model import Request
from hetero.model.errors import NoRoom
from hetero.node.grants import Grants, Watch, admit_program
from hetero.node.ledger.grant_dir import USAGE
from hetero.node.ledger.ledger import ALIVE, GrantHandle
from hetero.node.ledger.queue import Ticket
from hetero.node.node import Node

#: Seconds between two looks where nothing says that anything changed: of the first in the queue, a
#: container may have ended; of the others, the one before may have been killed.
_FIRST_POLL_PERIOD_S, _OTHERS_POLL_PERIOD_S = 2.0, 5.0
#: Seconds after which the cards are asked again though the ledger is as it was: what programs
#: without a grant hold is in no ledger.
_CARDS_PERIOD_S = 10.0
#: Seconds: the kernel says that a file is closed just before it drops its lock, and several
#: processes of a program end one after the other.
_LOCK_DROP_S = 0.05
#: inotify(7): IN_CLOSE_WRITE; IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE and IN_DELETE.
_CLOSED_EVENT, _LISTED_EVENTS = 0x8, 0x40 | 0x80 | 0x100 | 0x200


def admit_in_turn(
    grants: Grants,
    request: Request,
    *,
    command: tuple[str, ...],
    label: str | None,
    watch: Watch | None,
    anyway: bool,
    within_s: float | None,
    report_place: Callable[[str, int, NoRoom], None],
) -> tuple[GrantHandle, dict[str, str]]:
    """Do as `admit_program`, and wait while there is no room, at most `within_s` seconds.

    First come, first served: a request takes nothing that one before it waits for. `report_place`
    is called with the request's name in the queue, its place from 1 on and the reason, when it
    begins to wait and when its place has changed. Raises `NoRoom` when the time is over, and at
    once where the request would not be granted if nothing stood.
    """
    deadline_s = None if within_s is None else time.monotonic() + within_s

    def admit(ticket: int | None) -> tuple[GrantHandle, dict[str, str]]:
        return admit_program(
            grants,
            request,
            command=command,
            label=label,
            watch=watch,
            anyway=anyway,
            ticket=ticket,
        )

    try:
        return admit(None)
    except NoRoom as refusal:
        reason = refusal
    ticket = grants.join(request, command=command, label=label)
    try:
        return _wait(grants, ticket, admit, reason, deadline_s, report_place)
    finally:
        grants.leave(ticket)


def _wait(
    grants: Grants,
    ticket: Ticket,
    admit: Callable[[int | None], tuple[GrantHandle, dict[str, str]]],
    reason: NoRoom,
    deadline_s: float | None,
    report_place: Callable[[str, int, NoRoom], None],
) -> tuple[GrantHandle, dict[str, str]]:
    number, queue = ticket.waiting.queue_number, grants.node.ledger.queue
    changes = _Changes()
    place, asked_s = 0, 0.0
    may_get, has_changed = False, True
    began_s = time.monotonic()
    while True:
        changes.watch(grants.node, number)  # before the look: nothing is missed
        ticket.touch()
        place_before, place = place, queue.place(number)
        is_due = place == 1 and time.monotonic() - asked_s >= _CARDS_PERIOD_S
        has_changed |= place != place_before
        could_before, may_get = may_get, grants.may_get(ticket)
        if is_due or (may_get and (has_changed or not could_before)):
            asked_s = time.monotonic()
            try:
                return admit(number)
            except NoRoom as refusal:
                reason = refusal
            grants.node.registry.close()  # their processes would only wait, too
        if place != place_before:
            report_place(ticket.waiting.id, place, reason)
        left_s = None if deadline_s is None else deadline_s - time.monotonic()
        if left_s is not None and left_s <= 0:
            waited_s = time.monotonic() - began_s
            raise NoRoom(f"waited {waited_s:.0f} s, place {place} in the queue: {reason}")
        period_s = _FIRST_POLL_PERIOD_S if place == 1 else _OTHERS_POLL_PERIOD_S
        has_changed = changes.wait(period_s if left_s is None else min(period_s, left_s))
        if place > 1 and queue.place(number) == place:
            # Whoever comes before has changed nothing for it: no hurry, since all look.
            time.sleep(min(1.0, 1.0 if left_s is None else max(left_s, 0.0)))


@define
class _Changes:
    """Says when a grant may have ended, a place may have become free or a card was uncordoned."""

    _libc: ctypes.CDLL = field(init=False, factory=lambda: ctypes.CDLL(None, use_errno=True))
    _descriptor: int = field(init=False, default=-1)
    _paths: set[bytes] = field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        # Where a user has too many of these already, the period alone wakes.
        self._descriptor = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)

    def watch(self, node: Node, number: int) -> None:
        """Watch what matters to the request of this number, besides what is watched already."""
        ledger = node.ledger
        self._add([ledger.path / "grants", ledger.queue.path], _LISTED_EVENTS)
        self._add(node.cards.directories if node.cards else (), _LISTED_EVENTS)
        queue_numbers = [waiting for waiting in ledger.queue.numbers() if waiting < number]
        if queue_numbers:
            self._add(ledger.queue.files(queue_numbers[-1]), _CLOSED_EVENT)
            return
        with suppress(OSError):
            grant_ids = os.listdir(ledger.path / "grants")
            self._add(
                (
                    ledger.directory(grant_id) / file_name
                    for grant_id in grant_ids
                    for file_name in (ALIVE, USAGE)
                ),
                _CLOSED_EVENT,
            )
            self._add((ledger.directory(grant_id) for grant_id in grant_ids), _LISTED_EVENTS)

    def _add(self, paths: Iterable[Path], mask: int) -> None:
        for path in map(os.fsencode, paths):
            if path in self._paths:
                continue
            if self._libc.inotify_add_watch(self._descriptor, path, mask) >= 0:
                self._paths.add(path)

    def wait(self, within_s: float) -> bool:
        """Wait until something changes, at most so many seconds; return whether it did."""
        if self._descriptor < 0:
            time.sleep(max(within_s, 0.0))
            return True  # for all that is known
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        if not poller.poll(max(1000 * within_s, 0)):
            return False
        time.sleep(_LOCK_DROP_S)
        with suppress(BlockingIOError):
            while os.read(self._descriptor, 1 << 16):
                pass
        return True
