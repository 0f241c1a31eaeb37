"""The exceptions that a user is told about in one line."""

from __future__ import annotations


class HeteroError(Exception):
    """An error that a user can act on: the command line prints one line and exits with `code`.

    Never 1, the usual exit code of the programs that `hetero run` becomes.
    """

    code = 2


class BadInput(HeteroError):
    """The request is not valid; nothing was changed."""


class Refused(HeteroError):
    """The request is valid and cannot be granted now; nothing was taken."""

    code = 3


class NoRoom(Refused):
    """The request can be granted when others have ended: who wants to may wait for that."""


class NotFound(HeteroError):
    """A named device, vendor or grant does not exist, or its vendor is broken."""

    code = 4


class DriverAbsent(HeteroError):
    """Raised by a vendor's discovery when its driver is not installed: a fact, not a fault."""

    code = 4
