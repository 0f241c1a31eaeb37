"""Keeps one vendor's process: starts it when it is needed, and again after a pause when it failed.

A request to a vendor that just failed is answered at once, with the failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from attrs import define, field

from hetero.model.errors import BadInput
from hetero.registry.message import Failure, WorkerReply, WorkerRequest, expect_sound, is_last
from hetero.registry.pauses import Pauses, doubled
from hetero.registry.process import Overdue, Starter, VendorProcess, WorkerEnded, how_it_ended
from hetero.registry.respondent import Plugin

#: Seconds for which a vendor is not asked after its first failure; doubled by each that follows.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
#: Hooks that later commands do not call after a missing reply. Those of a grant are called.
_REMEMBERED = ("discover", "observe", "vendor")
#: Hooks whose failure only `hetero doctor` shows.
_KEPT = ("enforce",)
#: Processes that were killed and have not ended yet, with which no other is started.
MOST_UNENDED = 3


@define(eq=False, repr=False)
class Supervisor:
    """One vendor behind processes of its own. Threads may ask; they wait for each other.

    `pauses` are the notes that earlier commands left.
    """

    plugin: Plugin
    starter: Starter
    pauses: Pauses | None = None
    _process: VendorProcess | None = field(default=None, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _failure_count: int = field(default=0, init=False)
    _unended: list[VendorProcess] = field(factory=list, init=False)  # killed, not seen to end yet
    _asked_again_at_s: float = field(default=0.0, init=False)  # monotonic seconds
    _to_undo: bool = field(default=False, init=False)  # a slice may have been made half-way
    _answered_at_s: float = field(
        default=0.0, init=False
    )  # monotonic seconds, when it answered last
    _why: WorkerReply = field(factory=WorkerReply, init=False)

    def ask(self, request: WorkerRequest) -> Callable[[], WorkerReply]:
        """Send a request; the returned function waits for the reply, and must be called once.

        A reply that never comes is one with a `failure`, too.
        """
        self._lock.acquire()
        if self._process and not self._process.is_ours:
            self._process = None
        if self._process and not self._process.runs:
            self._failed(request, WorkerEnded())
        is_paused = time.monotonic() < self._asked_again_at_s
        if is_paused and self._to_undo and request.ask == "reconcile":
            is_paused = self._to_undo = False
        if is_paused and self._why.absent and request.ask == "vendor":
            is_paused = False  # which needs no driver
        if is_paused or len(self._still_unended()) >= MOST_UNENDED:
            return self._answer_at_once
        if reason := self.pauses and self.pauses.why_not(self.plugin, request.ask):
            self._why = WorkerReply(failure=reason)
            return self._answer_at_once
        try:
            if self._process is None:
                self._process = VendorProcess(self.plugin, self.starter)
            deadline_s = time.monotonic() + request.within_s  # the start of a server does not count
            self._process.send(request, deadline_s)
        except (WorkerEnded, Overdue, Failure, ValueError, OSError) as error:
            self._failed(request, error)
            return self._answer_at_once
        return lambda: self._answer(request, deadline_s)

    def close(self) -> None:
        """End the process, if there is one; the next request starts another."""
        with self._lock:
            if self._process:
                self._process.close()
                self._process = None

    def rest(self, idle_s: float) -> None:
        """End a process that had no request for so long, unless one is in progress."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            worker = self._process
            if worker and worker.is_ours and time.monotonic() - self._answered_at_s > idle_s:
                worker.close()
                self._process = None
        finally:
            self._lock.release()

    def _answer_at_once(self) -> WorkerReply:
        self._lock.release()
        return self._why

    def _answer(self, request: WorkerRequest, deadline_s: float) -> WorkerReply:
        """Return the reply of the worker, waited for until `deadline_s` (monotonic seconds)."""
        try:
            assert self._process is not None  # noqa: S101 - `ask` has started it
            reply = self._process.receive(deadline_s)
            self._answered_at_s = time.monotonic()
            expect_sound(request, reply)
        except (WorkerEnded, Overdue, BadInput) as error:
            self._failed(request, error)
            return self._why
        else:
            if is_last(request, reply):
                self._process.close()
                self._process = None
            if reply.absent or not reply.loaded:
                self._pause(reply)
            elif request.ask != "vendor":
                self._failure_count = 0
            if reply.failure is not None and request.ask in _KEPT:
                self._keep(request, reply.failure)
            elif self.pauses:
                self.pauses.remove(self.plugin, request.ask)
            return reply
        finally:
            self._lock.release()

    def _failed(self, request: WorkerRequest, error: Exception) -> None:
        """End the process, and note why the vendor gave no reply."""
        reason, is_gone = str(error), True
        if self._process:
            is_gone, wait_status = self._process.kill()
            if not is_gone:
                self._unended.append(self._process)
            self._process = None
            match error:
                case Overdue():
                    reason = f"no answer within {request.within_s:g} s"
                case WorkerEnded():
                    reason = how_it_ended(wait_status)
        if not is_gone:
            reason += f"; its process does not end ({len(self._unended)} now)"
        if len(self._unended) >= MOST_UNENDED:
            reason += ": not asked again until one ends"
        reason = f"{self.plugin.name}: {request.ask}: {reason}"
        if self.pauses and isinstance(error, Overdue) and request.ask in _REMEMBERED:
            self.pauses.add(self.plugin, request.ask, reason)
        self._keep(request, reason)
        self._pause(WorkerReply(failure=reason))
        if not isinstance(error, Overdue) and self._failure_count == 1:
            self._asked_again_at_s = 0.0  # nobody waited, and what was begun can be undone
        self._to_undo = request.ask == "enforce"

    def _still_unended(self) -> list[VendorProcess]:
        """Return the killed processes that still run: on a busy machine one may just end late."""
        self._unended = [process for process in self._unended if not process.has_ended()]
        return self._unended

    def _keep(self, request: WorkerRequest, reason: str) -> None:
        """Note why an enforce failed, until one succeeds."""
        if self.pauses and request.ask in _KEPT:
            self.pauses.fail(self.plugin, request.ask, reason)

    def _pause(self, failure_reply: WorkerReply) -> None:
        self._why = failure_reply
        pause_s = doubled(FIRST_PAUSE_S, self._failure_count, most_s=LONGEST_PAUSE_S)
        self._failure_count += 1
        self._asked_again_at_s = time.monotonic() + pause_s


@define(eq=False, repr=False)
class InProcess:
    """A vendor asked in this process, without a deadline: an object that this program made."""

    respondent: Callable[[WorkerRequest], WorkerReply]

    def ask(self, request: WorkerRequest) -> Callable[[], WorkerReply]:
        """Call the vendor; the returned function gives the reply."""
        reply = self.respondent(request)
        return lambda: reply

    def rest(self, idle_s: float) -> None:
        """Do nothing: there is no process."""

    def close(self) -> None:
        """Do nothing: there is no process."""
