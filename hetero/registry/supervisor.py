"""Keeps one vendor's process: starts it when it is needed, and again after a pause when it failed.

A question to a vendor that just failed is answered at once by why it failed.
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
PAUSE, LONGEST_PAUSE = 1.0, 60.0
#: What later commands do not ask a vendor that gave no answer. What belongs to a grant is asked.
_REMEMBERED = ("discover", "observe", "vendor")
#: What nobody sees of a vendor unless `hetero doctor` says it.
_KEPT = ("enforce",)
#: Processes that were killed and do not end, after which none is started any more.
ABANDONED = 3


@define(eq=False)
class Supervisor:
    """One vendor behind processes of its own. Threads may ask; they wait for each other.

    `pauses` are the notes that earlier commands left.
    """

    plugin: Plugin
    starter: Starter
    pauses: Pauses | None = None
    _process: VendorProcess | None = field(default=None, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _failures: int = field(default=0, init=False)
    _abandoned: int = field(default=0, init=False)
    _asked_again: float = field(default=0.0, init=False)  # monotonic seconds
    _to_undo: bool = field(default=False, init=False)  # a slice may have been made half-way
    _used: float = field(default=0.0, init=False)  # monotonic seconds, when it answered last
    _why: WorkerReply = field(factory=WorkerReply, init=False)

    def ask(self, question: WorkerRequest) -> Callable[[], WorkerReply]:
        """Put a question; what is returned waits for the answer, and must be called once.

        An answer that never comes is one with a `failure`, too.
        """
        self._lock.acquire()
        if self._process and not self._process.is_ours:
            self._process = None
        if self._process and not self._process.runs:
            self._failed(question, WorkerEnded())
        paused = time.monotonic() < self._asked_again
        if paused and self._to_undo and question.ask == "reconcile":
            paused = self._to_undo = False
        if paused and self._why.absent and question.ask == "vendor":
            paused = False  # which needs no driver
        if paused or self._abandoned >= ABANDONED:
            return self._answer_at_once
        if why := self.pauses and self.pauses.why_not(self.plugin, question.ask):
            self._why = WorkerReply(failure=why)
            return self._answer_at_once
        try:
            if self._process is None:
                self._process = VendorProcess(self.plugin, self.starter)
            until = time.monotonic() + question.within  # to start a server is not the vendor's time
            self._process.send(question, until)
        except (WorkerEnded, Overdue, Failure, ValueError, OSError) as error:
            self._failed(question, error)
            return self._answer_at_once
        return lambda: self._answer(question, until)

    def close(self) -> None:
        """End the process, if there is one; the next question starts another."""
        with self._lock:
            if self._process:
                self._process.close()
                self._process = None

    def rest(self, seconds: float) -> None:
        """End a process that was asked nothing for so long, unless somebody asks it right now."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            process = self._process
            if process and process.is_ours and time.monotonic() - self._used > seconds:
                process.close()
                self._process = None
        finally:
            self._lock.release()

    def _answer_at_once(self) -> WorkerReply:
        self._lock.release()
        return self._why

    def _answer(self, question: WorkerRequest, until: float) -> WorkerReply:
        try:
            assert self._process is not None  # noqa: S101 - `ask` has started it
            answer = self._process.receive(until)
            self._used = time.monotonic()
            expect_sound(question, answer)
        except (WorkerEnded, Overdue, BadInput) as error:
            self._failed(question, error)
            return self._why
        else:
            if is_last(question, answer):
                self._process.close()
                self._process = None
            if answer.absent or not answer.loaded:
                self._pause(answer)
            elif question.ask != "vendor":
                self._failures = 0
            if answer.failure is not None and question.ask in _KEPT:
                self._keep(question, answer.failure)
            elif self.pauses:
                self.pauses.remove(self.plugin, question.ask)
            return answer
        finally:
            self._lock.release()

    def _failed(self, question: WorkerRequest, error: Exception) -> None:
        """End the process, and note why the vendor has no answer."""
        why, gone = str(error), True
        if self._process:
            gone, status = self._process.kill()
            self._process = None
            match error:
                case Overdue():
                    why = f"no answer within {question.within:g} s"
                case WorkerEnded():
                    why = how_it_ended(status)
        if not gone:
            self._abandoned += 1
            why += f"; its process does not end ({self._abandoned} so far)"
        if self._abandoned >= ABANDONED:
            why += ": not asked again by this program"
        why = f"{self.plugin.name}: {question.ask}: {why}"
        if self.pauses and isinstance(error, Overdue) and question.ask in _REMEMBERED:
            self.pauses.add(self.plugin, question.ask, why)
        self._keep(question, why)
        self._pause(WorkerReply(failure=why))
        if not isinstance(error, Overdue) and self._failures == 1:
            self._asked_again = 0.0  # nobody waited, and what was begun can be undone
        self._to_undo = question.ask == "enforce"

    def _keep(self, question: WorkerRequest, why: str) -> None:
        """Note what a failed enforce said, until one succeeds."""
        if self.pauses and question.ask in _KEPT:
            self.pauses.fail(self.plugin, question.ask, why)

    def _pause(self, why: WorkerReply) -> None:
        self._why = why
        pause = doubled(PAUSE, self._failures, most=LONGEST_PAUSE)
        self._failures += 1
        self._asked_again = time.monotonic() + pause


@define(eq=False)
class InProcess:
    """A vendor asked in this process, without a deadline: an object that this program made."""

    respondent: Callable[[WorkerRequest], WorkerReply]

    def ask(self, question: WorkerRequest) -> Callable[[], WorkerReply]:
        """Put a question; what is returned gives the answer."""
        answer = self.respondent(question)
        return lambda: answer

    def rest(self, seconds: float) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""
