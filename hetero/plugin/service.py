"""What a vendor says of its service: a process of its own through which programs share a device."""

from __future__ import annotations

from enum import Enum

from attrs import field

from hetero.model import Edits
from hetero.model.frozen import frozen


class Serve(str, Enum):
    """What is wanted of a service."""

    START = "start"  # that it runs; if it does already, with these settings
    LOOK = "look"  # to know how it is
    END = "end"  # that it lets go of one of its programs, before that is killed
    STOP = "stop"  # that it ends, and what it serves with it


@frozen(kw_only=True)
class Service:
    """A service as it is now.

    `processes` are its own and `clients` those it serves. `one_user`: it serves the programs of one
    user at a time. `fault` says why it serves nobody any more although it runs. `edits` are what
    brings a program to it. `sm` is the variable by which a program is held to a percent of the
    device's multiprocessors (None: there is none).
    """

    running: bool = False
    processes: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    one_user: bool = False
    fault: str | None = None
    edits: Edits = field(factory=Edits)
    sm: str | None = None
