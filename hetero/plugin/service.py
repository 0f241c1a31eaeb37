"""What a vendor says of its service: a process of its own through which programs share a device."""

from __future__ import annotations

from typing import Protocol

from attrs import field

from hetero.model import Edits
from hetero.model.frozen import frozen


@frozen(kw_only=True)
class Service:
    """A service as it is now."""

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
    """What drives the service of one device. Who asks for the same twice is answered the same."""

    def start(self, memory: int) -> Service:
        """Have it run, with at most `memory` bytes for each program; return how it is then."""

    def look(self) -> Service:
        """Return how it is."""

    def end(self, process: int) -> Service:
        """Have it let go of a program, which is killed after that; return how it is then."""

    def stop(self) -> Service:
        """End it with what it serves; return how it is then."""
