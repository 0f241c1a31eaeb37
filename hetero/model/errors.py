"""What can go wrong, as the few exceptions a user is told about in one line."""

from __future__ import annotations


class HeteroError(Exception):
    """What a user can act on: the command line prints it as one line and exits with `code`.

    Never 1, which is what most programs say that `hetero run` becomes.
    """

    code = 2


class BadInput(HeteroError):
    """The request makes no sense as written; nothing was changed."""


class Refused(HeteroError):
    """The request makes sense and cannot be granted now; nothing was taken."""

    code = 3


class NotFound(HeteroError):
    """A device, vendor or grant that was named is not there, or its vendor is broken."""

    code = 4


class DriverAbsent(HeteroError):
    """Raised by a vendor's discovery when its driver is not installed: a fact, not a fault."""

    code = 4
