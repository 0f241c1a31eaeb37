"""Keeps the one request to a vendor that has no deadline, in long-lived programs: news of health.

It has a process of its own, so that no other request waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from attrs import define, field

from hetero.model.errors import HeteroError
from hetero.registry.fault_notes import FaultNotes
from hetero.registry.message import Failure, WorkerRequest
from hetero.registry.pauses import doubled
from hetero.registry.process import Overdue, Starter, VendorProcess, WorkerEnded
from hetero.registry.respondent import Plugin

#: Seconds until the request is sent again after its process ended; doubled by each that brought no
#: news.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
#: Seconds between two news at least.
_SHORTEST_INTERVAL_S = 0.1
#: Seconds in which a process takes the request; until news it may compute for twice as many.
_REQUEST_TIMEOUT_S = 5.0


@define(eq=False)
class Watch:
    """A vendor that reports changes of its devices' health. A thread waits for these.

    `unnoted` is what it reported and `notes` could not take yet: a full disk does not make a device
    well.
    """

    plugin: Plugin
    starter: Starter
    notes: FaultNotes
    unnoted: Mapping[str, str | None] = field(factory=dict, init=False)
    _module: str | None = field(default=None, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)  # of the two below
    _ended: threading.Event | None = field(default=None, init=False)  # None: not started
    _process: VendorProcess | None = field(default=None, init=False)

    def start(self, *, module: str | None) -> None:
        """Start the thread, unless it runs. Exit does not wait for it."""
        with self._lock:
            if self._ended is None:
                self._module = module
                self._ended = threading.Event()
                threading.Thread(target=self._ask, args=(self._ended,), daemon=True).start()

    def close(self) -> None:
        """End it; it can be started again."""
        with self._lock:
            if self._ended:
                self._ended.set()
                self._ended = None
            if self._process:
                self._process.stop()

    def _ask(self, end_event: threading.Event) -> None:
        pause_s, fruitless_count = 0.0, 0
        while not end_event.wait(pause_s):
            worker = None
            # Its end is no failure: the next one is started later.
            with suppress(WorkerEnded, Overdue, HeteroError, Failure, OSError):
                worker = self._started(end_event)
                while worker and self._heard(worker) and not end_event.wait(_SHORTEST_INTERVAL_S):
                    fruitless_count = 0
            self._bury(worker)
            pause_s = doubled(FIRST_PAUSE_S, fruitless_count, most_s=LONGEST_PAUSE_S)
            fruitless_count += 1

    def _started(self, end_event: threading.Event) -> VendorProcess | None:
        with self._lock:
            if end_event.is_set():
                return None
            self._process = VendorProcess(self.plugin, self.starter)
            self._process.leave_to_its_parent()
            return self._process

    def _heard(self, worker: VendorProcess) -> bool:
        """Send the request and note the reply, whenever it comes; return whether it was news."""
        self._note({})
        request = WorkerRequest(
            ask="watch", within_s=_REQUEST_TIMEOUT_S, faults=self.notes.standing()
        )
        worker.send(request, time.monotonic() + _REQUEST_TIMEOUT_S)
        reply = worker.receive(None)
        if reply.health is not None:
            self._note(reply.health)
        return reply.health is not None

    def _note(self, news: Mapping[str, str | None]) -> None:
        self.unnoted = {**self.unnoted, **news}
        if self.unnoted:
            self.notes.note(self.unnoted, module=self._module)
            self.unnoted = {}

    def _bury(self, worker: VendorProcess | None) -> None:
        with self._lock:
            if self._process is worker:
                self._process = None
        if worker:
            worker.kill()
