"""The interface of a vendor's service: a process through which programs share a device."""

from __future__ import annotations

from typing import Protocol

from attrs import field

from hetero.model import Edits
from hetero.model.frozen import frozen


@frozen(kw_only=True)
class Service:
    """The state of a service: its processes, its clients, and how programs reach it."""

    #: Whether it runs.
    running: bool = False
    #: Its own processes.
    processes: tuple[int, ...] = ()
    #: The processes that it serves.
    clients: tuple[int, ...] = ()
    #: Whether it serves the programs of one user at a time.
    one_user: bool = False
    #: Why it serves nobody any more although it runs.
    fault: str | None = None
    #: What brings a program to it.
    edits: Edits = field(factory=Edits)
    #: The variable that holds a program to a percent of the multiprocessors, if there is one.
    sm: str | None = None


class ServiceDriver(Protocol):
    """Controls the service of one device. Calls are idempotent, and return the state after."""

    def start(self, memory: int) -> Service:
        """Start the service unless it runs, with at most `memory` bytes for each program."""

    def look(self) -> Service:
        """Return the state."""

    def end(self, process: int) -> Service:
        """Disconnect a program, by its PID, before it is killed."""

    def stop(self) -> Service:
        """Stop the service and the programs that it serves."""
